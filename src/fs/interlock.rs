//! The interlock: a limit on the files that are removed within an hour, beyond which removals need an order.
//!
//! A command that is wrong, or a program of an attacker, may remove everything in minutes. With the interlock, so many files
//! can go within an hour, and no more before someone looks. All else goes on: reads, writes, new files.
//!
//! A removal counts if a file loses its last name by UNLINK and was there when the hour began, or at the mount if that is
//! later. So programs may make and remove files of their own as they like. A directory does not count, because it is empty by
//! then. A rename that replaces a file by a new one does not count, nor a cut: programs do so all the time. One that replaces
//! an old file by another old one counts, because there is a file less. Nothing is refused before the files are counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::error::FsError;
use crate::format::record::{Inode, Timestamp};

/// The time for which removals count, in minutes.
const WINDOW: u64 = 60;

/// The same in seconds.
const WINDOW_SECONDS: i64 = 3600;

/// The files that may be removed within the window, however few there are.
const LEAST: u64 = 10;

/// The removals that were refused first, until an order lets them go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRemovals {
    /// The files that were removed within the hour before.
    pub removed: u64,
    /// The files of the volume then.
    pub files: u64,
}

/// A limit on the files that are removed within an hour. It outlives a filesystem that is opened again beneath its mount.
#[derive(Debug)]
pub struct Interlock {
    percent: u8,
    began: Instant,
    /// The files of the volume, as they were counted last.
    files: AtomicU64,
    /// True once they were counted.
    is_counted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time of the mount by the clock of the filesystem.
    mounted: Option<Timestamp>,
    /// The removals of each minute since the mount in which there were some.
    minutes: VecDeque<(u64, u64)>,
    /// The sum of these.
    removed: u64,
    refused: Option<RefusedRemovals>,
}

impl State {
    /// Returns whether a file was there when the hour began, or at the mount if that is later.
    fn is_old(&self, made: Timestamp, now: Timestamp) -> bool {
        let of = |time: Timestamp| (time.seconds, time.nanos);
        let hour_ago = (now.seconds.saturating_sub(WINDOW_SECONDS), now.nanos);
        let began = self.mounted.map_or(hour_ago, |it| of(it).max(hour_ago));
        of(made) <= began
    }
}

impl Interlock {
    /// Returns an interlock that lets so many percent of the files go within an hour.
    #[must_use]
    pub fn new(percent: u8) -> Self {
        Self {
            percent,
            began: Instant::now(),
            files: AtomicU64::new(0),
            is_counted: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Returns the percentage.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.percent
    }

    /// Returns the removals that are refused now, if any are.
    #[must_use]
    pub fn refused(&self) -> Option<RefusedRemovals> {
        self.state.lock().refused
    }

    /// Lets removals go on, and counts from nothing. Returns whether they were refused.
    pub fn release(&self) -> bool {
        let mut state = self.state.lock();
        state.minutes.clear();
        state.removed = 0;
        state.refused.take().is_some()
    }

    /// Notes when the filesystem was opened first.
    pub(super) fn begin(&self, now: Timestamp) {
        self.state.lock().mounted.get_or_insert(now);
    }

    /// Notes how many files there are.
    pub(super) fn set_files(&self, files: u64) {
        self.files.store(files, Ordering::Relaxed);
        self.is_counted.store(true, Ordering::Release);
    }

    /// Admits the replacement of one file by another, which a rename makes. It counts as a removal if both are old: there is a
    /// file less then. Programs replace files by new ones all the time.
    ///
    /// # Errors
    ///
    /// As for [`Self::admit`].
    pub(super) fn admit_replacement(
        &self,
        by: &Inode,
        replaced: &Inode,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let is_old = self.state.lock().is_old(by.btime, now);
        if is_old {
            return self.admit(replaced, now);
        }
        Ok(())
    }

    /// Admits the removal of a file that is about to lose its last name.
    ///
    /// # Errors
    ///
    /// [`FsError::Interlocked`] if too many went.
    pub(super) fn admit(&self, inode: &Inode, now: Timestamp) -> Result<(), FsError> {
        let minute = self.began.elapsed().as_secs() / 60;
        self.admit_at(inode.btime, now, minute)
    }

    fn admit_at(&self, made: Timestamp, now: Timestamp, minute: u64) -> Result<(), FsError> {
        let mut state = self.state.lock();
        if !state.is_old(made, now) {
            return Ok(());
        }
        if state.refused.is_some() {
            return Err(FsError::Interlocked);
        }
        while let Some((first, count)) = state.minutes.front().copied()
            && first + WINDOW <= minute
        {
            state.minutes.pop_front();
            state.removed -= count;
        }
        let files = self.files.load(Ordering::Relaxed);
        let most = (files.saturating_mul(self.percent.into()) / 100).max(LEAST);
        // Until all files are counted, nothing says how many may go. What goes counts afterwards.
        if state.removed >= most && self.is_counted.load(Ordering::Acquire) {
            let removed = state.removed;
            state.refused = Some(RefusedRemovals { removed, files });
            drop(state);
            tracing::error!(
                "removals are refused until `cauchyfs resume`: {removed} of {files} files were removed within an hour, and \
                 the interlock lets {} percent go",
                self.percent
            );
            return Err(FsError::Interlocked);
        }
        state.removed += 1;
        match state.minutes.back_mut() {
            Some((last, count)) if *last == minute => *count += 1,
            _ => state.minutes.push_back((minute, 1)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: i64 = 1_000_000;

    fn interlock(files: u64) -> Interlock {
        let interlock = Interlock::new(25);
        interlock.begin(at(MOUNTED));
        interlock.set_files(files);
        interlock
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    /// Removes old files, one after the other, and returns how many went.
    fn remove(interlock: &Interlock, count: u64, minute: u64) -> usize {
        let now = at(MOUNTED + i64::try_from(minute).unwrap() * 60);
        let admitted = (0..count).filter(|_| interlock.admit_at(at(7), now, minute).is_ok());
        admitted.count()
    }

    #[test]
    fn a_quarter_of_the_files_goes_and_no_more_until_an_order() {
        let interlock = interlock(100);
        assert_eq!(remove(&interlock, 25, 0), 25);
        assert_eq!(interlock.refused(), None, "so many may go");
        assert_eq!(remove(&interlock, 5, 0), 0);
        let (removed, files) = (25, 100);
        assert_eq!(
            interlock.refused(),
            Some(RefusedRemovals { removed, files })
        );
        assert_eq!(remove(&interlock, 5, 600), 0, "time alone does not suffice");
        assert!(interlock.release());
        assert!(!interlock.release());
        assert_eq!(remove(&interlock, 30, 600), 25);
    }

    #[test]
    fn removals_count_for_an_hour() {
        let interlock = interlock(100);
        assert_eq!(remove(&interlock, 10, 0), 10);
        assert_eq!(remove(&interlock, 15, 30), 15);
        assert_eq!(remove(&interlock, 10, 60), 10, "the first are past");
        assert_eq!(remove(&interlock, 1, 60), 0);
    }

    #[test]
    fn files_made_since_the_mount_or_within_the_hour_do_not_count() {
        let interlock = interlock(100);
        let soon = at(MOUNTED + 60);
        for nanos in 1..100 {
            let made = Timestamp {
                nanos,
                ..at(MOUNTED)
            };
            interlock.admit_at(made, soon, 1).unwrap();
        }
        // An hour later they are old.
        let later = at(MOUNTED + 7200);
        let went = (0..100).filter(|_| interlock.admit_at(at(MOUNTED + 1), later, 120).is_ok());
        assert_eq!(went.count(), 25);
        interlock.admit_at(at(MOUNTED + 7000), later, 120).unwrap();
    }

    #[test]
    fn nothing_is_refused_before_the_files_are_counted_and_what_went_counts_then() {
        let interlock = Interlock::new(25);
        interlock.begin(at(MOUNTED));
        assert_eq!(remove(&interlock, 20, 0), 20);
        assert_eq!(interlock.refused(), None);
        interlock.set_files(100);
        assert_eq!(remove(&interlock, 20, 0), 5);
    }

    #[test]
    fn a_few_files_may_go_of_a_small_volume() {
        let interlock = interlock(4);
        assert_eq!(remove(&interlock, 20, 0), 10);
    }
}
