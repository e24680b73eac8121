//! Who has been silent for too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::StoreRef;

/// A number for a store that is the same for every handle on it, for as long as one lives.
pub(super) fn key(store: &StoreRef) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

/// When each store of a batch last answered, and how much it still owes.
#[derive(Debug)]
pub(super) struct Watch {
    timeout: Duration,
    stores: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    key: usize,
    heard: Instant,
    owed: usize,
}

impl Watch {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
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

    /// Returns how long there is until the first store is overdue: `None` if nothing is owed.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let owing = self.stores.iter().filter(|store| store.owed > 0);
        owing
            .map(|store| (store.heard + self.timeout).saturating_duration_since(now))
            .min()
    }

    /// Takes out the stores that are overdue: their operations are given up.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<usize> {
        let is_overdue = |store: &Watched| store.owed > 0 && store.heard + self.timeout <= now;
        let keys = self
            .stores
            .iter()
            .filter(|store| is_overdue(store))
            .map(|store| store.key)
            .collect();
        let timeout = self.timeout;
        self.stores
            .retain(|store| store.owed == 0 || store.heard + timeout > now);
        keys
    }

    fn find(&mut self, key: usize) -> Option<&mut Watched> {
        self.stores.iter_mut().find(|store| store.key == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn only_the_store_that_was_silent_for_the_timeout_is_overdue() {
        let mut watch = Watch::new(TIMEOUT);
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
        let mut watch = Watch::new(TIMEOUT);
        watch.begin(1);
        watch.answered(1, Instant::now());
        let later = Instant::now() + 2 * TIMEOUT;
        assert_eq!(watch.patience(later), None);
        assert!(watch.overdue(later).is_empty());
    }
}
