//! Symbols taken apart into planes of bits, for CPUs without a Galois-field instruction.
//!
//! Eight registers hold a bit of every symbol each. To multiply by a factor is to add some of them up for
//! each bit of the product, so it takes no doublings. Sources are taken apart when they are read, and targets
//! put together when they are written; in between, slots hold planes.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use crate::{
    engine::vector::{Bits, Distance, LINE_BYTES},
    field::times_two,
};

use super::symbols::Symbols;

/// The planes of a byte's bits.
const PLANES: usize = 8;

/// Pairs of neighbouring planes.
const PAIRS: usize = PLANES / 2;

/// Symbols of which each register holds one bit.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::engine) struct Planes<V>([V; PLANES]);

/// The sums that products are made of: zero, and for each pair of planes either of them and both together.
type Sums<V> = [V; 1 + 3 * PAIRS];

/// For each plane of a product, the position of the sum to take of each pair, in units of eight bytes.
type Positions = [[u8; PAIRS]; PLANES];

/// The unit of positions: with this, an address takes one instruction.
const UNIT: usize = 8;

impl<V: Bits> Planes<V> {
    /// The positions for all factors.
    const POSITIONS: [Positions; 256] = {
        let mut all = [[[0; PAIRS]; PLANES]; 256];
        let unit = (size_of::<V>() / UNIT).to_le_bytes()[0];
        let mut factor = 0;
        while factor < all.len() {
            // Bit `plane` of the power says whether that plane of the product has this plane of the factor.
            let mut power = factor.to_le_bytes()[0];
            let mut source = 0;
            while source < PLANES {
                let mut plane = 0;
                while plane < PLANES {
                    if power >> plane & 1 == 1 {
                        let position = &mut all[factor][plane][source / 2];
                        let choice = *position / unit;
                        // The first choice of a pair is its first plane, the second its second.
                        let first = (3 * (source / 2)).to_le_bytes()[0];
                        let own = (source % 2 + 1).to_le_bytes()[0];
                        *position = (if choice == 0 {
                            first + own
                        } else {
                            choice + own
                        }) * unit;
                    }
                    plane += 1;
                }
                power = times_two(power);
                source += 1;
            }
            factor += 1;
        }
        all
    };

    /// Exchanges the bits of registers and bytes: bit i of register j for bit j of register i. Done twice,
    /// it changes nothing.
    #[inline(always)]
    fn transposed(mut self) -> Self {
        self.exchange(Distance::Four, 4, 0x0F);
        self.exchange(Distance::Two, 2, 0x33);
        self.exchange(Distance::One, 1, 0x55);
        self
    }

    /// Exchanges the upper bits, which `mask` does not select, of registers for the lower ones of those that
    /// stand `registers` behind.
    #[inline(always)]
    fn exchange(&mut self, distance: Distance, registers: usize, mask: u8) {
        let mask = self.0[0].splat(mask);
        for block in (0..PLANES).step_by(2 * registers) {
            for i in block..block + registers {
                let (a, b) = (self.0[i], self.0[i + registers]);
                let differing = a.shift_right(distance).xor(b).and(mask);
                self.0[i + registers] = b.xor(differing);
                self.0[i] = a.xor(differing.shift_left(distance));
            }
        }
    }
}

#[expect(unsafe_code, reason = "passes on what the caller vouches for")]
impl<V: Bits> Symbols for Planes<V> {
    const BYTES: usize = PLANES * V::BYTES;
    const ALIGNMENT: usize = V::BYTES;
    const IS_REGISTER: bool = false;
    const COSTS: (usize, usize) = (5, 16);

    type Factor = &'static Positions;

    fn factor(element: u8) -> &'static Positions {
        let all: &'static [Positions; 256] = const { &Self::POSITIONS };
        &all[usize::from(element)]
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller vouches for the CPU.
        Self([unsafe { V::zero() }; PLANES])
    }

    #[inline(always)]
    unsafe fn load_shard(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU and these bytes.
        unsafe { Self::load(from) }.transposed()
    }

    #[inline(always)]
    unsafe fn store_shard(self, to: *mut u8) {
        // SAFETY: the caller vouches for these bytes.
        unsafe { self.transposed().store(to) }
    }

    #[inline(always)]
    unsafe fn stream_shard(self, to: *mut u8) {
        for (i, bytes) in self.transposed().0.iter().enumerate() {
            // SAFETY: the caller vouches for these bytes, their alignment, and the fence.
            unsafe { bytes.stream(to.wrapping_add(i * V::BYTES)) };
        }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }

    #[inline(always)]
    unsafe fn prefetch_ahead(from: *const u8) {
        const { assert!(Self::BYTES.is_multiple_of(LINE_BYTES)) };
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::prefetch_ahead::<PLANES>(from) };
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU.
        let mut planes = [unsafe { V::zero() }; PLANES];
        for (i, plane) in planes.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the CPU and these bytes.
            *plane = unsafe { V::load(from.wrapping_add(i * V::BYTES)) };
        }
        Self(planes)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        for (i, plane) in self.0.iter().enumerate() {
            // SAFETY: the caller vouches for these bytes.
            unsafe { plane.store(to.wrapping_add(i * V::BYTES)) };
        }
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for (plane, other) in self.0.iter_mut().zip(other.0) {
            *plane = plane.xor(other);
        }
        self
    }

    #[inline(always)]
    unsafe fn add_product(mut self, other: Self, factor: &'static Positions) -> Self {
        // SAFETY: `self` proves the instructions.
        let mut sums: Sums<V> = [unsafe { V::zero() }; 1 + 3 * PAIRS];
        for pair in 0..PAIRS {
            let (a, b) = (other.0[2 * pair], other.0[2 * pair + 1]);
            sums[3 * pair + 1] = a;
            sums[3 * pair + 2] = b;
            sums[3 * pair + 3] = a.xor(b);
        }
        let base: *const u8 = sums.as_ptr().cast();
        for (plane, &[a, b, c, d]) in self.0.iter_mut().zip(factor) {
            // SAFETY: `self` proves the instructions, and positions are those of sums.
            let a = unsafe { V::load(base.wrapping_add(usize::from(a) * UNIT)) };
            // SAFETY: as above.
            let b = unsafe { V::load(base.wrapping_add(usize::from(b) * UNIT)) };
            // SAFETY: as above.
            let c = unsafe { V::load(base.wrapping_add(usize::from(c) * UNIT)) };
            // SAFETY: as above.
            let d = unsafe { V::load(base.wrapping_add(usize::from(d) * UNIT)) };
            *plane = plane.xor3(a, b).xor3(c, d);
        }
        self
    }
}
