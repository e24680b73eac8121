//! The durable state of alerts of one volume: how far the log was seen, and the notices that wait.
//!
//! The directory is opened once, before the volume is mounted. So a directory that lies below the mountpoint is not looked
//! for on the volume itself.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::grouping::VolumeState;
use super::outbox::Mailbox;
use super::protocol::LogPlace;

/// The longest state that is read, in bytes. None is ever as long.
const LONGEST: u64 = 256 << 20;

/// The state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AlertState {
    /// The place in the log up to which all events are in notices; none before the first.
    pub(super) seen: Option<LogPlace>,
    pub(super) volume: VolumeState,
    /// The notices of each receiver, by name. One that the configuration lacks by now keeps them.
    pub(super) mailboxes: BTreeMap<String, Mailbox>,
}

/// The directory of states.
#[derive(Debug)]
pub(super) struct StateDirectory(OwnedFd);

impl StateDirectory {
    /// Opens a directory, and makes it if it is absent.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&directory)?;
        super::config::demand_trusted(found.st_uid, found.st_mode, 0o022)?;
        Ok(Self(directory))
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(opened.into())
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Reads the state of a volume; it is empty if there is none.
    pub(super) fn load(&self, volume: &str) -> io::Result<AlertState> {
        let mut text = Vec::new();
        match self.open_file(&file_name(volume), OFlags::RDONLY) {
            Ok(file) => file.take(LONGEST).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(AlertState::default());
            }
            Err(error) => return Err(error),
        };
        Ok(serde_json::from_slice(&text)?)
    }

    /// Replaces the state of a volume, durably.
    pub(super) fn save(&self, volume: &str, state: &AlertState) -> io::Result<()> {
        let name = file_name(volume);
        let new = format!("{name}.new");
        let mut file = self.open_file(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all(&serde_json::to_vec(state)?)?;
        file.sync_all()?;
        rustix::fs::renameat(&self.0, &new, &self.0, &name)?;
        Ok(rustix::fs::fsync(&self.0)?)
    }
}

fn file_name(volume: &str) -> String {
    format!("alerts-{volume}.json")
}

/// The right to deliver alerts of a volume, which one process has at a time.
#[derive(Debug)]
pub(super) struct VolumeLock {
    /// Held while the process works.
    _held: File,
    /// Held by the process that waits.
    next: File,
}

impl VolumeLock {
    /// Waits for the lock of a volume until `is_over`. Returns none then.
    pub(super) fn wait(
        directory: &StateDirectory,
        volume: &str,
        mut is_over: impl FnMut() -> bool,
    ) -> io::Result<Option<Self>> {
        let held = directory.lock_file(&format!("alerts-{volume}.lock"))?;
        let next = directory.lock_file(&format!("alerts-{volume}.next"))?;
        while !try_lock(&held)? {
            // It tells the process that has the lock that another one waits.
            try_lock(&next)?;
            if is_over() {
                return Ok(None);
            }
        }
        rustix::fs::flock(&next, FlockOperation::Unlock)?;
        Ok(Some(Self { _held: held, next }))
    }

    /// Returns whether another process waits for the lock.
    pub(super) fn is_wanted(&self) -> io::Result<bool> {
        if try_lock(&self.next)? {
            rustix::fs::flock(&self.next, FlockOperation::Unlock)?;
            return Ok(false);
        }
        Ok(true)
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_saved_and_damage_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!(directory.load("v").unwrap(), AlertState::default());
        let mut state = AlertState {
            seen: Some(LogPlace {
                sequence: 7,
                time_ms: 9,
            }),
            ..AlertState::default()
        };
        state.mailboxes.insert("x".to_owned(), Mailbox::default());
        directory.save("v", &state).unwrap();
        assert_eq!(directory.load("v").unwrap(), state);
        assert_eq!(directory.load("w").unwrap(), AlertState::default());
        std::fs::write(path.join("alerts-v.json"), "{").unwrap();
        assert!(directory.load("v").is_err());
    }

    #[test]
    fn one_process_has_the_lock_and_learns_that_another_waits() {
        let home = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        let mut first = VolumeLock::wait(&directory, "v", || true).unwrap();
        assert!(!first.as_ref().unwrap().is_wanted().unwrap());
        let mut asked = 0;
        let second = VolumeLock::wait(&directory, "v", || {
            asked += 1;
            if let Some(lock) = &first {
                assert!(lock.is_wanted().unwrap());
            }
            first = None;
            asked > 3
        });
        assert!(second.unwrap().is_some());
        assert_eq!(asked, 1);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(StateDirectory::open(home.path()).is_err());
    }
}
