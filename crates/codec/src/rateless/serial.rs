//! The base case: serial elimination on (G|X), one bit a step.
//!
//! It is the method that the literature measures others against, written as a textbook has it. Every bit of the rows
//! and of the packets is one element of an array. No step handles more than one bit: elements are atomic, though only
//! one thread works on them, so that the compiler does not put several into a vector register. Relaxed loads and
//! stores are the plain instructions of a byte, and cost nothing else.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{
    RandomCode, RatelessError,
    packets::{Numbered, check_rank},
};

/// A matrix of bits, one to a byte: the rows G, and behind them the packets X.
struct Bits {
    rows: usize,
    columns: usize,
    elements: Vec<AtomicU8>,
}

/// Decodes one message.
///
/// # Errors
///
/// [`RatelessError::Rank`] if the packets do not determine it.
pub(super) fn decode(
    code: RandomCode,
    received: &[Numbered<'_>],
    targets: &mut [&mut [u8]],
) -> Result<(), RatelessError> {
    let source_packets = code.source_packets();
    let mut bits = Bits::new(code, received);
    check_rank(bits.eliminate(source_packets), source_packets)?;
    for (row, target) in targets.iter_mut().enumerate() {
        let bits = &bits.row(row)[source_packets..];
        for (byte, bits) in target.iter_mut().zip(bits.as_chunks::<8>().0) {
            let highest_first = bits.iter().rev();
            *byte = highest_first.fold(0, |byte, bit| byte << 1 | bit.load(Relaxed));
        }
    }
    Ok(())
}

impl Bits {
    /// Returns the rows of the packets and the packets, bit by bit.
    fn new(code: RandomCode, received: &[Numbered<'_>]) -> Self {
        let numbers: Vec<u64> = received.iter().map(|packet| packet.0).collect();
        let rows = code.rows(&numbers);
        let packet_bytes = received.first().map_or(0, |packet| packet.1.len());
        let columns = code.source_packets() + 8 * packet_bytes;
        let mut elements = Vec::with_capacity(received.len() * columns);
        for (row, packet) in received.iter().enumerate() {
            let own = (0..code.source_packets()).map(|column| u8::from(rows.at(row, column)));
            elements.extend(own.map(AtomicU8::new));
            for byte in packet.1 {
                elements.extend([0, 1, 2, 3, 4, 5, 6, 7].map(|bit| AtomicU8::new(byte >> bit & 1)));
            }
        }
        Self {
            rows: received.len(),
            columns,
            elements,
        }
    }

    fn row(&self, row: usize) -> &[AtomicU8] {
        &self.elements[row * self.columns..][..self.columns]
    }

    /// Eliminates the first `pivots` columns, as Gauss and Jordan do, and returns their rank. If that is full, row c
    /// ends as source packet c.
    fn eliminate(&mut self, pivots: usize) -> usize {
        let mut rank = 0;
        for column in 0..pivots {
            let is_set = |row: &usize| self.row(*row)[column].load(Relaxed) == 1;
            let Some(pivot) = (rank..self.rows).find(is_set) else {
                continue;
            };
            self.swap(pivot, rank);
            for row in 0..self.rows {
                if row != rank && self.row(row)[column].load(Relaxed) == 1 {
                    self.add(rank, row, column);
                }
            }
            rank += 1;
        }
        rank
    }

    /// Adds a row to another one, from a column on: the pivot has no bit before it.
    fn add(&self, from: usize, to: usize, first: usize) {
        let (from, to) = (&self.row(from)[first..], &self.row(to)[first..]);
        for (to, from) in to.iter().zip(from) {
            to.store(to.load(Relaxed) ^ from.load(Relaxed), Relaxed);
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        for column in 0..self.columns {
            let bits = (one * self.columns + column, other * self.columns + column);
            self.elements.swap(bits.0, bits.1);
        }
    }
}
