//! The registers of 64-bit ARM: 16 bytes with NEON.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::arch::aarch64::{
    uint8x16_t, vaddq_u8, vandq_u8, vcltzq_s8, vdupq_n_u8, veorq_u8, vld1q_u8, vreinterpretq_s8_u8,
    vshlq_n_u8, vshrq_n_u8, vst1q_u8,
};

use super::{Bits, Distance, TimesTwo, Vector};

/// A register of NEON.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Neon16(uint8x16_t);

#[expect(
    unsafe_code,
    reason = "intrinsics; the trait says what makes them sound"
)]
impl Vector for Neon16 {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller vouches for NEON.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for NEON and for the readable bytes.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: `self` proves NEON; the caller vouches for the bytes.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // There is no stable intrinsic for a store past the caches.
        // SAFETY: the caller vouches for the bytes.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {
        // There is no stable intrinsic for it; the CPU's own prefetcher has to do.
    }

    #[inline(always)]
    unsafe fn prefetch_early(_from: *const u8) {
        // As above.
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: `self` proves NEON.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }
}

#[expect(
    unsafe_code,
    reason = "intrinsics; `self` proves that the CPU has them"
)]
impl TimesTwo for Neon16 {
    #[inline(always)]
    unsafe fn offset() -> Self {
        // SAFETY: the caller vouches for NEON.
        unsafe { Self::zero() }
    }

    #[inline(always)]
    fn times_two(self) -> [Self; 2] {
        // SAFETY: `self` proves NEON, here and below.
        let doubled = unsafe { vaddq_u8(self.0, self.0) };
        // SAFETY: as above.
        let signed = unsafe { vreinterpretq_s8_u8(self.0) };
        // SAFETY: as above.
        let pushed_out = unsafe { vcltzq_s8(signed) };
        // SAFETY: as above.
        let reduction = unsafe { vdupq_n_u8(0x1d) };
        // SAFETY: as above.
        let reduction = unsafe { vandq_u8(pushed_out, reduction) };
        [Self(doubled), Self(reduction)]
    }
}

#[expect(unsafe_code, reason = "intrinsics, for which a value is the proof")]
impl Bits for Neon16 {
    #[inline(always)]
    fn splat(self, byte: u8) -> Self {
        // SAFETY: `self` proves NEON.
        Self(unsafe { vdupq_n_u8(byte) })
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: `self` proves NEON.
        Self(unsafe { vandq_u8(self.0, other.0) })
    }

    #[inline(always)]
    fn shift_right(self, distance: Distance) -> Self {
        Self(match distance {
            // SAFETY: `self` proves NEON.
            Distance::One => unsafe { vshrq_n_u8::<1>(self.0) },
            // SAFETY: as above.
            Distance::Two => unsafe { vshrq_n_u8::<2>(self.0) },
            // SAFETY: as above.
            Distance::Four => unsafe { vshrq_n_u8::<4>(self.0) },
        })
    }

    #[inline(always)]
    fn shift_left(self, distance: Distance) -> Self {
        Self(match distance {
            // SAFETY: `self` proves NEON.
            Distance::One => unsafe { vshlq_n_u8::<1>(self.0) },
            // SAFETY: as above.
            Distance::Two => unsafe { vshlq_n_u8::<2>(self.0) },
            // SAFETY: as above.
            Distance::Four => unsafe { vshlq_n_u8::<4>(self.0) },
        })
    }
}
