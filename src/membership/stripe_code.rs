//! The code of new stripes, and as superblocks note it.

use super::fields::noted_shards;
use super::shape::VolumeShape;
use crate::codec::{CodeId, Geometry};
use crate::format::record::greatest_height;
use crate::format::superblock::Superblock;

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

impl StripeCode {
    /// Returns the most bytes of data that a stripe has.
    #[must_use]
    pub fn greatest_payload(&self) -> usize {
        let data_shards = self.geometry.data_shards();
        let noted = u8::try_from(data_shards).unwrap_or(u8::MAX);
        greatest_height(self.unit_bytes, noted) as usize * data_shards
    }
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
