//! The volume behind a mount, which may be closed and opened again while the mount stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::volume::Volume;
use crate::format::MemberIndex;
use crate::fs::{Fs, ServedFs};
use crate::maintenance::{Maintenance, RebuildOrders};
use crate::membership::Unusable;

/// The time for which a command waits for a volume that is being opened again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The volume behind a mount.
pub(crate) struct MountedVolume {
    served: Arc<ServedFs>,
    volume: Mutex<Option<Volume>>,
    opened: Condvar,
}

/// The parts of an open volume with which commands work.
pub(crate) struct OpenVolume {
    pub(crate) fs: Arc<Fs>,
    pub(crate) maintenance: Arc<Maintenance>,
    /// The directories that could not be used, with reasons.
    pub(crate) notes: Vec<Unusable>,
    /// None where nothing may be written.
    pub(crate) orders: Option<Arc<RebuildOrders>>,
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
            left_out: volume.left_out.clone(),
        }
    }
}

impl MountedVolume {
    /// Returns a volume that is about to be mounted.
    pub(crate) fn new(volume: Volume) -> Self {
        Self {
            served: Arc::new(ServedFs::new(Arc::clone(&volume.fs))),
            volume: Mutex::new(Some(volume)),
            opened: Condvar::new(),
        }
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
        self.volume.lock().take()
    }

    /// Puts a volume beneath the mount, opened with the references of the one before it.
    pub(crate) fn put(&self, volume: Volume) {
        self.served.put(Arc::clone(&volume.fs));
        *self.volume.lock() = Some(volume);
        self.opened.notify_all();
    }
}
