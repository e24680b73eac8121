//! The loop of engines with GFNI: an instruction that multiplies bytes by an 8×8 bit matrix.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::marker::PhantomData;

use crate::codec::plan::{Job, MOST_TOGETHER, Mode, Stores};

use super::vector::{Affine, FEW_SOURCES};

/// Bytes of all sources together that a tile may take, so that they are still in the L1 cache when
/// the next few targets read them again.
const TILE_BYTES: usize = 24 << 10;

/// Computes as many leading bytes of all targets as fill whole registers; returns how many.
///
/// `WIDE` is how many registers of each source to hold at once: as many as fit beside their sums, of
/// which there are up to four times as many. `NARROW` is the same for up to ten times as many sums.
///
/// # Safety
///
/// The CPU must have GFNI and the instructions of `V`.
#[expect(
    unsafe_code,
    reason = "the loop reads and writes registers through pointers"
)]
#[inline(always)]
pub(super) unsafe fn run<V: Affine, const WIDE: usize, const NARROW: usize>(
    job: &mut Job<'_, '_>,
) -> usize {
    let whole = job.shard_bytes() / V::BYTES * V::BYTES;
    let tile = if job.target_count() <= MOST_TOGETHER {
        whole
    } else {
        let step = WIDE * V::BYTES;
        (TILE_BYTES / job.sources().len()).next_multiple_of(step)
    };
    let mut start = 0;
    while start < whole {
        let end = whole.min(start + tile);
        let mut row = 0;
        while row < job.target_count() {
            // SAFETY: the caller vouches for the CPU, and both ends of the tile are multiples of a
            // register within the shards.
            row += unsafe { next_rows::<V, WIDE, NARROW>(job, row, start, end) };
        }
        start = end;
    }
    if job.stores() == Stores::Streaming {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }
    whole
}

/// Computes bytes `start..end` of the next few rows, as many as keep their sums in registers;
/// returns how many.
///
/// # Safety
///
/// The CPU must have GFNI and the instructions of `V`; `start..end` must be whole registers within
/// the shards.
#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
#[inline(always)]
unsafe fn next_rows<V: Affine, const WIDE: usize, const NARROW: usize>(
    job: &mut Job<'_, '_>,
    row: usize,
    start: usize,
    end: usize,
) -> usize {
    let folded = job.mode() == Mode::Assign && job.plan().folded().is_some();
    let ones = job.plan().row_is_ones(row);
    macro_rules! rows {
        ($r:literal, $wide:ident, $first:ty) => {{
            let rows = Rows::<$r, $first>::new(job, row);
            // SAFETY: the caller vouches for all of it.
            unsafe { rows.run::<V, $wide>(start, end) };
            $r
        }};
        ($r:literal, $wide:ident) => {
            match (folded, ones) {
                (true, _) => rows!($r, $wide, Folded),
                (false, true) => rows!($r, $wide, Ones),
                (false, false) => rows!($r, $wide, Any),
            }
        };
    }
    // Ten rows and one are better split evenly.
    let left = job.target_count() - row;
    match left.div_ceil(left.div_ceil(MOST_TOGETHER)) {
        1 => rows!(1, WIDE),
        2 => rows!(2, WIDE),
        3 => rows!(3, WIDE),
        4 => rows!(4, WIDE),
        5 => rows!(5, NARROW),
        6 => rows!(6, NARROW),
        7 => rows!(7, NARROW),
        8 => rows!(8, NARROW),
        9 => rows!(9, NARROW),
        _ => rows!(10, NARROW),
    }
}

/// What the first of some rows is.
trait First {
    /// Whether it multiplies none of its sources.
    const PLAIN: bool;
    /// Whether it has but the leading sources, and all other rows are added to it.
    const FOLDED: bool;
}

/// A row like all others.
struct Any;

/// The plain XOR of all sources.
struct Ones;

/// The plain XOR of the leading sources and all other rows.
struct Folded;

impl First for Any {
    const PLAIN: bool = false;
    const FOLDED: bool = false;
}

impl First for Ones {
    const PLAIN: bool = true;
    const FOLDED: bool = false;
}

impl First for Folded {
    const PLAIN: bool = true;
    const FOLDED: bool = true;
}

/// `R` neighbouring rows of a job.
struct Rows<'a, const R: usize, F> {
    sources: &'a [&'a [u8]],
    /// One row of maps per source: those of this group and of all other rows.
    maps: &'a [u64],
    maps_stride: usize,
    first_row: usize,
    targets: [*mut u8; R],
    leading_ones: bool,
    /// How many sources the first row has.
    first_sources: usize,
    first: PhantomData<F>,
    mode: Mode,
    stores: Stores,
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<'a, const R: usize, F: First> Rows<'a, R, F> {
    fn new(job: &mut Job<'a, '_>, first_row: usize) -> Self {
        assert!(first_row + R <= job.target_count());
        Self {
            sources: job.sources(),
            maps: job.plan().maps(),
            maps_stride: job.target_count(),
            first_row,
            targets: std::array::from_fn(|r| job.target(first_row + r).as_mut_ptr()),
            leading_ones: job.plan().leading_ones(),
            first_sources: job.plan().folded().unwrap_or(job.sources().len()),
            first: PhantomData,
            mode: job.mode(),
            stores: job.stores(),
        }
    }

    /// Computes bytes `start..end` of these rows.
    ///
    /// # Safety
    ///
    /// As for [`next_rows`], and the job of these rows must still be borrowed.
    #[inline(always)]
    unsafe fn run<V: Affine, const WIDE: usize>(&self, start: usize, end: usize) {
        let aligned = |target: &*mut u8| (target.addr() + start).is_multiple_of(V::BYTES);
        let streaming = self.stores == Stores::Streaming && self.targets.iter().all(aligned);
        let mut offset = start;
        while end - offset >= WIDE * V::BYTES {
            if streaming {
                // SAFETY: `WIDE` more registers are left, and the targets are aligned.
                unsafe { self.columns::<V, WIDE, true>(offset) };
            } else {
                // SAFETY: `WIDE` more registers are left.
                unsafe { self.columns::<V, WIDE, false>(offset) };
            }
            offset += WIDE * V::BYTES;
        }
        while offset < end {
            // SAFETY: what is left is whole registers.
            unsafe { self.columns::<V, 1, false>(offset) };
            offset += V::BYTES;
        }
    }

    /// Computes `N` registers of each row, starting at byte `offset`; with `STREAM`, for sources
    /// and targets that are not in the cache.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`], with these registers; with `STREAM`, all targets must be aligned to
    /// registers there.
    #[inline(always)]
    unsafe fn columns<V: Affine, const N: usize, const STREAM: bool>(&self, offset: usize) {
        if !STREAM && self.sources.len() <= FEW_SOURCES {
            for target in &self.targets {
                // SAFETY: the caller vouches for the CPU.
                unsafe { V::prefetch_to_write_ahead::<N>(target.wrapping_add(offset)) };
            }
        }
        // SAFETY: the caller vouches for these bytes.
        let mut sums = unsafe { self.start::<V, N, STREAM>(offset) };
        let (from, to) = (usize::from(self.leading_ones), self.sources.len());
        if F::FOLDED {
            let split = self.first_sources;
            // SAFETY: the caller vouches for these bytes, and there are that many sources.
            unsafe { self.add::<V, N, STREAM, 0>(&mut sums, offset, from, split) };
            // SAFETY: as above.
            unsafe { self.add::<V, N, STREAM, 1>(&mut sums, offset, split, to) };
            let (first, others) = sums.split_at_mut(1);
            for other in others {
                for i in 0..N {
                    first[0][i] = first[0][i].xor(other[i]);
                }
            }
        } else {
            // SAFETY: the caller vouches for these bytes, and there are that many sources.
            unsafe { self.add::<V, N, STREAM, 0>(&mut sums, offset, from, to) };
        }
        for (target, sums) in self.targets.iter().zip(sums) {
            // SAFETY: the caller vouches for these bytes and their alignment; the job borrows the
            // target mutably, and nothing else uses it meanwhile.
            unsafe { Self::store::<V, N, STREAM>(target.wrapping_add(offset), sums) };
        }
    }

    /// Returns what is to be added to: what targets hold if that counts, and source 0 if it is
    /// multiplied by nothing.
    ///
    /// # Safety
    ///
    /// As for [`Self::columns`].
    #[inline(always)]
    unsafe fn start<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        offset: usize,
    ) -> [[V; N]; R] {
        // SAFETY: the caller vouches for the CPU.
        let mut sums = [[unsafe { V::zero() }; N]; R];
        if self.leading_ones {
            // SAFETY: the caller vouches for these bytes, and a plan has a source.
            sums = [unsafe { self.load::<V, N, STREAM>(0, offset) }; R];
        }
        if self.mode == Mode::Add {
            for (target, sums) in self.targets.iter().zip(&mut sums) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let from = target.wrapping_add(offset + i * V::BYTES);
                    // SAFETY: the caller vouches for the CPU and for these bytes.
                    *sum = sum.xor(unsafe { V::load(from) });
                }
            }
        }
        sums
    }

    /// Adds the products of sources `from..to` to the sums of all rows but the first `SKIP`.
    ///
    /// # Safety
    ///
    /// As for [`Self::columns`], and there must be such sources.
    #[inline(always)]
    unsafe fn add<V: Affine, const N: usize, const STREAM: bool, const SKIP: usize>(
        &self,
        sums: &mut [[V; N]; R],
        offset: usize,
        from: usize,
        to: usize,
    ) {
        let mut source = from;
        // Two sources at a time: one three-way XOR adds both products.
        while source + 1 < to {
            // SAFETY: the caller vouches for these bytes and for the source.
            let a = unsafe { self.load::<V, N, STREAM>(source, offset) };
            // SAFETY: as above.
            let b = unsafe { self.load::<V, N, STREAM>(source + 1, offset) };
            for (r, sums) in sums.iter_mut().enumerate().skip(SKIP) {
                // SAFETY: the caller vouches for the sources and for GFNI.
                let a = unsafe { self.multiply(a, source, r) };
                // SAFETY: as above.
                let b = unsafe { self.multiply(b, source + 1, r) };
                for i in 0..N {
                    sums[i] = sums[i].xor3(a[i], b[i]);
                }
            }
            source += 2;
        }
        if source < to {
            // SAFETY: the caller vouches for these bytes and for the source.
            let a = unsafe { self.load::<V, N, STREAM>(source, offset) };
            for (r, sums) in sums.iter_mut().enumerate().skip(SKIP) {
                // SAFETY: the caller vouches for the source and for GFNI.
                let a = unsafe { self.multiply(a, source, r) };
                for i in 0..N {
                    sums[i] = sums[i].xor(a[i]);
                }
            }
        }
    }

    /// Returns `N` registers of one source.
    ///
    /// # Safety
    ///
    /// There must be such a source, and the registers must lie within the shards.
    #[inline(always)]
    unsafe fn load<V: Affine, const N: usize, const AHEAD: bool>(
        &self,
        source: usize,
        offset: usize,
    ) -> [V; N] {
        // SAFETY: the caller vouches for the source.
        let shard = unsafe { self.sources.get_unchecked(source) };
        let from = shard.as_ptr().wrapping_add(offset);
        if AHEAD {
            // SAFETY: the caller vouches for the CPU.
            unsafe { V::prefetch_ahead::<N>(from) };
        }
        std::array::from_fn(|i| {
            // SAFETY: the caller vouches for the CPU and for these bytes.
            unsafe { V::load(from.wrapping_add(i * V::BYTES)) }
        })
    }

    /// Returns the product of registers of source `source` with its coefficient in row `r` of this
    /// group.
    ///
    /// # Safety
    ///
    /// There must be such a source, and the CPU must have GFNI.
    #[inline(always)]
    unsafe fn multiply<V: Affine, const N: usize>(
        &self,
        registers: [V; N],
        source: usize,
        r: usize,
    ) -> [V; N] {
        if F::PLAIN && r == 0 {
            return registers;
        }
        let index = source * self.maps_stride + self.first_row + r;
        // SAFETY: there are `maps_stride` maps per source, one per row, and the caller vouches for
        // the source.
        let map = unsafe { *self.maps.get_unchecked(index) };
        // SAFETY: the registers prove the instructions of `V`.
        let matrix = unsafe { V::matrix(map) };
        registers.map(|register| {
            // SAFETY: the caller vouches for GFNI.
            unsafe { register.multiply(matrix) }
        })
    }

    /// Writes sums to a target.
    ///
    /// # Safety
    ///
    /// These registers must be writable at `to` and not in use elsewhere; with `STREAM`, `to` must
    /// be aligned to a register.
    #[inline(always)]
    unsafe fn store<V: Affine, const N: usize, const STREAM: bool>(to: *mut u8, sums: [V; N]) {
        for (i, sum) in sums.into_iter().enumerate() {
            let to = to.wrapping_add(i * V::BYTES);
            if STREAM {
                // SAFETY: the caller vouches for these bytes and their alignment; `run` fences.
                unsafe { sum.stream(to) };
            } else {
                // SAFETY: the caller vouches for these bytes.
                unsafe { sum.store(to) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::engine::vector::Vector;
    use crate::codec::{Geometry, Matrix, Plan, decode::decode_matrix, engine::scalar, field};

    /// A register that any CPU has, with the instruction spelled out.
    #[derive(Clone, Copy)]
    struct Portable([u8; 8]);

    #[expect(unsafe_code, reason = "the trait's constructors are unsafe")]
    impl Vector for Portable {
        const BYTES: usize = 8;

        unsafe fn zero() -> Self {
            Self([0; 8])
        }

        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller vouches for the bytes.
            Self(unsafe { from.cast::<[u8; 8]>().read_unaligned() })
        }

        unsafe fn store(self, to: *mut u8) {
            // SAFETY: the caller vouches for the bytes.
            unsafe { to.cast::<[u8; 8]>().write_unaligned(self.0) }
        }

        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: the caller vouches for the bytes.
            unsafe { self.store(to) }
        }

        unsafe fn fence() {}

        unsafe fn prefetch(_from: *const u8) {}

        unsafe fn prefetch_to_write(_to: *mut u8) {}

        fn xor(self, other: Self) -> Self {
            Self(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
        }
    }

    #[expect(unsafe_code, reason = "the trait's methods are unsafe")]
    impl Affine for Portable {
        unsafe fn matrix(map: u64) -> Self {
            Self(map.to_le_bytes())
        }

        unsafe fn multiply(self, matrix: Self) -> Self {
            let bit = |byte: u8, i: usize| (matrix.0[7 - i] & byte).count_ones() & 1 == 1;
            let product = |byte| (0..8).fold(0, |sum, i| sum | u8::from(bit(byte, i)) << i);
            Self(self.0.map(product))
        }
    }

    /// Runs the loop and the scalar one, and compares.
    #[expect(unsafe_code, reason = "the loop demands instructions")]
    fn check(matrix: Matrix, mode: Mode) {
        let length = 16 * 8 + 5;
        let mut state = 1u8;
        let mut noise = |_| {
            state = field::mul(state, 3) ^ 0x5A;
            state
        };
        let mut shard = || (0..length).map(&mut noise).collect::<Vec<u8>>();
        let sources: Vec<Vec<u8>> = (0..matrix.columns()).map(|_| shard()).collect();
        let mut found: Vec<Vec<u8>> = (0..matrix.rows()).map(|_| shard()).collect();
        let mut expected = found.clone();
        let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
        let plan = Plan::new(matrix);

        let mut targets: Vec<&mut [u8]> = found.iter_mut().map(|t| &mut t[..]).collect();
        let mut job = Job::new(&plan, &sources, &mut targets, mode).expect("shards fit");
        // SAFETY: the register needs no instructions that a CPU could lack.
        let done = unsafe { run::<Portable, 2, 1>(&mut job) };
        assert_eq!(done, 16 * 8);
        scalar::finish(&mut job, done);

        let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(|t| &mut t[..]).collect();
        scalar::finish(
            &mut Job::new(&plan, &sources, &mut targets, mode).expect("shards fit"),
            0,
        );
        assert!(found == expected, "{:?} {mode:?}", plan.matrix());
    }

    #[test]
    fn the_loop_agrees_with_scalar_on_every_generator_and_decode_matrix_of_small_geometries() {
        for k in 1..=7 {
            for m in 1..=7 {
                let generator = Matrix::cauchy(Geometry::new(k, m).expect("valid"));
                check(generator.clone(), Mode::Assign);
                check(generator.clone(), Mode::Add);
                for lost in 1..=k.min(m) {
                    for first in 0..=k - lost {
                        let lost: Vec<usize> = (first..first + lost).collect();
                        let used = (0..k + lost.len()).filter(|shard| !lost.contains(shard));
                        let matrix = decode_matrix(&generator, &used.collect::<Vec<_>>(), &lost);
                        check(matrix.clone(), Mode::Assign);
                        check(matrix, Mode::Add);
                    }
                }
            }
        }
    }

    #[test]
    fn the_loop_agrees_with_scalar_on_every_way_to_split_rows_into_groups() {
        for m in 1..=2 * MOST_TOGETHER + 1 {
            let generator = Matrix::cauchy(Geometry::new(m + 1, m).expect("valid"));
            check(generator.clone(), Mode::Assign);
            check(generator.clone(), Mode::Add);
            let used: Vec<usize> = (m..=2 * m).collect();
            let lost: Vec<usize> = (0..m).collect();
            check(decode_matrix(&generator, &used, &lost), Mode::Assign);
        }
    }

    #[test]
    fn decoding_with_parity_0_computes_one_shard_from_the_others() {
        let generator = Matrix::cauchy(Geometry::new(10, 4).expect("valid"));
        let used = [1, 3, 4, 5, 7, 8, 10, 11, 12, 13];
        let plan = Plan::new(decode_matrix(&generator, &used, &[0, 2, 6, 9]));
        assert_eq!(plan.folded(), Some(7), "six data shards and parity 0");
        let used = [1, 3, 4, 5, 7, 8, 9, 11, 12, 13];
        let plan = Plan::new(decode_matrix(&generator, &used, &[0, 2, 6]));
        assert_eq!(plan.folded(), None, "without parity 0");
    }
}
