//! Page-aligned memory for I/O, lent from a pool and returned on drop.
//!
//! The first touch of fresh memory costs more than the I/O that it is for, so buffers are kept and lent again. Sizes
//! come in classes, four to each doubling. So a returned buffer fits many later requests, and at most a fifth of it
//! lies idle.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::ALIGNMENT;
use pages::Pages;
pub use pinner::{Pinner, Unpinner};

mod pages;
mod pinner;

/// The least memory that is worth pinning, in bytes: it costs some microseconds whatever its size, and
/// devices are not asked to do less than this.
const PINNED_BYTES: usize = 64 << 10;

/// A source of [`Buffer`]s that keeps a bounded amount of returned memory.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit_bytes: usize,
    pinner: Option<Arc<dyn Pinner>>,
    idle: Mutex<Shelf>,
}

/// Idle memory, one list per size class, the last returned lent first since it is warmest.
#[derive(Debug, Default)]
struct Shelf {
    retained_bytes: usize,
    classes: Vec<(usize, Vec<Pages>)>,
}

impl Pool {
    /// Makes a pool that keeps at most `limit_bytes` of unused memory. Lent memory is not counted:
    /// bounding that is up to the borrowers.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self::pinned(limit_bytes, None)
    }

    /// Makes a pool like [`Pool::new`] that has the memory of large buffers pinned. It is pinned when it is first lent,
    /// and stays so as long as the pool keeps it.
    #[must_use]
    pub fn pinned(limit_bytes: usize, pinner: Option<Arc<dyn Pinner>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                limit_bytes,
                pinner,
                idle: Mutex::default(),
            }),
        }
    }

    /// Lends a buffer of `len` bytes. Its content is unspecified: zeros, or what an earlier
    /// borrower left.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        self.lend(len).0
    }

    /// Lends a buffer; tells whether its memory was lent before.
    fn lend(&self, len: usize) -> (Buffer, bool) {
        let class = class_of(len);
        let lent = self.shared.take(class);
        let reused = lent.is_some();
        let mut pages = lent.unwrap_or_else(|| Pages::map(class));
        if let Some(pinner) = &self.shared.pinner
            && class >= PINNED_BYTES
        {
            pages.pin(&**pinner);
        }
        let buffer = Buffer {
            pages: Some(pages),
            len,
            pool: Arc::clone(&self.shared),
        };
        (buffer, reused)
    }

    /// Lends a buffer of `len` zeros.
    #[must_use]
    pub fn zeroed(&self, len: usize) -> Buffer {
        // Fresh pages are zeros already; only lent ones cost a pass.
        let (mut buffer, reused) = self.lend(len);
        if reused {
            buffer.fill(0);
        }
        buffer
    }

    /// Lends a buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Returns how many bytes lie idle in the pool.
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.shared.idle.lock().retained_bytes
    }
}

impl Shared {
    fn take(&self, class: usize) -> Option<Pages> {
        let mut idle = self.idle.lock();
        let at = idle
            .classes
            .binary_search_by_key(&class, |entry| entry.0)
            .ok()?;
        let pages = idle.classes[at].1.pop()?;
        idle.retained_bytes -= class;
        Some(pages)
    }

    fn give_back(&self, pages: Pages) {
        let class = pages.len();
        let mut idle = self.idle.lock();
        if idle.retained_bytes + class > self.limit_bytes {
            drop(idle); // unmapping is slow, and others wait for the idle
            drop(pages);
            return;
        }
        idle.retained_bytes += class;
        match idle.classes.binary_search_by_key(&class, |entry| entry.0) {
            Ok(at) => idle.classes[at].1.push(pages),
            Err(at) => idle.classes.insert(at, (class, vec![pages])),
        }
    }
}

/// Returns the size of the class that serves `len` bytes: a multiple of [`ALIGNMENT`], and at
/// least one page.
fn class_of(len: usize) -> usize {
    let len = len.max(1).next_multiple_of(ALIGNMENT);
    let step = (len.next_power_of_two() / 8).max(ALIGNMENT);
    len.next_multiple_of(step)
}

/// Page-aligned memory on loan from a [`Pool`]: a `[u8]` of fixed length.
pub struct Buffer {
    /// `None` only while the buffer is dropped.
    pages: Option<Pages>,
    len: usize,
    pool: Arc<Shared>,
}

impl Buffer {
    /// Returns how far [`Buffer::set_len`] can go, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages().len()
    }

    /// Changes the length; bytes that come into view are unspecified.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "length {len} of a buffer of {}",
            self.capacity()
        );
        self.len = len;
    }

    /// Makes the buffer immutable and shareable, without a copy. The memory returns to its pool
    /// when the last slice of it is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn pages(&self) -> &Pages {
        self.pages
            .as_ref()
            .expect("a buffer has pages until it is dropped")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages().bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let pages = self
            .pages
            .as_mut()
            .expect("a buffer has pages until it is dropped");
        &mut pages.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            self.pool.give_back(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records what is pinned, and refuses to pin or to unpin while it is told to.
    #[derive(Clone, Debug, Default)]
    struct Notes(Arc<Noted>);

    #[derive(Debug, Default)]
    struct Noted {
        refusing: Mutex<bool>,
        holding_on: Mutex<bool>,
        asked: Mutex<usize>,
        pinned: Mutex<Vec<(usize, usize)>>,
    }

    impl Deref for Notes {
        type Target = Noted;

        fn deref(&self) -> &Noted {
            &self.0
        }
    }

    fn range(memory: &[u8]) -> (usize, usize) {
        (memory.as_ptr().addr(), memory.len())
    }

    impl Pinner for Notes {
        fn pin(&self, memory: &mut [u8]) -> Option<Arc<dyn Unpinner>> {
            *self.asked.lock() += 1;
            if *self.refusing.lock() {
                return None;
            }
            assert!(!self.pinned.lock().contains(&range(memory)), "pinned twice");
            self.pinned.lock().push(range(memory));
            Some(Arc::new(self.clone()))
        }
    }

    impl Unpinner for Notes {
        fn unpin(&self, memory: &mut [u8]) -> bool {
            if *self.holding_on.lock() {
                return false;
            }
            let mut pinned = self.pinned.lock();
            let at = pinned.iter().position(|&known| known == range(memory));
            pinned.remove(at.expect("only what is pinned is unpinned"));
            true
        }
    }

    /// Returns whether anything is mapped at an address.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
        maps.lines().any(|line| {
            let ends = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            let (start, end) = ends.expect("a range");
            let hex = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
            (hex(start)..hex(end)).contains(&address)
        })
    }

    #[test]
    fn memory_still_held_by_a_device_is_never_reused() {
        let notes = Notes::default();
        let pool = Pool::pinned(0, Some(Arc::new(notes.clone())));
        *notes.holding_on.lock() = true;
        drop(pool.buffer(PINNED_BYTES));
        let held: Vec<(usize, usize)> = notes.pinned.lock().clone();
        let [(start, len)] = held[..] else {
            panic!("one buffer: {held:x?}")
        };
        let others: Vec<Buffer> = (0..64).map(|_| pool.buffer(PINNED_BYTES)).collect();
        assert!(is_mapped(start) && is_mapped(start + len - 1));
        for (other, len) in others.iter().map(|other| range(other)) {
            assert!(other + len <= start || start + PINNED_BYTES <= other);
        }
    }

    #[test]
    fn no_two_buffers_adjoin() {
        let pool = Pool::new(0);
        let buffers: Vec<Buffer> = (0..64).map(|_| pool.buffer(PINNED_BYTES)).collect();
        let starts: Vec<usize> = buffers.iter().map(|b| b.as_ptr().addr()).collect();
        for start in &starts {
            assert!(!starts.contains(&(start + PINNED_BYTES)), "{starts:x?}");
        }
    }

    #[test]
    fn large_buffers_are_pinned_once_and_unpinned_before_their_memory_goes() {
        let notes = Notes::default();
        let pool = Pool::pinned(1 << 20, Some(Arc::new(notes.clone())));
        drop(pool.buffer(PINNED_BYTES / 2));
        assert_eq!(*notes.asked.lock(), 0, "small buffers are not worth it");
        for _ in 0..3 {
            let buffer = pool.buffer(PINNED_BYTES);
            assert!(notes.pinned.lock().contains(&range(&buffer)));
            drop(pool.zeroed(PINNED_BYTES * 2));
        }
        assert_eq!(*notes.asked.lock(), 2, "each of two buffers once");
        drop(pool.buffer(2 << 20)); // more than the pool keeps
        assert_eq!(notes.pinned.lock().len(), 2);
        let outlives = pool.copy_of(&vec![1; PINNED_BYTES]).freeze();
        drop(pool);
        assert_eq!(
            notes.pinned.lock().len(),
            2,
            "its pool lives as long as a buffer"
        );
        drop(outlives);
        assert!(notes.pinned.lock().is_empty());
    }

    #[test]
    fn memory_that_could_not_be_pinned_is_lent_all_the_same_and_tried_again_when_next_lent() {
        let notes = Notes::default();
        *notes.refusing.lock() = true;
        let pool = Pool::pinned(1 << 20, Some(Arc::new(notes.clone())));
        drop(pool.copy_of(&vec![7; PINNED_BYTES]));
        assert!(notes.pinned.lock().is_empty());
        *notes.refusing.lock() = false;
        drop(pool.buffer(PINNED_BYTES));
        assert_eq!(notes.pinned.lock().len(), 1);
    }

    #[test]
    fn every_class_holds_its_length_and_wastes_at_most_a_fifth_beyond_a_page() {
        for len in (0..(8 << 20)).step_by(997) {
            let class = class_of(len);
            assert!(
                class >= len && class.is_multiple_of(ALIGNMENT),
                "{len}: {class}"
            );
            assert!(class - len <= (class / 5).max(ALIGNMENT), "{len}: {class}");
            assert_eq!(class_of(class), class, "{len}: a class serves itself");
        }
    }

    #[test]
    fn buffers_are_page_aligned_and_have_the_length_asked_for() {
        let pool = Pool::new(1 << 20);
        for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let buffer = pool.buffer(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn a_dropped_buffer_is_lent_again_and_zeroed_only_when_asked() {
        let pool = Pool::new(1 << 20);
        let mut first = pool.buffer(5000);
        first.fill(7);
        let at = first.as_ptr();
        drop(first);
        assert_eq!(pool.retained_bytes(), 8192);
        let second = pool.buffer(6000);
        assert_eq!(second.as_ptr(), at);
        assert_eq!(pool.retained_bytes(), 0);
        drop(second);
        assert!(pool.zeroed(5000).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_pool_never_keeps_more_than_its_limit() {
        let pool = Pool::new(3 * ALIGNMENT);
        let lent: Vec<Buffer> = (0..10).map(|_| pool.buffer(1)).collect();
        drop(lent);
        assert_eq!(pool.retained_bytes(), 3 * ALIGNMENT);
    }

    #[test]
    fn frozen_bytes_return_their_memory_with_the_last_slice() {
        let pool = Pool::new(1 << 20);
        let bytes = pool.copy_of(b"0123456789").freeze();
        let slice = bytes.slice(3..5);
        drop(bytes);
        assert_eq!(pool.retained_bytes(), 0);
        assert_eq!(&slice[..], b"34");
        drop(slice);
        assert_eq!(pool.retained_bytes(), ALIGNMENT);
    }
}
