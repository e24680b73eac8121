//! Lost data shards from syndromes.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use crate::engine::vector::Affine;
use crate::{
    job::{Job, Mode},
    syndromes::Syndromes,
};

use super::{
    columns::Columns,
    rows::{Rows, targets},
};

/// `R` lost shards, which are computed from as many syndromes; with `PARITY_LEADS`, as
/// [`Syndromes::parity_leads`].
pub(super) struct Solution<'a, const R: usize, const PARITY_LEADS: bool> {
    /// The syndromes, before parities are added that do not lead.
    rows: Rows<'a, R, true>,
    /// One for each syndrome.
    parities: &'a [&'a [u8]; R],
    /// For each syndrome, one map for each lost shard.
    maps: &'a [[u64; R]; R],
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<'a, const R: usize, const PARITY_LEADS: bool> Solution<'a, R, PARITY_LEADS> {
    pub(super) fn new(job: &mut Job<'a, '_>, syndromes: &'a Syndromes) -> Self {
        let (data, parities) = job.sources().split_at(syndromes.first_parity());
        let parities: &[&[u8]; R] = parities.try_into().expect("a parity for each lost shard");
        let (leading, scaled) = match data.split_first() {
            Some((&leading, scaled)) if !PARITY_LEADS => (leading, scaled),
            _ => (parities[0], data),
        };
        let rows = Rows {
            targets: targets(job, 0),
            leading: Some(leading),
            scaled,
            maps: syndromes.scaled_maps(),
            maps_stride: R,
            mode: job.mode(),
            stores: job.stores(),
        };
        let (maps, _) = syndromes.solution_maps().as_chunks();
        let maps = maps.try_into().expect("maps for each syndrome");
        assert_eq!(syndromes.parity_leads(), PARITY_LEADS);
        Self {
            rows,
            parities,
            maps,
        }
    }

    /// Returns the syndromes.
    ///
    /// # Safety
    ///
    /// As for [`Columns::columns`].
    #[inline(always)]
    unsafe fn syndromes<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        offset: usize,
    ) -> [[V; N]; R] {
        // SAFETY: the caller vouches for these bytes.
        let mut sums = unsafe { self.rows.sums::<V, N, STREAM>(offset, Mode::Assign) };
        for (r, sums) in sums.iter_mut().enumerate() {
            if r == 0 && PARITY_LEADS {
                continue;
            }
            let from = self.parities[r].as_ptr().wrapping_add(offset);
            // Within the caches that gains nothing: no arithmetic comes between parities.
            if STREAM {
                // SAFETY: the caller vouches for the CPU.
                unsafe { V::prefetch_ahead::<N>(from) };
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller vouches for these bytes.
                *sum = sum.xor(unsafe { V::load(from.wrapping_add(i * V::BYTES)) });
            }
        }
        sums
    }

    /// Returns the lost shard `target`, which is not the first.
    ///
    /// # Safety
    ///
    /// The CPU must have GFNI and the instructions of `V`.
    #[inline(always)]
    unsafe fn solve<V: Affine, const N: usize>(
        &self,
        syndromes: &[[V; N]; R],
        target: usize,
    ) -> [V; N] {
        // SAFETY: the caller vouches for the CPU.
        let mut sums = [unsafe { V::zero() }; N];
        let mut r = usize::from(PARITY_LEADS);
        while r < R {
            // SAFETY: the caller vouches for GFNI.
            let product = unsafe { V::multiply_all(syndromes[r], self.maps[r][target]) };
            for i in 0..N {
                sums[i] = sums[i].xor(product[i]);
            }
            r += 1;
        }
        sums
    }
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<const R: usize, const PARITY_LEADS: bool> Columns for Solution<'_, R, PARITY_LEADS> {
    fn streaming(&self, register_bytes: usize, offset: usize) -> bool {
        self.rows.streaming(register_bytes, offset)
    }

    #[inline(always)]
    unsafe fn columns<V: Affine, const N: usize, const STREAM: bool>(&self, offset: usize) {
        // SAFETY: the caller vouches for these bytes.
        let syndromes = unsafe { self.syndromes::<V, N, STREAM>(offset) };
        let mut first = syndromes[0];
        for target in 1..R {
            // SAFETY: the caller vouches for the CPU.
            let lost = unsafe { self.solve(&syndromes, target) };
            for i in 0..N {
                first[i] = first[i].xor(lost[i]);
            }
            // SAFETY: the caller vouches for these bytes and their alignment.
            unsafe { self.rows.store::<V, N, STREAM>(target, offset, lost) };
        }
        // SAFETY: as above.
        unsafe { self.rows.store::<V, N, STREAM>(0, offset, first) };
    }
}
