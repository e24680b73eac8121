//! Codes that XOR packets: the cut of a shard into pieces, and the operations on them.
//!
//! Every whole block of [`BLOCK_BYTES`] is cut into w packets, as long as can be in steps of 8
//! bytes. Packet i holds bit i of as many symbols as it has bits. The few bytes that are left of a
//! block are coded by `rs-cauchy`, which takes any length: 16 with w = 5 and 6, 8 with w = 7. So is
//! a shard's last block if it is short. Blocks can therefore be coded and decoded apart from each
//! other.

use crate::{
    BLOCK_BYTES, Matrix,
    schedule::{Effort, Schedule},
    width::Width,
};

/// The reason why the plan of an engine that runs packets has them.
pub(super) const PACKETS: &str = "only plans for packets are run as such";

/// The operations on the packets of all shards.
#[derive(Debug)]
pub(super) struct Packets {
    width: Width,
    schedule: Schedule,
}

impl Packets {
    /// Returns how to apply a matrix of bits: a row per packet of the targets, a column per packet
    /// of the sources.
    pub(super) fn new(width: Width, bits: &Matrix, effort: Effort) -> Self {
        Self {
            width,
            schedule: Schedule::new(bits, effort),
        }
    }

    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns how many packets a block has.
    pub(super) fn count(&self) -> usize {
        self.width.bits()
    }

    /// Returns the length of a packet.
    pub(super) fn packet_bytes(&self) -> usize {
        BLOCK_BYTES / self.count() / 8 * 8
    }

    /// Returns the packets of the block that `bytes` starts with.
    pub(super) fn of<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        bytes.chunks_exact(self.packet_bytes()).take(self.count())
    }
}
