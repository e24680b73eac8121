//! POSIX: names, inodes, files, directories, attributes, and the rules between them.
//!
//! [`Fs`] turns calls of a filesystem into reads and atomic changes of the index, and into writes and reads of bytes
//! in stripes. Both go through [`Pipeline`]. It knows nothing of FUSE, of members or of codes. It does not check
//! whether a caller may do what it asks: a kernel that passes calls on checks permissions; a tool that runs offline
//! needs no check. Consequences of a call, such as a cleared setuid bit or an inherited ACL, are decided here.
//!
//! # Invariants
//!
//! - Every call changes the index in one batch, so that it happens wholly or not at all (P3). Only cutting off or
//!   removing a file of very many extents takes several, in the background. The first one leaves a mark that lets the
//!   next mount finish; the states in between are never seen.
//! - A file's bytes are in its inode record or in extents, never in both: an inode has extents exactly
//!   if its `allocated_bytes` are not 0.
//! - No byte is overwritten in place. A write places its bytes first and points the file at them then.
//! - An inode without a name has an orphan record from the moment its last name goes.
//! - Locks are taken in the order that `fs/locks.rs` gives, and none is held while bytes are read.

mod acl;
mod attributes;
pub mod check;
mod cut;
mod directories;
mod edit;
mod entries;
mod error;
mod extents;
mod failed_writeback;
mod handles;
mod inodes;
mod limits;
mod locks;
mod mode;
mod names;
mod nodes;
mod open_files;
mod paths;
mod read_ahead;
mod reader;
mod removal;
mod run;
pub mod tree;
mod types;
mod writer;
mod xattr;

use std::collections::BTreeSet;
use std::sync::Arc;

use edit::Edit;
use failed_writeback::Refused;
use handles::Handles;
use locks::Locks;
use nodes::Nodes;
use removal::Removal;
use xattr::NameLens;

use error::corrupt;
use inodes::read_inode;
use limits::{BLOCK_BYTES, NAME_BYTES};

use entries::FIRST_COOKIE;

use crate::commit::{InodeLocks, Pipeline};
use crate::format::record::{FileKind, Inline, Inode, Timestamp};
use crate::format::{BLOCK_SIZE, Ino, key};

pub use crate::format::TARGET_MAX;
pub use error::FsError;
pub use limits::{INLINE_MAX, LINKS_MAX, SIZE_MAX};
pub use types::{
    Allocation, AtimePolicy, Attr, Caller, Changes, Clock, DirItem, FsOptions, GroupLookup, Handle,
    OpenFlags, RenameMode, SpaceReport, TimeOrNow, Whence, WriteFlags, XattrMode,
};

/// Times that making room is tried for one call before it fails for lack of space.
const ROOM_ATTEMPTS: usize = 2;

/// A mounted filesystem. All calls may come from any number of threads.
pub struct Fs {
    pipeline: Arc<Pipeline>,
    options: FsOptions,
    locks: Arc<Locks>,
    nodes: Nodes,
    handles: Handles,
    removal: Removal,
    refused: Refused,
    name_lens: NameLens,
}

impl Fs {
    /// Opens the filesystem on a recovered volume, and makes the root directory of one that was never
    /// opened before.
    ///
    /// Unless it is read-only, this finishes what a crash cut off, in the background: files that were
    /// being truncated are cut, inodes that had lost their last name are removed.
    ///
    /// # Errors
    ///
    /// [`FsError::Corrupt`] or [`FsError::Format`] if the root directory is lost, [`FsError::ReadOnly`] if it would have to be made, [`FsError::Storage`] from below.
    pub fn open(pipeline: Arc<Pipeline>, options: FsOptions) -> Result<Arc<Self>, FsError> {
        let locks = Arc::new(Locks::new());
        let removal = Removal::start(Arc::clone(&pipeline), Arc::clone(&locks));
        let fs = Self {
            pipeline,
            options,
            locks,
            nodes: Nodes::new(),
            handles: Handles::new(),
            removal,
            refused: Refused::default(),
            name_lens: NameLens::default(),
        };
        fs.find_root()?;
        if !fs.options.read_only {
            fs.take_up_orphans()?;
        }
        Ok(Arc::new(fs))
    }

    /// Ends all work of this filesystem: removes inodes that only open handles kept, waits for the
    /// background, and makes everything durable. The pipeline stays open.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] from below. Acknowledged changes are safe even then.
    pub fn close(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        for ino in self.nodes.drain_unlinked() {
            self.removal.remove(ino)?;
        }
        self.removal.settle();
        for ino in self.refused.files() {
            self.keep_refused(ino);
        }
        self.syncfs()
    }

    /// Waits until everything that was handed to the background so far is removed.
    pub fn settle(&self) {
        self.removal.settle();
    }

    /// Returns the layer below.
    #[must_use]
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// Makes everything that was done before this call durable (P1).
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if it could not be; nothing since the last success can be trusted then.
    pub fn syncfs(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        Ok(self.pipeline.sync()?)
    }

    /// Makes a file or directory durable (P1). One commit covers the whole volume, and callers share
    /// it; `datasync` asks for less but costs the same.
    ///
    /// # Errors
    ///
    /// As for [`Self::syncfs`].
    pub fn fsync(&self, _ino: Ino, _datasync: bool) -> Result<(), FsError> {
        self.syncfs()
    }

    /// Reports how full the volume is. Inodes have no limit but space: none are counted, which `df -i`
    /// shows as a dash.
    ///
    /// # Errors
    ///
    /// None at present; an index that counts inodes may fail.
    pub fn statfs(&self) -> Result<SpaceReport, FsError> {
        let space = self.pipeline.space();
        let blocks = |bytes: u64| bytes / BLOCK_SIZE as u64;
        Ok(SpaceReport {
            block_size: BLOCK_BYTES,
            blocks: blocks(space.usable_total),
            blocks_free: blocks(space.usable_free),
            blocks_available: blocks(space.usable_free),
            files: 0,
            files_free: 0,
            name_max: NAME_BYTES,
        })
    }

    /// Returns the paths of inodes, by whatever names they have, from the root on and without a leading
    /// slash, in order. Looks at all names there are if need be, and returns at most `most`.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the index cannot be read.
    pub fn paths_of(&self, inos: &BTreeSet<Ino>, most: usize) -> Result<Vec<Vec<u8>>, FsError> {
        let found = paths::find(&self.pipeline, inos, most)?;
        let mut paths: Vec<Vec<u8>> = found.into_values().flatten().collect();
        paths.sort_unstable();
        paths.truncate(most);
        Ok(paths)
    }

    fn find_root(&self) -> Result<(), FsError> {
        match read_inode(&self.pipeline, Ino::ROOT)? {
            Some(root) if root.kind == FileKind::Directory => return Ok(()),
            Some(_) => return Err(corrupt(Ino::ROOT, "the root is not a directory")),
            None => {}
        }
        let (from, end) = key::inodes();
        if !self.pipeline.scan(&from, &end, 1)?.is_empty() {
            return Err(corrupt(Ino::ROOT, "the root is missing"));
        }
        self.writable()?;
        let mut edit = Edit::default();
        let (uid, gid) = self.options.root_owner;
        edit.put_inode(Ino::ROOT, &root_inode(uid, gid, self.now()));
        self.apply(edit)?;
        self.syncfs()
    }

    fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    fn writable(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    fn inode(&self, ino: Ino) -> Result<Inode, FsError> {
        read_inode(&self.pipeline, ino)?.ok_or(FsError::NotFound)
    }

    fn apply(&self, edit: Edit) -> Result<(), FsError> {
        self.name_lens.forget(edit.with_xattrs());
        Ok(self.pipeline.apply(edit.into_batch())?)
    }

    /// Like [`Self::apply`], for what adds to the volume: it is refused while there is no space for
    /// what was applied before.
    fn apply_growth(&self, edit: Edit) -> Result<(), FsError> {
        self.pipeline.growth().check_growth()?;
        self.apply(edit)
    }

    /// Runs `attempt`, which holds no lock when it returns; if it finds no space, makes room for `needed`
    /// bytes and tries again.
    fn with_room<T>(
        &self,
        needed: u64,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        for _ in 0..ROOM_ATTEMPTS {
            match attempt() {
                Err(FsError::NoSpace) if self.pipeline.room().make_room(needed, self)? => {}
                done => return done,
            }
        }
        attempt()
    }
}

impl InodeLocks for Fs {
    fn with_locked(&self, ino: Ino, work: &mut dyn FnMut()) {
        let _lock = self.locks.exclusive(&[ino]);
        work();
    }
}

fn root_inode(uid: u32, gid: u32, now: Timestamp) -> Inode {
    Inode {
        kind: FileKind::Directory,
        permissions: 0o755,
        uid,
        gid,
        links: 2,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: Ino::ROOT,
        next_cookie: FIRST_COOKIE,
        inline: Inline::None,
    }
}

#[cfg(test)]
mod tests;
