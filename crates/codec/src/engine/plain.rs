//! The loop that bench holds all others against: read every source, write every target, and do no
//! more than XOR.

use crate::job::{Job, Stores};

use super::vector::Vector;

/// Registers of each shard that are added together before they are written.
const WIDE: usize = 4;

/// Writes the XOR of all sources to every target, up to the last whole `WIDE` registers; returns how
/// many bytes.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(unsafe_code, reason = "reads and writes registers through pointers")]
#[expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]
#[inline(always)]
pub(super) unsafe fn run<V: Vector>(job: &mut Job<'_, '_>) -> usize {
    let step = WIDE * V::BYTES;
    let whole = job.shard_bytes() / step * step;
    let sources = job.sources();
    let rows = 0..job.target_count();
    let targets: Vec<*mut u8> = rows.map(|row| job.target(row).as_mut_ptr()).collect();
    let aligned = targets
        .iter()
        .all(|target| target.addr().is_multiple_of(V::BYTES));
    let streaming = job.stores() == Stores::Streaming && aligned;
    for offset in (0..whole).step_by(step) {
        // SAFETY: the caller vouches for the CPU.
        let mut sums = [unsafe { V::zero() }; WIDE];
        let mut pairs = sources.chunks_exact(2);
        for pair in &mut pairs {
            for (i, sum) in sums.iter_mut().enumerate() {
                let at = offset + i * V::BYTES;
                // SAFETY: the caller vouches for the CPU, the loop for a whole register.
                let a = unsafe { V::load(pair[0].as_ptr().wrapping_add(at)) };
                // SAFETY: as above.
                let b = unsafe { V::load(pair[1].as_ptr().wrapping_add(at)) };
                *sum = sum.xor3(a, b);
            }
        }
        for single in pairs.remainder() {
            for (i, sum) in sums.iter_mut().enumerate() {
                let from = single.as_ptr().wrapping_add(offset + i * V::BYTES);
                // SAFETY: as above.
                *sum = sum.xor(unsafe { V::load(from) });
            }
        }
        for target in &targets {
            for (i, sum) in sums.iter().enumerate() {
                let to = target.wrapping_add(offset + i * V::BYTES);
                if streaming {
                    // SAFETY: a whole register is left, and the target is aligned.
                    unsafe { sum.stream(to) };
                } else {
                    // SAFETY: a whole register is left, and the job borrows the target mutably.
                    unsafe { sum.store(to) };
                }
            }
        }
    }
    if streaming {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }
    whole
}
