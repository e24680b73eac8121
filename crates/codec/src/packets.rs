//! Codes that XOR packets: the cut of a shard into pieces, and the operations on them.
//!
//! Every whole block of [`BLOCK_BYTES`] is cut into w packets, as long as can be in steps of 8
//! bytes. Packet i holds bit i of as many symbols as it has bits. The few bytes that are left of a
//! block are coded by `rs-cauchy`, which takes any length: 16 with w = 5 and 6, 8 with w = 7. So is
//! a shard's last block if it is short. Blocks can therefore be coded and decoded apart from each
//! other.

use crate::{
    BLOCK_BYTES, Engine, Job, Matrix, Mode,
    bitmatrix::Width,
    schedule::{Effort, Schedule},
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

/// Runs a job whose plan is for packets.
pub(super) fn run(mut job: Job<'_, '_>, engine: &dyn Engine) {
    if job.mode() == Mode::Add {
        run_adding(&mut job, engine);
        return;
    }
    let packets = job.plan().packets().expect(PACKETS);
    let coded_bytes = packets.count() * packets.packet_bytes();
    engine.run_packets(&mut job);
    let shard_bytes = job.shard_bytes();
    let whole = shard_bytes / BLOCK_BYTES * BLOCK_BYTES;
    if coded_bytes < BLOCK_BYTES {
        for block in (0..whole).step_by(BLOCK_BYTES) {
            job.run_columns(engine, block + coded_bytes, block + BLOCK_BYTES);
        }
    }
    if whole < shard_bytes {
        job.run_columns(engine, whole, shard_bytes);
    }
}

/// Computes the sums apart and adds them to the targets then: parts of a schedule build on targets.
fn run_adding(job: &mut Job<'_, '_>, engine: &dyn Engine) {
    let mut sums = vec![vec![0; job.shard_bytes()]; job.target_count()];
    let mut targets: Vec<&mut [u8]> = sums.iter_mut().map(|sum| &mut sum[..]).collect();
    let sum = Job::new(job.plan(), job.sources(), &mut targets, Mode::Assign);
    sum.expect("sums are as many and as long as targets")
        .run(engine);
    for (row, sum) in sums.iter().enumerate() {
        for (byte, sum) in job.target(row).iter_mut().zip(sum) {
            *byte ^= sum;
        }
    }
}
