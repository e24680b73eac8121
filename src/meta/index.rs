//! The ordered store that the journal stands in front of.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::{Key, MetaError, Value, VerifiedIndex};
use crate::format::journal::{Life, StripeData};
use crate::format::{Lsn, MemberIndex};

/// The position that an index has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The last journal record whose changes it holds.
    pub(super) lsn: Lsn,
    /// The life that the records after that one belong to.
    pub(super) life: Life,
}

/// The changes that an index takes in at once.
pub(super) struct Commit<'a> {
    /// Changes in order of key; `None` is a deletion.
    pub(super) changes: Box<dyn Iterator<Item = (&'a Key, Option<&'a Value>)> + 'a>,
    /// The position of the index with them.
    pub(super) position: Position,
    /// Stripe data to keep until a commit brings others; `None` keeps those that there are.
    pub(super) carried: Option<&'a [StripeData]>,
}

/// An ordered key-value store that is changed by whole commits.
///
/// # Errors
///
/// Every method fails with [`MetaError::Poisoned`] if the store can no longer be trusted, and then
/// keeps failing.
pub(super) trait Index: Send + Sync {
    /// Returns a view of the state after the last commit, which later commits do not change, if one was
    /// made already. Never waits for a member.
    fn view(&self) -> Option<Arc<dyn Snapshot>>;

    /// Makes such a view where there is none, for [`Index::view`] to return: until the next commit, and
    /// longer if that can make another.
    fn make_view(&self) -> Result<(), MetaError>;

    /// Makes a commit durable, all of it or nothing.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] if it does not fit. Nothing is lost then; another try may succeed.
    /// Views taken before may fail to read.
    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError>;

    /// Waits until no commit is being made. A view that failed to read did so for good if a new one
    /// taken after this fails as well.
    fn settle(&self);

    /// Returns the position given with the last commit.
    fn position(&self) -> Position;

    /// Returns the stripe data given with the last commit, of stripes of at most so many bytes.
    fn carried(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError>;

    /// Does a bounded piece of what redundancy lacks, and says whether there may be more to do.
    fn refill(&self) -> Result<bool, MetaError>;

    /// Returns the members on which a copy is found just now.
    fn copies(&self) -> Vec<MemberIndex>;

    /// Does a bounded piece of comparing what is kept more than once, and says whether there is more to do.
    fn compare(&self) -> Result<bool, MetaError>;

    /// Verifies a bounded piece of what is kept more than once, from page `first` on, and repairs it;
    /// `None` behind the last page.
    fn verify(&self, first: u64) -> Result<Option<VerifiedIndex>, MetaError>;

    /// Looks at all that is kept more than once and that nothing is written to, and returns how much is wrong of
    /// what members have.
    fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError>;

    /// Returns how many pages were found damaged or out of date by reading or comparing, and rewritten, since it
    /// was opened.
    fn mended_pages(&self) -> u64;

    /// Returns the members that its commits are written to.
    fn holders(&self) -> Vec<MemberIndex>;

    /// Returns about how long it is, in bytes.
    fn bytes(&self) -> u64;

    /// Returns how many bytes each holder keeps back for commits that find no space otherwise.
    fn reserve_bytes(&self) -> u64;

    /// Has [`Index::refill`] move what it keeps on these members, and on no others, to where there is room
    /// for it.
    fn leave(&self, members: &[MemberIndex]);

    /// Lets commits have what is kept back.
    fn give_reserve(&self);

    /// Keeps back again what can be. Says whether all of it is.
    fn keep_reserve(&self) -> bool;

    /// Moves what it holds together and gives the rest of its space back. The caller keeps others from reading and
    /// committing meanwhile. Says whether it has become shorter.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] if there is none even for that, or a reader takes long.
    fn compact(&self) -> Result<bool, MetaError>;

    /// Frees what it holds open. Every later call fails.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if its content keeps it from being closed in order. It is closed nevertheless.
    fn close(&self) -> Result<(), MetaError>;
}

/// A view of an [`Index`].
pub(super) trait Snapshot: Send + Sync {
    /// Returns a key's value.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError>;

    /// Calls `visit` with every key within `range` and its value, in order of key, until it breaks.
    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError>;

    /// Returns the first `limit` keys within `range` and their values, in order of key.
    fn range(&self, range: KeyRange<'_>, limit: usize) -> Result<Vec<(Key, Value)>, MetaError> {
        let mut found = Vec::new();
        if limit > 0 {
            self.visit(range, &mut |key, value| {
                found.push((Key::copy_from_slice(key), Value::copy_from_slice(value)));
                if found.len() < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        Ok(found)
    }
}

/// The visitor of keys and their values, one after the other, until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A range of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRange<'a> {
    /// The bound at which it starts.
    pub(super) from: Bound<&'a [u8]>,
    /// The bound at which it ends.
    pub(super) end: Bound<&'a [u8]>,
}

impl KeyRange<'_> {
    /// Says whether no key is in it; ordered maps refuse to be asked for such a range.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        match (self.from, self.end) {
            (Bound::Included(from), Bound::Included(end)) => from > end,
            (
                Bound::Included(from) | Bound::Excluded(from),
                Bound::Included(end) | Bound::Excluded(end),
            ) => from >= end,
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }
}
