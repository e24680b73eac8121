//! Running a job on an engine, in packets if its plan is for packets.

use crate::{BLOCK_BYTES, Engine, Job, Mode, packets::PACKETS};

impl Job<'_, '_> {
    /// Computes all targets on an engine, in packets if the plan is for packets.
    pub fn run(mut self, engine: &dyn Engine) {
        if self.plan().packets().is_some() {
            run_packets(self, engine);
        } else {
            engine.run(&mut self);
        }
    }
}

/// Runs a job whose plan is for packets.
fn run_packets(mut job: Job<'_, '_>, engine: &dyn Engine) {
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
            run_columns(&mut job, engine, block + coded_bytes, block + BLOCK_BYTES);
        }
    }
    if whole < shard_bytes {
        run_columns(&mut job, engine, whole, shard_bytes);
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

/// Computes bytes `start..end` of all targets from the plan's coefficients.
fn run_columns(job: &mut Job<'_, '_>, engine: &dyn Engine, start: usize, end: usize) {
    let (plan, mode) = (job.plan(), job.mode());
    let sources = job.sources().iter().map(|shard| &shard[start..end]);
    let sources: Vec<&[u8]> = sources.collect();
    let targets = job.targets().iter_mut();
    let mut targets: Vec<&mut [u8]> = targets.map(|shard| &mut shard[start..end]).collect();
    let columns = Job::new(plan, &sources, &mut targets, mode);
    engine.run(&mut columns.expect("columns of shards that fit the plan"));
}
