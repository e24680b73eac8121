//! Background work: commits and checkpoints, watching the members, freeing dead stripes, making room, rebuilding,
//! scrubbing, and taking back members that were absent.
//!
//! Every job has a thread of its own. So a job that waits for a hanging member does not delay the others. `Schedule`
//! and the table in `schedule` list all jobs.

use std::io;
use std::sync::Arc;

use crate::format::MemberIndex;
use crate::maintenance::{InodeLocks, Maintenance};
use crate::workers::Threads;

mod job;
mod rebuild_scheduling;
mod returns;
mod schedule;
mod scrub;
mod stop;

use stop::StopSignal;

pub use rebuild_scheduling::{OrderNumber, RebuildOrders};
pub use schedule::Schedule;
pub use stop::PauseSwitch;

/// Threads that maintain one open volume, until this is stopped or dropped.
pub struct Scheduler {
    orders: Option<Arc<RebuildOrders>>,
    stop: Arc<StopSignal>,
    threads: Threads,
}

impl Scheduler {
    /// Starts the threads that the volume's access calls for: a read-only volume is only watched. `locks` are those of
    /// the inodes whose extents are moved. Absent members are taken back when they return, except those `left_out` on
    /// purpose.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads; those already started have ended then.
    pub fn start(
        maintenance: &Arc<Maintenance>,
        locks: &Arc<dyn InodeLocks>,
        schedule: Schedule,
        left_out: Vec<MemberIndex>,
    ) -> io::Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let (jobs, orders) = schedule::jobs(maintenance, locks, schedule, left_out, &stop);
        let scheduler = Self {
            orders,
            stop,
            threads: Threads::default(),
        };
        for job in jobs {
            let commits = Arc::clone(maintenance.transactions().commits());
            let stop = Arc::clone(&scheduler.stop);
            let thread = job.name();
            scheduler
                .threads
                .start(thread, move || job.repeat(&commits, &stop))?;
        }
        Ok(scheduler)
    }

    /// Returns the orders to rebuild, if the volume may be written to.
    #[must_use]
    pub fn orders(&self) -> Option<&Arc<RebuildOrders>> {
        self.orders.as_ref()
    }

    /// Returns the switch that has rebuilds, scrubs and compaction pause.
    #[must_use]
    pub fn pause_switch(&self) -> PauseSwitch {
        PauseSwitch(Arc::clone(&self.stop))
    }

    /// Stops all background work, and returns when the current steps are done.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop.set();
        self.threads.wait();
    }
}

#[cfg(test)]
mod tests;
