//! The driver itself: whether there is one, and what its answers mean.

use std::ffi::{CStr, c_char};
use std::ptr;

use cudarc::driver::sys::CUresult;

use super::calls::{self, DriverResult};
use crate::DeviceError;

/// Loads the driver, once for the process.
///
/// # Errors
///
/// [`DeviceError::NoDriver`] if there is none, [`DeviceError::BadDriver`] if it is too old or does not start,
/// [`DeviceError::NoDevice`] if it has nothing to drive.
pub(super) fn load() -> Result<(), DeviceError> {
    calls::find_all()?;
    // SAFETY: no demands.
    match unsafe { calls::cuInit(0) } {
        DriverResult::SUCCESS => Ok(()),
        NO_DEVICE => Err(DeviceError::NoDevice),
        other => Err(DeviceError::BadDriver {
            reason: describe(other),
        }),
    }
}

const NO_DEVICE: DriverResult = DriverResult::known(CUresult::CUDA_ERROR_NO_DEVICE);

/// Returns an error for every answer but success.
pub(super) fn check(answer: DriverResult, operation: &'static str) -> Result<(), DeviceError> {
    if answer == DriverResult::SUCCESS {
        return Ok(());
    }
    let reason = describe(answer);
    Err(if is_lasting(answer) {
        DeviceError::Lost { operation, reason }
    } else {
        DeviceError::Failed { operation, reason }
    })
}

/// Answers after which every later call fails, too: the device is gone, or what the process has on it.
const LASTING: &[CUresult] = &[
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_NO_DEVICE,
    CUresult::CUDA_ERROR_INVALID_CONTEXT,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUresult::CUDA_ERROR_UNKNOWN,
];

fn is_lasting(answer: DriverResult) -> bool {
    LASTING
        .iter()
        .any(|&lasting| DriverResult::known(lasting) == answer)
}

/// Returns the name of an answer, and what the driver says about it.
fn describe(answer: DriverResult) -> String {
    let mut name: *const c_char = ptr::null();
    let mut text: *const c_char = ptr::null();
    // SAFETY: the pointer is written to.
    let named = unsafe { calls::cuGetErrorName(answer, &raw mut name) };
    // SAFETY: as above.
    let explained = unsafe { calls::cuGetErrorString(answer, &raw mut text) };
    if named != DriverResult::SUCCESS || explained != DriverResult::SUCCESS {
        return format!("error {}", answer.0);
    }
    // SAFETY: the driver gave the address of a string that it keeps for good.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{} ({})", text.to_string_lossy(), name.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_no_binding_knows_of_are_errors_that_give_their_number() {
        for number in [1, 90_001, u32::MAX] {
            let error = check(DriverResult(number), "copy").expect_err("not success");
            assert!(!error.is_final(), "{error}");
            let text = error.to_string();
            assert!(text.contains("cannot copy"), "{text}");
            let is_named = text.contains("CUDA_ERROR_INVALID_VALUE");
            assert!(is_named || text.contains(&number.to_string()), "{text}");
        }
        assert_eq!(check(DriverResult(0), "copy"), Ok(()));
    }

    #[test]
    fn a_device_is_lost_after_an_answer_that_lasts() {
        for &lasting in LASTING {
            let error = check(DriverResult::known(lasting), "copy").expect_err("not success");
            assert!(error.is_final(), "{error}");
        }
    }
}
