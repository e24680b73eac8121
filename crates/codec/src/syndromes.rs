//! Decoding in two steps, for engines that multiply, and keep the sums of all targets in registers.
//!
//! Let L be the lost data shards, and let as many parities be used, parity 0 among them. The
//! *syndrome* of a parity is what remains of it when all present data is taken out. It is sᵢ = pᵢ +
//! Σ C\[i,d\]·d over the present data, which is Σ C\[i,l\]·l over the lost. Parity 0 is plain XOR,
//! so s₀ is the sum of all lost shards, and the first of them is s₀ plus the others. Put into the
//! other syndromes, this leaves one equation less:
//!
//! ```text
//! sᵢ + C[i,first]·s₀ = Σ (C[i,l] + C[i,first])·l     over the other lost shards l
//! ```
//!
//! The parities themselves are multiplied by nothing. Nor is data shard 0, which is the leading source
//! of all syndromes. If it is lost, it is the first of the lost, C\[i,first\] is 1, and parity 0
//! leads in its place: the sums are then sᵢ + s₀ at once. Either way k−1 products are needed for each
//! lost shard but one, as many as encoding takes, where one matrix needs k.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only GFNI, an extension of x86-64, multiplies")
)]

use crate::{Matrix, field};

/// The most targets whose sums any engine keeps in registers together.
pub(super) const MOST_TOGETHER: usize = 16;

/// The recipe for lost data shards from syndromes. Sources are the present data shards and then the
/// parities, in ascending order; targets are the lost shards, in ascending order.
#[derive(Debug)]
pub(super) struct Syndromes {
    count: usize,
    first_parity: usize,
    parity_leads: bool,
    scaled_maps: Vec<u64>,
    solution_maps: Vec<u64>,
}

impl Syndromes {
    /// Returns how to compute the `lost` shards from the `used` ones, both ascending. Returns `None`
    /// unless at least two data shards and no parities are lost, and the registers have room for
    /// their sums. As many parities must be used, parity 0 among them.
    pub(super) fn new(generator: &Matrix, used: &[usize], lost: &[usize]) -> Option<Self> {
        let (k, count) = (generator.columns(), lost.len());
        let (data, parities) = used.split_at(used.partition_point(|&shard| shard < k));
        let possible = (2..=MOST_TOGETHER).contains(&count)
            && parities.len() == count
            && parities[0] == k
            && lost.iter().all(|&shard| shard < k);
        if !possible {
            return None;
        }
        let rows: Vec<usize> = parities.iter().map(|parity| parity - k).collect();
        let first = lost[0];
        // Taken out of the other syndromes at once if that costs nothing, and from their sums if not.
        let at_once = first == 0;
        let scaled_map = |&shard: &usize, i: usize| {
            let eliminated = u8::from(at_once && i > 0);
            field::affine_map(generator.at(rows[i], shard) ^ eliminated)
        };
        let scaled = if at_once { data } else { &data[1..] };
        let scaled_maps = scaled
            .iter()
            .flat_map(|shard| (0..count).map(move |i| scaled_map(shard, i)));

        let equations = Matrix::from_fn(count - 1, count - 1, |i, l| {
            generator.at(rows[i + 1], lost[l + 1]) ^ generator.at(rows[i + 1], first)
        });
        let solution = equations
            .inverse()
            .expect("equations of an MDS code have one solution");
        let firsts = Matrix::from_fn(count - 1, 1, |i, _| generator.at(rows[i + 1], first));
        let from_first = solution.times(&firsts);
        let solution_map = |syndrome: usize, target: usize| {
            let coefficient = match (target.checked_sub(1), syndrome.checked_sub(1)) {
                (Some(target), Some(syndrome)) => solution.at(target, syndrome),
                (Some(target), None) if !at_once => from_first.at(target, 0),
                _ => 0,
            };
            field::affine_map(coefficient)
        };
        let solution_maps =
            (0..count).flat_map(|syndrome| (0..count).map(move |t| solution_map(syndrome, t)));
        Some(Self {
            count,
            first_parity: data.len(),
            parity_leads: at_once,
            scaled_maps: scaled_maps.collect(),
            solution_maps: solution_maps.collect(),
        })
    }

    /// Returns how many syndromes there are: one per target.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the index of the first parity, before which all sources are data.
    pub(super) fn first_parity(&self) -> usize {
        self.first_parity
    }

    /// Returns whether parity 0 leads, and the other syndromes have their first lost shard taken out at
    /// once. Otherwise data shard 0 leads, which is the first source.
    pub(super) fn parity_leads(&self) -> bool {
        self.parity_leads
    }

    /// Returns the coefficients of the data shards that do not lead as `gf2p8affineqb` takes them: those
    /// of the first, one per syndrome, then those of the second, and so on.
    pub(super) fn scaled_maps(&self) -> &[u64] {
        &self.scaled_maps
    }

    /// Returns what syndromes are multiplied by: those of syndrome 0, one per target, of which the
    /// first counts for nothing, then those of syndrome 1, and so on.
    pub(super) fn solution_maps(&self) -> &[u64] {
        &self.solution_maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;

    #[test]
    fn they_are_there_when_as_many_data_shards_as_parities_with_parity_0_make_up_for_them() {
        let generator = Matrix::cauchy(Geometry::new(10, 4).expect("valid"));
        let syndromes = |used: &[usize], lost: &[usize]| Syndromes::new(&generator, used, lost);
        let used = [1, 3, 4, 5, 7, 8, 10, 11, 12, 13];
        assert!(syndromes(&used, &[0, 2, 6, 9]).is_some());
        assert!(
            syndromes(&used, &[0, 2, 6]).is_none(),
            "one is not asked for"
        );
        let used = [1, 3, 4, 5, 7, 8, 9, 11, 12, 13];
        assert!(syndromes(&used, &[0, 2, 6]).is_none(), "without parity 0");
        let used = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        assert!(syndromes(&used, &[0]).is_none(), "plain XOR does");
        assert!(syndromes(&used, &[0, 11]).is_none(), "a parity is lost");
    }
}
