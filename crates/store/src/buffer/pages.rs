//! Anonymous memory straight from the kernel: page-aligned, zeroed, and not touched before use.

#![expect(
    unsafe_code,
    reason = "page-aligned memory comes from mmap, as a pointer"
)]

use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Pinner, Unpinner};
use crate::ALIGNMENT;

/// Bytes between mappings.
const GAP: usize = ALIGNMENT;

/// An owned private mapping of `len` bytes, readable and writable. A page behind it belongs to it and is never touched.
/// It keeps mappings apart, because a device refuses to copy across two that it knows.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// The pinner that pinned it, if any did.
    pinned_by: Option<Arc<dyn Unpinner>>,
}

// SAFETY: a `Pages` owns its mapping alone, as a `Box<[u8]>` owns its heap block; nothing about a
// private anonymous mapping is tied to a thread.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` gives out only `&[u8]`.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len` zeros. Like any allocation, ends the process when memory is exhausted.
    ///
    /// # Panics
    ///
    /// If `len` is zero or no multiple of a page.
    pub(super) fn map(len: usize) -> Self {
        assert!(
            len > 0 && len.is_multiple_of(ALIGNMENT),
            "mapping of {len} bytes"
        );
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let total = len + GAP;
        // SAFETY: a null hint and no MAP_FIXED let the kernel choose a range that nothing uses.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), total, protection, MapFlags::PRIVATE) };
        match start.ok().and_then(|start| NonNull::new(start.cast())) {
            Some(start) => Self {
                start,
                len,
                pinned_by: None,
            },
            None => cauchyfs_sandbox::memory::exhausted(
                Layout::from_size_align(len, ALIGNMENT).expect("a size that mmap could take"),
            ),
        }
    }

    /// Returns the size of the mapping in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Has the memory pinned, unless it is.
    pub(super) fn pin(&mut self, pinner: &dyn Pinner) {
        if self.pinned_by.is_none() {
            self.pinned_by = pinner.pin(self.bytes_mut());
        }
    }

    /// Returns the memory for reading.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` maps `len` initialised (zeroed) readable bytes for as long as `self`
        // lives, and only `bytes_mut`, which needs `&mut self`, writes to them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the memory for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(pinner) = self.pinned_by.take()
            && !pinner.unpin(self.bytes_mut())
        {
            // The next owner of these addresses would share them with a device that knows other pages there.
            return;
        }
        // SAFETY: exactly this range was mapped by `map`, and every reference into it borrowed
        // from `self`, which ends here.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len + GAP) };
        unmapped.expect("unmapping a whole mapping of our own succeeds");
    }
}
