//! Products of a matrix of bits and packets, as look-ups in tables of sums: the method of the four Russians.
//!
//! Sources are grouped, a few to a table. The table of a group holds the sum of every subset of it, for a strip of each
//! packet. A target adds one entry of each table, which its row of the matrix picks.

use super::{BitRows, RatelessError};
use crate::Stores;

/// The most sources of one table: a number below 2⁸ picks the entry.
const MOST_BITS: usize = 8;

/// Entries of all tables that a pass over the targets looks at. For strips of 64 bytes they take half of a usual L1
/// cache.
pub(crate) const ENTRIES_AT_ONCE: usize = 256;

/// The most tables of a pass over the targets.
const MOST_TABLES: usize = 8;

// The bits that all tables of a pass take of a row fit one word.
const _: () = assert!(MOST_TABLES * 5 <= 64 && 4 * 6 <= 64 && 2 * 7 <= 64);

/// Look-ups that it takes as long as to load and store the sum of a target between two passes.
const PASS_COST: usize = 2;

/// The work to add up selected packets: a matrix of bits as numbers of table entries.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    sources: usize,
    targets: usize,
    table_bits: usize,
    tables_at_once: usize,
    /// For each pass over the targets, target by target, one entry of each of its tables.
    entries: Vec<u8>,
}

impl Selection {
    /// Returns the selection of a matrix: one row per target, one column per source.
    #[must_use]
    pub fn new(rows: &BitRows) -> Self {
        let mut selection = Self::default();
        selection.replace(rows, &(0..rows.rows()));
        selection
    }

    /// Becomes the selection of these rows of a matrix.
    pub(super) fn replace(
        &mut self,
        rows: &BitRows,
        targets: &(impl Iterator<Item = usize> + Clone),
    ) {
        self.sources = rows.columns();
        self.targets = targets.clone().count();
        self.table_bits = table_bits(self.sources, self.targets);
        let tables = self.sources.div_ceil(self.table_bits).max(1);
        self.tables_at_once = tables_at_once(self.table_bits).min(tables.next_power_of_two());
        let passes = tables.div_ceil(self.tables_at_once);
        self.entries.clear();
        self.entries
            .resize(passes * self.targets * self.tables_at_once, 0);
        match self.tables_at_once {
            1 => self.fill::<1>(rows, targets),
            2 => self.fill::<2>(rows, targets),
            4 => self.fill::<4>(rows, targets),
            _ => self.fill::<MOST_TABLES>(rows, targets),
        }
    }

    /// Writes the entries of all passes with `T` tables each.
    fn fill<const T: usize>(
        &mut self,
        rows: &BitRows,
        targets: &(impl Iterator<Item = usize> + Clone),
    ) {
        let (bits, mask) = (self.table_bits, (1u64 << self.table_bits) - 1);
        let passes = self.entries.chunks_exact_mut((self.targets * T).max(1));
        for (pass, entries) in passes.enumerate() {
            let (entries, _) = entries.as_chunks_mut::<T>();
            for (entries, target) in entries.iter_mut().zip(targets.clone()) {
                let mut window = bits_from(rows.row(target), pass * T * bits);
                for entry in entries {
                    [*entry, ..] = (window & mask).to_le_bytes();
                    window >>= bits;
                }
            }
        }
    }

    /// Returns how many sources there are.
    #[must_use]
    pub fn sources(&self) -> usize {
        self.sources
    }

    /// Returns how many targets there are.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.targets
    }

    /// Returns how many sources a table sums.
    pub(crate) fn table_bits(&self) -> usize {
        self.table_bits
    }

    /// Returns how many tables each pass over the targets looks at: a power of two.
    pub(crate) fn tables_at_once(&self) -> usize {
        self.tables_at_once
    }

    /// Returns the entries of each pass over the targets: of one target after the other, one of each table.
    pub(crate) fn passes(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.entries
            .chunks_exact((self.targets * self.tables_at_once).max(1))
    }
}

/// Returns how many sources a table should sum, so that filling tables and looking entries up take least.
fn table_bits(sources: usize, targets: usize) -> usize {
    let cost = |&bits: &usize| {
        let tables = sources.div_ceil(bits);
        let passes = tables.div_ceil(tables_at_once(bits));
        tables * ((1 << bits) + targets) + passes.saturating_sub(1) * targets * PASS_COST
    };
    (1..=MOST_BITS).min_by_key(cost).unwrap_or(1)
}

/// Returns how many tables of so many sources each a pass looks at.
fn tables_at_once(bits: usize) -> usize {
    (ENTRIES_AT_ONCE >> bits).clamp(1, MOST_TABLES)
}

/// Returns 64 bits of a row from `first` on. Bits behind the row are zero.
fn bits_from(row: &[u64], first: usize) -> u64 {
    let word = |index: usize| row.get(index).copied().unwrap_or(0);
    let (index, shift) = (first / 64, first % 64);
    // In two steps, because a shift by 64 is none.
    word(index) >> shift | word(index + 1) << 1 << (63 - shift)
}

/// A selection with the packets it is to run on. All packets are equally long: [`SelectionJob::new`] checks this.
#[derive(Debug)]
pub struct SelectionJob<'a, 't> {
    selection: &'a Selection,
    sources: &'a [&'a [u8]],
    targets: &'a mut [&'t mut [u8]],
    stores: Stores,
    is_one_of_series: bool,
    next: &'a [&'a [u8]],
    packet_bytes: usize,
}

impl<'a, 't> SelectionJob<'a, 't> {
    /// Returns the job of writing the sums that `selection` calls for.
    ///
    /// # Errors
    ///
    /// [`RatelessError::PacketCount`] or [`RatelessError::PacketLength`] if the packets do not fit the selection.
    pub fn new(
        selection: &'a Selection,
        sources: &'a [&'a [u8]],
        targets: &'a mut [&'t mut [u8]],
    ) -> Result<Self, RatelessError> {
        let counts = [
            ("source", sources.len(), selection.sources()),
            ("coded", targets.len(), selection.targets()),
        ];
        for (kind, seen, needed) in counts {
            if seen != needed {
                return Err(RatelessError::PacketCount { kind, seen, needed });
            }
        }
        let lengths = sources.iter().map(|source| source.len());
        let mut lengths = lengths.chain(targets.iter().map(|target| target.len()));
        let packet_bytes = lengths.next().unwrap_or(0);
        if let Some(seen) = lengths.find(|&length| length != packet_bytes) {
            return Err(RatelessError::PacketLength {
                seen,
                needed: packet_bytes,
            });
        }
        Ok(Self {
            selection,
            sources,
            targets,
            stores: Stores::Cached,
            is_one_of_series: false,
            next: &[],
            packet_bytes,
        })
    }

    /// Says where the targets are stored to.
    #[must_use]
    pub fn with_stores(self, stores: Stores) -> Self {
        Self { stores, ..self }
    }

    /// Leaves the fence behind writes past the caches to the caller, who calls it once for a series of jobs.
    #[must_use]
    pub(super) fn in_series(self) -> Self {
        Self {
            is_one_of_series: true,
            ..self
        }
    }

    /// Returns whether the caller fences.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn is_one_of_series(&self) -> bool {
        self.is_one_of_series
    }

    /// Names packets that the next job will read. They are asked for from memory while this job runs.
    #[must_use]
    pub(super) fn with_next(self, next: &'a [&'a [u8]]) -> Self {
        Self { next, ..self }
    }

    /// Returns the packets that the next job will read.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn next(&self) -> &'a [&'a [u8]] {
        self.next
    }

    pub(crate) fn selection(&self) -> &'a Selection {
        self.selection
    }

    pub(crate) fn sources(&self) -> &'a [&'a [u8]] {
        self.sources
    }

    pub(crate) fn target(&mut self, target: usize) -> &mut [u8] {
        self.targets[target]
    }

    pub(crate) fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// Returns whether every target begins at a multiple of so many bytes.
    pub(crate) fn targets_are_aligned(&self, bytes: usize) -> bool {
        let mut targets = self.targets.iter();
        targets.all(|target| target.as_ptr().addr().is_multiple_of(bytes))
    }

    pub(crate) fn stores(&self) -> Stores {
        self.stores
    }

    /// Returns how long each packet is, in bytes.
    pub(crate) fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_taken_across_words_and_are_zero_behind_the_row() {
        let row = [0xF000_0000_0000_0001, 0b1011];
        assert_eq!(bits_from(&row, 0), row[0]);
        assert_eq!(bits_from(&row, 60), 0b1011_1111);
        assert_eq!(bits_from(&row, 63), 0b10111);
        assert_eq!(bits_from(&row, 64), 0b1011);
        assert_eq!(bits_from(&row, 66), 0b10);
        assert_eq!(bits_from(&row, 126), 0);
        assert_eq!(bits_from(&row, 200), 0);
    }

    #[test]
    fn a_pass_looks_at_no_more_entries_than_its_cache_holds() {
        for sources in [1, 2, 31, 32, 64, 500, 4096] {
            for targets in [1, 3, 32, 1024, 4096] {
                let bits = table_bits(sources, targets);
                let at_once = tables_at_once(bits);
                assert!((1..=MOST_BITS).contains(&bits), "{sources} {targets}");
                assert!(at_once << bits <= ENTRIES_AT_ONCE, "{sources} {targets}");
                assert!(at_once.is_power_of_two(), "{sources} {targets}");
            }
        }
    }
}
