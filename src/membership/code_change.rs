//! The change of the code of a volume in use: new stripes get another code, from the next opening on.
//!
//! The superblocks of all members change with one epoch. So a volume whose change was cut off has one code or the other,
//! and no member has another code than the rest.

use super::create::check_stripes;
use super::epochs::Epochs;
use super::error::{Absent, MembersError};
use super::stripe_code::StripeCode;
use crate::format::superblock::{CODE_CHANGES, CODE_PARAMETERS};

impl Epochs {
    /// Checks whether the code of the volume can be changed now.
    ///
    /// # Errors
    ///
    /// As [`Self::check_directory_code`]. [`MembersError::NotAllHere`] if members are away, or not up to date.
    pub fn check_code(&self, wanted: StripeCode) -> Result<(), MembersError> {
        self.check_directory_code(wanted)?;
        self.check_all_here()
    }

    /// Checks whether directories can be given a code now. Superblocks note only that there are such codes. So members may be
    /// away, as long as the members online suffice for all shards of a stripe.
    ///
    /// # Errors
    ///
    /// [`MembersError::Codec`] or [`MembersError::Option`] if no volume can have it. [`MembersError::TooFewStay`] if it has
    /// more shards than online members that stay.
    pub fn check_directory_code(&self, wanted: StripeCode) -> Result<(), MembersError> {
        let StripeCode {
            geometry,
            code,
            unit_bytes,
        } = wanted;
        code.check(geometry)?;
        check_stripes(geometry, unit_bytes, self.shape.segment_bytes())?;
        let staying = self.membership().count_lasting(None);
        if staying < geometry.total_shards() {
            return Err(MembersError::TooFewStay {
                geometry,
                staying,
                replaced: self.membership().yet_to_be_replaced(None),
                absent: self.absent_that_stay(),
            });
        }
        Ok(())
    }

    /// Returns the members that are away, and stay once they are back.
    #[must_use]
    pub fn absent_that_stay(&self) -> Vec<Absent> {
        let draining = self.membership().draining();
        let mut absent = self.absent();
        absent.retain(|it| !draining.contains(&it.index));
        absent
    }

    fn absent(&self) -> Vec<Absent> {
        let absent = self.membership().away().into_iter();
        absent
            .map(|(index, path)| Absent {
                index,
                path,
                reason: None,
            })
            .collect()
    }

    /// Checks that all members are online and up to date.
    fn check_all_here(&self) -> Result<(), MembersError> {
        let absent = self.absent();
        if absent.is_empty() && self.stale().is_empty() {
            Ok(())
        } else {
            Err(MembersError::NotAllHere { absent })
        }
    }

    /// Notes another code for new stripes, in an epoch of its own; durable on return. This opening of the volume goes on
    /// with the old one.
    ///
    /// # Errors
    ///
    /// As [`Self::check_code`]; nothing is changed then. [`MembersError::Failed`] if so many members fail on the way that
    /// the volume cannot go on; [`MembersError::NotNow`] if nothing may be written.
    pub fn change_code(&self, wanted: StripeCode) -> Result<(), MembersError> {
        self.check_code(wanted)?;
        self.note_in_epoch(|state| {
            state.add_features(CODE_CHANGES);
            if wanted.code.has_parameters() {
                state.add_features(CODE_PARAMETERS);
            }
            state.set_code(wanted.into());
        })
    }
}
