//! Bytes of files in memory, and the room for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::fs::FsError;

/// The room for the bytes of all files.
#[derive(Debug)]
pub(super) struct Capacity {
    capacity: u64,
    free: AtomicU64,
}

impl Capacity {
    /// Offers room for so many bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            free: AtomicU64::new(capacity),
        }
    }

    /// Returns the bytes that there is room for in all.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes that there is room for still.
    pub(super) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<(), FsError> {
        let less = |free: u64| free.checked_sub(bytes);
        let taken = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(drop).map_err(|_| FsError::NoSpace)
    }

    fn give_back(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The bytes of a file that are kept. Offsets in a longer file wrap around them, because the time for new pages is not
/// FUSE's.
const WINDOW: usize = 1 << 20;

/// The bytes of one file. They keep their room until they are dropped.
#[derive(Debug)]
pub(super) struct FileContent {
    bytes: RwLock<Bytes>,
    space: Arc<Capacity>,
}

#[derive(Debug, Default)]
struct Bytes {
    len: u64,
    /// The byte at an offset is the one at the rest of its division by [`WINDOW`].
    window: Vec<u8>,
}

impl Bytes {
    /// Makes the window as long as the file, up to its limit.
    fn fit_window(&mut self) {
        let kept = usize::try_from(self.len).unwrap_or(usize::MAX).min(WINDOW);
        self.window.resize(kept, 0);
    }
}

impl FileContent {
    /// Makes an empty file.
    pub(super) fn new(space: Arc<Capacity>) -> Self {
        Self {
            bytes: RwLock::default(),
            space,
        }
    }

    /// Returns the length, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.bytes.read().len
    }

    /// Returns whether fewer bytes are kept than the file has.
    pub(super) fn is_partly_kept(&self) -> bool {
        self.size() > WINDOW as u64
    }

    /// Returns how many of the next `wanted` bytes from `offset` on the file has.
    pub(super) fn available(&self, offset: u64, wanted: usize) -> usize {
        let rest = self.size().saturating_sub(offset);
        usize::try_from(rest).unwrap_or(usize::MAX).min(wanted)
    }

    /// Reads from `offset` on, and returns how many bytes there were.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let bytes = self.bytes.read();
        let rest = usize::try_from(bytes.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = rest.min(out.len());
        let mut done = 0;
        while done < len {
            let piece = &bytes.window[place(offset + done as u64)..];
            let count = piece.len().min(len - done);
            out[done..done + count].copy_from_slice(&piece[..count]);
            done += count;
        }
        len
    }

    /// Writes at `offset`. A gap before it reads as zeros if the file is no longer than the bytes that are kept.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no room.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let end = offset.checked_add(data.len() as u64);
        let mut bytes = self.bytes.write();
        let longer = end.ok_or(FsError::FileTooBig)?.max(bytes.len);
        self.take_room(&mut bytes, longer)?;
        let mut done = 0;
        if offset == bytes.window.len() as u64 {
            // Added without zeros before.
            done = data.len().min(WINDOW - bytes.window.len());
            bytes.window.extend_from_slice(&data[..done]);
        }
        bytes.fit_window();
        while done < data.len() {
            let piece = &mut bytes.window[place(offset + done as u64)..];
            let count = piece.len().min(data.len() - done);
            piece[..count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        Ok(())
    }

    /// Cuts the file, or extends it.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no room.
    pub(super) fn resize(&self, size: u64) -> Result<(), FsError> {
        let mut bytes = self.bytes.write();
        self.take_room(&mut bytes, size)?;
        bytes.fit_window();
        Ok(())
    }

    /// Takes room for a file of `len` bytes, or gives the rest back.
    fn take_room(&self, bytes: &mut Bytes, len: u64) -> Result<(), FsError> {
        self.space.take(len.saturating_sub(bytes.len))?;
        self.space.give_back(bytes.len.saturating_sub(len));
        bytes.len = len;
        Ok(())
    }
}

/// Returns the place of the byte at an offset of a file.
#[expect(
    clippy::cast_possible_truncation,
    reason = "it is less than the length of the window"
)]
fn place(offset: u64) -> usize {
    (offset % WINDOW as u64) as usize
}

impl Drop for FileContent {
    fn drop(&mut self) {
        self.space.give_back(self.bytes.get_mut().len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_written_in_any_order_and_gaps_are_zeros() {
        let space = Arc::new(Capacity::new(100));
        let file = FileContent::new(Arc::clone(&space));
        file.write(6, b"ghi").unwrap();
        file.write(0, b"abc").unwrap();
        file.write(8, b"IJK").unwrap();
        let mut out = [0xff; 20];
        assert_eq!(file.read(0, &mut out), 11);
        assert_eq!(out[..11], *b"abc\0\0\0ghIJK");
        assert_eq!(file.read(9, &mut out), 2);
        assert_eq!(file.read(11, &mut out), 0);
        assert_eq!(file.read(u64::MAX, &mut out), 0);
        file.resize(2).unwrap();
        file.resize(4).unwrap();
        assert_eq!(file.read(0, &mut out), 4);
        assert_eq!(out[..4], *b"ab\0\0");
        assert_eq!(space.free(), 96);
    }

    #[test]
    fn a_long_file_keeps_few_bytes_and_all_of_its_length() {
        const LONG: u64 = 3 * WINDOW as u64 + 5;
        let space = Arc::new(Capacity::new(LONG));
        let file = FileContent::new(Arc::clone(&space));
        let data = vec![7; 2 * WINDOW];
        file.write(LONG - data.len() as u64, &data).unwrap();
        assert_eq!((file.size(), space.free()), (LONG, 0));
        assert_eq!(file.bytes.read().window.len(), WINDOW);
        let mut out = vec![0; 2 * WINDOW];
        assert_eq!(file.read(WINDOW as u64 - 1, &mut out), out.len());
        assert!(out.iter().all(|&byte| byte == 7));
        assert_eq!(file.read(LONG - 3, &mut out), 3);
        file.resize(2).unwrap();
        assert_eq!(space.free(), LONG - 2);
        assert_eq!(file.read(0, &mut out), 2);
    }

    #[test]
    fn a_file_takes_no_more_room_than_there_is_and_gives_it_back() {
        let space = Arc::new(Capacity::new(10));
        let file = FileContent::new(Arc::clone(&space));
        file.write(0, &[1; 8]).unwrap();
        assert!(matches!(file.write(7, &[2; 4]), Err(FsError::NoSpace)));
        assert!(matches!(
            file.write(u64::MAX, &[2]),
            Err(FsError::FileTooBig)
        ));
        file.write(7, &[2; 3]).unwrap();
        assert!(matches!(file.resize(11), Err(FsError::NoSpace)));
        assert_eq!((file.size(), space.free()), (10, 0));
        drop(file);
        assert_eq!(space.free(), 10);
    }
}
