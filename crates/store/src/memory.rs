//! A store in memory that knows what a power cut would leave of it.
//!
//! A [`MemDisk`] stands for a disk, a [`MemStore`] for one time that its directory is open. Bytes
//! are durable once their file was synced; until then each write waits in order, and
//! [`MemDisk::cut`] decides over it. Names behave as [`Store`] promises: created and renamed ones
//! are durable at once, a removed one may come back until the next create or rename beside it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::name::{Name, invalid, is_dir};
use super::{
    EntryKind, Hold, Holder, PageCacheUse, Space, Store, StoreError, StoreErrorKind, StoreLock,
    Visitor,
};
use file::File;

mod content;
mod cut;
mod file;

pub use cut::CutPolicy;

/// A disk in memory, shared by the test that pulls its plug and the stores opened on it.
#[derive(Clone, Debug)]
pub struct MemDisk {
    shared: Arc<Mutex<DiskState>>,
    label: Arc<str>,
    /// True if the holders of its lock are not to be seen from here.
    is_far: bool,
}

#[derive(Clone, Debug)]
struct DiskState {
    files: BTreeMap<String, File>,
    /// Removed files whose removal is not durable yet.
    removed: Vec<(String, File)>,
    capacity_bytes: u64,
    /// Counts power cuts and replacements: stores opened before the last one are dead.
    generation: u64,
    /// The answer of dead stores.
    dead: StoreErrorKind,
    /// The holders of the lock.
    locks: Vec<Hold>,
    failing: Option<StoreErrorKind>,
    /// True if files take their space when they are made.
    reserves: bool,
    /// The answer of [`Store::space`].
    marks_first_writes: bool,
}

impl DiskState {
    fn used_bytes(&self) -> u64 {
        self.files.values().map(File::used_bytes).sum()
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes())
    }

    /// The effect of a sync on a directory: its removals cannot be undone any more.
    fn settle_removals(&mut self, dir: &str) {
        self.removed.retain(|(name, _)| dir_of(name) != dir);
    }

    /// Empties the disk and turns away every store that is open on it.
    fn start_over(&mut self) {
        self.files.clear();
        self.removed.clear();
        self.end_generation(StoreErrorKind::Gone);
    }

    /// Turns away every store that is open, with `dead` for an answer.
    fn end_generation(&mut self, dead: StoreErrorKind) {
        self.generation += 1;
        self.dead = dead;
        self.locks.clear();
    }
}

impl MemDisk {
    /// Makes an empty disk of `capacity_bytes`; `label` is its name in messages.
    #[must_use]
    pub fn new(label: &str, capacity_bytes: u64) -> Self {
        let state = DiskState {
            files: BTreeMap::new(),
            removed: Vec::new(),
            capacity_bytes,
            generation: 0,
            dead: StoreErrorKind::Gone,
            locks: Vec::new(),
            failing: None,
            reserves: true,
            marks_first_writes: false,
        };
        Self {
            shared: Arc::new(Mutex::new(state)),
            label: label.into(),
            is_far: false,
        }
    }

    /// Returns the disk with another name in messages, as where it is mounted elsewhere.
    #[must_use]
    pub fn labelled(self, label: &str) -> Self {
        let label = label.into();
        Self { label, ..self }
    }

    /// Returns the disk as it is seen from another machine than that of the holders of its lock.
    #[must_use]
    pub fn from_afar(self) -> Self {
        let is_far = true;
        Self { is_far, ..self }
    }

    /// Opens the directory of the disk.
    #[must_use]
    pub fn open(&self) -> MemStore {
        MemStore {
            disk: self.clone(),
            generation: self.shared.lock().generation,
        }
    }

    /// Returns a disk of its own with the same content, synced and unsynced, on which nothing is
    /// open. Cheap: blocks are shared until written.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut state = self.shared.lock().clone();
        state.locks.clear();
        Self {
            shared: Arc::new(Mutex::new(state)),
            label: Arc::clone(&self.label),
            is_far: self.is_far,
        }
    }

    /// Cuts the power: `policy` decides what is left of unsynced writes and removals, the lock is
    /// free, and stores opened earlier answer [`StoreErrorKind::PowerCut`] from now on.
    pub fn cut(&self, policy: CutPolicy) {
        let mut state = self.shared.lock();
        let mut random = match policy {
            // By its name: the same seed decides the same way in later versions of `rand`.
            CutPolicy::Reorder(seed) => Some(Xoshiro256PlusPlus::seed_from_u64(seed)),
            CutPolicy::Keep | CutPolicy::Drop => None,
        };
        let removed = std::mem::take(&mut state.removed);
        for (name, file) in removed {
            let back = match &mut random {
                Some(random) => random.random(),
                None => policy == CutPolicy::Drop,
            };
            if back {
                // A newer file of that name was durable at once, so the old one cannot win.
                state.files.entry(name).or_insert(file);
            }
        }
        for file in state.files.values_mut() {
            file.cut(policy, random.as_mut());
        }
        state.end_generation(StoreErrorKind::PowerCut);
        state.failing = None;
    }

    /// Deletes the directory and puts an empty one in its place: stores opened earlier find their
    /// directory gone, later ones find it empty.
    pub fn wipe(&self) {
        let mut state = self.shared.lock();
        state.start_over();
        state.failing = None;
    }

    /// Deletes the directory for good: every store on it, open or to be opened, finds it gone.
    pub fn delete(&self) {
        let mut state = self.shared.lock();
        state.start_over();
        state.failing = Some(StoreErrorKind::Gone);
    }

    /// Makes every call fail with `kind` from now on, or, with `None`, work again.
    pub fn fail(&self, kind: Option<StoreErrorKind>) {
        self.shared.lock().failing = kind;
    }

    /// Changes the size of the disk. Its content stays, even if that is more.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.shared.lock().capacity_bytes = capacity_bytes;
    }

    /// Changes bytes of a file, synced and unsynced, as failing hardware would: without any notice.
    /// Returns whether the file is there and covers the range.
    pub fn corrupt(&self, name: &str, offset: u64, change: impl Fn(&mut [u8]), len: usize) -> bool {
        let mut state = self.shared.lock();
        state
            .files
            .get_mut(name)
            .is_some_and(|file| file.corrupt(offset, len, change))
    }

    /// Lets files take space only when they are written, from now on, as filesystems without
    /// `fallocate` do.
    pub fn stop_reserving(&self) {
        self.shared.lock().reserves = false;
    }

    /// Makes [`Store::space`] say that first writes are slower, as ext4 and XFS have them.
    pub fn mark_first_writes(&self) {
        self.shared.lock().marks_first_writes = true;
    }

    /// Returns whether any file has writes that are not durable.
    #[must_use]
    pub fn has_unsynced(&self) -> bool {
        self.shared.lock().files.values().any(File::has_unsynced)
    }
}

/// The directory of a [`MemDisk`], opened.
#[derive(Clone, Debug)]
pub struct MemStore {
    disk: MemDisk,
    generation: u64,
}

impl MemStore {
    /// Makes a store on a new disk without a limit worth mentioning (1 TiB).
    #[must_use]
    pub fn new(label: &str) -> Self {
        MemDisk::new(label, 1 << 40).open()
    }

    /// Returns the disk below.
    #[must_use]
    pub fn disk(&self) -> &MemDisk {
        &self.disk
    }

    fn error(&self, kind: StoreErrorKind, action: &'static str, name: &str) -> StoreError {
        let source = io::Error::other(format!("memory store: {kind:?}"));
        StoreError::new(kind, &*self.disk.label, action, name, source)
    }

    /// Returns the state, if this store may still use it.
    fn state(
        &self,
        action: &'static str,
        name: &str,
    ) -> Result<MutexGuard<'_, DiskState>, StoreError> {
        let state = self.disk.shared.lock();
        match state.failing {
            Some(kind) => Err(self.error(kind, action, name)),
            None if state.generation != self.generation => {
                Err(self.error(state.dead, action, name))
            }
            None => Ok(state),
        }
    }

    /// Runs `change` on a file, with the free space of the disk in bytes.
    fn with_file<T>(
        &self,
        action: &'static str,
        name: &str,
        change: impl FnOnce(&mut File, u64) -> Result<T, StoreErrorKind>,
    ) -> Result<T, StoreError> {
        Name::check(name, &self.disk.label, action)?;
        let mut state = self.state(action, name)?;
        let free_bytes = state.free_bytes();
        let file = state.files.get_mut(name).ok_or(StoreErrorKind::NotFound);
        file.and_then(|file| change(file, free_bytes))
            .map_err(|kind| self.error(kind, action, name))
    }
}

impl Store for MemStore {
    fn label(&self) -> String {
        self.disk.label.to_string()
    }

    fn create(&self, name: &str, len: u64) -> Result<(), StoreError> {
        let parts = Name::check(name, &self.disk.label, "create")?;
        let mut state = self.state("create", name)?;
        if state.files.contains_key(name) {
            return Err(self.error(StoreErrorKind::AlreadyExists, "create", name));
        }
        let reserved = if state.reserves { len } else { 0 };
        let file = File::new(len, reserved, state.free_bytes())
            .map_err(|kind| self.error(kind, "create", name))?;
        state.files.insert(name.to_owned(), file);
        state.settle_removals(parts.dir);
        Ok(())
    }

    fn open_len(&self, name: &str) -> Result<u64, StoreError> {
        self.with_file("open", name, |file, _| Ok(file.len()))
    }

    fn truncate(&self, name: &str, len: u64) -> Result<(), StoreError> {
        self.with_file("truncate", name, |file, _| {
            file.truncate(len);
            Ok(())
        })
    }

    fn reserve(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        let takes_space = self.state("reserve", name)?.reserves;
        self.with_file("reserve", name, |file, free_bytes| {
            let reserved = if takes_space { len } else { 0 };
            file.reserve(offset, len, reserved, free_bytes)
        })
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        Name::check(name, &self.disk.label, "remove")?;
        let mut state = self.state("remove", name)?;
        if let Some(file) = state.files.remove(name) {
            state.removed.push((name.to_owned(), file));
        }
        Ok(())
    }

    fn remove_if_empty(&self, dir: &str) -> Result<(), StoreError> {
        if dir.is_empty() || !is_dir(dir) {
            return Err(invalid(dir, &self.disk.label, "remove"));
        }
        // Here a subdirectory is there as long as it has files.
        self.state("remove", dir).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let source = Name::check(from, &self.disk.label, "rename")?;
        let target = Name::check(to, &self.disk.label, "rename")?;
        let mut state = self.state("rename", from)?;
        let file = state.files.remove(from);
        let file = file.ok_or_else(|| self.error(StoreErrorKind::NotFound, "rename", from))?;
        state.files.insert(to.to_owned(), file);
        state.settle_removals(source.dir);
        state.settle_removals(target.dir);
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        if !is_dir(dir) {
            return Err(invalid(dir, &self.disk.label, "list"));
        }
        let state = self.state("list", dir)?;
        let files = state.files.iter().filter(|(name, _)| dir_of(name) == dir);
        Ok(files
            .map(|(name, file)| (name.clone(), file.len()))
            .collect())
    }

    fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), StoreError> {
        if !is_dir(dir) {
            return Err(invalid(dir, &self.disk.label, "list"));
        }
        let state = self.state("list", dir)?;
        let mut last_subdir = "";
        for name in state.files.keys() {
            let subdir = dir_of(name);
            let (name, kind) = match name.strip_prefix(subdir) {
                Some(rest) if subdir == dir => (rest.trim_start_matches('/'), EntryKind::File),
                Some(_) if dir.is_empty() && subdir != last_subdir => {
                    last_subdir = subdir;
                    (subdir, EntryKind::Directory)
                }
                _ => continue,
            };
            if look(name, kind).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn taken_by_file(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        if !is_dir(dir) {
            return Err(invalid(dir, &self.disk.label, "list"));
        }
        let state = self.state("list", dir)?;
        let files = state.files.iter().filter(|(name, _)| dir_of(name) == dir);
        Ok(files
            .map(|(name, file)| (name.clone(), file.used_bytes()))
            .collect())
    }

    fn punch(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        self.with_file("punch", name, |file, _| {
            file.punch(offset, len);
            Ok(())
        })
    }

    fn read_in_memory(&self, name: &str, offset: u64, buf: &mut [u8]) -> bool {
        self.read_at(name, offset, buf).is_ok()
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let wanted = buf.len();
        let whole = self.with_file("read", name, |file, _| Ok(file.read(offset, buf)))?;
        if whole {
            Ok(())
        } else {
            Err(StoreError::short_read(
                &*self.disk.label,
                name,
                offset,
                wanted,
            ))
        }
    }

    fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.with_file("write", name, |file, free_bytes| {
            file.write(offset, data, free_bytes)
        })
    }

    fn sync(&self, name: &str) -> Result<(), StoreError> {
        self.with_file("sync", name, |file, _| {
            file.sync();
            Ok(())
        })
    }

    fn space(&self) -> Result<Space, StoreError> {
        let state = self.state("measure", "directory")?;
        Ok(Space {
            total_bytes: state.capacity_bytes,
            free_bytes: state.free_bytes(),
            filesystem: Arc::as_ptr(&self.disk.shared).addr() as u64,
            reserves: state.reserves,
            marks_first_writes: state.marks_first_writes,
            page_cache: PageCacheUse::Whole,
        })
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.state("find", "directory").map(drop)
    }

    fn lock(&self, hold: Hold) -> Result<StoreLock, StoreError> {
        let mut state = self.state("lock", "directory")?;
        let is_free = match hold {
            Hold::Exclusive => state.locks.is_empty(),
            Hold::Shared => !state.locks.contains(&Hold::Exclusive),
        };
        if !is_free {
            let holder = (!self.disk.is_far).then(|| Holder::of(std::process::id()));
            return Err(StoreError::in_use(&*self.disk.label, holder));
        }
        state.locks.push(hold);
        Ok(StoreLock::new(HeldLock(self.clone())))
    }
}

/// The lock of a disk, freed on drop unless the disk was cut or replaced since.
struct HeldLock(MemStore);

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut state = self.0.disk.shared.lock();
        if state.generation == self.0.generation {
            state.locks.pop();
        }
    }
}

fn dir_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(dir, _)| dir)
}

#[cfg(test)]
mod tests;
