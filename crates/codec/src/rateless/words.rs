//! Elimination on (G|X), 64 bits a step.

use super::{
    RandomCode, RatelessError,
    packets::{Numbered, check_rank},
};

/// A matrix of bits in words: the rows G, and behind them the packets X.
struct Words {
    row_words: usize,
    words: Vec<u64>,
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
    let mut words = Words::new(code, received);
    check_rank(words.eliminate(source_packets), source_packets)?;
    let rows = words.words.chunks_exact(words.row_words);
    for (row, target) in rows.zip(targets) {
        let words = &row[source_packets.div_ceil(64)..];
        for (bytes, word) in target.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }
    Ok(())
}

impl Words {
    /// Returns the rows of the packets and the packets, with zeros behind the end of each packet.
    fn new(code: RandomCode, received: &[Numbered<'_>]) -> Self {
        let packet_bytes = received.first().map_or(0, |packet| packet.1.len());
        let code_words = code.source_packets().div_ceil(64);
        let row_words = code_words + packet_bytes.div_ceil(8);
        let mut words = vec![0; received.len() * row_words];
        for (row, (number, packet)) in words.chunks_exact_mut(row_words).zip(received) {
            let (own, rest) = row.split_at_mut(code_words);
            code.write_row(*number, own);
            for (word, bytes) in rest.iter_mut().zip(packet.chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(padded);
            }
        }
        Self { row_words, words }
    }

    /// Eliminates the first `pivots` columns, as Gauss and Jordan do, and returns their rank. If that is full, row c
    /// ends as source packet c.
    fn eliminate(&mut self, pivots: usize) -> usize {
        let row_words = self.row_words;
        let mut rank = 0;
        for column in 0..pivots {
            let is_set = |row: &[u64]| row[column / 64] >> (column % 64) & 1 == 1;
            let mut rows = self.words.chunks_exact(row_words);
            let Some(pivot) = rows.by_ref().skip(rank).position(is_set) else {
                continue;
            };
            let (above, rest) = self.words.split_at_mut(rank * row_words);
            if pivot > 0 {
                let (head, tail) = rest.split_at_mut(pivot * row_words);
                head[..row_words].swap_with_slice(&mut tail[..row_words]);
            }
            let (pivot, below) = rest.split_at_mut(row_words);
            let others = above.chunks_exact_mut(row_words);
            for row in others.chain(below.chunks_exact_mut(row_words)) {
                if is_set(row) {
                    // Words before the column have no bit of the pivot.
                    let start = column / 64;
                    for (word, added) in row[start..].iter_mut().zip(&pivot[start..]) {
                        *word ^= added;
                    }
                }
            }
            rank += 1;
        }
        rank
    }
}
