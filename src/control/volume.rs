//! A volume that is open for use.

use std::io;
use std::sync::{Arc, Weak};

use super::report::StatusReport;
use super::summary::report;
use super::volume_failure::VolumeFailure;
use crate::format::MemberIndex;
use crate::fs::{Fs, FsOptions, Kept, LostChanges};
use crate::maintenance::{Maintenance, PauseSwitch, RebuildOrders, Schedule, Scheduler};
use crate::membership::{Members, Unusable};
use crate::transaction::Transactions;

/// A volume that was abandoned, while requests and commands may still work with it.
pub(crate) struct AbandonedVolume {
    fs: Arc<Fs>,
    members: Arc<Members>,
}

impl AbandonedVolume {
    /// Returns whether no request and no command works with it any more.
    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.fs) == 1
    }

    /// Returns the changes that it accepted and that were not durable, and what is left of it. It must be idle.
    pub(crate) fn end(self) -> (LostChanges, VolumeRest) {
        let rest = VolumeRest {
            transactions: Arc::downgrade(self.fs.transactions()),
            members: self.members,
        };
        (self.fs.unsynced_changes(), rest)
    }
}

/// The rest of an abandoned volume, which may still write to members.
pub(crate) struct VolumeRest {
    transactions: Weak<Transactions>,
    members: Arc<Members>,
}

impl VolumeRest {
    /// Returns whether no thread of the volume works any more. The members may have other users, such as looks for
    /// directories that hang.
    pub(crate) fn has_ended(&self) -> bool {
        self.transactions.strong_count() == 0
    }

    /// Returns whether nothing knows the members any more.
    pub(crate) fn is_alone(&self) -> bool {
        self.has_ended() && Arc::strong_count(&self.members) == 1
    }

    /// Releases the directories, and returns those on which an operation hangs. These stay in use as long as this lives:
    /// the operation may still take effect.
    pub(crate) fn release(&self) -> Vec<String> {
        self.members.release()
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

    /// Ends the background work.
    pub(crate) fn stop_work(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop();
        }
    }

    /// Returns the orders to rebuild, if the volume may be written to.
    pub(crate) fn orders(&self) -> Option<&Arc<RebuildOrders>> {
        self.scheduler.as_ref()?.orders()
    }

    /// Returns the switch that has background work pause, if there is such work.
    pub(crate) fn pause_switch(&self) -> Option<PauseSwitch> {
        let scheduler = self.scheduler.as_ref();
        let scheduler = scheduler.filter(|scheduler| scheduler.orders().is_some());
        scheduler.map(Scheduler::pause_switch)
    }

    /// Says how it is, as [`report`].
    pub(crate) fn report(&self, mounted: bool) -> StatusReport {
        report(&self.fs, &self.maintenance, &self.notes, mounted)
    }

    /// Gives up a volume that goes on no more, as a crash would: writes nothing from now on. The directories stay in use.
    pub(crate) fn abandon(mut self) -> AbandonedVolume {
        let members = Arc::clone(self.transactions.members());
        members.sever();
        self.stop_work();
        self.maintenance.abandon();
        AbandonedVolume {
            fs: self.fs,
            members,
        }
    }

    /// Makes everything durable and releases the directories.
    ///
    /// # Errors
    ///
    /// If the last changes could not be made durable.
    pub(crate) fn close(mut self) -> Result<(), VolumeFailure> {
        self.stop_work();
        let files = self.fs.close().map_err(VolumeFailure::from);
        let storage = self.maintenance.close().map_err(VolumeFailure::from);
        files.and(storage)
    }
}
