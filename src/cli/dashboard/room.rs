//! The memory for answers of daemons.
//!
//! Daemons of root have a room of their own, so those of others cannot fill it. Each of a few other users has one, too, and
//! more users than these share them. A user keeps its room while it has a volume: two may share one although another has become
//! empty. In each room the bytes that have arrived have a limit together, and one answer at a time is read. Of all rooms of
//! others, one answer at a time is read, and each room waits for no more than one answer of any other. The metrics that
//! are kept are divided evenly: first among the rooms of others in use, then among the volumes of a room. So a
//! user with many volumes has little for each, beside others with one. Brief answers are beyond these limits: whatever others
//! send, a daemon that answers is shown as one.

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{FairMutex, FairMutexGuard, Mutex, MutexGuard};

use super::watch::LONGEST_ANSWER;
use crate::control::budget::{Account, Budget};

/// The bytes that arrive at once in a room at most, beyond those of brief answers. Two of the longest answers fit, so two
/// that have arrived in part do not hold up each other. Until they are read, they take up to three times as much memory.
const ROOM_BYTES: usize = 2 * LONGEST_ANSWER;

/// The rooms of users other than root.
const OTHER_ROOMS: usize = 4;

/// The memory of the metrics that are kept of daemons of root, and the same of others.
const METRICS_BYTES: usize = 16 << 20;

/// The memory for the answers of some daemons.
#[derive(Debug)]
pub(super) struct AnswerRoom {
    bytes: Arc<Budget>,
    /// The memory that the metrics of one volume may take.
    metrics_share: AtomicUsize,
    reading: Mutex<()>,
    /// Taken behind `reading`. Rooms that share it get it in the order in which they ask.
    reading_of_all: Arc<FairMutex<()>>,
}

/// The right to read an answer, until it is dropped.
pub(super) type Turn<'a> = (FairMutexGuard<'a, ()>, MutexGuard<'a, ()>);

impl AnswerRoom {
    fn new(metrics_bytes: usize, reading_of_all: &Arc<FairMutex<()>>) -> Arc<Self> {
        Arc::new(Self {
            bytes: Budget::of(ROOM_BYTES),
            metrics_share: AtomicUsize::new(metrics_bytes),
            reading: Mutex::default(),
            reading_of_all: Arc::clone(reading_of_all),
        })
    }

    /// Returns the account of a connection, which counts in `refused` the answers that it refuses.
    pub(super) fn account(&self, refused: &Arc<AtomicU64>) -> Account {
        Account::new(&self.bytes, refused)
    }

    /// Waits until no other answer is read. An answer takes much more memory as values than as bytes.
    pub(super) fn turn(&self) -> Turn<'_> {
        let own = self.reading.lock();
        (self.reading_of_all.lock(), own)
    }

    /// Returns the memory that the metrics of one volume may take.
    pub(super) fn metrics_share(&self) -> usize {
        self.metrics_share.load(Ordering::Relaxed)
    }

    fn share(&self, metrics_bytes: usize, volumes: usize) {
        let share = metrics_bytes / volumes.max(1);
        self.metrics_share.store(share, Ordering::Relaxed);
    }
}

/// The rooms for daemons of root and for those of others.
#[derive(Debug)]
pub(super) struct Rooms {
    of_root: Arc<AnswerRoom>,
    of_others: [Arc<AnswerRoom>; OTHER_ROOMS],
    /// The room of each user but root.
    homes: Mutex<BTreeMap<u32, usize>>,
}

impl Default for Rooms {
    fn default() -> Self {
        let reading = Arc::default();
        let of_other = |_| AnswerRoom::new(METRICS_BYTES / OTHER_ROOMS, &reading);
        Self {
            of_root: AnswerRoom::new(METRICS_BYTES, &Arc::default()),
            of_others: array::from_fn(of_other),
            homes: Mutex::default(),
        }
    }
}

impl Rooms {
    /// Returns the room for daemons of a user. It stays the same as long as [`Self::share`] is told of the user.
    pub(super) fn of(&self, user: u32) -> Arc<AnswerRoom> {
        if user == 0 {
            return Arc::clone(&self.of_root);
        }
        let mut homes = self.homes.lock();
        let home = homes.get(&user).copied().unwrap_or_else(|| {
            let users_in = |room: &usize| homes.values().filter(|home| *home == room).count();
            (0..OTHER_ROOMS).min_by_key(users_in).unwrap_or_default()
        });
        homes.insert(user, home);
        Arc::clone(&self.of_others[home])
    }

    /// Notes the users of all volumes, which share the rooms. Users without volumes have none any more.
    pub(super) fn share(&self, users: impl Iterator<Item = u32>) {
        let mut volumes: BTreeMap<u32, usize> = BTreeMap::new();
        for user in users {
            *volumes.entry(user).or_default() += 1;
        }
        let of_root = volumes.remove(&0).unwrap_or_default();
        self.of_root.share(METRICS_BYTES, of_root);
        let mut homes = self.homes.lock();
        homes.retain(|user, _| volumes.contains_key(user));
        let mut in_rooms = [0; OTHER_ROOMS];
        for (user, home) in &*homes {
            in_rooms[*home] += volumes[user];
        }
        let occupied = in_rooms.iter().filter(|volumes| **volumes > 0).count();
        for (room, volumes) in self.of_others.iter().zip(in_rooms) {
            room.share(METRICS_BYTES / occupied.max(1), volumes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn daemons_of_one_user_take_nothing_from_those_of_another() {
        let rooms = Rooms::default();
        let users = [0, 1000, 1001, 1002, 1003];
        let of = users.map(|user| rooms.of(user));
        rooms.share([0, 1000, 1000, 1001, 1002, 1003].into_iter());
        let refused = Arc::default();
        let now = Instant::now();
        let mut accounts = Vec::new();
        for (user, room) in users.iter().zip(&of) {
            assert!(Arc::ptr_eq(room, &rooms.of(*user)), "{user}");
            let mut greedy = room.account(&refused);
            assert!(greedy.hold(ROOM_BYTES, now).is_ok(), "{user}");
            let mut brief = room.account(&refused);
            assert!(brief.hold(64 << 10, now).is_ok(), "{user}");
            accounts.push(greedy);
        }
        let mut beyond = of[1].account(&refused);
        assert!(beyond.hold(1 << 20, now).is_err());
        // A quarter of the metrics of others is of each of four users, however many volumes one has.
        let shares = of.each_ref().map(|room| room.metrics_share());
        let quarter = METRICS_BYTES / 4;
        assert_eq!(
            shares,
            [METRICS_BYTES, quarter / 2, quarter, quarter, quarter]
        );
    }

    #[test]
    fn an_answer_of_others_keeps_none_of_root_waiting_and_only_the_first_of_each_user_waits_beside_it()
     {
        let rooms = Rooms::default();
        let [root, first, second] = [0, 1000, 1001].map(|user| rooms.of(user));
        // A turn would wait for locks that are wrongly held, and never fail.
        let is_free = |room: &AnswerRoom| {
            let own = room.reading.try_lock();
            own.is_some() && room.reading_of_all.try_lock().is_some()
        };
        let turn = first.turn();
        assert!(first.reading.try_lock().is_none());
        assert!(second.reading.try_lock().is_some());
        assert!(second.reading_of_all.try_lock().is_none(), "one at a time");
        assert!(is_free(&root));
        drop(turn);
        assert!(is_free(&first) && is_free(&second));
    }

    #[test]
    fn more_users_than_rooms_share_them_evenly_and_a_user_that_is_gone_leaves_its_room() {
        let rooms = Rooms::default();
        let users = (1000..).take(2 * OTHER_ROOMS);
        let of: Vec<Arc<AnswerRoom>> = users.clone().map(|user| rooms.of(user)).collect();
        for (number, room) in of.iter().enumerate() {
            let sharing = of.iter().filter(|other| Arc::ptr_eq(room, other));
            assert_eq!(sharing.count(), 2, "user {number}");
        }
        rooms.share(users.skip(1));
        let share = METRICS_BYTES / OTHER_ROOMS;
        assert_eq!(
            (of[0].metrics_share(), of[1].metrics_share()),
            (share, share / 2)
        );
        assert!(Arc::ptr_eq(&rooms.of(7), &of[0]), "it has one user alone");
        rooms.share([7].into_iter());
        assert_eq!(of[0].metrics_share(), METRICS_BYTES);
    }
}
