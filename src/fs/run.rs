//! Reading runs from their records.

use crate::format::record::Extent;
use crate::format::{Record, key};

use super::error::{FsError, corrupt};
use super::limits::SIZE_MAX;

pub(super) use crate::transaction::Run;

/// Decodes an extent together with its key.
pub(super) fn parse(key: &[u8], value: &[u8]) -> Result<Run, FsError> {
    let (ino, end) = key::parse_extent(key)?;
    let extent = Extent::decode(value)?;
    if u64::from(extent.stripe_offset) + extent.len > u64::from(u32::MAX) {
        return Err(corrupt(ino, "an extent is longer than a stripe"));
    }
    if end > SIZE_MAX {
        return Err(corrupt(ino, "an extent ends behind the longest file"));
    }
    let start = end.checked_sub(extent.len);
    Ok(Run {
        start: start.ok_or_else(|| corrupt(ino, "an extent begins before the file"))?,
        len: extent.len,
        stripe: extent.stripe,
        stripe_offset: extent.stripe_offset,
    })
}
