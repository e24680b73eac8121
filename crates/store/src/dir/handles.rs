//! The files of a directory that are open: a bounded cache of descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

/// The descriptors of one file that are open.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    /// Past the page cache.
    pub(super) direct: Option<Arc<OwnedFd>>,
    /// Through the page cache.
    pub(super) buffered: Option<Arc<OwnedFd>>,
}

impl Open {
    /// Returns the descriptors.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.direct.iter().chain(&self.buffered)
    }

    /// Returns either descriptor.
    pub(super) fn any(self) -> Option<Arc<OwnedFd>> {
        self.direct.or(self.buffered)
    }
}

/// Most files that one directory keeps open.
pub(super) const MOST: usize = 96;

/// Fewest files that one directory keeps open, however many directories there are.
const FEWEST: usize = 4;

/// The number of directories that share the descriptors that this process may have.
static SHARERS: AtomicUsize = AtomicUsize::new(0);

/// Descriptors by file name, the least recently used closed first. A descriptor in use stays open
/// until its last user is done. All caches together keep to half of what the process may open.
#[derive(Debug)]
pub(super) struct Handles {
    state: Mutex<OpenFiles>,
}

#[derive(Debug)]
struct OpenFiles {
    files: LruCache<Box<str>, Open>,
    /// Counts removals, renames and looks at names, so that a descriptor opened before one is not kept after it.
    epoch: u64,
}

impl Handles {
    /// Makes a cache.
    pub(super) fn new() -> Self {
        SHARERS.fetch_add(1, Ordering::Relaxed);
        Self {
            state: Mutex::new(OpenFiles {
                files: LruCache::unbounded(),
                epoch: 0,
            }),
        }
    }

    /// Returns what is open of a file.
    pub(super) fn get(&self, name: &str) -> Open {
        self.state
            .lock()
            .files
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the count to be handed to the inserting methods; taken before the file is opened.
    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Keeps a descriptor through the page cache, unless names changed since `epoch`.
    pub(super) fn insert_buffered(&self, name: &str, file: &Arc<OwnedFd>, epoch: u64) {
        self.insert(name, epoch, |open| open.buffered = Some(Arc::clone(file)));
    }

    /// Keeps a descriptor past the page cache, unless names changed since `epoch`.
    pub(super) fn insert_direct(&self, name: &str, file: &Arc<OwnedFd>, epoch: u64) {
        self.insert(name, epoch, |open| open.direct = Some(Arc::clone(file)));
    }

    fn insert(&self, name: &str, epoch: u64, put: impl FnOnce(&mut Open)) {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        if let Some(open) = state.files.get_mut(name) {
            return put(open);
        }
        let mut open = Open::default();
        put(&mut open);
        state.files.push(name.into(), open);
        let limit = room_for(descriptor_limit(), SHARERS.load(Ordering::Relaxed));
        let mut displaced = Vec::new();
        while state.files.len() > limit {
            displaced.extend(state.files.pop_lru());
        }
        drop(state); // closing a file can block, and nobody may wait for that
        drop(displaced);
    }

    /// Closes every file that is not in use.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let files = std::mem::replace(&mut state.files, LruCache::unbounded());
        drop(state); // closing a file can block, and nobody may wait for that
        drop(files);
    }

    /// Forgets a file whose name now means another one, or none.
    pub(super) fn forget(&self, name: &str) {
        let mut state = self.state.lock();
        state.epoch += 1;
        let forgotten = state.files.pop(name);
        drop(state); // closing a file can block, and nobody may wait for that
        drop(forgotten);
    }

    /// Keeps no descriptor that is being opened at this moment, because its name may mean another file by now.
    pub(super) fn end_openings(&self) {
        self.state.lock().epoch += 1;
    }

    /// Returns one descriptor of every open file.
    pub(super) fn all(&self) -> Vec<(Box<str>, Arc<OwnedFd>)> {
        let state = self.state.lock();
        let files = state.files.iter();
        files
            .filter_map(|(name, open)| Some((name.clone(), open.clone().any()?)))
            .collect()
    }

    /// Returns whether `file` is still one of the descriptors kept for `name`.
    pub(super) fn holds(&self, name: &str, file: &Arc<OwnedFd>) -> bool {
        let state = self.state.lock();
        let same =
            |kept: &Option<Arc<OwnedFd>>| kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, file));
        state
            .files
            .peek(name)
            .is_some_and(|open| same(&open.direct) || same(&open.buffered))
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        SHARERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns how many descriptors this process may have open.
fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns how many files, of up to two descriptors each, one of `sharers` directories keeps open.
fn room_for(descriptors: u64, sharers: usize) -> usize {
    let files = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
    (files / sharers.max(1)).clamp(FEWEST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_directories_together_keep_to_half_of_the_descriptors() {
        for (descriptors, sharers) in [(1024, 6), (1024, 20), (4096, 80), (1 << 20, 80)] {
            let open = 2 * room_for(descriptors, sharers) * sharers;
            assert!(open as u64 <= descriptors / 2, "{descriptors} {sharers}");
        }
        assert_eq!(room_for(u64::MAX, 6), MOST);
        assert_eq!(room_for(64, 80), FEWEST);
    }
}
