//! A real directory as a store: ext4, xfs, btrfs, tmpfs, or a network mount.
//!
//! Everything is opened relative to a descriptor of the directory, component by component, without following symbolic
//! links. So nothing outside can be reached, and another directory that took the place of ours is never written to.
//! The users of a directory tell the roles of its files ([`FileRoles`]). Aligned I/O on some of them bypasses the page
//! cache (`O_DIRECT`) where the filesystem takes it.
//!
//! A file that lies under one of the directory's names need not be its own: it can be a hard link to a file elsewhere.
//! Such a file is neither read nor changed. It answers [`StoreErrorKind::Foreign`], until a new file takes its name.
//!
//! The store makes up for features that a filesystem lacks. Without `fallocate` files just grow; without holes
//! [`Store::punch`] does nothing; without `O_DIRECT` or locks it goes on without them.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{self as sys, FallocateFlags, OFlags, Timespec, Timestamps};
use rustix::io::{Errno, ReadWriteFlags};

use super::name::{Name, invalid, is_dir};
use super::{
    ALIGNMENT, Hold, PageCacheUse, RawUse, Space, Store, StoreError, StoreErrorKind, StoreLock,
    Traffic, Visitor,
};
use calls::retry;
use filesystems::{
    DURABLE_WRITE_FILESYSTEMS, LOCAL_FILESYSTEMS, MARKING_FILESYSTEMS, MEMORY_FILESYSTEMS,
};
use handles::{Handles, Open};
use own::{Failed, Oddity, Seen};
use resident::Residence;
use tree::{PathState, Tree};

mod calls;
mod filesystems;
mod handles;
pub(super) mod holders;
mod identity;
mod lock;
mod own;
mod resident;
mod roles;
mod space;
mod tree;
mod trust;

pub use identity::DirectoryIdentity;
pub use own::Trust;
pub use roles::FileRoles;

/// Files of one directory that are reported as not its own at most.
const MOST_REPORTED: usize = 100;

/// A backing directory of the running system.
#[derive(Debug)]
pub struct DirStore {
    path: PathBuf,
    label: String,
    roles: &'static FileRoles,
    tree: Tree,
    handles: Handles,
    /// True if operations can be handed to the kernel without waiting for the server of the filesystem.
    is_local: bool,
    /// True if one request writes bytes durably; otherwise a write and a sync do.
    writes_durably: bool,
    residence: Residence,
    /// True if no operation on an open file waits for a device.
    is_in_memory: bool,
    /// Cleared for good when the filesystem refuses `O_DIRECT`.
    takes_direct: AtomicBool,
    /// Cleared for good when a file was made that does not take its space.
    reserves: AtomicBool,
    /// Names of files that are not the directory's own and were reported.
    reported: Mutex<BTreeSet<String>>,
    /// Held while names disappear, so that [`Store::probe`] can tell our removals from others'.
    removing: Mutex<()>,
    traffic: Traffic,
}

impl DirStore {
    /// Opens an existing directory of a user whom `trust` covers. Its files have these `roles`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is nothing at `path`, `Gone` if it is no directory, `Denied`; `Untrusted` if `trust` does not
    /// cover the user, or another who may write to it.
    pub fn open(
        path: impl Into<PathBuf>,
        roles: &'static FileRoles,
        trust: Trust,
    ) -> Result<Self, StoreError> {
        let path = path.into();
        let label = path.display().to_string();
        let tree = Tree::open(&path, roles.owners, trust)
            .map_err(|errno| StoreError::from_io(&label, "open", "directory", errno.into()))?;
        trust::check(&tree, roles.subdirectory, &label)?;
        let kind = tree.kind();
        let residence = kind.map_or(Residence::Unknown, Residence::of);
        let is_one_of = |kinds: &[u32]| kind.is_ok_and(|kind| kinds.contains(&kind));
        Ok(Self {
            path,
            label,
            roles,
            tree,
            handles: Handles::new(),
            is_local: is_one_of(&LOCAL_FILESYSTEMS),
            writes_durably: is_one_of(&DURABLE_WRITE_FILESYSTEMS),
            is_in_memory: is_one_of(&MEMORY_FILESYSTEMS),
            residence,
            takes_direct: AtomicBool::new(true),
            reserves: AtomicBool::new(true),
            reported: Mutex::default(),
            removing: Mutex::new(()),
            traffic: Traffic::default(),
        })
    }

    /// Returns the path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns device and inode number: equal for two stores exactly if they are one directory.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.tree.identity()
    }

    /// Sets when a file was changed to now, and waits until that is durable: what only reads, or is frozen,
    /// or hangs, does not do that.
    ///
    /// # Errors
    ///
    /// If it is absent, and those of a failing directory.
    pub fn touch(&self, name: &str) -> Result<(), StoreError> {
        let file = self.buffered(name, "touch")?;
        let keep = Timespec {
            tv_sec: 0,
            tv_nsec: sys::UTIME_OMIT,
        };
        let now = Timespec {
            tv_nsec: sys::UTIME_NOW,
            ..keep
        };
        let times = Timestamps {
            last_access: keep,
            last_modification: now,
        };
        sys::futimens(&file, &times).map_err(self.failed("touch", name))?;
        retry(|| sys::fsync(&file)).map_err(self.failed("touch", name))
    }

    fn failed<'a, F: Into<Failed>>(
        &'a self,
        action: &'static str,
        name: &'a str,
    ) -> impl Fn(F) -> StoreError + use<'a, F> {
        move |failed| {
            let of_kind = |kind, text: String| {
                StoreError::new(kind, &self.label, action, name, io::Error::other(text))
            };
            match failed.into() {
                Failed::Call(errno) => StoreError::from_io(&self.label, action, name, errno.into()),
                Failed::Foreign(oddity) => {
                    self.report(name, oddity);
                    of_kind(StoreErrorKind::Foreign, oddity.to_string())
                }
                Failed::ForeignDirectory(oddity) => {
                    let text = format!("the directory that holds it is not usable: {oddity}");
                    of_kind(StoreErrorKind::Gone, text)
                }
            }
        }
    }

    /// Logs why a file is not the directory's own, once for each of the first names.
    fn report(&self, name: &str, oddity: Oddity) {
        let mut reported = self.reported.lock();
        if reported.len() < MOST_REPORTED && reported.insert(name.to_owned()) {
            tracing::warn!(path = self.label, "{name} is left alone: {oddity}");
        }
    }

    fn check<'a>(&self, name: &'a str, action: &'static str) -> Result<Name<'a>, StoreError> {
        Name::check(name, &self.label, action)
    }

    fn look_into<T>(
        &self,
        dir: &str,
        look: impl FnOnce(&Tree) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        if !is_dir(dir) {
            return Err(invalid(dir, &self.label, "list"));
        }
        let name = if dir.is_empty() { "directory" } else { dir };
        look(&self.tree).map_err(self.failed("list", name))
    }

    /// Opens a file, and closes others first if the process has no descriptor left.
    fn open_existing(&self, name: Name<'_>, flags: OFlags) -> Result<OwnedFd, Failed> {
        match self.tree.open_existing(name, flags) {
            Err(Failed::Call(Errno::MFILE | Errno::NFILE)) => {
                self.handles.clear();
                self.tree.open_existing(name, flags)
            }
            other => other,
        }
    }

    /// Returns a descriptor for the page cache way, opening the file if it is not open.
    fn buffered(&self, name: &str, action: &'static str) -> Result<Arc<OwnedFd>, StoreError> {
        if let Some(file) = self.handles.get(name).buffered {
            return Ok(file);
        }
        let parts = self.check(name, action)?;
        let epoch = self.handles.epoch();
        let file = self
            .open_existing(parts, OFlags::empty())
            .map_err(self.failed(action, name))?;
        let file = Arc::new(file);
        self.handles.insert_buffered(name, &file, epoch);
        Ok(file)
    }

    /// Returns a descriptor past the page cache, or `None` if this file is not for that, or the
    /// filesystem takes none.
    fn direct(&self, name: &str, action: &'static str) -> Result<Option<Arc<OwnedFd>>, StoreError> {
        if !self.wants_direct(name) {
            return Ok(None);
        }
        if let Some(file) = self.handles.get(name).direct {
            return Ok(Some(file));
        }
        let parts = self.check(name, action)?;
        let epoch = self.handles.epoch();
        match self.open_existing(parts, OFlags::DIRECT) {
            Ok(file) => {
                let file = Arc::new(file);
                self.handles.insert_direct(name, &file, epoch);
                Ok(Some(file))
            }
            Err(Failed::Call(Errno::INVAL | Errno::OPNOTSUPP)) => {
                self.give_up_direct();
                Ok(None)
            }
            Err(failed) => Err(self.failed(action, name)(failed)),
        }
    }

    /// Returns whether aligned I/O on a file bypasses the page cache.
    fn wants_direct(&self, name: &str) -> bool {
        (self.roles.bypasses_cache)(name) && self.takes_direct.load(Ordering::Relaxed)
    }

    fn page_cache(&self) -> PageCacheUse {
        if self.is_in_memory {
            PageCacheUse::Whole
        } else if self.takes_direct.load(Ordering::Relaxed) {
            PageCacheUse::Bypassed
        } else {
            PageCacheUse::Used
        }
    }

    fn give_up_direct(&self) {
        if self.takes_direct.swap(false, Ordering::Relaxed) {
            tracing::info!(
                path = self.label,
                "no O_DIRECT here, going through the page cache"
            );
        }
    }

    /// Repeats `step`, which gets a descriptor and the bytes done so far, until `wanted` bytes are
    /// done or it does none. Goes past the page cache if `aligned`, else, or where that is
    /// refused, through it. Returns how many bytes were done.
    fn transfer(
        &self,
        name: &str,
        action: &'static str,
        aligned: bool,
        wanted: usize,
        mut step: impl FnMut(&OwnedFd, usize) -> Result<usize, Errno>,
    ) -> Result<usize, StoreError> {
        let mut done = 0;
        let mut repeat = |file: &OwnedFd| {
            while done < wanted {
                match retry(|| step(file, done)) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(errno) => return (done, Err(errno)),
                }
            }
            (done, Ok(()))
        };
        if aligned && let Some(file) = self.direct(name, action)? {
            match repeat(&file) {
                (0, Err(Errno::INVAL)) => self.give_up_direct(),
                // A tail shorter than a block cannot be had past the page cache.
                (_, Err(Errno::INVAL)) => {}
                (done, ended) => return ended.map(|()| done).map_err(self.failed(action, name)),
            }
        }
        let (done, ended) = repeat(&*self.buffered(name, action)?);
        ended.map(|()| done).map_err(self.failed(action, name))
    }

    /// A deleted directory takes no new files: that tells it apart from a file that is absent.
    fn gone_if_not_found(error: StoreError) -> StoreError {
        match error.kind() {
            StoreErrorKind::NotFound => error.with_kind(StoreErrorKind::Gone),
            _ => error,
        }
    }

    fn gone(&self, what: &str) -> StoreError {
        let source = io::Error::new(io::ErrorKind::NotFound, what.to_owned());
        StoreError::new(
            StoreErrorKind::Gone,
            &self.label,
            "find",
            "directory",
            source,
        )
    }

    /// Looks for open files that were deleted or replaced from outside. Fails if one was that a directory cannot do
    /// without. Closes the others, so that a caller that asks for them learns that they are gone.
    fn probe_open_files(&self) -> Result<(), StoreError> {
        for (name, file) in self.handles.all() {
            let Some(fate) = self.fate_of(&name, &file) else {
                continue;
            };
            // Our own removals forget the file before they release this lock.
            let _no_removal = self.removing.lock();
            if !self.handles.holds(&name, &file) {
                continue;
            }
            if !(self.roles.is_expendable)(&name) {
                return Err(self.gone(&format!("{name} was {fate} by someone else")));
            }
            tracing::warn!(path = self.label, "{name} was {fate} by someone else");
            self.handles.forget(&name);
        }
        Ok(())
    }

    /// Says what became of a file that is open, if its name does not lead to it any more.
    fn fate_of(&self, name: &str, file: &OwnedFd) -> Option<&'static str> {
        let held = sys::fstat(file).ok()?;
        if held.st_nlink == 0 {
            return Some("deleted");
        }
        // Elsewhere a file may change its number. A file that is one of many is not worth a look at each.
        if !self.is_local || (self.roles.is_expendable)(name) {
            return None;
        }
        match self.tree.identity_at(Name::parse(name)?) {
            // Another link, owner or mode is no other file.
            Ok(now) if now == (held.st_dev, held.st_ino) => None,
            Ok(_) => Some("replaced"),
            Err(Failed::Call(Errno::NOENT)) => Some("moved away"),
            Err(_) => None,
        }
    }

    /// Returns whether one of the descriptors of a file belongs to another file than the one that has its name.
    fn is_replaced(&self, name: Name<'_>, open: &Open) -> Result<bool, Failed> {
        let mut held = BTreeSet::new();
        for file in open.descriptors() {
            held.insert(Seen::of(file)?.identity);
        }
        if held.is_empty() {
            return Ok(false);
        }
        match self.tree.identity_at(name) {
            Ok(now) => Ok(held != BTreeSet::from([now])),
            Err(Failed::Call(Errno::NOENT)) => Ok(true),
            Err(failed) => Err(failed),
        }
    }
}

impl Store for DirStore {
    fn traffic(&self) -> Option<&Traffic> {
        Some(&self.traffic)
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn create(&self, name: &str, len: u64) -> Result<(), StoreError> {
        let parts = self.check(name, "create")?;
        let failed = |failed: Failed| Self::gone_if_not_found(self.failed("create", name)(failed));
        self.tree.make_dir(parts.dir).map_err(failed)?;
        let file = Arc::new(self.tree.create_file(parts).map_err(failed)?);
        // The handle that is open under this name belongs to a file that was deleted from outside. It would take the
        // written bytes with it.
        self.handles.forget(name);
        let epoch = self.handles.epoch();
        if let Err(first) = self.fill_new(parts, &file, len) {
            // The first failure is the one worth telling; the next create meets what is left.
            if let Err(second) = self.tree.unlink(parts) {
                tracing::warn!("cannot remove half-made {name}: {}", failed(second));
            }
            return Err(failed(first));
        }
        self.handles.insert_buffered(name, &file, epoch);
        Ok(())
    }

    fn open_len(&self, name: &str) -> Result<u64, StoreError> {
        let parts = self.check(name, "open")?;
        let seen = self.tree.stat(parts).map_err(self.failed("open", name))?;
        Ok(seen.len)
    }

    fn truncate(&self, name: &str, len: u64) -> Result<(), StoreError> {
        let file = self.buffered(name, "truncate")?;
        retry(|| sys::ftruncate(&file, len)).map_err(self.failed("truncate", name))
    }

    fn reserve(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        let file = self.buffered(name, "reserve")?;
        self.grow(&file, offset, len)
            .map_err(self.failed("reserve", name))
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let parts = self.check(name, "remove")?;
        let _removing = self.removing.lock();
        let removed = self.tree.unlink(parts);
        self.handles.forget(name);
        match removed {
            Ok(()) | Err(Failed::Call(Errno::NOENT)) => Ok(()),
            Err(failed) => Err(self.failed("remove", name)(failed)),
        }
    }

    fn remove_if_empty(&self, dir: &str) -> Result<(), StoreError> {
        if dir.is_empty() || !is_dir(dir) {
            return Err(invalid(dir, &self.label, "remove"));
        }
        match self.tree.remove_dir(dir) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(self.failed("remove", dir)(errno)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let (source, target) = (self.check(from, "rename")?, self.check(to, "rename")?);
        let failed = self.failed("rename", from);
        self.tree.make_dir(target.dir).map_err(&failed)?;
        {
            let _removing = self.removing.lock();
            let renamed = self.tree.rename(source, target);
            self.handles.forget(from);
            self.handles.forget(to);
            renamed.map_err(&failed)?;
        }
        self.tree.sync_dir(target.dir).map_err(&failed)?;
        if source.dir != target.dir {
            self.tree.sync_dir(source.dir).map_err(&failed)?;
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.look_into(dir, |tree| tree.list(dir))
    }

    fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.look_into(dir, |tree| tree.visit(dir, look))
    }

    fn taken_by_file(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.look_into(dir, |tree| tree.taken_by_file(dir))
    }

    fn taken(&self, dir: &str) -> Result<u64, StoreError> {
        self.look_into(dir, |tree| tree.taken(dir))
    }

    fn punch(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        let file = self.buffered(name, "punch")?;
        if len == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| sys::fallocate(&file, hole, offset, len)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.failed("punch", name)(errno)),
        }
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let (wanted, aligned) = (buf.len(), is_aligned(offset, buf));
        let done = self.transfer(name, "read", aligned, wanted, |file, done| {
            rustix::io::pread(file, &mut buf[done..], offset + done as u64)
        })?;
        if done < wanted {
            return Err(StoreError::short_read(&self.label, name, offset, wanted));
        }
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let (wanted, aligned) = (data.len(), is_aligned(offset, data));
        let done = self.transfer(name, "write", aligned, wanted, |file, done| {
            rustix::io::pwrite(file, &data[done..], offset + done as u64)
        })?;
        if done < wanted {
            return Err(self.failed("write", name)(Errno::IO));
        }
        Ok(())
    }

    fn write_durably(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        if self.writes_durably {
            let (wanted, aligned) = (data.len(), is_aligned(offset, data));
            let written = self.transfer(name, "write", aligned, wanted, |file, done| {
                let rest = [IoSlice::new(&data[done..])];
                let offset = offset + done as u64;
                rustix::io::pwritev2(file, &rest, offset, ReadWriteFlags::DSYNC)
            });
            match written {
                Ok(done) if done == wanted => return Ok(()),
                Ok(_) => return Err(self.failed("write", name)(Errno::IO)),
                // In two steps it shows whether the bytes found no space, or were written and cannot be made durable.
                Err(error) if error.kind() == StoreErrorKind::NoSpace => {}
                Err(error) if error.kind() == StoreErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        // A filesystem of another kind may ignore the wish. It obeys a sync.
        self.write_at(name, offset, data)?;
        self.sync(name).map_err(StoreError::of_written)
    }

    fn sync(&self, name: &str) -> Result<(), StoreError> {
        let file = match self.handles.get(name).any() {
            Some(file) => file,
            None => self.buffered(name, "sync")?,
        };
        retry(|| sys::fdatasync(&file)).map_err(self.failed("sync", name))
    }

    fn space(&self) -> Result<Space, StoreError> {
        let stat = retry(|| sys::fstatvfs(self.tree.top()))
            .map_err(self.failed("measure", "directory"))?;
        let identity =
            retry(|| sys::fstat(self.tree.top())).map_err(self.failed("measure", "directory"))?;
        let kind = self.tree.kind();
        Ok(Space {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            filesystem: identity.st_dev,
            reserves: self.reserves.load(Ordering::Relaxed),
            marks_first_writes: kind.is_ok_and(|kind| MARKING_FILESYSTEMS.contains(&kind)),
            page_cache: self.page_cache(),
        })
    }

    fn probe(&self) -> Result<(), StoreError> {
        match self.tree.look(&self.path) {
            Ok(PathState::Ours) => self.probe_open_files(),
            Ok(PathState::Emptied(what)) => {
                Err(self.gone(&format!("{what} was deleted by someone else")))
            }
            Ok(PathState::Taken) => {
                let error = self.gone("another directory is in its place; is its disk mounted?");
                Err(error.with_kind(StoreErrorKind::Displaced))
            }
            Err(errno) => Err(Self::gone_if_not_found(self.failed("find", "directory")(
                errno,
            ))),
        }
    }

    fn refresh(&self, name: &str) -> Result<bool, StoreError> {
        let parts = self.check(name, "find")?;
        if !self.is_local {
            self.handles.forget(name);
            return Ok(false);
        }
        // Before the look: a descriptor that was opened earlier is in the cache by now, or never gets there.
        self.handles.end_openings();
        let open = self.handles.get(name);
        let is_replaced = self.is_replaced(parts, &open);
        if !is_replaced.map_err(self.failed("find", name))? {
            return Ok(false);
        }
        // Our own removals forget the file before they release this lock.
        let _no_removal = self.removing.lock();
        if open
            .descriptors()
            .any(|file| self.handles.holds(name, file))
        {
            tracing::warn!(path = self.label, "{name} was replaced by someone else");
            self.handles.forget(name);
        }
        Ok(true)
    }

    fn directory_identity(&self) -> Option<DirectoryIdentity> {
        Some(self.tree.directory_identity())
    }

    fn is_directory(&self, identity: &DirectoryIdentity) -> Result<bool, StoreError> {
        let looked = self.tree.is_directory(identity);
        looked.map_err(self.failed("find", "directory"))
    }

    fn lock(&self, hold: Hold) -> Result<StoreLock, StoreError> {
        self.take_lock(hold)
    }

    fn read_in_memory(&self, name: &str, offset: u64, buf: &mut [u8]) -> bool {
        // A file that is not open is opened by a caller that may wait.
        let file = self
            .residence
            .choose(self.wants_direct(name), || self.handles.get(name));
        file.is_some_and(|file| self.residence.read(&file, offset, buf))
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    fn raw(&self, name: &str, usage: RawUse) -> Option<Arc<OwnedFd>> {
        if !self.is_local {
            return None;
        }
        let open = self.handles.get(name);
        match usage {
            RawUse::Sync => open.any(),
            RawUse::Durable { .. } if !self.writes_durably => None,
            RawUse::Aligned | RawUse::Durable { aligned: true } if self.wants_direct(name) => {
                open.direct
            }
            // The kernel would sync it on the thread that submits it, which nothing watches.
            RawUse::Durable { .. } if !self.is_in_memory => None,
            RawUse::Aligned | RawUse::Unaligned | RawUse::Durable { .. } => open.buffered,
        }
    }
}

/// Returns whether an operation may bypass the page cache. An empty one gains nothing from it.
pub(super) fn is_aligned(offset: u64, memory: &[u8]) -> bool {
    let block = ALIGNMENT as u64;
    !memory.is_empty()
        && offset.is_multiple_of(block)
        && memory.len().is_multiple_of(ALIGNMENT)
        && memory.as_ptr().addr().is_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests;
