//! POSIX: names, inodes, files, directories, attributes, and the rules between them.
//!
//! [`Fs`] is an open filesystem. Its parts turn calls into reads and atomic changes of the index, and into writes and
//! reads of bytes in stripes. Both go through [`Transactions`]. The room knows nothing of FUSE, of members or of codes. It
//! does not check whether a caller may do what it asks: a kernel that passes calls on checks permissions; a tool that
//! runs offline needs no check. Consequences of a call, such as a cleared setuid bit or an inherited ACL, are decided
//! here.
//!
//! | part | calls |
//! | --- | --- |
//! | [`Names`] | look up, make, link, remove and rename |
//! | [`Directories`] | open and list directories |
//! | [`OpenFiles`] | open, flush and release files, forget look-ups |
//! | [`FileReader`] | read, find data and holes |
//! | [`FileWriter`] | write, allocate, punch, copy ranges |
//! | [`Attributes`] | read and change attributes, sizes included |
//! | [`Xattrs`] | extended attributes and ACLs |
//! | [`DirectoryCodes`] | give directories codes |
//! | [`DirectoryQuotas`] | set, show and clear quotas of directories |
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

mod access_time;
mod acl;
mod attributes;
pub mod check;
mod cut;
mod directories;
mod directory_codes;
mod edit;
mod entries;
mod error;
mod extents;
mod failed_writeback;
mod file_count;
mod handles;
mod inodes;
mod interlock;
mod kept;
mod limits;
mod list_lens;
mod listings;
mod locks;
mod mode;
mod names;
mod nodes;
mod open_files;
mod paths;
mod quotas;
mod ranges;
mod read_ahead;
mod reader;
mod references;
mod removal;
mod run;
mod seek;
mod served;
mod size_gate;
mod spill;
mod stored_inode;
pub mod tree;
mod types;
mod unwritten;
mod writer;
mod xattr;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::record::{FileKind, Inline, Inode, Timestamp};
use crate::format::{BLOCK_SIZE, Ino, QuotaId, StripeClass, key};
use crate::maintenance::{InodeLocks, Maintenance};
use crate::transaction::Transactions;

use access_time::AccessTimes;
use edit::Edit;
use entries::FIRST_COOKIE;
use error::corrupt;
use failed_writeback::FailedWriteback;
use file_count::FileCount;
use inodes::{Inodes, read_inode};
use kept::Unreported;
use limits::{BLOCK_BYTES, NAME_BYTES};
use references::References;
use removal::Removal;

pub use crate::format::TARGET_MAX;
pub use attributes::Attributes;
pub use directories::Directories;
pub use directory_codes::{DirectoryCodes, OwnCode};
pub use error::FsError;
pub use interlock::{Interlock, InterlockChange, RefusedRemovals};
pub use kept::{Kept, LostChanges};
pub use limits::{INLINE_MAX, LINKS_MAX, SIZE_MAX};
pub use names::Names;
pub use open_files::OpenFiles;
pub use quotas::{DirectoryQuotas, LimitChange, QuotaLimits, QuotaReport};
pub use reader::FileReader;
pub use served::{ServedFs, SizeTold};
pub use types::{
    Allocation, AtimePolicy, Attr, Caller, Changes, Clock, DirItem, FsOptions, GroupLookup, Handle,
    OpenFlags, RenameMode, SpaceReport, TimeOrNow, Whence, WriteFlags, XattrMode,
};
pub use writer::FileWriter;
pub use xattr::Xattrs;

/// An open filesystem. All calls may come from any number of threads.
pub struct Fs {
    maintenance: Arc<Maintenance>,
    transactions: Arc<Transactions>,
    inodes: Arc<Inodes>,
    removal: Arc<Removal>,
    references: Arc<References>,
    kept: Kept,
    unreported: Unreported,
    failed_writeback: Arc<FailedWriteback>,
    names: Names,
    directories: Directories,
    open_files: Arc<OpenFiles>,
    reader: Arc<FileReader>,
    writer: Arc<FileWriter>,
    attributes: Arc<Attributes>,
    xattrs: Arc<Xattrs>,
    quotas: DirectoryQuotas,
    directory_codes: DirectoryCodes,
    file_count: FileCount,
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
    /// [`FsError::Corrupt`] or [`FsError::Format`] if the root directory is lost, [`FsError::ReadOnly`] if it would
    /// have to be made, [`FsError::Storage`] from below.
    pub fn open(maintenance: Arc<Maintenance>, options: FsOptions) -> Result<Arc<Self>, FsError> {
        let root_owner = options.root_owner;
        let fs = Self::assemble(maintenance, options, Kept::none());
        fs.inodes.quotas().load()?;
        unwritten::load(&fs.transactions)?;
        fs.find_root(root_owner)?;
        fs.resume_removal()?;
        fs.quotas.resume();
        Ok(Arc::new(fs))
    }

    /// Opens the filesystem again, on a volume that was lost beneath a mount and is recovered. Callers keep their
    /// references, and learn by [`Self::take_loss`] of what was `lost`. No inode gets a number of one that is lost. The
    /// caller is to call [`Self::make_up`] once the filesystem is in use.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn reopen(
        maintenance: Arc<Maintenance>,
        options: FsOptions,
        kept: &Kept,
        lost: &LostChanges,
    ) -> Result<Arc<Self>, FsError> {
        let root_owner = options.root_owner;
        let fs = Self::assemble(maintenance, options, kept.clone());
        fs.inodes.quotas().load()?;
        unwritten::load(&fs.transactions)?;
        fs.find_root(root_owner)?;
        fs.transactions.skip_inos(lost.next_ino);
        fs.adopt_losses(lost)?;
        fs.resume_removal()?;
        fs.quotas.resume();
        Ok(Arc::new(fs))
    }

    /// Remembers which inodes lost changes. The kernel may still take a file for as long as it was: bytes behind its end
    /// now are neither zeros nor the end of the file, so reading them fails.
    fn adopt_losses(&self, lost: &LostChanges) -> Result<(), FsError> {
        let mut unreported = BTreeSet::new();
        for ino in &lost.inodes {
            let recovered = read_inode(&self.transactions, *ino)?;
            if lost.is_loss(*ino, recovered.as_ref()) {
                unreported.insert(*ino);
            }
            if let (Some(old), Some(recovered)) = (lost.records.get(ino), &recovered)
                && old.kind == FileKind::Regular
            {
                let cut = recovered.size..old.size;
                self.failed_writeback.note_lost(*ino, &cut)?;
            }
        }
        for (ino, range) in &lost.failed {
            self.failed_writeback.note_lost(*ino, range)?;
        }
        self.unreported.add(&unreported);
        Ok(())
    }

    /// Makes up for what happened while no volume was open, once this one is served: removes inodes whose last reference
    /// went, and remembers writebacks that failed. Returns the inodes of these. The kernel reports them, so another
    /// loss of theirs counts as reported as well.
    pub fn make_up(&self) -> BTreeSet<Ino> {
        let meanwhile = self.kept.take_meanwhile();
        for ino in meanwhile.idle {
            if let Err(error) = self.removal.remove(ino) {
                tracing::warn!("inode {ino} is to be removed at the next mount: {error}");
            }
        }
        let mut failed = BTreeSet::new();
        for (ino, range) in meanwhile.failed {
            if let Err(error) = self.failed_writeback.note_lost(ino, &range) {
                tracing::warn!("lost bytes of inode {ino} may read as zeros: {error}");
            }
            self.unreported.take(ino);
            failed.insert(ino);
        }
        failed
    }

    /// Finishes in the background what a crash cut off, unless the filesystem is read-only. Inodes without a name that
    /// callers refer to stay until the last reference goes.
    fn resume_removal(&self) -> Result<(), FsError> {
        if self.inodes.is_read_only() {
            return Ok(());
        }
        self.removal
            .resume(|ino| !self.references.nodes.unlinked(ino))
    }

    /// Makes the parts, each with those that it depends on.
    fn assemble(maintenance: Arc<Maintenance>, options: FsOptions, kept: Kept) -> Self {
        let transactions = Arc::clone(maintenance.transactions());
        let room = maintenance.room();
        let interlock = options.interlock.filter(|_| !options.read_only);
        let file_count = FileCount::default();
        if let Some(interlock) = &interlock {
            file_count.start(interlock, &transactions);
        }
        let inodes = Inodes::new(
            &transactions,
            room,
            options.clock,
            interlock,
            options.read_only,
        );
        let inodes = Arc::new(inodes);
        let access_times = Arc::new(AccessTimes::new(&inodes, &transactions, options.atime));
        let removal = Arc::new(Removal::new(&inodes, &transactions));
        let references = Arc::new(References::new(&kept, &removal));
        let failed_writeback = Arc::new(FailedWriteback::new(&inodes, &transactions));
        let xattrs = Arc::new(Xattrs::new(&inodes, &transactions));
        let reader = Arc::new(FileReader::new(
            &inodes,
            &transactions,
            &references,
            &failed_writeback,
            &access_times,
        ));
        let writer = Arc::new(FileWriter::new(
            &inodes,
            &transactions,
            &references,
            &xattrs,
            &failed_writeback,
            &removal,
            &reader,
        ));
        let attributes = Arc::new(Attributes::new(
            &inodes,
            &references,
            &xattrs,
            &writer,
            &access_times,
            &kept.sizes,
        ));
        let open_files = Arc::new(OpenFiles::new(
            &inodes,
            &references,
            &attributes,
            &failed_writeback,
        ));
        Self {
            maintenance,
            quotas: DirectoryQuotas::new(&inodes, &transactions),
            directory_codes: DirectoryCodes::new(&inodes, &transactions),
            names: Names::new(
                &inodes,
                &transactions,
                &references,
                &xattrs,
                &removal,
                &open_files,
            ),
            directories: Directories::new(
                &inodes,
                &transactions,
                &references,
                &access_times,
                options.confirms_listings,
            ),
            transactions,
            inodes,
            removal,
            references,
            kept,
            unreported: Unreported::default(),
            failed_writeback,
            open_files,
            reader,
            writer,
            attributes,
            xattrs,
            file_count,
        }
    }

    /// Ends all work of this filesystem: removes inodes that only open handles kept, waits for the
    /// background, and makes everything durable. The transactions stays open.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] from below. Acknowledged changes are safe even then.
    pub fn close(&self) -> Result<(), FsError> {
        if self.inodes.is_read_only() {
            return Ok(());
        }
        self.quotas.stop();
        self.file_count.stop();
        let mut unlinked = self.references.nodes.drain_unlinked().into_iter();
        let removed = unlinked.try_for_each(|ino| self.removal.remove(ino));
        self.removal.wait();
        self.failed_writeback.persist_all();
        let synced = self.syncfs();
        removed.and(synced)
    }

    /// Returns the references of callers, which may outlive this filesystem.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Returns the changes that are not durable, of a filesystem that accepts no more of them. Losses that were not
    /// reported yet are among them. A failed writeback counts as reported: the kernel tells each open file of it.
    #[must_use]
    pub fn unsynced_changes(&self) -> LostChanges {
        let keys = self.transactions.unsynced_keys();
        let mut lost = LostChanges::of(&keys, self.transactions.upcoming_ino());
        for ino in self.unreported.all() {
            lost.touch(ino);
        }
        for ino in self.failed_writeback.files() {
            let ranges = self.failed_writeback.within(ino, &(0..SIZE_MAX));
            lost.failed
                .extend(ranges.into_iter().map(|range| (ino, range)));
        }
        lost.failed.extend(self.failed_writeback.tails());
        // Records that are not in memory can no longer be read, and did not change.
        let record = |ino: &Ino| Some((*ino, read_inode(&self.transactions, *ino).ok()??));
        lost.records = lost.inodes.iter().filter_map(record).collect();
        lost
    }

    /// Returns whether changes of an inode were lost with an earlier opening of the volume. That is so once for each
    /// loss.
    pub fn take_loss(&self, ino: Ino) -> bool {
        self.unreported.take(ino)
    }

    /// Returns the limit on files that are removed within an hour, if there is one.
    #[must_use]
    pub fn interlock(&self) -> Option<&Arc<Interlock>> {
        self.inodes.interlock()
    }

    /// Returns the part that looks up and changes names.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the part that lists directories.
    #[must_use]
    pub fn directories(&self) -> &Directories {
        &self.directories
    }

    /// Returns the part that opens and releases files.
    #[must_use]
    pub fn open_files(&self) -> &OpenFiles {
        &self.open_files
    }

    /// Returns the part that reads the data of files.
    #[must_use]
    pub fn reader(&self) -> &FileReader {
        &self.reader
    }

    /// Returns the part that changes the data of files.
    #[must_use]
    pub fn writer(&self) -> &FileWriter {
        &self.writer
    }

    /// Returns the part that reads and changes attributes.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns the part that reads and changes extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &Xattrs {
        &self.xattrs
    }

    /// Returns the part that sets quotas of directories.
    #[must_use]
    pub fn quotas(&self) -> &DirectoryQuotas {
        &self.quotas
    }

    /// Returns the part that gives directories codes.
    #[must_use]
    pub fn directory_codes(&self) -> &DirectoryCodes {
        &self.directory_codes
    }

    /// Returns the locks of inodes, for maintenance that moves the data of files.
    #[must_use]
    pub fn inode_locks(&self) -> Arc<dyn InodeLocks> {
        Arc::clone(self.inodes.locks()) as _
    }

    /// Waits until everything that was handed to the background so far is removed.
    pub fn wait_for_removal(&self) {
        self.removal.wait();
    }

    /// Returns the open volume.
    #[must_use]
    pub fn maintenance(&self) -> &Arc<Maintenance> {
        &self.maintenance
    }

    /// Returns the layer below.
    #[must_use]
    pub fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    /// Makes everything that was done before this call durable (P1).
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if it could not be; nothing since the last success can be trusted then.
    pub fn syncfs(&self) -> Result<(), FsError> {
        if self.inodes.is_read_only() {
            return Ok(());
        }
        Ok(self.transactions.sync_all()?)
    }

    /// Makes everything that was done before this call durable (P1), like [`Self::syncfs`], and then calls `answer`,
    /// on this thread or another. It is not to wait. Callers share commits. If this one `may_commit` and is alone, it
    /// commits by itself; else it does not wait. Fails as well if bytes of the file were lost before they were durable.
    pub fn sync_for(
        &self,
        ino: Ino,
        may_commit: bool,
        answer: impl FnOnce(Result<(), FsError>) + Send + 'static,
    ) {
        if self.inodes.is_read_only() {
            return answer(Ok(()));
        }
        self.transactions.sync_for(ino, may_commit, |outcome| {
            answer(outcome.map_err(FsError::from));
        });
    }

    /// Reports how full the volume is, and asks the members for that. Inodes have no limit but space: none are counted,
    /// which `df -i` shows as a dash.
    #[must_use]
    pub fn statfs(&self) -> SpaceReport {
        let space = self.transactions.space();
        let blocks = |bytes: u64| bytes / BLOCK_SIZE as u64;
        SpaceReport {
            block_size: BLOCK_BYTES,
            blocks: blocks(space.usable_total),
            blocks_free: blocks(space.usable_free),
            blocks_available: blocks(space.usable_free),
            files: 0,
            files_free: 0,
            name_max: NAME_BYTES,
        }
    }

    /// Reports how much room is left below a directory, or for a file: as [`Fs::statfs`], or less where quotas leave less.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the index cannot be read.
    pub fn statfs_below(&self, ino: Ino) -> Result<SpaceReport, FsError> {
        self.within_quotas(self.statfs(), ino)
    }

    /// Returns the part of some space that quotas leave below a directory, or for a file.
    fn within_quotas(&self, space: SpaceReport, ino: Ino) -> Result<SpaceReport, FsError> {
        let mut report = space;
        self.inodes.quotas().narrow(&mut report, ino)?;
        Ok(report)
    }

    /// Returns the paths of inodes, by whatever names they have, from the root on and without a leading
    /// slash, in order. Looks at all names there are if need be, and returns at most `most`.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the index cannot be read.
    pub fn paths_of(&self, inos: &BTreeSet<Ino>, most: usize) -> Result<Vec<Vec<u8>>, FsError> {
        let found = paths::find(&self.transactions, inos, most)?;
        let mut paths: Vec<Vec<u8>> = found.into_values().flatten().collect();
        paths.sort_unstable();
        paths.truncate(most);
        Ok(paths)
    }

    /// Checks that there is a root directory, and makes that of a new volume.
    fn find_root(&self, (uid, gid): (u32, u32)) -> Result<(), FsError> {
        match read_inode(&self.transactions, Ino::ROOT)? {
            Some(root) if root.kind == FileKind::Directory => return Ok(()),
            Some(_) => return Err(corrupt(Ino::ROOT, "the root is not a directory")),
            None => {}
        }
        let (from, end) = key::inodes();
        if !self.transactions.scan(&from, &end, 1)?.is_empty() {
            return Err(corrupt(Ino::ROOT, "the root is missing"));
        }
        self.inodes.check_writable()?;
        let mut edit = Edit::default();
        edit.put_inode(Ino::ROOT, &root_inode(uid, gid, self.inodes.now()));
        self.inodes.apply(edit)?;
        self.syncfs()
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
        unwritten_bytes: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: Ino::ROOT,
        next_cookie: FIRST_COOKIE,
        quota: QuotaId::NONE,
        class: StripeClass::VOLUME,
        inline: Inline::None,
    }
}

#[cfg(test)]
mod tests;
