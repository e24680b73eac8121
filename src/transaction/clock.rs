//! The commits, checkpoints and care for the index that no caller asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::CommitError;
use super::commits::Commits;
use super::growth::Growth;
use crate::membership::Members;
use crate::metadata::{IndexReplicas, Meta};

/// The longest wait of changes for a commit.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// The bytes of changes that make a commit due.
const COMMIT_BYTES: usize = 8 << 20;

/// The longest wait of committed changes for a checkpoint.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which superblocks are rewritten, if the volume changes.
const RENEW_INTERVAL: Duration = Duration::from_secs(3600);

/// The interval at which the copies of the index, and its room, are checked.
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

/// The part of the journal whose use makes a checkpoint due.
const JOURNAL_FILL: f32 = 0.5;

/// A checkpoint is due once changes fill one of so many parts of their memory. Further changes use the rest meanwhile, in
/// place of waiting for its end.
const OVERLAY_PARTS: u64 = 2;

/// The times when each kind of work was last done.
#[derive(Debug)]
struct Times {
    committed: Instant,
    checkpointed: Instant,
    /// `None` if copies of the index may lack something.
    refilled_index: Option<Instant>,
    /// The time when superblocks were last rewritten, if they were.
    renewed: Option<Instant>,
}

impl Times {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            committed: now,
            checkpointed: now,
            refilled_index: Some(now),
            renewed: None,
        }
    }
}

/// The clock of a volume: it makes commits and checkpoints when they are due.
pub struct Clock {
    members: Arc<Members>,
    meta: Arc<Meta>,
    replicas: Arc<IndexReplicas>,
    commits: Arc<Commits>,
    growth: Arc<Growth>,
    times: Mutex<Times>,
}

impl Clock {
    pub(crate) fn new(
        members: Arc<Members>,
        meta: Arc<Meta>,
        replicas: Arc<IndexReplicas>,
        commits: Arc<Commits>,
        growth: Arc<Growth>,
    ) -> Self {
        Self {
            members,
            meta,
            replicas,
            commits,
            growth,
            times: Mutex::new(Times::new()),
        }
    }

    /// Makes the commits and checkpoints that are due; call it several times a second.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`].
    pub fn tick(&self) -> Result<(), CommitError> {
        if self.commits.is_read_only() || self.commits.is_poisoned() {
            return Ok(());
        }
        let (commit_due, checkpoint_due, refill_due) = {
            let clock = self.times.lock();
            let refilled = clock.refilled_index;
            (
                clock.committed.elapsed() >= COMMIT_INTERVAL,
                clock.checkpointed.elapsed() >= CHECKPOINT_INTERVAL,
                refilled.is_none_or(|refilled| refilled.elapsed() >= REFILL_INTERVAL),
            )
        };
        // First, since a copy without space may keep all else from being done.
        if refill_due {
            let more = self.commits.refill_index(1)?;
            self.growth.restore_reserve()?;
            self.growth.measure_growth();
            self.times.lock().refilled_index = (!more).then(Instant::now);
        }
        self.replicas.compare()?;
        let unsaved = self.commits.awaits_checkpoint();
        // A checkpoint that found no space is not tried again at each tick.
        let part = self.meta.most_waiting() / OVERLAY_PARTS;
        let is_overlay_filled = !self.meta.is_full() && !self.meta.waits_below(part);
        let is_waited_for = refill_due && self.members.epochs().is_checkpoint_awaited();
        let done = if self.meta.journal_fill() >= JOURNAL_FILL
            || is_overlay_filled
            || (checkpoint_due && unsaved)
            || is_waited_for
        {
            self.times.lock().checkpointed = Instant::now();
            self.times.lock().committed = Instant::now();
            let done = self.commits.checkpoint();
            if done.is_ok() {
                self.renew_superblocks_if_due();
            }
            done
        } else if commit_due || self.meta.pending_bytes() >= COMMIT_BYTES {
            self.times.lock().committed = Instant::now();
            self.commits.sync()
        } else {
            Ok(())
        };
        if matches!(done, Err(CommitError::NoSpace)) {
            self.times.lock().refilled_index = None;
        }
        done
    }

    /// Rewrites the superblocks of a changed volume if the last time was long ago. A directory from before that time
    /// can then be recognised as a stale copy.
    fn renew_superblocks_if_due(&self) {
        let mut clock = self.times.lock();
        let is_due = |renewed: Instant| renewed.elapsed() >= RENEW_INTERVAL;
        if clock.renewed.is_none_or(is_due) {
            clock.renewed = Some(Instant::now());
            drop(clock);
            self.members.epochs().renew_superblocks();
        }
    }

    /// Makes a checkpoint due at the next tick, if there is anything for it.
    #[cfg(test)]
    pub(crate) fn make_checkpoint_due(&self) {
        self.times.lock().checkpointed -= CHECKPOINT_INTERVAL;
    }

    /// Makes the check of the copies of the index due at the next tick.
    #[cfg(test)]
    pub(crate) fn look_after_index(&self) {
        self.times.lock().refilled_index = None;
    }
}
