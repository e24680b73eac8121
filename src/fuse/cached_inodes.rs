//! The inodes of which the kernel's page cache may hold pages.
//!
//! Behind an asynchronous direct write, the kernel leaves pages as they are, and later reads would see the old bytes.
//! So it is told to drop them before the write is answered. Most files that are written directly have no pages, and
//! their writes need no notice.
//!
//! # Invariants
//!
//! - A request that fills pages is noted before it reads bytes of the file, and a direct write looks after its bytes are
//!   in place. So the request sees the new bytes, or the write sees the note.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Ino;

/// The number of marks. Two inodes that share one cost a notice in vain.
const MARKS: u64 = 1 << 20;

/// A mark for each group of inodes. None is ever taken back, because the kernel keeps pages as long as it likes.
pub(super) struct CachedInodes(Box<[AtomicU64]>);

impl Default for CachedInodes {
    fn default() -> Self {
        let words = MARKS / u64::from(u64::BITS);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl CachedInodes {
    /// Notes that the kernel fills pages of an inode, or has filled some.
    pub(super) fn note(&self, ino: Ino) {
        let (word, mark) = self.place(ino);
        // Requests of all threads come here, and a write would take the cache line away from the others.
        if word.load(Ordering::Acquire) & mark == 0 {
            word.fetch_or(mark, Ordering::AcqRel);
        }
    }

    /// Returns whether the kernel may hold pages of an inode.
    pub(super) fn may_hold(&self, ino: Ino) -> bool {
        let (word, mark) = self.place(ino);
        word.load(Ordering::Acquire) & mark != 0
    }

    /// Returns the word and the bit of an inode. Inodes get their numbers in turn, so neighbours have marks of their own.
    fn place(&self, ino: Ino) -> (&AtomicU64, u64) {
        let number = ino.0 % MARKS;
        let word =
            usize::try_from(number / u64::from(u64::BITS)).expect("below the number of words");
        (&self.0[word], 1 << (number % u64::from(u64::BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_held_once_it_is_noted_and_its_neighbours_are_not() {
        let cached = CachedInodes::default();
        for ino in [0, 63, 64, MARKS - 1, u64::MAX - MARKS / 2] {
            assert!(!cached.may_hold(Ino(ino)), "{ino}");
            cached.note(Ino(ino));
            assert!(cached.may_hold(Ino(ino)), "{ino}");
            assert!(!cached.may_hold(Ino(ino ^ 2)), "{ino}");
        }
    }
}
