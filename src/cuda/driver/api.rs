//! The driver itself: whether there is one, and what its answers mean.

use std::ffi::{CStr, c_char};
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use crate::cuda::DeviceError;

/// Every function of the driver that is called. A missing one would be a panic of the bindings at its first
/// call, so all of them are looked up before anything is done.
const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Loads the driver, once for the process.
///
/// # Errors
///
/// [`DeviceError::NoDriver`] if there is none, [`DeviceError::BadDriver`] if it is too old or does not start,
/// [`DeviceError::NoDevice`] if it has nothing to drive.
pub(super) fn load() -> Result<(), DeviceError> {
    let bad_driver = |reason: String| DeviceError::BadDriver { reason };
    // SAFETY: loading runs the initialisers of the system's own driver, as every user of it does.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    // SAFETY: as above; the library was found, so that this does not panic.
    let library = unsafe { sys::culib() };
    for name in FUNCTIONS {
        // SAFETY: the symbol is looked up, and not used.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.map_err(|_| bad_driver(format!("libcuda.so.1 has no {name}; it is too old")))?;
    }
    // SAFETY: no demands.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(DeviceError::NoDevice),
        other => Err(bad_driver(describe(other))),
    }
}

/// Returns an error for every answer but success.
pub(super) fn check(answer: CUresult, operation: &'static str) -> Result<(), DeviceError> {
    if answer == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let reason = describe(answer);
    Err(if is_lasting(answer) {
        DeviceError::Lost { operation, reason }
    } else {
        DeviceError::Failed { operation, reason }
    })
}

/// Returns whether every later call fails, too: the device is gone, or what the process has on it.
fn is_lasting(answer: CUresult) -> bool {
    matches!(
        answer,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

/// Returns the name of an answer, and what the driver says about it.
fn describe(answer: CUresult) -> String {
    let mut name: *const c_char = ptr::null();
    let mut text: *const c_char = ptr::null();
    // SAFETY: the pointer is written to.
    let named = unsafe { sys::cuGetErrorName(answer, &raw mut name) };
    // SAFETY: as above.
    let explained = unsafe { sys::cuGetErrorString(answer, &raw mut text) };
    if named != CUresult::CUDA_SUCCESS || explained != CUresult::CUDA_SUCCESS {
        return format!("error {}", answer as u32);
    }
    // SAFETY: the driver gave the address of a string that it keeps for good.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{} ({})", text.to_string_lossy(), name.to_string_lossy())
}
