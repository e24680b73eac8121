//! The properties of a volume that never change while it is open.

use super::error::MembersError;
use crate::codec::{CodeId, Geometry, Survival};
use crate::format::VolumeId;
use crate::format::record::{MAX_STRIPE_BYTES, greatest_height};
use crate::format::superblock::{CODE_CHANGES, Superblock};

/// The properties of a volume that never change while it is open.
#[derive(Debug)]
pub struct VolumeShape {
    volume: VolumeId,
    label: String,
    geometry: Geometry,
    code: CodeId,
    unit_bytes: u32,
    segment_bytes: u64,
    /// True if stripes may have had another code.
    has_changed: bool,
}

impl VolumeShape {
    /// Returns the properties that a superblock states.
    ///
    /// # Errors
    ///
    /// [`MembersError::Codec`] if no stripe can have this geometry or code.
    pub(super) fn of(block: &Superblock) -> Result<Self, MembersError> {
        let code = CodeId(block.code);
        let geometry = Geometry::new(block.data_shards.into(), block.parity_shards.into())?;
        code.check(geometry)?;
        Ok(Self {
            volume: block.volume,
            label: block.label.clone(),
            geometry,
            code,
            unit_bytes: block.unit_bytes,
            segment_bytes: block.segment_bytes,
            has_changed: block.features.incompat & CODE_CHANGES != 0,
        })
    }

    /// Returns the volume's identity.
    #[must_use]
    pub fn volume_id(&self) -> VolumeId {
        self.volume
    }

    /// Returns the volume's name for people; may be empty.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the geometry of new stripes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the code of new stripes.
    #[must_use]
    pub fn code(&self) -> CodeId {
        self.code
    }

    /// Returns the losses that new stripes survive.
    #[must_use]
    pub fn survival(&self) -> Survival {
        Survival::of(self.code, self.geometry)
    }

    /// Returns the most bytes of one shard of a new stripe.
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    /// Returns the greatest height of a stripe, in bytes.
    #[must_use]
    pub fn greatest_height(&self) -> u32 {
        // A geometry has at most 255 shards; a lower stripe is the safe answer for any other.
        let data_shards = u8::try_from(self.geometry.data_shards()).unwrap_or(u8::MAX);
        greatest_height(self.unit_bytes, data_shards)
    }

    /// Returns the most bytes of data that a stripe has.
    #[must_use]
    pub fn stripe_bytes(&self) -> u32 {
        let data_shards = u32::try_from(self.geometry.data_shards()).unwrap_or(u32::MAX);
        self.greatest_height().saturating_mul(data_shards)
    }

    /// Returns the most bytes of data that a stripe ever had, of this code or an earlier one.
    #[must_use]
    pub fn most_stripe_bytes(&self) -> u32 {
        if self.has_changed {
            MAX_STRIPE_BYTES
        } else {
            self.stripe_bytes()
        }
    }

    /// Returns the length of a full-sized segment's files in bytes.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }
}
