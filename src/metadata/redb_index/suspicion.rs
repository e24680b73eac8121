//! The suspicion that the content of the database is wrong although every checksum is right.

use std::sync::atomic::{AtomicBool, Ordering};

/// Suspicion that a database is damaged. It leads to one trial of each copy by itself, and no more.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// Set when the database panics or finds its content wrong, until the copies were tried one by one.
    is_raised: AtomicBool,
    /// The copies were tried one by one already.
    is_spent: AtomicBool,
}

impl Suspicion {
    /// Notes that the content is suspect.
    pub(super) fn raise(&self) {
        self.is_raised.store(true, Ordering::Release);
    }

    /// Returns whether the content is suspect.
    pub(super) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Acquire)
    }

    /// Ends the suspicion. Returns whether the copies are to be tried one by one now.
    pub(super) fn take(&self) -> bool {
        self.is_raised.swap(false, Ordering::AcqRel) && !self.is_spent.swap(true, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_are_tried_once_after_the_first_suspicion() {
        let suspicion = Suspicion::default();
        assert!(!suspicion.take(), "nothing is suspect");
        suspicion.raise();
        assert!(suspicion.is_raised() && suspicion.take() && !suspicion.is_raised());
        suspicion.raise();
        assert!(!suspicion.take(), "they were tried already");
    }
}
