//! The settings that all measurements share.

use std::time::Duration;

use crate::bench::bus::Gpus;
use crate::codec::Engine;
use crate::workers::Workers;

/// The length of all packets, in bytes: 8,192 bits, as in the literature.
pub(super) const PACKET_BYTES: usize = 1024;

/// Packets that arrive beyond the number of source packets.
pub(super) const EXTRA_PACKETS: usize = 10;

/// The source packets of a message in bulk.
pub(super) const BULK_PACKETS: usize = 32;

/// The seed of all codes and contents, so that runs measure the same.
pub(super) const SEED: u64 = 0x2A7E_1E55;

/// The settings that all measurements share.
#[derive(Clone, Copy)]
pub(super) struct RatelessSite<'s> {
    pub(super) engine: &'static dyn Engine,
    /// All threads of the machine.
    pub(super) workers: &'s Workers,
    /// Nothing without a GPU.
    pub(super) gpus: Option<&'s Gpus>,
    /// How long to repeat a measurement.
    pub(super) time: Duration,
}
