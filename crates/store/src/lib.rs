//! Backing directories: the one layer that touches files.
//!
//! A [`Store`] is one backing directory seen as a flat set of files that are read and written at
//! offsets. It knows nothing of what the files hold; their names, and the roles of these
//! ([`FileRoles`]), are the only things that it takes from the layers above. [`DirStore`] is a real directory, [`MemStore`] one in
//! memory that can lose what was not synced, [`FaultStore`] wraps any store and makes chosen calls
//! fail. The [`Executor`] runs many operations on many stores at once, each bounded in time;
//! [`Pool`] lends the page-aligned memory that they work from.
//!
//! # Invariants
//!
//! - [`Store::create`] and [`Store::rename`] are durable when they return; bytes are durable when
//!   [`Store::sync`] of their file returned; [`Store::remove`] becomes durable with the next create
//!   or rename in the same directory, or on its own some time later.
//! - Nothing outside the directory is ever touched: symbolic links below it are not followed.
//! - A call interrupted by a signal is repeated inside; callers never see `EINTR`.

use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub mod buffer;
pub mod dir;
mod error;
pub mod executor;
pub mod fault;
pub mod memory;
mod name;
mod traffic;

pub use buffer::{Buffer, Pinner, Pool, Unpinner};
pub use dir::holders::{Holder, is_held_up};
pub use dir::{DirStore, DirectoryIdentity, FileRoles, Trust};
pub use error::{StoreError, StoreErrorKind};
pub use executor::{Executor, ExecutorKind, Op, Outcome, StoreRequest};
pub use fault::{Call, CallKind, Effect, Fault, FaultPlan, FaultStore, Scope};
pub use memory::{CutPolicy, MemDisk, MemStore};
pub use traffic::{Operations, Traffic};

/// Alignment, in bytes, of offsets, lengths and memory for I/O past the page cache; also the size
/// of a page of [`Buffer`].
pub const ALIGNMENT: usize = 4096;

/// A shared handle on a backing directory.
pub type StoreRef = Arc<dyn Store>;

/// Room on the filesystem that holds a backing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the filesystem in bytes.
    pub total_bytes: u64,
    /// Bytes that the daemon's user can still write.
    pub free_bytes: u64,
    /// The same number for backing directories that share one filesystem, and so its room.
    pub filesystem: u64,
    /// True if files take their space when they are made, and not only when they are written. True until
    /// a file was seen not to.
    pub reserves: bool,
    /// True if the first write to reserved space also changes metadata of the filesystem, which a durable write waits for.
    pub marks_first_writes: bool,
    /// The way from large files to their device.
    pub page_cache: PageCacheUse,
}

/// The part of the kernel's page cache in I/O on the large files of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCacheUse {
    /// The files lie in memory, and there is no device.
    Whole,
    /// All I/O goes through it, because the filesystem takes no `O_DIRECT`.
    Used,
    /// Aligned I/O bypasses it, unless the filesystem refuses that later.
    Bypassed,
}

/// The use for which a raw descriptor is wanted; see [`Store::raw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawUse {
    /// Reading or writing with offset, length and memory aligned to [`ALIGNMENT`].
    Aligned,
    /// Reading or writing of any other shape.
    Unaligned,
    /// Writing that ends when the bytes are durable.
    Durable {
        /// True if offset, length and memory are aligned to [`ALIGNMENT`].
        aligned: bool,
    },
    /// Syncing the file.
    Sync,
}

/// The kind of an entry of a backing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, a socket, a device.
    Other,
}

/// Hears of one entry of a directory after the other, by name; breaks once it has heard enough.
pub type Visitor<'a> = dyn FnMut(&str, EntryKind) -> ControlFlow<()> + 'a;

/// The mode in which a directory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// For this process alone.
    Exclusive,
    /// Together with others who only read. Writes nothing to the directory.
    Shared,
}

/// The use of a backing directory, until it is dropped or the process ends.
pub struct StoreLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl StoreLock {
    /// Wraps whatever frees the lock when it is dropped.
    pub(crate) fn new(held: impl Any + Send + Sync) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

impl Debug for StoreLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreLock")
    }
}

/// One backing directory.
///
/// File names are relative paths of printable ASCII, at most one directory deep: `"index"`,
/// `"chunks/00000000000000af"`. Any other name fails with [`StoreErrorKind::InvalidName`].
/// Calls may come from many threads at once and block for as long as the backing filesystem does;
/// [`Executor`] bounds that.
///
/// # Errors
///
/// Every method returns a [`StoreError`] whose [`kind`](StoreError::kind) is one of those named
/// with the method, or one that says the directory itself failed. `Foreign` may stand for every `NotFound`.
pub trait Store: Send + Sync + Debug {
    /// Returns the name for messages: the path of the directory.
    fn label(&self) -> String;

    /// Makes a file of `len` bytes, reading as zeros, with its space reserved where the filesystem can do that;
    /// [`Store::space`] says afterwards whether it can. A missing subdirectory is made. File and name are durable on
    /// return; a crash before that may leave a shorter file.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the file is there, unless it is `Foreign`: then the new file takes its name. `NoSpace`, and
    /// then no file remains.
    fn create(&self, name: &str, len: u64) -> Result<(), StoreError>;

    /// Returns the length of a file in bytes.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    fn open_len(&self, name: &str) -> Result<u64, StoreError>;

    /// Sets the length of a file; what is added reads as zeros and has no space reserved. Durable
    /// with the next [`Store::sync`].
    ///
    /// # Errors
    ///
    /// `NotFound`, `NoSpace`.
    fn truncate(&self, name: &str, len: u64) -> Result<(), StoreError>;

    /// Reserves space for a range of a file, which grows if the range ends beyond it. Durable with
    /// the next [`Store::sync`]. Where the filesystem cannot reserve, the file still grows.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NoSpace`.
    fn reserve(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Removes a file; one that is absent is fine. Not durable by itself: after a crash the file
    /// may be back.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn remove(&self, name: &str) -> Result<(), StoreError>;

    /// Removes a subdirectory with no files in it, which the next [`Store::create`] in it makes again; one that
    /// is absent, or holds anything, is left as it is. Not durable by itself.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn remove_if_empty(&self, dir: &str) -> Result<(), StoreError>;

    /// Gives a file another name, replacing what had it. Durable on return; the file's bytes are so
    /// only if they were synced.
    ///
    /// # Errors
    ///
    /// `NotFound` if `from` is absent.
    fn rename(&self, from: &str, to: &str) -> Result<(), StoreError>;

    /// Returns names and lengths in bytes of the files at the top (`dir` is `""`) or in one
    /// subdirectory, in order of name. The names are complete, so that other methods take them.
    /// An absent subdirectory has no files.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError>;

    /// Shows what the top (`dir` is `""`) or one subdirectory holds, of whatever kind and with whatever name, in no
    /// order, until `look` breaks. Of a directory with very many entries no more are read than that takes. An absent
    /// subdirectory has none.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), StoreError>;

    /// Returns the files that [`Store::list`] returns, in no order, with the bytes that each takes on the backing
    /// filesystem: holes take none, what is reserved for a file it takes.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn taken_by_file(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError>;

    /// Returns the bytes that all these files take together.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn taken(&self, dir: &str) -> Result<u64, StoreError> {
        let files = self.taken_by_file(dir)?;
        Ok(files.iter().map(|(_, taken)| taken).sum())
    }

    /// Gives back the space of a range, which then reads as zeros or the old bytes. Where the filesystem has no holes,
    /// this does nothing and succeeds. The length stays.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    fn punch(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Fills `buf` from a file.
    ///
    /// # Errors
    ///
    /// `NotFound`; `ShortRead` if the file ends before `buf` is full, whose content is then
    /// unspecified.
    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Writes all of `data`, growing the file if needed. Durable with the next [`Store::sync`].
    ///
    /// # Errors
    ///
    /// `NotFound`, `NoSpace`; part of the bytes may then have been written.
    fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Makes everything written to the file so far durable. After a failure, nothing written since
    /// the last success can be trusted to be, and asking again does not change that.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NoSpace`.
    fn sync(&self, name: &str) -> Result<(), StoreError>;

    /// Writes all of `data` like [`Store::write_at`], and makes it durable; earlier writes need not become so. A backing
    /// filesystem that can do that takes it as one request.
    ///
    /// # Errors
    ///
    /// `NotFound`; `NoSpace`, and then a part of the bytes may have been written, but never all. A filesystem that finds
    /// no space only while it makes the bytes durable has failed: `Io`.
    fn write_durably(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.write_at(name, offset, data)?;
        self.sync(name).map_err(StoreError::of_written)
    }

    /// Returns the room on the backing filesystem.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn space(&self) -> Result<Space, StoreError>;

    /// Checks that the directory at its path is still the very one that was opened, and that no file in use was deleted
    /// from outside. Open files of a deleted directory still answer, so only this call tells. A deleted file that is
    /// [expendable](FileRoles::is_expendable) answers `NotFound` from here on.
    ///
    /// # Errors
    ///
    /// `Gone` if it is not the same directory, or if another file was deleted.
    fn probe(&self) -> Result<(), StoreError>;

    /// Closes a file that is open if its name does not lead to it any more, because another program moved, replaced or
    /// deleted it. Every operation that begins later reaches the file that has the name by then. Returns whether the
    /// name leads elsewhere: bytes that were written before the call, and not synced, may be in the other file alone.
    ///
    /// The answer may also be yes for a file that this process removes meanwhile. Where the numbers of files may change,
    /// as on a network filesystem, the file is closed in any case, and the answer is no.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory. A name without a file is no error.
    fn refresh(&self, name: &str) -> Result<bool, StoreError> {
        let _ = name;
        Ok(false)
    }

    /// Returns what tells the directory from a copy of it; nothing for a store that is no directory. Waits for no device
    /// and no server.
    fn directory_identity(&self) -> Option<DirectoryIdentity> {
        None
    }

    /// Returns whether this is the directory of an identity, with its subdirectories. A subdirectory that is not there
    /// tells nothing.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    fn is_directory(&self, identity: &DirectoryIdentity) -> Result<bool, StoreError> {
        let _ = identity;
        Ok(true)
    }

    /// Takes the directory. Where the backing filesystem has no locks, or is read-only, the
    /// returned lock holds nothing.
    ///
    /// # Errors
    ///
    /// `InUse` if another process has it in a way that does not go with `hold`.
    fn lock(&self, hold: Hold) -> Result<StoreLock, StoreError>;

    /// Fills `buf` from a file if its bytes are in memory, without waiting for a device or a server. Returns whether it
    /// did; otherwise the content of `buf` is unspecified, and [`Store::read_at`] tells more.
    fn read_in_memory(&self, name: &str, offset: u64, buf: &mut [u8]) -> bool {
        let _ = (name, offset, buf);
        false
    }

    /// Returns whether open files are read, written and synced without waiting for a device or a server, because their
    /// bytes lie in memory. [`Executor`] then does so on the calling thread, which such an operation cannot hang.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Returns the counts of operations that an [`Executor`] ran here. None where nothing counts them.
    fn traffic(&self) -> Option<&Traffic> {
        None
    }

    /// Returns a descriptor of the file fit for `usage`, if one is available without blocking. With it
    /// [`Executor`] can give the operation to the kernel itself. Stores that are not files never have one.
    fn raw(&self, name: &str, usage: RawUse) -> Option<Arc<OwnedFd>> {
        let _ = (name, usage);
        None
    }
}

#[cfg(test)]
mod tests;
