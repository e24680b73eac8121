//! The loop of engines with GFNI: an instruction that multiplies bytes by an 8×8 bit matrix.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

mod columns;
mod rows;
mod solution;

use std::ops::Range;

use crate::{
    job::{Job, Mode, Stores},
    syndromes::Syndromes,
};

use self::{columns::Columns, rows::Rows, solution::Solution};
use super::{fft, vector::Affine};

/// Bytes of all sources together that a tile may take. They are still in the L1 cache then when the
/// next few targets read them again.
const TILE_BYTES: usize = 24 << 10;

/// The most rows of which `NARROW` registers at a time are computed. Of more, it is one.
const MOST_NARROW: usize = 10;

/// Computes as many leading bytes of all targets as fill whole registers, or by transforms all of them;
/// returns how many.
///
/// `WIDE` is how many registers of each source to hold at once: as many as fit beside their sums, of
/// which there are up to four times as many. `NARROW` is the same for up to ten times as many sums,
/// and `MOST` how many sums there may be of a single register.
///
/// # Safety
///
/// The CPU must have GFNI and the instructions of `V`.
#[expect(
    unsafe_code,
    reason = "the loop reads and writes registers through pointers"
)]
#[inline(always)]
pub(super) unsafe fn run<V: Affine, const WIDE: usize, const NARROW: usize, const MOST: usize>(
    job: &mut Job<'_, '_>,
) -> usize {
    if let Some(program) = fft::program_for::<V>(job) {
        // SAFETY: the caller vouches for the CPU.
        return unsafe { fft::run::<V>(job, program) };
    }
    // SAFETY: as above.
    unsafe { run_plan::<V, WIDE, NARROW, MOST>(job, MOST) }
}

/// Computes as many leading bytes of all targets as fill whole registers by the coefficients of the plan; returns how many.
/// The constants are those of [`run`]. There are at most `most` sums at once, which are `MOST` or fewer.
///
/// # Safety
///
/// As for [`run`].
#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
#[inline(always)]
unsafe fn run_plan<V: Affine, const WIDE: usize, const NARROW: usize, const MOST: usize>(
    job: &mut Job<'_, '_>,
    most: usize,
) -> usize {
    let whole = job.shard_bytes() / V::BYTES * V::BYTES;
    match job.plan().syndromes() {
        Some(syndromes) if job.mode() == Mode::Assign && syndromes.count() <= most => {
            // SAFETY: the caller vouches for the CPU, and the shards have that many bytes.
            unsafe { solve::<V, WIDE, NARROW, MOST>(job, syndromes, whole) };
        }
        _ => {
            // SAFETY: as above.
            unsafe { multiply::<V, WIDE, NARROW, MOST>(job, whole, most) };
        }
    }
    if job.stores() == Stores::Streaming {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }
    whole
}

/// Computes `whole` bytes of all targets from the plan's coefficients.
///
/// # Safety
///
/// The CPU must have GFNI and the instructions of `V`; `whole` must be whole registers within the
/// shards.
#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
#[inline(always)]
unsafe fn multiply<V: Affine, const WIDE: usize, const NARROW: usize, const MOST: usize>(
    job: &mut Job<'_, '_>,
    whole: usize,
    most: usize,
) {
    let tile = if job.target_count() <= most {
        whole
    } else {
        let step = WIDE * V::BYTES;
        (TILE_BYTES / job.sources().len().max(1)).next_multiple_of(step)
    };
    let mut start = 0;
    while start < whole {
        let end = whole.min(start + tile);
        let mut row = 0;
        while row < job.target_count() {
            // SAFETY: the caller vouches for the CPU, and both ends of the tile are multiples of a
            // register within the shards.
            row += unsafe { next_rows::<V, WIDE, NARROW, MOST>(job, row, start..end, most) };
        }
        start = end;
    }
}

/// Runs a body with the number of rows as a constant, and the number of registers to go with it: of
/// sources in the cache, and of those that are not.
macro_rules! with_rows {
    ($count:expr, $body:ident) => {
        match $count {
            1 => $body!(1, WIDE, NARROW),
            2 => $body!(2, WIDE, NARROW),
            3 => $body!(3, WIDE, NARROW),
            4 => $body!(4, WIDE, NARROW),
            5 => $body!(5, NARROW, NARROW),
            6 => $body!(6, NARROW, NARROW),
            7 => $body!(7, NARROW, NARROW),
            8 => $body!(8, NARROW, NARROW),
            9 => $body!(9, NARROW, NARROW),
            10 => $body!(10, NARROW, NARROW),
            // Compiled only for registers that are as many.
            count if const { MOST > MOST_NARROW } => match count {
                11 => $body!(11, 1, 1),
                12 => $body!(12, 1, 1),
                13 => $body!(13, 1, 1),
                14 => $body!(14, 1, 1),
                15 => $body!(15, 1, 1),
                _ => $body!(16, 1, 1),
            },
            count => unreachable!("{count} rows at once, of at most {MOST}"),
        }
    };
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
unsafe fn next_rows<V: Affine, const WIDE: usize, const NARROW: usize, const MOST: usize>(
    job: &mut Job<'_, '_>,
    row: usize,
    Range { start, end }: Range<usize>,
    most: usize,
) -> usize {
    let ones = job.plan().row_is_ones(row);
    macro_rules! rows {
        ($r:literal, $cached:tt, $streamed:tt) => {{
            if ones {
                // SAFETY: the caller vouches for all of it.
                unsafe { Rows::<$r, true>::new(job, row).run::<V, $cached, $streamed>(start, end) };
            } else {
                // SAFETY: as above.
                unsafe {
                    Rows::<$r, false>::new(job, row).run::<V, $cached, $streamed>(start, end)
                };
            }
            $r
        }};
    }
    // Ten rows and one are better split evenly.
    let left = job.target_count() - row;
    with_rows!(left.div_ceil(left.div_ceil(most)), rows)
}

/// Computes `whole` bytes of all targets by syndromes.
///
/// # Safety
///
/// As for [`multiply`].
#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
#[inline(always)]
unsafe fn solve<'a, V: Affine, const WIDE: usize, const NARROW: usize, const MOST: usize>(
    job: &mut Job<'a, '_>,
    syndromes: &'a Syndromes,
    whole: usize,
) {
    macro_rules! solve {
        ($r:literal, $cached:tt, $streamed:tt) => {{
            if syndromes.parity_leads() {
                let solution = Solution::<$r, true>::new(job, syndromes);
                // SAFETY: the caller vouches for all of it.
                unsafe { solution.run::<V, $cached, $streamed>(0, whole) };
            } else {
                let solution = Solution::<$r, false>::new(job, syndromes);
                // SAFETY: as above.
                unsafe { solution.run::<V, $cached, $streamed>(0, whole) };
            }
        }};
    }
    with_rows!(syndromes.count(), solve);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::vector::portable::Portable;
    use crate::syndromes::MOST_TOGETHER;
    use crate::{Geometry, Matrix, Plan, decode::decode_matrix, engine::scalar, field};

    /// Runs the loop, with as many sums as each engine has registers for, and the scalar one, and
    /// compares.
    fn check(plan: &Plan, mode: Mode) {
        check_with_at_most(16, plan, mode);
        check_with_at_most(10, plan, mode);
    }

    #[expect(unsafe_code, reason = "the loop demands instructions")]
    fn check_with_at_most(most: usize, plan: &Plan, mode: Mode) {
        let length = 16 * 8 + 5;
        let mut state = 1u8;
        let mut noise = |_| {
            state = field::mul(state, 3) ^ 0x5A;
            state
        };
        let mut shard = || (0..length).map(&mut noise).collect::<Vec<u8>>();
        let sources: Vec<Vec<u8>> = (0..plan.matrix().columns()).map(|_| shard()).collect();
        let mut found: Vec<Vec<u8>> = (0..plan.matrix().rows()).map(|_| shard()).collect();
        let mut expected = found.clone();
        let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();

        let mut targets: Vec<&mut [u8]> = found.iter_mut().map(|t| &mut t[..]).collect();
        let mut job = Job::new(plan, &sources, &mut targets, mode).expect("shards fit");
        // Compiled once for all numbers of sums, and without transforms: it is large.
        // SAFETY: the register needs no instructions that a CPU could lack.
        let done = unsafe { run_plan::<Portable, 2, 1, 16>(&mut job, most) };
        assert_eq!(done, 16 * 8);
        scalar::finish(&mut job, done);

        let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(|t| &mut t[..]).collect();
        scalar::finish(
            &mut Job::new(plan, &sources, &mut targets, mode).expect("shards fit"),
            0,
        );
        assert!(found == expected, "{plan:?} {mode:?}, {most} at most");
    }

    /// Returns the plan that the codec makes for lost data shards, and whether it uses syndromes.
    fn decode_plan(generator: &Matrix, used: &[usize], lost: &[usize]) -> (Plan, bool) {
        let syndromes = Syndromes::new(generator, used, lost);
        let short = syndromes.is_some();
        let plan = Plan::new(decode_matrix(generator, used, lost)).with_syndromes(syndromes);
        (plan, short)
    }

    #[test]
    fn the_loop_agrees_with_scalar_on_every_generator_and_decode_matrix_of_small_geometries() {
        for k in 1..=7 {
            for m in 1..=7 {
                let generator = Matrix::cauchy(Geometry::new(k, m).expect("valid"));
                check(&Plan::new(generator.clone()), Mode::Assign);
                check(&Plan::new(generator.clone()), Mode::Add);
                for count in 1..=k.min(m) {
                    for first in 0..=k - count {
                        let lost: Vec<usize> = (first..first + count).collect();
                        let used = (0..k + count).filter(|shard| !lost.contains(shard));
                        let used: Vec<usize> = used.collect();
                        let (plan, short) = decode_plan(&generator, &used, &lost);
                        assert_eq!(short, count > 1, "{k}+{m} without {lost:?}");
                        check(&plan, Mode::Assign);
                        check(&plan, Mode::Add);
                    }
                }
            }
        }
    }

    #[test]
    fn targets_of_no_source_become_zero() {
        for rows in [1, 5, 12, 40] {
            check(&Plan::new(Matrix::from_fn(rows, 0, |_, _| 1)), Mode::Assign);
        }
    }

    #[test]
    fn the_loop_agrees_with_scalar_on_every_way_to_split_rows_into_groups() {
        for m in 1..=2 * MOST_TOGETHER + 1 {
            let generator = Matrix::cauchy(Geometry::new(m + 1, m).expect("valid"));
            check(&Plan::new(generator.clone()), Mode::Assign);
            check(&Plan::new(generator.clone()), Mode::Add);
            let used: Vec<usize> = (m..=2 * m).collect();
            let lost: Vec<usize> = (0..m).collect();
            let (plan, short) = decode_plan(&generator, &used, &lost);
            assert_eq!(short, (2..=MOST_TOGETHER).contains(&m), "{m}");
            check(&plan, Mode::Assign);
        }
    }
}
