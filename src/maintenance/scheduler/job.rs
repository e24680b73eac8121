//! Background job: a bounded step of work that a thread repeats.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::stop::StopSignal;
use crate::transaction::{CommitError, Commits};

/// Bounded step of work.
type Step = Box<dyn Fn() -> Result<(), CommitError> + Send>;

/// Background job of a volume.
pub(super) struct BackgroundJob {
    name: &'static str,
    interval: Duration,
    /// Returns whether the next step must not wait for the interval.
    is_urgent: Box<dyn Fn() -> bool + Send>,
    can_pause: bool,
    step: Step,
}

impl BackgroundJob {
    /// Returns a job that does a step after every interval.
    pub(super) fn new(
        name: &'static str,
        interval: Duration,
        step: impl Fn() -> Result<(), CommitError> + Send + 'static,
    ) -> Self {
        Self {
            name,
            interval,
            is_urgent: Box::new(|| false),
            can_pause: false,
            step: Box::new(step),
        }
    }

    /// Ends the wait for the next step once `is_urgent` holds. The thread that makes it hold wakes the waiting threads.
    pub(super) fn or_once(self, is_urgent: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            is_urgent: Box::new(is_urgent),
            ..self
        }
    }

    /// Does no step while background work is to pause.
    pub(super) fn pausing(self) -> Self {
        Self {
            can_pause: true,
            ..self
        }
    }

    /// Returns the name of the job and of its thread.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Repeats the step until `stop` is set. Logs a failure once, until another failure comes or a step succeeds. If a
    /// step panics, the volume is read-only from then on. Each line that the thread logs names the job.
    pub(super) fn repeat(&self, commits: &Commits, stop: &StopSignal) {
        let _in_job = tracing::error_span!("background", job = self.name).entered();
        let mut logged = String::new();
        let waits = || !self.can_pause || stop.wait_out_pause();
        while stop.sleep_until(self.interval, &self.is_urgent) && waits() {
            let done = catch_unwind(AssertUnwindSafe(|| commits.guarded(|| (self.step)())));
            let failure = match done {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
            if failure != logged && !failure.is_empty() {
                tracing::warn!("{failure}");
            }
            logged = failure;
        }
    }
}
