//! Maintenance of the copies of the index: redundancy, comparison, verification, reserve and compaction.
//!
//! Only the index on the members has copies. What the rest of the metadata needs of an index is in
//! [`Index`](super::index::Index); jobs that keep the copies in order get [`IndexReplicas`] beside
//! [`Meta`](super::Meta).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::churn::Churn;
use super::error::MetaError;
use super::mirror::{Mirror, VerifiedIndex};
use super::redb_index::RedbIndex;
use super::writability::Writability;
use crate::format::MemberIndex;

/// An index longer than this is not compacted, because it cannot be read meanwhile.
const MAX_COMPACTED_BYTES: u64 = 1 << 30;

/// A copy is moved only to where so many times the reserve beside it is left afterwards.
const RESERVES: u64 = 3;

/// The copies of the index on the members, as the jobs see them that keep them in order.
pub struct IndexReplicas {
    index: Arc<RedbIndex>,
    writability: Arc<Writability>,
    churn: Arc<Churn>,
}

impl IndexReplicas {
    pub(super) fn new(
        index: Arc<RedbIndex>,
        writability: Arc<Writability>,
        churn: Arc<Churn>,
    ) -> Self {
        Self {
            index,
            writability,
            churn,
        }
    }

    fn mirror(&self) -> &Mirror {
        self.index.mirror()
    }

    /// Does a bounded piece of work, some megabytes, if a member failed that held a copy of the
    /// index: another member gets one. Returns whether there may be more to do.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn refill(&self) -> Result<bool, MetaError> {
        self.writability.check()?;
        self.index.resolve_dispute();
        let refilled = self.index.between_commits(Mirror::refill);
        refilled.map_err(|error| self.writability.poison(error))
    }

    /// Copies at most `pieces` pieces that copies of the index lack, or that are to move, and waits for commits in
    /// the way. Returns whether there may be more to do.
    ///
    /// # Errors
    ///
    /// As for [`IndexReplicas::refill`].
    pub fn refill_pieces(&self, pieces: usize) -> Result<bool, MetaError> {
        for _ in 0..pieces {
            self.index.wait_for_commit();
            if !self.refill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has [`IndexReplicas::refill`] move the copies of the index that these members have, and no others, to
    /// members that have enough room, if there are any.
    pub fn move_off(&self, members: &[MemberIndex]) {
        self.mirror().move_off(members);
    }

    /// Compares a bounded piece, a megabyte, of the copies of the index with one another, once a mount. Pages that
    /// one copy lost are written again. Returns whether there is more to do.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn compare(&self) -> Result<bool, MetaError> {
        self.writability.check()?;
        let compared = self.index.between_commits(Mirror::compare);
        let has_more = compared.map_err(|error| self.writability.poison(error))?;
        self.index.resolve_dispute();
        Ok(has_more)
    }

    /// Verifies a megabyte of all copies of the index, from page `first` on, and repairs each copy from
    /// the others. Returns `None` behind the last page.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn verify(&self, first: u64) -> Result<Option<VerifiedIndex>, MetaError> {
        self.writability.check()?;
        let verified = self.index.without_commits(|mirror| mirror.verify(first));
        let verified = verified.map_err(|error| self.writability.poison(error))?;
        self.index.resolve_dispute();
        Ok(verified)
    }

    /// Reads all copies of the index, and changes nothing: to be used where nothing is ever written. Returns how
    /// many pages and heads are wrong of the copies that members have.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy has what the index is made of.
    pub fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        self.index.survey()
    }

    /// Returns how many pages of copies of the index were rewritten since it was opened. Such pages were found damaged
    /// or out of date by reading or comparing.
    #[must_use]
    pub fn repaired_pages(&self) -> u64 {
        self.mirror().repaired_pages()
    }

    /// Looks for the copies of the index, and returns the members on which they are, in order. There
    /// are to be as many as parity shards and one more.
    #[must_use]
    pub fn found(&self) -> Vec<MemberIndex> {
        self.index.resolve_dispute();
        self.mirror().found_copies()
    }

    /// Returns the members to whose copies of the index commits are written.
    #[must_use]
    pub fn holders(&self) -> Vec<MemberIndex> {
        self.mirror().members()
    }

    /// Returns how many bytes are kept in reserve on each member that has a copy of the index.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.mirror().reserve_bytes()
    }

    /// Keeps space in reserve for the day when there is none. Returns whether every copy has its reserve.
    #[must_use]
    pub fn keep_reserve(&self) -> bool {
        self.writability.is_read_only() || self.mirror().keep_reserve()
    }

    /// Returns how much room a member needs before a copy of the index is moved to it.
    #[must_use]
    pub fn room_for_a_copy(&self) -> u64 {
        let bytes = self.mirror().db_bytes();
        // With the checksums that lie between the pages.
        bytes + bytes / 128 + RESERVES * self.reserve_bytes()
    }

    /// Moves the records of the index together, so that its free space is of use to others. Does so only if enough was
    /// changed since the last time. Returns whether space came free.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if the index is in doubt.
    pub fn compact(&self) -> Result<bool, MetaError> {
        let bytes = self.mirror().db_bytes();
        if bytes > MAX_COMPACTED_BYTES || !self.churn.is_worth_compacting(bytes) {
            return Ok(false);
        }
        self.mirror().release_reserve();
        match self.index.compact() {
            Ok(shorter) => {
                self.churn.reset();
                Ok(shorter)
            }
            Err(MetaError::NoSpace) => Ok(false),
            Err(error) => Err(self.writability.poison(error)),
        }
    }
}

impl std::fmt::Debug for IndexReplicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexReplicas")
            .field("holders", &self.holders())
            .finish_non_exhaustive()
    }
}
