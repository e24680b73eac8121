//! GPUs behind the driver of CUDA.
//!
//! The driver's library is loaded when GPUs are first asked for, so that the same program runs where there
//! is none. All of it is used through [`cudarc`], and all that is unsafe about it lies in this
//! module: handles that own what they stand for, queued work that may not outlive what it uses.

#![expect(unsafe_code, reason = "calls the driver of CUDA")]

mod api;
mod bus;
mod calls;
mod context;
mod copy;
mod kernels;
mod lane;
mod launch;
mod memory;
mod module;
mod random;
mod resident;
mod stream;

use std::fmt;
use std::sync::Arc;

use self::{context::Context, kernels::Kernels, lane::GpuLane};
use super::{Device, DeviceError, Lane, RandomError, ptx::Kind};
use cauchyfs_codec::{
    Matrix,
    rateless::{Bulk, RandomCode},
};

pub use self::{
    bus::Bus,
    random::{RandomDecoder, ResidentMessages},
    resident::Resident,
};

/// A GPU.
#[derive(Clone)]
pub struct Gpu {
    context: Arc<Context>,
    kernels: Arc<Kernels>,
}

impl Gpu {
    /// Opens all GPUs of this machine that can be opened. It must not be called in a process that forks afterwards and goes on
    /// with them in the child.
    ///
    /// # Errors
    ///
    /// If there is no driver or no GPU, or none of them can be opened.
    pub fn all() -> Result<Vec<Self>, DeviceError> {
        let contexts = Context::all()?.into_iter();
        let gpu = |context| Self {
            kernels: Arc::new(Kernels::new(&context)),
            context,
        };
        Ok(contexts.map(gpu).collect())
    }

    /// Lets the driver compile a kernel for a matrix now, which takes up to a second or more. Otherwise it does so
    /// when the matrix has been applied to a gigabyte. Targets are written, or compared.
    ///
    /// # Errors
    ///
    /// If the driver cannot, or the device is lost.
    pub fn prepare(&self, matrix: &Matrix, compared: bool) -> Result<(), DeviceError> {
        self.kernels.prepare(matrix, kind_of(compared))
    }

    /// Returns the bus to it, with room for so many bytes each way, to measure how fast copies are.
    ///
    /// # Errors
    ///
    /// If the device is lost or has too little memory.
    pub fn bus(&self, most_bytes: usize) -> Result<Bus, DeviceError> {
        Bus::new(&self.context, most_bytes)
    }

    /// Returns a decoder of the random code.
    ///
    /// # Errors
    ///
    /// If the device is lost or out of memory, or its driver cannot compile the kernels.
    pub fn random_decoder(&self) -> Result<RandomDecoder, DeviceError> {
        RandomDecoder::new(&self.context, &self.kernels)
    }

    /// Puts messages of the random code on the device, to measure how fast it decodes them there.
    ///
    /// # Errors
    ///
    /// If a buffer has another length than the messages need, or the device is lost or has too little memory.
    pub fn resident_messages(
        &self,
        code: RandomCode,
        bulk: &Bulk<'_>,
    ) -> Result<ResidentMessages, RandomError> {
        ResidentMessages::new(&self.context, &self.kernels, code, bulk)
    }

    /// Lets the device read these numbers by itself, as [`Device::pin`] does bytes.
    ///
    /// # Errors
    ///
    /// As for [`Device::pin`].
    pub fn pin_numbers(&self, numbers: &mut [u64]) -> Result<(), DeviceError> {
        memory::pin(&self.context, memory::bytes_of(numbers))
    }

    /// Takes [`Self::pin_numbers`] of the same numbers back.
    ///
    /// # Errors
    ///
    /// As for [`Device::unpin`].
    pub fn unpin_numbers(&self, numbers: &mut [u64]) -> Result<(), DeviceError> {
        memory::unpin(&self.context, memory::bytes_of(numbers))
    }

    /// Puts stripes on the device, to measure how fast it applies a matrix to them: as many as `total_bytes`
    /// hold. Targets are written, or compared.
    ///
    /// # Errors
    ///
    /// If the device is lost or has too little memory.
    pub fn resident(
        &self,
        matrix: &Matrix,
        compared: bool,
        shard_bytes: usize,
        total_bytes: usize,
    ) -> Result<Resident, DeviceError> {
        let kind = kind_of(compared);
        Resident::new(&self.context, matrix, kind, shard_bytes, total_bytes)
    }
}

fn kind_of(compared: bool) -> Kind {
    if compared { Kind::Compare } else { Kind::Write }
}

impl Device for Gpu {
    fn name(&self) -> &str {
        self.context.name()
    }

    fn lane(&self) -> Result<Box<dyn Lane>, DeviceError> {
        Ok(Box::new(GpuLane::new(&self.context, &self.kernels)?))
    }

    fn pin(&self, memory: &mut [u8]) -> Result<(), DeviceError> {
        memory::pin(&self.context, memory)
    }

    fn unpin(&self, memory: &mut [u8]) -> Result<(), DeviceError> {
        memory::unpin(&self.context, memory)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}
