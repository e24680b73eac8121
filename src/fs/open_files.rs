//! Opening and closing.

use crate::format::Ino;
use crate::format::record::FileKind;

use super::Fs;
use super::error::FsError;
use super::handles::Opened;
use super::mode::check_regular;
use super::types::{Caller, Changes, Handle, OpenFlags};

impl Fs {
    /// Opens a regular file; with `flags.truncate`, cuts it to nothing.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NotDirectory`] for
    /// `flags.directory`, [`FsError::ReadOnly`] for writing, [`FsError::Invalid`] for what is opened
    /// elsewhere (symbolic links, fifos, sockets and devices).
    pub fn open_file(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Handle, FsError> {
        if flags.write || flags.truncate {
            self.writable()?;
        }
        // Counted before it is looked at: it cannot vanish in between.
        let handle = self.hold_file(ino, flags);
        let opened = self.prepare(caller, ino, flags);
        if opened.is_err() {
            self.release(handle)?;
        }
        opened.map(|()| handle)
    }

    fn prepare(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        if flags.directory && inode.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        check_regular(&inode)?;
        if flags.truncate {
            let changes = Changes {
                size: Some(0),
                ..Changes::default()
            };
            self.setattr(caller, ino, changes)?;
        }
        Ok(())
    }

    /// Closes a file. If it has no name left, it is removed with its last handle and look-up.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`].
    pub fn release(&self, handle: Handle) -> Result<(), FsError> {
        let opened = self.handles.remove(handle)?;
        self.let_go(&opened);
        Ok(())
    }

    /// Sees that a handle is open; writes are in the pipeline by the time they return, so there is
    /// nothing to flush.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`].
    pub fn flush(&self, handle: Handle) -> Result<(), FsError> {
        self.handles.check(handle)
    }

    /// Says whether a handle is open through which the file may be written: a page cache may hold
    /// bytes of it that are not here yet.
    #[must_use]
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.nodes.has_writer(ino)
    }

    /// Says whether a handle is open, and there for writing only.
    #[must_use]
    pub fn only_writes(&self, handle: Handle) -> bool {
        let file = self.handles.file(handle);
        file.is_ok_and(|file| file.flags.write && !file.flags.read)
    }

    pub(super) fn hold_file(&self, ino: Ino, flags: OpenFlags) -> Handle {
        self.nodes.hold(ino, flags.write);
        self.handles.add_file(ino, flags)
    }

    pub(super) fn let_go(&self, opened: &Opened) {
        let ino = opened.ino();
        if self.nodes.let_go(ino, opened.writes()) {
            self.remove_inode(ino);
        }
    }
}
