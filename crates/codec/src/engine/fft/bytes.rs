//! Symbols that any CPU can multiply, with a table.

use super::symbols::Symbols;
use crate::field::PRODUCTS;

/// Bytes that are looked up one by one.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Bytes([u8; 16]);

#[expect(unsafe_code, reason = "the trait's constructors are unsafe")]
impl Symbols for Bytes {
    const BYTES: usize = 16;
    const ALIGNMENT: usize = 1;
    const IS_REGISTER: bool = false;
    const COSTS: (usize, usize) = (3, 1);

    type Factor = &'static [u8; 256];

    fn factor(element: u8) -> Self::Factor {
        &PRODUCTS[usize::from(element)]
    }

    unsafe fn zero() -> Self {
        Self([0; 16])
    }

    unsafe fn load_shard(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the bytes.
        Self(unsafe { from.cast::<[u8; 16]>().read_unaligned() })
    }

    unsafe fn store_shard(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { to.cast::<[u8; 16]>().write_unaligned(self.0) }
    }

    unsafe fn stream_shard(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes.
        unsafe { self.store_shard(to) }
    }

    unsafe fn fence() {}

    unsafe fn prefetch_ahead(_from: *const u8) {}

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }

    unsafe fn add_product(self, other: Self, factor: Self::Factor) -> Self {
        self.add(Self(other.0.map(|byte| factor[usize::from(byte)])))
    }
}
