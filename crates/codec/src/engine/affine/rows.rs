//! Rows of a plan's coefficients: sums of all sources, each multiplied.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use crate::engine::vector::{Affine, FEW_SOURCES, LINE_BYTES};
use crate::job::{Job, Mode, Stores};

use super::columns::{Columns, MOST_WIDE};

/// `R` neighbouring rows of a job, of which the first multiplies nothing if `ONES`.
pub(super) struct Rows<'a, const R: usize, const ONES: bool> {
    pub(super) targets: [*mut u8; R],
    /// The source that enters all these rows unscaled.
    pub(super) leading: Option<&'a [u8]>,
    /// Those that are multiplied.
    pub(super) scaled: &'a [&'a [u8]],
    /// Maps of the scaled sources, those for these rows first.
    pub(super) maps: &'a [u64],
    /// Maps from one source to the next.
    pub(super) maps_stride: usize,
    pub(super) mode: Mode,
    pub(super) stores: Stores,
}

/// Returns `N` registers of a source; if `ahead`, asks for later ones.
///
/// # Safety
///
/// The CPU must have the instructions of `V`, and the registers must lie within the source.
#[expect(unsafe_code, reason = "reads registers through a pointer")]
#[inline(always)]
unsafe fn load<V: Affine, const N: usize>(source: &[u8], offset: usize, ahead: bool) -> [V; N] {
    let from = source.as_ptr().wrapping_add(offset);
    if ahead {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::prefetch_ahead::<N>(from) };
    }
    std::array::from_fn(|i| {
        // SAFETY: the caller vouches for the CPU and for these bytes.
        unsafe { V::load(from.wrapping_add(i * V::BYTES)) }
    })
}

/// Returns where to write a job's targets from `first` on.
pub(super) fn targets<const R: usize>(job: &mut Job<'_, '_>, first: usize) -> [*mut u8; R] {
    assert!(first + R <= job.target_count());
    std::array::from_fn(|r| job.target(first + r).as_mut_ptr())
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<'a, const R: usize, const ONES: bool> Rows<'a, R, ONES> {
    pub(super) fn new(job: &mut Job<'a, '_>, first_row: usize) -> Self {
        let maps_stride = job.target_count();
        let (leading, scaled) = match job.sources().split_first() {
            Some((&leading, scaled)) if job.plan().leading_ones() => (Some(leading), scaled),
            _ => (None, job.sources()),
        };
        let first = (job.sources().len() - scaled.len()) * maps_stride + first_row;
        Self {
            targets: targets(job, first_row),
            leading,
            scaled,
            // None are left if no source is scaled.
            maps: job.plan().maps().get(first..).unwrap_or_default(),
            maps_stride,
            mode: job.mode(),
            stores: job.stores(),
        }
    }

    /// Returns whether to ask for sources ahead of the loop. This pays with `stream`, and when so
    /// much is made of each source that the L2 cache is too slow. The CPU does not look far enough
    /// ahead by itself then.
    const fn ahead<V: Affine>(stream: bool) -> bool {
        stream || R > MOST_WIDE && V::BYTES == LINE_BYTES
    }

    /// Returns the sums of all rows, with what targets hold if `mode` says so.
    ///
    /// # Safety
    ///
    /// As for [`Columns::columns`].
    #[inline(always)]
    pub(super) unsafe fn sums<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        offset: usize,
        mode: Mode,
    ) -> [[V; N]; R] {
        if !STREAM && self.scaled.len() < FEW_SOURCES {
            for target in &self.targets {
                // SAFETY: the caller vouches for the CPU.
                unsafe { V::prefetch_to_write_ahead::<N>(target.wrapping_add(offset)) };
            }
        }
        // SAFETY: the caller vouches for these bytes.
        let mut sums = unsafe { self.start::<V, N, STREAM>(offset, mode) };
        // SAFETY: as above.
        unsafe { self.add::<V, N, STREAM>(&mut sums, offset) };
        sums
    }

    /// Returns what is to be added to: what targets hold if that counts, and the leading source.
    ///
    /// # Safety
    ///
    /// As for [`Columns::columns`].
    #[inline(always)]
    unsafe fn start<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        offset: usize,
        mode: Mode,
    ) -> [[V; N]; R] {
        // SAFETY: the caller vouches for the CPU.
        let mut sums = [[unsafe { V::zero() }; N]; R];
        if let Some(leading) = self.leading {
            // SAFETY: the caller vouches for these bytes.
            sums = [unsafe { load::<V, N>(leading, offset, Self::ahead::<V>(STREAM)) }; R];
        }
        if mode == Mode::Add {
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

    /// Adds the products of all scaled sources.
    ///
    /// # Safety
    ///
    /// As for [`Columns::columns`].
    #[inline(always)]
    unsafe fn add<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        sums: &mut [[V; N]; R],
        offset: usize,
    ) {
        let (pairs, single) = self.scaled.as_chunks::<2>();
        let mut maps = self.maps.as_ptr();
        let ahead = Self::ahead::<V>(STREAM);
        // Two sources at a time: one three-way XOR adds both products.
        for [a, b] in pairs {
            let maps_of_b = maps.wrapping_add(self.maps_stride);
            // SAFETY: the caller vouches for these bytes.
            let a = unsafe { load::<V, N>(a, offset, ahead) };
            // SAFETY: as above.
            let b = unsafe { load::<V, N>(b, offset, ahead) };
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: there are maps for all scaled sources, and the caller vouches for GFNI.
                let a = unsafe { Self::multiply(a, maps, r) };
                // SAFETY: as above.
                let b = unsafe { Self::multiply(b, maps_of_b, r) };
                for i in 0..N {
                    sums[i] = sums[i].xor3(a[i], b[i]);
                }
            }
            maps = maps_of_b.wrapping_add(self.maps_stride);
        }
        for a in single {
            // SAFETY: the caller vouches for these bytes.
            let a = unsafe { load::<V, N>(a, offset, ahead) };
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: there are maps for all scaled sources, and the caller vouches for GFNI.
                let a = unsafe { Self::multiply(a, maps, r) };
                for i in 0..N {
                    sums[i] = sums[i].xor(a[i]);
                }
            }
        }
    }

    /// Returns the product of registers of a source with its coefficient in row `r` of these.
    ///
    /// # Safety
    ///
    /// `maps` must be those of the source, and the CPU must have GFNI.
    #[inline(always)]
    unsafe fn multiply<V: Affine, const N: usize>(
        registers: [V; N],
        maps: *const u64,
        r: usize,
    ) -> [V; N] {
        if ONES && r == 0 {
            return registers;
        }
        // SAFETY: the caller vouches for the maps of a source, one per row.
        let map = unsafe { *maps.wrapping_add(r) };
        // SAFETY: the registers prove the instructions of `V`, and the caller vouches for GFNI.
        unsafe { V::multiply_all(registers, map) }
    }

    /// Writes sums to a target.
    ///
    /// # Safety
    ///
    /// As for [`Columns::columns`].
    #[inline(always)]
    pub(super) unsafe fn store<V: Affine, const N: usize, const STREAM: bool>(
        &self,
        target: usize,
        offset: usize,
        sums: [V; N],
    ) {
        for (i, sum) in sums.into_iter().enumerate() {
            let to = self.targets[target].wrapping_add(offset + i * V::BYTES);
            if STREAM {
                // SAFETY: the caller vouches for these bytes and their alignment; a fence follows.
                unsafe { sum.stream(to) };
            } else {
                // SAFETY: the caller vouches for these bytes; the job borrows the target mutably, and
                // nothing else uses it meanwhile.
                unsafe { sum.store(to) };
            }
        }
    }
}

#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
impl<const R: usize, const ONES: bool> Columns for Rows<'_, R, ONES> {
    fn streaming(&self, register_bytes: usize, offset: usize) -> bool {
        let aligned = |target: &*mut u8| (target.addr() + offset).is_multiple_of(register_bytes);
        self.stores == Stores::Streaming && self.targets.iter().all(aligned)
    }

    #[inline(always)]
    unsafe fn columns<V: Affine, const N: usize, const STREAM: bool>(&self, offset: usize) {
        // SAFETY: the caller vouches for all of it.
        let sums = unsafe { self.sums::<V, N, STREAM>(offset, self.mode) };
        for (target, sums) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.store::<V, N, STREAM>(target, offset, sums) };
        }
    }
}
