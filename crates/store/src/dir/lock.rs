//! Locking a directory: its lock file, and the directory itself.
//!
//! The lock file is closed to other users, so none of them can lock it. The directory is locked as well, since the file
//! can be deleted, and because earlier versions lock only the directory in order to read. Any user who may open the
//! directory can lock it; a lock that only unrelated users hold is ignored. The process table tells whose a lock is. A
//! holder whose user it does not tell counts as related, because two daemons would destroy what it holds.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{self as sys, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::calls::{FILE_MODE, retry};
use super::holders::Holder;
use super::own::{Failed, Seen};
use super::{DirStore, holders};
use crate::name::Name;
use crate::{Hold, StoreError, StoreLock};

/// The time to wait for a lock: a killed process keeps its locks until all of it is cleared away.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The time to wait between two tries to take a lock.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Mode bits that let others than the owner do anything.
const OTHERS: Mode = Mode::from_raw_mode(0o077);

/// Result of an attempt to lock one file.
enum Attempt {
    /// It is locked now.
    Locked,
    /// The filesystem has no locks for it.
    Unsupported,
    /// Only users who have nothing to do with the directory hold it.
    HeldByStrangers,
    /// Another process has it: this one, if it is known.
    Held(Option<Holder>),
}

impl DirStore {
    /// Says whether a daemon may have the directory: only if a process holds one of its locks, or if that cannot be
    /// told.
    #[must_use]
    pub fn may_be_locked(&self) -> bool {
        let Ok(directory) = self.tree.reopen() else {
            return true;
        };
        let file = self.tree.open_file(self.lock_file(), OFlags::RDONLY).ok();
        // Each is free again as soon as it is closed, which is now.
        let try_one = |file: &OwnedFd| sys::flock(file, FlockOperation::NonBlockingLockExclusive);
        [Some(directory), file]
            .iter()
            .flatten()
            .any(|file| try_one(file).is_err())
    }

    /// Returns the users for whom the processes were started that hold one of its locks, as far as they may use the
    /// directory at all. Empty if no process is known, which may be one of another machine or container.
    #[must_use]
    pub fn lock_users(&self) -> Vec<u32> {
        let directory = self.tree.reopen().ok();
        let file = self.tree.open_file(self.lock_file(), OFlags::RDONLY).ok();
        let files = [directory, file];
        let holders = files.iter().flatten().flat_map(holders::of);
        let users = holders.filter_map(holders::user_of);
        users
            .filter(|user| self.tree.rule().may_use(*user))
            .collect()
    }

    /// Locks the directory. In order to write, it is closed to other users first, if it belongs to this one.
    pub(super) fn take_lock(&self, hold: Hold) -> Result<StoreLock, StoreError> {
        let failed = |failed: Failed| self.failed("lock", "directory")(failed);
        if hold == Hold::Exclusive {
            self.close_to_others();
        }
        let file = match self.open_lock_file(hold) {
            // Where nothing can be written, there is nothing to keep others from.
            Err(Failed::Call(Errno::ROFS)) if hold == Hold::Exclusive => {
                return Ok(StoreLock::new(()));
            }
            opened => opened.map_err(failed)?,
        };
        let mut locks = Vec::new();
        if let Some(file) = file {
            match self.try_to_lock(&file, hold).map_err(failed)? {
                Attempt::Locked => locks.push(file),
                Attempt::Unsupported => {}
                // Its mode let them in. They keep the file, and a new one takes its name.
                Attempt::HeldByStrangers if hold == Hold::Exclusive => {
                    self.tree.unlink(self.lock_file()).map_err(failed)?;
                    let file = self.tree.create_file(self.lock_file()).map_err(failed)?;
                    if let Attempt::Locked = self.try_to_lock(&file, hold).map_err(failed)? {
                        locks.push(file);
                    }
                }
                Attempt::HeldByStrangers => self.note_strangers(),
                Attempt::Held(holder) => return Err(StoreError::in_use(&self.label, holder)),
            }
        }
        let directory = self.tree.reopen().map_err(|errno| failed(errno.into()))?;
        match self.try_to_lock(&directory, hold).map_err(failed)? {
            Attempt::Locked => locks.push(directory),
            Attempt::Unsupported => {}
            Attempt::HeldByStrangers => self.note_strangers(),
            Attempt::Held(holder) => return Err(StoreError::in_use(&self.label, holder)),
        }
        if locks.is_empty() {
            tracing::warn!(
                path = self.label,
                "no file locks here, a second daemon is not kept out"
            );
        }
        Ok(StoreLock::new(locks))
    }

    /// Returns the file whose lock stands for the whole directory.
    fn lock_file(&self) -> Name<'static> {
        Name {
            dir: "",
            base: self.roles.lock,
        }
    }

    /// Takes from other users what an earlier version, or the umask, let them do with the directory.
    fn close_to_others(&self) {
        let top = self.tree.top();
        let Ok(seen) = Seen::of(top) else { return };
        if !self.tree.rule().is_own_users() || !seen.mode.intersects(OTHERS) {
            return;
        }
        match sys::fchmod(top, seen.mode - OTHERS) {
            Ok(()) => tracing::info!(path = self.label, "closed to other users (mode 0700)"),
            Err(errno) => tracing::debug!(path = self.label, "stays open to other users: {errno}"),
        }
    }

    /// Opens the lock file. In order to read, it may be absent, and is not made.
    fn open_lock_file(&self, hold: Hold) -> Result<Option<OwnedFd>, Failed> {
        if hold == Hold::Shared {
            return match self.tree.open_file(self.lock_file(), OFlags::RDONLY) {
                Err(Failed::Call(Errno::NOENT | Errno::ACCESS) | Failed::Foreign(_)) => Ok(None),
                opened => opened.map(Some),
            };
        }
        loop {
            match self.tree.open_file(self.lock_file(), OFlags::RDWR) {
                Ok(file) => {
                    // A process that has it open keeps its lock, and none is added.
                    if Seen::of(&file)?.mode.intersects(OTHERS) {
                        sys::fchmod(&file, FILE_MODE).ok();
                    }
                    return Ok(Some(file));
                }
                Err(Failed::Call(Errno::NOENT) | Failed::Foreign(_)) => {}
                Err(failed) => return Err(failed),
            }
            match self.tree.create_file(self.lock_file()) {
                // Another process was faster.
                Err(Failed::Call(Errno::EXIST)) => {}
                made => return made.map(Some),
            }
        }
    }

    /// Locks a file; waits for a process that is about to be gone and may still have it.
    fn try_to_lock(&self, file: &OwnedFd, hold: Hold) -> Result<Attempt, Failed> {
        let operation = match hold {
            Hold::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Hold::Shared => FlockOperation::NonBlockingLockShared,
        };
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match retry(|| sys::flock(file, operation)) {
                Ok(()) => return Ok(Attempt::Locked),
                Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => {
                    return Ok(Attempt::Unsupported);
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(errno.into()),
            }
            let holders = holders::of(file);
            if self.are_strangers(&holders, holders::user_of) {
                return Ok(Attempt::HeldByStrangers);
            }
            if Instant::now() >= deadline {
                let kin = holders.iter().find(|pid| self.is_kin(**pid));
                let holder = kin.or(holders.first()).copied().map(Holder::of);
                return Ok(Attempt::Held(holder));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Says whether all processes that hold a lock are known to run for users who have nothing to do with the directory.
    /// `/proc` may hide processes (`hidepid`, a container, a sandbox), and each that is hidden may be a daemon.
    pub(super) fn are_strangers(
        &self,
        holders: &[u32],
        user_of: impl Fn(u32) -> Option<u32>,
    ) -> bool {
        let rule = self.tree.rule();
        let is_stranger = |pid: &u32| user_of(*pid).is_some_and(|user| !rule.may_use(user));
        !holders.is_empty() && holders.iter().all(is_stranger)
    }

    /// Says whether a process is known to run for a user who has to do with the directory.
    fn is_kin(&self, pid: u32) -> bool {
        holders::user_of(pid).is_some_and(|user| self.tree.rule().may_use(user))
    }

    fn note_strangers(&self) {
        tracing::warn!(
            path = self.label,
            "another user has locked it, who has nothing to do with it: the lock is ignored"
        );
    }
}
