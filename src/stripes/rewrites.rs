//! Orders to rewrite files whose bytes lie in stripes of other classes than theirs.
//!
//! Such an order is a counter in the index. A command gives one when it gives files another class. A stripe gives one with its
//! own record when its bytes belong to another class, because members were too few for that. The counter rises with each
//! order, and is removed once the last one is carried out as far as it can be. Another counter tells how many stripes it left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::record::Counter;
use crate::format::{Record, key};
use crate::metadata::{Batch, RecordError, RecordMap};

/// The orders to rewrite files of a volume.
///
/// All changes go with the records of stripes, so that commits see them in one order.
pub(crate) struct Rewrites {
    map: Arc<dyn RecordMap>,
    /// Held by a thread that changes an order, from reading it on.
    changing: Mutex<()>,
    /// The number of orders of commands since the volume was opened.
    given: AtomicU64,
    /// Set once it was reported that a counter is damaged.
    is_damage_told: AtomicBool,
}

impl Rewrites {
    pub(super) fn new(map: Arc<dyn RecordMap>) -> Self {
        Self {
            map,
            changing: Mutex::default(),
            given: AtomicU64::default(),
            is_damage_told: AtomicBool::default(),
        }
    }

    /// Returns the number of the last order, if it is not carried out. A damaged counter is an order too: it costs a look,
    /// and none is lost.
    pub(crate) fn order(&self) -> Result<Option<u64>, RecordError> {
        self.counter(key::REWRITES)
    }

    /// Gives an order.
    pub(crate) fn give(&self) -> Result<(), RecordError> {
        self.order_with(Batch::default())?;
        self.given.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Returns how many orders were given since the volume was opened, without those that stripes gave.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// Applies changes of records, and gives an order with them.
    pub(super) fn order_with(&self, mut batch: Batch) -> Result<(), RecordError> {
        let _changing = self.changing.lock();
        let next = self.order()?.map_or(1, |order| order.wrapping_add(1));
        batch.put(key::counter(key::REWRITES), Counter(next).encode());
        Ok(self.map.apply_stripes(batch)?)
    }

    /// Notes that all orders up to this one are carried out but for so many stripes, unless a later one was given. What was
    /// done must be durable. Returns whether this ended the order.
    pub(crate) fn finish(&self, order: u64, left: u64) -> Result<bool, RecordError> {
        let _changing = self.changing.lock();
        if self.order()? != Some(order) {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.delete(key::counter(key::REWRITES));
        if left > 0 {
            batch.put(key::counter(key::REWRITES_LEFT), Counter(left).encode());
        } else {
            batch.delete(key::counter(key::REWRITES_LEFT));
        }
        self.map.apply_stripes(batch)?;
        Ok(true)
    }

    /// Returns how many stripes the last order left that was carried out.
    pub(crate) fn left(&self) -> Result<u64, RecordError> {
        Ok(self.counter(key::REWRITES_LEFT)?.unwrap_or(0))
    }

    /// Returns the value of a counter that is there. It is 0 if it cannot be decoded: writes must not fail for that, and the
    /// next order replaces it.
    fn counter(&self, name: &str) -> Result<Option<u64>, RecordError> {
        let Some(stored) = self.map.get(&key::counter(name))? else {
            return Ok(None);
        };
        let decoded = Counter::decode(&stored);
        Ok(Some(decoded.map_or_else(
            |error| {
                if !self.is_damage_told.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the counter {name} is damaged and counts as 0: {error}");
                }
                0
            },
            |Counter(number)| number,
        )))
    }
}
