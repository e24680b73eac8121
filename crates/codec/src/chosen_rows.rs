//! The rows of `random-gf2`: those of the systematic random code that survive most losses.
//!
//! Each bit of the shards of a stripe belongs to a codeword of a binary linear code of n = k + m bits. A set of
//! losses is survived unless it contains the support of a codeword other than zero. So every set of t losses is survived
//! if and only if t is less than the minimum distance d. Of the sets of d losses, those are not survived that are the
//! support of a codeword of weight d: as many as there are such codewords.
//!
//! The weights of all codewords follow from those of the dual code, which has only 2ᵐ codewords, by the identity of
//! `MacWilliams`.

use crate::{
    CodecError, Geometry,
    rateless::{Form, RandomCode},
};

/// The name of the code.
pub(super) const NAME: &str = "random-gf2";

/// The most shards of a stripe: as many as a word has bits.
pub(super) const MOST_SHARDS: usize = 64;

/// The most parity shards of a stripe: the dual code has 2¹⁶ codewords then.
pub(super) const MOST_PARITIES: usize = 16;

/// The fewest data shards, and the fewest parity shards. A single parity is plain XOR with every code.
const LEAST: usize = 2;

/// The most seeds that are tried.
const MOST_TRIES: u64 = 1 << 21;

/// The most codewords of dual codes that are weighed, were every seed worth it.
const MOST_WEIGHED: u64 = 1 << 27;

/// The losses that a stripe survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distance {
    /// The number of losses that are survived, whichever they are: t.
    pub(super) survived: usize,
    /// The number of sets of t + 1 losses that are not survived.
    pub(super) fatal_sets: u64,
}

/// Returns the rows of a seed, one per parity shard, bit c of each for data shard c.
///
/// # Panics
///
/// Unless `has_rows` holds for the geometry.
pub(super) fn rows(seed: u64, geometry: Geometry) -> Vec<u64> {
    let mut rows = Vec::with_capacity(geometry.parity_shards());
    write_rows(seed, geometry, &mut rows);
    rows
}

fn write_rows(seed: u64, geometry: Geometry, rows: &mut Vec<u64>) {
    let k = geometry.data_shards();
    let code = RandomCode::new(Form::Systematic, k, seed).expect("2 to 62 source packets");
    let first = k as u64;
    rows.clear();
    rows.extend(
        (first..first + geometry.parity_shards() as u64).map(|number| {
            let mut word = [0];
            code.write_row(number, &mut word);
            word[0]
        }),
    );
}

/// Returns whether there may be rows for a geometry.
pub(super) fn has_rows(geometry: Geometry) -> bool {
    geometry.data_shards() >= LEAST
        && (LEAST..=MOST_PARITIES).contains(&geometry.parity_shards())
        && geometry.total_shards() <= MOST_SHARDS
}

fn check_geometry(geometry: Geometry) -> Result<(), CodecError> {
    let (data, parity) = (geometry.data_shards(), geometry.parity_shards());
    if geometry.total_shards() > MOST_SHARDS {
        return Err(CodecError::GeometryTooWide {
            code: NAME,
            data,
            parity,
            max: MOST_SHARDS,
        });
    }
    if !has_rows(geometry) {
        return Err(CodecError::RandomGeometry {
            data,
            parity,
            least: LEAST,
            most: MOST_PARITIES,
        });
    }
    Ok(())
}

/// Refuses a seed whose rows survive another number of losses than is stored beside it.
pub(super) fn check(seed: u64, stored: usize, geometry: Geometry) -> Result<(), CodecError> {
    check_geometry(geometry)?;
    let survived = distance(seed, geometry).survived;
    if stored == 0 || stored != survived {
        return Err(CodecError::WrongRows { stored, survived });
    }
    Ok(())
}

/// Returns the losses that stripes of these rows survive.
///
/// # Panics
///
/// Unless `has_rows` holds for the geometry.
pub(super) fn distance(seed: u64, geometry: Geometry) -> Distance {
    Weights::new(geometry).distance(&rows(seed, geometry))
}

/// Returns the seed whose rows survive most losses, and how many: of those below a bound that depends on the geometry
/// alone. Among seeds whose rows survive as many, it takes one with the fewest fatal sets, and of these the least.
pub(super) fn search(geometry: Geometry) -> Result<(u64, u8), CodecError> {
    check_geometry(geometry)?;
    let weights = Weights::new(geometry);
    let tries = MOST_TRIES.min(MOST_WEIGHED >> geometry.parity_shards());
    let mut rows = Vec::with_capacity(geometry.parity_shards());
    let mut best: Option<(u64, Distance)> = None;
    for seed in 0..tries {
        write_rows(seed, geometry, &mut rows);
        let survived = best.map_or(1, |(_, best)| best.survived);
        if !may_survive(&rows, geometry, survived) {
            continue;
        }
        let found = weights.distance(&rows);
        let is_better = |best: Distance| {
            let key = |it: Distance| (it.survived, std::cmp::Reverse(it.fatal_sets));
            key(found) > key(best)
        };
        if best.is_none_or(|(_, best)| is_better(best)) {
            best = Some((seed, found));
        }
    }
    let found = best.and_then(|(seed, best)| Some((seed, u8::try_from(best.survived).ok()?)));
    found.ok_or(CodecError::NoRows {
        data: geometry.data_shards(),
        parity: geometry.parity_shards(),
    })
}

/// Returns whether rows can survive so many losses, as far as this shows at a glance: every row has a bit, and every
/// data shard is in as many rows, up to two.
fn may_survive(rows: &[u64], geometry: Geometry, losses: usize) -> bool {
    let all = (1 << geometry.data_shards()) - 1;
    let (mut once, mut twice) = (0, 0);
    for row in rows {
        twice |= once & row;
        once |= row;
    }
    !rows.contains(&0) && once == all && (losses < 2 || twice == all)
}

/// The identity of `MacWilliams` for one geometry.
struct Weights {
    geometry: Geometry,
    /// Krawtchouk's polynomials: for each weight w from 1 on, the coefficient of each number of dual codewords by weight.
    coefficients: Vec<Vec<i128>>,
}

impl Weights {
    fn new(geometry: Geometry) -> Self {
        let n = geometry.total_shards();
        // Singleton's bound: no distance exceeds m + 1.
        let weights = 1..=geometry.parity_shards() + 1;
        let coefficient = |w: usize, i: usize| {
            let term = |j: usize| {
                let sign = if j.is_multiple_of(2) { 1 } else { -1 };
                sign * i128::from(binomial(i, j)) * i128::from(binomial(n - i, w - j))
            };
            (0..=w).map(term).sum()
        };
        Self {
            geometry,
            coefficients: weights
                .map(|w| (0..=n).map(|i| coefficient(w, i)).collect())
                .collect(),
        }
    }

    fn distance(&self, rows: &[u64]) -> Distance {
        let mut dual = [0_i128; MOST_SHARDS + 1];
        let check = |index: usize| rows[index] | 1 << (self.geometry.data_shards() + index);
        // Gray's code: each step changes one check of the sum.
        let mut sum: u64 = 0;
        dual[0] = 1;
        for step in 1_u32..1 << rows.len() {
            sum ^= check(step.trailing_zeros() as usize);
            dual[sum.count_ones() as usize] += 1;
        }
        let count = |coefficients: &Vec<i128>| {
            let terms = coefficients.iter().zip(&dual);
            terms.map(|(c, count)| c * count).sum::<i128>() >> rows.len()
        };
        let mut counts = self.coefficients.iter().map(count).enumerate();
        let first = counts.find(|&(_, count)| count > 0);
        let (survived, fatal_sets) = first.unwrap_or_default();
        Distance {
            survived,
            fatal_sets: u64::try_from(fatal_sets).unwrap_or(u64::MAX),
        }
    }
}

/// Returns in how many ways a set of so many can be chosen from n, which is at most 64.
pub(super) fn binomial(n: usize, chosen: usize) -> u64 {
    if chosen > n {
        return 0;
    }
    let step = |ways: u128, i: usize| ways * (n - i) as u128 / (i + 1) as u128;
    u64::try_from((0..chosen).fold(1, step)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
