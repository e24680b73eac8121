//! The driver's functions, with answers of any number.
//!
//! The bindings have an enum for answers. A driver newer than them may answer with a number that is no variant of it.
//! To hold such a value is undefined behaviour in Rust. So the functions are looked up in the library that the bindings
//! have loaded, with a type of answer that any number fits. The bindings' own functions are not called.

#![expect(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "functions are named as the driver names them, and take what it wants"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUjit_option, CUmemcpyAttributes, CUmodule, CUresult, CUstream,
};

use crate::DeviceError;

/// The answer of a function, known or not.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DriverResult(pub(super) u32);

impl DriverResult {
    pub(super) const SUCCESS: Self = Self::known(CUresult::CUDA_SUCCESS);

    /// Returns an answer that has a name.
    pub(super) const fn known(result: CUresult) -> Self {
        Self(result as u32)
    }
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

macro_rules! functions {
    (
        needed { $($name:ident($($parameter:ident: $kind:ty),*);)* }
        welcome { $($new_name:ident($($new_parameter:ident: $new_kind:ty),*);)* }
    ) => {
        /// The addresses of all functions that are called; newer ones, where the driver has them.
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> DriverResult,)*
            $($new_name: Option<unsafe extern "C" fn($($new_kind),*) -> DriverResult>,)*
        }

        impl Functions {
            fn find() -> Result<Self, DeviceError> {
                // SAFETY: loading runs the initialisers of the system's own driver; it was found, so that this
                // does not panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($name: {
                        // SAFETY: the driver's header declares it so, but for the type of the answer: there it
                        // is an enum of C, whose values are passed as `u32` is.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        *found.map_err(|_| missing(stringify!($name)))?
                    },)*
                    $($new_name: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(stringify!($new_name).as_bytes()) };
                        found.ok().map(|found| *found)
                    },)*
                })
            }
        }

        $(
            /// Calls the driver's function of this name, once [`find_all`] has found it.
            ///
            /// # Safety
            ///
            /// As the driver's manual says.
            pub(super) unsafe fn $name($($parameter: $kind),*) -> DriverResult {
                match FUNCTIONS.get() {
                    // SAFETY: the caller promised it.
                    Some(functions) => unsafe { (functions.$name)($($parameter),*) },
                    None => DriverResult::known(CUresult::CUDA_ERROR_NOT_INITIALIZED),
                }
            }
        )*

        $(
            /// Calls the driver's function of this name. The answer is `CUDA_ERROR_NOT_FOUND` if it has none.
            ///
            /// # Safety
            ///
            /// As the driver's manual says.
            pub(super) unsafe fn $new_name($($new_parameter: $new_kind),*) -> DriverResult {
                match FUNCTIONS.get().and_then(|functions| functions.$new_name) {
                    // SAFETY: the caller promised it.
                    Some(function) => unsafe { function($($new_parameter),*) },
                    None => DriverResult::known(CUresult::CUDA_ERROR_NOT_FOUND),
                }
            }
        )*
    };
}

functions! {
    needed {
        cuCtxSetCurrent(context: CUcontext);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventSynchronize(event: CUevent);
        cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
        cuGetErrorName(answer: DriverResult, name: *mut *const c_char);
        cuGetErrorString(answer: DriverResult, text: *mut *const c_char);
        cuInit(flags: c_uint);
        cuLaunchKernel(
            function: CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        cuMemFreeHost(address: *mut c_void);
        cuMemFree_v2(address: CUdeviceptr);
        cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
        cuMemHostUnregister(address: *mut c_void);
        cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
        cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
        cuMemsetD32Async(address: CUdeviceptr, word: c_uint, words: usize, stream: CUstream);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleLoadDataEx(
            module: *mut CUmodule,
            image: *const c_void,
            count: c_uint,
            options: *mut CUjit_option,
            values: *mut *mut c_void
        );
        cuModuleUnload(module: CUmodule);
        cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamSynchronize(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    }
    welcome {
        cuMemcpyBatchAsync(
            to: *mut CUdeviceptr,
            from: *mut CUdeviceptr,
            sizes: *mut usize,
            count: usize,
            attributes: *mut CUmemcpyAttributes,
            first_with_attribute: *mut usize,
            attribute_count: usize,
            failed: *mut usize,
            stream: CUstream
        );
    }
}

fn missing(name: &str) -> DeviceError {
    DeviceError::BadDriver {
        reason: format!("libcuda.so.1 has no {name}; it is too old"),
    }
}

/// Loads the library, once for the process, and looks all functions up.
///
/// # Errors
///
/// [`DeviceError::NoDriver`] if there is none, [`DeviceError::BadDriver`] if it is too old to have them all.
pub(super) fn find_all() -> Result<(), DeviceError> {
    // SAFETY: loading runs the initialisers of the system's own driver, as every user of it does.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    let functions = Functions::find()?;
    FUNCTIONS.get_or_init(|| functions);
    Ok(())
}
