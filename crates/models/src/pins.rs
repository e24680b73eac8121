//! Readers that pin what they look up, and threads that free what they removed.

use std::sync::Arc;

use shuttle::thread;

use crate::Mutex;
use crate::stripes::pins::{PinFence, Pins};

/// Threads that read.
const READERS: usize = 3;

/// Look-ups of each of them.
const LOOK_UPS: usize = 2;

/// Threads that remove and free.
const REMOVERS: usize = 2;

/// Removals of each of them.
const REMOVALS: usize = 2;

/// Questions whether a removed thing may be freed, before a remover goes on without it.
const QUESTIONS: usize = 3;

/// A thing that was removed from the index, and not freed yet.
#[derive(Clone, Copy, Debug)]
struct Removed {
    thing: usize,
    fence: PinFence,
}

/// A volume that has one thing at a time. Things are numbered.
#[derive(Default)]
struct PinsModel {
    pins: Pins,
    /// The thing that a look-up finds.
    index: Mutex<usize>,
    /// Whether each thing so far is freed.
    is_freed: Mutex<Vec<bool>>,
    /// The removed things that readers kept from being freed.
    kept: Mutex<Vec<Removed>>,
}

impl PinsModel {
    /// Looks a thing up and uses it under a pin; the second look-up takes another pin meanwhile.
    fn read(&self) {
        for look_up in 0..LOOK_UPS {
            let pin = self.pins.pin();
            let thing = *self.index.lock();
            let inner = (look_up > 0).then(|| self.pins.pin());
            thread::yield_now();
            assert!(
                !self.is_freed.lock()[thing],
                "{thing} was freed under {pin:?}"
            );
            drop(inner);
            assert!(
                !self.is_freed.lock()[thing],
                "{thing} was freed under {pin:?}"
            );
        }
    }

    /// Replaces the thing of the index, and frees the old one once no reader can use it.
    fn remove(&self) {
        for _ in 0..REMOVALS {
            let thing = self.replace();
            let fence = self.pins.fence();
            if (0..QUESTIONS).any(|_| self.may_be_freed(fence)) {
                self.free(thing);
            } else {
                self.kept.lock().push(Removed { thing, fence });
            }
        }
    }

    fn replace(&self) -> usize {
        let mut index = self.index.lock();
        let mut is_freed = self.is_freed.lock();
        is_freed.push(false);
        std::mem::replace(&mut *index, is_freed.len() - 1)
    }

    fn may_be_freed(&self, fence: PinFence) -> bool {
        let may_be = self.pins.has_passed(fence);
        thread::yield_now();
        assert!(
            !may_be || self.pins.has_passed(fence),
            "a pin came from before {fence:?}"
        );
        may_be
    }

    fn free(&self, thing: usize) {
        let before = std::mem::replace(&mut self.is_freed.lock()[thing], true);
        assert!(!before, "{thing} was freed twice");
    }
}

/// Readers use things while other threads remove and free them.
///
/// # Panics
///
/// If a pinned thing is freed, or if a fence is passed and later is not. If a thing cannot be freed after all pins are
/// gone.
pub fn readers_pin_what_others_remove() {
    let volume = Arc::new(PinsModel::default());
    volume.is_freed.lock().push(false);
    let spawn = |work: fn(&PinsModel)| {
        let volume = Arc::clone(&volume);
        thread::spawn(move || work(&volume))
    };
    let readers = (0..READERS).map(|_| spawn(PinsModel::read));
    let removers = (0..REMOVERS).map(|_| spawn(PinsModel::remove));
    for thread in readers.chain(removers).collect::<Vec<_>>() {
        thread.join().expect("the thread ends well");
    }
    for removed in std::mem::take(&mut *volume.kept.lock()) {
        assert!(volume.pins.has_passed(removed.fence), "{removed:?}");
        volume.free(removed.thing);
    }
    let freed = volume.is_freed.lock().iter().filter(|it| **it).count();
    assert_eq!(freed, REMOVERS * REMOVALS);
}
