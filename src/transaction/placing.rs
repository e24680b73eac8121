//! Placing bytes of files in stripes.

use super::unwritten::Claim;
use super::{CommitError, Transactions, Written};
use crate::format::record::Marker;
use crate::format::{BLOCK_SIZE, Ino, Record, StripeClass, key};
use crate::metadata::Batch;
use crate::stripes::StripeError;

impl Transactions {
    /// Takes bytes of a file. They can be read at once at the places returned.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] if not all of the bytes fit: nothing refers to those already placed, and they are given
    /// back in time. Making room may help.
    pub fn write(&self, data: &[u8]) -> Result<Written, CommitError> {
        self.write_within(StripeClass::VOLUME, None, data)
    }

    /// Returns the class of stripes for new bytes of a file.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(crate) fn class_of(&self, ino: Ino) -> Result<StripeClass, CommitError> {
        self.catalog.class_of(self.stripes.classes(), ino)
    }

    /// Takes bytes of a file of this class as [`Transactions::write`]. Those that a claim covers take the room kept for it.
    pub(crate) fn write_within(
        &self,
        class: StripeClass,
        claim: Option<&Claim<'_>>,
        data: &[u8],
    ) -> Result<Written, CommitError> {
        self.commits.check_writable()?;
        self.foreground.note();
        self.growth.check_commits()?;
        let needed = Claim::rest_of(claim, data.len() as u64);
        if needed > 0 && self.exhaustion.is_exhausted(needed) {
            return Err(CommitError::NoSpace);
        }
        let _admitted = self.unwritten.admit(needed)?;
        let mut written = Written {
            placed: Vec::new(),
            holds: Vec::new(),
        };
        let mut rest = data;
        while !rest.is_empty() {
            match self.stripes.writer().append(class, rest) {
                Ok((placed, hold)) => {
                    rest = &rest[placed.len as usize..];
                    written.placed.push(placed);
                    written.holds.push(hold);
                }
                Err(error) => {
                    self.abandon(&written)?;
                    return Err(error.into());
                }
            }
        }
        Ok(written)
    }

    /// Like [`Transactions::write`] for less than a block, but never waits for a member: `None` if a stripe has
    /// to be opened first, which [`Transactions::open_stripe`] does.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::write`].
    pub(crate) fn write_at_once(
        &self,
        class: StripeClass,
        data: &[u8],
    ) -> Result<Option<Written>, CommitError> {
        self.write_at_once_within(class, None, data)
    }

    /// Takes bytes of a file as [`Transactions::write_at_once`]. Those that a claim covers take the room kept for it.
    pub(crate) fn write_at_once_within(
        &self,
        class: StripeClass,
        claim: Option<&Claim<'_>>,
        data: &[u8],
    ) -> Result<Option<Written>, CommitError> {
        debug_assert!(data.len() < BLOCK_SIZE, "longer data may be split");
        self.commits.check_writable()?;
        self.check_class(class)?;
        self.foreground.note();
        let needed = Claim::rest_of(claim, data.len() as u64);
        if self.growth.has_no_commits() || !self.unwritten.admits_at_once(needed) {
            return Ok(None);
        }
        let (mut placed, mut holds) = (Vec::new(), Vec::new());
        if !data.is_empty() {
            let Some((place, hold)) = self.stripes.writer().append_at_once(class, data) else {
                return Ok(None);
            };
            placed.push(place);
            holds.push(hold);
        }
        Ok(Some(Written { placed, holds }))
    }

    /// Refuses bytes of files whose class is not known. Such a stripe is never open, so a caller would wait for ever.
    pub(crate) fn check_class(&self, class: StripeClass) -> Result<(), CommitError> {
        if class == StripeClass::VOLUME {
            return Ok(());
        }
        match self.stripes.classes().get(class) {
            Some(_) => Ok(()),
            None => Err(StripeError::UnknownClass { class }.into()),
        }
    }

    /// Prepares another try of [`Transactions::write_at_once`], for a write of this class with this claim; call it without a lock.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::write`].
    pub(crate) fn open_stripe(
        &self,
        class: StripeClass,
        claim: Option<&Claim<'_>>,
    ) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        self.growth.check_commits()?;
        if self.growth.has_no_commits() {
            return Err(CommitError::NoSpace);
        }
        if !claim.is_some_and(Claim::is_full) {
            if self.exhaustion.is_exhausted(BLOCK_SIZE as u64) {
                return Err(CommitError::NoSpace);
            }
            self.unwritten.provide()?;
        }
        Ok(self.stripes.writer().open_stripe(class)?)
    }

    /// Gives back bytes that no extent will refer to.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::apply`].
    pub fn abandon(&self, written: &Written) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for placed in &written.placed {
            batch.put(key::perhaps_dead(placed.stripe), Marker.encode());
        }
        Ok(self.meta.apply(batch)?)
    }
}
