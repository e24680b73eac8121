//! Memory on a device, and memory of this process that a device reads and writes by itself.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::{ptr, slice};

use cudarc::driver::sys;
use parking_lot::RwLock;

use super::{api::check, calls, context::Context};
use crate::DeviceError;

/// Bytes on a device, zeros nowhere promised.
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Allocates so many bytes.
    ///
    /// # Errors
    ///
    /// If the device has not as many left, or is lost.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is written to; a context is current.
        let answer = unsafe { calls::cuMemAlloc_v2(&raw mut address, len) };
        check(answer, "allocate device memory")?;
        Ok(Self {
            context: Arc::clone(context),
            address,
            len,
        })
    }

    /// Allocates room for words and fills it with them.
    ///
    /// # Errors
    ///
    /// As for [`Self::new`].
    pub(super) fn with_words(context: &Arc<Context>, words: &[u32]) -> Result<Self, DeviceError> {
        let memory = Self::new(context, size_of_val(words))?;
        // SAFETY: the memory has been allocated as long as the words are.
        let answer =
            unsafe { calls::cuMemcpyHtoD_v2(memory.address, words.as_ptr().cast(), memory.len) };
        check(answer, "copy to the device")?;
        // The words may still be on their way from a copy that the driver made in the default stream. The streams of
        // lanes do not wait for that stream.
        // SAFETY: the default stream always exists.
        let answer = unsafe { calls::cuStreamSynchronize(ptr::null_mut()) };
        check(answer, "wait for a copy")?;
        Ok(memory)
    }

    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`; freeing waits for what the device is doing with it.
        let free = || unsafe { calls::cuMemFree_v2(self.address) };
        self.context.free("free device memory", free);
    }
}

/// Returns the address of at least so many bytes. New memory takes the place of memory that is too short.
///
/// # Errors
///
/// If the device has not as many left, or is lost.
pub(super) fn grow(
    context: &Arc<Context>,
    memory: &mut Option<DeviceMemory>,
    len: usize,
) -> Result<u64, DeviceError> {
    if let Some(memory) = memory
        && memory.len() >= len
    {
        return Ok(memory.address());
    }
    // Freed first, which waits for the device, so that both need not fit.
    *memory = None;
    let new = DeviceMemory::new(context, len.max(1))?;
    Ok(memory.insert(new).address())
}

/// Page-locked words, as a device writes them.
pub(super) struct Staged {
    context: Arc<Context>,
    words: *mut u32,
    len: usize,
}

// SAFETY: it owns the memory.
unsafe impl Send for Staged {}

impl Staged {
    /// Allocates so many words.
    ///
    /// # Errors
    ///
    /// If the system does not allow so much memory to be locked, or the device is lost.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        context.enter()?;
        let bytes = len * size_of::<u32>();
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: the pointer is written to. Without flags, memory is cached as any other, so that it
        // can be read fast.
        let answer = unsafe { calls::cuMemHostAlloc(&raw mut address, bytes, 0) };
        check(answer, "allocate page-locked memory")?;
        // SAFETY: it was allocated as long as that.
        unsafe { ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        PINNED.write().insert(address.addr(), bytes);
        Ok(Self {
            context: Arc::clone(context),
            words: address.cast(),
            len,
        })
    }

    /// Returns the words. The device must not be writing them.
    pub(super) fn words(&self) -> &[u32] {
        // SAFETY: so many words were allocated and filled; callers have waited for the device.
        unsafe { slice::from_raw_parts(self.words, self.len) }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u32 {
        self.words
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        PINNED.write().remove(&self.words.addr());
        // SAFETY: it was allocated by `new`, and lanes wait for the device before they go.
        let free = || unsafe { calls::cuMemFreeHost(self.words.cast()) };
        self.context.free("free page-locked memory", free);
    }
}

/// The memory that devices read and write by themselves: where it begins, and its length. All devices know it.
static PINNED: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

/// Returns whether so many bytes from an address on lie in memory that was pinned in one piece.
pub(super) fn is_pinned(address: usize, len: usize) -> bool {
    let pinned = PINNED.read();
    let before = pinned.range(..=address).next_back();
    before.is_some_and(|(start, pinned)| address + len <= start + pinned)
}

/// Returns numbers as the bytes that they are.
pub(super) fn bytes_of(numbers: &mut [u64]) -> &mut [u8] {
    let bytes = size_of_val(numbers);
    // SAFETY: these are the bytes of the numbers, all of them set, and any bytes are numbers.
    unsafe { slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), bytes) }
}

/// Locks memory into its pages, for all devices. Empty memory is left alone: no driver takes it.
///
/// # Errors
///
/// If the system does not allow it, or the device is lost.
pub(super) fn pin(context: &Context, memory: &mut [u8]) -> Result<(), DeviceError> {
    if memory.is_empty() {
        return Ok(());
    }
    context.enter()?;
    let address = memory.as_mut_ptr().cast();
    // SAFETY: the memory is there; the caller promised not to unmap it before it is unpinned.
    let answer = unsafe {
        calls::cuMemHostRegister_v2(address, memory.len(), sys::CU_MEMHOSTREGISTER_PORTABLE)
    };
    check(answer, "lock memory")?;
    PINNED.write().insert(memory.as_ptr().addr(), memory.len());
    Ok(())
}

/// Takes [`pin`] back.
///
/// # Errors
///
/// If it was not pinned, or the driver cannot.
pub(super) fn unpin(context: &Context, memory: &mut [u8]) -> Result<(), DeviceError> {
    if memory.is_empty() {
        return Ok(());
    }
    PINNED.write().remove(&memory.as_ptr().addr());
    // Memory is registered for the process: the driver may well unpin it when the device is lost.
    if let Err(error) = context.enter() {
        tracing::debug!(gpu = context.name(), "{error}");
    }
    // SAFETY: the driver refuses what was not pinned.
    let answer = unsafe { calls::cuMemHostUnregister(memory.as_mut_ptr().cast()) };
    check(answer, "unlock memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_was_pinned_in_one_piece_counts_as_pinned() {
        // No mapping lies here, so no other test pins anything here.
        let start = 0x1000;
        PINNED.write().extend([(start, 100), (start + 100, 50)]);
        assert!(is_pinned(start, 100));
        assert!(is_pinned(start + 99, 1));
        assert!(is_pinned(start + 100, 50));
        assert!(!is_pinned(start - 1, 2));
        assert!(!is_pinned(start + 99, 2), "in two pieces");
        assert!(!is_pinned(start + 149, 2));
        PINNED.write().remove(&start);
        assert!(!is_pinned(start, 1));
        assert!(is_pinned(start + 100, 1));
        PINNED.write().remove(&(start + 100));
    }
}
