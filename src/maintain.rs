//! Background work: commits and checkpoints, watching the members, freeing dead stripes, making room, rebuilding,
//! taking back members that were away.
//!
//! Every kind of work has a thread of its own. So one that waits for a hung member does not keep the others from their
//! work.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use crate::commit::{CommitError, InodeLocks, Pipeline};
use crate::format::MemberIndex;
use crate::members::Access;
use crate::workers::Threads;

mod rebuild;
mod returns;

use returns::Returns;

pub use rebuild::{OrderNumber, Rebuilder};

/// The interval between looks after commits and checkpoints.
const TICK: Duration = Duration::from_millis(100);

/// The interval between probes of the members: `status` names a lost one within three seconds.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between searches for dead stripes.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between attempts to keep some room free.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between checks whether a scrub is due.
const SCRUB_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between checks whether a rebuild is needed without an order.
const REBUILD_INTERVAL: Duration = Duration::from_millis(200);

/// The interval between searches for members that are away.
const RETURN_INTERVAL: Duration = Duration::from_secs(2);

/// Background work that runs only on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The pause between a scrub and the next one; none begins by itself if this is `None`.
    pub scrub_interval: Option<Duration>,
    /// The longest absence of a member before what it held is rebuilt elsewhere; for ever, if this is `None`.
    pub rebuild_after: Option<Duration>,
    /// The most bytes that a rebuild without an order writes in a second, and that such a scrub reads. It also limits
    /// compaction ahead of need.
    pub bytes_per_second: Option<u64>,
}

/// Waits for the time of the next piece of work; returns whether to go on.
type Wait = Box<dyn Fn() -> bool + Send>;

/// One kind of work: a piece of it, bounded.
type Work = Box<dyn Fn(&Pipeline) -> Result<(), CommitError> + Send>;

#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits; returns whether to go on.
    fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(time, || false)
    }

    /// The same, but no longer than until `is_so`; the thread that makes it so calls [`Stop::nudge`].
    fn sleep_until(&self, time: Duration, is_so: impl Fn() -> bool) -> bool {
        let mut stopped = self.stopped.lock();
        let goes_on = |stopped: &mut bool| !*stopped && !is_so();
        self.changed.wait_while_for(&mut stopped, goes_on, time);
        !*stopped
    }

    /// Ends all waiting.
    fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Wakes all waiting threads, to see whether they still have to wait.
    fn nudge(&self) {
        let _stopped = self.stopped.lock();
        self.changed.notify_all();
    }
}

/// The threads that look after one open volume, until this is stopped or dropped.
#[derive(Debug)]
pub struct Maintain {
    rebuilder: Option<Arc<Rebuilder>>,
    stop: Arc<Stop>,
    threads: Threads,
}

impl Maintain {
    /// Starts the threads that the volume's access calls for: a read-only volume is only watched. `locks` are those of
    /// the inodes whose extents are moved; `schedule` names the other work. Members that are away are taken back when
    /// they are there, except those `left_out` on purpose.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads; those already started have ended then.
    pub fn start(
        pipeline: &Arc<Pipeline>,
        locks: Arc<dyn InodeLocks>,
        schedule: Schedule,
        left_out: Vec<MemberIndex>,
    ) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let is_writable = pipeline.members().access() == Access::ReadWrite;
        let rebuilder = is_writable.then(|| Rebuilder::new(schedule, Arc::clone(&stop)));
        let maintain = Self {
            rebuilder: rebuilder.map(Arc::new),
            stop: Arc::clone(&stop),
            threads: Threads::default(),
        };
        let start_waiting = |name, wait: Wait, work: Work| {
            let pipeline = Arc::clone(pipeline);
            let work = move || repeat(&pipeline, &*wait, &*work);
            maintain.threads.start(name, work)
        };
        let start = |name, every, work| {
            let stop = Arc::clone(&stop);
            start_waiting(name, Box::new(move || stop.sleep(every)), work)
        };
        start(
            "probe",
            PROBE_INTERVAL,
            Box::new(|pipeline| pipeline.stale_copies().probe()),
        )?;
        if let Some(shared) = &maintain.rebuilder {
            start("tick", TICK, Box::new(|pipeline| pipeline.clock().tick()))?;
            start(
                "reap",
                REAP_INTERVAL,
                Box::new(|pipeline| pipeline.reaper().reap()),
            )?;
            let (locks_of_scrub, until) = (Arc::clone(&locks), Arc::clone(&stop));
            let scrub: Work = Box::new(move |pipeline| {
                scrub_if_due(pipeline, &*locks_of_scrub, &until, schedule)
            });
            start("scrub", SCRUB_CHECK_INTERVAL, scrub)?;
            let (locks_of_room, rate) = (Arc::clone(&locks), schedule.bytes_per_second);
            let make_room: Work =
                Box::new(move |pipeline| pipeline.room().make_room_ahead(&*locks_of_room, rate));
            start("room", ROOM_INTERVAL, make_room)?;
            let returns = Mutex::new(Returns::new(left_out));
            let look: Work = Box::new(move |pipeline| returns.lock().look(pipeline));
            start("return", RETURN_INTERVAL, look)?;
            start("lost", REBUILD_INTERVAL, returns::look_at_lost(&stop))?;
            let (waiting, shared) = (Arc::clone(shared), Arc::clone(shared));
            let wait: Wait = Box::new(move || waiting.wait_for_order(REBUILD_INTERVAL));
            start_waiting(
                "rebuild",
                wait,
                Box::new(move |pipeline| shared.work(pipeline, &*locks)),
            )?;
        }
        Ok(maintain)
    }

    /// Returns the rebuilder, which takes orders to rebuild, if anything may be written.
    #[must_use]
    pub fn rebuilder(&self) -> Option<&Arc<Rebuilder>> {
        self.rebuilder.as_ref()
    }

    /// Stops all background work, and returns when the current pieces are done.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Maintain {
    fn drop(&mut self) {
        self.stop.stop();
        self.threads.wait();
    }
}

/// Scrubs if the last scrub is too long ago or was interrupted, or if an online member is an unverified stale copy.
fn scrub_if_due(
    pipeline: &Pipeline,
    locks: &dyn InodeLocks,
    stop: &Stop,
    schedule: Schedule,
) -> Result<(), CommitError> {
    let is_due = is_scrub_due(pipeline, schedule.scrub_interval)?;
    if !is_due && !pipeline.stale_copies().is_verification_due()? {
        return Ok(());
    }
    let scrubbed = pipeline.scrub(locks, schedule.bytes_per_second, |_| {
        // A caller that orders a scrub continues it, at its own rate.
        if *stop.stopped.lock() || pipeline.has_scrub_followers() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    scrubbed.map(drop)
}

fn is_scrub_due(pipeline: &Pipeline, interval: Option<Duration>) -> Result<bool, CommitError> {
    let Some(interval) = interval else {
        return Ok(false);
    };
    let last = UNIX_EPOCH + Duration::from_secs(pipeline.scrub_status()?.record.last_finished);
    // A clock that was set back makes no difference of one scrub.
    Ok(last.elapsed().map_or(true, |passed| passed >= interval))
}

/// Does a kind of work again and again. Reports a failure once, until another failure comes or the work succeeds again.
/// If the work panics, the volume is read-only from then on.
fn repeat(
    pipeline: &Pipeline,
    wait: &dyn Fn() -> bool,
    work: &dyn Fn(&Pipeline) -> Result<(), CommitError>,
) {
    let mut said = String::new();
    while wait() {
        let done = catch_unwind(AssertUnwindSafe(|| {
            pipeline.commits().guarded(|| work(pipeline))
        }));
        let failure = match done {
            Ok(Ok(())) => String::new(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        if failure != said && !failure.is_empty() {
            log::warn!("background work: {failure}");
        }
        said = failure;
    }
}

#[cfg(test)]
mod tests;
