//! The loop of codes that XOR packets: follow a schedule, on many packets' columns in turn.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::marker::PhantomData;

use crate::{
    BLOCK_BYTES,
    job::Job,
    packets::{PACKETS, Packets},
    schedule::StepPlace,
};

use super::vector::Vector;

/// Computes the packets of all whole blocks, `N` registers of each at a time.
///
/// # Safety
///
/// The CPU must have the instructions of `V`. `N` registers must not be longer than a packet.
///
/// # Panics
///
/// If the job's plan is not one for packets.
#[expect(unsafe_code, reason = "vouches for the packets")]
#[inline(always)]
pub(super) unsafe fn run<V: Vector, const N: usize>(job: &mut Job<'_, '_>) {
    let packets = job.plan().packets().expect(PACKETS);
    if job.shard_bytes() < BLOCK_BYTES {
        return;
    }
    // SAFETY: the caller vouches for the CPU.
    let zero = [unsafe { V::zero() }; N];
    let mut partial_sums = vec![zero; packets.schedule().scratch_count()];
    let rows = 0..job.target_count();
    let targets: Vec<*mut u8> = rows.map(|row| job.target(row).as_mut_ptr()).collect();
    let mut column = Column::new(job, &targets, &mut partial_sums);
    let last = packets.packet_bytes() - N * V::BYTES;
    for _ in 0..job.shard_bytes() / BLOCK_BYTES {
        let mut offset = 0;
        loop {
            // SAFETY: the caller vouches for the CPU; these registers end within the packets.
            unsafe { column.run(zero) };
            if offset == last {
                break;
            }
            // The last registers overlap those before: computing a sum twice does no harm.
            let next = last.min(offset + N * V::BYTES);
            column.advance(next - offset);
            offset = next;
        }
        column.advance(BLOCK_BYTES - offset);
    }
}

/// `N` registers of all packets of a block.
struct Column<'a, V, const N: usize> {
    packets: &'a Packets,
    /// The address of each slot's registers: in sources, targets, or partial sums.
    slots: Vec<*mut u8>,
    /// True if the slot is in a shard, and so moves with the column.
    in_shard: Vec<bool>,
    partial_sums: PhantomData<&'a mut [V; N]>,
}

#[expect(
    unsafe_code,
    reason = "reads and writes registers through pointers, without a check each"
)]
impl<'a, V: Vector, const N: usize> Column<'a, V, N> {
    /// Starts with the first block of the job's sources and of `targets`.
    fn new(job: &Job<'a, '_>, targets: &[*mut u8], partial_sums: &'a mut [[V; N]]) -> Self {
        let packets = job.plan().packets().expect(PACKETS);
        // Taken from whole shards, since slots go on to all later blocks of them.
        let packet_of = |shard: *mut u8, index| shard.wrapping_add(index * packets.packet_bytes());
        let sources = job.sources().iter();
        let mut slots: Vec<*mut u8> = sources
            .map(|source| source.as_ptr().cast_mut())
            .flat_map(|source| (0..packets.count()).map(move |i| packet_of(source, i)))
            .collect();
        assert_eq!(slots.len(), packets.schedule().inputs());
        let mut in_shard = vec![true; slots.len()];
        let sums: Vec<*mut u8> = partial_sums
            .iter_mut()
            .map(|sum| std::ptr::from_mut(sum).cast())
            .collect();
        for (_, place) in packets.schedule().steps() {
            in_shard.push(matches!(place, StepPlace::Output(_)));
            slots.push(match place {
                StepPlace::Scratch(sum) => sums[usize::from(sum)],
                StepPlace::Output(output) => {
                    let output = usize::from(output);
                    packet_of(targets[output / packets.count()], output % packets.count())
                }
            });
        }
        Self {
            packets,
            slots,
            in_shard,
            partial_sums: PhantomData,
        }
    }

    /// Goes on by so many bytes.
    fn advance(&mut self, bytes: usize) {
        for (slot, &in_shard) in self.slots.iter_mut().zip(&self.in_shard) {
            *slot = slot.wrapping_add(if in_shard { bytes } else { 0 });
        }
    }

    /// Computes these registers of all outputs.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `V`, and the registers must lie within the packets.
    #[inline(always)]
    unsafe fn run(&mut self, zero: [V; N]) {
        let inputs = self.packets.schedule().inputs();
        for ((terms, _), &to) in self.packets.schedule().steps().zip(&self.slots[inputs..]) {
            let mut sums = zero;
            let mut pairs = terms.chunks_exact(2);
            for pair in &mut pairs {
                // SAFETY: terms name slots before this one; the caller vouches for the rest.
                let a = unsafe { self.load(pair[0]) };
                // SAFETY: as above.
                let b = unsafe { self.load(pair[1]) };
                for i in 0..N {
                    sums[i] = sums[i].xor3(a[i], b[i]);
                }
            }
            for &single in pairs.remainder() {
                // SAFETY: as above.
                let a = unsafe { self.load(single) };
                for i in 0..N {
                    sums[i] = sums[i].xor(a[i]);
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                // SAFETY: slots of steps are in targets or partial sums, both borrowed mutably.
                unsafe { sum.store(to.wrapping_add(i * V::BYTES)) };
            }
        }
    }

    /// Returns the registers of one slot.
    ///
    /// # Safety
    ///
    /// There must be such a slot, and as for [`Self::run`].
    #[inline(always)]
    unsafe fn load(&self, slot: u16) -> [V; N] {
        // SAFETY: the caller vouches for the slot.
        let from = *unsafe { self.slots.get_unchecked(usize::from(slot)) };
        std::array::from_fn(|i| {
            // SAFETY: the caller vouches for the CPU and for these registers.
            unsafe { V::load(from.wrapping_add(i * V::BYTES)) }
        })
    }
}
