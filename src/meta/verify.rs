//! Verifying what lies on the members beside segments: journals, and the copies of the index.

use std::collections::BTreeMap;

use super::{Meta, MetaError};
use crate::format::MemberIndex;

/// The result of verifying a piece of the copies of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedIndex {
    /// The page to go on with.
    pub next: u64,
    /// Pages and heads of copies that were damaged or out of date, and are right now, durably.
    pub repaired: u64,
    /// The number of these that each member had; a copy that was cut short counts as one.
    pub found: BTreeMap<MemberIndex, u64>,
    /// Pages that are damaged on every copy. They need not hold anything that is used.
    pub damaged: u64,
}

impl Meta {
    /// Says whether members hold different journals, or damaged ones: of what the index may lack.
    ///
    /// # Errors
    ///
    /// [`MetaError::ReadOnly`], [`MetaError::Poisoned`] or [`MetaError::Closed`].
    pub fn journals_differ(&self) -> Result<bool, MetaError> {
        let _appending = self.appending.lock();
        Ok(self.journal()?.differs())
    }

    /// Verifies a megabyte of all copies of the index, from page `first` on, and repairs each copy from
    /// the others. Returns `None` behind the last page.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn verify_index(&self, first: u64) -> Result<Option<VerifiedIndex>, MetaError> {
        self.journal()?;
        let verified = self.index.verify(first);
        verified.map_err(|error| self.poisoned_by(error))
    }

    /// Returns how many pages of copies of the index were rewritten since it was opened. Such pages were found damaged
    /// or out of date by reading or comparing.
    #[must_use]
    pub fn mended_index_pages(&self) -> u64 {
        self.index.mended_pages()
    }

    /// Reads all copies of the index, and changes nothing: to be used where nothing is ever written. Returns how
    /// many pages and heads are wrong of the copies that members have.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy has what the index is made of.
    pub fn survey_index(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        self.index.survey()
    }
}
