//! Detection of stores that have been silent for too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::StoreRef;

/// The number of operations that may hang on one store before it gets no more.
pub const MAX_ABANDONED: usize = 8;

/// A number for a store that is the same for every handle on it, for as long as one lives.
pub(super) fn key(store: &StoreRef) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

/// The time for which stores may be silent, and the number of them that may be given up for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leniency {
    /// The time for which a store may be silent.
    pub(super) timeout: Duration,
    /// The number of stores that may be given up after that. If more are silent at once, it is rather the
    /// machine that stalls, and they are waited for [`STALL_FACTOR`] times as long.
    pub(super) spare: usize,
    /// The time at which the caller goes on without the stores that have not answered.
    pub(super) deadline: Option<Instant>,
}

/// The number of timeouts that a stall of more stores than can be spared may take.
const STALL_FACTOR: u32 = 12;

impl Leniency {
    /// Returns how long stores may be silent that cannot be spared.
    pub(super) fn stall_limit(self) -> Duration {
        self.timeout * STALL_FACTOR
    }
}

/// When each store of a batch last answered, and how much it still owes.
#[derive(Debug)]
pub(super) struct Watch {
    leniency: Leniency,
    given_up: usize,
    stores: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    key: usize,
    heard: Instant,
    owed: usize,
}

impl Watch {
    pub(super) fn new(leniency: Leniency) -> Self {
        Self {
            leniency,
            given_up: 0,
            stores: Vec::new(),
        }
    }

    /// Notes that an operation of the store begins.
    pub(super) fn begin(&mut self, key: usize) {
        let now = Instant::now();
        match self.find(key) {
            // The clock of a store runs only while it owes something.
            Some(store) if store.owed == 0 => (store.heard, store.owed) = (now, 1),
            Some(store) => store.owed += 1,
            None => self.stores.push(Watched {
                key,
                heard: now,
                owed: 1,
            }),
        }
    }

    /// Notes that an operation of the store answered at `when`.
    pub(super) fn answered(&mut self, key: usize, when: Instant) {
        if let Some(store) = self.find(key) {
            store.owed = store.owed.saturating_sub(1);
            store.heard = store.heard.max(when);
        }
    }

    /// Says whether the caller waits no longer.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.leniency
            .deadline
            .is_some_and(|deadline| deadline <= now)
    }

    /// Returns how long there is until the first store is overdue, or the caller stops waiting: `None` if
    /// nothing is owed.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(now);
        let silence = self.silence_left(now)?;
        Some(
            self.leniency
                .deadline
                .map_or(silence, |deadline| silence.min(left(deadline))),
        )
    }

    fn silence_left(&self, now: Instant) -> Option<Duration> {
        let limit = self.limit(now);
        let owing = self.stores.iter().filter(|store| store.owed > 0);
        let times = owing.map(|store| {
            let until = if store.is_silent(self.leniency.timeout, now) {
                limit
            } else {
                self.leniency.timeout
            };
            (store.heard + until).saturating_duration_since(now)
        });
        times.min()
    }

    /// Takes out the stores that are overdue: their operations are given up.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<usize> {
        let limit = self.limit(now);
        let (overdue, others): (Vec<_>, Vec<_>) = self
            .stores
            .drain(..)
            .partition(|store| store.is_silent(limit, now));
        self.stores = others;
        self.given_up += overdue.len();
        overdue.iter().map(|store| store.key).collect()
    }

    /// Returns how long silence is tolerated, depending on the number of silent stores.
    fn limit(&self, now: Instant) -> Duration {
        let timeout = self.leniency.timeout;
        let stores = self.stores.iter();
        let silent = stores.filter(|store| store.is_silent(timeout, now)).count();
        if self.given_up + silent > self.leniency.spare {
            self.leniency.stall_limit()
        } else {
            timeout
        }
    }

    fn find(&mut self, key: usize) -> Option<&mut Watched> {
        self.stores.iter_mut().find(|store| store.key == key)
    }
}

impl Watched {
    fn is_silent(&self, limit: Duration, now: Instant) -> bool {
        self.owed > 0 && self.heard + limit <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn watch(spare: usize) -> Watch {
        Watch::new(Leniency {
            timeout: TIMEOUT,
            spare,
            deadline: None,
        })
    }

    #[test]
    fn only_the_store_that_was_silent_for_the_timeout_is_overdue() {
        let mut watch = watch(2);
        let start = Instant::now();
        watch.begin(1);
        watch.begin(1);
        watch.begin(2);
        watch.answered(1, start + Duration::from_secs(4));
        let later = Instant::now() + TIMEOUT;
        assert_eq!(watch.overdue(later), [2]);
        assert!(
            watch
                .patience(later)
                .is_some_and(|patience| patience <= Duration::from_secs(4))
        );
        assert_eq!(watch.overdue(later + Duration::from_secs(4)), [1]);
        assert_eq!(watch.patience(later), None);
    }

    #[test]
    fn a_store_that_owes_nothing_is_never_overdue() {
        let mut watch = watch(2);
        watch.begin(1);
        watch.answered(1, Instant::now());
        let later = Instant::now() + 2 * TIMEOUT;
        assert_eq!(watch.patience(later), None);
        assert!(watch.overdue(later).is_empty());
    }

    #[test]
    fn more_stores_than_can_be_spared_are_waited_for_through_a_stall() {
        let mut watch = watch(1);
        watch.begin(1);
        watch.begin(2);
        let later = Instant::now() + 2 * TIMEOUT;
        assert!(watch.overdue(later).is_empty());
        assert!(
            watch
                .patience(later)
                .is_some_and(|patience| patience > TIMEOUT)
        );
        // One of them answers: the other is on its own.
        watch.answered(1, later);
        assert_eq!(watch.overdue(later), [2]);
        watch.begin(1);
        let at_last = later + 13 * TIMEOUT;
        assert_eq!(watch.overdue(at_last), [1]);
    }
}
