//! Coefficients taken apart into bits, for engines without a Galois-field instruction.
//!
//! A target is Σ coefficient·source. Gathering the coefficient bits of equal weight, this is
//! Σ xᵇ·(XOR of the sources whose coefficient has bit b), and Horner's rule evaluates it from the
//! highest bit down: multiply the sum by x, XOR in the sources of the next bit.
//!
//! The XORs of all targets and bits are over subsets of the same sources. So sources are taken in
//! groups of up to four, all XORs within a group are put into a table first, and each bit of each
//! target then adds one entry per group ("method of the four Russians"). Entries are found by
//! coefficients, never by data.

use crate::codec::Matrix;

/// The steps that compute all targets, a chunk of sources after the other.
#[derive(Debug)]
pub(super) struct Horner {
    chunks: Vec<Chunk>,
}

/// Neighbouring sources whose tables fit the L1 cache together.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Index of the first source.
    pub(super) first_source: usize,
    /// Sources in each group.
    pub(super) group_sizes: Vec<usize>,
    /// For each target, for each bit from its highest one down, an entry of each group's table.
    rows: Vec<Vec<u16>>,
}

impl Horner {
    /// The most groups of a chunk.
    pub(super) const MAX_GROUPS: usize = 8;
    /// The most sources of a group.
    pub(super) const MAX_GROUP_SIZE: usize = 4;
    /// Entries of a group's table: one per subset of sources.
    pub(super) const TABLE_SIZE: usize = 1 << Self::MAX_GROUP_SIZE;

    pub(super) fn new(matrix: &Matrix) -> Self {
        let most = Self::MAX_GROUPS * Self::MAX_GROUP_SIZE;
        let count = matrix.columns().div_ceil(most).max(1);
        let chunk = |(first_source, sources)| Chunk::new(matrix, first_source, sources);
        Self {
            chunks: spread(matrix.columns(), count).map(chunk).collect(),
        }
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
}

impl Chunk {
    fn new(matrix: &Matrix, first_source: usize, sources: usize) -> Self {
        let columns = first_source..first_source + sources;
        let bits = |row: usize| {
            let all = matrix.row(row)[columns.clone()]
                .iter()
                .fold(0, |all, c| all | c);
            8 - usize::try_from(u8::leading_zeros(all)).unwrap_or(0)
        };
        let steps = (0..matrix.rows()).map(bits).sum();
        let groups: Vec<_> = spread(sources, cheapest_group_count(sources, steps)).collect();
        let rows = (0..matrix.rows()).map(|row| {
            let coefficients = &matrix.row(row)[columns.clone()];
            let step = |bit| {
                groups
                    .iter()
                    .enumerate()
                    .map(move |(group, &(first, size))| {
                        let members = coefficients[first..first + size].iter().enumerate();
                        let subset =
                            members.fold(0, |set, (i, c)| set | usize::from(c >> bit & 1) << i);
                        u16::try_from(group * Self::TABLE + subset).expect("128 entries in a chunk")
                    })
            };
            (0..bits(row)).rev().flat_map(step).collect()
        });
        let rows = rows.collect();
        let group_sizes = groups.iter().map(|group| group.1).collect();
        Self {
            first_source,
            group_sizes,
            rows,
        }
    }

    const TABLE: usize = Horner::TABLE_SIZE;

    /// Returns the table entries to add for one target: as many for each bit as there are groups,
    /// highest bit first.
    pub(super) fn row(&self, row: usize) -> &[u16] {
        &self.rows[row]
    }
}

/// Returns how many groups to form, so that filling tables and adding entries costs least.
fn cheapest_group_count(sources: usize, steps: usize) -> usize {
    let cost = |&groups: &usize| {
        let fill = |(_, size): (usize, usize)| {
            let entries = (1usize << size) - 1;
            // Every entry is stored, and those of more than one source are added.
            entries + (entries - size)
        };
        spread(sources, groups).map(fill).sum::<usize>() + steps * groups
    };
    let fewest = sources.div_ceil(Horner::MAX_GROUP_SIZE);
    (fewest..=sources.min(Horner::MAX_GROUPS))
        .min_by_key(cost)
        .unwrap_or(1)
}

/// Spreads `count` things over `parts` as evenly as can be; returns where each part starts, and its
/// size.
fn spread(count: usize, parts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..parts).map(move |part| {
        let start = part * count / parts;
        (start, (part + 1) * count / parts - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Geometry, field};

    /// Computes target `row` for sources of one byte each.
    fn evaluate(horner: &Horner, row: usize, sources: &[u8]) -> u8 {
        let chunk_sum = |chunk: &Chunk| {
            let mut first = chunk.first_source;
            let mut table = Vec::new();
            for &size in &chunk.group_sizes {
                table.extend((0..Horner::TABLE_SIZE).map(|subset| {
                    let chosen = (0..size).filter(|i| subset >> i & 1 == 1);
                    chosen.fold(0, |sum, i| sum ^ sources[first + i])
                }));
                first += size;
            }
            chunk
                .row(row)
                .chunks(chunk.group_sizes.len())
                .fold(0, |sum, step| {
                    let step = step.iter().map(|&entry| table[usize::from(entry)]);
                    step.fold(field::times_two(sum), |sum, entry| sum ^ entry)
                })
        };
        horner
            .chunks()
            .iter()
            .fold(0, |sum, chunk| sum ^ chunk_sum(chunk))
    }

    #[test]
    fn tables_and_doubling_give_every_product() {
        for (k, m) in [
            (1, 1),
            (2, 2),
            (4, 2),
            (7, 5),
            (10, 4),
            (32, 3),
            (33, 3),
            (100, 20),
        ] {
            let matrix = Matrix::cauchy(Geometry::new(k, m).expect("valid"));
            let horner = Horner::new(&matrix);
            let sources: Vec<u8> = (0..=u8::MAX).map(|i| i.wrapping_mul(91)).take(k).collect();
            for row in 0..m {
                let terms = matrix.row(row).iter().zip(&sources);
                let expected = terms.fold(0, |sum, (&c, &s)| sum ^ field::mul(c, s));
                assert_eq!(
                    evaluate(&horner, row, &sources),
                    expected,
                    "{k}+{m} row {row}"
                );
            }
        }
    }

    #[test]
    fn every_source_is_in_exactly_one_group_and_tables_stay_small() {
        for k in 1..=254 {
            let horner = Horner::new(&Matrix::cauchy(Geometry::new(k, 1).expect("valid")));
            let mut next = 0;
            for chunk in horner.chunks() {
                assert_eq!(chunk.first_source, next, "{k}");
                assert!(chunk.group_sizes.len() <= Horner::MAX_GROUPS, "{k}");
                assert!(
                    chunk.group_sizes.iter().all(|size| (1..=4).contains(size)),
                    "{k}"
                );
                next += chunk.group_sizes.iter().sum::<usize>();
            }
            assert_eq!(next, k);
        }
    }
}
