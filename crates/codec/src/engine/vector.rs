//! Vector registers full of bytes, so that each loop over them is written once for every width.
//!
//! A value of such a type is the proof that this CPU has the instructions that its methods use:
//! only the `unsafe` constructors make one from nothing.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

#[cfg(target_arch = "aarch64")]
pub(super) mod arm;
#[cfg(test)]
pub(super) mod portable;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

/// The distance ahead of a loop at which shards outside the cache are asked for, in bytes.
const PREFETCH_BYTES: usize = 512;

/// Bytes in a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// So few sources that writing targets takes longest, even within the cache. Then it helps to ask for
/// targets ahead of the loop; with more sources, they would be gone again from the L1 cache.
#[cfg(target_arch = "x86_64")]
pub(super) const FEW_SOURCES: usize = 4;

/// A register of bytes that can be added.
#[expect(
    unsafe_code,
    reason = "the caller vouches for the CPU and for pointers"
)]
pub(super) trait Vector: Copy {
    /// Bytes in a register.
    const BYTES: usize;

    /// False if [`Self::stream`] is like [`Self::store`]. Loops that stream are then not compiled.
    #[cfg(target_arch = "x86_64")]
    const STREAMS: bool = true;

    /// Returns a register of zeros.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn zero() -> Self;

    /// Returns the bytes at `from`, which need not be aligned.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type, and [`Self::BYTES`] bytes must be readable.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes the bytes to `to`, which need not be aligned.
    ///
    /// # Safety
    ///
    /// [`Self::BYTES`] bytes must be writable at `to`.
    unsafe fn store(self, to: *mut u8);

    /// Writes the bytes to `to` past the caches. [`Self::fence`] must follow before another thread
    /// is told of them.
    ///
    /// # Safety
    ///
    /// [`Self::BYTES`] bytes must be writable at `to`, and `to` must be a multiple of that.
    unsafe fn stream(self, to: *mut u8);

    /// Orders what [`Self::stream`] wrote before later writes.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn fence();

    /// Asks for the cache line at `from`, which need not be a readable address.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn prefetch(from: *const u8);

    /// Asks for the cache line at `from` in the L2 cache, for what is read so late that the L1 cache would lose it again.
    /// It need not be a readable address.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn prefetch_early(from: *const u8);

    /// Asks for the cache line at `to` to be written, which saves the store the wait for it. It need
    /// not be a writable address.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    #[cfg(target_arch = "x86_64")]
    unsafe fn prefetch_to_write(to: *mut u8);

    /// Asks for what a loop over `N` registers at a time, now at `from`, will read.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    #[inline(always)]
    unsafe fn prefetch_ahead<const N: usize>(from: *const u8) {
        for line in 0..(N * Self::BYTES).div_ceil(LINE_BYTES) {
            // SAFETY: the caller vouches for the CPU.
            unsafe { Self::prefetch(from.wrapping_add(PREFETCH_BYTES + line * LINE_BYTES)) };
        }
    }

    /// Asks for what a loop over `N` registers at a time, now at `to`, will write.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn prefetch_to_write_ahead<const N: usize>(to: *mut u8) {
        for line in 0..(N * Self::BYTES).div_ceil(LINE_BYTES) {
            // SAFETY: the caller vouches for the CPU.
            unsafe { Self::prefetch_to_write(to.wrapping_add(PREFETCH_BYTES + line * LINE_BYTES)) };
        }
    }

    /// Returns the sum of two registers.
    fn xor(self, other: Self) -> Self;

    /// Returns the sum of three registers.
    #[inline(always)]
    fn xor3(self, a: Self, b: Self) -> Self {
        self.xor(a.xor(b))
    }
}

/// A register whose bits can be moved within bytes.
pub(super) trait Bits: Vector {
    /// Returns a register full of copies of one byte.
    fn splat(self, byte: u8) -> Self;

    /// Returns the bits that are set in both registers.
    fn and(self, other: Self) -> Self;

    /// Returns the register with all bits moved towards the lowest. They may cross from one byte to another.
    fn shift_right(self, distance: Distance) -> Self;

    /// Returns the register with all bits moved towards the highest. They may cross from one byte to another.
    fn shift_left(self, distance: Distance) -> Self;
}

/// A number of bits to move by.
#[derive(Clone, Copy)]
pub(super) enum Distance {
    One,
    Two,
    Four,
}

/// A register whose bytes can be multiplied by x, the element 2 of the field.
#[expect(unsafe_code, reason = "the caller vouches for the CPU")]
pub(super) trait TimesTwo: Vector {
    /// Returns the offset that doubling keeps. Where it takes fewer instructions,
    /// [`Self::times_two`] adds a constant to every product. A sum that starts out with the offset
    /// stays off by exactly the offset.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn offset() -> Self;

    /// Returns two registers whose sum is the product of every byte and x: for `self` = s + offset,
    /// it is s·x + offset.
    fn times_two(self) -> [Self; 2];
}

/// A register whose bytes can be multiplied by an 8×8 bit matrix.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the caller vouches for the CPU")]
pub(super) trait Affine: Vector {
    /// Returns a register full of copies of one matrix.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn matrix(map: u64) -> Self;

    /// Returns the product of `matrix` and every byte.
    ///
    /// # Safety
    ///
    /// The CPU must have GFNI besides the instructions of this type.
    unsafe fn multiply(self, matrix: Self) -> Self;

    /// Returns the products of the matrix of `map` and every byte of some registers.
    ///
    /// # Safety
    ///
    /// As for [`Self::multiply`].
    #[inline(always)]
    unsafe fn multiply_all<const N: usize>(registers: [Self; N], map: u64) -> [Self; N] {
        // SAFETY: the caller vouches for the instructions.
        let matrix = unsafe { Self::matrix(map) };
        registers.map(|register| {
            // SAFETY: the caller vouches for GFNI.
            unsafe { register.multiply(matrix) }
        })
    }
}
