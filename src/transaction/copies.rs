//! The number of copies of the index, counted on the members (P6).

use super::{CommitError, Transactions};
use crate::format::MemberIndex;

/// The copies of the index. Any one of them is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCopies {
    /// The members that have one, in order.
    pub members: Vec<MemberIndex>,
    /// The number of copies wanted.
    pub wanted: usize,
}

impl IndexCopies {
    /// Returns whether the index survives fewer losses than data does.
    #[must_use]
    pub fn are_too_few(&self) -> bool {
        self.members.len() < self.wanted
    }
}

impl Transactions {
    /// Looks for the copies of the index.
    #[must_use]
    pub fn index_copies(&self) -> IndexCopies {
        IndexCopies {
            members: self.replicas.found(),
            wanted: self.members.shape().geometry().parity_shards() + 1,
        }
    }

    /// Compares the copies of the index with one another, and rewrites pages that one of them has lost. Returns how
    /// many pages were rewritten since the volume was opened, beside those that a scrub repaired.
    ///
    /// # Errors
    ///
    /// If no copy is left, or nothing may be written.
    pub fn mend_index_pages(&self) -> Result<u64, CommitError> {
        self.commits.check_writable()?;
        while self.replicas.compare()? {}
        Ok(self.replicas.repaired_pages())
    }
}
