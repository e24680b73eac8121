//! Watching for a request for a short time, instead of sleeping at once.

use std::time::{Duration, Instant};

/// The longest time to watch. A halted CPU of a slow virtual machine takes as long to wake.
const WATCH: Duration = Duration::from_micros(50);

/// The time between two looks after which another thread must have had the CPU.
const GAP: Duration = Duration::from_micros(20);

/// The looks after which other threads get the CPU.
const LOOKS: u32 = 8;

/// The watches in vain after which some requests are not watched for.
const PATIENCE: u32 = 3;

/// The most watches in vain that count: then 64 requests follow without a watch.
const MOST_VAIN: u32 = 6;

/// The watches with a gap that show a machine without idle CPUs. The host of a virtual machine may take the CPU as well,
/// but not so often.
const MOST_GAPS: u32 = 8;

/// The length of a gap that counts as half of [`MOST_GAPS`]. It costs more than many wakes.
const LONG_GAP: Duration = Duration::from_millis(1);

/// The watches that find a request and make up for one with a gap.
const FORGIVES: u32 = 10;

/// Decides whether to watch, by what earlier watches found.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// The last watches without a request.
    vain: u32,
    /// The number of times that are left not to watch.
    skipped: u32,
    /// The watches with a gap that nothing has made up for.
    gaps: u32,
    /// The watches that found a request, modulo [`FORGIVES`].
    found: u32,
}

/// The result of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// A request came.
    Found,
    /// No request came in time.
    Nothing,
    /// Another thread had the CPU for so long. A request may have waited for that.
    Gap(Duration),
}

impl Watching {
    /// Returns whether to watch this time: not if that was in vain lately.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_due
    }

    /// Looks until `is_there`, and for no longer than [`WATCH`]. Returns false if other threads need the CPU.
    pub(super) fn watch(&mut self, is_there: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        self.note(look(is_there, || began.elapsed()))
    }

    /// Notes what a watch saw. Returns false if too many had a gap.
    fn note(&mut self, sight: Sight) -> bool {
        match sight {
            Sight::Found => {
                self.vain = 0;
                self.found = (self.found + 1) % FORGIVES;
                if self.found == 0 {
                    self.gaps = self.gaps.saturating_sub(1);
                }
            }
            Sight::Nothing => {
                self.vain = (self.vain + 1).min(MOST_VAIN);
                if self.vain >= PATIENCE {
                    self.skipped = 1 << self.vain;
                }
            }
            Sight::Gap(gap) if gap >= LONG_GAP => self.gaps += MOST_GAPS / 2,
            Sight::Gap(_) => self.gaps += 1,
        }
        let is_idle = self.gaps < MOST_GAPS;
        if !is_idle {
            self.gaps = 0;
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
                assert!(watching.note(sight));
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
    fn gaps_tell_of_a_busy_machine_unless_many_watches_find_requests() {
        let mut watching = Watching::default();
        let (short, long) = (Sight::Gap(GAP), Sight::Gap(LONG_GAP));
        let few = MOST_GAPS - 1;
        assert_eq!(watched(&mut watching, few, short), few);
        assert!(!watching.note(short));
        for _ in 0..100 {
            assert!(watching.note(short), "it was told, and begins anew");
            assert_eq!(watched(&mut watching, FORGIVES, Sight::Found), FORGIVES);
        }
        assert!(watching.note(long) && !watching.note(long));
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
