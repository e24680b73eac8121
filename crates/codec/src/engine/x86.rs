//! The engines of x86-64: which instructions each needs, and which loop it runs.

use crate::{
    job::Job,
    rateless::{BitLanes, BitRows, SelectionJob, eliminate, eliminate_lanes},
};

use super::{
    Engine, affine, bitsliced, packets, plain, scalar,
    tables::{self, STRIP_BYTES},
    vector::{
        Vector,
        x86::{Bytes16, Bytes32, Bytes64},
    },
};

/// Defines an engine whose only value is the proof that this CPU has its instructions.
macro_rules! engine {
    ($(#[$doc:meta])* $engine:ident, $name:literal, [$($feature:tt),+], $features:literal, $register:ty, $kernel:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $engine(());

        impl $engine {
            /// Returns the engine if this CPU has its instructions. This is the only way to get it.
            pub(super) fn detect() -> Option<&'static dyn Engine> {
                static PROOF: $engine = $engine(());
                let present = $(is_x86_feature_detected!($feature))&&+;
                present.then_some(&PROOF)
            }
        }

        impl Engine for $engine {
            fn name(&self) -> &'static str {
                $name
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn run(&self, job: &mut Job<'_, '_>) {
                #[target_feature(enable = $features)]
                fn whole_registers(job: &mut Job<'_, '_>) -> usize {
                    // SAFETY: this function is compiled for the features that the loop demands, so
                    // its caller vouched for them.
                    unsafe { $kernel(job) }
                }
                // SAFETY: `self` exists, so `detect` saw these features on this CPU.
                let done = unsafe { whole_registers(job) };
                scalar::finish(job, done);
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn run_packets(&self, job: &mut Job<'_, '_>) {
                #[target_feature(enable = $features)]
                fn whole_blocks(job: &mut Job<'_, '_>) {
                    // SAFETY: as in `run`.
                    unsafe { packets::run::<$register, { 128 / size_of::<$register>() }>(job) }
                }
                // SAFETY: as in `run`.
                unsafe { whole_blocks(job) };
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn run_plain(&self, job: &mut Job<'_, '_>) {
                #[target_feature(enable = $features)]
                fn whole_registers(job: &mut Job<'_, '_>) -> usize {
                    // SAFETY: as in `run`.
                    unsafe { plain::run::<$register>(job) }
                }
                // SAFETY: as in `run`.
                let done = unsafe { whole_registers(job) };
                scalar::finish_plain(job, done);
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn run_selection(&self, job: &mut SelectionJob<'_, '_>) {
                #[target_feature(enable = $features)]
                fn all_strips(job: &mut SelectionJob<'_, '_>) {
                    // SAFETY: as in `run`.
                    unsafe { tables::run::<$register, { STRIP_BYTES / size_of::<$register>() }>(job) }
                }
                // SAFETY: as in `run`.
                unsafe { all_strips(job) };
            }

            #[expect(unsafe_code, reason = "calls an instruction that the CPU may lack")]
            fn fence(&self) {
                // SAFETY: `self` exists, so `detect` saw the instructions of the register on this CPU.
                unsafe { <$register>::fence() };
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn eliminate(&self, rows: &mut BitRows, order: &mut [usize]) -> usize {
                #[target_feature(enable = $features)]
                fn compiled(rows: &mut BitRows, order: &mut [usize]) -> usize {
                    eliminate(rows, order)
                }
                // SAFETY: as in `run`.
                unsafe { compiled(rows, order) }
            }

            #[expect(unsafe_code, reason = "calls a function compiled for CPU features")]
            fn eliminate_lanes(&self, lanes: &mut BitLanes) {
                #[target_feature(enable = $features)]
                fn compiled(lanes: &mut BitLanes) {
                    eliminate_lanes(lanes);
                }
                // SAFETY: as in `run`.
                unsafe { compiled(lanes) }
            }
        }
    };
}

engine!(
    /// GFNI on registers of 64 bytes.
    Gfni512,
    "gfni512",
    ["avx512f", "avx512bw", "gfni"],
    "avx512f,avx512bw,gfni",
    Bytes64,
    affine::run::<Bytes64, 4, 2, 16>
);

engine!(
    /// GFNI on registers of 32 bytes, for CPUs without AVX-512. Half as many registers, too.
    Gfni256,
    "gfni256",
    ["avx2", "gfni"],
    "avx2,gfni",
    Bytes32,
    affine::run::<Bytes32, 2, 1, 10>
);

engine!(
    /// XOR and multiplication by x on registers of 64 bytes.
    Avx512,
    "avx512",
    ["avx512f", "avx512bw"],
    "avx512f,avx512bw",
    Bytes64,
    bitsliced::run::<Bytes64, 4>
);

engine!(
    /// XOR and multiplication by x on registers of 32 bytes.
    Avx2,
    "avx2",
    ["avx2"],
    "avx2",
    Bytes32,
    bitsliced::run::<Bytes32, 8>
);

engine!(
    /// XOR and multiplication by x on registers of 16 bytes, which every x86-64 CPU has.
    Sse2,
    "sse2",
    ["sse2"],
    "sse2",
    Bytes16,
    bitsliced::run::<Bytes16, 8>
);
