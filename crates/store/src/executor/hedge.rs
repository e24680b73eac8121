//! The delay after which a read of what other stores have as well goes on without a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest delay: longer than a busy disk takes for a read, and shorter than anyone notices.
const SHORTEST: Duration = Duration::from_millis(150);

/// The part of its excess over [`SHORTEST`] by which the delay shrinks with each batch that answers in time.
const RELAXATION: u64 = 256;

/// The time for which dispensable stores are waited for: longer than they take when nothing is wrong with them. If
/// they take long, over a network for example, late answers make it longer.
#[derive(Debug)]
pub(super) struct HedgeDelay {
    micros: AtomicU64,
    shortest: u64,
    longest: u64,
}

impl HedgeDelay {
    pub(super) fn new(timeout: Duration) -> Self {
        let longest = micros(timeout / 4);
        let shortest = micros(SHORTEST).min(longest);
        Self {
            micros: AtomicU64::new(shortest),
            shortest,
            longest,
        }
    }

    /// Returns the delay as it is now.
    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// Notes that an answer came this much later than it was waited for.
    pub(super) fn note_late(&self, late: Duration) {
        let took = self
            .micros
            .load(Ordering::Relaxed)
            .saturating_add(micros(late));
        let enough = took.saturating_mul(2).min(self.longest);
        self.micros.fetch_max(enough, Ordering::Relaxed);
    }

    /// Notes that all of a batch answered in time.
    pub(super) fn note_timely(&self) {
        let now = self.micros.load(Ordering::Relaxed);
        if now > self.shortest {
            let less = (now - self.shortest).div_ceil(RELAXATION);
            self.micros.store(now - less, Ordering::Relaxed);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_late_answers_and_shrinks_with_those_in_time() {
        let delay = HedgeDelay::new(Duration::from_secs(10));
        assert_eq!(delay.get(), SHORTEST);
        delay.note_timely();
        assert_eq!(delay.get(), SHORTEST);
        // Stores that take 300 ms.
        delay.note_late(Duration::from_millis(150));
        assert_eq!(delay.get(), Duration::from_millis(600));
        delay.note_timely();
        let after = delay.get();
        assert!(after < Duration::from_millis(600) && after > Duration::from_millis(590));
        for _ in 0..10_000 {
            delay.note_timely();
        }
        assert_eq!(delay.get(), SHORTEST);
        delay.note_late(Duration::from_secs(100_000));
        assert_eq!(
            delay.get(),
            Duration::from_millis(2500),
            "a quarter of the timeout"
        );
    }
}
