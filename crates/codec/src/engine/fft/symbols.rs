//! Symbols of a code in registers, as transforms need them.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

#[cfg(target_arch = "x86_64")]
use crate::{
    engine::vector::{Affine, Vector},
    field,
};

/// A few symbols that can be added, and multiplied by a factor. Slots may hold them in another form than
/// shards do.
///
/// A value is the proof that this CPU has the instructions that its methods use: only the `unsafe`
/// constructors make one from nothing.
#[expect(
    unsafe_code,
    reason = "the caller vouches for the CPU and for pointers"
)]
pub(in crate::engine) trait Symbols: Copy {
    /// Bytes of a shard or of a slot that a value takes.
    const BYTES: usize;

    /// The alignment that [`Self::stream_shard`] needs, in bytes.
    const ALIGNMENT: usize;

    /// True if a register holds the symbols, so that all those of a step fit the registers.
    const IS_REGISTER: bool;

    /// The rough time that a program takes for a product, and for a shard to be read or written. The unit is half the time
    /// that the engine's other loop takes for a coefficient.
    const COSTS: (usize, usize);

    /// An element of the field, in the form that multiplication takes.
    type Factor: Copy;

    /// Returns an element of the field as a factor.
    fn factor(element: u8) -> Self::Factor;

    /// Returns symbols that are all 0.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn zero() -> Self;

    /// Returns the symbols of a shard.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type, and [`Self::BYTES`] bytes must be readable.
    unsafe fn load_shard(from: *const u8) -> Self;

    /// Writes the symbols to a shard.
    ///
    /// # Safety
    ///
    /// [`Self::BYTES`] bytes must be writable.
    unsafe fn store_shard(self, to: *mut u8);

    /// Writes the symbols to a shard past the caches. [`Self::fence`] must follow before another thread is
    /// told of them.
    ///
    /// # Safety
    ///
    /// [`Self::BYTES`] bytes must be writable, and aligned to [`Self::ALIGNMENT`].
    unsafe fn stream_shard(self, to: *mut u8);

    /// Orders what [`Self::stream_shard`] wrote before later writes.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn fence();

    /// Asks for what the loop over a shard, now at `from`, will read. It need not be a readable address.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of this type.
    unsafe fn prefetch_ahead(from: *const u8);

    /// Returns the symbols of a slot.
    ///
    /// # Safety
    ///
    /// As for [`Self::load_shard`].
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for all of it.
        unsafe { Self::load_shard(from) }
    }

    /// Writes the symbols to a slot.
    ///
    /// # Safety
    ///
    /// As for [`Self::store_shard`].
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for all of it.
        unsafe { self.store_shard(to) }
    }

    /// Returns the sums of symbols.
    fn add(self, other: Self) -> Self;

    /// Returns these symbols plus the products of others and a factor.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of multiplication, too.
    unsafe fn add_product(self, other: Self, factor: Self::Factor) -> Self;
}

/// All elements as the instruction takes them.
#[cfg(target_arch = "x86_64")]
static MAPS: [u64; 256] = {
    let mut maps = [0; 256];
    let mut element = 0;
    while element < maps.len() {
        maps[element] = field::affine_map(element.to_le_bytes()[0]);
        element += 1;
    }
    maps
};

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
impl<V: Affine> Symbols for V {
    const BYTES: usize = V::BYTES;
    const ALIGNMENT: usize = V::BYTES;
    const IS_REGISTER: bool = true;
    const COSTS: (usize, usize) = (3, 2);

    type Factor = u64;

    fn factor(element: u8) -> u64 {
        MAPS[usize::from(element)]
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller vouches for the CPU.
        unsafe { <V as Vector>::zero() }
    }

    #[inline(always)]
    unsafe fn load_shard(from: *const u8) -> Self {
        // SAFETY: the caller vouches for all of it.
        unsafe { <V as Vector>::load(from) }
    }

    #[inline(always)]
    unsafe fn store_shard(self, to: *mut u8) {
        // SAFETY: the caller vouches for all of it.
        unsafe { <V as Vector>::store(self, to) }
    }

    #[inline(always)]
    unsafe fn stream_shard(self, to: *mut u8) {
        // SAFETY: the caller vouches for all of it.
        unsafe { self.stream(to) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: the caller vouches for the CPU.
        unsafe { <V as Vector>::fence() }
    }

    #[inline(always)]
    unsafe fn prefetch_ahead(from: *const u8) {
        // SAFETY: the caller vouches for the CPU.
        unsafe { <V as Vector>::prefetch_ahead::<1>(from) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.xor(other)
    }

    #[inline(always)]
    unsafe fn add_product(self, other: Self, factor: u64) -> Self {
        // SAFETY: `self` proves the instructions of the register.
        let matrix = unsafe { V::matrix(factor) };
        // SAFETY: the caller vouches for GFNI.
        self.xor(unsafe { other.multiply(matrix) })
    }
}
