//! A volume that is open for use.

use std::io;
use std::sync::Arc;

use super::report::StatusReport;
use super::summary::report;
use super::volume_failure::VolumeFailure;
use crate::format::MemberIndex;
use crate::fs::{Fs, FsOptions};
use crate::maintenance::{Maintenance, RebuildOrders, Schedule, Scheduler};
use crate::membership::Unusable;
use crate::transaction::Transactions;

/// A volume that is open for use.
pub(crate) struct Volume {
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) fs: Arc<Fs>,
    /// The directories that could not be used, with reasons.
    pub(crate) notes: Vec<Unusable>,
    scheduler: Option<Scheduler>,
}

impl Volume {
    /// Opens the files of a volume whose storage is open. There is no background work yet. `notes` say which directories
    /// could not be used.
    ///
    /// # Errors
    ///
    /// If recovery fails.
    pub(crate) fn over(
        maintenance: Arc<Maintenance>,
        notes: Vec<Unusable>,
        fs_options: FsOptions,
    ) -> Result<Self, VolumeFailure> {
        let transactions = Arc::clone(maintenance.transactions());
        let fs = Fs::open(Arc::clone(&maintenance), fs_options).map_err(VolumeFailure::from)?;
        Ok(Self {
            maintenance,
            transactions,
            fs,
            notes,
            scheduler: None,
        })
    }

    /// Starts the background work. `left_out` are the members that are away and whose directories were not named.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn start_work(
        &mut self,
        schedule: Schedule,
        left_out: Vec<MemberIndex>,
    ) -> io::Result<()> {
        let locks = self.fs.inode_locks();
        let started = Scheduler::start(&self.maintenance, &locks, schedule, left_out)?;
        self.scheduler = Some(started);
        Ok(())
    }

    /// Returns the orders to rebuild, if the volume may be written to.
    pub(crate) fn orders(&self) -> Option<&Arc<RebuildOrders>> {
        self.scheduler.as_ref()?.orders()
    }

    /// Says how it is.
    ///
    /// # Errors
    ///
    /// As [`report`].
    pub(crate) fn report(&self, mounted: bool) -> Result<StatusReport, VolumeFailure> {
        report(&self.fs, &self.maintenance, &self.notes, mounted)
    }

    /// Makes everything durable and releases the directories.
    ///
    /// # Errors
    ///
    /// If the last changes could not be made durable.
    pub(crate) fn close(mut self) -> Result<(), VolumeFailure> {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop();
        }
        let files = self.fs.close().map_err(VolumeFailure::from);
        let storage = self.maintenance.close().map_err(VolumeFailure::from);
        files.and(storage)
    }
}
