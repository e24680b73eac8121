//! Open files and directories.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::format::Ino;

use super::error::FsError;
use super::read_ahead::ReadAhead;
use super::types::{Handle, OpenFlags};

/// Independent parts of the table, a power of two.
const SHARDS: usize = 64;

/// An open regular file.
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    pub(super) read_ahead: Mutex<ReadAhead>,
}

/// An open directory.
pub(super) struct OpenDir {
    pub(super) ino: Ino,
    /// Entries from this cookie on were made after the directory was opened or rewound, and are left
    /// out: a program that adds an entry for each one it reads must come to an end.
    pub(super) first_unseen: AtomicU64,
}

/// Something open.
#[derive(Clone)]
pub(super) enum Opened {
    File(Arc<OpenFile>),
    Dir(Arc<OpenDir>),
}

impl Opened {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Self::File(file) => file.ino,
            Self::Dir(dir) => dir.ino,
        }
    }

    pub(super) fn writes(&self) -> bool {
        match self {
            Self::File(file) => file.flags.write,
            Self::Dir(_) => false,
        }
    }
}

/// Everything open, by handle.
pub(super) struct Handles {
    shards: Box<[RwLock<HashMap<Handle, Opened>>]>,
    next: AtomicU64,
}

impl Handles {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next: AtomicU64::new(1),
        }
    }

    pub(super) fn add_file(&self, ino: Ino, flags: OpenFlags) -> Handle {
        self.add(Opened::File(Arc::new(OpenFile {
            ino,
            flags,
            read_ahead: Mutex::default(),
        })))
    }

    pub(super) fn add_dir(&self, ino: Ino, first_unseen: u64) -> Handle {
        self.add(Opened::Dir(Arc::new(OpenDir {
            ino,
            first_unseen: AtomicU64::new(first_unseen),
        })))
    }

    /// Checks that a handle is open.
    pub(super) fn check(&self, handle: Handle) -> Result<(), FsError> {
        if self.shard(handle).read().contains_key(&handle) {
            Ok(())
        } else {
            Err(FsError::BadHandle)
        }
    }

    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OpenFile>, FsError> {
        match self.shard(handle).read().get(&handle) {
            Some(Opened::File(file)) => Ok(Arc::clone(file)),
            Some(Opened::Dir(_)) => Err(FsError::IsDirectory),
            None => Err(FsError::BadHandle),
        }
    }

    pub(super) fn dir(&self, handle: Handle) -> Result<Arc<OpenDir>, FsError> {
        match self.shard(handle).read().get(&handle) {
            Some(Opened::Dir(dir)) => Ok(Arc::clone(dir)),
            Some(Opened::File(_)) => Err(FsError::NotDirectory),
            None => Err(FsError::BadHandle),
        }
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Opened, FsError> {
        let removed = self.shard(handle).write().remove(&handle);
        removed.ok_or(FsError::BadHandle)
    }

    fn add(&self, opened: Opened) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.shard(handle).write().insert(handle, opened);
        handle
    }

    fn shard(&self, handle: Handle) -> &RwLock<HashMap<Handle, Opened>> {
        let index = usize::try_from(handle.0 % SHARDS as u64).expect("below 64");
        &self.shards[index]
    }
}
