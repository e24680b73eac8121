//! Scrub: reads and verifies everything that lies on the members, and repairs wrong bytes.
//!
//! A scrub goes through superblocks, journals and the copies of the index. Then it goes through the segments by number
//! and the stripes in the order in which they lie there: never through the file tree. Its position is in the index, so
//! that it goes on where it stopped, after a crash too. Writes, deletions and compaction go on meanwhile; bytes written
//! after a scrub began are left to the next.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::compaction::{Compaction, InodeLocks};
use super::pace::{pause, step_bytes};
use super::rebuild::Rebuild;
use super::redundancy::RedundancyCounter;
use super::stale_copies::{StaleCopies, now};
use crate::format::record::Scrub;
use crate::format::{MemberIndex, SegmentId};
use crate::membership::Members;
use crate::metadata::{IndexReplicas, Meta};
use crate::stripes::{StripeRecords, Stripes};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::foreground::Foreground;

mod deep;
mod followers;
mod metadata;
mod passed;
mod second_pass;
mod stripes;
mod waiting;

use followers::Followers;
use passed::{DefectCounts, PassedSegments, add_defects};

pub use deep::{ReadShards, WrongShards};
pub use followers::Follower;

/// The interval between notes of a scrub's position.
const NOTE_INTERVAL: Duration = Duration::from_secs(2);

/// The most bytes of shards inspected at once, of all members together, unless one stripe has more.
const BATCH_BYTES: u64 = 48 << 20;

/// The longest rest without a check whether to stop.
const MAX_REST: Duration = Duration::from_millis(100);

/// The state of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// There was none yet.
    #[default]
    Never,
    /// It is under way.
    Running,
    /// It went through everything.
    Finished,
    /// It stopped half way; the next one goes on from there.
    Stopped,
}

/// The progress of a scrub, and its findings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScrubStatus {
    /// The state of the work.
    pub state: ScrubState,
    /// The part that is done, from 0 to 1.
    pub progress: f64,
    /// Bytes of segment files that it has passed, and all that it is to pass.
    pub bytes_passed: u64,
    /// See `bytes_passed`.
    pub bytes_total: u64,
    /// The findings so far.
    pub record: Scrub,
}

impl ScrubStatus {
    /// Returns whether the scrub finished, and left nothing wrong, missing or lost.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Scrub {
            wrong,
            missing,
            lost,
            ..
        } = self.record;
        self.state == ScrubState::Finished && (wrong, missing, lost) == (0, 0, 0)
    }

    /// Returns whether a scrub went through since the `before` status. Of two that did, the later one is to be
    /// reported.
    #[must_use]
    pub fn is_through_since(&self, before: &Self) -> bool {
        let times = |status: &Self| (status.record.began, status.record.last_finished);
        let is_new = before.state != ScrubState::Finished || times(self) != times(before);
        self.state == ScrubState::Finished && is_new
    }
}

/// Scrubs a volume.
pub struct Scrubber {
    members: Arc<Members>,
    meta: Arc<Meta>,
    replicas: Arc<IndexReplicas>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    foreground: Arc<Foreground>,
    compaction: Arc<Compaction>,
    stale_copies: Arc<StaleCopies>,
    redundancy: Arc<RedundancyCounter>,
    rebuild: Arc<Rebuild>,
    /// Held through I/O by the thread that scrubs.
    scrubbing: Mutex<()>,
    /// Set if the running scrub has to stop.
    is_to_stop: AtomicBool,
    /// The most bytes that the running scrub reads in a second, or that the last one read; 0 if that is not limited.
    limit: AtomicU64,
    /// The position of the running scrub; `None` if none runs.
    position: Mutex<Option<Scrub>>,
    followers: Followers,
    passed: PassedSegments,
    /// The position of a scrub that ended with an error. It is further than the noted one, and so are the findings.
    cut_off: Mutex<Option<Scrub>>,
    /// The number of pieces of each member that a scrub found wrong or missing since the volume was opened.
    found: Mutex<DefectCounts>,
    /// The number of stripes that the last scrub left waiting before the volume was opened; `None` until it was read. It is 0
    /// once another one began.
    waiting_before: Mutex<Option<u64>>,
}

/// The parts that a [`Scrubber`] uses.
pub(super) struct ScrubDependencies {
    pub(super) members: Arc<Members>,
    pub(super) meta: Arc<Meta>,
    pub(super) replicas: Arc<IndexReplicas>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) records: Arc<StripeRecords>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) commits: Arc<Commits>,
    pub(super) foreground: Arc<Foreground>,
    pub(super) compaction: Arc<Compaction>,
    pub(super) stale_copies: Arc<StaleCopies>,
    pub(super) redundancy: Arc<RedundancyCounter>,
    pub(super) rebuild: Arc<Rebuild>,
}

/// Guard of a running scrub. Its drop clears the position, however the scrub ends.
struct Running<'a>(&'a Scrubber);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.position.lock() = None;
    }
}

impl Scrubber {
    pub(super) fn new(dependencies: ScrubDependencies) -> Self {
        let ScrubDependencies {
            members,
            meta,
            replicas,
            stripes,
            records,
            catalog,
            commits,
            foreground,
            compaction,
            stale_copies,
            redundancy,
            rebuild,
        } = dependencies;
        Self {
            members,
            meta,
            replicas,
            stripes,
            records,
            catalog,
            commits,
            foreground,
            compaction,
            stale_copies,
            redundancy,
            rebuild,
            scrubbing: Mutex::default(),
            is_to_stop: AtomicBool::new(false),
            limit: AtomicU64::default(),
            position: Mutex::default(),
            followers: Followers::default(),
            passed: PassedSegments::default(),
            cut_off: Mutex::default(),
            found: Mutex::default(),
            waiting_before: Mutex::default(),
        }
    }

    /// Stops the running scrub, for good, and waits for its end.
    pub(super) fn stop(&self) {
        self.is_to_stop.store(true, Ordering::SeqCst);
        drop(self.scrubbing.lock());
    }

    /// Scrubs, or continues an interrupted scrub, until it is through, `report` breaks, or the volume is closed. Calls
    /// `report` several times a second. Reads at most so many bytes in a second, if that is limited. Rests for two
    /// thirds of the time while others use the volume. Returns `None` if another scrub runs.
    ///
    /// A repaired shard is durable, and was read back, when it is counted.
    ///
    /// # Errors
    ///
    /// If the index cannot be read or changed.
    pub fn scrub(
        &self,
        locks: &dyn InodeLocks,
        bytes_per_second: Option<u64>,
        mut report: impl FnMut(&ScrubStatus) -> ControlFlow<()>,
    ) -> Result<Option<ScrubStatus>, CommitError> {
        self.commits.check_writable()?;
        let Some(_scrubbing) = self.scrubbing.try_lock() else {
            return Ok(None);
        };
        let limit = bytes_per_second.unwrap_or(0);
        self.limit.store(limit, Ordering::Relaxed);
        let take_cut_off = || self.cut_off.lock().take();
        let mut scrub = self.stale_copies.scrub_to_continue(take_cut_off, || {
            self.stripes.damage().unrecoverable().begin_pass();
            self.passed.forget();
            self.found.lock().clear();
            *self.waiting_before.lock() = Some(0);
        })?;
        let _running = Running(self);
        let scrubbed = self.scrub_from(&mut scrub, locks, bytes_per_second, &mut report);
        if scrubbed.is_err() {
            *self.cut_off.lock() = Some(scrub);
        }
        scrubbed?;
        let status = self.status_of(&scrub, false);
        log_scrubbed(&status);
        Ok(Some(status))
    }

    /// Continues a scrub from its position, and notes the position reached.
    fn scrub_from(
        &self,
        scrub: &mut Scrub,
        locks: &dyn InodeLocks,
        bytes_per_second: Option<u64>,
        report: &mut dyn FnMut(&ScrubStatus) -> ControlFlow<()>,
    ) -> Result<(), CommitError> {
        let (mut noted, mut is_stopped) = (Instant::now(), false);
        let mut go_on = |scrub: &Scrub| -> Result<bool, CommitError> {
            *self.position.lock() = Some(*scrub);
            if noted.elapsed() >= NOTE_INTERVAL {
                self.note_scrub(scrub)?;
                noted = Instant::now();
            }
            // A `report` that broke once is not called again.
            is_stopped = is_stopped
                || self.is_to_stop.load(Ordering::SeqCst)
                || report(&self.status_of(scrub, true)).is_break();
            Ok(!is_stopped)
        };
        if scrub.segment == SegmentId(0) {
            self.scrub_metadata(scrub, &mut go_on)?;
        }
        while go_on(scrub)? {
            let (began, read, foreground) = (Instant::now(), scrub.bytes, self.foreground.count());
            if !self.scrub_stripes(scrub, bytes_per_second, locks)? {
                self.end_scrub(scrub)?;
                break;
            }
            let in_use = self.foreground.count() > foreground;
            let took = began.elapsed();
            let until = began + took + pause(bytes_per_second, scrub.bytes - read, took, in_use);
            while Instant::now() < until && go_on(scrub)? {
                std::thread::sleep(MAX_REST.min(until.saturating_duration_since(Instant::now())));
            }
        }
        self.note_scrub(scrub)
    }

    /// Returns the most bytes that the running scrub reads in a second, or that the last one read, if that is limited.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// Registers a caller that waits for the scrub of another one, until the returned value is dropped.
    pub fn follow_scrub(&self) -> Follower<'_> {
        self.followers.join()
    }

    /// Keeps all others from scrubbing until the returned guard is dropped, like a scrub that has not got any further
    /// yet.
    #[cfg(test)]
    pub(super) fn scrubs_soon(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.scrubbing.lock()
    }

    /// Returns whether a caller waits for a scrub and would continue it if it stopped.
    #[must_use]
    pub fn has_scrub_followers(&self) -> bool {
        self.followers.are_there()
    }

    /// Returns the members of which the last scrub found pieces wrong or missing, and how many. Its findings before the
    /// volume was opened are not known, nor which member has a differing journal.
    #[must_use]
    pub fn found_by_scrub(&self) -> BTreeMap<MemberIndex, u64> {
        self.found.lock().clone()
    }

    /// Notes wrong pieces of members.
    fn note_found_on(&self, found: impl IntoIterator<Item = (MemberIndex, u64)>) {
        add_defects(&mut self.found.lock(), found);
    }

    /// Returns the status of the running scrub, or of the last one.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn scrub_status(&self) -> Result<ScrubStatus, CommitError> {
        let position = *self.position.lock();
        if let Some(scrub) = position {
            return Ok(self.status_of(&scrub, true));
        }
        Ok(match self.stale_copies.last_scrub()? {
            Some(scrub) => self.status_of(&scrub, false),
            None => ScrubStatus {
                state: ScrubState::Never,
                progress: 0.0,
                bytes_passed: 0,
                bytes_total: 0,
                record: Scrub::default(),
            },
        })
    }

    /// Returns whether a scrub runs now, at the cost of a look at its position.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.position.lock().is_some()
    }

    fn end_scrub(&self, scrub: &mut Scrub) -> Result<(), CommitError> {
        self.stale_copies.set_verified(|| self.left_unread(scrub));
        self.stripes.damage().unrecoverable().end_pass();
        let census = self.stripes.inventory().census();
        let lacks_files = census.lacks_files(
            &self.stripes.segments().records(),
            &self.members.membership().live(),
        );
        self.stripes.damage().set_lacks_files(lacks_files);
        self.count_the_rest(scrub)?;
        scrub.is_finished = true;
        scrub.segment = scrub.end;
        scrub.offset = 0;
        scrub.last_finished = now();
        Ok(())
    }

    /// Notes the position of a scrub, durably unless there is no space. Its repairs are durable already.
    fn note_scrub(&self, scrub: &Scrub) -> Result<(), CommitError> {
        self.stale_copies.note_scrub(scrub)?;
        self.note_waiting()?;
        if self.commits.is_closed() {
            // The closing thread commits it, and waits for us.
            return Ok(());
        }
        match self.commits.sync() {
            Err(CommitError::NoSpace) => Ok(()),
            done => done,
        }
    }

    fn status_of(&self, scrub: &Scrub, is_running: bool) -> ScrubStatus {
        let (bytes_passed, bytes_total) = self.scrub_bytes(scrub);
        let part = if bytes_total == 0 {
            0.0
        } else {
            part(bytes_passed, bytes_total)
        };
        let (state, progress) = match (scrub.is_finished, is_running) {
            (true, _) => (ScrubState::Finished, 1.0),
            (false, true) => (ScrubState::Running, part),
            (false, false) => (ScrubState::Stopped, part),
        };
        ScrubStatus {
            state,
            progress,
            bytes_passed,
            bytes_total,
            record: *scrub,
        }
    }

    /// Returns the bytes of segment files that a scrub has passed, and all that it is to pass.
    fn scrub_bytes(&self, scrub: &Scrub) -> (u64, u64) {
        let (mut passed, mut total) = (0, 0);
        for (segment, record) in self.stripes.segments().records() {
            if segment >= scrub.end {
                continue;
            }
            let files = record.slots.iter().flatten().count() as u64;
            let done = match segment.cmp(&scrub.segment) {
                Less => record.len,
                Equal => scrub.offset.min(record.len),
                Greater => 0,
            };
            passed += files * done;
            total += files * record.len;
        }
        (passed, total)
    }
}

fn log_scrubbed(status: &ScrubStatus) {
    let Scrub {
        repaired,
        wrong,
        missing,
        lost,
        ..
    } = status.record;
    let how_far = match status.state {
        ScrubState::Finished => "through".to_owned(),
        _ => format!("stopped at {:.0} %", status.progress * 100.0),
    };
    tracing::info!(
        "scrub {how_far}: {repaired} pieces repaired, {wrong} not, {missing} shards missing or not verified, {lost} bytes lost"
    );
}

/// Returns the bytes of shards to inspect at once.
fn batch_bytes(bytes_per_second: Option<u64>) -> u64 {
    step_bytes(bytes_per_second).map_or(BATCH_BYTES, |bytes| bytes.min(BATCH_BYTES))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a part of a whole need not be exact"
)]
fn part(done: u64, total: u64) -> f64 {
    done as f64 / total as f64
}
