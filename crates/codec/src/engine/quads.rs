//! The loop of the random code for few packets, at most 32: one table to at most four packets, all tables of a strip at once.

use crate::{Stores, rateless::SelectionJob};

use super::vector::{LINE_BYTES, Vector};

/// Packets that one table sums.
const GROUP: usize = 4;

/// Entries of a table: the sums of all subsets of a group.
const ENTRIES: usize = 1 << GROUP;

/// Tables of a strip.
const TABLES: usize = 8;

/// Cache lines of a strip. Two halve the work of finding entries, and all tables still fit 16 KiB.
const LINES: usize = 2;

/// Bytes of a strip: what is summed at once of each packet.
const STRIP_BYTES: usize = LINES * LINE_BYTES;

/// The registers of a strip, line by line.
type Strip<V, const N: usize> = [[V; N]; LINES];

/// The tables of a strip.
type Tables<V, const N: usize> = [[Strip<V, N>; ENTRIES]; TABLES];

/// Writes all whole strips of the targets, and returns how many bytes of each that was: none if the job does not fit
/// this loop.
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
pub(super) unsafe fn run<V: Vector, const N: usize>(job: &mut SelectionJob<'_, '_>) -> usize {
    const { assert!(N * V::BYTES == LINE_BYTES) };
    let (selection, sources) = (job.selection(), job.sources());
    let mut passes = selection.passes();
    let (Some(entries), None) = (passes.next(), passes.next()) else {
        return 0;
    };
    if selection.tables_at_once() != TABLES || selection.table_bits() > GROUP {
        return 0;
    }
    let (entries, _) = entries.as_chunks::<TABLES>();
    let streaming = job.stores() == Stores::Streaming && job.targets_are_aligned(V::BYTES);
    let whole = job.packet_bytes() / STRIP_BYTES * STRIP_BYTES;
    if whole == 0 {
        return 0;
    }
    let mut ahead = Ahead::new(job.next());
    // SAFETY: the caller vouches for the CPU.
    let mut tables: Tables<V, N> = [[[[unsafe { V::zero() }; N]; LINES]; ENTRIES]; TABLES];
    for at in (0..whole).step_by(STRIP_BYTES) {
        let groups = sources.chunks(selection.table_bits());
        for (table, group) in tables.iter_mut().zip(groups) {
            // SAFETY: the caller vouches for the CPU.
            unsafe { fill(table, group, at) };
            // SAFETY: as above.
            unsafe { ahead.steps::<V>(group.len().div_ceil(2)) };
        }
        for (target, entries) in entries.iter().enumerate() {
            // SAFETY: as above.
            unsafe { ahead.steps::<V>(target % 2) };
            let target = &mut job.target(target)[at..];
            let Some(target) = target.first_chunk_mut() else {
                continue;
            };
            // SAFETY: `streaming` says that targets are aligned.
            unsafe { write(add_up(&tables, entries), target, streaming) };
        }
    }
    if streaming && !job.is_one_of_series() {
        // SAFETY: the caller vouches for the CPU.
        unsafe { V::fence() };
    }
    whole
}

/// Packets that are asked for ahead, line after line: about half while tables are filled, and the rest while they are read.
/// They fill the L2 cache, since tables and packets of this message fill the L1 cache.
struct Ahead<'a> {
    packets: std::slice::Iter<'a, &'a [u8]>,
    lines: &'a [u8],
}

impl<'a> Ahead<'a> {
    fn new(packets: &'a [&'a [u8]]) -> Self {
        Self {
            packets: packets.iter(),
            lines: &[],
        }
    }

    /// Asks for as many lines as so many strips have.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`.
    #[expect(unsafe_code, reason = "prefetches through pointers")]
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    unsafe fn steps<V: Vector>(&mut self, strips: usize) {
        for _ in 0..strips {
            if self.lines.is_empty() {
                let Some(packet) = self.packets.next() else {
                    return;
                };
                self.lines = packet;
            }
            for line in 0..LINES {
                let from = self.lines.as_ptr().wrapping_add(line * LINE_BYTES);
                // SAFETY: the caller vouches for the CPU.
                unsafe { V::prefetch_early(from) };
            }
            self.lines = self.lines.get(STRIP_BYTES..).unwrap_or_default();
        }
    }
}

/// Returns the sum of one entry of each table.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn add_up<V: Vector, const N: usize>(tables: &Tables<V, N>, entries: &[u8; TABLES]) -> Strip<V, N> {
    // Spelled out: a loop over the tables is a call in the compiled code, without the CPU feature.
    let strip = |table: usize| &tables[table][usize::from(entries[table]) % ENTRIES];
    let low = [strip(0), strip(1), strip(2), strip(3)];
    let high = [strip(4), strip(5), strip(6), strip(7)];
    let mut sum = *low[0];
    for (line, registers) in sum.iter_mut().enumerate() {
        for (r, sum) in registers.iter_mut().enumerate() {
            let three = sum.xor3(low[1][line][r], low[2][line][r]);
            let five = three.xor3(low[3][line][r], high[0][line][r]);
            let seven = five.xor3(high[1][line][r], high[2][line][r]);
            *sum = seven.xor(high[3][line][r]);
        }
    }
    sum
}

/// Fills a table with the sums of all subsets of the strips of a group of sources.
///
/// # Safety
///
/// The CPU must have the instructions of `V`.
#[expect(
    clippy::needless_range_loop,
    reason = "the indices pick bytes of sources, too"
)]
#[expect(unsafe_code, reason = "makes registers from nothing")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn fill<V: Vector, const N: usize>(
    table: &mut [Strip<V, N>; ENTRIES],
    group: &[&[u8]],
    at: usize,
) {
    let zeros = [0; STRIP_BYTES];
    let mut strips = [&zeros; GROUP];
    for (strip, source) in strips.iter_mut().zip(group) {
        if let Some(bytes) = source[at..].first_chunk() {
            *strip = bytes;
        }
    }
    for line in 0..LINES {
        for r in 0..N {
            let first = line * LINE_BYTES + r * V::BYTES;
            // SAFETY: the strips have so many lines of N registers; the caller vouches for the CPU.
            let [a, b, c, d]: [V; GROUP] = unsafe { load_all(&strips, first) };
            let (ab, cd) = (a.xor(b), c.xor(d));
            // Entry 0 is zero, and stays so.
            table[1][line][r] = a;
            table[2][line][r] = b;
            table[3][line][r] = ab;
            table[4][line][r] = c;
            table[5][line][r] = a.xor(c);
            table[6][line][r] = b.xor(c);
            table[7][line][r] = ab.xor(c);
            table[8][line][r] = d;
            table[9][line][r] = a.xor(d);
            table[10][line][r] = b.xor(d);
            table[11][line][r] = ab.xor(d);
            table[12][line][r] = cd;
            table[13][line][r] = a.xor(cd);
            table[14][line][r] = b.xor(cd);
            table[15][line][r] = ab.xor(cd);
        }
    }
}

/// Returns a register of each strip of a group, from byte `first` on.
///
/// # Safety
///
/// The CPU must have the instructions of `V`, and the strips a register there.
#[expect(unsafe_code, reason = "reads registers through pointers")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn load_all<V: Vector>(strips: &[&[u8; STRIP_BYTES]; GROUP], first: usize) -> [V; GROUP] {
    let from = |strip: usize| strips[strip].as_ptr().wrapping_add(first);
    // SAFETY: the caller vouches for the bytes and the CPU, here and below.
    let a = unsafe { V::load(from(0)) };
    // SAFETY: as above.
    let b = unsafe { V::load(from(1)) };
    // SAFETY: as above.
    let c = unsafe { V::load(from(2)) };
    // SAFETY: as above.
    let d = unsafe { V::load(from(3)) };
    [a, b, c, d]
}

/// Writes a strip.
///
/// # Safety
///
/// `to` must be aligned to a register if `streaming` is true.
#[expect(unsafe_code, reason = "writes registers through pointers")]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
unsafe fn write<V: Vector, const N: usize>(
    strip: Strip<V, N>,
    to: &mut [u8; STRIP_BYTES],
    streaming: bool,
) {
    for (index, register) in strip.as_flattened().iter().enumerate() {
        let to = to.as_mut_ptr().wrapping_add(index * V::BYTES);
        if streaming {
            // SAFETY: the array holds all registers of the strip, and the caller vouches for its alignment.
            unsafe { register.stream(to) };
        } else {
            // SAFETY: the array holds all registers of the strip.
            unsafe { register.store(to) };
        }
    }
}
