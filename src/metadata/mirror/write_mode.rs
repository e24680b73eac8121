//! Whether the database's writes reach the members.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Mode of writing to the copies.
#[derive(Debug)]
pub(super) struct WriteMode {
    writable: bool,
    /// Something may have been written since the copies were opened.
    begun: AtomicBool,
    /// Nothing is written: not before [`WriteMode::begin`], and not while not even a reset had space. The
    /// database is read, and its writes on being opened stay in memory.
    suspended: AtomicBool,
    /// A copy had no space since the last reset, so nothing more is written for this commit.
    out_of_space: AtomicBool,
    /// Nothing is written ever again.
    closed: AtomicBool,
}

impl WriteMode {
    /// Returns the mode of copies that are being made: writes pass at once.
    pub(super) fn begun() -> Self {
        let mode = Self::suspended(true);
        mode.begin();
        mode
    }

    /// Returns the mode of copies that were opened, until [`WriteMode::begin`].
    pub(super) fn suspended(writable: bool) -> Self {
        Self {
            writable,
            begun: AtomicBool::new(false),
            suspended: AtomicBool::new(true),
            out_of_space: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns whether anything may ever be written.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Lets writes pass from now on.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.resume();
    }

    /// Returns whether something may have been written since the copies were opened.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Keeps writes in memory.
    pub(super) fn suspend(&self) {
        self.suspended.store(true, Ordering::Release);
    }

    /// Lets writes pass again.
    pub(super) fn resume(&self) {
        self.suspended.store(false, Ordering::Release);
    }

    /// Ends all writing for good.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Returns whether [`WriteMode::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Fails once [`WriteMode::close`] was called.
    pub(super) fn check_open(&self) -> io::Result<()> {
        if self.is_closed() {
            return Err(io::Error::other("the copies of the index are closed"));
        }
        Ok(())
    }

    /// Notes that a copy had no space, or that what was written for that commit is undone.
    pub(super) fn set_out_of_space(&self, out_of_space: bool) {
        self.out_of_space.store(out_of_space, Ordering::Release);
    }

    /// Returns whether a copy had no space since the last reset. The database need not pass on the error that it met
    /// first.
    pub(super) fn is_out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Acquire)
    }

    /// Returns whether the database's writes go to the members.
    ///
    /// # Errors
    ///
    /// [`StorageFull`](io::ErrorKind::StorageFull) if a copy had no space.
    pub(super) fn writes_through(&self) -> io::Result<bool> {
        if !self.writable || self.suspended.load(Ordering::Acquire) || self.is_closed() {
            return Ok(false);
        }
        if self.is_out_of_space() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_pass_between_begin_and_a_lack_of_space_only() {
        let mode = WriteMode::suspended(true);
        assert!(matches!(mode.writes_through(), Ok(false)) && !mode.has_begun());
        mode.begin();
        assert!(matches!(mode.writes_through(), Ok(true)) && mode.has_begun());
        mode.set_out_of_space(true);
        let refused = mode.writes_through().expect_err("a copy had no space");
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        mode.suspend();
        assert!(matches!(mode.writes_through(), Ok(false)));
        mode.set_out_of_space(false);
        mode.resume();
        assert!(matches!(mode.writes_through(), Ok(true)) && mode.has_begun());
        mode.close();
        mode.resume();
        assert!(matches!(mode.writes_through(), Ok(false)) && mode.is_closed());
    }

    #[test]
    fn writes_to_copies_opened_for_reading_never_pass() {
        let mode = WriteMode::suspended(false);
        mode.resume();
        assert!(matches!(mode.writes_through(), Ok(false)));
    }
}
