//! The decision whether the shards that are left of a stripe suffice, and how many more may be lost.

use crate::{CodeId, CodecError, Geometry, chosen_rows};

/// The losses that the stripes of a code survive. Codes of the family Reed–Solomon count shards, since any k suffice. For
/// `random-gf2` the rank of the rows that are left decides.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{CodeId, Geometry, Survival};
/// let survival = Survival::of(CodeId::RS_CAUCHY, Geometry::new(4, 2)?);
/// assert_eq!(survival.losses_tolerated(|shard| shard != 3), 1);
/// assert!(!survival.is_decodable(|shard| shard > 2));
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survival {
    code: CodeId,
    data: usize,
    parity: usize,
}

impl Survival {
    /// Returns what stripes of a code and a geometry survive.
    #[must_use]
    pub fn of(code: CodeId, geometry: Geometry) -> Self {
        Self {
            code,
            data: geometry.data_shards(),
            parity: geometry.parity_shards(),
        }
    }

    /// Returns the same for numbers that a record states, which may be such that no stripe can be decoded.
    #[must_use]
    pub fn of_record(code: u64, data: u8, parity: u8) -> Self {
        Self {
            code: CodeId(code),
            data: data.into(),
            parity: parity.into(),
        }
    }

    /// Returns how many losses a whole stripe survives, whichever they are: t. That is m unless the code is `random-gf2`.
    #[must_use]
    pub fn guaranteed(self) -> usize {
        if self.code.is_random() {
            self.code.stored_survived().min(self.parity)
        } else {
            self.parity
        }
    }

    /// Returns how many of all sets of t + 1 losses are survived, and how many there are; `None` if none is, as with any
    /// code but `random-gf2`.
    #[must_use]
    pub fn beyond_guaranteed(self) -> Option<(u64, u64)> {
        let geometry = self.random_geometry()?;
        let found = chosen_rows::distance(self.code.seed(), geometry);
        let all = chosen_rows::binomial(geometry.total_shards(), found.survived + 1);
        Some((all.saturating_sub(found.fatal_sets), all))
    }

    /// Returns how many more losses a stripe certainly survives after so many. If these are at most m, it must still be
    /// decodable. The answer is negative if they are more.
    #[must_use]
    pub fn after(self, lost: usize) -> i16 {
        let signed = |count: usize| i16::try_from(count).unwrap_or(i16::MAX);
        match self.guaranteed().checked_sub(lost) {
            Some(left) => signed(left),
            None => signed(self.parity).saturating_sub(signed(lost)).min(0),
        }
    }

    /// Returns how many more losses a stripe certainly survives; negative if data is lost, and by how many shards.
    ///
    /// `is_present` says so of shards that can be read, and of those that are known to be zeros.
    #[must_use]
    pub fn losses_tolerated(self, is_present: impl Fn(usize) -> bool) -> i16 {
        let total = self.data + self.parity;
        let present = (0..total).filter(|&shard| is_present(shard)).count();
        let lost = total - present;
        if lost <= self.guaranteed() || self.random_geometry().is_none() {
            return self.after(lost);
        }
        match self.data - self.rank((0..total).filter(|&shard| is_present(shard))) {
            0 => 0,
            lacking => i16::try_from(lacking).map_or(i16::MIN, |lacking| -lacking),
        }
    }

    /// Returns whether all data can be computed from the shards that are present.
    #[must_use]
    pub fn is_decodable(self, is_present: impl Fn(usize) -> bool) -> bool {
        self.losses_tolerated(is_present) >= 0
    }

    /// Returns how many shards these are worth: their number for most codes, at most k, and the rank of their rows for
    /// `random-gf2`. All data can be computed from them if it is k.
    #[must_use]
    pub fn rank(self, shards: impl IntoIterator<Item = usize>) -> usize {
        self.useful(&[], shards).len()
    }

    /// Returns those of `others`, in their order, that bring the shards in `have` nearer to suffice: as many as it takes
    /// to decode, or all that help if none suffice.
    #[must_use]
    pub fn useful(self, have: &[usize], others: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let Some(rows) = self.rows() else {
            let lacking = self.data.saturating_sub(have.len());
            return others.into_iter().take(lacking).collect();
        };
        let vector = |shard: usize| match shard.checked_sub(self.data) {
            None => 1 << shard,
            Some(parity) => rows.get(parity).copied().unwrap_or(0),
        };
        let mut basis = Basis::default();
        let mut rank = have
            .iter()
            .filter(|&&shard| basis.add(vector(shard)))
            .count();
        let mut useful = Vec::new();
        for shard in others {
            if rank >= self.data {
                break;
            }
            if basis.add(vector(shard)) {
                rank += 1;
                useful.push(shard);
            }
        }
        useful
    }

    /// Returns the k of these shards that decode, in ascending order. Of several choices it takes low indices.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooFewShards`] if they do not suffice.
    pub(super) fn choose(
        self,
        ascending: impl IntoIterator<Item = usize>,
    ) -> Result<Vec<usize>, CodecError> {
        let chosen = self.useful(&[], ascending);
        if chosen.len() < self.data {
            return Err(CodecError::TooFewShards {
                present: chosen.len(),
                needed: self.data,
            });
        }
        Ok(chosen)
    }

    /// Returns the geometry if the code is `random-gf2`, and can have it.
    fn random_geometry(self) -> Option<Geometry> {
        let geometry = Geometry::new(self.data, self.parity).ok()?;
        (self.code.is_random() && chosen_rows::has_rows(geometry)).then_some(geometry)
    }

    fn rows(self) -> Option<Vec<u64>> {
        Some(chosen_rows::rows(self.code.seed(), self.random_geometry()?))
    }
}

/// Vectors of bits of which none is a sum of others, by their lowest bit.
struct Basis([u64; chosen_rows::MOST_SHARDS]);

impl Default for Basis {
    fn default() -> Self {
        Self([0; chosen_rows::MOST_SHARDS])
    }
}

impl Basis {
    /// Adds a vector unless it is a sum of those that are there; returns whether it was added.
    fn add(&mut self, mut vector: u64) -> bool {
        while vector != 0 {
            let place = &mut self.0[vector.trailing_zeros() as usize];
            if *place == 0 {
                *place = vector;
                return true;
            }
            vector ^= *place;
        }
        false
    }
}

#[cfg(test)]
mod tests;
