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

/// The bytes of one file. They keep their room until they are dropped.
#[derive(Debug)]
pub(super) struct FileContent {
    bytes: RwLock<Vec<u8>>,
    space: Arc<Capacity>,
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
        self.bytes.read().len() as u64
    }

    /// Reads from `offset` on, and returns how many bytes there were.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let bytes = self.bytes.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(start..).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        len
    }

    /// Writes at `offset`. A gap before it reads as zeros.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no room.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let start = usize::try_from(offset).map_err(|_| FsError::FileTooBig)?;
        let end = start.checked_add(data.len()).ok_or(FsError::FileTooBig)?;
        let mut bytes = self.bytes.write();
        self.reserve(&mut bytes, end)?;
        if bytes.len() < start {
            bytes.resize(start, 0);
        }
        let (old, new) = data.split_at(data.len().min(bytes.len() - start));
        bytes[start..start + old.len()].copy_from_slice(old);
        bytes.extend_from_slice(new);
        Ok(())
    }

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no room.
    pub(super) fn resize(&self, size: u64) -> Result<(), FsError> {
        let size = usize::try_from(size).map_err(|_| FsError::FileTooBig)?;
        let mut bytes = self.bytes.write();
        self.reserve(&mut bytes, size)?;
        let cut = bytes.len().saturating_sub(size) as u64;
        bytes.resize(size, 0);
        self.space.give_back(cut);
        Ok(())
    }

    /// Takes room for a file of `len` bytes, if it is to grow to that.
    fn reserve(&self, bytes: &mut Vec<u8>, len: usize) -> Result<(), FsError> {
        let more = len.saturating_sub(bytes.len());
        self.space.take(more as u64)?;
        bytes.try_reserve(more).map_err(|_| {
            self.space.give_back(more as u64);
            FsError::NoSpace
        })
    }
}

impl Drop for FileContent {
    fn drop(&mut self) {
        self.space.give_back(self.bytes.get_mut().len() as u64);
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
