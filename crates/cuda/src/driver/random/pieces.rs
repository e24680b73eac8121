//! The division of messages into pieces, and of pieces into what is fetched.

use std::ops::Range;

use crate::cut::{self, Piece};
use cauchyfs_codec::BLOCK_BYTES;

/// Pieces that messages are cut into, if these are not too short or too long: so many that copies both ways overlap.
const PIECES: usize = 16;

/// The least and the most bytes of a piece: calls of the driver cost about as much as copying the least.
const PIECE_BYTES: Range<usize> = 2 << 20..32 << 20;

/// Cuts messages of so many rows, which are packets and targets, into pieces. Packets without bytes have no pieces.
pub(super) fn cut_messages(messages: usize, rows: usize, packet_bytes: usize) -> Vec<Piece> {
    if packet_bytes == 0 {
        return Vec::new();
    }
    let total = messages.saturating_mul(rows).saturating_mul(packet_bytes);
    let most = (total / PIECES).clamp(PIECE_BYTES.start, PIECE_BYTES.end);
    // Room for a block of each row at least.
    let most = most.max(rows * BLOCK_BYTES);
    cut::cut(messages, rows, packet_bytes, most)
}

/// Returns the runs of messages that have full rank.
pub(super) fn complete_runs(ranks: &[usize], sources: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (message, _) in ranks
        .iter()
        .enumerate()
        .filter(|(_, rank)| **rank == sources)
    {
        match runs.last_mut() {
            Some(run) if run.end == message => run.end += 1,
            _ => runs.push(message..message + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte() {
        for (messages, rows, bytes) in [
            (1, 4, 40 << 20),
            (1, 2058, 1024),
            (1024, 74, 1024),
            (65_536, 74, 1024),
            (3, 8202, 100_000),
            (200_000, 5, 1),
        ] {
            let pieces = cut_messages(messages, rows, bytes);
            let covered: usize = pieces.iter().map(|p| p.items.len() * p.bytes()).sum();
            assert_eq!(covered, messages * bytes, "{messages} {rows} {bytes}");
        }
        assert_eq!(cut_messages(5, 10, 0), []);
        assert!(cut_messages(1024, 74, 1024).len() >= 8);
    }

    #[test]
    fn only_messages_of_full_rank_are_in_runs() {
        assert_eq!(complete_runs(&[4, 4, 3, 4, 0, 4, 4], 4), [0..2, 3..4, 5..7]);
        assert_eq!(complete_runs(&[3, 0], 4), []);
        assert_eq!(complete_runs(&[], 4), []);
    }
}
