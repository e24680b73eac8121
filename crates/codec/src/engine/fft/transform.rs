//! The butterflies of one step, in registers.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use crate::fft::{Kind, MOST_PLACES, Transform};

use super::{columns::Columns, symbols::Symbols};

/// Follows a step whose symbols do not fit the registers: one butterfly after the other.
///
/// # Safety
///
/// The CPU must have the instructions of `S`, and these columns must lie within all places. If they are to be
/// streamed, all targets must be aligned.
///
/// # Panics
///
/// If a place has no pointer.
#[expect(
    unsafe_code,
    reason = "reads and writes symbols through pointers, without a check each"
)]
#[inline(always)]
pub(super) unsafe fn follow_in_memory<S: Symbols>(
    step: &Transform,
    pointers: &[*mut u8],
    columns: Columns,
) {
    // SAFETY: the caller vouches for the CPU.
    let mut symbols = [unsafe { S::zero() }; MOST_PLACES];
    let symbols = &mut symbols[..step.inputs.len()];
    let reads_shards = step.has_shards && step.kind != Kind::Forward;
    let writes_shards = step.has_shards && step.kind == Kind::Forward;
    for offset in (0..columns.bytes).step_by(S::BYTES) {
        for (symbols, place) in symbols.iter_mut().zip(&step.inputs) {
            let from = pointers[place.index()].wrapping_add(offset);
            *symbols = if reads_shards {
                // SAFETY: the caller vouches for the CPU.
                unsafe { S::prefetch_ahead(from) };
                // SAFETY: the caller vouches for the CPU and for these columns.
                unsafe { S::load_shard(from) }
            } else {
                // SAFETY: as above.
                unsafe { S::load(from) }
            };
        }
        // SAFETY: the caller vouches for the CPU.
        unsafe { butterflies_in_memory(step, symbols) };
        for (symbols, place) in symbols.iter().zip(&step.outputs) {
            let to = pointers[place.index()].wrapping_add(offset);
            if writes_shards {
                // SAFETY: the caller vouches for these columns and their alignment.
                unsafe { columns.write_shard(*symbols, to) };
            } else if step.kind == Kind::AddingInverse {
                // SAFETY: the caller vouches for the CPU and for these columns.
                let sums = symbols.add(unsafe { S::load(to) });
                // SAFETY: as above; nothing else borrows slots.
                unsafe { sums.store(to) };
            } else {
                // SAFETY: as above.
                unsafe { symbols.store(to) };
            }
        }
    }
}

/// Computes all butterflies of a step.
///
/// # Safety
///
/// The CPU must have the instructions of `S`.
#[expect(unsafe_code, reason = "multiplies")]
#[inline(always)]
unsafe fn butterflies_in_memory<S: Symbols>(step: &Transform, symbols: &mut [S]) {
    let is_forward = step.kind == Kind::Forward;
    let layers = symbols.len().ilog2();
    for layer in 0..layers {
        let blocks = 1
            << if is_forward {
                layer
            } else {
                layers - 1 - layer
            };
        let block_places = symbols.len() / blocks;
        let factors = &step.factors[blocks..];
        for (block, &factor) in symbols.chunks_exact_mut(block_places).zip(factors) {
            let (first, second) = block.split_at_mut(block_places / 2);
            for (a, b) in first.iter_mut().zip(second) {
                if !is_forward {
                    *b = b.add(*a);
                }
                if factor != 0 {
                    // SAFETY: the caller vouches for the CPU.
                    *a = unsafe { a.add_product(*b, S::factor(factor)) };
                }
                if is_forward {
                    *b = b.add(*a);
                }
            }
        }
    }
}

/// `R` places that keep to themselves in all layers of a step. With `ZERO`, the first factor of each layer
/// is 0. With `SHARDS`, coefficients come from sources, or values go to targets; else they are slots.
pub(super) struct Butterflies<S: Symbols, const R: usize, const ZERO: bool, const SHARDS: bool> {
    inputs: [*const u8; R],
    outputs: [*mut u8; R],
    factors: [S::Factor; R],
    adds: bool,
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<S: Symbols, const R: usize, const ZERO: bool, const SHARDS: bool>
    Butterflies<S, R, ZERO, SHARDS>
{
    /// Returns the butterflies of a step with `R` places, which are at the given pointers.
    ///
    /// # Panics
    ///
    /// If a place has no pointer.
    #[inline(always)]
    pub(super) fn new(step: &Transform, pointers: &[*mut u8]) -> Self {
        let (inputs, outputs) = (&step.inputs[..R], &step.outputs[..R]);
        let mut own = Self {
            inputs: [std::ptr::null(); R],
            outputs: [std::ptr::null_mut(); R],
            factors: [S::factor(0); R],
            adds: step.kind == Kind::AddingInverse,
        };
        // Loops, since closures are not always made part of this function.
        for (input, place) in own.inputs.iter_mut().zip(inputs) {
            *input = pointers[place.index()];
        }
        for (output, place) in own.outputs.iter_mut().zip(outputs) {
            *output = pointers[place.index()];
        }
        for (factor, &element) in own.factors.iter_mut().zip(&step.factors[..R]) {
            *factor = S::factor(element);
        }
        own
    }

    /// Turns values into coefficients.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `S`, and these columns must lie within all places.
    #[inline(always)]
    pub(super) unsafe fn invert(&self, columns: Columns) {
        for offset in (0..columns.bytes).step_by(S::BYTES) {
            // SAFETY: the caller vouches for the CPU.
            let mut symbols = [unsafe { S::zero() }; R];
            for (symbols, input) in symbols.iter_mut().zip(&self.inputs) {
                let from = input.wrapping_add(offset);
                if SHARDS {
                    // SAFETY: as above.
                    unsafe { S::prefetch_ahead(from) };
                    // SAFETY: the caller vouches for the CPU and for these columns.
                    *symbols = unsafe { S::load_shard(from) };
                } else {
                    // SAFETY: as above.
                    *symbols = unsafe { S::load(from) };
                }
            }
            // SAFETY: the caller vouches for the CPU.
            unsafe { self.invert_layer::<1>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.invert_layer::<2>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.invert_layer::<4>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.invert_layer::<8>(&mut symbols) };
            for (&symbols, output) in symbols.iter().zip(&self.outputs) {
                let (mut sums, to) = (symbols, output.wrapping_add(offset));
                if self.adds {
                    // SAFETY: the caller vouches for the CPU and for these columns.
                    sums = sums.add(unsafe { S::load(to) });
                }
                // SAFETY: as above; nothing else borrows slots.
                unsafe { sums.store(to) };
            }
        }
    }

    /// Turns coefficients into values.
    ///
    /// # Safety
    ///
    /// As for [`Self::invert`]. If `columns` are to be streamed, all targets must be aligned.
    #[inline(always)]
    pub(super) unsafe fn evaluate(&self, columns: Columns) {
        for offset in (0..columns.bytes).step_by(S::BYTES) {
            // SAFETY: the caller vouches for the CPU.
            let mut symbols = [unsafe { S::zero() }; R];
            for (symbols, input) in symbols.iter_mut().zip(&self.inputs) {
                // SAFETY: the caller vouches for the CPU and for these columns.
                *symbols = unsafe { S::load(input.wrapping_add(offset)) };
            }
            // SAFETY: the caller vouches for the CPU.
            unsafe { self.evaluate_layer::<8>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.evaluate_layer::<4>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.evaluate_layer::<2>(&mut symbols) };
            // SAFETY: as above.
            unsafe { self.evaluate_layer::<1>(&mut symbols) };
            for (&values, output) in symbols.iter().zip(&self.outputs) {
                let to = output.wrapping_add(offset);
                if SHARDS {
                    // SAFETY: the caller vouches for these columns and their alignment.
                    unsafe { columns.write_shard(values, to) };
                } else {
                    // SAFETY: as above; nothing else borrows slots.
                    unsafe { values.store(to) };
                }
            }
        }
    }

    /// Undoes the butterflies of places that are `DISTANCE` apart, if the step has such.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `S`.
    #[inline(always)]
    unsafe fn invert_layer<const DISTANCE: usize>(&self, symbols: &mut [S; R]) {
        let blocks = R / (2 * DISTANCE);
        for block in 0..blocks {
            for i in 0..DISTANCE {
                let (a, b) = (
                    2 * DISTANCE * block + i,
                    2 * DISTANCE * block + i + DISTANCE,
                );
                let sum = symbols[a].add(symbols[b]);
                symbols[b] = sum;
                if !(ZERO && block == 0) {
                    let factor = self.factors[blocks + block];
                    // SAFETY: the caller vouches for the CPU.
                    symbols[a] = unsafe { symbols[a].add_product(sum, factor) };
                }
            }
        }
    }

    /// Computes the butterflies of places that are `DISTANCE` apart, if the step has such.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `S`.
    #[inline(always)]
    unsafe fn evaluate_layer<const DISTANCE: usize>(&self, symbols: &mut [S; R]) {
        let blocks = R / (2 * DISTANCE);
        for block in 0..blocks {
            for i in 0..DISTANCE {
                let (a, b) = (
                    2 * DISTANCE * block + i,
                    2 * DISTANCE * block + i + DISTANCE,
                );
                let mut sum = symbols[a];
                if !(ZERO && block == 0) {
                    let factor = self.factors[blocks + block];
                    // SAFETY: the caller vouches for the CPU.
                    sum = unsafe { sum.add_product(symbols[b], factor) };
                }
                symbols[a] = sum;
                symbols[b] = symbols[b].add(sum);
            }
        }
    }
}
