//! Opening and closing files.

use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::FileKind;

use super::attributes::Attributes;
use super::error::FsError;
use super::failed_writeback::FailedWriteback;
use super::inodes::Inodes;
use super::mode::check_regular;
use super::references::References;
use super::types::{Caller, Changes, Handle, OpenFlags};

/// Open files, and look-ups of inodes.
pub struct OpenFiles {
    inodes: Arc<Inodes>,
    references: Arc<References>,
    attributes: Arc<Attributes>,
    failed_writeback: Arc<FailedWriteback>,
}

impl OpenFiles {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        references: &Arc<References>,
        attributes: &Arc<Attributes>,
        failed_writeback: &Arc<FailedWriteback>,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            references: Arc::clone(references),
            attributes: Arc::clone(attributes),
            failed_writeback: Arc::clone(failed_writeback),
        }
    }

    /// Opens a regular file; with `flags.truncate`, cuts it to nothing.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NotDirectory`] for
    /// `flags.directory`, [`FsError::ReadOnly`] for writing, [`FsError::Invalid`] for what is opened
    /// elsewhere (symbolic links, fifos, sockets and devices).
    pub fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle, FsError> {
        if flags.write || flags.truncate {
            self.inodes.check_writable()?;
        }
        // Counted before it is looked at: it cannot vanish in between.
        let handle = self.references.open_file(ino, flags);
        let opened = self.prepare(caller, ino, flags);
        if opened.is_err() {
            self.references.release(handle)?;
        }
        opened.map(|()| handle)
    }

    fn prepare(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<(), FsError> {
        let inode = self.inodes.get(ino)?;
        if flags.directory && inode.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        check_regular(&inode)?;
        if flags.truncate {
            let changes = Changes {
                size: Some(0),
                ..Changes::default()
            };
            self.attributes.set(caller, ino, changes)?;
        }
        Ok(())
    }

    /// Closes a file. If it has no name left, it is removed with its last handle and look-up.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`].
    pub fn release(&self, handle: Handle) -> Result<(), FsError> {
        self.references.release(handle)
    }

    /// Returns whether a handle is open through which the file may be written: a page cache may hold
    /// bytes of it that are not here yet.
    #[must_use]
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.references.nodes.has_writer(ino)
    }

    /// Returns whether a handle is open, and there for writing only.
    #[must_use]
    pub fn only_writes(&self, handle: Handle) -> bool {
        let file = self.references.handles.file(handle);
        file.is_ok_and(|file| file.flags.write && !file.flags.read)
    }

    /// Takes back look-ups that were counted. An inode without a name is removed with the last one.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        if self.references.forget(ino, lookups) {
            self.failed_writeback.forget_behind_end(ino);
        }
    }
}
