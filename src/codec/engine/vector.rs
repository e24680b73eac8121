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
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

/// A register of bytes that can be added.
#[expect(
    unsafe_code,
    reason = "the caller vouches for the CPU and for pointers"
)]
pub(super) trait Vector: Copy {
    /// Bytes in a register.
    const BYTES: usize;

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

    /// Returns the sum of two registers.
    fn xor(self, other: Self) -> Self;

    /// Returns the sum of three registers.
    #[inline(always)]
    fn xor3(self, a: Self, b: Self) -> Self {
        self.xor(a.xor(b))
    }
}

/// A register whose bytes can be multiplied by x, the element 2 of the field.
pub(super) trait TimesTwo: Vector {
    /// Returns the product of every byte and x.
    fn times_two(self) -> Self;
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
}
