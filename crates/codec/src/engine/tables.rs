//! The loop of the random code: sums of selected packets by look-ups in tables of registers.

use crate::{
    Stores,
    rateless::{ENTRIES_AT_ONCE, SelectionJob},
};

use super::{quads, vector::Vector};

/// Bytes of a strip: what is summed at once of each packet. A cache line, so that no line is read twice.
pub(super) const STRIP_BYTES: usize = 64;

/// The registers of a strip.
type Strip<V, const N: usize> = [V; N];

/// Writes all targets of a job.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(unsafe_code, reason = "makes registers from nothing")]
#[expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]
#[inline(always)]
pub(super) unsafe fn run<V: Vector, const N: usize>(job: &mut SelectionJob<'_, '_>) {
    const { assert!(N * V::BYTES == STRIP_BYTES) };
    // SAFETY: the caller vouches for the CPU.
    let start = unsafe { quads::run::<V, N>(job) };
    if start == job.packet_bytes() {
        return;
    }
    // SAFETY: the caller vouches for the CPU, here and below.
    match job.selection().tables_at_once() {
        // SAFETY: as above.
        1 => unsafe { run_tables::<V, N, 1, ENTRIES_AT_ONCE>(job, start) },
        // SAFETY: as above.
        2 => unsafe { run_tables::<V, N, 2, { ENTRIES_AT_ONCE / 2 }>(job, start) },
        // SAFETY: as above.
        4 => unsafe { run_tables::<V, N, 4, { ENTRIES_AT_ONCE / 4 }>(job, start) },
        // SAFETY: as above.
        _ => unsafe { run_tables::<V, N, 8, { ENTRIES_AT_ONCE / 8 }>(job, start) },
    }
}

/// Writes all targets from byte `start` on, by passes over them with `T` tables of at most `E` entries each.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(unsafe_code, reason = "makes registers from nothing")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn run_tables<V: Vector, const N: usize, const T: usize, const E: usize>(
    job: &mut SelectionJob<'_, '_>,
    start: usize,
) {
    let (selection, sources) = (job.selection(), job.sources());
    let streaming = job.stores() == Stores::Streaming && job.targets_are_aligned(V::BYTES);
    // SAFETY: the caller vouches for the CPU.
    let zero = [unsafe { V::zero() }; N];
    let mut tables = [[zero; E]; T];
    // Where targets stay in the cache, asking for the next packets made decoding slower.
    let next = match job.stores() {
        Stores::Streaming => job.next(),
        Stores::Cached => &[],
    };
    let passes = selection.passes().len();
    let mut sums = vec![zero; if passes > 1 { job.target_count() } else { 0 }];
    for at in (start..job.packet_bytes()).step_by(STRIP_BYTES) {
        for packet in next {
            // SAFETY: the caller vouches for the CPU.
            unsafe { V::prefetch(packet.as_ptr().wrapping_add(at)) };
        }
        let mut groups = sources.chunks(selection.table_bits());
        for (pass, entries) in selection.passes().enumerate() {
            for table in &mut tables {
                // SAFETY: the caller vouches for the CPU.
                unsafe { fill(table, groups.next().unwrap_or_default(), at) };
            }
            let (entries, _) = entries.as_chunks::<T>();
            if passes == 1 {
                for (target, entries) in entries.iter().enumerate() {
                    let sum = add_up(&tables, entries, zero);
                    // SAFETY: `streaming` says that targets are aligned.
                    unsafe { write(sum, job.target(target), at, streaming) };
                }
            } else if pass + 1 == passes {
                for (target, (entries, sum)) in entries.iter().zip(&sums).enumerate() {
                    let sum = add_up(&tables, entries, *sum);
                    // SAFETY: as above.
                    unsafe { write(sum, job.target(target), at, streaming) };
                }
            } else {
                for (entries, sum) in entries.iter().zip(&mut sums) {
                    *sum = add_up(&tables, entries, if pass == 0 { zero } else { *sum });
                }
            }
        }
    }
    if streaming && !job.is_one_of_series() {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }
}

/// Returns a sum and one entry of each table.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn add_up<V: Vector, const N: usize, const T: usize, const E: usize>(
    tables: &[[Strip<V, N>; E]; T],
    entries: &[u8; T],
    mut sum: Strip<V, N>,
) -> Strip<V, N> {
    for (table, &entry) in tables.iter().zip(entries) {
        let strip = &table[usize::from(entry) % E];
        for (sum, register) in sum.iter_mut().zip(strip) {
            *sum = sum.xor(*register);
        }
    }
    sum
}

/// Fills a table with the sums of all subsets of the strips of a group of sources.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(unsafe_code, reason = "makes registers from nothing")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn fill<V: Vector, const N: usize, const E: usize>(
    table: &mut [Strip<V, N>; E],
    group: &[&[u8]],
    at: usize,
) {
    for (index, source) in group.iter().enumerate() {
        // SAFETY: the caller vouches for the CPU.
        let strip = unsafe { read::<V, N>(source, at) };
        let (known, new) = table.split_at_mut(1 << index);
        for (new, known) in new.iter_mut().zip(known) {
            for (register, (known, added)) in new.iter_mut().zip(known.iter().zip(&strip)) {
                *register = known.xor(*added);
            }
        }
    }
}

/// Returns the strip of a packet from byte `at` on, with zeros behind its end.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(unsafe_code, reason = "reads registers through pointers")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn read<V: Vector, const N: usize>(packet: &[u8], at: usize) -> Strip<V, N> {
    let rest = &packet[at..];
    let mut padded = [0; STRIP_BYTES];
    let bytes = rest.first_chunk().unwrap_or_else(|| {
        padded[..rest.len()].copy_from_slice(rest);
        &padded
    });
    // SAFETY: the caller vouches for the CPU.
    let mut strip = [unsafe { V::zero() }; N];
    for (index, register) in strip.iter_mut().enumerate() {
        let from = bytes.as_ptr().wrapping_add(index * V::BYTES);
        // SAFETY: the strip has N registers, as `run` asserts; the caller vouches for the CPU.
        *register = unsafe { V::load(from) };
    }
    strip
}

/// Writes a strip to a packet from byte `at` on, up to its end.
///
/// # Safety
///
/// The packet must be aligned to a register if `streaming` is true.
#[expect(unsafe_code, reason = "writes registers through pointers")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn write<V: Vector, const N: usize>(
    strip: Strip<V, N>,
    packet: &mut [u8],
    at: usize,
    streaming: bool,
) {
    let rest = &mut packet[at..];
    let Some(bytes) = rest.first_chunk_mut::<STRIP_BYTES>() else {
        let mut padded = [0; STRIP_BYTES];
        for (index, register) in strip.iter().enumerate() {
            let to = padded.as_mut_ptr().wrapping_add(index * V::BYTES);
            // SAFETY: the array holds N registers, as `run` asserts.
            unsafe { register.store(to) };
        }
        rest.copy_from_slice(&padded[..rest.len()]);
        return;
    };
    for (index, register) in strip.iter().enumerate() {
        let to = bytes.as_mut_ptr().wrapping_add(index * V::BYTES);
        if streaming {
            // SAFETY: the array holds N registers, and the caller vouches for the alignment of the packet; strips and
            // registers begin at multiples of a register from there.
            unsafe { register.stream(to) };
        } else {
            // SAFETY: the array holds N registers.
            unsafe { register.store(to) };
        }
    }
}
