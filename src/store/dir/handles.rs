//! The files of a directory that are open: a bounded cache of descriptors.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

/// The descriptors of one file that are open.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    /// Past the page cache.
    pub(super) direct: Option<Arc<OwnedFd>>,
    /// Through the page cache.
    pub(super) buffered: Option<Arc<OwnedFd>>,
}

impl Open {
    /// Returns either descriptor.
    pub(super) fn any(self) -> Option<Arc<OwnedFd>> {
        self.direct.or(self.buffered)
    }
}

/// Descriptors by file name, the least recently used closed first. A descriptor in use stays open
/// until its last user is done.
#[derive(Debug)]
pub(super) struct Handles {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: LruCache<Box<str>, Open>,
    /// Counts removals and renames, so that a descriptor opened before one is not kept after it.
    epoch: u64,
}

impl Handles {
    /// Makes a cache for `limit` files.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    pub(super) fn new(limit: usize) -> Self {
        let limit = NonZeroUsize::new(limit).expect("a cache of at least one file");
        Self {
            state: Mutex::new(State {
                files: LruCache::new(limit),
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
        let displaced = state.files.push(name.into(), open);
        drop(state); // closing a file can block, and nobody may wait for that
        drop(displaced);
    }

    /// Forgets a file whose name now means another one, or none.
    pub(super) fn forget(&self, name: &str) {
        let mut state = self.state.lock();
        state.epoch += 1;
        let forgotten = state.files.pop(name);
        drop(state); // closing a file can block, and nobody may wait for that
        drop(forgotten);
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
