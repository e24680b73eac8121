//! The registers of x86-64: 16 bytes with SSE2, 32 with AVX2, 64 with AVX-512.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_add_epi8, _mm_and_si128,
    _mm_cmpgt_epi8, _mm_loadu_si128, _mm_prefetch, _mm_set1_epi8, _mm_setzero_si128, _mm_sfence,
    _mm_slli_epi64, _mm_srli_epi64, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
    _mm256_add_epi8, _mm256_and_si256, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_xor_si256, _mm512_add_epi8, _mm512_and_si512, _mm512_gf2p8affine_epi64_epi8,
    _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::{Affine, Bits, Distance, TimesTwo, Vector};

/// The value of x⁸ in the field: its polynomial without the term x⁸.
const REDUCTION: i8 = 0x1d;

/// A register of SSE2, which every x86-64 CPU has.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Bytes16(__m128i);

/// A register of AVX2.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Bytes32(__m256i);

/// A register of AVX-512F and AVX-512BW.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Bytes64(__m512i);

/// Implements what differs between the widths only in the names of the intrinsics.
macro_rules! vector {
    ($register:ty, $bytes:literal, $zero:path, $load:path, $store:path, $stream:path, $xor:path,
     { $($own:item)* }) => {
        #[expect(unsafe_code, reason = "intrinsics; the trait says what makes them sound")]
        impl Vector for $register {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instructions.
                Self(unsafe { $zero() })
            }

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller vouches for the instructions and for the readable bytes.
                Self(unsafe { $load(from.cast()) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: `self` proves the instructions; the caller vouches for the bytes.
                unsafe { $store(to.cast(), self.0) }
            }

            #[inline(always)]
            unsafe fn stream(self, to: *mut u8) {
                // SAFETY: `self` proves the instructions; the caller vouches for the bytes, their
                // alignment, and the fence.
                unsafe { $stream(to.cast(), self.0) }
            }

            #[inline(always)]
            unsafe fn fence() {
                // SAFETY: every x86-64 CPU has SSE.
                unsafe { _mm_sfence() };
            }

            #[inline(always)]
            unsafe fn prefetch(from: *const u8) {
                // SAFETY: every x86-64 CPU has SSE, and a prefetch reads nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
            }

            #[inline(always)]
            unsafe fn prefetch_early(from: *const u8) {
                // SAFETY: as above.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) };
            }

            #[inline(always)]
            unsafe fn prefetch_to_write(to: *mut u8) {
                // The intrinsic would need a CPU feature to be anything but a prefetch to read.
                // SAFETY: every x86-64 CPU takes this instruction, as a hint if nothing else.
                unsafe {
                    asm!("prefetchw [{}]", in(reg) to, options(nostack, preserves_flags, readonly));
                }
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                // SAFETY: `self` proves the instructions.
                Self(unsafe { $xor(self.0, other.0) })
            }

            $($own)*
        }
    };
}

vector!(
    Bytes16,
    16,
    _mm_setzero_si128,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_stream_si128,
    _mm_xor_si128,
    {}
);

vector!(
    Bytes32,
    32,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256,
    _mm256_xor_si256,
    {}
);

vector!(
    Bytes64,
    64,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512,
    _mm512_xor_si512,
    {
        #[inline(always)]
        fn xor3(self, a: Self, b: Self) -> Self {
            // The truth table of a three-way XOR: bits set where an odd number of inputs is.
            // SAFETY: `self` proves AVX-512F.
            Self(unsafe { _mm512_ternarylogic_epi64::<0b1001_0110>(self.0, a.0, b.0) })
        }
    }
);

/// Implements what moves bits. The intrinsics take distances as constants.
macro_rules! bits {
    ($register:ty, $set1:path, $and:path, $right:ident, $left:ident) => {
        #[expect(unsafe_code, reason = "intrinsics, for which a value is the proof")]
        impl Bits for $register {
            #[inline(always)]
            fn splat(self, byte: u8) -> Self {
                // SAFETY: `self` proves the instructions.
                Self(unsafe { $set1(byte.cast_signed()) })
            }

            #[inline(always)]
            fn and(self, other: Self) -> Self {
                // SAFETY: `self` proves the instructions.
                Self(unsafe { $and(self.0, other.0) })
            }

            #[inline(always)]
            fn shift_right(self, distance: Distance) -> Self {
                Self(match distance {
                    // SAFETY: `self` proves the instructions.
                    Distance::One => unsafe { $right::<1>(self.0) },
                    // SAFETY: as above.
                    Distance::Two => unsafe { $right::<2>(self.0) },
                    // SAFETY: as above.
                    Distance::Four => unsafe { $right::<4>(self.0) },
                })
            }

            #[inline(always)]
            fn shift_left(self, distance: Distance) -> Self {
                Self(match distance {
                    // SAFETY: `self` proves the instructions.
                    Distance::One => unsafe { $left::<1>(self.0) },
                    // SAFETY: as above.
                    Distance::Two => unsafe { $left::<2>(self.0) },
                    // SAFETY: as above.
                    Distance::Four => unsafe { $left::<4>(self.0) },
                })
            }
        }
    };
}

bits!(
    Bytes16,
    _mm_set1_epi8,
    _mm_and_si128,
    _mm_srli_epi64,
    _mm_slli_epi64
);
bits!(
    Bytes32,
    _mm256_set1_epi8,
    _mm256_and_si256,
    _mm256_srli_epi64,
    _mm256_slli_epi64
);
bits!(
    Bytes64,
    _mm512_set1_epi8,
    _mm512_and_si512,
    _mm512_srli_epi64,
    _mm512_slli_epi64
);

/// Implements multiplication by x by a function compiled for the CPU feature.
macro_rules! times_two {
    ($register:ty, $set1:path, $offset:expr, $function:path) => {
        #[expect(unsafe_code, reason = "calls functions compiled for a CPU feature")]
        impl TimesTwo for $register {
            #[inline(always)]
            unsafe fn offset() -> Self {
                // SAFETY: the caller vouches for the instructions.
                Self(unsafe { $set1($offset) })
            }

            #[inline(always)]
            fn times_two(self) -> [Self; 2] {
                // SAFETY: `self` proves the instructions.
                let [doubled, reduction] = unsafe { $function(self.0) };
                [Self(doubled), Self(reduction)]
            }
        }
    };
}

times_two!(Bytes16, _mm_set1_epi8, 0, times_two_sse2);
times_two!(Bytes32, _mm256_set1_epi8, OFFSET, times_two_avx2);
times_two!(Bytes64, _mm512_set1_epi8, OFFSET, times_two_avx512);

// In all three, the top bit of each byte, which the doubling pushes out, picks what is added for it.

#[target_feature(enable = "sse2")]
#[inline]
fn times_two_sse2(a: __m128i) -> [__m128i; 2] {
    let pushed_out = _mm_cmpgt_epi8(_mm_setzero_si128(), a);
    let reduction = _mm_and_si128(pushed_out, _mm_set1_epi8(REDUCTION));
    [_mm_add_epi8(a, a), reduction]
}

// From AVX2 on, one instruction, which gives 0 for a byte with its top bit set, picks from a register
// full of the same byte: the wrong way round, so that every sum is off by the reduction.

/// The constant that a sum is off by: twice this, plus the reduction, is this again.
const OFFSET: i8 = 0x0b;

#[target_feature(enable = "avx2")]
#[inline]
fn times_two_avx2(a: __m256i) -> [__m256i; 2] {
    let unless_pushed_out = _mm256_shuffle_epi8(_mm256_set1_epi8(REDUCTION), a);
    [_mm256_add_epi8(a, a), unless_pushed_out]
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn times_two_avx512(a: __m512i) -> [__m512i; 2] {
    let unless_pushed_out = _mm512_shuffle_epi8(_mm512_set1_epi8(REDUCTION), a);
    [_mm512_add_epi8(a, a), unless_pushed_out]
}

#[expect(
    unsafe_code,
    reason = "intrinsics; the trait says what makes them sound"
)]
impl Affine for Bytes32 {
    #[inline(always)]
    unsafe fn matrix(map: u64) -> Self {
        // SAFETY: the caller vouches for AVX2.
        Self(unsafe { _mm256_set1_epi64x(map.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn multiply(self, matrix: Self) -> Self {
        // SAFETY: `self` proves AVX2, and the caller vouches for GFNI.
        Self(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(self.0, matrix.0) })
    }
}

#[expect(
    unsafe_code,
    reason = "intrinsics; the trait says what makes them sound"
)]
impl Affine for Bytes64 {
    #[inline(always)]
    unsafe fn matrix(map: u64) -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        Self(unsafe { _mm512_set1_epi64(map.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn multiply(self, matrix: Self) -> Self {
        // SAFETY: `self` proves AVX-512F and AVX-512BW, and the caller vouches for GFNI.
        Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, matrix.0) })
    }
}
