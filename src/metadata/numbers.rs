//! Numbers of inodes, stripes and segments, none of which is given out twice.

use std::ops::Range;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::batch::Batch;
use super::error::MetaError;
use super::map::{RecordError, RecordMap};
use crate::format::record::Counter;
use crate::format::{Record, key};

/// Source of numbers that were never given out before, not even before a crash.
///
/// The counter in the index runs ahead of the numbers in use, so that it changes rarely.
#[derive(Debug)]
pub struct Numbers {
    name: &'static str,
    /// The distance by which the counter is moved on.
    ahead: u64,
    /// Numbers that the counter in the index covers already. It changes with each number, and its neighbours do not.
    covered: CachePadded<Mutex<Range<u64>>>,
}

impl Numbers {
    /// Reads the counter `name`; without one, numbers begin with `least`.
    ///
    /// # Errors
    ///
    /// If the counter cannot be read.
    pub fn open(
        map: &dyn RecordMap,
        name: &'static str,
        least: u64,
        ahead: u64,
    ) -> Result<Self, RecordError> {
        let stored = map.get(&key::counter(name))?;
        let Counter(next) = stored.map_or(Ok(Counter(least)), |value| Counter::decode(&value))?;
        Ok(Self {
            name,
            ahead,
            covered: CachePadded::new(Mutex::new(next..next)),
        })
    }

    /// Returns a number above all that were given out.
    #[must_use]
    pub fn upcoming(&self) -> u64 {
        self.covered.lock().end
    }

    /// Gives out no number below `least` from now on.
    pub fn skip_to(&self, least: u64) {
        let mut covered = self.covered.lock();
        if covered.start < least {
            *covered = least..covered.end.max(least);
        }
    }

    /// Returns the next number. `apply` moves the counter in the index on, before the numbers that it covers.
    ///
    /// # Errors
    ///
    /// Those of `apply`.
    pub fn next(
        &self,
        apply: impl FnOnce(Batch) -> Result<(), MetaError>,
    ) -> Result<u64, MetaError> {
        let mut covered = self.covered.lock();
        if covered.is_empty() {
            // Counters as read are at most half of what 64 bits hold.
            let end = covered.end.saturating_add(self.ahead);
            let mut batch = Batch::default();
            batch.put(key::counter(self.name), Counter(end).encode());
            apply(batch)?;
            covered.end = end;
        }
        covered.start += 1;
        Ok(covered.start - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::MemoryMap;

    #[test]
    fn no_number_is_given_out_twice_whenever_the_counter_is_read_again() {
        let map = MemoryMap::default();
        let mut given = Vec::new();
        for count in [0, 1, 3, 4, 9] {
            let numbers = Numbers::open(&map, key::NEXT_STRIPE, 1, 4).unwrap();
            for _ in 0..count {
                given.push(numbers.next(|batch| map.apply_stripes(batch)).unwrap());
            }
        }
        assert_eq!(given[0], 1);
        assert!(given.is_sorted_by(|one, next| one < next), "{given:?}");
    }

    #[test]
    fn numbers_that_were_skipped_are_never_given_out() {
        let map = MemoryMap::default();
        let numbers = Numbers::open(&map, key::NEXT_INO, 2, 10).unwrap();
        let next = || numbers.next(|batch| map.apply_stripes(batch)).unwrap();
        assert_eq!(next(), 2);
        assert!(numbers.upcoming() > 2);
        for (least, expected) in [(2, 3), (6, 6), (40, 40), (7, 41)] {
            numbers.skip_to(least);
            assert_eq!(next(), expected, "not below {least}");
        }
    }

    #[test]
    fn a_counter_that_cannot_be_moved_on_covers_no_number() {
        let map = MemoryMap::default();
        let numbers = Numbers::open(&map, key::NEXT_INO, 2, 10).unwrap();
        assert!(numbers.next(|_| Err(MetaError::NoSpace)).is_err());
        let next = numbers.next(|batch| map.apply_stripes(batch)).unwrap();
        assert_eq!(next, 2);
    }
}
