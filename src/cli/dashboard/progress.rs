//! The rate of background work, and when it may be done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time over which a rate is measured.
const WINDOW: Duration = Duration::from_secs(30);

/// The shortest time over which a rate is shown.
const SHORTEST: Duration = Duration::from_secs(2);

/// The most samples that are remembered.
const MOST: usize = 64;

/// The progress of one work over the last seconds, in any unit that grows.
#[derive(Debug, Default)]
pub(super) struct Progress(VecDeque<(Instant, f64)>);

impl Progress {
    /// Notes how much is done. Work that began again has less done than before.
    pub(super) fn note(&mut self, now: Instant, done: f64) {
        if self.0.back().is_some_and(|(_, before)| done < *before) {
            self.0.clear();
        }
        self.0.push_back((now, done));
        let is_old = |(at, _): &(Instant, f64)| now.saturating_duration_since(*at) > WINDOW;
        while self.0.len() > MOST || self.0.len() > 2 && self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// Forgets all: the work is over.
    pub(super) fn end(&mut self) {
        self.0.clear();
    }

    /// Returns how much is done in a second, if that is known.
    pub(super) fn per_second(&self) -> Option<f64> {
        let (first, before) = self.0.front()?;
        let (last, after) = self.0.back()?;
        let time = last.saturating_duration_since(*first);
        (time >= SHORTEST).then(|| (after - before) / time.as_secs_f64())
    }

    /// Returns the seconds until so much more is done, if that is known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is within limits"
    )]
    pub(super) fn seconds_for(&self, left: f64) -> Option<u64> {
        let rate = self.per_second().filter(|rate| *rate > 0.0)?;
        let seconds = left / rate;
        (0.0..1e9).contains(&seconds).then(|| seconds.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_half_minute_and_an_estimate_follows_from_it() {
        let start = Instant::now();
        let mut progress = Progress::default();
        progress.note(start, 0.0);
        assert_eq!(progress.per_second(), None, "one sample tells no rate");
        for second in 1..=120_u32 {
            // Slow for a minute, and fast after it.
            let done = if second <= 60 {
                second
            } else {
                60 + 10 * (second - 60)
            };
            progress.note(start + Duration::from_secs(second.into()), done.into());
        }
        let rate = progress.per_second().unwrap();
        assert!((rate - 10.0).abs() < 1e-9, "{rate}");
        assert_eq!(progress.seconds_for(95.0), Some(10));
        progress.note(start + Duration::from_secs(121), 0.0);
        assert_eq!(progress.per_second(), None, "the work began again");
    }

    #[test]
    fn work_that_stands_still_has_no_estimate() {
        let start = Instant::now();
        let mut progress = Progress::default();
        for second in 0..10 {
            progress.note(start + Duration::from_secs(second), 5.0);
        }
        assert_eq!(progress.seconds_for(1.0), None);
        assert_eq!(Progress::default().seconds_for(1.0), None);
    }
}
