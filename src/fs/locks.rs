//! The locks that order accesses to inodes.
//!
//! # Lock order
//!
//! A caller that takes several locks takes them in this order, and none while holding a later one.
//!
//! 1. [`RenameLock`]: at most one directory changes its parent at a time. So the chain of parents stands still while a
//!    rename looks for cycles in it.
//! 2. Inode locks, all that a call needs at once, in the order of their slots.
//! 3. The book of [`Quotas`](super::quotas::Quotas), held while a change that it counts is applied.
//! 4. The tables of handles, of look-ups, of files that are being cut and of failed writeback ([`super::handles`],
//!    [`super::nodes`], [`super::removal`], [`super::failed_writeback`]): held for a few instructions, never across a
//!    call of the transactions.
//! 5. The locks inside the transactions, but those of maintenance.
//!
//! The locks of maintenance come before all of these, because their holders lock inodes through [`InodeLocks`]: the
//! lock under which room is made (`making` of [`Room`](crate::maintenance::Room)), and those of scrub and rebuild. So no
//! caller makes room ([`Inodes::with_room`](super::inodes::Inodes::with_room)) while it holds a lock of 1 or 2.
//!
//! The locks of growth come after all of these. [`Inodes::apply_growth`](super::inodes::Inodes::apply_growth) takes the
//! lock under which the size of the index is measured (`measuring` of [`Growth`](crate::transaction::Growth)), and may start
//! a checkpoint, under inode locks. The holder of `measuring` never locks an inode.
//!
//! Inodes share a fixed number of locks. Two inodes wait for one another without need once in thousands of times.
//! In return, locks take a bounded amount of memory and need no bookkeeping.

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::Ino;
use crate::maintenance::InodeLocks;

/// Locks that inodes share; a power of two.
const SLOTS: usize = 1 << 13;

/// Most inodes that one call locks: a rename's two parents and two children.
const MOST_AT_ONCE: usize = 4;

/// The inode locks.
pub(super) struct Locks {
    slots: Box<[RwLock<()>]>,
    rename: Mutex<()>,
}

/// Proof that no other thread moves a directory meanwhile.
pub(super) struct RenameLock<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, ()>);

/// Proof that no thread changes the inode meanwhile.
pub(super) struct SharedLock<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Proof that no other thread reads or changes the inodes it was asked for.
pub(super) struct ExclusiveLock<'a> {
    inos: [Option<Ino>; MOST_AT_ONCE],
    #[expect(dead_code, reason = "held until dropped")]
    guards: [Option<RwLockWriteGuard<'a, ()>>; MOST_AT_ONCE],
}

impl ExclusiveLock<'_> {
    /// Returns whether the lock covers `ino`, for assertions.
    pub(super) fn covers(&self, ino: Ino) -> bool {
        self.inos.contains(&Some(ino))
    }
}

impl Locks {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| RwLock::new(())).collect(),
            rename: Mutex::new(()),
        }
    }

    /// Waits until no directory is being moved.
    pub(super) fn rename(&self) -> RenameLock<'_> {
        RenameLock(self.rename.lock())
    }

    /// Waits until no thread changes `ino`.
    pub(super) fn shared(&self, ino: Ino) -> SharedLock<'_> {
        SharedLock(self.slots[slot(ino)].read())
    }

    /// Waits until no thread uses any of `inos`.
    ///
    /// # Panics
    ///
    /// If there are more than four.
    pub(super) fn exclusive(&self, inos: &[Ino]) -> ExclusiveLock<'_> {
        assert!(
            inos.len() <= MOST_AT_ONCE,
            "a call locks at most four inodes"
        );
        let mut covered = [None; MOST_AT_ONCE];
        let mut slots = [usize::MAX; MOST_AT_ONCE];
        for (index, ino) in inos.iter().enumerate() {
            covered[index] = Some(*ino);
            slots[index] = slot(*ino);
        }
        slots.sort_unstable();
        let mut guards = [const { None }; MOST_AT_ONCE];
        for index in 0..inos.len() {
            // The same slot twice would wait for itself.
            if index == 0 || slots[index] != slots[index - 1] {
                guards[index] = Some(self.slots[slots[index]].write());
            }
        }
        ExclusiveLock {
            inos: covered,
            guards,
        }
    }
}

impl InodeLocks for Locks {
    fn with_locked(&self, ino: Ino, work: &mut dyn FnMut()) {
        let _lock = self.exclusive(&[ino]);
        work();
    }
}

/// Neighbouring numbers get slots far apart: files made together are used together.
fn slot(ino: Ino) -> usize {
    let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed).expect("32 bits fit") & (SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locking_inodes_that_share_a_slot_does_not_wait_for_itself() {
        let locks = Locks::new();
        let first = Ino(1);
        let twin = (2..1 << 20).map(Ino).find(|ino| slot(*ino) == slot(first));
        let twin = twin.expect("slots are fewer than these numbers");
        let guard = locks.exclusive(&[twin, first, first]);
        assert!(guard.covers(first) && guard.covers(twin));
        drop(guard);
        drop(locks.exclusive(&[first]));
    }

    #[test]
    fn two_threads_that_lock_the_same_pair_in_either_order_both_finish() {
        let locks = Locks::new();
        std::thread::scope(|scope| {
            for pair in [[Ino(7), Ino(8)], [Ino(8), Ino(7)]] {
                let locks = &locks;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        drop(locks.exclusive(&pair));
                    }
                });
            }
        });
    }
}
