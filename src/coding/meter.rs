//! The number of bytes that were coded, and the speed of coding.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The bytes that one side has coded since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Coded {
    /// Stripes, or parts of some.
    pub passes: u64,
    /// Bytes that were gone over to code them: the sources.
    pub bytes: u64,
    /// The time in which at least one pass was under way.
    pub busy: Duration,
}

impl Coded {
    /// Returns the bytes coded in a second of being busy; 0 if there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn bytes_per_second(&self) -> f64 {
        if self.busy.is_zero() {
            0.0
        } else {
            self.bytes as f64 / self.busy.as_secs_f64()
        }
    }
}

/// Counts [`Coded`].
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<MeterState>);

#[derive(Debug, Default)]
struct MeterState {
    coded: Coded,
    under_way: usize,
    busy_since: Option<Instant>,
    /// The longest time that [`Meter::busy`] returned.
    shown: Duration,
}

impl Meter {
    /// A pass begins.
    pub(super) fn begin(&self, now: Instant) {
        let mut state = self.0.lock();
        state.under_way += 1;
        state.busy_since.get_or_insert(now);
    }

    /// A pass ends; `bytes` were gone over, none if it failed.
    pub(super) fn end(&self, now: Instant, bytes: Option<usize>) {
        let mut state = self.0.lock();
        if let Some(bytes) = bytes {
            state.coded.passes += 1;
            state.coded.bytes += bytes as u64;
        }
        state.under_way -= 1;
        if state.under_way == 0 {
            let since = state.busy_since.take();
            let span = since.map_or(Duration::ZERO, |it| now.saturating_duration_since(it));
            state.coded.busy += span;
        }
    }

    /// Returns the time in which at least one pass was under way, up to now. It never falls, as a counter must not.
    pub(super) fn busy(&self, now: Instant) -> Duration {
        let mut state = self.0.lock();
        let since = state.busy_since;
        let under_way = since.map_or(Duration::ZERO, |it| now.saturating_duration_since(it));
        state.shown = state.shown.max(state.coded.busy + under_way);
        state.shown
    }

    /// Returns what was coded, passes that are under way left out.
    pub(super) fn coded(&self) -> Coded {
        self.0.lock().coded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_passes_overlap_counts_once() {
        let meter = Meter::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        meter.begin(at(0));
        meter.begin(at(1));
        meter.end(at(2), Some(3000));
        meter.end(at(3), Some(1000));
        meter.begin(at(10));
        meter.end(at(11), None);
        let coded = meter.coded();
        assert_eq!((coded.passes, coded.bytes), (2, 4000));
        assert_eq!(coded.busy, Duration::from_secs(4));
        assert!((coded.bytes_per_second() - 1000.0).abs() < 1e-9);
        assert!(Coded::default().bytes_per_second().abs() < 1e-9);
    }

    #[test]
    fn the_time_of_passes_under_way_grows_and_never_falls() {
        let meter = Meter::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let busy = |seconds| meter.busy(at(seconds)).as_secs();
        assert_eq!(busy(0), 0);
        meter.begin(at(1));
        meter.begin(at(2));
        assert_eq!([busy(3), busy(5)], [2, 4], "no pass has ended yet");
        meter.end(at(6), Some(1));
        assert_eq!(busy(7), 6);
        // The pass ended just before it was asked for, and its end is noted only now.
        meter.end(at(6), Some(1));
        assert_eq!(meter.coded().busy, Duration::from_secs(5));
        assert_eq!([busy(7), busy(9)], [6, 6]);
        meter.begin(at(10));
        assert_eq!(busy(12), 7);
    }
}
