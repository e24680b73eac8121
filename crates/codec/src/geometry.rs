//! The numbers of data and parity shards of a stripe.

use std::fmt;

use crate::{CodecError, shard_set::ShardSet};

/// Data and parity shards of a stripe: k+m. Any m of them may be lost.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::Geometry;
/// let geometry = Geometry::new(4, 2)?;
/// assert_eq!(geometry.total_shards(), 6);
/// assert_eq!(geometry.to_string(), "4+2");
/// assert!(Geometry::new(4, 0).is_err());
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    data_shards: u8,
    parity_shards: u8,
}

impl Geometry {
    /// The most shards, data and parity together, that a stripe can have.
    pub const MAX_TOTAL_SHARDS: usize = 255;

    /// Returns the geometry of `data` + `parity` shards.
    ///
    /// # Errors
    ///
    /// [`CodecError::Geometry`] if either is 0, or both together exceed
    /// [`Self::MAX_TOTAL_SHARDS`].
    pub fn new(data: usize, parity: usize) -> Result<Self, CodecError> {
        let refused = CodecError::Geometry {
            data,
            parity,
            most: Self::MAX_TOTAL_SHARDS,
        };
        if data.saturating_add(parity) > Self::MAX_TOTAL_SHARDS {
            return Err(refused);
        }
        match (u8::try_from(data), u8::try_from(parity)) {
            (Ok(data_shards @ 1..), Ok(parity_shards @ 1..)) => Ok(Self {
                data_shards,
                parity_shards,
            }),
            _ => Err(refused),
        }
    }

    /// Returns how many shards hold data: k.
    #[must_use]
    pub fn data_shards(self) -> usize {
        usize::from(self.data_shards)
    }

    /// Returns how many shards hold parity, and so how many may be lost: m.
    #[must_use]
    pub fn parity_shards(self) -> usize {
        usize::from(self.parity_shards)
    }

    /// Returns how many shards there are: k + m.
    #[must_use]
    pub fn total_shards(self) -> usize {
        self.data_shards() + self.parity_shards()
    }

    /// Refuses indices beyond the geometry, and those named twice.
    pub(super) fn check_indices(
        self,
        indices: impl Iterator<Item = usize>,
    ) -> Result<(), CodecError> {
        let total = self.total_shards();
        let mut seen = ShardSet::default();
        for index in indices {
            if index >= total {
                return Err(CodecError::ShardIndex { index, total });
            }
            if !seen.insert(index) {
                return Err(CodecError::DuplicateShard { index });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data_shards, self.parity_shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_sums_up_to_255_without_a_zero_are_accepted() {
        for data in 0..=300 {
            for parity in 0..=300 {
                let valid = data >= 1 && parity >= 1 && data + parity <= 255;
                assert_eq!(
                    Geometry::new(data, parity).is_ok(),
                    valid,
                    "{data}+{parity}"
                );
            }
        }
        assert!(Geometry::new(usize::MAX, usize::MAX).is_err());
    }
}
