//! Pace of background work: at most the ordered rate, and a third of its speed while callers use the volume.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::transaction::foreground::Foreground;

/// Longest rest without a look at the limit.
const MAX_REST: Duration = Duration::from_millis(250);

/// Number of steps in which the bytes of a second are handled if they are limited.
const STEPS_PER_SECOND: u64 = 4;

/// Ratio of rest to work while callers use the volume. They get less than their part of the disks while the work goes
/// on, because its requests are long and in order. A rest as long as the work would leave them less than half of their
/// speed.
const REST_FOR_CALLERS: u32 = 2;

/// Limit of the speed of background work, and the way to wait.
pub struct Pace<'a> {
    /// Bytes that may be written in a second; 0 if that is not limited. The work reads it before and after each step,
    /// and several times a second while it rests.
    pub bytes_per_second: &'a AtomicU64,
    /// Waits; returns whether to go on.
    pub wait: &'a dyn Fn(Duration) -> bool,
}

impl Pace<'_> {
    /// Returns how many bytes may be written in one step, with a rest afterwards.
    pub(super) fn step_bytes(&self) -> u64 {
        step_bytes(limit(self.bytes_per_second)).unwrap_or(u64::MAX)
    }

    /// Rests after a step: so long that the limit is kept, and [`REST_FOR_CALLERS`] times as long as the step took if
    /// callers used the volume meanwhile. Returns whether to go on.
    fn rest(&self, bytes: u64, took: Duration, in_use: bool) -> bool {
        let mut rested = Duration::ZERO;
        loop {
            let whole = pause(limit(self.bytes_per_second), bytes, took, in_use);
            let next = whole.saturating_sub(rested).min(MAX_REST);
            if !(self.wait)(next) {
                return false;
            }
            rested += next;
            if rested >= whole {
                return true;
            }
        }
    }
}

/// A bounded step of background work that is under way.
pub(super) struct PacedStep<'f> {
    foreground: &'f Foreground,
    /// The number of foreground uses when it began.
    before: u64,
    began: Instant,
}

impl<'f> PacedStep<'f> {
    /// Begins a step beside the callers that `foreground` counts.
    pub(super) fn begin(foreground: &'f Foreground) -> Self {
        Self {
            foreground,
            before: foreground.count(),
            began: Instant::now(),
        }
    }

    /// Returns whether callers used the volume since the step began.
    pub(super) fn is_beside_callers(&self) -> bool {
        self.foreground.count() > self.before
    }

    /// Rests after the step, which handled so many bytes; see [`Pace::rest`].
    pub(super) fn rest(&self, pace: &Pace<'_>, bytes: u64) -> bool {
        pace.rest(bytes, self.began.elapsed(), self.is_beside_callers())
    }
}

fn limit(bytes_per_second: &AtomicU64) -> Option<u64> {
    match bytes_per_second.load(Ordering::Relaxed) {
        0 => None,
        limit => Some(limit),
    }
}

/// Returns how many bytes to handle in one step if they are limited. Short steps spread the load over each second.
pub(super) fn step_bytes(bytes_per_second: Option<u64>) -> Option<u64> {
    bytes_per_second.map(|rate| rate / STEPS_PER_SECOND)
}

/// Returns how long to rest after a step.
pub(super) fn pause(
    bytes_per_second: Option<u64>,
    bytes: u64,
    took: Duration,
    in_use: bool,
) -> Duration {
    let least = match bytes_per_second {
        Some(rate) => {
            let microseconds = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
            Duration::from_micros(u64::try_from(microseconds).unwrap_or(u64::MAX))
        }
        None => Duration::ZERO,
    };
    let for_callers = if in_use {
        took * REST_FOR_CALLERS
    } else {
        Duration::ZERO
    };
    least.saturating_sub(took).max(for_callers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(100);

    #[test]
    fn a_limit_that_is_raised_ends_a_rest_that_was_meant_to_be_long() {
        let limit = AtomicU64::new(1000);
        let rested = std::cell::Cell::new(Duration::ZERO);
        let wait = |time| {
            rested.set(rested.get() + time);
            if rested.get() >= Duration::from_secs(10) {
                limit.store(1_000_000, Ordering::Relaxed);
            }
            true
        };
        let pace = Pace {
            bytes_per_second: &limit,
            wait: &wait,
        };
        assert!(pace.rest(1_000_000, Duration::ZERO, false));
        assert_eq!(rested.get(), Duration::from_secs(10));
        limit.store(100_000, Ordering::Relaxed);
        rested.set(Duration::ZERO);
        assert!(pace.rest(100_000, Duration::ZERO, false));
        assert_eq!(rested.get(), Duration::from_secs(1));
        assert!(pace.rest(1, Duration::from_secs(1), false));
        assert_eq!(rested.get(), Duration::from_secs(1));
    }

    #[test]
    fn the_limit_is_kept_and_callers_get_more_time() {
        let millis = Duration::from_millis;
        assert_eq!(pause(None, 1 << 20, TOOK, false), Duration::ZERO);
        assert_eq!(pause(None, 1 << 20, TOOK, true), 2 * TOOK);
        assert_eq!(pause(Some(1_000_000), 500_000, TOOK, false), millis(400));
        assert_eq!(pause(Some(1_000_000), 500_000, TOOK, true), millis(400));
        assert_eq!(pause(Some(1_000_000), 50_000, TOOK, false), Duration::ZERO);
        assert_eq!(pause(Some(1_000_000), 50_000, TOOK, true), 2 * TOOK);
        assert!(pause(Some(1), u64::MAX, TOOK, false) > millis(u64::from(u32::MAX)));
    }
}
