//! The engine without any vector instruction: runs everywhere, and is what all others are
//! compared with.

use crate::{
    BLOCK_BYTES,
    field::PRODUCTS,
    job::{Job, Mode},
    packets::PACKETS,
    rateless::{BitLanes, BitRows, SelectionJob, eliminate, eliminate_lanes},
    schedule::StepPlace,
};

use super::{
    Engine,
    fft::{self, Bytes},
};

/// Table look-ups, byte by byte.
#[derive(Debug)]
pub(super) struct Scalar;

impl Scalar {
    // An Option like every other engine's: this one just is never missing.
    #[expect(clippy::unnecessary_wraps, reason = "the signature is Candidate's")]
    pub(super) fn detect() -> Option<&'static dyn Engine> {
        Some(&Self)
    }
}

impl Engine for Scalar {
    fn name(&self) -> &'static str {
        "scalar"
    }

    #[expect(unsafe_code, reason = "the loop of transforms demands instructions")]
    fn run(&self, job: &mut Job<'_, '_>) {
        let done = match fft::program_for::<Bytes>(job) {
            // SAFETY: these symbols need no instructions that a CPU could lack.
            Some(program) => unsafe { fft::run::<Bytes>(job, program) },
            None => 0,
        };
        finish(job, done);
    }

    fn run_packets(&self, job: &mut Job<'_, '_>) {
        let packets = job.plan().packets().expect(PACKETS);
        let sources = job.sources();
        for block in 0..job.shard_bytes() / BLOCK_BYTES {
            let start = block * BLOCK_BYTES;
            let inputs = sources
                .iter()
                .flat_map(|source| packets.of(&source[start..]));
            let mut slots: Vec<Vec<u8>> = inputs.map(<[u8]>::to_vec).collect();
            for (terms, place) in packets.schedule().steps() {
                let mut sum = vec![0; packets.packet_bytes()];
                for &term in terms {
                    add(1, &slots[usize::from(term)], &mut sum);
                }
                if let StepPlace::Output(output) = place {
                    let output = usize::from(output);
                    let target = job.target(output / packets.count());
                    let start = start + output % packets.count() * sum.len();
                    target[start..start + sum.len()].copy_from_slice(&sum);
                }
                slots.push(sum);
            }
        }
    }

    fn run_plain(&self, job: &mut Job<'_, '_>) {
        finish_plain(job, 0);
    }

    fn run_selection(&self, job: &mut SelectionJob<'_, '_>) {
        let (selection, sources) = (job.selection(), job.sources());
        let (bits, at_once) = (selection.table_bits(), selection.tables_at_once());
        for target in 0..job.target_count() {
            job.target(target).fill(0);
        }
        for (pass, entries) in selection.passes().enumerate() {
            for (index, &entry) in entries.iter().enumerate() {
                let table = pass * at_once + index % at_once;
                for bit in (0..bits).filter(|bit| entry >> bit & 1 == 1) {
                    add(1, sources[table * bits + bit], job.target(index / at_once));
                }
            }
        }
    }

    fn fence(&self) {
        // Nothing is written past the caches.
    }

    fn eliminate(&self, rows: &mut BitRows, order: &mut [usize]) -> usize {
        eliminate(rows, order)
    }

    fn eliminate_lanes(&self, lanes: &mut BitLanes) {
        eliminate_lanes(lanes);
    }
}

/// Writes the XOR of all sources to every target, from byte `start` on.
pub(super) fn finish_plain(job: &mut Job<'_, '_>, start: usize) {
    let sources = job.sources();
    for row in 0..job.target_count() {
        let target = &mut job.target(row)[start..];
        target.fill(0);
        for source in sources {
            for (target, source) in target.iter_mut().zip(&source[start..]) {
                *target ^= source;
            }
        }
    }
}

/// Computes all targets from byte `start` on: the whole of it here, and the last bytes, too few
/// for a register, of other engines.
pub(super) fn finish(job: &mut Job<'_, '_>, start: usize) {
    if start == job.shard_bytes() {
        return;
    }
    let (plan, sources, mode) = (job.plan(), job.sources(), job.mode());
    for row in 0..job.target_count() {
        let target = &mut job.target(row)[start..];
        if mode == Mode::Assign {
            target.fill(0);
        }
        for (source, &coefficient) in sources.iter().zip(plan.matrix().row(row)) {
            add(coefficient, &source[start..], target);
        }
    }
}

/// Adds `coefficient` times `source` to `target`.
fn add(coefficient: u8, source: &[u8], target: &mut [u8]) {
    let products = &PRODUCTS[usize::from(coefficient)];
    for (target, source) in target.iter_mut().zip(source) {
        *target ^= products[usize::from(*source)];
    }
}
