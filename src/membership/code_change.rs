//! The change of the code of a volume in use: new stripes get another code, from the next opening on.
//!
//! The superblocks of all members change with one epoch. So a volume whose change was cut off has one code or the other,
//! and no member has another code than the rest.

use super::create::check_stripes;
use super::epochs::Epochs;
use super::error::{Absent, MembersError};
use super::fields::noted_shards;
use super::shape::VolumeShape;
use crate::codec::{CodeId, Geometry};
use crate::format::superblock::{CODE_CHANGES, CODE_PARAMETERS, Superblock};

/// The code of new stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeCode {
    /// The numbers of data and parity shards.
    pub geometry: Geometry,
    /// The code.
    pub code: CodeId,
    /// The most bytes of one shard.
    pub unit_bytes: u32,
}

/// The code of new stripes, as superblocks note it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotedCode {
    data_shards: u8,
    parity_shards: u8,
    code: u64,
    unit_bytes: u32,
}

impl NotedCode {
    /// Returns what a superblock notes.
    pub(super) fn of(block: &Superblock) -> Self {
        Self {
            data_shards: block.data_shards,
            parity_shards: block.parity_shards,
            code: block.code,
            unit_bytes: block.unit_bytes,
        }
    }

    /// Notes it in a superblock.
    pub(super) fn write_to(self, block: &mut Superblock) {
        block.data_shards = self.data_shards;
        block.parity_shards = self.parity_shards;
        block.code = self.code;
        block.unit_bytes = self.unit_bytes;
    }
}

impl From<StripeCode> for NotedCode {
    fn from(code: StripeCode) -> Self {
        Self {
            data_shards: noted_shards(code.geometry.data_shards()),
            parity_shards: noted_shards(code.geometry.parity_shards()),
            code: code.code.0,
            unit_bytes: code.unit_bytes,
        }
    }
}

impl VolumeShape {
    /// Returns the code of new stripes.
    #[must_use]
    pub fn stripe_code(&self) -> StripeCode {
        StripeCode {
            geometry: self.geometry(),
            code: self.code(),
            unit_bytes: self.unit_bytes(),
        }
    }
}

impl Epochs {
    /// Checks whether the code of the volume can be changed now.
    ///
    /// # Errors
    ///
    /// [`MembersError::Codec`] or [`MembersError::Option`] if no volume can have it. [`MembersError::TooFewStay`] if it has
    /// more shards than members stay. [`MembersError::NotAllHere`] if members are away, or not up to date.
    pub fn check_code(&self, wanted: StripeCode) -> Result<(), MembersError> {
        let StripeCode {
            geometry,
            code,
            unit_bytes,
        } = wanted;
        code.check(geometry)?;
        check_stripes(geometry, unit_bytes, self.shape.segment_bytes())?;
        let membership = self.membership();
        let draining = membership.draining();
        let live = membership.live();
        let staying = live
            .iter()
            .filter(|member| !draining.contains(member))
            .count();
        if staying < geometry.total_shards() {
            return Err(MembersError::TooFewStay { geometry, staying });
        }
        let absent = membership.away().into_iter();
        let absent: Vec<Absent> = absent
            .map(|(index, path)| Absent {
                index,
                path,
                reason: None,
            })
            .collect();
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
