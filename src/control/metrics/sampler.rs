//! The state of a volume for metrics, asked for on a thread of its own.
//!
//! To ask for space waits for members, and to count the redundancy may take long. So a sample serves all scrapes of some
//! seconds, and of longer if it took long itself. Nothing is sampled unless there are scrapes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::control::listener::{Survey, status_of};
use crate::control::mounted::MountedVolume;
use crate::control::report::{LostFiles, StatusReport};
use crate::transaction::CommitCounts;

/// The time that a scrape waits for a new sample.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The time for which a sample serves scrapes.
const GOOD_FOR: Duration = Duration::from_secs(5);

/// A sample serves at least so many times the time that it took.
const LEAST_SHARE: u32 = 20;

/// The state of a volume at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    /// The report, without the names of lost files.
    pub(super) report: StatusReport,
    /// The number of lost files; none if they cannot be listed.
    pub(super) lost_files: Option<u64>,
    /// None if the volume is not open.
    pub(super) commits: Option<CommitCounts>,
    pub(super) taken_at: SystemTime,
    /// The time that it took.
    pub(super) took: Duration,
    taken: Instant,
}

impl Sample {
    fn of(volume: &MountedVolume, survey: &Survey) -> Option<Self> {
        let began = Instant::now();
        let open = volume.now();
        let commits = open.as_ref().map(|it| it.fs.transactions().commit_counts());
        let mut report = status_of(open.as_ref(), survey)?;
        drop(open);
        report.paused = volume.is_paused();
        Some(Self::from_report(report, commits, began))
    }

    /// Makes a sample of a report.
    pub(super) fn from_report(
        mut report: StatusReport,
        commits: Option<CommitCounts>,
        began: Instant,
    ) -> Self {
        let lost = std::mem::replace(&mut report.lost, LostFiles::uncounted());
        Self {
            lost_files: lost.paths.map(|paths| paths.len() as u64),
            report,
            commits,
            taken_at: SystemTime::now(),
            took: began.elapsed(),
            taken: Instant::now(),
        }
    }

    fn is_fresh(&self) -> bool {
        self.taken.elapsed() < GOOD_FOR.max(self.took * LEAST_SHARE)
    }
}

#[derive(Default)]
struct State {
    latest: Option<Arc<Sample>>,
    /// Samples that were tried, successful or not.
    tried: u64,
    is_wanted: bool,
    has_ended: bool,
}

/// The samples of a volume.
#[derive(Default)]
pub(super) struct Sampler {
    state: Mutex<State>,
    /// Wakes the thread that samples.
    wanted: Condvar,
    /// Wakes scrapes.
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
        Self::start_with(move || Sample::of(&volume, &survey))
    }

    fn start_with(take: impl Fn() -> Option<Sample> + Send + 'static) -> io::Result<Arc<Self>> {
        let sampler = Arc::new(Self::default());
        let sampling = Arc::clone(&sampler);
        std::thread::Builder::new()
            .name("metrics-sample".to_owned())
            .spawn(move || sampling.run(take))?;
        Ok(sampler)
    }

    fn run(&self, take: impl Fn() -> Option<Sample>) {
        loop {
            let mut state = self.state.lock();
            while !state.is_wanted && !state.has_ended {
                self.wanted.wait(&mut state);
            }
            if state.has_ended {
                return;
            }
            drop(state);
            let sample = take();
            let mut state = self.state.lock();
            state.is_wanted = false;
            state.tried += 1;
            if let Some(sample) = sample {
                state.latest = Some(Arc::new(sample));
            }
            drop(state);
            self.sampled.notify_all();
        }
    }

    /// Returns a sample, which is new if it can be had soon. None if there never was any.
    pub(super) fn latest(&self, patience: Duration) -> Option<Arc<Sample>> {
        let mut state = self.state.lock();
        if state.latest.as_ref().is_none_or(|it| !it.is_fresh()) && !state.has_ended {
            state.is_wanted = true;
            self.wanted.notify_one();
            let before = state.tried;
            let is_pending = |state: &mut State| state.tried == before && !state.has_ended;
            self.sampled
                .wait_while_for(&mut state, is_pending, patience);
        }
        state.latest.clone()
    }

    /// Ends the thread once it has its sample.
    pub(super) fn end(&self) {
        self.state.lock().has_ended = true;
        self.wanted.notify_all();
        self.sampled.notify_all();
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
        Sample::from_report(report(), None, Instant::now())
    }

    #[test]
    fn a_sample_that_takes_long_holds_no_scrape_and_the_one_before_serves_meanwhile() {
        let (give, taken) = channel::<Option<Sample>>();
        let sampler = Sampler::start_with(move || taken.recv().ok().flatten()).unwrap();
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
}
