//! The bytes of changes that may wait for the index, as shared by its measuring and by commits.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The bytes of changes that may wait for the index.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// The bytes as last measured.
    measured: AtomicU64,
    /// The bytes while copies of the index are on their way to members with room; 0 if none are.
    while_moving: AtomicU64,
    /// How often the measured bytes were forgotten.
    forgotten: Mutex<u64>,
}

impl Allowance {
    /// Drops the measured allowance, because it is out of date.
    pub(crate) fn forget(&self) {
        let mut forgotten = self.forgotten.lock();
        *forgotten += 1;
        self.measured.store(0, Ordering::Release);
    }

    /// Returns the begin of a measuring, for [`Self::set_measured`].
    pub(crate) fn begin_measuring(&self) -> u64 {
        *self.forgotten.lock()
    }

    /// Returns the bytes as last measured.
    pub(crate) fn measured(&self) -> u64 {
        self.measured.load(Ordering::Acquire)
    }

    /// Returns the bytes while copies of the index move; 0 if none do.
    pub(crate) fn while_moving(&self) -> u64 {
        self.while_moving.load(Ordering::Acquire)
    }

    /// Sets the measured allowance, unless one was dropped since the measuring `began`: this one is then out of date, too.
    pub(crate) fn set_measured(&self, bytes: u64, began: u64) {
        let forgotten = self.forgotten.lock();
        if *forgotten == began {
            self.measured.store(bytes, Ordering::Release);
        }
    }

    /// Sets the allowance while copies of the index move.
    pub(crate) fn set_while_moving(&self, bytes: u64) {
        self.while_moving.store(bytes, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measuring_during_which_the_allowance_was_dropped_does_not_count() {
        let allowance = Allowance::default();
        let began = allowance.begin_measuring();
        allowance.forget();
        allowance.set_measured(1, began);
        assert_eq!(allowance.measured(), 0);
        allowance.set_measured(2, allowance.begin_measuring());
        assert_eq!(allowance.measured(), 2);
    }
}
