//! The delay after which a read of what other stores have as well goes on without a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::watch::Leniency;
use super::{Backend, Executor, Outcome, Request};
use crate::{Store, StoreError, StoreErrorKind, StoreRef};

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

    fn get(&self) -> Duration {
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
    fn note_timely(&self) {
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

impl Executor {
    /// Runs all requests, and waits for the hedge delay: those that have not answered then come to
    /// [`Slow`](crate::StoreErrorKind::Slow), and their stores are [slow](Executor::is_slow) until
    /// they have answered. They are to change nothing, since they may take effect later.
    #[must_use]
    pub fn run_hedged(&self, requests: Vec<Request>, spare: usize) -> Vec<Outcome> {
        let deadline = Instant::now() + self.hedge_delay.get();
        let outcomes = self.run_until(requests, spare, Some(deadline));
        let is_slow = |outcome: &Outcome| {
            let error = outcome.as_ref().err();
            error.is_some_and(|error| error.kind() == StoreErrorKind::Slow)
        };
        if !outcomes.iter().any(is_slow) {
            self.hedge_delay.note_timely();
        }
        outcomes
    }

    /// Runs any work like [`Executor::call`], and waits for the hedge delay.
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`Slow`](crate::StoreErrorKind::Slow).
    pub fn call_hedged<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.backend {
            Backend::Inline => work(&**store),
            Backend::Threads(pools) | Backend::Uring { pools, .. } => {
                pools.call_hedged(store, action, self.hedge_delay.get(), work)
            }
        }
    }

    /// Says whether an operation without a waiting caller has not answered yet.
    #[must_use]
    pub fn is_slow(&self, store: &StoreRef) -> bool {
        self.has_slow() && self.left_since(store).is_some()
    }

    /// Returns, for each store, the error with which it must be given up because it has been slow for too
    /// long. If that were more than `spare`, they are tolerated as in [`Executor::run_sparing`].
    #[must_use]
    pub fn overdue(&self, stores: &[StoreRef], spare: usize) -> Vec<Option<StoreError>> {
        let leniency = Leniency {
            timeout: self.timeout,
            spare,
            deadline: None,
        };
        let silence = |store| self.left_since(store).map(|since| since.elapsed());
        let silent: Vec<_> = stores.iter().map(silence).collect();
        let is_over = |limit: Duration| {
            move |silence: &Option<Duration>| silence.is_some_and(|silence| silence >= limit)
        };
        let limit = if silent.iter().filter(|s| is_over(self.timeout)(s)).count() > spare {
            leniency.stall_limit()
        } else {
            self.timeout
        };
        let hung = |store: &StoreRef| StoreError::hung(store.label(), "read", "directory", limit);
        let judged = stores.iter().zip(&silent);
        judged
            .map(|(store, silence)| is_over(limit)(silence).then(|| hung(store)))
            .collect()
    }

    /// Says whether any store may be slow, at the cost of a look at a number or two.
    #[must_use]
    pub fn has_slow(&self) -> bool {
        match &self.backend {
            Backend::Inline => false,
            Backend::Threads(pools) => pools.has_left(),
            Backend::Uring { rings, pools } => rings.has_left() || pools.has_left(),
        }
    }

    fn left_since(&self, store: &StoreRef) -> Option<Instant> {
        match &self.backend {
            Backend::Inline => None,
            Backend::Threads(pools) => pools.left_since(store),
            Backend::Uring { rings, pools } => {
                let both = rings.left_since(store).into_iter();
                both.chain(pools.left_since(store)).min()
            }
        }
    }
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
