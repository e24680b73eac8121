//! The volume behind a mount, which may be closed and opened again while the mount stays.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::failure::DaemonFailure;
use super::left_refusal::restore_refusal;
use super::probe_gate::ProbeGate;
use super::report::AlertsReport;
use super::volume::Volume;
use crate::events::EventLog;
use crate::format::MemberIndex;
use crate::fs::{Fs, Interlock, ServedFs};
use crate::maintenance::{Maintenance, PauseSwitch, RebuildOrders};
use crate::membership::{Access, Unusable};

/// The time for which a command waits for a volume that is being opened again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time that closing and opening a volume may take.
const REOPENING_TIMEOUT: Duration = Duration::from_secs(60);

/// The volume behind a mount.
pub(crate) struct MountedVolume {
    served: Arc<ServedFs>,
    volume: Mutex<Option<Volume>>,
    opened: Condvar,
    /// Outlives the volumes that are opened one after the other.
    events: EventLog,
    /// Outlives them as well. None if the mount has none.
    interlock: Option<Arc<Interlock>>,
    /// The time since which background work pauses on order. A leaf.
    paused_since: Mutex<Option<Instant>>,
    /// Passed by what asks the mount, and closed by an unmount.
    probe_gate: ProbeGate,
    /// The delivery of alerts, if there are receivers. A leaf.
    alerts: Mutex<Option<AlertsReport>>,
    /// Asks the watch of the volume to close it and open it again. A leaf.
    reopener: Mutex<Option<Reopener>>,
    /// Held while the code of the volume or of a directory is changed.
    code_orders: Mutex<()>,
}

/// Passes a wish on to close a volume and open it again. A wish that is dropped cannot be fulfilled now.
pub(crate) type Reopener = Box<dyn Fn(ReopeningWish) + Send>;

/// A change of a volume that takes effect when it is opened again.
pub(crate) type VolumeChange = Box<dyn FnOnce(&Volume) -> Result<(), DaemonFailure> + Send>;

/// A wish to close a volume and open it again.
pub(crate) struct ReopeningWish {
    /// The change of the closed volume. If it fails, the volume goes on as it was.
    pub(crate) change: VolumeChange,
    /// The place for the outcome.
    pub(crate) outcome: Sender<Result<(), DaemonFailure>>,
}

/// The parts of an open volume with which commands work.
pub(crate) struct OpenVolume {
    pub(crate) fs: Arc<Fs>,
    pub(crate) maintenance: Arc<Maintenance>,
    /// The directories that could not be used, with reasons.
    pub(crate) notes: Vec<Unusable>,
    /// None where nothing may be written.
    pub(crate) orders: Option<Arc<RebuildOrders>>,
    /// None where there is no work that pauses.
    pub(crate) pause_switch: Option<PauseSwitch>,
    /// The members that were away when the volume was mounted, and whose directories were not named.
    pub(crate) left_out: Vec<MemberIndex>,
}

impl OpenVolume {
    fn of(volume: &Volume) -> Self {
        Self {
            fs: Arc::clone(&volume.fs),
            maintenance: Arc::clone(&volume.maintenance),
            notes: volume.notes.clone(),
            orders: volume.orders().cloned(),
            pause_switch: volume.pause_switch(),
            left_out: volume.left_out.clone(),
        }
    }
}

impl MountedVolume {
    /// Returns a volume that is about to be mounted, with the events that its members have. If it may be written to, its
    /// interlock refuses removals as that of the daemon before did: nothing can serve the volume before, and let a program
    /// remove a file.
    pub(crate) fn new(volume: Volume) -> Self {
        let members = volume.transactions.members();
        let events = EventLog::open(members);
        let interlock = volume.fs.interlock().cloned();
        if members.access() == Access::ReadWrite
            && let Some(interlock) = &interlock
        {
            restore_refusal(&events, interlock);
        }
        Self {
            events,
            interlock,
            served: Arc::new(ServedFs::new(Arc::clone(&volume.fs))),
            volume: Mutex::new(Some(volume)),
            opened: Condvar::new(),
            paused_since: Mutex::default(),
            probe_gate: ProbeGate::default(),
            alerts: Mutex::default(),
            reopener: Mutex::default(),
            code_orders: Mutex::default(),
        }
    }

    /// Sets what closes the volume and opens it again.
    pub(crate) fn set_reopener(&self, reopener: Reopener) {
        *self.reopener.lock() = Some(reopener);
    }

    /// Keeps other commands from changing the code of the volume or of a directory.
    ///
    /// # Errors
    ///
    /// [`DaemonFailure::CodeOrderUnderWay`] if one does so.
    pub(crate) fn hold_code_orders(&self) -> Result<MutexGuard<'_, ()>, DaemonFailure> {
        self.code_orders
            .try_lock()
            .ok_or(DaemonFailure::CodeOrderUnderWay)
    }

    /// Stops the volume, changes it, and opens it again beneath the mount, while the requests of programs wait. The caller
    /// must hold no [`OpenVolume`].
    ///
    /// # Errors
    ///
    /// Those of `change`; nothing is changed then. [`DaemonFailure::Busy`] if another command works on the volume.
    /// [`DaemonFailure::NotReopened`] if the volume cannot be opened again yet. [`DaemonFailure::VolumeAway`] during an
    /// outage.
    pub(crate) fn reopen_with(&self, change: VolumeChange) -> Result<(), DaemonFailure> {
        let (outcome, told) = mpsc::channel();
        if let Some(reopener) = &*self.reopener.lock() {
            reopener(ReopeningWish { change, outcome });
        }
        match told.recv_timeout(REOPENING_TIMEOUT) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err(DaemonFailure::NotReopened { failure: None }),
            Err(RecvTimeoutError::Disconnected) => Err(DaemonFailure::VolumeAway),
        }
    }

    /// Returns whether background work pauses on order. It stays so if the volume is opened again, and ends with the mount.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_since.lock().is_some()
    }

    /// Has background work pause, or go on. Returns since when it paused before, if it did.
    ///
    /// # Errors
    ///
    /// [`DaemonFailure::MountedReadOnly`] if there is none. [`DaemonFailure::VolumeAway`] during an outage.
    pub(crate) fn set_paused(&self, is_paused: bool) -> Result<Option<Instant>, DaemonFailure> {
        let open = self.open().ok_or(DaemonFailure::VolumeAway)?;
        let switch = open.pause_switch.ok_or(DaemonFailure::MountedReadOnly)?;
        let mut since = self.paused_since.lock();
        let before = *since;
        *since = is_paused.then(|| before.unwrap_or_else(Instant::now));
        switch.set(is_paused);
        if let Some(interlock) = &self.interlock {
            interlock.pause_counting(is_paused);
        }
        Ok(before)
    }

    /// Returns the gate between questions to the mount and its unmount.
    pub(crate) fn probe_gate(&self) -> &ProbeGate {
        &self.probe_gate
    }

    /// Returns how the delivery of alerts is; none without receivers.
    pub(crate) fn alerts(&self) -> Option<AlertsReport> {
        self.alerts.lock().clone()
    }

    /// Returns the limit on files that are removed within an hour, if the mount has one.
    pub(crate) fn interlock(&self) -> Option<&Interlock> {
        self.interlock.as_deref()
    }

    /// Notes how the delivery of alerts is from now on.
    pub(crate) fn note_alerts(&self, alerts: AlertsReport) {
        *self.alerts.lock() = Some(alerts);
    }

    /// Returns the log of events.
    pub(crate) fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns what the mount serves.
    pub(crate) fn served(&self) -> &Arc<ServedFs> {
        &self.served
    }

    /// Returns the open volume, or none after waiting for one for some seconds.
    pub(crate) fn open(&self) -> Option<OpenVolume> {
        let until = Instant::now() + PATIENCE;
        let mut volume = self.volume.lock();
        while volume.is_none() && !self.opened.wait_until(&mut volume, until).timed_out() {}
        volume.as_ref().map(OpenVolume::of)
    }

    /// Returns the open volume, or none if there is none now.
    pub(crate) fn now(&self) -> Option<OpenVolume> {
        self.volume.lock().as_ref().map(OpenVolume::of)
    }

    /// Takes the volume away from beneath the mount, which serves none from now on. Returns none if there was none.
    pub(crate) fn take(&self) -> Option<Volume> {
        self.served.take();
        self.events.detach();
        self.volume.lock().take()
    }

    /// Puts a volume beneath the mount, opened with the references of the one before it.
    pub(crate) fn put(&self, volume: Volume) {
        self.events.attach(volume.transactions.members());
        if let Some(switch) = volume.pause_switch() {
            switch.set(self.is_paused());
        }
        self.served.put(Arc::clone(&volume.fs));
        *self.volume.lock() = Some(volume);
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use cauchyfs_testkit::{disks, executor, stores};

    use super::*;
    use crate::codec::Geometry;
    use crate::format::event::EventKind;
    use crate::fs::{FsOptions, RefusedRemovals};
    use crate::membership::CreateOptions;
    use crate::transaction::{OpenOptions, Transactions};

    #[test]
    fn no_volume_can_be_served_before_it_refuses_removals_as_the_daemon_before_did() {
        let disks = disks(2, 64 << 20);
        let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
        Transactions::create(&stores(&disks), &options, executor(PATIENCE)).unwrap();
        let open = |access| {
            let options = OpenOptions {
                access,
                threads: 0,
                ..OpenOptions::default()
            };
            let opened = Maintenance::open(stores(&disks), &options, executor(PATIENCE));
            let fs_options = FsOptions {
                interlock: Some(Arc::new(Interlock::new(25))),
                ..FsOptions::default()
            };
            let volume = Volume::over(opened.unwrap(), Vec::new(), fs_options);
            MountedVolume::new(volume.unwrap())
        };
        let refused = |volume: &MountedVolume| volume.interlock().unwrap().refused();
        let volume = open(Access::ReadWrite);
        assert_eq!(refused(&volume), None);
        let (removed, files) = (25, 100);
        volume.events().start(Access::ReadWrite).unwrap();
        let kind = EventKind::RemovalsRefused {
            removed,
            files,
            percent: 25,
        };
        volume.events().record(None, kind);
        volume.events().close(PATIENCE);
        volume.take().unwrap().close().unwrap();
        let expected = RefusedRemovals { removed, files };
        let volume = open(Access::ReadWrite);
        assert_eq!(refused(&volume), Some(expected));
        volume.take().unwrap().close().unwrap();
        let volume = open(Access::ReadOnly);
        assert_eq!(refused(&volume), None, "it removes nothing");
    }
}
