//! The engine of 64-bit ARM.

use std::arch::is_aarch64_feature_detected;

use crate::{
    job::Job,
    rateless::{BitLanes, BitRows, SelectionJob, eliminate, eliminate_lanes},
};

use super::{Engine, bitsliced, packets, plain, scalar, tables, vector::arm::Neon16};

/// XOR and multiplication by x on registers of 16 bytes. A value of this type is the proof that
/// this CPU has NEON: [`Self::detect`] is the only way to get one.
#[derive(Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<&'static dyn Engine> {
        static PROOF: Neon = Neon(());
        is_aarch64_feature_detected!("neon").then_some(&PROOF)
    }
}

impl Engine for Neon {
    fn name(&self) -> &'static str {
        "neon"
    }

    #[expect(unsafe_code, reason = "the loop demands a CPU feature")]
    fn run(&self, job: &mut Job<'_, '_>) {
        // SAFETY: `self` exists, so `detect` saw NEON on this CPU. The target has it by default, so
        // the loop is compiled for it everywhere.
        let done = unsafe { bitsliced::run::<Neon16, 8>(job) };
        scalar::finish(job, done);
    }

    #[expect(unsafe_code, reason = "the loop demands a CPU feature")]
    fn run_packets(&self, job: &mut Job<'_, '_>) {
        // SAFETY: as in `run`.
        unsafe { packets::run::<Neon16, 8>(job) };
    }

    #[expect(unsafe_code, reason = "the loop demands a CPU feature")]
    fn run_plain(&self, job: &mut Job<'_, '_>) {
        // SAFETY: as in `run`.
        let done = unsafe { plain::run::<Neon16>(job) };
        scalar::finish_plain(job, done);
    }

    #[expect(unsafe_code, reason = "the loop demands a CPU feature")]
    fn run_selection(&self, job: &mut SelectionJob<'_, '_>) {
        // SAFETY: as in `run`.
        unsafe { tables::run::<Neon16, 4>(job) };
    }

    fn fence(&self) {
        // Registers of this type are never written past the caches.
    }

    fn eliminate(&self, rows: &mut BitRows, order: &mut [usize]) -> usize {
        eliminate(rows, order)
    }

    fn eliminate_lanes(&self, lanes: &mut BitLanes) {
        eliminate_lanes(lanes);
    }
}
