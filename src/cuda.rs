//! Coding on GPUs: matrices applied to stripes beside the CPU, with the same result.
//!
//! A [`Device`] applies matrices, in batches, through [`Lane`]s of which each can be busy on its own. [`Dispatch`] is
//! what a volume gets. It has every pass computed by the CPU or by devices, whichever is expected to be done first. It
//! gathers passes of many callers into batches for the lanes. [`Simulated`] is a device that computes on the CPU and
//! fails when told to, for tests where there is no GPU.
//!
//! # Invariants
//!
//! - The choice of a device, or of none, never changes a byte of the result.
//! - A device that fails is never trusted with a result: what it was to compute is computed again.

mod choice;
mod cut;
mod device;
mod dispatch;
mod driver;
mod engine;
mod meter;
mod pipeline;
mod ptx;
mod simulated;

pub use device::{Device, DeviceError, Lane, Program, Work};
pub use dispatch::{Coding, Devices, Dispatch, SMALL_BYTES};
pub use driver::{Bus, Gpu, Resident};
pub use engine::{EngineError, check, devices, open};
pub use meter::Coded;
pub use simulated::Simulated;
