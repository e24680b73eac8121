//! The packets of one call, checked.

use super::RatelessError;

/// A packet that arrived, or is to be made: its number and its bytes.
pub(super) type Numbered<'a> = (u64, &'a [u8]);

/// Checks that as many packets of a kind are given as are needed.
///
/// # Errors
///
/// [`RatelessError::PacketCount`] if not.
pub(super) fn check_count(
    kind: &'static str,
    seen: usize,
    needed: usize,
) -> Result<(), RatelessError> {
    if seen == needed {
        return Ok(());
    }
    Err(RatelessError::PacketCount { kind, seen, needed })
}

/// Returns how long all packets of a call are; 0 if there are none.
///
/// # Errors
///
/// [`RatelessError::PacketLength`] if they differ in length.
pub(super) fn common_length(
    lengths: impl IntoIterator<Item = usize>,
) -> Result<usize, RatelessError> {
    let mut lengths = lengths.into_iter();
    let needed = lengths.next().unwrap_or(0);
    match lengths.find(|&length| length != needed) {
        Some(seen) => Err(RatelessError::PacketLength { seen, needed }),
        None => Ok(needed),
    }
}

/// Checks that rows have full rank.
///
/// # Errors
///
/// [`RatelessError::Rank`] if not.
pub(super) fn check_rank(rank: usize, needed: usize) -> Result<(), RatelessError> {
    if rank == needed {
        return Ok(());
    }
    Err(RatelessError::Rank { rank, needed })
}
