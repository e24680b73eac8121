//! Coding beside the CPU: passes over stripes go to it or to [devices](crate::cuda), with the same result.
//!
//! [`Dispatch`] is what a volume gets. It has every pass computed by the CPU or by devices, whichever is expected to be
//! done first. It gathers passes of many callers into batches for the lanes of the devices.
//!
//! # Invariants
//!
//! - The choice of a device, or of none, never changes a byte of the result.
//! - A device that fails is never trusted with a result: what it was to compute is computed again.

mod choice;
mod dispatch;
mod engine;
mod meter;
mod pipeline;

pub use dispatch::{Coding, Devices, Dispatch, SMALL_BYTES};
pub use engine::{EngineError, check, devices, open};
pub use meter::Coded;
