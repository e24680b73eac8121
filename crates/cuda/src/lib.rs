//! Erasure codes on NVIDIA GPUs: matrices applied to shards, as [`cauchyfs_codec`] does on the CPU.
//!
//! A [`Device`] applies matrices, in batches, through [`Lane`]s of which each can be busy on its own. [`Gpu`] is a device
//! behind the driver of CUDA. [`Simulated`] is one that computes on the CPU and fails when told to, for tests where there
//! is no GPU. Which passes go to a device, and what happens if it fails, is up to the caller.
//!
//! Built without the feature `driver`, the crate knows no driver, and there is no [`Gpu`].

#[cfg(not(feature = "driver"))]
mod absent;
#[cfg(feature = "driver")]
mod cut;
mod device;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod ptx;
mod random;
mod simulated;

#[cfg(not(feature = "driver"))]
pub use absent::{Bus, Gpu, RandomDecoder, Resident, ResidentMessages};
pub use device::{Device, DeviceError, Lane, MatrixBatch, Program};
#[cfg(feature = "driver")]
pub use driver::{Bus, Gpu, RandomDecoder, Resident, ResidentMessages};
pub use random::RandomError;
pub use simulated::Simulated;
