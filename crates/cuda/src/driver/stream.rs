//! Queues of work for a device, and moments in them.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;
use std::{ptr, thread};

use cudarc::driver::sys;

use super::{
    api::check,
    calls,
    context::Context,
    copy::{Copies, Copy, End},
    memory,
    module::Function,
};
use crate::DeviceError;

/// The pause before a stream is asked again that could not be waited for.
const ABANDON_RETRY: Duration = Duration::from_millis(100);

/// Work that a device does one after the other, beside that of other streams.
pub(super) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: streams may be used from any thread in which their context is current.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    ///
    /// If the device is lost or out of memory.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the pointer is written to; a context is current.
        let answer = unsafe { calls::cuStreamCreate(&raw mut raw, flags) };
        check(answer, "make a stream")?;
        Ok(Self {
            context: Arc::clone(context),
            raw,
        })
    }

    /// Queues a copy of rows of bytes.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// All rows of both ends must be there until the stream is done with the copy. Until then, the rows of the target
    /// must not be used otherwise, and those of the source must not be written.
    pub(super) unsafe fn copy(&self, copy: &Copy) -> Result<(), DeviceError> {
        let Copy { from, to, .. } = *copy;
        let bytes = copy.bytes();
        let answer = match (from, to) {
            (End::Host { address, .. }, End::Device { address: to, .. }) if copy.is_whole() => {
                let from = ptr::with_exposed_provenance(address);
                // SAFETY: the caller promised it.
                unsafe { calls::cuMemcpyHtoDAsync_v2(to, from, bytes, self.raw) }
            }
            (End::Device { address, .. }, End::Host { address: to, .. }) if copy.is_whole() => {
                let to = ptr::with_exposed_provenance_mut(to);
                // SAFETY: the caller promised it.
                unsafe { calls::cuMemcpyDtoHAsync_v2(to, address, bytes, self.raw) }
            }
            (End::Device { address, .. }, End::Device { address: to, .. }) if copy.is_whole() => {
                // SAFETY: the caller promised it.
                unsafe { calls::cuMemcpyDtoDAsync_v2(to, address, bytes, self.raw) }
            }
            _ => {
                let copy = copy.in_rows();
                // SAFETY: the caller promised it.
                unsafe { calls::cuMemcpy2DAsync_v2(&raw const copy, self.raw) }
            }
        };
        check(answer, "copy")
    }

    /// Queues copies, as a batch those that can go in one: a batch costs the CPU hardly more than a copy.
    ///
    /// # Errors
    ///
    /// If the device is lost, or some of them cannot be queued.
    ///
    /// # Safety
    ///
    /// As for [`Self::copy`], for each of them; none may read what another writes.
    pub(super) unsafe fn copy_all(&self, copies: &mut Copies) -> Result<(), DeviceError> {
        if self.context.takes_batches() {
            copies.split(memory::is_pinned);
        }
        if copies.have_batch() {
            // SAFETY: the caller promised it.
            match unsafe { self.copy_batch(copies) } {
                Ok(()) => {}
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    self.context.refuses_batches(&error);
                    // Those that it may have queued are copied twice.
                    copies.rejoin();
                }
            }
        }
        for copy in copies.all() {
            // SAFETY: the caller promised it.
            unsafe { self.copy(copy) }?;
        }
        Ok(())
    }

    /// Queues the batch that some copies make.
    ///
    /// # Errors
    ///
    /// If the device is lost, or does not take batches.
    ///
    /// # Safety
    ///
    /// As for [`Self::copy_all`].
    unsafe fn copy_batch(&self, copies: &mut Copies) -> Result<(), DeviceError> {
        let nowhere = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        // Places are for memory that moves about.
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed) = (0, 0);
        let (from, to, sizes) = copies.batch();
        // SAFETY: the three lists are equally long, and the only attributes count from the first copy
        // on; all else the caller promised.
        let answer = unsafe {
            calls::cuMemcpyBatchAsync(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                sizes.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                self.raw,
            )
        };
        check(answer, "copy a batch")
    }

    /// Queues zeros for words on the device.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// The words must be there until the stream is done with them.
    pub(super) unsafe fn clear(
        &self,
        address: sys::CUdeviceptr,
        words: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller promised it.
        check(
            unsafe { calls::cuMemsetD32Async(address, 0, words, self.raw) },
            "clear",
        )
    }

    /// Queues a kernel.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// Parameters must be as many and as long as the kernel says. All its accesses to memory must be valid until the
    /// stream is done with it.
    pub(super) unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        parameters: &mut [Parameter],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller promised it.
        unsafe { self.launch_blocks(function, grid, (function.threads(), 0), parameters) }
    }

    /// Queues a kernel with blocks of so many threads and bytes of shared memory.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// As for [`Self::launch`], and the kernel must use no more shared memory than it gets.
    pub(super) unsafe fn launch_blocks(
        &self,
        function: &Function,
        grid: [u32; 3],
        (threads, shared_bytes): (u32, u32),
        parameters: &mut [Parameter],
    ) -> Result<(), DeviceError> {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter_mut().map(Parameter::pointer).collect();
        let [x, y, z] = grid;
        // SAFETY: the caller promised it; the driver copies the parameters before it returns.
        let answer = unsafe {
            calls::cuLaunchKernel(
                function.raw(),
                x,
                y,
                z,
                threads,
                1,
                1,
                shared_bytes,
                self.raw,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(answer, "start a kernel")
    }

    /// Lets all that is queued from now on wait for an event that has been recorded.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn follow(&self, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: both exist; what an event stands for outlives it.
        check(
            unsafe { calls::cuStreamWaitEvent(self.raw, event.raw, 0) },
            "order streams",
        )
    }

    /// Waits until all is done.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: the stream exists.
        check(
            unsafe { calls::cuStreamSynchronize(self.raw) },
            "wait for a stream",
        )
    }

    /// Waits until all is done that was queued with this answer, whose memory may go afterwards.
    ///
    /// # Errors
    ///
    /// The answer's; otherwise if the device is lost, or the wait failed at first.
    pub(super) fn finish_or_abandon(
        &self,
        queued: Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let done = queued.and_then(|()| self.finish());
        if done.is_err() {
            self.abandon(&mut true);
        }
        done
    }

    /// Waits, if the stream is used, until all is done or the device is lost, and notes that it is used no more. Nothing
    /// touches the memory of the caller then.
    ///
    /// The wait has no end while the driver neither waits nor says that the device is lost: to return earlier would give
    /// memory back that a copy may still write. Those who wait for this thread find it hanging.
    pub(super) fn abandon(&self, is_used: &mut bool) {
        while *is_used && let Err(error) = self.finish() {
            // The first failure is the one that is reported.
            tracing::debug!("after a failure: {error}");
            if error.is_final() {
                break; // a lost device uses nothing
            }
            thread::sleep(ABANDON_RETRY);
        }
        *is_used = false;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `new` made it.
        let free = || unsafe { calls::cuStreamDestroy_v2(self.raw) };
        self.context.free("end a stream", free);
    }
}

/// A parameter of a kernel.
pub(super) enum Parameter {
    Short(u32),
    Long(u64),
}

impl Parameter {
    fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Short(value) => ptr::from_mut(value).cast(),
            Self::Long(value) => ptr::from_mut(value).cast(),
        }
    }
}

/// The purpose of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A thread sleeps until it has happened. The driver has a thread of its own see to that, which costs as much
    /// as queuing ten copies. To sleep for as long as the batch before took, and to look then, is cheaper only where
    /// batches are long. It halves the rate where they are short: a late look makes the next one later.
    Sleep,
    /// Other streams follow it.
    Order,
    /// As with [`Self::Sleep`], and it tells the time.
    Measure,
}

/// A moment in a stream.
pub(super) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread in which their context is current.
unsafe impl Send for Event {}

impl Event {
    /// Makes an event.
    ///
    /// # Errors
    ///
    /// If the device is lost or out of memory.
    pub(super) fn new(context: &Arc<Context>, purpose: Purpose) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        let sleep = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
        let timeless = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let flags = match purpose {
            Purpose::Sleep => sleep | timeless,
            Purpose::Order => timeless,
            Purpose::Measure => sleep,
        };
        // SAFETY: the pointer is written to; a context is current.
        let answer = unsafe { calls::cuEventCreate(&raw mut raw, flags) };
        check(answer, "make an event")?;
        Ok(Self {
            context: Arc::clone(context),
            raw,
        })
    }

    /// Happens when all that the stream has so far is done.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both exist.
        check(
            unsafe { calls::cuEventRecord(self.raw, stream.raw) },
            "record an event",
        )
    }

    /// Sleeps until it has happened.
    ///
    /// # Errors
    ///
    /// If something before it failed, or the device is lost.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event exists.
        check(
            unsafe { calls::cuEventSynchronize(self.raw) },
            "wait for the device",
        )
    }

    /// Returns the time from another event to this one, both of which have happened.
    ///
    /// # Errors
    ///
    /// If one of them has not happened or is not measured.
    pub(super) fn since(&self, start: &Self) -> Result<Duration, DeviceError> {
        let mut milliseconds = 0.0;
        // SAFETY: the pointer is written to; both events exist.
        let answer =
            unsafe { calls::cuEventElapsedTime(&raw mut milliseconds, start.raw, self.raw) };
        check(answer, "measure time")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: `new` made it.
        let free = || unsafe { calls::cuEventDestroy_v2(self.raw) };
        self.context.free("end an event", free);
    }
}
