//! The resources of a process on a device.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, ptr};

use cudarc::driver::sys;

use super::{
    api::{check, load},
    calls::{self, DriverResult},
};
use crate::DeviceError;

/// A device's primary context, which everything else on it belongs to.
pub(super) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    name: String,
    /// True if several copies can be queued at once.
    takes_batches: AtomicBool,
    /// The most bytes of shared memory that a block can have.
    most_shared_bytes: usize,
    /// The first number of its compute capability.
    compute_capability: usize,
    multiprocessors: usize,
}

// SAFETY: the driver's functions may be called from any thread; a context is made current in the calling one
// before it is used.
unsafe impl Send for Context {}
// SAFETY: as above; several threads may use a context at once.
unsafe impl Sync for Context {}

impl Context {
    /// Opens all devices that can be opened.
    ///
    /// # Errors
    ///
    /// If there is no driver or no device, or none of them can be opened.
    pub(super) fn all() -> Result<Vec<Arc<Self>>, DeviceError> {
        load()?;
        let mut count: c_int = 0;
        // SAFETY: the pointer is written to.
        let answer = unsafe { calls::cuDeviceGetCount(&raw mut count) };
        check(answer, "count devices")?;
        if count == 0 {
            return Err(DeviceError::NoDevice);
        }
        those_that_open(count, |index| Self::open(index).map(Arc::new))
    }

    fn open(index: c_int) -> Result<Self, DeviceError> {
        let mut device: sys::CUdevice = 0;
        // SAFETY: the pointer is written to.
        let answer = unsafe { calls::cuDeviceGet(&raw mut device, index) };
        check(answer, "open a device")?;
        let name = name_of(device)?;
        let mut raw: sys::CUcontext = ptr::null_mut();
        // SAFETY: the pointer is written to; the device exists.
        let answer = unsafe { calls::cuDevicePrimaryCtxRetain(&raw mut raw, device) };
        check(answer, "open a device")?;
        Ok(Self {
            raw,
            device,
            name,
            takes_batches: AtomicBool::new(knows_host_addresses(device)),
            most_shared_bytes: most_shared_bytes(device),
            compute_capability: attribute(
                device,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            ),
            multiprocessors: attribute(
                device,
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
            .max(1),
        })
    }

    /// Lets calls of this thread go to this device from now on.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context was retained, and is released when this is dropped.
        check(
            unsafe { calls::cuCtxSetCurrent(self.raw) },
            "turn to a device",
        )
    }

    /// Calls `free`, which frees something, with the device current. Failing to is worth no more than a line:
    /// it happens when the device is lost, which is logged where work fails.
    pub(super) fn free(&self, what: &'static str, free: impl FnOnce() -> DriverResult) {
        let freed = self.enter().and_then(|()| check(free(), what));
        if let Err(error) = freed {
            tracing::debug!(gpu = self.name, "{error}");
        }
    }

    /// Returns the number that tells the device from all others.
    pub(super) fn index(&self) -> c_int {
        self.device
    }

    /// Returns whether copies of pinned memory may be queued as a batch.
    pub(super) fn takes_batches(&self) -> bool {
        self.takes_batches.load(Ordering::Relaxed)
    }

    /// Returns how many bytes of shared memory a block can have at most.
    pub(super) fn most_shared_bytes(&self) -> usize {
        self.most_shared_bytes
    }

    /// Returns the first number of its compute capability.
    pub(super) fn compute_capability(&self) -> usize {
        self.compute_capability
    }

    /// Returns how many multiprocessors it has.
    pub(super) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Takes note that the driver does not take batches.
    pub(super) fn refuses_batches(&self, error: &DeviceError) {
        self.takes_batches.store(false, Ordering::Relaxed);
        tracing::debug!(gpu = self.name, "copies one by one: {error}");
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and everything that belongs to it holds a reference to it.
        let answer = unsafe { calls::cuDevicePrimaryCtxRelease_v2(self.device) };
        if let Err(error) = check(answer, "close a device") {
            tracing::debug!(gpu = self.name, "{error}");
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.device, self.name)
    }
}

/// Opens as many devices as possible. Those that do not open, for example because another process has them for itself,
/// do not keep others from being used.
///
/// # Errors
///
/// The error of the first device, if none can be opened.
fn those_that_open<T>(
    count: c_int,
    open: impl Fn(c_int) -> Result<T, DeviceError>,
) -> Result<Vec<T>, DeviceError> {
    let (mut opened, mut refused) = (Vec::new(), Vec::new());
    for index in 0..count {
        match open(index) {
            Ok(device) => opened.push(device),
            Err(error) => refused.push((index, error)),
        }
    }
    if opened.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0).1);
    }
    for (index, error) in &refused {
        tracing::warn!(gpu = index, "{error}; it is left out");
    }
    Ok(opened)
}

/// Returns whether the device takes the addresses that pinned memory has in this process: batches of copies
/// are given no others, and elsewhere would copy from anywhere.
fn knows_host_addresses(device: sys::CUdevice) -> bool {
    let attribute =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    let mut value: c_int = 0;
    // SAFETY: the pointer is written to; the device exists.
    let answer = unsafe { calls::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check(answer, "ask what a device can do").is_ok() && value == 1
}

/// Bytes of shared memory that a block of any device can have.
const LEAST_SHARED_BYTES: usize = 48 << 10;

/// Returns how many bytes of shared memory a block can have, if its kernel is allowed to.
fn most_shared_bytes(device: sys::CUdevice) -> usize {
    let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    attribute(device, most).max(LEAST_SHARED_BYTES)
}

/// Returns an attribute of a device, or 0 if the driver does not tell it.
fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> usize {
    let mut value: c_int = 0;
    // SAFETY: the pointer is written to; the device exists.
    let answer = unsafe { calls::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    let asked = check(answer, "ask what a device can do");
    let found = asked.ok().and_then(|()| usize::try_from(value).ok());
    found.unwrap_or(0)
}

fn name_of(device: sys::CUdevice) -> Result<String, DeviceError> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes up to 256 bytes with a zero at the end.
    let answer = unsafe { calls::cuDeviceGetName(name.as_mut_ptr(), 256, device) };
    check(answer, "name a device")?;
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_open_is_left_out_and_the_others_are_used() {
        let refused = |index: c_int| DeviceError::Failed {
            operation: "open a device",
            reason: index.to_string(),
        };
        for broken in 0..8u32 {
            let is_broken = |index: c_int| broken >> index & 1 == 1;
            let open = |index| {
                if is_broken(index) {
                    Err(refused(index))
                } else {
                    Ok(index)
                }
            };
            let left: Vec<c_int> = (0..3).filter(|&index| !is_broken(index)).collect();
            let expected = if left.is_empty() {
                Err(refused(0))
            } else {
                Ok(left)
            };
            assert_eq!(those_that_open(3, open), expected);
        }
    }
}
