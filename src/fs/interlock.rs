//! The interlock: a limit on the files that are removed within an hour, beyond which removals need an order.
//!
//! A command that is wrong, or a program of an attacker, may remove everything in minutes. With the interlock, so many files
//! can go within an hour, and no more before someone looks. All else goes on: reads, writes, new files.
//!
//! A removal counts if a file loses its last name by UNLINK. The file must have been there when the hour began, or at the
//! mount if that is later. So programs may make and remove files of their own as they like. A directory does not count, because it is empty by
//! then. A rename that replaces a file by a new one does not count, nor a cut: programs do so all the time. One that replaces
//! an old file by another old one counts, because there is a file less. Nothing is refused before the files are counted.
//!
//! The count begins again with each mount, because the user who mounts may give the order as well. A refusal stays: the log of
//! events tells the next daemon of it. No removal returns with a refusal before a member has the event, so a crash loses none
//! that a removal met. A crash before that is one before the refusal. Members that do not take the event hold up no removal for
//! long: after [`RECORD_TIMEOUT`] it is refused all the same, and only a crash after that loses the refusal.

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::error::FsError;
use crate::format::record::{Inode, Timestamp};

/// The time for which removals count, in minutes.
const WINDOW: u64 = 60;

/// The same in seconds.
const WINDOW_SECONDS: i64 = 3600;

/// The files that may be removed within the window, however few there are.
const LEAST: u64 = 10;

/// The time from a refusal on for which removals wait until the log of events has it.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);

/// Most changes that wait for the log of events, the newest. Each pair of them takes an order.
const MOST_CHANGES: usize = 64;

/// The removals that were refused first, until an order lets them go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRemovals {
    /// The files that were removed within the hour before.
    pub removed: u64,
    /// The files of the volume then.
    pub files: u64,
}

/// A change of what an interlock does, for the log of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterlockChange {
    /// It refuses removals from now on.
    Refused {
        /// The removals before.
        removals: RefusedRemovals,
        /// The percentage that may go.
        percent: u8,
    },
    /// An order lets removals go on.
    Allowed {
        /// The time for which they were refused.
        refused_for: Duration,
    },
}

/// The removal of a file that was admitted. It counts unless it is dropped before it is [done](Self::done).
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Admission<'a> {
    /// The interlock that counted it, and the minute.
    counted: Option<(&'a Interlock, u64)>,
}

impl Admission<'_> {
    /// Notes that the file is gone.
    pub(super) fn done(mut self) {
        self.counted = None;
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Some((interlock, minute)) = self.counted.take() {
            interlock.removals.lock().take_back(minute);
        }
    }
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
    /// True if the files are not to be counted again for now.
    is_paused: AtomicBool,
    removals: Mutex<Removals>,
    /// Wakes removals that wait until the log has their refusal.
    recorded: Condvar,
    record_timeout: Duration,
}

/// A refusal that lasts.
#[derive(Clone, Copy, Debug)]
struct RemovalRefusal {
    /// Counts the refusals since the mount.
    number: u64,
    removals: RefusedRemovals,
    since: Instant,
    /// True once the log of events has it.
    is_recorded: bool,
}

/// The removals within the window.
#[derive(Debug, Default)]
struct Removals {
    /// The time of the mount by the clock of the filesystem.
    mounted: Option<Timestamp>,
    /// The removals of each minute since the mount in which there were some.
    minutes: VecDeque<(u64, u64)>,
    /// The sum of these.
    removed: u64,
    /// The number of refusals so far.
    refusals: u64,
    /// The refusal, while removals are refused.
    refusal: Option<RemovalRefusal>,
    /// The changes that no event tells of yet.
    changes: Vec<InterlockChange>,
    /// Wakes what records these changes, while there is such.
    waker: Weak<Sender<()>>,
}

impl Removals {
    /// Refuses removals from now on, as they were since then.
    fn refuse(&mut self, removals: RefusedRemovals, since: Instant, percent: u8) {
        self.refusals += 1;
        self.refusal = Some(RemovalRefusal {
            number: self.refusals,
            removals,
            since,
            is_recorded: false,
        });
        self.note(InterlockChange::Refused { removals, percent });
    }

    fn note(&mut self, change: InterlockChange) {
        // The last one says what holds.
        if self.changes.len() >= MOST_CHANGES {
            self.changes.remove(0);
        }
        self.changes.push(change);
        // It may have ended just now.
        let _ = self.waker.upgrade().map(|waker| waker.send(()));
    }

    /// Takes back a removal that was counted in a minute, and failed.
    fn take_back(&mut self, minute: u64) {
        let mut minutes = self.minutes.iter_mut().rev();
        // An order may have cleared the count since.
        if let Some((_, count)) = minutes.find(|(of, count)| *of == minute && *count > 0) {
            *count -= 1;
            self.removed -= 1;
        }
    }

    /// Returns whether a file was there when the hour began, or at the mount if that is later.
    fn is_old(&self, made: Timestamp, now: Timestamp) -> bool {
        let of = |time: Timestamp| (time.seconds, time.nanos);
        let hour_ago = (now.seconds.saturating_sub(WINDOW_SECONDS), now.nanos);
        let began = self.mounted.map_or(hour_ago, |it| of(it).max(hour_ago));
        of(made) <= began
    }
}

impl Interlock {
    /// Returns an interlock that lets so many percent of the files go within an hour. Something must record its changes:
    /// removals wait for that for a moment.
    #[must_use]
    pub fn new(percent: u8) -> Self {
        Self::with_record_timeout(percent, RECORD_TIMEOUT)
    }

    /// As [`Self::new`]. Removals wait for so long until their refusal is recorded.
    pub(super) fn with_record_timeout(percent: u8, record_timeout: Duration) -> Self {
        Self {
            percent,
            began: Instant::now(),
            files: AtomicU64::new(0),
            is_counted: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            removals: Mutex::default(),
            recorded: Condvar::new(),
            record_timeout,
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
        self.removals.lock().refusal.map(|refusal| refusal.removals)
    }

    /// Lets removals go on if they are refused, and counts from nothing then. Returns whether they were refused.
    pub fn release(&self) -> bool {
        let mut removals = self.removals.lock();
        let Some(refusal) = removals.refusal.take() else {
            return false;
        };
        removals.minutes.clear();
        removals.removed = 0;
        let refused_for = refusal.since.elapsed();
        removals.note(InterlockChange::Allowed { refused_for });
        drop(removals);
        self.recorded.notify_all();
        true
    }

    /// Refuses removals because the daemon before did so when it ended, and began to so long ago. This is a change, too: the
    /// log tells of it again, and so the daemon after this one learns of it.
    pub fn refuse_on(&self, refused: RefusedRemovals, ago: Duration) {
        let now = Instant::now();
        let since = now.checked_sub(ago).unwrap_or(now);
        let mut removals = self.removals.lock();
        removals.refuse(refused, since, self.percent);
        // The log has it of the daemon before.
        if let Some(refusal) = &mut removals.refusal {
            refusal.is_recorded = true;
        }
    }

    /// Sends to `waker` at each change from now on, as long as it is there.
    pub fn set_waker(&self, waker: Weak<Sender<()>>) {
        self.removals.lock().waker = waker;
    }

    /// Gives the changes since the last call to `record`, in order. `record` has ended before another call returns, and takes
    /// no lock of the interlock.
    pub fn take_changes(&self, record: impl FnOnce(Vec<InterlockChange>)) {
        self.take_numbered(record);
    }

    /// As [`Self::take_changes`]. Then lets removals be refused that these changes tell of, if `flush` says that the log has
    /// them. A refusal that comes meanwhile waits for a call of its own.
    pub fn record_changes(
        &self,
        record: impl FnOnce(Vec<InterlockChange>),
        flush: impl FnOnce() -> bool,
    ) {
        let refusals = self.take_numbered(record);
        if flush() {
            self.note_recorded(refusals);
        }
    }

    /// As [`Self::take_changes`]. Returns the number of refusals so far.
    fn take_numbered(&self, record: impl FnOnce(Vec<InterlockChange>)) -> u64 {
        let mut removals = self.removals.lock();
        record(std::mem::take(&mut removals.changes));
        removals.refusals
    }

    /// Notes that the log of events has so many refusals.
    fn note_recorded(&self, refusals: u64) {
        let mut removals = self.removals.lock();
        let refusal = removals.refusal.as_mut();
        if let Some(refusal) = refusal.filter(|it| it.number <= refusals) {
            refusal.is_recorded = true;
        }
        drop(removals);
        self.recorded.notify_all();
    }

    /// Waits until the log of events has the refusal, for as long as that may take. The caller holds no locks of inodes.
    pub(super) fn wait_until_recorded(&self) {
        let mut removals = self.removals.lock();
        let Some(refusal) = removals.refusal else {
            return;
        };
        let left = self.record_timeout.saturating_sub(refusal.since.elapsed());
        let waits = |removals: &mut Removals| removals.refusal.is_some_and(|it| !it.is_recorded);
        self.recorded.wait_while_for(&mut removals, waits, left);
    }

    /// Has the files not counted again until this is called with false.
    pub fn pause_counting(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Returns whether a count is to wait. The first one is not, because nothing is refused before its end.
    pub(super) fn is_count_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed) && self.is_counted.load(Ordering::Acquire)
    }

    /// Notes when the filesystem was opened first.
    pub(super) fn begin(&self, now: Timestamp) {
        self.removals.lock().mounted.get_or_insert(now);
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
    ) -> Result<Admission<'_>, FsError> {
        let is_old = self.removals.lock().is_old(by.btime, now);
        if is_old {
            return self.admit(replaced, now);
        }
        Ok(Admission::default())
    }

    /// Admits the removal of a file that is about to lose its last name.
    ///
    /// # Errors
    ///
    /// [`FsError::Interlocked`] if too many went. Then [`Self::wait_until_recorded`] comes before the answer to the program.
    pub(super) fn admit(&self, inode: &Inode, now: Timestamp) -> Result<Admission<'_>, FsError> {
        let minute = self.began.elapsed().as_secs() / 60;
        self.admit_at(inode.btime, now, minute)
    }

    fn admit_at(
        &self,
        made: Timestamp,
        now: Timestamp,
        minute: u64,
    ) -> Result<Admission<'_>, FsError> {
        let mut removals = self.removals.lock();
        if !removals.is_old(made, now) {
            return Ok(Admission::default());
        }
        if removals.refusal.is_some() {
            return Err(FsError::Interlocked);
        }
        while let Some((first, count)) = removals.minutes.front().copied()
            && first + WINDOW <= minute
        {
            removals.minutes.pop_front();
            removals.removed -= count;
        }
        let files = self.files.load(Ordering::Relaxed);
        let most = (files.saturating_mul(self.percent.into()) / 100).max(LEAST);
        // Until all files are counted, nothing says how many may go. What goes counts afterwards.
        if removals.removed >= most && self.is_counted.load(Ordering::Acquire) {
            let removed = removals.removed;
            let refused = RefusedRemovals { removed, files };
            removals.refuse(refused, Instant::now(), self.percent);
            drop(removals);
            tracing::error!(
                "removals are refused until `cauchyfs resume`: {removed} of {files} files were removed within an hour, and \
                 the interlock lets {} percent go",
                self.percent
            );
            return Err(FsError::Interlocked);
        }
        removals.removed += 1;
        match removals.minutes.back_mut() {
            Some((last, count)) if *last == minute => *count += 1,
            _ => removals.minutes.push_back((minute, 1)),
        }
        Ok(Admission {
            counted: Some((self, minute)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: i64 = 1_000_000;

    /// Returns an interlock whose changes nothing records.
    fn unrecorded() -> Interlock {
        Interlock::with_record_timeout(25, Duration::ZERO)
    }

    fn interlock(files: u64) -> Interlock {
        let interlock = unrecorded();
        interlock.begin(at(MOUNTED));
        interlock.set_files(files);
        interlock
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    /// Takes the changes of an interlock.
    fn taken(interlock: &Interlock) -> Vec<InterlockChange> {
        let mut taken = Vec::new();
        interlock.take_changes(|changes| taken = changes);
        taken
    }

    /// Removes old files, one after the other, and returns how many went.
    fn remove(interlock: &Interlock, count: u64, minute: u64) -> usize {
        let now = at(MOUNTED + i64::try_from(minute).unwrap() * 60);
        let admit = || {
            let admitted = interlock.admit_at(at(7), now, minute);
            admitted.map(Admission::done).inspect_err(|_| {
                interlock.wait_until_recorded();
            })
        };
        (0..count).filter(|_| admit().is_ok()).count()
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
    fn a_removal_that_fails_does_not_count() {
        let interlock = interlock(100);
        assert_eq!(remove(&interlock, 10, 0), 10);
        for minute in [0, 1] {
            for _ in 0..50 {
                let failed = interlock.admit_at(at(7), at(MOUNTED), minute);
                drop(failed.unwrap());
            }
        }
        assert_eq!(remove(&interlock, 20, 1), 15);
        // An order between the admission and the failure leaves nothing to take back.
        assert!(interlock.release());
        let failed = interlock.admit_at(at(7), at(MOUNTED), 1).unwrap();
        assert_eq!(remove(&interlock, 30, 1), 24);
        assert!(interlock.release());
        drop(failed);
        assert_eq!(remove(&interlock, 30, 1), 25);
    }

    #[test]
    fn every_refusal_and_every_order_is_told_once_however_soon_one_follows_the_other() {
        let interlock = interlock(100);
        let removals = RefusedRemovals {
            removed: 25,
            files: 100,
        };
        let refused = InterlockChange::Refused {
            removals,
            percent: 25,
        };
        assert!(!interlock.release(), "nothing is refused");
        assert_eq!(taken(&interlock), []);
        for _ in 0..2 {
            remove(&interlock, 30, 0);
            assert!(interlock.release());
        }
        let changes = taken(&interlock);
        let is_order = |change: &InterlockChange| matches!(change, InterlockChange::Allowed { .. });
        assert_eq!(changes.len(), 4, "{changes:?}");
        assert_eq!((changes[0], changes[2]), (refused, refused));
        assert!(is_order(&changes[1]) && is_order(&changes[3]));
        assert_eq!(taken(&interlock), []);
        for _ in 0..2 * MOST_CHANGES {
            remove(&interlock, 30, 0);
            assert!(interlock.release());
        }
        remove(&interlock, 30, 0);
        let changes = taken(&interlock);
        assert_eq!(changes.len(), MOST_CHANGES);
        assert_eq!(changes.last(), Some(&refused), "it holds");
    }

    #[test]
    fn a_refusal_of_the_daemon_before_stays_until_an_order() {
        let interlock = interlock(100);
        let before = RefusedRemovals {
            removed: 25,
            files: 100,
        };
        interlock.refuse_on(before, Duration::from_secs(60));
        assert_eq!(interlock.refused(), Some(before));
        assert_eq!(remove(&interlock, 5, 0), 0);
        let goes_on = InterlockChange::Refused {
            removals: before,
            percent: 25,
        };
        assert_eq!(taken(&interlock), [goes_on], "once, not at each try");
        assert!(interlock.release());
        assert_eq!(remove(&interlock, 30, 0), 25);
    }

    #[test]
    fn a_change_wakes_what_records_it() {
        let interlock = interlock(100);
        let (waker, woken) = std::sync::mpsc::channel();
        let waker = std::sync::Arc::new(waker);
        interlock.set_waker(std::sync::Arc::downgrade(&waker));
        remove(&interlock, 25, 0);
        assert!(woken.try_recv().is_err(), "nothing is refused");
        remove(&interlock, 5, 0);
        assert_eq!(woken.try_iter().count(), 1);
        assert!(interlock.release());
        assert_eq!(woken.try_iter().count(), 1);
        drop(waker);
        assert!(woken.recv().is_err(), "the interlock keeps it");
    }

    #[test]
    fn no_removal_is_refused_before_the_refusal_is_recorded() {
        const LONG: Duration = Duration::from_secs(60);
        let interlock = Interlock::with_record_timeout(25, LONG);
        interlock.begin(at(MOUNTED));
        interlock.set_files(100);
        assert_eq!(remove(&interlock, 25, 0), 25);
        let before = interlock.take_numbered(|changes| assert_eq!(changes, []));
        let began = Instant::now();
        let is_recorded = AtomicBool::new(false);
        let refused = || {
            assert_eq!(remove(&interlock, 1, 0), 0);
            assert!(is_recorded.load(Ordering::SeqCst), "it did not wait");
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(refused);
            cauchyfs_testkit::eventually("it refuses", LONG, || interlock.refused().is_some());
            let second = scope.spawn(refused);
            // Changes that were taken before the refusal lack it, although its own change is taken.
            let number = interlock.take_numbered(|changes| assert_eq!(changes.len(), 1));
            interlock.note_recorded(before);
            std::thread::sleep(Duration::from_millis(100));
            is_recorded.store(true, Ordering::SeqCst);
            interlock.note_recorded(number);
            for removal in [first, second] {
                removal.join().expect("it waited");
            }
        });
        assert!(began.elapsed() < LONG / 2, "nothing woke it");
        // Nothing waits for a change that an order ended.
        let began = Instant::now();
        assert!(interlock.release());
        assert_eq!(remove(&interlock, 25, 0), 25);
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| remove(&interlock, 1, 0));
            cauchyfs_testkit::eventually("it refuses", LONG, || interlock.refused().is_some());
            assert!(interlock.release());
            assert_eq!(removal.join().expect("it ended"), 0);
        });
        assert!(began.elapsed() < LONG / 2, "it waited for the log");
    }

    #[test]
    fn a_refusal_that_comes_while_another_is_written_waits_for_its_own_event() {
        let interlock = interlock(100);
        let is_recorded = || {
            let refusal = interlock.removals.lock().refusal;
            refusal.expect("it refuses").is_recorded
        };
        remove(&interlock, 26, 0);
        interlock.record_changes(|changes| assert_eq!(changes.len(), 1), || false);
        assert!(!is_recorded(), "no member has the event");
        let refuse_again = || {
            assert!(interlock.release());
            remove(&interlock, 26, 0);
            true
        };
        interlock.record_changes(|changes| assert_eq!(changes, []), refuse_again);
        assert!(!is_recorded(), "it came after the changes");
        interlock.record_changes(|changes| assert_eq!(changes.len(), 2), || true);
        assert!(is_recorded());
    }

    #[test]
    fn a_refusal_that_cannot_be_recorded_holds_up_removals_for_a_moment_only() {
        let interlock = Interlock::with_record_timeout(25, Duration::from_millis(300));
        interlock.begin(at(MOUNTED));
        interlock.set_files(100);
        let began = Instant::now();
        assert_eq!(remove(&interlock, 26, 0), 25);
        assert!(began.elapsed() >= Duration::from_millis(300), "it waited");
        let refusal = interlock.removals.lock().refusal;
        assert!(!refusal.expect("it refuses").is_recorded);
        // Each of these would wait as well if its own time counted.
        for _ in 0..400 {
            assert_eq!(remove(&interlock, 1, 0), 0);
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn only_the_first_count_goes_on_while_background_work_is_paused() {
        let interlock = unrecorded();
        interlock.pause_counting(true);
        assert!(!interlock.is_count_paused());
        interlock.set_files(7);
        assert!(interlock.is_count_paused());
        interlock.pause_counting(false);
        assert!(!interlock.is_count_paused());
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
            interlock.admit_at(made, soon, 1).unwrap().done();
        }
        // An hour later they are old.
        let later = at(MOUNTED + 7200);
        let admit = |made| interlock.admit_at(made, later, 120).map(Admission::done);
        let went = (0..100).filter(|_| admit(at(MOUNTED + 1)).is_ok());
        assert_eq!(went.count(), 25);
        admit(at(MOUNTED + 7000)).unwrap();
    }

    #[test]
    fn nothing_is_refused_before_the_files_are_counted_and_what_went_counts_then() {
        let interlock = unrecorded();
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
