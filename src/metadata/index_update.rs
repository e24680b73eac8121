//! Bringing changes into the index, also when there is hardly any space for that.
//!
//! A commit of the index needs space for every page that it changes, before it frees what these pages
//! were. If there is not enough for all changes at once, they go in small steps, with the reserve
//! of the index. Only changes that are in the journal may: until the last step is in, the index says
//! that it lacks all of them, and recovery brings them in again.

use super::batch::Value;
use super::error::MetaError;
use super::index::{Commit, Index, Position};
use super::layer::{InOrder, NumberedChange};
use crate::format::journal::StripeData;
use crate::format::key::Key;

/// A step takes at most this part of the reserve: the one before it has not freed its pages
/// yet, and neither has the one before that.
const RESERVE_PART: u64 = 4;

/// Space for the page of a change, and what that costs in the pages above it.
const CHANGE_BYTES: u64 = 4096 + 512;

/// Changes that the index is to take in.
#[derive(Debug)]
pub(super) struct IndexUpdate<'a> {
    /// Changes that are in the journal.
    pub(super) journaled: InOrder<'a>,
    /// Newer changes that are not: all of them at once or none.
    pub(super) units: &'a [(&'a Key, &'a NumberedChange)],
    /// The position of the index after all of them.
    pub(super) position: Position,
    /// Unflushed stripe data that it is to keep from then on.
    pub(super) unflushed: &'a [StripeData],
}

impl<'a> IndexUpdate<'a> {
    /// Returns all changes, newer ones of a key after older ones.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&'a Key, Option<&'a Value>)> {
        self.journaled.iter().chain(self.units).map(change)
    }

    /// Brings all of it into the index, with one commit if there is space for it.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`]: the index is where it was, although it may hold some of the journaled
    /// changes.
    pub(super) fn commit_to(&self, index: &dyn Index) -> Result<(), MetaError> {
        let whole = self.commit(index, self.changes());
        if !matches!(whole, Err(MetaError::NoSpace)) {
            return whole;
        }
        let reserve_bytes = index.release_reserve();
        let outset = index.position();
        for step in small_steps(&self.journaled, reserve_bytes / RESERVE_PART) {
            index.commit(&mut Commit {
                changes: Box::new(step.into_iter()),
                position: outset,
                unflushed: None,
            })?;
        }
        self.commit(index, self.units.iter().map(change))
    }

    /// Commits some changes, after which the index has all.
    fn commit(
        &self,
        index: &dyn Index,
        changes: impl Iterator<Item = (&'a Key, Option<&'a Value>)> + 'a,
    ) -> Result<(), MetaError> {
        index.commit(&mut Commit {
            changes: Box::new(changes),
            position: self.position,
            unflushed: Some(self.unflushed),
        })
    }
}

fn change<'a>((key, entry): &(&'a Key, &'a NumberedChange)) -> (&'a Key, Option<&'a Value>) {
    (*key, entry.value.as_ref())
}

type Step<'a> = Vec<(&'a Key, Option<&'a Value>)>;

/// Cuts changes into runs that each take at most `limit` bytes of pages, or are a single change.
fn small_steps<'a>(changes: &InOrder<'a>, limit: u64) -> impl Iterator<Item = Step<'a>> {
    let mut changes = changes.iter().map(change).peekable();
    std::iter::from_fn(move || {
        let mut step = vec![changes.next()?];
        let mut bytes = cost(step[0].1);
        while let Some((_, value)) = changes.peek()
            && bytes + cost(*value) <= limit
        {
            bytes += cost(*value);
            step.extend(changes.next());
        }
        Some(step)
    })
}

/// Twice the value: pages have a power of two of bytes.
fn cost(value: Option<&Value>) -> u64 {
    CHANGE_BYTES + value.map_or(0, |value| 2 * value.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::layer::{Layer, in_order};

    fn layer(sizes: &[usize]) -> Layer {
        let mut layer = Layer::default();
        for (number, len) in (0u8..).zip(sizes) {
            let change = NumberedChange {
                number: u64::from(number),
                value: Some(vec![0; *len].into()),
            };
            layer.insert(vec![number].into(), change);
        }
        layer
    }

    #[test]
    fn steps_hold_all_changes_in_order_and_stay_within_the_limit_unless_one_change_does_not() {
        let layer = layer(&[10, 10, 100_000, 10, 10, 10]);
        let layer = in_order([&layer]);
        let limit = 2 * (CHANGE_BYTES + 20);
        let steps: Vec<Vec<u8>> = small_steps(&layer, limit)
            .map(|step| step.iter().map(|(key, _)| key[0]).collect())
            .collect();
        assert_eq!(steps, [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
        assert_eq!(small_steps(&layer, 0).count(), 6, "each change by itself");
        assert_eq!(small_steps(&layer, u64::MAX).count(), 1);
    }
}
