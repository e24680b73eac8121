//! A volume that is open for use.

use std::io;
use std::sync::{Arc, Weak};

use super::report::StatusReport;
use super::summary::report;
use super::volume_failure::VolumeFailure;
use crate::format::MemberIndex;
use crate::fs::{Fs, FsOptions, Kept, LostChanges};
use crate::maintenance::{Maintenance, RebuildOrders, Schedule, Scheduler};
use crate::membership::Unusable;
use crate::transaction::Transactions;

/// The rest of a volume that was abandoned.
pub(crate) struct AbandonedVolume {
    /// The changes that it accepted, and that were not durable.
    pub(crate) lost: LostChanges,
    fs: Weak<Fs>,
    transactions: Weak<Transactions>,
}

impl AbandonedVolume {
    /// Returns whether nothing of it works any more: no request, no command and no thread.
    pub(crate) fn is_gone(&self) -> bool {
        self.fs.strong_count() == 0 && self.transactions.strong_count() == 0
    }
}

/// A volume that is open for use.
pub(crate) struct Volume {
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) fs: Arc<Fs>,
    /// The directories that could not be used, with reasons.
    pub(crate) notes: Vec<Unusable>,
    /// The members that were away, and whose directories were not named.
    pub(crate) left_out: Vec<MemberIndex>,
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
        let fs = Fs::open(Arc::clone(&maintenance), fs_options).map_err(VolumeFailure::from)?;
        Ok(Self::of(maintenance, fs, notes))
    }

    /// Opens the files of a volume that was lost beneath a mount, and whose storage is open again. Callers keep their
    /// references; they learn of the changes that were `lost`.
    ///
    /// # Errors
    ///
    /// If recovery fails.
    pub(crate) fn over_again(
        maintenance: Arc<Maintenance>,
        notes: Vec<Unusable>,
        fs_options: FsOptions,
        kept: &Kept,
        lost: &LostChanges,
    ) -> Result<Self, VolumeFailure> {
        let fs = Fs::reopen(Arc::clone(&maintenance), fs_options, kept, lost);
        Ok(Self::of(
            maintenance,
            fs.map_err(VolumeFailure::from)?,
            notes,
        ))
    }

    fn of(maintenance: Arc<Maintenance>, fs: Arc<Fs>, notes: Vec<Unusable>) -> Self {
        Self {
            transactions: Arc::clone(maintenance.transactions()),
            maintenance,
            fs,
            notes,
            left_out: Vec::new(),
            scheduler: None,
        }
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
        self.left_out.clone_from(&left_out);
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

    /// Gives up a volume that goes on no more, as a crash would: writes nothing, and releases the directories. Returns
    /// what is left of it, and the directories on which something hangs, which stay in use.
    pub(crate) fn abandon(mut self) -> (AbandonedVolume, Vec<String>) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop();
        }
        self.maintenance.abandon();
        let hanging = self.transactions.members().release();
        let abandoned = AbandonedVolume {
            lost: self.fs.unsynced_changes(),
            fs: Arc::downgrade(&self.fs),
            transactions: Arc::downgrade(&self.transactions),
        };
        (abandoned, hanging)
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
