//! Cache of what was read from the metadata, which never returns what a change has made outdated.
//!
//! A reader that misses takes the place of its key before it reads, and puts in what it found. A change removes the
//! places of all keys that it concerns. So what was read before the change finds no place any more.
//!
//! # Invariants
//!
//! - After [`FreshCache::forget`] has returned, no call returns what was read before it.
//! - No caller waits for the read of another.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// The memory that an entry costs beside its key and value, in bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// The part of the limit that one entry may take at most, so that no entry displaces many.
const LARGEST_PART: usize = 64;

/// Parts of the cache, each with its own lock and its own share of the limit. A share has room for the largest entry on
/// machines with any number of CPUs.
const SHARDS: usize = 32;
const _: () = assert!(SHARDS < LARGEST_PART);

/// Returns the bytes of a key and its value.
type Weigh<K, V> = fn(&K, &V) -> usize;

#[derive(Clone)]
struct Weights<K, V>(Weigh<K, V>);

impl<K, V> Weighter<K, V> for Weights<K, V> {
    fn weight(&self, key: &K, value: &V) -> u64 {
        (self.0)(key, value) as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// A bounded cache of values by key; those used last and most are kept.
pub struct FreshCache<K, V> {
    entries: Cache<K, V, Weights<K, V>>,
    weigh: Weigh<K, V>,
    largest: usize,
    /// The source that the entries come from.
    source: AtomicU64,
}

impl<K: Clone + Eq + Hash, V: Clone> FreshCache<K, V> {
    /// Makes a cache of at most `limit_bytes`, as `weigh` counts them. An entry of about `usual_bytes` is the usual one.
    #[must_use]
    #[expect(
        clippy::missing_panics_doc,
        reason = "the options have both capacities that they need"
    )]
    pub fn new(limit_bytes: usize, usual_bytes: usize, weigh: Weigh<K, V>) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(limit_bytes / usual_bytes.max(1))
            .weight_capacity(limit_bytes as u64)
            .shards(SHARDS)
            .build()
            .expect("both capacities are set");
        Self {
            entries: Cache::with_options(
                options,
                Weights(weigh),
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            weigh,
            largest: limit_bytes / LARGEST_PART,
            source: AtomicU64::new(0),
        }
    }

    /// Returns a value that is in the cache.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + quick_cache::Equivalent<K> + ?Sized,
    {
        self.entries.get(key)
    }

    /// Returns the value of a key, and reads it if it is not in the cache.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn get_or_read<E>(&self, key: &K, read: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        match self.entries.get_value_or_guard(key, Some(Duration::ZERO)) {
            GuardResult::Value(value) => Ok(value),
            // Another thread is reading it, and may have begun before a change that this caller knows.
            GuardResult::Timeout => read(),
            GuardResult::Guard(place) => {
                let found = read()?;
                if (self.weigh)(key, &found) <= self.largest {
                    // The place is gone if the key changed meanwhile.
                    let _outdated = place.insert(found.clone());
                }
                Ok(found)
            }
        }
    }

    /// Gives a key a value that the caller knows to be the newest. Nothing may read or change the key meanwhile.
    pub fn replace(&self, key: K, value: V) {
        if (self.weigh)(&key, &value) <= self.largest {
            self.entries.insert(key, value);
        } else {
            self.entries.remove(&key);
        }
    }

    /// Forgets a key whose value has changed, or is about to.
    pub fn forget<Q>(&self, key: &Q)
    where
        Q: Hash + quick_cache::Equivalent<K> + ?Sized,
    {
        self.entries.remove(key);
    }

    /// Forgets everything if it was read from an earlier source than this one.
    pub fn follow(&self, source: u64) {
        if self.source.load(Ordering::Acquire) < source {
            self.entries.clear();
            self.source.fetch_max(source, Ordering::AcqRel);
        }
    }

    /// Returns the bytes that all entries take.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn cache() -> FreshCache<u64, u64> {
        FreshCache::new(1 << 20, 16, |_, _| 16)
    }

    fn value_of(cache: &FreshCache<u64, u64>, read: impl FnOnce() -> u64) -> u64 {
        let found = cache.get_or_read(&1, || Ok::<_, Infallible>(read()));
        found.expect("it cannot fail")
    }

    #[test]
    fn a_value_is_read_once_until_it_is_forgotten() {
        let cache = cache();
        assert_eq!(value_of(&cache, || 7), 7);
        assert_eq!(value_of(&cache, || 8), 7);
        cache.forget(&1);
        assert_eq!(value_of(&cache, || 8), 8);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let cache = cache();
        // The change comes while the old value is on its way into the cache.
        let read_and_change = || {
            cache.forget(&1);
            7
        };
        assert_eq!(value_of(&cache, read_and_change), 7);
        assert_eq!(value_of(&cache, || 8), 8);
    }

    #[test]
    fn a_reader_does_not_get_what_another_began_to_read_before_the_change() {
        let cache = cache();
        let outer = value_of(&cache, || {
            cache.forget(&1);
            // A second reader, which began after the change, and is done before the first.
            assert_eq!(value_of(&cache, || 8), 8);
            7
        });
        assert_eq!(outer, 7);
        assert_eq!(value_of(&cache, || 9), 8);
    }

    #[test]
    fn a_reader_does_not_wait_for_another() {
        let cache = cache();
        let outer = value_of(&cache, || {
            assert_eq!(value_of(&cache, || 8), 8);
            7
        });
        assert_eq!(outer, 7);
    }

    #[test]
    fn nothing_is_kept_that_came_from_an_earlier_source() {
        let cache = cache();
        cache.follow(1);
        assert_eq!(value_of(&cache, || 7), 7);
        cache.follow(1);
        assert_eq!(value_of(&cache, || 8), 7);
        let during = value_of(&cache, || 7);
        assert_eq!(during, 7);
        cache.follow(2);
        assert_eq!(value_of(&cache, || 8), 8);
        // One that lags behind forgets nothing.
        cache.follow(1);
        assert_eq!(value_of(&cache, || 9), 8);
    }

    #[test]
    fn a_read_from_an_earlier_source_that_ends_later_is_not_kept() {
        let cache = cache();
        let outer = value_of(&cache, || {
            cache.follow(1);
            7
        });
        assert_eq!(outer, 7);
        assert_eq!(value_of(&cache, || 8), 8);
    }

    #[test]
    fn the_entries_take_no_more_than_the_limit() {
        let cache = FreshCache::<u64, Vec<u8>>::new(1 << 20, 1024, |_, value| value.len());
        for key in 0..10_000 {
            let read = || Ok::<_, Infallible>(vec![0; 1024]);
            cache.get_or_read(&key, read).expect("it cannot fail");
        }
        assert!(
            cache.bytes() <= 1 << 20 && cache.bytes() > 1 << 18,
            "{}",
            cache.bytes()
        );
        let large = || Ok::<_, Infallible>(vec![0; 20_000]);
        cache.get_or_read(&0, large).expect("it cannot fail");
        assert!(cache.get(&0).is_none_or(|value| value.len() == 1024));
    }
}
