//! Kernels that the driver has compiled.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{api::check, calls, context::Context};
use crate::{DeviceError, ptx};

/// Bytes for what the compiler has to say.
const LOG_BYTES: usize = 4096;

/// A module on a device.
pub(super) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
    functions: Vec<Function>,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above, and nothing changes in them.
unsafe impl Sync for Module {}

/// A kernel of a module, which must outlive its use.
pub(super) struct Function {
    raw: sys::CUfunction,
    kernel: ptx::Kernel,
}

impl Function {
    pub(super) fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Returns how many threads a block has.
    pub(super) fn threads(&self) -> u32 {
        short(self.kernel.threads)
    }

    /// Lets blocks of this kernel have up to so many bytes of shared memory.
    ///
    /// # Errors
    ///
    /// If the device has less.
    pub(super) fn allow_shared(&self, bytes: usize) -> Result<(), DeviceError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function belongs to a module that is loaded.
        let answer = unsafe { calls::cuFuncSetAttribute(self.raw, attribute, bytes) };
        check(answer, "set up a kernel")
    }

    /// Returns how many blocks go over so many bytes.
    pub(super) fn blocks(&self, bytes: usize) -> u32 {
        short(self.kernel.blocks(bytes))
    }

    /// Returns the kernel that it was made of.
    pub(super) fn kernel(&self) -> &ptx::Kernel {
        &self.kernel
    }
}

impl Module {
    /// Lets the driver compile a module, which takes tens of milliseconds as a rule. It takes up to a second or more for
    /// a kernel that computes by transforms.
    ///
    /// # Errors
    ///
    /// If the driver cannot, or the device is lost.
    pub(super) fn new(context: &Arc<Context>, module: &ptx::Module) -> Result<Self, DeviceError> {
        context.enter()?;
        let text = CString::new(module.text.as_str()).map_err(|error| DeviceError::Failed {
            operation: COMPILE,
            reason: error.to_string(),
        })?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The size is passed in place of a pointer.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut(LOG_BYTES),
        ];
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends with a zero; there are two options with a value each, and the log is as
        // long as they say.
        let answer = unsafe {
            calls::cuModuleLoadDataEx(
                &raw mut raw,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check(answer, COMPILE).map_err(|error| with_log(error, &log))?;
        let mut compiled = Self {
            context: Arc::clone(context),
            raw,
            functions: Vec::new(),
        };
        for kernel in &module.kernels {
            let function = compiled.find(kernel)?;
            if kernel.shared_bytes() > 0 {
                function.allow_shared(kernel.shared_bytes())?;
            }
            compiled.functions.push(function);
        }
        Ok(compiled)
    }

    fn find(&self, kernel: &ptx::Kernel) -> Result<Function, DeviceError> {
        let name = CString::new(kernel.name.as_str()).map_err(|error| DeviceError::Failed {
            operation: COMPILE,
            reason: error.to_string(),
        })?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is written to; the name ends with a zero.
        let answer = unsafe { calls::cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr()) };
        check(answer, COMPILE)?;
        Ok(Function {
            raw,
            kernel: kernel.clone(),
        })
    }

    pub(super) fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns how many blocks that need a multiprocessor each run at once.
    pub(super) fn concurrent_blocks(&self) -> usize {
        self.context.multiprocessors()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: `new` loaded it, and lanes that run it hold it.
        let free = || unsafe { calls::cuModuleUnload(self.raw) };
        self.context.free("unload a module", free);
    }
}

const COMPILE: &str = "compile a kernel";

/// Adds what the compiler said to an error.
fn with_log(error: DeviceError, log: &[u8]) -> DeviceError {
    let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said);
    match error {
        DeviceError::Failed { operation, reason } => DeviceError::Failed {
            operation,
            reason: format!("{reason}: {}", said.trim()),
        },
        other => other,
    }
}

/// Returns a number of blocks or bytes that lies far below the limit.
pub(super) fn short(number: usize) -> u32 {
    u32::try_from(number).expect("what is cut for a device is counted in 32 bits")
}
