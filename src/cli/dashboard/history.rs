//! The throughput of a volume in the last hour, in steps.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// The time of one step.
pub(super) const STEP: Duration = Duration::from_secs(10);

/// The steps of an hour.
const STEPS: usize = 360;

/// The time over which the throughput of this moment is measured.
const MOMENT: Duration = Duration::from_secs(5);

/// Bytes that were read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Bytes {
    /// Returns what was added since. None if a counter fell: it began again, with another daemon.
    fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            read: self.read.checked_sub(before.read)?,
            written: self.written.checked_sub(before.written)?,
        })
    }

    fn plus(self, more: Self) -> Self {
        Self {
            read: self.read.saturating_add(more.read),
            written: self.written.saturating_add(more.written),
        }
    }

    /// Returns the bytes of a second, if these are of so long.
    pub(super) fn per_second(self, time: Duration) -> Self {
        let share = |bytes: u64| {
            let millis = time.as_millis().max(1);
            u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX)
        };
        Self {
            read: share(self.read),
            written: share(self.written),
        }
    }
}

/// The throughput of a volume. It takes the same memory for ever.
#[derive(Debug)]
pub(super) struct History {
    origin: Instant,
    began: SystemTime,
    /// The number of the step that `steps` ends with.
    last_step: u64,
    /// None where nothing was measured.
    steps: VecDeque<Option<Bytes>>,
    latest: VecDeque<(Instant, Bytes)>,
}

impl History {
    pub(super) fn new(now: Instant, began: SystemTime) -> Self {
        Self {
            origin: now,
            began,
            last_step: 0,
            steps: VecDeque::from([None]),
            latest: VecDeque::new(),
        }
    }

    /// Returns the time of the first measurement that is remembered.
    pub(super) fn since(&self) -> SystemTime {
        let forgotten = (self.last_step + 1).saturating_sub(self.steps.len() as u64);
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        self.began + STEP.saturating_mul(forgotten)
    }

    /// Notes the counters at a moment.
    pub(super) fn note(&mut self, now: Instant, counters: Bytes) {
        self.go_to(now);
        let before = self.latest.back().copied();
        if let Some((at, before)) = before
            && let Some(added) = counters.since(before)
            && now.saturating_duration_since(at) < STEP
        {
            if let Some(step) = self.steps.back_mut() {
                *step = Some(step.unwrap_or_default().plus(added));
            }
        } else {
            self.latest.clear();
        }
        self.latest.push_back((now, counters));
        while self
            .latest
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) > MOMENT)
            && self.latest.len() > 2
        {
            self.latest.pop_front();
        }
    }

    /// Begins the steps until now.
    fn go_to(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.origin);
        let step = elapsed.as_secs() / STEP.as_secs();
        let missing = step.saturating_sub(self.last_step);
        for _ in 0..missing.min(STEPS as u64) {
            self.steps.push_back(None);
        }
        while self.steps.len() > STEPS {
            self.steps.pop_front();
        }
        self.last_step = self.last_step.max(step);
    }

    /// Returns the throughput of each step but the one that goes on, the oldest first.
    pub(super) fn steps(&mut self, now: Instant) -> Vec<Option<Bytes>> {
        self.go_to(now);
        let complete = self.steps.len() - 1;
        let steps = self.steps.iter().take(complete);
        steps
            .map(|step| step.map(|bytes| bytes.per_second(STEP)))
            .collect()
    }

    /// Returns the throughput of this moment, if it is known.
    pub(super) fn now(&self, now: Instant) -> Option<Bytes> {
        let (first, before) = *self.latest.front()?;
        let (last, after) = *self.latest.back()?;
        let time = last.saturating_duration_since(first);
        if time.is_zero() || now.saturating_duration_since(last) > MOMENT {
            return None;
        }
        Some(after.since(before)?.per_second(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(read: u64, written: u64) -> Bytes {
        Bytes { read, written }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_step_has_what_was_added_in_it_by_the_second() {
        let origin = Instant::now();
        let mut history = History::new(origin, SystemTime::UNIX_EPOCH);
        for second in 0..25 {
            history.note(origin + seconds(second), bytes(1000 * second, 0));
        }
        let now = origin + seconds(25);
        let steps = history.steps(now);
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1], Some(bytes(1000, 0)));
        assert_eq!(history.now(now), Some(bytes(1000, 0)));
        assert_eq!(history.now(now + seconds(10)), None, "it is long ago");
    }

    #[test]
    fn a_daemon_that_began_again_and_one_that_was_silent_add_nothing_that_was_not_seen() {
        let origin = Instant::now();
        let mut history = History::new(origin, SystemTime::UNIX_EPOCH);
        history.note(origin, bytes(1 << 40, 1 << 40));
        history.note(origin + seconds(1), bytes(0, 0));
        history.note(origin + seconds(2), bytes(500, 0));
        history.note(origin + seconds(40), bytes(1 << 50, 0));
        history.note(origin + seconds(41), bytes((1 << 50) + 70, 0));
        let steps = history.steps(origin + seconds(51));
        let shown = [Some(bytes(50, 0)), None, None, None, Some(bytes(7, 0))];
        assert_eq!(steps, shown);
    }

    #[test]
    fn an_hour_is_remembered_and_no_more() {
        let origin = Instant::now();
        let mut history = History::new(origin, SystemTime::UNIX_EPOCH);
        for second in 0..2 * 3600 {
            history.note(origin + seconds(second), bytes(second, second));
        }
        let now = origin + seconds(2 * 3600);
        assert_eq!(history.steps(now).len(), STEPS - 1);
        assert!(history.latest.len() < 10);
        let since = history.since().duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(since.unwrap(), seconds(2 * 3600 + 10 - 3600));
        history.note(now + seconds(1 << 40), bytes(0, 0));
        assert!(
            history
                .steps(now + seconds(1 << 40))
                .iter()
                .all(Option::is_none)
        );
    }
}
