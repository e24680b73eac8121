//! The choices of `--engine`.

use std::path::Path;
use std::sync::Arc;

use super::{Devices, Dispatch};
use crate::codec::{self, CodecError, Engine};
use crate::cuda::{Device, DeviceError, Gpu};

/// The reason why the choice of `--engine` is not to be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The CPU does not have it.
    #[error(transparent)]
    Codec(#[from] CodecError),

    /// There is no GPU to be used.
    #[error("the coding engine cuda cannot be used: {0}")]
    Device(#[from] DeviceError),
}

/// Opens all GPUs that can be opened. No process may fork and use them in the child.
///
/// # Errors
///
/// If there is no driver or no GPU, or none of them can be opened.
pub fn devices() -> Result<Devices, DeviceError> {
    let gpus = Gpu::all()?.into_iter();
    Ok(gpus.map(|gpu| Arc::new(gpu) as Arc<dyn Device>).collect())
}

/// Returns the engine for coding on the CPU, and the dispatch that has everything coded as `name` asks for:
/// `auto` by whichever of CPU and GPUs is done first, `cuda` by GPUs, all other names by the CPU.
///
/// # Errors
///
/// [`EngineError`] if this machine does not have it; `auto` is always to be had.
pub fn open(name: &str) -> Result<(&'static dyn Engine, Dispatch), EngineError> {
    match name {
        "auto" => Ok((codec::select(name)?, Dispatch::to_fastest(devices))),
        "cuda" => Ok((codec::select("auto")?, Dispatch::to_devices(devices()?)?)),
        name => Ok((select(name)?, Dispatch::to_cpu())),
    }
}

/// Returns the engine of the CPU with this name. The error names those of GPUs as well.
fn select(name: &str) -> Result<&'static dyn Engine, CodecError> {
    codec::select(name).map_err(|error| match error {
        CodecError::UnknownEngine { name, known } => CodecError::UnknownEngine {
            name,
            known: format!("{known}, cuda"),
        },
        error => error,
    })
}

/// Finds out whether this machine has what `name` asks for, without opening it for use.
///
/// # Errors
///
/// As for [`open`].
pub fn check(name: &str) -> Result<(), EngineError> {
    if name == "cuda" {
        Gpu::all()?;
    } else if name == "auto" && is_driver_half_loaded() {
        // Loading the driver may make devices, which a confined daemon cannot. Without a GPU, the CPU codes.
        if let Err(error) = Gpu::all() {
            tracing::debug!("no GPU can be used: {error}");
        }
        codec::select(name)?;
    } else {
        select(name)?;
    }
    Ok(())
}

/// Says whether the kernel has a driver of NVIDIA's whose devices are not all there yet.
fn is_driver_half_loaded() -> bool {
    Path::new("/proc/driver/nvidia").exists() && !Path::new("/dev/nvidia-uvm").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_an_engine_of_the_cpu_or_an_error_that_names_it() {
        for name in ["auto", "cpu", "scalar"] {
            let (engine, dispatch) = open(name).expect("every machine has it");
            assert!(codec::engines().any(|known| known.name() == engine.name()));
            assert_eq!(dispatch.coding().cpu.passes, 0);
            check(name).expect("the same");
        }
        let unknown = open("abacus").expect_err("there is none").to_string();
        assert!(unknown.contains("abacus"), "{unknown}");
        assert!(unknown.ends_with(", cuda"), "{unknown}");
        match check("cuda") {
            Ok(()) => assert!(open("cuda").is_ok()),
            Err(error) => {
                let absent = matches!(&error, EngineError::Device(device) if device.is_absence());
                assert!(absent, "there is a GPU, but: {error}");
                let text = error.to_string();
                assert!(text.contains("engine cuda cannot be used"), "{text}");
                assert!(open("cuda").is_err());
            }
        }
    }
}
