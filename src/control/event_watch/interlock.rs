//! The events of the interlock, as its changes come.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use super::changes::told;
use crate::control::mounted::MountedVolume;
use crate::fs::InterlockChange;

/// The time that a member may take for events of the interlock. Removals wait for less.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that records the changes of an interlock as they come, until this is dropped. The watch would not do: a look of
/// it may count for minutes, and removals wait until their refusal is recorded.
pub(super) struct InterlockRecorder {
    _waker: Arc<Sender<()>>,
}

impl InterlockRecorder {
    /// Starts it, if the volume has an interlock.
    pub(super) fn start(volume: &Arc<MountedVolume>) -> io::Result<Option<Self>> {
        let Some(interlock) = volume.interlock() else {
            return Ok(None);
        };
        let (waker, woken) = mpsc::channel();
        let waker = Arc::new(waker);
        interlock.set_waker(Arc::downgrade(&waker));
        let volume = Arc::clone(volume);
        let thread = thread::Builder::new().name("interlock-events".to_owned());
        thread.spawn(move || {
            record_durably(&volume);
            while woken.recv().is_ok() {
                record_durably(&volume);
            }
        })?;
        Ok(Some(Self { _waker: waker }))
    }
}

/// Records the changes of the interlock, and lets removals be refused once a member has the events.
fn record_durably(volume: &MountedVolume) {
    if let Some(interlock) = volume.interlock() {
        let flush = || volume.events().flush(FLUSH_TIMEOUT);
        interlock.record_changes(|changes| record(volume, changes), flush);
    }
}

/// Records the changes of the interlock that no event tells of yet.
pub(crate) fn record_changes(volume: &MountedVolume) {
    if let Some(interlock) = volume.interlock() {
        interlock.take_changes(|changes| record(volume, changes));
    }
}

fn record(volume: &MountedVolume, changes: Vec<InterlockChange>) {
    volume
        .events()
        .record_together(changes.into_iter().map(told));
}
