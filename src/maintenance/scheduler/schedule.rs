//! The schedule of all background jobs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::job::BackgroundJob;
use super::rebuild_scheduling::{RebuildOrders, RebuildScheduler};
use super::returns::MemberReturns;
use super::scrub::ScrubScheduler;
use super::stop::StopSignal;
use crate::format::MemberIndex;
use crate::maintenance::{InodeLocks, Maintenance};
use crate::membership::Access;

/// Interval between checks for due commits and checkpoints.
const TICK: Duration = Duration::from_millis(100);

/// Interval between probes of the members: `status` names a lost one within three seconds.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between searches for dead stripes.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between attempts to keep some room free.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between checks whether a scrub is due.
const SCRUB_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between checks whether a rebuild without an order is due, and whether ranges have to be read again.
const REBUILD_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between searches for absent members.
const RETURN_INTERVAL: Duration = Duration::from_secs(2);

/// Settings of the background jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The pause between a scrub and the next one; none begins by itself if this is `None`.
    pub scrub_interval: Option<Duration>,
    /// The longest absence of a member before its shards are rebuilt elsewhere; for ever, if this is `None`.
    pub rebuild_after: Option<Duration>,
    /// The most bytes that a rebuild without an order writes in a second, and that such a scrub reads. It also limits
    /// compaction ahead of need.
    pub bytes_per_second: Option<u64>,
    /// The number of the last order to rebuild that an earlier opening of the volume took.
    pub last_order: u64,
}

/// Returns all jobs for a volume, and the orders that its rebuild job carries out. A read-only volume has only the job
/// that watches the members.
pub(super) fn jobs(
    maintenance: &Arc<Maintenance>,
    locks: &Arc<dyn InodeLocks>,
    schedule: Schedule,
    left_out: Vec<MemberIndex>,
    stop: &Arc<StopSignal>,
) -> (Vec<BackgroundJob>, Option<Arc<RebuildOrders>>) {
    let transactions = Arc::clone(maintenance.transactions());
    let stale_copies = Arc::clone(maintenance.stale_copies());
    let probe = BackgroundJob::new("probe", PROBE_INTERVAL, move || stale_copies.probe());
    if transactions.access() == Access::ReadOnly {
        return (vec![probe], None);
    }
    let rate = schedule.bytes_per_second;
    let orders = Arc::new(RebuildOrders::new(
        maintenance,
        rate,
        schedule.last_order,
        Arc::clone(stop),
    ));
    let (reaper, room) = (
        Arc::clone(maintenance.reaper()),
        Arc::clone(maintenance.room()),
    );
    let scrub = ScrubScheduler::new(
        maintenance,
        Arc::clone(locks),
        schedule.scrub_interval,
        rate,
        Arc::clone(stop),
    );
    let room_locks = Arc::clone(locks);
    let returns = Mutex::new(MemberReturns::new(maintenance, left_out));
    let (recheck, until) = (Arc::clone(maintenance.recheck()), Arc::clone(stop));
    let rebuild = RebuildScheduler::new(
        maintenance,
        Arc::clone(locks),
        schedule.rebuild_after,
        Arc::clone(&orders),
        Arc::clone(stop),
    );
    let ordered = Arc::clone(&orders);
    let jobs = vec![
        probe,
        BackgroundJob::new("tick", TICK, move || transactions.clock().tick()),
        BackgroundJob::new("reap", REAP_INTERVAL, move || reaper.reap()),
        BackgroundJob::new("scrub", SCRUB_CHECK_INTERVAL, move || scrub.run_if_due()).pausing(),
        BackgroundJob::new("room", ROOM_INTERVAL, move || {
            room.make_room_ahead(&*room_locks, rate)
        })
        .pausing(),
        BackgroundJob::new("return", RETURN_INTERVAL, move || returns.lock().look()),
        BackgroundJob::new("lost", REBUILD_CHECK_INTERVAL, move || {
            recheck.run(&|| !until.is_set())
        }),
        BackgroundJob::new("rebuild", REBUILD_CHECK_INTERVAL, move || rebuild.run())
            .or_once(move || ordered.has_open())
            .pausing(),
    ];
    (jobs, Some(orders))
}
