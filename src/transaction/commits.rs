//! Makes changes durable, in numbered steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::allowance::Allowance;
use super::arrivals::Arrivals;
use super::catalog::Catalog;
use super::error::CommitError;
use super::group::{Answer, Group};
use super::unreadable::UnreadableStripes;
use crate::format::Ino;
use crate::membership::{Access, Members};
use crate::metadata::{IndexReplicas, Meta, Pending, StripeData};
use crate::stripes::{StripeError, StripeRecords, Stripes, Unjournaled};

/// Bytes of the open stripe that are put into the journal rather than flushed as a short stripe.
const JOURNALED_BYTES: usize = 128 << 10;

/// Pieces of missing copies of the index to repair before a volume is closed.
pub(crate) const MAX_REFILLED_AT_CLOSE: usize = 4096;

/// The most pieces of a copy of the index that a commit without space moves: some hundred megabytes.
const MAX_REFILLED_BY_COMMIT: usize = 128;

/// A journal fuller than this takes no more data: a checkpoint is overdue.
const JOURNAL_FILL_WITH_DATA: f32 = 0.7;

/// The place where a commit makes changes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitTarget {
    /// In the journal, with the bytes of the open stripe.
    JournalWithData,
    /// In the journal, with all stripes flushed before.
    Journal,
    /// In the index, with all stripes flushed before, and everything that is in the journal.
    Index,
}

/// The commits and checkpoints of a volume, and whether it accepts changes.
pub struct Commits {
    members: Arc<Members>,
    meta: Arc<Meta>,
    replicas: Arc<IndexReplicas>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    pub(crate) group: Group,
    /// The reason why nothing more is accepted.
    poison: OnceLock<Arc<str>>,
    closed: AtomicBool,
    /// Held through I/O, by checkpoints only.
    checkpointing: Mutex<()>,
    /// Set while no commit may put stripe data into the journal, because a checkpoint is about to choose what the index
    /// takes.
    withholds_data: AtomicBool,
    /// Set if something was committed since the last checkpoint.
    to_checkpoint: AtomicBool,
    /// The members that joined since the volume was opened.
    pub(crate) arrivals: Arrivals,
    allowance: Arc<Allowance>,
    /// Stripes of directories with less parity than the volume that were lost before they were durable.
    unreadable: UnreadableStripes,
}

impl Commits {
    pub(crate) fn new(
        members: Arc<Members>,
        meta: Arc<Meta>,
        replicas: Arc<IndexReplicas>,
        stripes: Arc<Stripes>,
        records: Arc<StripeRecords>,
        catalog: Arc<Catalog>,
        allowance: Arc<Allowance>,
    ) -> Self {
        Self {
            members,
            meta,
            replicas,
            stripes,
            records,
            catalog,
            group: Group::new(),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            checkpointing: Mutex::default(),
            withholds_data: AtomicBool::new(false),
            to_checkpoint: AtomicBool::new(false),
            arrivals: Arrivals::default(),
            allowance,
            unreadable: UnreadableStripes::default(),
        }
    }

    /// Makes everything that was applied and written before the call durable (P1). Callers share commits: those that
    /// arrive while one runs wait for the next, which is one for all of them.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] if neither the journal nor the index takes it; nothing is lost then. Any other
    /// failure poisons the volume: it stays readable, and accepts nothing more.
    pub fn sync(&self) -> Result<(), CommitError> {
        if self.is_read_only() {
            return Ok(());
        }
        self.check_poison()?;
        self.group.join(|| self.guarded(|| self.commit()))
    }

    /// As [`Self::sync`]. Without space, what was applied is durable with the next commit that finds some. For changes
    /// that are to make room.
    ///
    /// # Errors
    ///
    /// As for [`Self::sync`], except [`CommitError::NoSpace`].
    pub fn sync_if_there_is_space(&self) -> Result<(), CommitError> {
        match self.sync() {
            Err(CommitError::NoSpace) => Ok(()),
            outcome => outcome,
        }
    }

    /// Checks after a commit whether the bytes of a file are durable. Those in a stripe of a directory with less parity
    /// than the volume may be lost with members although the commit succeeded.
    ///
    /// # Errors
    ///
    /// [`StripeError::TooFewShards`] if the file has bytes in such a stripe.
    pub(crate) fn check_bytes_of(&self, ino: Ino) -> Result<(), CommitError> {
        self.unreadable.check(&self.catalog, ino)
    }

    /// Checks whether stripes were lost before they were durable since this was checked last.
    ///
    /// # Errors
    ///
    /// [`StripeError::TooFewShards`] if any was.
    pub(crate) fn check_bytes_of_all(&self) -> Result<(), CommitError> {
        self.unreadable.check_all()
    }

    /// Lets a commit that begins after this call give `answer`: one of this thread, if it `may_commit`, or one of the thread that runs
    /// [`commit_for_callers`](Self::commit_for_callers).
    pub(super) fn commit_for(&self, may_commit: bool, answer: Answer) {
        let commit = || self.guarded(|| self.commit());
        self.group.leave(answer, may_commit.then_some(commit));
    }

    /// Makes the commits that callers without waiting threads want, until [`Group::close`].
    pub(super) fn commit_for_callers(&self) {
        while self.group.lead(|| self.guarded(|| self.commit())) {}
    }

    /// The commit itself; one at a time.
    ///
    /// 1. Take the changes applied so far. Every stripe they name was numbered before, and its bytes are in a buffer or
    ///    on their way: the order of steps 1 and 2 ensures this.
    /// 2. Take the few bytes that the open stripe got since the last commit, to be put into the journal record; if they
    ///    are many, seal the stripe instead.
    /// 3. Wait until every sealed stripe is written.
    /// 4. Take the records of all stripes written so far.
    /// 5. **Sync** the segment files, all members at once. Shards that did not make it are taken out of their records,
    ///    and those records join the others.
    /// 6. Append one journal record with all of this, **durably** on all members: one request to each writes and syncs
    ///    it. Where the members have no space, or the journal's files are full, commit it to the index; that waits for a
    ///    checkpoint that is under way. Only now is it acknowledged.
    pub(crate) fn commit(&self) -> Result<(), CommitError> {
        // A caller that waited for a failed commit leads the next one, and must not make it. The changes taken by the
        // failed one are in no journal, and later ones may build upon them.
        self.check_poison()?;
        self.retry_stuck()?;
        let data = if self.takes_data() {
            CommitTarget::JournalWithData
        } else {
            CommitTarget::Journal
        };
        // After "no space" the changes are pending again. Without data the record is smaller; and the
        // index needs none of what is in the journal, which it takes in as well and so empties.
        let mut outcome = [data, CommitTarget::Journal, CommitTarget::Index]
            .into_iter()
            .map(|target| self.commit_to(target))
            .find(|outcome| !matches!(outcome, Err(CommitError::NoSpace)))
            .unwrap_or(Err(CommitError::NoSpace));
        if matches!(outcome, Err(CommitError::NoSpace)) {
            outcome = match self.move_index() {
                Ok(true) => self.commit_to(CommitTarget::Index),
                Ok(false) => outcome,
                Err(error) => Err(error),
            };
        }
        outcome.inspect_err(|error| self.poison_unless_harmless(error))
    }

    /// Moves a copy of the index off a member without space for it, if another member can take it. Returns
    /// whether one was moved.
    fn move_index(&self) -> Result<bool, CommitError> {
        if self.stripes.writer().is_stuck() {
            return Ok(false);
        }
        let holders = self.replicas.holders();
        self.refill_index(MAX_REFILLED_BY_COMMIT)?;
        Ok(self.replicas.holders() != holders)
    }

    fn commit_to(&self, target: CommitTarget) -> Result<(), CommitError> {
        let mut parts = vec![self.meta.rotate()]; // step 1
        let data = self.take_data(target == CommitTarget::JournalWithData); // step 2
        let flushed = self
            .stripes
            .writer()
            .wait_flushed()
            .map_err(CommitError::from); // step 3
        if matches!(flushed, Err(CommitError::NoSpace)) {
            // The bytes of the open stripe will be sealed: see `commit`.
            self.meta.restore(parts);
            return flushed;
        }
        if let Err(error) = flushed.and_then(|()| self.sync_stripes(&mut parts)) {
            // Steps 4 and 5. The changes taken will never be appended, no matter what the error is.
            return Err(self.poison_with(&error));
        }
        if parts.iter().all(Pending::is_empty) && data.is_empty() {
            return Ok(());
        }
        // Step 6.
        if target == CommitTarget::Index {
            self.meta.append_to_index(parts)?;
        } else {
            self.meta.append(parts, &data)?;
        }
        self.to_checkpoint.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Lets stripes that found no space try again; those without references need none.
    fn retry_stuck(&self) -> Result<(), CommitError> {
        if !self.stripes.writer().is_stuck() {
            return Ok(());
        }
        // Without a pin held, no reader is about to read a place that it found before its removal.
        if self.stripes.pins().has_passed(self.stripes.pins().fence()) {
            for stripe in self.stripes.writer().stuck() {
                if !self.catalog.has_backref(stripe)? {
                    self.stripes.writer().discard(stripe);
                }
            }
        }
        self.stripes.writer().retry();
        Ok(())
    }

    /// Returns the bytes to be journaled. Open stripes with too many are sealed. If none may be journaled, all are, also
    /// those with all their bytes in the journal already.
    fn take_data(&self, journal_data: bool) -> Vec<StripeData> {
        let writer = self.stripes.writer();
        if !journal_data {
            writer.seal();
            return Vec::new();
        }
        let to_data = |fresh: Unjournaled| StripeData {
            stripe: fresh.stripe,
            offset: fresh.offset,
            bytes: fresh.bytes,
        };
        let unjournaled = writer.unjournaled(JOURNALED_BYTES).into_iter();
        unjournaled.map(to_data).collect()
    }

    /// Steps 4 and 5, again until no shard is lost on the way: each round but the last costs a member.
    fn sync_stripes(&self, parts: &mut Vec<Pending>) -> Result<(), CommitError> {
        loop {
            parts.push(self.meta.take_stripes());
            let lost = self.stripes.writer().sync()?;
            if lost.is_empty() {
                return Ok(());
            }
            tracing::warn!(
                "{} shards did not reach members that failed: they count as missing until they are rebuilt",
                lost.len()
            );
            let segment_of = |segment| self.stripes.segments().record(segment);
            let unreadable = self.records.forget_shards(&lost, segment_of)?;
            self.unreadable.note(&unreadable.of_directories);
            if let Some(stripe) = unreadable.of_volume {
                let needed = self.members.shape().geometry().data_shards();
                return Err(StripeError::TooFewShards {
                    stripe,
                    present: 0,
                    needed,
                }
                .into());
            }
        }
    }

    fn takes_data(&self) -> bool {
        !self.withholds_data.load(Ordering::SeqCst)
            && self.meta.journal_fill() < JOURNAL_FILL_WITH_DATA
    }

    /// Moves the durable changes of the journal into the index.
    ///
    /// The journal may be cut only when no data in it is needed any more. From the commit that flushes the open stripe
    /// until the records are chosen that the index takes, no commit puts data into it. Later data lies in later records,
    /// which the index does not cover. So commits share the journal with a checkpoint that writes the index.
    ///
    /// # Errors
    ///
    /// As for [`Self::sync`].
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        if self.is_read_only() {
            return Ok(());
        }
        self.check_poison()?;
        let _one_at_a_time = self.checkpointing.lock();
        self.withholds_data.store(true, Ordering::SeqCst);
        let allow_data = || self.withholds_data.store(false, Ordering::SeqCst);
        let _allowing = scopeguard::guard((), |()| allow_data());
        self.group.join(|| self.guarded(|| self.commit()))?;
        self.to_checkpoint.store(false, Ordering::SeqCst);
        let done = self.guarded(|| self.meta.checkpoint_beyond(allow_data));
        // The index has grown.
        self.allowance.forget();
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                self.to_checkpoint.store(true, Ordering::SeqCst);
                let error = error.into();
                self.poison_unless_harmless(&error);
                Err(error)
            }
        }
    }

    /// Writes at most so many of the pieces that copies of the index lack. Returns whether there may be more.
    ///
    /// Once all copies are complete, an epoch takes in the stale members that wait for no checkpoint. Before that they
    /// could not replace others, because they lack a copy, or changes that only the journal has.
    pub(crate) fn refill_index(&self, pieces: usize) -> Result<bool, CommitError> {
        let more = if pieces == 1 {
            // Not worth waiting for a commit that is being made.
            self.replicas.refill()?
        } else {
            self.replicas.refill_pieces(pieces)?
        };
        if !more {
            self.members.epochs().admit_stale()?;
        }
        Ok(more)
    }

    /// Makes copies of the index that are missing, as far as there are members for them.
    ///
    /// # Errors
    ///
    /// If no copy is left, or nothing may be written.
    pub fn complete_index(&self) -> Result<(), CommitError> {
        self.check_writable()?;
        self.refill_index(MAX_REFILLED_AT_CLOSE).map(drop)
    }

    /// Returns whether committed changes wait for a checkpoint.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.to_checkpoint.load(Ordering::SeqCst)
    }

    /// Closes the volume to further changes. Returns false if it was closed already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Returns whether the volume is being closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns whether nothing may be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.members.access() == Access::ReadOnly
    }

    /// Refuses changes of a volume that accepts none.
    pub(crate) fn check_writable(&self) -> Result<(), CommitError> {
        if self.is_read_only() {
            return Err(CommitError::ReadOnly);
        }
        if self.is_closed() {
            return Err(CommitError::Closed);
        }
        self.check_poison()
    }

    /// Returns whether a commit failed, so that nothing more is accepted.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    pub(crate) fn check_poison(&self) -> Result<(), CommitError> {
        match self.poison.get() {
            Some(reason) => Err(CommitError::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// A commit that failed half way is never retried: data written since the last one may or may not be durable. Only
    /// "no space", which comes before anything is written, changes nothing.
    fn poison_unless_harmless(&self, error: &CommitError) {
        if !matches!(error, CommitError::NoSpace | CommitError::Closed) {
            self.poison_with(error);
        }
    }

    /// Does work that leaves an unknown state if it panics. The volume accepts nothing more after a panic.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> T) -> T {
        let unwinding = guard_on_unwind((), |()| {
            self.poison_because("work on the index or the members panicked");
        });
        let outcome = work();
        ScopeGuard::into_inner(unwinding);
        outcome
    }

    fn poison_because(&self, reason: &str) {
        if self.poison.set(reason.into()).is_ok() {
            tracing::error!("the volume is read-only from now on: {reason}");
        }
    }

    /// Accepts nothing more; returns the error that says so.
    fn poison_with(&self, error: &CommitError) -> CommitError {
        self.poison_because(&error.to_string());
        self.check_poison().err().unwrap_or(CommitError::Closed)
    }
}
