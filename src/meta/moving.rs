//! Moving copies of the index away from members, while work goes on.

use super::{Meta, MetaError};
use crate::format::MemberIndex;

/// A copy is moved only to where so many times what is kept back beside it is left afterwards.
const RESERVES: u64 = 3;

impl Meta {
    /// Returns how much room a member has to have for a copy of the index to be moved to it.
    #[must_use]
    pub fn room_for_a_copy(&self) -> u64 {
        let bytes = self.index.bytes();
        // With the checksums that lie between the pages.
        bytes + bytes / 128 + RESERVES * self.index.reserve_bytes()
    }

    /// Has [`Meta::mend_index`] move the copies of the index that these members have, and no others, to
    /// members that have enough room, if there are any.
    pub fn move_copies_off(&self, members: &[MemberIndex]) {
        self.index.leave(members);
    }

    /// Does at most so many pieces of what copies of the index lack, or are to move, and waits for commits
    /// that are in the way. Says whether there may be more to do.
    ///
    /// # Errors
    ///
    /// As for [`Meta::mend_index`].
    pub fn mend_copies(&self, pieces: usize) -> Result<bool, MetaError> {
        for _ in 0..pieces {
            self.index.settle();
            if !self.mend_index()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
