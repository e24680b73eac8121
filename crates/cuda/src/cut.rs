//! The division of a batch into pieces that travel one behind the other.

use std::ops::Range;

use cauchyfs_codec::BLOCK_BYTES;

/// Shards on a device begin at multiples of this, so that threads read full sectors.
const ALIGNMENT: usize = 256;

/// The most items of a piece: some kernels have a layer of blocks for each, and no more layers are possible.
const MOST_ITEMS: usize = 65_535;

/// Some items of a batch, and columns of them: several whole ones, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The items of the piece.
    pub(super) items: Range<usize>,
    /// The bytes of each shard. They start at a block.
    pub(super) columns: Range<usize>,
}

impl Piece {
    /// Returns how many bytes of each shard there are.
    pub(super) fn bytes(&self) -> usize {
        self.columns.len()
    }

    /// Returns how far apart shards lie on the device.
    pub(super) fn pitch(&self) -> usize {
        self.bytes().next_multiple_of(ALIGNMENT)
    }

    /// Returns which blocks of each shard there are.
    pub(super) fn blocks(&self) -> Range<usize> {
        self.columns.start / BLOCK_BYTES..self.columns.end.div_ceil(BLOCK_BYTES)
    }
}

/// Returns the most shards that may lie in so many bytes on a device.
pub(super) const fn most_shards(bytes: usize) -> usize {
    bytes / ALIGNMENT
}

/// Cuts `items` of so many shards of so many bytes into pieces of which each takes `most` bytes at most
/// on the device. They are as few as can be, since each costs the CPU as much as some copies, and about
/// equally long.
///
/// # Panics
///
/// If a block of all shards takes more than that.
pub(super) fn cut(items: usize, shards: usize, shard_bytes: usize, most: usize) -> Vec<Piece> {
    assert!(shards * BLOCK_BYTES <= most, "{shards} shards");
    let item_bytes = shards * shard_bytes.next_multiple_of(ALIGNMENT);
    if item_bytes <= most {
        let count = items.div_ceil((most / item_bytes).min(MOST_ITEMS));
        let first = |piece| piece * items / count;
        let piece = |index| Piece {
            items: first(index)..first(index + 1),
            columns: 0..shard_bytes,
        };
        return (0..count).map(piece).collect();
    }
    let widest = most / shards / BLOCK_BYTES * BLOCK_BYTES;
    let blocks = shard_bytes.div_ceil(BLOCK_BYTES);
    let count = shard_bytes.div_ceil(widest.max(BLOCK_BYTES));
    let start = |part: usize| (part * blocks / count * BLOCK_BYTES).min(shard_bytes);
    let parts = |item| {
        (0..count).map(move |part| Piece {
            items: item..item + 1,
            columns: start(part)..start(part + 1),
        })
    };
    (0..items).flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 16 << 20;

    #[test]
    fn pieces_cover_every_byte_once_and_fit() {
        for shards in [2, 6, 48, 255] {
            for bytes in [
                1,
                255,
                256,
                4096,
                4097,
                65_536,
                (1 << 20) - 1,
                1 << 20,
                40 << 20,
            ] {
                for items in [1, 2, 7, 300] {
                    let mut covered = vec![0; items];
                    for piece in cut(items, shards, bytes, MOST) {
                        let size = piece.items.len() * shards * piece.pitch();
                        assert!(size <= MOST, "{shards} {bytes} {items}: {piece:?}");
                        assert!(piece.bytes() > 0, "{shards} {bytes} {items}: {piece:?}");
                        assert_eq!(piece.columns.start % BLOCK_BYTES, 0);
                        for item in piece.items.clone() {
                            assert_eq!(covered[item], piece.columns.start, "{piece:?}");
                            covered[item] = piece.columns.end;
                        }
                    }
                    let whole = covered.iter().all(|&end| end == bytes);
                    assert!(whole, "{shards} {bytes} {items}: {covered:?}");
                }
            }
        }
    }

    #[test]
    fn pieces_have_no_more_items_than_kernels_have_layers() {
        let pieces = cut(200_000, 2, 1, 64 << 20);
        assert!(pieces.iter().all(|piece| piece.items.len() <= MOST_ITEMS));
        assert_eq!(pieces.len(), 4);
    }

    #[test]
    fn small_items_travel_together_and_large_batches_in_several_pieces() {
        assert_eq!(cut(100, 6, 4096, MOST).len(), 1);
        assert_eq!(cut(8, 6, 1 << 20, MOST).len(), 4);
        assert_eq!(cut(1, 6, 40 << 20, MOST).len(), 16);
    }
}
