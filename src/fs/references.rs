//! The inodes that callers refer to, by look-ups and by handles, and their removal with the last reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::{Cookie, Ino};

use super::error::FsError;
use super::handles::{Handles, OpenDir};
use super::kept::Kept;
use super::listings::Listings;
use super::locks::ExclusiveLock;
use super::nodes::Nodes;
use super::removal::Removal;
use super::types::{Handle, OpenFlags};

/// The calls that wait for room in a quota at once. Others get the error without a second attempt.
const MOST_WAITERS: usize = 2;

/// The time within which a kernel forgets an inode that it keeps for no program, once the last name is gone.
const FORGETTING: Duration = Duration::from_millis(250);

/// The interval at which that is looked at.
const INTERVAL: Duration = Duration::from_millis(1);

/// References to inodes. An inode without a name lives until the last reference to it is gone.
pub(super) struct References {
    pub(super) nodes: Arc<Nodes>,
    pub(super) handles: Arc<Handles>,
    pub(super) listings: Listings,
    removal: Arc<Removal>,
    /// The inode that was referred to when it lost its last name, of all such the last one, and when that was.
    last_unlinked: Mutex<Option<(Ino, Instant)>>,
    /// The calls that wait for room in a quota.
    waiters: AtomicUsize,
}

impl References {
    /// Returns the references that were kept, whose inodes `removal` removes.
    pub(super) fn new(kept: &Kept, removal: &Arc<Removal>) -> Self {
        Self {
            nodes: Arc::clone(&kept.nodes),
            handles: Arc::clone(&kept.handles),
            listings: Listings::new(),
            removal: Arc::clone(removal),
            last_unlinked: Mutex::default(),
            waiters: AtomicUsize::new(0),
        }
    }

    /// Runs `attempt`, which holds no lock when it returns. If a quota has no room, waits until everything is removed that
    /// is about to be, and tries again. It does the same if the volume has no space and a file was removed just now. At
    /// most [`MOST_WAITERS`] calls wait: they are on threads that others need.
    pub(super) fn with_quota<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        for wait in [Self::wait_for_removal, Self::wait_for_forgetting] {
            match attempt() {
                Err(error) if self.may_pass_after_removal(&error) => {
                    let others = self.waiters.fetch_add(1, Ordering::Relaxed);
                    let _leaving = scopeguard::guard((), |()| {
                        self.waiters.fetch_sub(1, Ordering::Relaxed);
                    });
                    if others >= MOST_WAITERS {
                        return Err(error);
                    }
                    wait(self);
                }
                done => return done,
            }
        }
        attempt()
    }

    /// Returns whether a call that failed so may pass once removed inodes are gone. The last of them may have gone since.
    fn may_pass_after_removal(&self, error: &FsError) -> bool {
        match error {
            FsError::QuotaExceeded => true,
            FsError::NoSpace => {
                let last = *self.last_unlinked.lock();
                last.is_some_and(|(_, since)| since.elapsed() < FORGETTING)
            }
            _ => false,
        }
    }

    fn wait_for_removal(&self) {
        self.removal.wait();
    }

    /// Waits until an inode is gone that lost its last name just now. A kernel gives its reference back unasked, after the
    /// call that took the name, unless a program has the file open.
    fn wait_for_forgetting(&self) {
        let last = *self.last_unlinked.lock();
        if let Some((ino, since)) = last {
            while since.elapsed() < FORGETTING && self.removal.is_left(ino) {
                std::thread::sleep(INTERVAL);
            }
            self.removal.wait();
        }
    }

    /// Opens a regular file. The handle keeps the inode from being removed.
    pub(super) fn open_file(&self, ino: Ino, flags: OpenFlags) -> Handle {
        self.nodes.hold(ino, flags.write);
        self.handles.add_file(ino, flags)
    }

    /// Opens a directory; `first_unseen` returns the first cookie of entries that the handle leaves out.
    pub(super) fn open_directory(
        &self,
        ino: Ino,
        first_unseen: impl FnOnce() -> Result<Cookie, FsError>,
    ) -> Result<Handle, FsError> {
        // Counted before it is looked at: it cannot vanish in between.
        self.nodes.hold(ino, false);
        match first_unseen() {
            Ok(cookie) => Ok(self.handles.add_dir(OpenDir::new(ino, cookie))),
            Err(error) => {
                self.drop_handle(ino, false);
                Err(error)
            }
        }
    }

    /// Closes a file or directory. An inode without a name is removed with its last handle and look-up.
    pub(super) fn release(&self, handle: Handle) -> Result<(), FsError> {
        let opened = self.handles.remove(handle)?;
        self.drop_handle(opened.ino(), opened.writes());
        Ok(())
    }

    /// Takes back look-ups that were counted. An inode without a name is removed with the last one. Returns whether
    /// no reference to the inode is left.
    pub(super) fn forget(&self, ino: Ino, lookups: u64) -> bool {
        if self.nodes.forget(ino, lookups) {
            self.remove(ino);
        }
        let is_forgotten = !self.nodes.is_referenced(ino);
        if is_forgotten {
            self.listings.end(ino);
        }
        is_forgotten
    }

    /// Notes that an inode lost its last name, and removes it if no reference is left. Releases the lock before.
    pub(super) fn unlinked(&self, lock: ExclusiveLock<'_>, ino: Ino) {
        debug_assert!(lock.covers(ino));
        let is_idle = self.nodes.unlinked(ino);
        drop(lock);
        if is_idle {
            self.remove(ino);
        } else {
            *self.last_unlinked.lock() = Some((ino, Instant::now()));
        }
    }

    fn drop_handle(&self, ino: Ino, writes: bool) {
        if self.nodes.release(ino, writes) {
            self.remove(ino);
        }
    }

    /// Removes an inode without a name. Its orphan record stays if that fails, and the next mount
    /// tries again.
    fn remove(&self, ino: Ino) {
        if let Err(error) = self.removal.remove(ino) {
            tracing::warn!("inode {ino} is to be removed at the next mount: {error}");
        }
    }
}
