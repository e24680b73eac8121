//! The state of a volume for metrics, asked for on a thread of its own.
//!
//! To ask for space waits for members, and to count the redundancy may take long. So a sample serves all scrapes of some
//! seconds, and of longer if it took long itself. Nothing is sampled unless there are scrapes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use super::process::open_files;
use crate::control::mounted::MountedVolume;
use crate::control::report::{InterlockReport, StatusReport};
use crate::control::summary::{Survey, TOO_FEW, report_without_names};
use crate::maintenance::Maintenance;
use crate::membership::Unusable;
use crate::stripes::CacheUse;
use crate::transaction::CommitCounts;

/// The time that a scrape waits for a new sample.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The time for which a sample serves scrapes.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// A sample serves at least so many times the time that it took.
const LEAST_SHARE: u32 = 20;

/// A sample serves no longer than this, however long it took.
const LONGEST_GOOD_FOR: Duration = Duration::from_secs(60);

/// The time for which the end of a sample is waited for.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of a volume at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    /// The report, without lost files.
    pub(super) report: StatusReport,
    /// True if the volume is away, and its directories alone were looked at.
    pub(super) is_surveyed: bool,
    /// The number of lost files; none if they cannot be counted.
    pub(super) lost_files: Option<u64>,
    /// None if the volume is away.
    pub(super) commits: Option<CommitCounts>,
    /// None if the volume is away.
    pub(super) cache: Option<CacheUse>,
    /// The bytes that compaction has written; none if the volume is away.
    pub(super) bytes_compacted: Option<u64>,
    /// None if they cannot be counted.
    pub(super) open_files: Option<u64>,
    pub(super) taken_at: SystemTime,
    /// The time that it took.
    pub(super) took: Duration,
    taken: Instant,
}

impl Sample {
    /// Asks a volume. Returns none if it tells nothing, if it is opened again now, or once `is_over`.
    ///
    /// A sample holds no filesystem, because a volume is opened again only once nothing holds that. It holds nothing of an
    /// open volume while it surveys.
    fn of(volume: &MountedVolume, survey: &Survey, is_over: &dyn Fn() -> bool) -> Option<Self> {
        let began = Instant::now();
        let is_reopened = || volume.served().is_paused();
        if is_over() || is_reopened() {
            return None;
        }
        let parts = volume.now().map(|open| (open.maintenance, open.notes));
        let counted =
            parts.and_then(|(maintenance, notes)| Self::count(&maintenance, &notes, began));
        let mut sample = match counted {
            Some(sample) => sample,
            None if is_over() || is_reopened() => return None,
            None => Self {
                is_surveyed: true,
                ..Self::from_report(survey(TOO_FEW)?, None, None, began)
            },
        };
        sample.report.paused = volume.is_paused();
        sample.report.alerts = volume.alerts();
        sample.report.interlock = volume.interlock().map(InterlockReport::from);
        Some(sample)
    }

    /// Asks an open volume. Returns none if it has too few members, or the count found it so.
    fn count(maintenance: &Maintenance, notes: &[Unusable], began: Instant) -> Option<Self> {
        let transactions = maintenance.transactions();
        let is_away = || transactions.members().membership().is_failed();
        if is_away() {
            return None;
        }
        let commits = transactions.commit_counts();
        let (report, lost_files) = report_without_names(maintenance, notes);
        if report.why_uncounted("redundancy").is_some() && is_away() {
            return None;
        }
        Some(Self {
            cache: Some(transactions.cache_use()),
            bytes_compacted: Some(maintenance.room().bytes_compacted()),
            ..Self::from_report(report, lost_files, Some(commits), began)
        })
    }

    /// Makes a sample of a report.
    pub(super) fn from_report(
        report: StatusReport,
        lost_files: Option<u64>,
        commits: Option<CommitCounts>,
        began: Instant,
    ) -> Self {
        Self {
            report,
            is_surveyed: false,
            lost_files,
            commits,
            cache: None,
            bytes_compacted: None,
            open_files: open_files(),
            taken_at: SystemTime::now(),
            took: began.elapsed(),
            taken: Instant::now(),
        }
    }

    fn is_fresh(&self) -> bool {
        self.taken.elapsed() < self.good_for()
    }

    fn good_for(&self) -> Duration {
        let share = self.took.saturating_mul(LEAST_SHARE);
        share.clamp(GOOD_FOR, LONGEST_GOOD_FOR)
    }
}

#[derive(Default)]
struct Samples {
    latest: Option<Arc<Sample>>,
    /// Samples that were tried, successful or not.
    tried: u64,
    is_wanted: bool,
    /// The time since which a sample is taken; none if none is.
    sampling_since: Option<Instant>,
    has_ended: bool,
}

/// The samples of a volume.
#[derive(Default)]
pub(super) struct Sampler {
    state: Mutex<Samples>,
    /// Wakes the thread that samples.
    wanted: Condvar,
    /// Wakes scrapes, and the end.
    sampled: Condvar,
}

impl Sampler {
    /// Starts the thread that samples.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(volume: &Arc<MountedVolume>, survey: Survey) -> io::Result<Arc<Self>> {
        let volume = Arc::clone(volume);
        Self::start_with(move |is_over| Sample::of(&volume, &survey, is_over))
    }

    fn start_with(
        take: impl Fn(&dyn Fn() -> bool) -> Option<Sample> + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let sampler = Arc::new(Self::default());
        let sampling = Arc::clone(&sampler);
        std::thread::Builder::new()
            .name("metrics-sample".to_owned())
            .spawn(move || sampling.run(take))?;
        Ok(sampler)
    }

    fn run(&self, take: impl Fn(&dyn Fn() -> bool) -> Option<Sample>) {
        let is_over = || self.state.lock().has_ended;
        loop {
            let mut state = self.state.lock();
            while !state.is_wanted && !state.has_ended {
                self.wanted.wait(&mut state);
            }
            if state.has_ended {
                return;
            }
            state.sampling_since = Some(Instant::now());
            drop(state);
            // A panic must not end the thread: scrapes would show its last sample from then on.
            let taken = catch_unwind(AssertUnwindSafe(|| take(&is_over)));
            let sample = taken.unwrap_or_else(|_| {
                // The panic hook has logged message and place.
                tracing::error!("a look at the volume for metrics panicked");
                None
            });
            let mut state = self.state.lock();
            state.is_wanted = false;
            state.sampling_since = None;
            state.tried += 1;
            if let Some(sample) = sample {
                state.latest = Some(Arc::new(sample));
            }
            drop(state);
            self.sampled.notify_all();
        }
    }

    /// Returns a sample, which is new if it can be had soon. None if there never was any. Where a new one has taken longer
    /// than `patience` already, the one before is returned at once.
    pub(super) fn latest(&self, patience: Duration) -> Option<Arc<Sample>> {
        let mut state = self.state.lock();
        if state.latest.as_ref().is_none_or(|it| !it.is_fresh()) && !state.has_ended {
            state.is_wanted = true;
            self.wanted.notify_one();
            let before = state.tried;
            let since = state.sampling_since.filter(|_| state.latest.is_some());
            let left = patience.saturating_sub(since.map_or(Duration::ZERO, |it| it.elapsed()));
            let is_pending = |state: &mut Samples| state.tried == before && !state.has_ended;
            self.sampled.wait_while_for(&mut state, is_pending, left);
        }
        state.latest.clone()
    }

    /// Has the thread take no more samples, and waits for the one that it takes. It waits for a moment only, because a
    /// member that hangs must not keep the mount from its end.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        self.wanted.notify_all();
        self.sampled.notify_all();
        let is_sampling = |state: &mut Samples| state.sampling_since.is_some();
        let ended = self
            .sampled
            .wait_while_for(&mut state, is_sampling, END_TIMEOUT);
        if ended.timed_out() {
            tracing::debug!("a look at the volume for metrics goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use cauchyfs_testkit::eventually;

    use super::*;
    use crate::control::metrics::exposition::tests::report;

    const LONG: Duration = Duration::from_secs(60);

    fn sample() -> Sample {
        Sample::from_report(report(), Some(0), None, Instant::now())
    }

    #[test]
    fn a_sample_that_takes_long_holds_no_scrape_and_the_one_before_serves_meanwhile() {
        let (give, taken) = channel::<Option<Sample>>();
        let sampler = Sampler::start_with(move |_| taken.recv().ok().flatten()).unwrap();
        let little = Duration::from_millis(1);
        let until_tried = |times| {
            let has_tried = || sampler.state.lock().tried == times;
            eventually("it has tried", LONG, has_tried);
        };
        assert!(sampler.latest(little).is_none(), "there is none yet");
        let stale = Sample {
            took: Duration::ZERO,
            taken: Instant::now().checked_sub(GOOD_FOR).unwrap(),
            ..sample()
        };
        give.send(Some(stale)).unwrap();
        until_tried(1);
        // It is stale, and nothing newer comes.
        let first = sampler.latest(little).unwrap();
        assert!(Arc::ptr_eq(&first, &sampler.latest(little).unwrap()));
        give.send(None).unwrap();
        until_tried(2);
        assert!(Arc::ptr_eq(&first, &sampler.latest(little).unwrap()));
        give.send(Some(sample())).unwrap();
        until_tried(3);
        // It is fresh, so nothing is asked.
        let second = sampler.latest(LONG).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &sampler.latest(LONG).unwrap()));
        sampler.end();
    }

    #[test]
    fn a_scrape_does_not_wait_where_a_sample_has_taken_longer_than_its_patience() {
        let (give, taken) = channel::<Option<Sample>>();
        let sampler = Sampler::start_with(move |_| taken.recv().ok().flatten()).unwrap();
        let stale = Sample {
            took: Duration::ZERO,
            taken: Instant::now().checked_sub(GOOD_FOR).unwrap(),
            ..sample()
        };
        give.send(Some(stale)).unwrap();
        let first = sampler.latest(LONG).unwrap();
        assert!(sampler.latest(Duration::ZERO).is_some());
        let is_sampling = || sampler.state.lock().sampling_since.is_some();
        eventually("it samples", LONG, is_sampling);
        let long_ago = Instant::now().checked_sub(LONG).unwrap();
        sampler.state.lock().sampling_since = Some(long_ago);
        // Nothing would end the wait but the patience, which has passed: the test would hang for a minute.
        let began = Instant::now();
        assert!(Arc::ptr_eq(&first, &sampler.latest(LONG).unwrap()));
        assert!(began.elapsed() < LONG);
        drop(give);
        sampler.end();
    }

    #[test]
    fn a_sample_that_panics_does_not_end_those_after_it() {
        let (give, taken) = channel::<Sample>();
        let sampler =
            Sampler::start_with(move |_| Some(taken.try_recv().expect("a bug panics so")));
        let sampler = sampler.unwrap();
        assert!(sampler.latest(LONG).is_none());
        give.send(sample()).unwrap();
        assert!(sampler.latest(LONG).is_some());
        sampler.end();
    }

    #[test]
    fn a_sample_serves_longer_if_it_took_long_but_no_longer_than_a_minute() {
        let good_for = |took| Sample { took, ..sample() }.good_for();
        assert_eq!(good_for(Duration::ZERO), GOOD_FOR);
        assert_eq!(good_for(Duration::from_secs(1)), Duration::from_secs(20));
        assert_eq!(good_for(Duration::from_secs(600)), LONGEST_GOOD_FOR);
        assert_eq!(good_for(Duration::MAX), LONGEST_GOOD_FOR);
    }

    #[test]
    fn the_end_tells_the_sample_that_is_being_taken_and_waits_for_it() {
        let sampler = Sampler::start_with(|is_over| {
            while !is_over() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(sample())
        });
        let sampler = sampler.unwrap();
        assert!(sampler.latest(Duration::ZERO).is_none());
        let is_sampling = || sampler.state.lock().sampling_since.is_some();
        eventually("it samples", LONG, is_sampling);
        sampler.end();
        eventually("it has ended", LONG, || !is_sampling());
    }
}
