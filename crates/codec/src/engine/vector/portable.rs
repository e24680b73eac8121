//! A register of the tests.

#[cfg(target_arch = "x86_64")]
use super::Affine;
use super::{Bits, Distance, Vector};

/// A register that any CPU has, with the instruction spelled out. Its bytes are those of a number in little-endian order,
/// which the compiler need not take apart in each step of an unrolled loop.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Portable(u64);

#[expect(unsafe_code, reason = "the trait's constructors are unsafe")]
impl Vector for Portable {
    const BYTES: usize = 8;
    #[cfg(target_arch = "x86_64")]
    const STREAMS: bool = false;

    unsafe fn zero() -> Self {
        Self(0)
    }

    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the bytes.
        Self(u64::from_le_bytes(unsafe {
            from.cast::<[u8; 8]>().read_unaligned()
        }))
    }

    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { to.cast::<[u8; 8]>().write_unaligned(self.0.to_le_bytes()) }
    }

    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { self.store(to) }
    }

    unsafe fn fence() {}

    unsafe fn prefetch(_from: *const u8) {}

    unsafe fn prefetch_early(_from: *const u8) {}

    #[cfg(target_arch = "x86_64")]
    unsafe fn prefetch_to_write(_to: *mut u8) {}

    // Not made part of loops, whose compilation would take minutes.
    #[inline(never)]
    fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the trait's methods are unsafe")]
impl Affine for Portable {
    unsafe fn matrix(map: u64) -> Self {
        Self(map)
    }

    #[inline(never)]
    unsafe fn multiply(self, matrix: Self) -> Self {
        let rows = matrix.0.to_be_bytes();
        let bit = |byte: u8, i: usize| (rows[i] & byte).count_ones() & 1 == 1;
        let product = |byte| (0..8).fold(0, |sum, i| sum | u8::from(bit(byte, i)) << i);
        Self(u64::from_le_bytes(self.0.to_le_bytes().map(product)))
    }
}

impl Bits for Portable {
    fn splat(self, byte: u8) -> Self {
        Self(u64::from_le_bytes([byte; 8]))
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn shift_right(self, distance: Distance) -> Self {
        Self(self.0 >> bits(distance))
    }

    fn shift_left(self, distance: Distance) -> Self {
        Self(self.0 << bits(distance))
    }
}

fn bits(distance: Distance) -> u32 {
    match distance {
        Distance::One => 1,
        Distance::Two => 2,
        Distance::Four => 4,
    }
}
