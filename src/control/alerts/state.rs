//! The durable state of alerts of one volume: how far the log was seen, and the notices that wait.
//!
//! The directory is opened once, before the volume is mounted. So a directory that lies below the mountpoint is not looked
//! for on the volume itself. A file is replaced as a whole and durably. One that is damaged is renamed to `NAME.damaged`; one
//! that cannot be read, or that a newer program wrote, stays as it is, and no alerts are sent.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::grouping::VolumeState;
use super::outbox::Mailbox;
use super::protocol::LogPlace;

/// The longest state that is read, in bytes. None is ever as long.
const LONGEST: u64 = 256 << 20;

/// The time after which the state of a volume goes that is not mounted here any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(90 * 24 * 3600);

/// The latest version of the state. This program reads it and earlier ones. It rises with each value that an earlier
/// program cannot read, such as a new topic: that program then leaves the file alone, and sends no alerts. So a state without
/// such a value is written in the version before.
const VERSION: u32 = 2;

/// The version that lacks the topic of removals.
const WITHOUT_REMOVALS: u32 = 1;

/// The state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AlertState {
    /// The place in the log behind which a receiver without a mailbox begins; none before the first.
    pub(super) seen: Option<LogPlace>,
    pub(super) volume: VolumeState,
    /// The notices of each receiver, by name. One that the configuration lacks by now keeps them.
    pub(super) mailboxes: BTreeMap<String, Mailbox>,
}

/// The version of a state, of which everything else may be unknown.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    version: u32,
}

/// A state as it is written.
#[derive(Serialize)]
struct Saved<'a> {
    version: u32,
    #[serde(flatten)]
    state: &'a AlertState,
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

    /// Reads the state of a volume; it is empty if there is none. Renames a damaged file, and tells of it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a newer program wrote it. It must not be replaced then.
    pub(super) fn load(&self, volume: &str, tell: impl FnOnce(&str)) -> io::Result<AlertState> {
        let name = file_name(volume);
        let mut text = Vec::new();
        match self.open_file(&name, OFlags::RDONLY) {
            Ok(file) => file.take(LONGEST).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(AlertState::default());
            }
            Err(error) => return Err(error),
        };
        if let Ok(Versioned { version }) = serde_json::from_slice(&text)
            && version > VERSION
        {
            let text = format!("{name} has version {version}, which a newer cauchyfs wrote");
            return Err(io::Error::other(text));
        }
        match serde_json::from_slice::<AlertState>(&text) {
            Ok(state) => Ok(state),
            Err(error) => {
                let damaged = format!("{name}.damaged");
                rustix::fs::renameat(&self.0, &name, &self.0, &damaged)?;
                tell(&format!(
                    "the state of alerts is damaged, and alerts that waited are lost; it is kept as {damaged}: {error}"
                ));
                Ok(AlertState::default())
            }
        }
    }

    /// Removes the states of volumes that were not mounted here for [`FORGOTTEN_AFTER`], and those kept as damaged.
    pub(super) fn remove_forgotten(&self, own: &str) -> io::Result<()> {
        let mut removed = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(volume) = volume_of(&name).filter(|volume| *volume != own) else {
                continue;
            };
            let found = rustix::fs::statat(&self.0, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            let changed = u64::try_from(found.st_mtime).unwrap_or_default();
            let changed = UNIX_EPOCH + Duration::from_secs(changed);
            // A clock that was set back makes no file old.
            let age = SystemTime::now().duration_since(changed);
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                && age.is_ok_and(|age| age >= FORGOTTEN_AFTER)
            {
                removed.push((volume.to_owned(), name));
            }
        }
        for (volume, name) in removed {
            let [lock, next] = ["lock", "next"].map(|it| format!("alerts-{volume}.{it}"));
            // A process that works for a volume without events has the lock.
            let held = self.lock_file(&lock)?;
            if try_lock(&held)? {
                for name in [&name, &next, &lock] {
                    match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Replaces the state of a volume, durably.
    pub(super) fn save(&self, volume: &str, state: &AlertState) -> io::Result<()> {
        let name = file_name(volume);
        let new = format!("{name}.new");
        let mut file = self.open_file(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        let has_removals = state.mailboxes.values().any(Mailbox::has_removals);
        let version = if has_removals {
            VERSION
        } else {
            WITHOUT_REMOVALS
        };
        let versioned = Saved { version, state };
        file.write_all(&serde_json::to_vec(&versioned)?)?;
        file.sync_all()?;
        rustix::fs::renameat(&self.0, &new, &self.0, &name)?;
        Ok(rustix::fs::fsync(&self.0)?)
    }
}

fn file_name(volume: &str) -> String {
    format!("alerts-{volume}.json")
}

/// Returns the volume to whose state a file belongs, if its name is that of a state.
fn volume_of(name: &str) -> Option<&str> {
    let (volume, rest) = name.strip_prefix("alerts-")?.split_once('.')?;
    let is_state = matches!(rest, "json" | "json.damaged" | "json.new");
    is_state.then_some(volume)
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
        let open = |suffix: &str| directory.lock_file(&format!("alerts-{volume}.{suffix}"));
        let (mut held, next) = (open("lock")?, open("next")?);
        loop {
            if try_lock(&held)? {
                // The process of another volume may have removed the file before.
                if rustix::fs::fstat(&held)?.st_nlink > 0 {
                    break;
                }
                held = open("lock")?;
                continue;
            }
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
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(directory: &StateDirectory, volume: &str) -> io::Result<AlertState> {
        directory.load(volume, |text| panic!("{text}"))
    }

    #[test]
    fn a_state_is_read_as_it_was_saved() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!(load(&directory, "v").unwrap(), AlertState::default());
        let mut state = AlertState {
            seen: Some(LogPlace {
                sequence: 7,
                time_ms: 9,
            }),
            ..AlertState::default()
        };
        state.mailboxes.insert("x".to_owned(), Mailbox::default());
        directory.save("v", &state).unwrap();
        assert_eq!(load(&directory, "v").unwrap(), state);
        assert_eq!(load(&directory, "w").unwrap(), AlertState::default());
    }

    #[test]
    fn a_damaged_state_is_kept_aside_and_one_that_cannot_be_read_stays() {
        let home = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        let path = home.path().join("alerts-v.json");
        std::fs::write(&path, "{").unwrap();
        let mut told = String::new();
        let state = directory.load("v", |text| text.clone_into(&mut told));
        assert_eq!(state.unwrap(), AlertState::default());
        assert!(told.contains("alerts-v.json.damaged"), "{told}");
        let kept = std::fs::read(home.path().join("alerts-v.json.damaged"));
        assert_eq!(kept.unwrap(), b"{");
        assert!(!path.exists());
        // An earlier program wrote fewer keys.
        std::fs::write(&path, "{\"mailboxes\":{\"x\":{}}}").unwrap();
        assert_eq!(load(&directory, "v").unwrap().mailboxes.len(), 1);
        let newer = format!("{{\"version\":{},\"mailboxes\":7}}", VERSION + 1);
        std::fs::write(&path, &newer).unwrap();
        assert!(load(&directory, "v").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(load(&directory, "v").is_err());
        assert!(path.exists());
    }

    /// The text is what a program of version 1 wrote. A program of version 1 cannot read the other text, and must know so.
    #[test]
    fn a_state_of_version_1_is_read_and_one_with_a_topic_that_version_1_lacks_is_of_a_later_version()
     {
        let home = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        let path = home.path().join("alerts-v.json");
        let text = |version: u32, topic: &str| {
            format!(
                r#"{{"version":{version},"seen":{{"sequence":7,"time_ms":9}},"volume":{{"lost":[2],"is_reduced":true}},
                "mailboxes":{{"x":{{"open":[["{topic}",null]],"seen":null}}}}}}"#
            )
        };
        std::fs::write(&path, text(1, "Space")).unwrap();
        let state = load(&directory, "v").unwrap();
        assert_eq!(state.seen.map(|place| place.sequence), Some(7));
        assert_eq!(state.mailboxes.len(), 1);
        // A program of version 1 can go on with it, so a return to that program costs no alerts.
        let saved_version = |state: &AlertState| {
            directory.save("v", state).unwrap();
            let saved = std::fs::read(&path).unwrap();
            serde_json::from_slice::<Versioned>(&saved).unwrap().version
        };
        assert_eq!(saved_version(&state), 1);
        std::fs::write(&path, text(VERSION, "Removals")).unwrap();
        let state = load(&directory, "v").unwrap();
        assert_eq!(state.mailboxes.len(), 1);
        assert_eq!(saved_version(&state), 2);
        assert_eq!(load(&directory, "v").unwrap(), state);
        // Nothing of a later version is touched, whatever it holds.
        let later = text(VERSION + 1, "Weather");
        std::fs::write(&path, &later).unwrap();
        assert!(load(&directory, "v").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), later);
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
    fn states_of_volumes_that_are_gone_are_removed_and_those_in_use_stay() {
        let home = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        let lock = VolumeLock::wait(&directory, "used", || true).unwrap();
        assert!(lock.is_some());
        let path = |name: &str| home.path().join(name);
        let now = SystemTime::now();
        let old = now - FORGOTTEN_AFTER - Duration::from_secs(60);
        let young = now - FORGOTTEN_AFTER + Duration::from_secs(3600);
        for (name, changed) in [
            ("alerts-gone.json", old),
            ("alerts-gone.json.damaged", old),
            ("alerts-own.json", old),
            ("alerts-used.json", old),
            ("alerts-young.json", young),
            ("other.json", old),
        ] {
            std::fs::write(path(name), "{}").unwrap();
            let file = File::options().write(true).open(path(name)).unwrap();
            file.set_modified(changed).unwrap();
        }
        directory.remove_forgotten("own").unwrap();
        let gone = [
            "alerts-gone.json",
            "alerts-gone.json.damaged",
            "alerts-gone.lock",
        ];
        assert!(gone.iter().all(|name| !path(name).exists()));
        let kept = [
            "alerts-own.json",
            "alerts-used.json",
            "alerts-young.json",
            "other.json",
        ];
        assert!(kept.iter().all(|name| path(name).exists()));
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(StateDirectory::open(home.path()).is_err());
    }
}
