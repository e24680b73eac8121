//! The memory for answers of daemons.
//!
//! Daemons of root have a room of their own, so those of others cannot fill it. In each room the bytes that have arrived
//! have a limit together, and one answer at a time is read. Each volume has its share of the metrics that are kept. Brief
//! answers are beyond that limit: whatever others send, a daemon that answers is shown as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::control::budget::{Account, Budget};

/// The bytes that arrive at once in a room at most, beyond those of brief answers. Until they are read, they take up to three times as much memory.
const MOST_BYTES: usize = 16 << 20;

/// The memory of the metrics that a room keeps.
const METRICS_BYTES: usize = 16 << 20;

/// The memory for the answers of some daemons.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Arc<Budget>,
    /// The number of volumes that share it.
    volumes: AtomicUsize,
    reading: Mutex<()>,
}

impl Room {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: Budget::of(MOST_BYTES),
            volumes: AtomicUsize::new(1),
            reading: Mutex::default(),
        })
    }

    /// Returns the account of a connection, which counts in `refused` the answers that it refuses.
    pub(super) fn account(&self, refused: &Arc<AtomicU64>) -> Account {
        Account::new(&self.bytes, refused)
    }

    /// Waits until no other answer is read. An answer takes much more memory as values than as bytes.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.reading.lock()
    }

    /// Returns the memory that the metrics of one volume may take.
    pub(super) fn metrics_share(&self) -> usize {
        METRICS_BYTES / self.volumes.load(Ordering::Relaxed).max(1)
    }
}

/// The rooms for daemons of root and for those of others.
#[derive(Debug)]
pub(super) struct Rooms {
    of_root: Arc<Room>,
    of_others: Arc<Room>,
}

impl Default for Rooms {
    fn default() -> Self {
        Self {
            of_root: Room::new(),
            of_others: Room::new(),
        }
    }
}

impl Rooms {
    /// Returns the room for daemons of a user.
    pub(super) fn of(&self, user: u32) -> Arc<Room> {
        Arc::clone(if user == 0 {
            &self.of_root
        } else {
            &self.of_others
        })
    }

    /// Notes the users of all volumes, which share the rooms.
    pub(super) fn share(&self, users: impl Iterator<Item = u32>) {
        let (mut of_root, mut of_others) = (0, 0);
        for user in users {
            *if user == 0 {
                &mut of_root
            } else {
                &mut of_others
            } += 1;
        }
        self.of_root.volumes.store(of_root, Ordering::Relaxed);
        self.of_others.volumes.store(of_others, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn daemons_of_others_take_nothing_from_those_of_root() {
        let rooms = Rooms::default();
        rooms.share([0, 1000, 1000, 1001].into_iter());
        let refused = Arc::default();
        let mut greedy = rooms.of(1000).account(&refused);
        let now = Instant::now();
        greedy.hold(MOST_BYTES, now).unwrap();
        let mut other = rooms.of(1001).account(&refused);
        assert!(other.hold(64 << 10, now).is_ok());
        assert!(other.hold(MOST_BYTES, now).is_err());
        assert!(rooms.of(0).account(&refused).hold(MOST_BYTES, now).is_ok());
        assert_eq!(rooms.of(0).metrics_share(), METRICS_BYTES);
        assert_eq!(rooms.of(1001).metrics_share(), METRICS_BYTES / 3);
        let (of_root, of_others) = (rooms.of(0), rooms.of(1000));
        let _turn = of_others.turn();
        assert!(of_root.reading.try_lock().is_some());
    }
}
