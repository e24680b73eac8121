//! The directories that are open and locked, and their release.
//!
//! A directory stays open for as long as anything can reach it: a member that is up, or a call that has not come back.
//! The directory of a member that failed, or was replaced by a newer one, is released once the last such call is over.
//! Until then the call may still take effect, so no other process may have the directory. From then on deleted files
//! take no space any more, and the filesystem can be unmounted.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;

use crate::store::{Executor, StoreLock, StoreRef};

/// The time to wait until files are closed: closing hangs only if the directory does.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A directory, and the lock that keeps others from it.
#[derive(Debug)]
struct LockedDirectory {
    /// More than one where it was opened again before the last use of it was over.
    stores: Vec<StoreRef>,
    // In this order: no other process has the directory before its files are closed.
    _lock: StoreLock,
}

impl LockedDirectory {
    fn is_of(&self, store: &StoreRef) -> bool {
        self.stores.iter().any(|held| Arc::ptr_eq(held, store))
    }

    fn is_at(&self, path: &str) -> bool {
        self.stores.iter().any(|held| held.label() == path)
    }

    fn hangs(&self, executor: &Executor) -> bool {
        self.stores.iter().any(|store| executor.is_hanging(store))
    }

    /// Returns whether nothing but this knows of it.
    fn is_unused(&self) -> bool {
        let mut stores = self.stores.iter();
        stores.all(|store| Arc::strong_count(store) == 1)
    }
}

/// All directories that are in use.
#[derive(Debug, Default)]
pub(super) struct DirectoryLocks(Mutex<Vec<LockedDirectory>>);

impl DirectoryLocks {
    /// Notes a directory that was locked.
    pub(super) fn add(&self, store: &StoreRef, lock: StoreLock) {
        self.0.lock().push(LockedDirectory {
            stores: vec![Arc::clone(store)],
            _lock: lock,
        });
    }

    /// Notes that a directory is held already under its path, and was opened once more; returns whether it is held.
    /// From then on it stays held while `store` is in use.
    pub(super) fn add_again(&self, store: &StoreRef) -> bool {
        let path = store.label();
        let mut all = self.0.lock();
        // The newest: an earlier one may not be released yet.
        let held = all.iter_mut().rev().find(|held| held.is_at(&path));
        held.map(|held| held.stores.push(Arc::clone(store)))
            .is_some()
    }

    /// Returns whether the directory at a path is held, or was when something else was there.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.lock().iter().any(|held| held.is_at(path))
    }

    /// Returns the paths of all of them.
    pub(super) fn paths(&self) -> Vec<String> {
        let all = self.0.lock();
        let stores = all.iter().flat_map(|held| &held.stores);
        stores.map(|store| store.label()).collect()
    }

    /// Releases one directory.
    pub(super) fn release(&self, store: &StoreRef) {
        let freed: Vec<_> = self
            .0
            .lock()
            .extract_if(.., |held| held.is_of(store))
            .collect();
        drop(freed);
    }

    /// Releases all directories, except those on which an operation hangs; returns the paths of these.
    pub(super) fn release_all(&self, executor: &Executor) -> Vec<String> {
        let mut all = self.0.lock();
        let freed: Vec<_> = all.extract_if(.., |held| !held.hangs(executor)).collect();
        let paths = all.iter().filter_map(|held| held.stores.first());
        let paths = paths.map(|store| store.label()).collect();
        drop(all);
        drop(freed);
        paths
    }

    /// Takes out the directories that nothing reaches any more, if `may_go` agrees; it is asked after they were found.
    /// Dropping the returned value releases them.
    pub(super) fn take_unused(&self, executor: &Executor, may_go: impl FnOnce() -> bool) -> Unused {
        let is_over = |held: &LockedDirectory| !held.hangs(executor) && held.is_unused();
        let mut all = self.0.lock();
        let over: Vec<bool> = all.iter().map(is_over).collect();
        if !over.contains(&true) || !may_go() {
            return Unused::default();
        }
        let mut over = over.into_iter();
        let unused = all.extract_if(.., |_| over.next() == Some(true));
        Unused(unused.collect())
    }
}

/// Directories that nothing reaches any more.
#[derive(Debug, Default)]
pub(super) struct Unused(Vec<LockedDirectory>);

impl Drop for Unused {
    fn drop(&mut self) {
        let unused = std::mem::take(&mut self.0);
        for held in &unused {
            tracing::debug!(path = %held.stores[0].label(), "nothing of it is open any more");
        }
        if !unused.is_empty() {
            close(unused);
        }
    }
}

/// Closes all files of directories that failed. A caller waits for a second at most.
fn close(unused: Vec<LockedDirectory>) {
    let (sender, closed) = channel::<()>();
    let close = move || {
        drop(unused);
        drop(sender);
    };
    // If there is no thread for it, that was done right here.
    if let Err(error) = std::thread::Builder::new()
        .name("close".to_owned())
        .spawn(close)
    {
        tracing::debug!("no thread to close files: {error}");
    }
    // Nothing is ever sent: this ends when the other end is dropped, or after a moment.
    let _ = closed.recv_timeout(CLOSE_WAIT);
}
