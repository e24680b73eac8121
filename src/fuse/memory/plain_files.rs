//! Plain files on the filesystems of members: the limit of what a striping filesystem over these can reach.
//!
//! A write goes in parts into a data file for each data shard of a stripe. Each parity shard has a parity file, with as
//! many bytes as the first part. There are no checksums, no code and no metadata. A read takes as many bytes from the data
//! files as a stripe there would give, whichever bytes these are.
//!
//! # Invariants
//!
//! - The files have no names, so that none is left behind: [`PlainFiles::create`] removes each name at once.
//! - No file becomes longer than [`PlainShape::file_bytes`], because offsets start again at [`PlainShape::reuse_bytes`].
//! - After a failure every call fails, because bytes of other callers may be lost with those of the failed one.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use uuid::Uuid;

use crate::codec::WorkerPool;
use crate::fs::FsError;
use crate::fuse::device::MAX_DATA;
use crate::workers::Workers;

/// The beginning of the name of a file.
const NAME: &str = "cauchyfs-bench-plain-";

/// The bytes of the record of a sync, and the unit of offsets.
const BLOCK: usize = 4096;

/// The most bytes for each data file that small writes wait for. More of them would hardly save time, and need more of
/// the CPU's cache.
const MOST_GATHERED: usize = 64 << 10;

/// The numbers that plain files take from a volume, and the bytes that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainShape {
    /// The data shards of a stripe.
    pub data: usize,
    /// The parity shards of a stripe.
    pub parity: usize,
    /// The most bytes of one shard.
    pub unit_bytes: u32,
    /// The bytes that programs have in files at once. Those that come after them overwrite the first.
    pub bytes: u64,
}

impl PlainShape {
    /// Returns the bytes that each file has at most.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        // The last write may begin just before the end.
        self.reuse_bytes() + (MAX_DATA + BLOCK) as u64
    }

    /// Returns the offset at which offsets of a file start again.
    fn reuse_bytes(&self) -> u64 {
        let share = self.bytes.div_ceil(self.data.max(1) as u64);
        share.max(1).next_multiple_of(BLOCK as u64)
    }

    /// Returns the bytes that go out at once: a stripe, or fewer that cost no more time each. The largest request of the
    /// kernel is enough where whole blocks allow that.
    fn stripe_bytes(&self) -> usize {
        let unit = usize::try_from(self.unit_bytes).unwrap_or(usize::MAX);
        let share = MAX_DATA / self.data / BLOCK * BLOCK;
        self.data * unit.min(MOST_GATHERED).min(share).max(BLOCK)
    }
}

/// The open files. Several threads may write at once.
#[derive(Debug)]
pub struct PlainFiles {
    /// The data files, then the parity files.
    files: Vec<PlainFile>,
    data: usize,
    unit_bytes: u64,
    stripe_bytes: usize,
    reuse_bytes: u64,
    /// The offset of the next write, counted without starting again.
    next: AtomicU64,
    /// Small writes that no file has yet.
    gathered: Mutex<Vec<u8>>,
    /// The lock of the one sync that runs. It is taken before `gathered`.
    syncing: Mutex<()>,
    /// The number of syncs that have begun.
    begun: AtomicU64,
    /// The threads that sync several files at once.
    workers: Workers,
    has_failed: AtomicBool,
}

#[derive(Debug)]
struct PlainFile {
    file: File,
    /// Whether it has bytes that no sync has begun to cover.
    is_dirty: AtomicBool,
}

impl PlainFiles {
    /// Makes a file in each of `directories`, and removes its name. There is one directory for each shard.
    ///
    /// # Errors
    ///
    /// If a file cannot be made, or there are other numbers of shards.
    pub fn create(directories: &[PathBuf], shape: PlainShape) -> io::Result<Self> {
        let PlainShape { data, parity, .. } = shape;
        if data == 0 || data.checked_add(parity) != Some(directories.len()) {
            let given = directories.len();
            let what = format!("{given} directories are not those of {data}+{parity} shards");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let files: io::Result<Vec<File>> = directories.iter().map(|path| nameless(path)).collect();
        Self::over(files?, shape)
    }

    fn over(files: Vec<File>, shape: PlainShape) -> io::Result<Self> {
        let in_memory: io::Result<Vec<bool>> = files.iter().map(is_in_memory).collect();
        // In memory a sync takes less time than the wake of a thread.
        let all_in_memory = in_memory?.into_iter().all(|is_there| is_there);
        let width = if all_in_memory { 1 } else { files.len() };
        let files = files.into_iter().map(|file| PlainFile {
            file,
            is_dirty: AtomicBool::new(false),
        });
        Ok(Self {
            files: files.collect(),
            data: shape.data,
            unit_bytes: u64::from(shape.unit_bytes).max(BLOCK as u64),
            stripe_bytes: shape.stripe_bytes(),
            reuse_bytes: shape.reuse_bytes(),
            next: AtomicU64::new(0),
            gathered: Mutex::new(Vec::with_capacity(2 * shape.stripe_bytes())),
            syncing: Mutex::new(()),
            begun: AtomicU64::new(0),
            workers: Workers::new(width).map_err(io::Error::other)?,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Writes bytes. Those of small writes wait for a sync, or until they are enough for a stripe.
    ///
    /// # Errors
    ///
    /// `NoSpace`, or another reason why a file cannot be written. Every call after that fails as well.
    pub(super) fn write(&self, data: &[u8]) -> Result<(), FsError> {
        self.check()?;
        if data.len() >= self.stripe_bytes {
            return self.judge(self.put(data, &[]));
        }
        let mut gathered = self.gathered.lock();
        gathered.extend_from_slice(data);
        if gathered.len() < self.stripe_bytes {
            return Ok(());
        }
        let put = self.put(&gathered, &[]);
        gathered.clear();
        self.judge(put)
    }

    /// Reads units of stripes from the data files in turn, as many bytes as `out` takes. The units from `offset` on are those
    /// that a file of which all bytes are in order would have. They hold what the last writes left there, or zeros.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or as [`Self::write`] after a failure.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), FsError> {
        self.check()?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (unit, within) = (at / self.unit_bytes, at % self.unit_bytes);
            let of_unit = usize::try_from(self.unit_bytes - within).unwrap_or(usize::MAX);
            let (part, others) = rest.split_at_mut(of_unit.min(rest.len()));
            let (row, column) = (unit / self.data as u64, unit % self.data as u64);
            let place = (row * self.unit_bytes + within) % self.reuse_bytes;
            let file = &self.files[usize::try_from(column).unwrap_or_default()];
            file.read(place, part).map_err(FsError::Io)?;
            at += part.len() as u64;
            rest = others;
        }
        Ok(())
    }

    /// Makes durable what was written before. The bytes that wait go out, with a record beside them that survives the
    /// loss of as many files as there are parity files. One sync runs at a time, and serves all that were called before
    /// it began.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(super) fn sync(&self) -> Result<(), FsError> {
        self.sync_since(self.begun.load(Ordering::Acquire))
    }

    /// Does the same for a caller at whose call `begun_before` syncs had begun.
    fn sync_since(&self, begun_before: u64) -> Result<(), FsError> {
        let _alone = self.syncing.lock();
        self.check()?;
        // No other runs now, so one that began since that call has ended.
        if self.begun.load(Ordering::Acquire) > begun_before {
            return Ok(());
        }
        let begun = self.begin_sync();
        self.judge(begun.and_then(|()| self.sync_files()))
    }

    /// Begins a sync: writes the bytes that wait and a record beside them, if any file has or gets new bytes.
    fn begin_sync(&self) -> io::Result<()> {
        // Counted before it takes bytes, because a caller that counts it may have written others.
        self.begun.fetch_add(1, Ordering::AcqRel);
        let mut gathered = self.gathered.lock();
        let is_dirty = |file: &PlainFile| file.is_dirty.load(Ordering::Acquire);
        if gathered.is_empty() && !self.files.iter().any(is_dirty) {
            return Ok(());
        }
        let put = self.put(&gathered, &[0; BLOCK]);
        gathered.clear();
        put
    }

    /// Syncs the files that have new bytes, all of them at once.
    fn sync_files(&self) -> io::Result<()> {
        let is_due = |file: &&PlainFile| file.is_dirty.swap(false, Ordering::AcqRel);
        let due: Vec<&PlainFile> = self.files.iter().filter(is_due).collect();
        let failure = Mutex::new(None);
        self.workers.run(due.len(), &|index| {
            if let Err(error) = due[index].file.sync_data() {
                *failure.lock() = Some(error);
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Writes bytes to the data files in equal parts of whole blocks, and as many as the first part to each parity file.
    /// `record` follows in the first data file and in the parity files.
    fn put(&self, data: &[u8], record: &[u8]) -> io::Result<()> {
        let height = data.len().div_ceil(self.data).next_multiple_of(BLOCK);
        let taken = (height + record.len()) as u64;
        let offset = self.next.fetch_add(taken, Ordering::Relaxed) % self.reuse_bytes;
        let (data_files, parity_files) = self.files.split_at(self.data);
        let mut parts = data.chunks(height.max(BLOCK));
        let first = parts.next().unwrap_or_default();
        data_files[0].write(offset, first, record)?;
        for (file, part) in data_files[1..].iter().zip(parts) {
            file.write(offset, part, &[])?;
        }
        let mut parity_files = parity_files.iter();
        parity_files.try_for_each(|file| file.write(offset, first, record))
    }

    fn check(&self) -> Result<(), FsError> {
        if self.has_failed.load(Ordering::Acquire) {
            let what = "an earlier write to the plain files failed";
            return Err(FsError::Io(io::Error::other(what)));
        }
        Ok(())
    }

    /// Has all later calls fail after a failure.
    fn judge(&self, outcome: io::Result<()>) -> Result<(), FsError> {
        outcome.map_err(|error| {
            if !self.has_failed.swap(true, Ordering::AcqRel) {
                tracing::error!("a plain file beside a member cannot be written: {error}");
            }
            match error.kind() {
                io::ErrorKind::StorageFull => FsError::NoSpace,
                io::ErrorKind::QuotaExceeded => FsError::QuotaExceeded,
                _ => FsError::Io(error),
            }
        })
    }
}

impl PlainFile {
    /// Fills `out` from `offset` on, with zeros behind the end.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => {
                    out[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes two parts, one after the other.
    fn write(&self, mut offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        let mut parts = [IoSlice::new(first), IoSlice::new(second)];
        let mut left = &mut parts[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match rustix::io::pwritev(&self.file, left, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    IoSlice::advance_slices(&mut left, count);
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // After the bytes: a sync that clears the flag covers them.
        self.is_dirty.store(true, Ordering::Release);
        Ok(())
    }
}

/// Makes a file that has no name in `directory`.
fn nameless(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!("{NAME}{}", Uuid::new_v4()));
    let named = |error: io::Error| {
        let what = format!("cannot make {}: {error}", path.display());
        io::Error::new(error.kind(), what)
    };
    let mut options = File::options();
    options.read(true).write(true);
    options.create_new(true).mode(0o600);
    let file = options.open(&path).map_err(named)?;
    fs::remove_file(&path).map_err(named)?;
    Ok(file)
}

/// Returns whether a file lies in memory, so that a sync has nothing to do.
fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == libc::TMPFS_MAGIC)
}

#[cfg(test)]
mod tests;
