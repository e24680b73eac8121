//! The loop of engines without a Galois-field instruction: XOR, and multiplication by x.
//!
//! Multiplying a register of bytes by x is a shift and a conditional XOR; every product is put
//! together from those as [`Horner`](crate::horner::Horner) says.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::{marker::PhantomData, mem::MaybeUninit};

use crate::{
    horner::{Chunk, HornerRow, Slot},
    job::{Job, Mode, Stores},
};

use super::{
    fft::{self, Planes},
    vector::{Bits, TimesTwo},
};

/// Memory for the slots of a chunk, in whole cache lines.
#[repr(C, align(64))]
struct Slots([MaybeUninit<u8>; Slot::MOST * Slot::BYTES]);

/// Computes as many leading bytes of all targets as fill whole registers, or by transforms all of them;
/// returns how many.
///
/// `WIDE` is how many registers of each shard to work on at once: as many as fit a slot and leave
/// others for sums, so that the steps are walked rarely.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(
    unsafe_code,
    reason = "the loop reads and writes registers through pointers"
)]
#[inline(always)]
pub(super) unsafe fn run<V: TimesTwo + Bits, const WIDE: usize>(job: &mut Job<'_, '_>) -> usize {
    const { assert!(WIDE * V::BYTES <= Slot::BYTES) };
    if let Some(program) = fft::program_for::<Planes<V>>(job) {
        // SAFETY: the caller vouches for the CPU.
        let done = unsafe { fft::run::<Planes<V>>(job, program) };
        if done > 0 {
            return done;
        }
    }
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
#[expect(
    clippy::large_stack_arrays,
    reason = "24 KiB, which every thread has and the L1 cache holds"
)]
#[inline(always)]
unsafe fn columns<V: TimesTwo, const N: usize, const STREAM: bool>(
    job: &mut Job<'_, '_>,
    chunk: &Chunk,
    mode: Mode,
    start: usize,
    end: usize,
) {
    let mut slots = Slots([MaybeUninit::uninit(); Slot::MOST * Slot::BYTES]);
    let mut column = Column::<V, N>::new(job, chunk, mode, start, &mut slots);
    for _ in 0..(end - start) / (N * V::BYTES) {
        if STREAM {
            // SAFETY: the caller vouches for the CPU.
            unsafe { column.prefetch() };
        }
        // SAFETY: the caller vouches for the CPU and for these registers.
        unsafe { column.fill_slots() };
        for row in &chunk.rows {
            // SAFETY: as above; the slots that the row adds are filled.
            let sums = unsafe { column.row(row) };
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
    slots: *mut u8,
    borrowed: PhantomData<(&'a mut Slots, V)>,
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
        slots: &'a mut Slots,
    ) -> Self {
        let sources = &job.sources()[chunk.first_source..][..chunk.sources];
        let sources = sources
            .iter()
            .map(|shard| shard.as_ptr().wrapping_add(start))
            .collect();
        let rows = 0..job.target_count();
        let targets = rows
            .map(|row| job.target(row).as_mut_ptr().wrapping_add(start))
            .collect();
        assert!(chunk.slot_count() <= Slot::MOST);
        Self {
            chunk,
            mode,
            sources,
            targets,
            slots: slots.0.as_mut_ptr().cast(),
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

    /// Copies the sources to the first slots, and computes the shared sums. Slots do not displace
    /// each other from the cache, as shards a power of two apart do.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and these registers must lie within the shards.
    #[inline(always)]
    unsafe fn fill_slots(&self) {
        let mut to = self.slots;
        for &source in &self.sources {
            let registers: [V; N] = std::array::from_fn(|i| {
                // SAFETY: the caller vouches for the CPU and for these bytes.
                unsafe { V::load(source.wrapping_add(i * V::BYTES)) }
            });
            // SAFETY: there is a slot for each source, of at least `N` registers.
            unsafe { Self::store_all::<false>(registers, to) };
            to = to.wrapping_add(Slot::BYTES);
        }
        for &[a, b] in &self.chunk.shared {
            // SAFETY: the caller vouches for the CPU, and slots come before their sum.
            let sums =
                std::array::from_fn(|i| unsafe { self.load(a, i) }.xor(unsafe { self.load(b, i) }));
            // SAFETY: there is a slot for each shared sum, of at least `N` registers.
            unsafe { Self::store_all::<false>(sums, to) };
            to = to.wrapping_add(Slot::BYTES);
        }
    }

    /// Writes registers to neighbouring bytes, past the cache with `STREAM`.
    ///
    /// # Safety
    ///
    /// These bytes must be writable; with `STREAM`, aligned to registers.
    #[inline(always)]
    unsafe fn store_all<const STREAM: bool>(registers: [V; N], to: *mut u8) {
        for (i, register) in registers.into_iter().enumerate() {
            let to = to.wrapping_add(i * V::BYTES);
            if STREAM {
                // SAFETY: the caller vouches for these bytes and their alignment; `run` fences.
                unsafe { register.stream(to) };
            } else {
                // SAFETY: the caller vouches for these bytes.
                unsafe { register.store(to) };
            }
        }
    }

    /// Returns register `i` of a slot.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`; the slot must be one of the chunk, and filled.
    #[inline(always)]
    unsafe fn load(&self, slot: Slot, i: usize) -> V {
        let from = self.slots.wrapping_add(slot.offset() + i * V::BYTES);
        // SAFETY: the caller vouches for the CPU and the slot.
        unsafe { V::load(from) }
    }

    /// Returns the registers of one target.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and all slots that the row adds must be filled.
    #[inline(always)]
    unsafe fn row(&self, row: &HornerRow) -> [V; N] {
        let Some((&first, others)) = row.counts.split_first() else {
            // SAFETY: the caller vouches for the CPU.
            return [unsafe { V::zero() }; N];
        };
        let (slots, mut rest) = row.slots.split_at(usize::from(first));
        // SAFETY: the caller vouches for the CPU.
        let offset = unsafe { V::offset() };
        // SAFETY: the caller vouches for the slots.
        let mut sums = unsafe { self.add([offset; N], slots) };
        for &count in others {
            let (slots, later) = rest.split_at(usize::from(count));
            rest = later;
            // The usual numbers of slots, without a loop.
            macro_rules! step {
                ($count:literal, $slots:expr) => {
                    // SAFETY: the caller vouches for the slots.
                    unsafe { self.step::<$count>(sums, $slots) }
                };
            }
            sums = match *slots {
                [] => step!(0, []),
                [a] => step!(1, [a]),
                [a, b] => step!(2, [a, b]),
                [a, b, c] => step!(3, [a, b, c]),
                [a, b, c, d] => step!(4, [a, b, c, d]),
                [a, b, c, d, ref more @ ..] => {
                    let sums = step!(4, [a, b, c, d]);
                    // SAFETY: as above.
                    unsafe { self.add(sums, more) }
                }
            };
        }
        sums.map(|sum| sum.xor(offset))
    }

    /// Returns sums multiplied by x, with slots added.
    ///
    /// # Safety
    ///
    /// As for [`Self::load`], with all these slots.
    #[inline(always)]
    unsafe fn step<const COUNT: usize>(&self, mut sums: [V; N], slots: [Slot; COUNT]) -> [V; N] {
        for (i, sum) in sums.iter_mut().enumerate() {
            let [mut doubled, mut reduction] = sum.times_two();
            let (pairs, single) = slots.as_chunks::<2>();
            for &[a, b] in pairs {
                // SAFETY: the caller vouches for the slots.
                let a = unsafe { self.load(a, i) };
                // SAFETY: as above.
                let b = unsafe { self.load(b, i) };
                doubled = doubled.xor3(a, b);
            }
            for &a in single {
                // SAFETY: as above.
                reduction = reduction.xor(unsafe { self.load(a, i) });
            }
            *sum = doubled.xor(reduction);
        }
        sums
    }

    /// Returns sums with slots added.
    ///
    /// # Safety
    ///
    /// As for [`Self::load`], with all these slots.
    #[inline(always)]
    unsafe fn add(&self, mut sums: [V; N], slots: &[Slot]) -> [V; N] {
        let (pairs, single) = slots.as_chunks::<2>();
        for &[a, b] in pairs {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the slots.
                let a = unsafe { self.load(a, i) };
                // SAFETY: as above.
                let b = unsafe { self.load(b, i) };
                *sum = sum.xor3(a, b);
            }
        }
        for &a in single {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                *sum = sum.xor(unsafe { self.load(a, i) });
            }
        }
        sums
    }

    /// Writes the registers of one target, or adds to them, and keeps them if another one needs them.
    ///
    /// # Safety
    ///
    /// These registers must lie within the shards; with `STREAM`, aligned to registers.
    #[inline(always)]
    unsafe fn store<const STREAM: bool>(&self, row: &HornerRow, sums: [V; N]) {
        if let Some(slot) = row.kept {
            // SAFETY: the slot is one of the chunk.
            unsafe { Self::store_all::<false>(sums, self.slots.wrapping_add(slot.offset())) };
        }
        let target = self.targets[row.target];
        let sums = match self.mode {
            Mode::Assign => sums,
            Mode::Add => std::array::from_fn(|i| {
                let from = target.wrapping_add(i * V::BYTES);
                // SAFETY: `sums` prove the instructions; the caller vouches for these bytes.
                sums[i].xor(unsafe { V::load(from) })
            }),
        };
        // SAFETY: the caller vouches for these bytes and their alignment; the job borrows them mutably.
        unsafe { Self::store_all::<STREAM>(sums, target) };
    }
}
