//! Watching for a request for a short time, instead of sleeping at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time to watch. A halted CPU of a slow virtual machine takes as long to wake.
const WATCH: Duration = Duration::from_micros(50);

/// The time between two looks after which another thread, or another machine of the host, must have had the CPU.
const GAP: Duration = Duration::from_micros(20);

/// The looks after which other threads get the CPU.
const LOOKS: u32 = 8;

/// The watches in vain after which some requests are not watched for.
const PATIENCE: u32 = 3;

/// The most watches in vain that count: then 64 requests follow without a watch.
const MOST_VAIN: u32 = 6;

/// The time saved by a watch that finds a request.
const GAIN: Duration = Duration::from_micros(20);

/// The longest part of a gap that counts. The host of a virtual machine may take the CPU for long at times.
const LONGEST_GAP: Duration = Duration::from_millis(1);

/// The time lost in gaps, beyond the time saved, that shows a machine without idle CPUs.
const MOST_LOST: Duration = Duration::from_millis(4);

/// Decides whether to watch, by what earlier watches found.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// The last watches without a request.
    vain: u32,
    /// The number of times that are left not to watch.
    skipped: u32,
}

/// The result of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// A request came.
    Found,
    /// No request came in time.
    Nothing,
    /// The thread was without the CPU for so long. A request may have waited for that.
    Gap(Duration),
}

impl Watching {
    /// Returns whether to watch this time: not if that was in vain lately.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_due
    }

    /// Looks until `is_there`, and for no longer than [`WATCH`].
    pub(super) fn watch(&mut self, is_there: impl FnMut() -> bool) -> Sight {
        let began = Instant::now();
        let sight = look(is_there, || began.elapsed());
        self.note(sight);
        sight
    }

    fn note(&mut self, sight: Sight) {
        match sight {
            Sight::Found => self.vain = 0,
            Sight::Nothing => {
                self.vain = (self.vain + 1).min(MOST_VAIN);
                if self.vain >= PATIENCE {
                    self.skipped = 1 << self.vain;
                }
            }
            Sight::Gap(_) => {}
        }
    }
}

/// The time lost in gaps that nothing has made up for, in nanoseconds. One thread at a time watches, and so writes to it.
#[derive(Debug, Default)]
pub(super) struct Losses(AtomicU64);

impl Losses {
    /// Notes what a watch saw. Returns false once gaps, each counted up to [`LONGEST_GAP`], cost [`MOST_LOST`] more than
    /// watches saved. Counting then starts from zero.
    ///
    /// The program whose requests are watched for may have the CPU itself. Such gaps are short. Those of programs that
    /// compute last for milliseconds.
    pub(super) fn note(&self, sight: Sight) -> bool {
        let before = Duration::from_nanos(self.0.load(Ordering::Relaxed));
        let lost = match sight {
            Sight::Found => before.saturating_sub(GAIN),
            Sight::Nothing => before,
            Sight::Gap(gap) => before + gap.min(LONGEST_GAP),
        };
        let is_idle = lost < MOST_LOST;
        let left = if is_idle { lost } else { Duration::ZERO };
        if left != before {
            let left = u64::try_from(left.as_nanos()).expect("less than the most");
            self.0.store(left, Ordering::Relaxed);
        }
        is_idle
    }
}

/// Looks until `is_there`, or until so much time went by.
fn look(mut is_there: impl FnMut() -> bool, elapsed: impl Fn() -> Duration) -> Sight {
    let mut looks = 0;
    let mut last = Duration::ZERO;
    loop {
        let is_found = is_there();
        let now = elapsed();
        let gap = now.saturating_sub(last);
        if gap >= GAP {
            return Sight::Gap(gap);
        }
        if is_found {
            return Sight::Found;
        }
        if now >= WATCH {
            return Sight::Nothing;
        }
        looks += 1;
        last = now;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns how many of so many requests are watched for.
    fn watched(watching: &mut Watching, requests: u32, sight: Sight) -> u32 {
        let mut watched = 0;
        for _ in 0..requests {
            if watching.is_due() {
                watching.note(sight);
                watched += 1;
            }
        }
        watched
    }

    #[test]
    fn requests_that_come_soon_are_always_watched_for_and_others_rarely() {
        let mut watching = Watching::default();
        assert_eq!(watched(&mut watching, 1000, Sight::Found), 1000);
        assert_eq!(watched(&mut watching, 3, Sight::Nothing), 3);
        assert!(watched(&mut watching, 1000, Sight::Nothing) < 20);
        // A watch that finds one makes up for all in vain.
        assert!(watched(&mut watching, 65, Sight::Found) >= 1);
        assert_eq!(watched(&mut watching, 1000, Sight::Found), 1000);
        assert_eq!(watched(&mut watching, 3, Sight::Nothing), 3);
    }

    #[test]
    fn gaps_tell_of_a_busy_machine_unless_watches_save_as_much_time() {
        let losses = Losses::default();
        let is_idle_after = |found: u32, gap: Duration| {
            let found = (0..found).all(|_| losses.note(Sight::Found));
            found && losses.note(Sight::Gap(gap))
        };
        assert_eq!(LONGEST_GAP * 4, MOST_LOST);
        for gap in [LONGEST_GAP, 10 * LONGEST_GAP] {
            assert!((0..3).all(|_| is_idle_after(0, gap)));
            assert!(losses.note(Sight::Nothing));
            assert!(!is_idle_after(0, gap), "it was told, and starts from zero");
        }
        assert!((0..1000).all(|_| is_idle_after(5, 5 * GAIN)));
        // Each gap costs twice as much as is saved.
        assert!((0..1000).any(|_| !is_idle_after(5, 10 * GAIN)));
    }

    #[test]
    fn a_look_ends_with_a_request_in_time_and_else_with_the_time() {
        let now = Cell::new(Duration::ZERO);
        let look_until = |found_at: Duration, step: Duration| {
            now.set(Duration::ZERO);
            look(
                || {
                    now.set(now.get() + step);
                    now.get() >= found_at
                },
                || now.get(),
            )
        };
        let step = Duration::from_micros(1);
        assert_eq!(look_until(3 * step, step), Sight::Found);
        assert_eq!(now.get(), 3 * step);
        assert_eq!(look_until(Duration::MAX, step), Sight::Nothing);
        assert_eq!(now.get(), WATCH);
        assert_eq!(look_until(Duration::ZERO, GAP), Sight::Gap(GAP));
    }
}
