//! Coefficients taken apart into bits, for engines without a Galois-field instruction.
//!
//! A target is Σ coefficient·source. Gathered by coefficient bits of equal weight, it is Σ xᵇ·(XOR
//! of the sources whose coefficient has bit b). Horner's rule evaluates this from the highest bit
//! down: multiply the sum by x, XOR in the sources of the next bit.
//!
//! The XORs of all targets and bits are over subsets of the same sources. So the pair that most of
//! them have in common is added once, and its sum takes the place of both in all of them. The next
//! pair follows, and so on (Paar's greedy algorithm). Operands are found by coefficients, never by
//! data.

use crate::{Matrix, bitset::BitSet};

/// The steps that compute all targets, a chunk of sources after the other.
#[derive(Debug)]
pub(super) struct Horner {
    chunks: Vec<Chunk>,
}

/// Neighbouring sources, what is shared of their sums, and what targets are made of. All of it lies in
/// slots: those of the sources, of the shared sums, and of targets that another one needs.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Index of the first source.
    pub(super) first_source: usize,
    /// The number of sources.
    pub(super) sources: usize,
    /// The two slots that each shared sum adds. They come before it.
    pub(super) shared: Vec<[Slot; 2]>,
    /// All targets, in the order to compute them in.
    pub(super) rows: Vec<HornerRow>,
}

/// The steps that compute one target.
#[derive(Debug)]
pub(super) struct HornerRow {
    /// Index of the target.
    pub(super) target: usize,
    /// The slot that it goes to as well, if the last target needs it.
    pub(super) kept: Option<Slot>,
    /// The number of slots to add for each bit, highest bit first.
    pub(super) counts: Vec<u8>,
    /// These slots, one bit after the other.
    pub(super) slots: Vec<Slot>,
}

/// A place for as many registers as the loop works on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

impl Slot {
    /// The most slots of a chunk: so few that they stay in the L1 cache.
    pub(super) const MOST: usize = 96;
    /// Bytes of a slot.
    pub(super) const BYTES: usize = 256;
    /// The unit of positions: with this, an address takes one instruction.
    const UNIT: usize = 8;

    fn new(index: usize) -> Self {
        assert!(index < Self::MOST, "slot {index} of a chunk");
        let position = index * (Self::BYTES / Self::UNIT);
        Self(u16::try_from(position).expect("96 times 32 is less than 65,536"))
    }

    /// Returns where the slot lies behind the first one, in bytes.
    #[inline]
    pub(super) fn offset(self) -> usize {
        usize::from(self.0) * Self::UNIT
    }
}

/// The most sources of a chunk.
const MOST_SOURCES: usize = 32;

/// The most targets of which the first may be computed from the others.
const MOST_FOLDED: usize = 16;

impl Horner {
    pub(super) fn new(matrix: &Matrix) -> Self {
        let count = matrix.columns().div_ceil(MOST_SOURCES).max(1);
        let first_source = |chunk| chunk * matrix.columns() / count;
        let folded = is_folded(matrix);
        let chunk = |index| {
            let columns: Vec<usize> = (first_source(index)..first_source(index + 1)).collect();
            let rows: Vec<usize> = (0..matrix.rows()).collect();
            Chunk::new(&matrix.select(&rows, &columns), first_source(index), folded)
        };
        Self {
            chunks: (0..count).map(chunk).collect(),
        }
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
}

/// Returns whether the first target is a plain XOR of sources and all other targets, and of no more
/// of them than engines keep.
///
/// So it is with lost data shards that parity 0, the XOR of all data, helps to decode. It takes
/// one step in place of eight then.
fn is_folded(matrix: &Matrix) -> bool {
    let sum = |column| (0..matrix.rows()).fold(0, |sum, row| sum ^ matrix.at(row, column));
    (2..=MOST_FOLDED).contains(&matrix.rows())
        && (0..matrix.columns()).all(|column| sum(column) <= 1)
}

/// A sum of slots, and the bit of a target that it is for.
struct Sum {
    row: usize,
    slots: BitSet,
}

impl Chunk {
    /// Returns how to add up sources, the first of which is `first_source`, to what `matrix` says.
    fn new(matrix: &Matrix, first_source: usize, folded: bool) -> Self {
        let sources = matrix.columns();
        let coefficient = |row, column| match row {
            0 if folded => (0..matrix.rows()).fold(0, |sum, row| sum ^ matrix.at(row, column)),
            _ => matrix.at(row, column),
        };
        let mut sums = Vec::new();
        for row in 0..matrix.rows() {
            let all = (0..sources).fold(0, |all, column| all | coefficient(row, column));
            for bit in (0..u8::BITS - all.leading_zeros()).rev() {
                let mut slots = BitSet::new(Slot::MOST);
                for column in (0..sources).filter(|&c| coefficient(row, c) >> bit & 1 == 1) {
                    slots.insert(column);
                }
                sums.push(Sum { row, slots });
            }
        }
        let kept = if folded { matrix.rows() - 1 } else { 0 };
        let shared = share(&mut sums, sources, Slot::MOST - kept);
        let first_kept = sources + shared.len();
        let mut rows: Vec<HornerRow> = (0..matrix.rows())
            .map(|row| {
                let kept = (folded && row > 0).then(|| Slot::new(first_kept + row - 1));
                HornerRow::new(row, kept, &sums)
            })
            .collect();
        if folded {
            let kept: Vec<Slot> = rows.iter().filter_map(|row| row.kept).collect();
            rows.rotate_left(1);
            if let Some(last) = rows.last_mut() {
                last.add(&kept);
            }
        }
        Self {
            first_source,
            sources,
            shared,
            rows,
        }
    }

    /// Returns how many slots there are.
    pub(super) fn slot_count(&self) -> usize {
        let kept = self.rows.iter().filter(|row| row.kept.is_some());
        self.sources + self.shared.len() + kept.count()
    }
}

impl HornerRow {
    fn new(row: usize, kept: Option<Slot>, sums: &[Sum]) -> Self {
        let own = sums.iter().filter(|sum| sum.row == row);
        let own: Vec<Vec<Slot>> = own
            .map(|sum| sum.slots.iter().map(Slot::new).collect())
            .collect();
        let count = |slots: &Vec<Slot>| u8::try_from(slots.len()).expect("fewer slots than 256");
        Self {
            target: row,
            kept,
            counts: own.iter().map(count).collect(),
            slots: own.concat(),
        }
    }

    /// Adds slots to the lowest bit.
    fn add(&mut self, slots: &[Slot]) {
        let more = u8::try_from(slots.len()).expect("fewer slots than 256");
        match self.counts.last_mut() {
            Some(count) => *count += more,
            None => self.counts.push(more),
        }
        self.slots.extend_from_slice(slots);
    }
}

/// The fewest sums that are worth a shared one: it is written to its slot, which takes about as long as
/// two additions in registers.
const LEAST_USES: usize = 3;

/// Replaces the pair of slots that most sums share by a slot of their sum, and repeats this. Stops
/// when too few sums share a pair, or `room` slots are taken; returns the pairs.
fn share(sums: &mut [Sum], sources: usize, room: usize) -> Vec<[Slot; 2]> {
    let mut users: Vec<BitSet> = (0..sources)
        .map(|slot| {
            let mut users = BitSet::new(sums.len());
            for (index, sum) in sums.iter().enumerate() {
                if sum.slots.contains(slot) {
                    users.insert(index);
                }
            }
            users
        })
        .collect();
    let mut shared = Vec::new();
    while users.len() < room {
        let Some((a, b)) = most_shared(&users) else {
            break;
        };
        let mut both = BitSet::new(sums.len());
        for user in (0..sums.len()).filter(|&i| users[a].contains(i) && users[b].contains(i)) {
            both.insert(user);
            sums[user].slots.remove(a);
            sums[user].slots.remove(b);
            sums[user].slots.insert(users.len());
        }
        users[a].toggle_all(&both);
        users[b].toggle_all(&both);
        users.push(both);
        shared.push([Slot::new(a), Slot::new(b)]);
    }
    shared
}

/// Returns the first of those pairs of slots that most sums add both of, if enough do.
fn most_shared(users: &[BitSet]) -> Option<(usize, usize)> {
    let mut best = None;
    let mut most = LEAST_USES - 1;
    for b in 1..users.len() {
        for a in 0..b {
            let count = users[a].count_common(&users[b]);
            if count > most {
                (best, most) = (Some((a, b)), count);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, decode::decode_matrix, field};

    /// Computes all targets for sources of one byte each.
    fn evaluate(matrix: &Matrix, sources: &[u8]) -> Vec<u8> {
        let mut targets = vec![0; matrix.rows()];
        for chunk in Horner::new(matrix).chunks() {
            let mut slots = [0; Slot::MOST];
            let at = |slot: Slot| slot.offset() / Slot::BYTES;
            slots[..chunk.sources].copy_from_slice(&sources[chunk.first_source..][..chunk.sources]);
            for (index, &[a, b]) in chunk.shared.iter().enumerate() {
                slots[chunk.sources + index] = slots[at(a)] ^ slots[at(b)];
            }
            for row in &chunk.rows {
                let mut rest = &row.slots[..];
                let mut sum = 0;
                for &count in &row.counts {
                    let (step, later) = rest.split_at(usize::from(count));
                    let terms = step.iter().map(|&slot| slots[at(slot)]);
                    sum = terms.fold(field::times_two(sum), |sum, term| sum ^ term);
                    rest = later;
                }
                if let Some(kept) = row.kept {
                    slots[at(kept)] = sum;
                }
                targets[row.target] ^= sum;
            }
        }
        targets
    }

    /// Compares what the steps give with products.
    fn check(matrix: &Matrix) {
        let sources: Vec<u8> = (0..=u8::MAX).map(|i| i.wrapping_mul(91)).collect();
        let sources = &sources[..matrix.columns()];
        let expected: Vec<u8> = (0..matrix.rows())
            .map(|row| {
                let terms = matrix.row(row).iter().zip(sources);
                terms.fold(0, |sum, (&c, &s)| sum ^ field::mul(c, s))
            })
            .collect();
        assert_eq!(evaluate(matrix, sources), expected, "{matrix:?}");
    }

    #[test]
    fn sums_and_doubling_give_every_product() {
        for (k, m) in [
            (1, 1),
            (2, 2),
            (4, 2),
            (7, 5),
            (10, 4),
            (32, 3),
            (33, 3),
            (40, 20),
            (100, 20),
        ] {
            let generator = Matrix::cauchy(Geometry::new(k, m).expect("valid"));
            check(&generator);
            let lost: Vec<usize> = (0..k.min(m)).collect();
            let used: Vec<usize> = (lost.len()..lost.len() + k).collect();
            check(&decode_matrix(&generator, &used, &lost));
        }
        check(&Matrix::from_fn(3, 4, |_, _| 0));
    }

    #[test]
    fn sums_of_common_geometries_take_few_operations() {
        let operations = |matrix: &Matrix| {
            let horner = Horner::new(matrix);
            let count = |chunk: &Chunk| {
                let slots = chunk.rows.iter().map(|row| row.slots.len());
                chunk.shared.len() + slots.sum::<usize>()
            };
            horner.chunks().iter().map(count).sum::<usize>()
        };
        // Shared sums, and slots added for the bits of all targets.
        for (k, m, most) in [
            (4, 2, 15),
            (6, 3, 35),
            (10, 4, 82),
            (16, 4, 120),
            (20, 10, 380),
        ] {
            let found = operations(&Matrix::cauchy(Geometry::new(k, m).expect("valid")));
            assert!(found <= most, "{k}+{m}: {found}");
        }
    }

    #[test]
    fn decoding_with_parity_0_computes_one_shard_from_the_others() {
        let generator = Matrix::cauchy(Geometry::new(10, 4).expect("valid"));
        let folded = |used: &[usize], lost: &[usize]| {
            let horner = Horner::new(&decode_matrix(&generator, used, lost));
            let last = &horner.chunks()[0].rows[lost.len() - 1];
            (last.target, last.counts.len()) == (0, 1)
        };
        let with_parity_0 = [1, 3, 4, 5, 7, 8, 10, 11, 12, 13];
        assert!(folded(&with_parity_0, &[0, 2, 6, 9]));
        let without = [1, 3, 4, 5, 7, 8, 9, 11, 12, 13];
        assert!(!folded(&without, &[0, 2, 6]));
    }

    #[test]
    fn every_source_is_in_exactly_one_chunk_and_slots_are_few() {
        for k in 1..=254 {
            let horner = Horner::new(&Matrix::cauchy(Geometry::new(k, 1).expect("valid")));
            let mut next = 0;
            for chunk in horner.chunks() {
                assert_eq!(chunk.first_source, next, "{k}");
                assert!(chunk.slot_count() <= Slot::MOST, "{k}");
                next += chunk.sources;
            }
            assert_eq!(next, k);
        }
    }
}
