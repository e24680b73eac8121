//! Shards in memory that were read ahead or decoded, those used last kept.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;

use crate::format::{ShardIndex, StripeId};

/// Verified data shards, bounded by the bytes they take together.
#[derive(Debug)]
pub(crate) struct ShardCache {
    limit_bytes: usize,
    held: Mutex<Held>,
    /// The number of shards held, readable without a lock.
    count: AtomicUsize,
}

/// The use of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// The bytes that it holds.
    pub bytes: u64,
    /// The bytes that it may hold.
    pub limit_bytes: u64,
    /// The look-ups that found a shard.
    pub hits: u64,
    /// The look-ups that found none, but for those while it held nothing.
    pub misses: u64,
}

#[derive(Debug)]
struct Held {
    hits: u64,
    misses: u64,
    bytes: usize,
    shards: LruCache<(StripeId, ShardIndex), Bytes>,
}

impl ShardCache {
    /// Makes a cache that holds at most `limit_bytes`.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            held: Mutex::new(Held {
                hits: 0,
                misses: 0,
                bytes: 0,
                shards: LruCache::unbounded(),
            }),
            count: AtomicUsize::new(0),
        }
    }

    /// Returns how many bytes the cache may hold.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Returns a shard's bytes, and counts that as a use.
    pub(crate) fn get(&self, stripe: StripeId, shard: ShardIndex) -> Option<Bytes> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut held = self.held.lock();
        let found = held.shards.get(&(stripe, shard)).cloned();
        if found.is_some() {
            held.hits += 1;
        } else {
            held.misses += 1;
        }
        found
    }

    /// Returns how the cache is used.
    pub(crate) fn usage(&self) -> CacheUse {
        let held = self.held.lock();
        CacheUse {
            bytes: held.bytes as u64,
            limit_bytes: self.limit_bytes as u64,
            hits: held.hits,
            misses: held.misses,
        }
    }

    /// Returns whether a shard is held.
    pub(crate) fn contains(&self, stripe: StripeId, shard: ShardIndex) -> bool {
        self.held.lock().shards.contains(&(stripe, shard))
    }

    /// Takes a whole data shard. It must have been verified: what is in here is not checked again.
    pub(crate) fn put(&self, stripe: StripeId, shard: ShardIndex, bytes: Bytes) {
        if bytes.len() > self.limit_bytes {
            return;
        }
        // Dropped last, without the lock: memory may have to be unmapped.
        let mut dropped = Vec::new();
        let mut held = self.held.lock();
        held.bytes += bytes.len();
        if let Some(old) = held.shards.put((stripe, shard), bytes) {
            held.bytes -= old.len();
            dropped.push(old);
        }
        while held.bytes > self.limit_bytes
            && let Some((_, oldest)) = held.shards.pop_lru()
        {
            held.bytes -= oldest.len();
            dropped.push(oldest);
        }
        self.count.store(held.shards.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Memory that says, when it is freed, whether the cache was locked then.
    struct Freed {
        cache: Arc<ShardCache>,
        locked: Arc<Mutex<Vec<bool>>>,
    }

    impl AsRef<[u8]> for Freed {
        fn as_ref(&self) -> &[u8] {
            &[1; 4]
        }
    }

    impl Drop for Freed {
        fn drop(&mut self) {
            self.locked.lock().push(self.cache.held.is_locked());
        }
    }

    #[test]
    fn no_caller_waits_while_dropped_shards_are_freed() {
        let cache = Arc::new(ShardCache::new(8));
        let locked = Arc::new(Mutex::new(Vec::new()));
        for stripe in [1, 2, 2, 3, 4] {
            let freed = Freed {
                cache: Arc::clone(&cache),
                locked: Arc::clone(&locked),
            };
            cache.put(StripeId(stripe), ShardIndex(0), Bytes::from_owner(freed));
        }
        assert_eq!(*locked.lock(), [false; 3]);
        // Those that are left refer to the cache that holds them.
        cache.held.lock().shards.clear();
    }

    #[test]
    fn the_cache_never_exceeds_its_limit_and_drops_the_least_recently_used() {
        let cache = ShardCache::new(10);
        let put = |stripe, len| cache.put(StripeId(stripe), ShardIndex(0), vec![1; len].into());
        let has = |stripe| cache.contains(StripeId(stripe), ShardIndex(0));
        put(1, 4);
        put(2, 4);
        assert!(cache.get(StripeId(1), ShardIndex(0)).is_some());
        put(3, 4);
        assert_eq!((has(1), has(2), has(3)), (true, false, true));
        put(1, 2);
        put(4, 4);
        assert_eq!((has(1), has(3), has(4)), (true, true, true));
        put(5, 11);
        assert!(!has(5));
        assert!(cache.get(StripeId(5), ShardIndex(0)).is_none());
        let expected = CacheUse {
            bytes: 10,
            limit_bytes: 10,
            hits: 1,
            misses: 1,
        };
        assert_eq!(cache.usage(), expected);
    }
}
