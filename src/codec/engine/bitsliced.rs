//! The loop of engines without a Galois-field instruction: XOR, and multiplication by x.
//!
//! Multiplying a register of bytes by x is a shift and a conditional XOR; every product is put
//! together from those as [`Horner`] says.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::{marker::PhantomData, mem::MaybeUninit};

use crate::codec::{
    horner::{Chunk, Horner},
    plan::{Job, Mode, Stores},
};

use super::vector::TimesTwo;

/// Entries of the tables of a chunk.
const ENTRIES: usize = Horner::MAX_GROUPS * Horner::TABLE_SIZE;

/// Computes as many leading bytes of all targets as fill whole registers; returns how many.
///
/// `WIDE` is how many registers of each shard to work on at once: 128 bytes, so that tables fit the
/// L1 cache and still the steps are walked rarely.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(
    unsafe_code,
    reason = "the loop reads and writes registers through pointers"
)]
#[inline(always)]
pub(super) unsafe fn run<V: TimesTwo, const WIDE: usize>(job: &mut Job<'_, '_>) -> usize {
    let chunks = job.plan().horner().chunks();
    let whole = job.shard_bytes() / V::BYTES * V::BYTES;
    let wide = whole - whole % (WIDE * V::BYTES);
    let aligned = |target: &[u8]| target.as_ptr().addr().is_multiple_of(V::BYTES);
    let streaming = job.stores() == Stores::Streaming
        && chunks.len() == 1
        && (0..job.target_count()).all(|row| aligned(job.target(row)));
    for (index, chunk) in chunks.iter().enumerate() {
        // All chunks but the first add to what that one left.
        let mode = if index == 0 { job.mode() } else { Mode::Add };
        if streaming {
            // SAFETY: the caller vouches for the CPU; this is whole columns of aligned targets.
            unsafe { columns::<V, WIDE, true>(job, chunk, mode, 0, wide) };
            // SAFETY: the caller vouches for the CPU.
            unsafe { V::fence() };
        } else {
            // SAFETY: the caller vouches for the CPU, and this is whole columns.
            unsafe { columns::<V, WIDE, false>(job, chunk, mode, 0, wide) };
        }
        // SAFETY: the caller vouches for the CPU, and this is whole registers.
        unsafe { columns::<V, 1, false>(job, chunk, mode, wide, whole) };
    }
    whole
}

/// Adds the sources of a chunk to bytes `start..end` of every target, `N` registers at a time; with
/// `STREAM`, for sources and targets that are not in the cache.
///
/// # Safety
///
/// The CPU must have the instructions of `V`. Both ends must lie within the shards, a multiple of
/// `N` registers apart. With `STREAM`, all targets must be aligned to registers.
#[expect(unsafe_code, reason = "vouches for the registers")]
#[inline(always)]
unsafe fn columns<V: TimesTwo, const N: usize, const STREAM: bool>(
    job: &mut Job<'_, '_>,
    chunk: &Chunk,
    mode: Mode,
    start: usize,
    end: usize,
) {
    // SAFETY: the caller vouches for the CPU.
    let zero = [unsafe { V::zero() }; N];
    let mut tables = [const { MaybeUninit::<[V; N]>::uninit() }; ENTRIES];
    // The empty subset of each group; no other entry is read before it is written.
    for table in tables.chunks_exact_mut(Horner::TABLE_SIZE) {
        table[0].write(zero);
    }
    let mut column = Column::new(job, chunk, mode, start, &mut tables);
    for _ in 0..(end - start) / (N * V::BYTES) {
        if STREAM {
            // SAFETY: the caller vouches for the CPU.
            unsafe { column.prefetch() };
        }
        // SAFETY: the caller vouches for the CPU and for these registers.
        unsafe { column.fill_tables() };
        for row in 0..column.targets.len() {
            // SAFETY: as above; tables are filled.
            let sums = unsafe { column.row(row, zero) };
            // SAFETY: as above, and the caller vouches for the alignment.
            unsafe { column.store::<STREAM>(row, sums) };
        }
        column.advance();
    }
}

/// The `N` registers of all shards that are being worked on.
struct Column<'a, V, const N: usize> {
    chunk: &'a Chunk,
    mode: Mode,
    sources: Vec<*const u8>,
    targets: Vec<*mut u8>,
    tables: *mut [V; N],
    borrowed: PhantomData<&'a mut [V; N]>,
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<'a, V: TimesTwo, const N: usize> Column<'a, V, N> {
    fn new(
        job: &'a mut Job<'_, '_>,
        chunk: &'a Chunk,
        mode: Mode,
        start: usize,
        tables: &'a mut [MaybeUninit<[V; N]>; ENTRIES],
    ) -> Self {
        let count = chunk.group_sizes.iter().sum();
        let sources = &job.sources()[chunk.first_source..][..count];
        let sources = sources
            .iter()
            .map(|shard| shard.as_ptr().wrapping_add(start))
            .collect();
        let rows = 0..job.target_count();
        let targets = rows
            .map(|row| job.target(row).as_mut_ptr().wrapping_add(start))
            .collect();
        let tables = tables.as_mut_ptr().cast();
        Self {
            chunk,
            mode,
            sources,
            targets,
            tables,
            borrowed: PhantomData,
        }
    }

    /// Goes on to the next registers.
    fn advance(&mut self) {
        for source in &mut self.sources {
            *source = source.wrapping_add(N * V::BYTES);
        }
        for target in &mut self.targets {
            *target = target.wrapping_add(N * V::BYTES);
        }
    }

    /// Asks for the sources' next cache lines.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`.
    #[inline(always)]
    unsafe fn prefetch(&self) {
        for source in &self.sources {
            // SAFETY: the caller vouches for the CPU.
            unsafe { V::prefetch_ahead::<N>(*source) };
        }
    }

    /// Computes the XORs of all subsets of each group.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and these registers must lie within the shards.
    #[inline(always)]
    unsafe fn fill_tables(&self) {
        let mut sources = &self.sources[..];
        for (group, &size) in self.chunk.group_sizes.iter().enumerate() {
            let (members, rest) = sources.split_at(size);
            sources = rest;
            let table = self.tables.wrapping_add(group * Horner::TABLE_SIZE);
            macro_rules! fill {
                ($($source:ident),+) => {
                    // SAFETY: the caller vouches for all of it.
                    unsafe { Self::fill_table([$($source),+], table) }
                };
            }
            match *members {
                [a] => fill!(a),
                [a, b] => fill!(a, b),
                [a, b, c] => fill!(a, b, c),
                [a, b, c, d] => fill!(a, b, c, d),
                _ => unreachable!("groups have one to four sources"),
            }
        }
    }

    /// Computes the XORs of all subsets of one group.
    ///
    /// # Safety
    ///
    /// As for [`Self::fill_tables`], and there must be such a table.
    #[inline(always)]
    unsafe fn fill_table<const SIZE: usize>(sources: [*const u8; SIZE], table: *mut [V; N]) {
        for i in 0..N {
            // SAFETY: the caller vouches for the CPU.
            let mut sums = [unsafe { V::zero() }; Horner::TABLE_SIZE];
            for (bit, source) in sources.iter().enumerate() {
                // SAFETY: the caller vouches for the CPU and for these bytes.
                let bytes = unsafe { V::load(source.wrapping_add(i * V::BYTES)) };
                sums[1 << bit] = bytes;
                for subset in 1..1 << bit {
                    sums[1 << bit | subset] = bytes.xor(sums[subset]);
                }
            }
            for (subset, sum) in sums.iter().enumerate().take(1 << SIZE).skip(1) {
                let to = table
                    .wrapping_add(subset)
                    .cast::<u8>()
                    .wrapping_add(i * V::BYTES);
                // SAFETY: a table has an entry of `N` registers for each subset, borrowed mutably.
                unsafe { sum.store(to) };
            }
        }
    }

    /// Returns the registers of one target.
    ///
    /// # Safety
    ///
    /// As for [`Self::fill_tables`], which must have been called.
    #[inline(always)]
    unsafe fn row(&self, row: usize, zero: [V; N]) -> [V; N] {
        let entries = self.chunk.row(row);
        // As many groups as the compiler is told of are added without a loop.
        macro_rules! steps {
            ($groups:literal) => {
                // SAFETY: the caller vouches for the tables, which have all entries of the chunk.
                unsafe { self.steps::<$groups>(entries, zero) }
            };
        }
        match self.chunk.group_sizes.len() {
            1 => steps!(1),
            2 => steps!(2),
            3 => steps!(3),
            4 => steps!(4),
            5 => steps!(5),
            6 => steps!(6),
            7 => steps!(7),
            _ => steps!(8),
        }
    }

    /// Returns the sum that `entries` of `GROUPS` tables describe.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and entries must have been filled.
    #[inline(always)]
    unsafe fn steps<const GROUPS: usize>(&self, entries: &[u16], zero: [V; N]) -> [V; N] {
        let (steps, _) = entries.as_chunks::<GROUPS>();
        let Some((first, others)) = steps.split_first() else {
            return zero;
        };
        // SAFETY: the caller vouches for the CPU.
        let offset = unsafe { V::offset() };
        // SAFETY: the caller vouches for the entries.
        let mut sums = unsafe { self.add([offset; N], first) };
        for step in others {
            // SAFETY: as above.
            let a = unsafe { self.entry(step[0]) };
            for i in 0..N {
                let [doubled, reduction] = sums[i].times_two();
                sums[i] = doubled.xor3(reduction, a[i]);
            }
            // SAFETY: as above.
            sums = unsafe { self.add(sums, &step[1..]) };
        }
        for sum in &mut sums {
            *sum = sum.xor(offset);
        }
        sums
    }

    /// Returns sums with entries of the tables added.
    ///
    /// # Safety
    ///
    /// As for [`Self::entry`], with all these entries.
    #[inline(always)]
    unsafe fn add(&self, mut sums: [V; N], entries: &[u16]) -> [V; N] {
        let (pairs, single) = entries.as_chunks::<2>();
        for &[a, b] in pairs {
            // SAFETY: the caller vouches for the entries.
            let a = unsafe { self.entry(a) };
            // SAFETY: as above.
            let b = unsafe { self.entry(b) };
            for i in 0..N {
                sums[i] = sums[i].xor3(a[i], b[i]);
            }
        }
        for &a in single {
            // SAFETY: as above.
            let a = unsafe { self.entry(a) };
            for i in 0..N {
                sums[i] = sums[i].xor(a[i]);
            }
        }
        sums
    }

    /// Returns an entry of the tables.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and the entry must have been filled.
    #[inline(always)]
    unsafe fn entry(&self, entry: u16) -> [V; N] {
        let from = self.tables.wrapping_add(usize::from(entry));
        // SAFETY: the caller vouches for the entry, which is a value of this type.
        unsafe { from.read() }
    }

    /// Writes the registers of one target, or adds to them.
    ///
    /// # Safety
    ///
    /// These registers must lie within the shards; with `STREAM`, aligned to registers.
    #[inline(always)]
    unsafe fn store<const STREAM: bool>(&self, row: usize, sums: [V; N]) {
        for (i, sum) in sums.into_iter().enumerate() {
            let to = self.targets[row].wrapping_add(i * V::BYTES);
            let sum = match self.mode {
                Mode::Assign => sum,
                // SAFETY: `sum` proves the instructions; the caller vouches for these bytes.
                Mode::Add => sum.xor(unsafe { V::load(to) }),
            };
            if STREAM {
                // SAFETY: the caller vouches for these bytes and their alignment; `run` fences.
                unsafe { sum.stream(to) };
            } else {
                // SAFETY: the caller vouches for these bytes, which the job borrows mutably.
                unsafe { sum.store(to) };
            }
        }
    }
}
