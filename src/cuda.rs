//! Coding on GPUs: matrices applied to stripes beside the CPU, with the same result.
//!
//! A [`Device`] applies matrices, in batches, through [`Lane`]s of which each can be busy on its own.
//! [`Simulated`] is a device that computes on the CPU and fails when told to, for tests where there is
//! no GPU.
//!
//! # Invariants
//!
//! - Which device is used, if any, never changes a byte of the result.
//! - A device that fails is never trusted with a result: what it was to compute is computed again.

mod cut;
mod device;
mod driver;
mod ptx;
mod simulated;

pub use device::{Device, DeviceError, Lane, Work};
pub use driver::{Gpu, Resident};
pub use simulated::Simulated;
