//! What keeps a mount that was taken away: another mount namespace, another mountpoint, or something open of it.
//!
//! The daemon serves it until that is gone: a program in the other mount namespace may be writing. Commands that wait for
//! the daemon name what keeps it, and end.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::path::Arg;
use rustix::process::Pid;

use super::control::Departure;
use super::failure::{Failure, Outcome, warn};
use super::in_time::ask_each;
use super::trust::quoted;
use crate::fuse::{mountinfo, walk};

/// How long a daemon may take to end although something keeps its mount, which may be gone the next moment.
const BRIEFLY: Duration = Duration::from_millis(500);

/// How long it may take to end if nothing is found that keeps its mount.
const DEPARTURE: Duration = Duration::from_secs(3);

/// How long the kernel may take to write back what it holds.
const WRITE_BACK: Duration = Duration::from_secs(2);

/// How many processes are named.
const NAMED: usize = 5;

/// What keeps a filesystem mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keeper {
    /// A mount in our own mount namespace.
    Mount(PathBuf),
    /// Processes of other mount namespaces, and where each sees the mount.
    Namespaces(Vec<(u32, PathBuf)>),
    /// Processes that have something open of it.
    Users(Vec<u32>),
}

impl Keeper {
    /// Looks for what keeps the filesystem with a device number mounted; returns none if this user can see nothing.
    pub(super) fn of(device: &str) -> Option<Self> {
        let own = mountinfo::mounts().unwrap_or_default();
        if let Some(mount) = own
            .into_iter()
            .find(|entry| entry.device == device && entry.is_ours())
        {
            return Some(Self::Mount(mount.mountpoint));
        }
        // The number of a filesystem that is gone is given to another one.
        let mut namespaces: Vec<(u32, PathBuf)> = mountinfo::mounts_in_all_processes(device)
            .filter(|(_, entry)| entry.is_ours())
            .map(|(process, entry)| (process, entry.mountpoint))
            .collect();
        namespaces.dedup_by_key(|(process, _)| *process);
        if !namespaces.is_empty() {
            return Some(Self::Namespaces(namespaces));
        }
        let mut users = mountinfo::processes();
        users.retain(|process| has_open(*process, device));
        (!users.is_empty()).then_some(Self::Users(users))
    }

    /// Says what keeps it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Mount(path) => format!("it is mounted at {} too", path.display()),
            Self::Namespaces(found) => {
                let processes: Vec<u32> = found.iter().map(|(process, _)| *process).collect();
                let have = if processes.len() == 1 { "has" } else { "have" };
                format!(
                    "{} {have} it mounted in another mount namespace",
                    named(&processes)
                )
            }
            Self::Users(processes) => format!("it is in use by {}", named(processes)),
        }
    }

    /// Says what lets it go.
    pub(super) fn remedy(&self) -> String {
        match self {
            Self::Mount(path) => format!("`umount {}` takes that away", quoted(path)),
            Self::Namespaces(found) => {
                let command = found.first().map(|(process, path)| {
                    format!("nsenter --target {process} --mount umount {}", quoted(path))
                });
                format!(
                    "end the process, or `{}`",
                    command.as_deref().unwrap_or("umount")
                )
            }
            Self::Users(_) => "close what is open there, or end the process".to_owned(),
        }
    }
}

/// Has the kernel write what it holds of a filesystem whose mount was taken away here: programs in other mount namespaces
/// may have files open. Does nothing where this user may not enter the mount.
pub(super) fn write_back(device: &str) {
    let mounts = match Keeper::of(device) {
        Some(Keeper::Mount(path)) => vec![(PathBuf::from("/"), path)],
        Some(Keeper::Namespaces(found)) => found
            .into_iter()
            .map(|(process, path)| (PathBuf::from(format!("/proc/{process}/root")), path))
            .collect(),
        Some(Keeper::Users(_)) | None => return,
    };
    let device = device.to_owned();
    let work = move |_: &Path| {
        mounts.iter().any(|(root, path)| {
            let written = write_back_at(root, path, &device);
            let written = written.inspect_err(|error| {
                log::debug!("{}: cannot write back: {error}", path.display());
            });
            written.is_ok()
        })
    };
    // Mounts of other namespaces may hang.
    ask_each(&[PathBuf::new()], WRITE_BACK, work);
}

/// The same at one mountpoint, seen from the root directory of a process.
fn write_back_at(root: &Path, mountpoint: &Path, device: &str) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
    let below = mountpoint.strip_prefix("/").map_err(io::Error::other)?;
    let mount = walk::open_below(root, below)?;
    if device_at(&mount, "", AtFlags::EMPTY_PATH)? != device {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&mount, ".", flags, Mode::empty())?;
    Ok(rustix::fs::syncfs(directory)?)
}

/// Waits for the end of a daemon that serves a mount which was taken away. `what` names the mount, and what has become of
/// it; `trouble` is why not everything is durable.
///
/// # Errors
///
/// If something keeps the mount; the failure names it.
pub(super) fn leave(
    what: &str,
    device: &str,
    departure: &Departure,
    trouble: Option<&str>,
) -> Result<Outcome, Failure> {
    let keeper = Keeper::of(device);
    // It may just be gone.
    let patience = if keeper.is_some() { BRIEFLY } else { DEPARTURE };
    match departure.wait(patience)? {
        Some(daemon) => Err(failure(what, daemon, keeper.as_ref(), trouble)),
        None => Ok(trouble.map_or(Outcome::Done, |trouble| {
            warn(format_args!(
                "{what}, and its last changes may not be durable: {trouble}"
            ));
            Outcome::Degraded
        })),
    }
}

/// Says that the daemon, of process `daemon`, serves a mount that was taken away, and why.
fn failure(what: &str, daemon: Pid, keeper: Option<&Keeper>, trouble: Option<&str>) -> Failure {
    let daemon = daemon.as_raw_nonzero();
    let durable = match trouble {
        None => "everything written so far is durable".to_owned(),
        Some(trouble) => format!("its last changes may not be durable ({trouble})"),
    };
    let why = keeper.map_or_else(
        || "this user cannot see what keeps it, which may be a process of another user or container".to_owned(),
        Keeper::describe,
    );
    let remedy = keeper.map_or_else(
        || "the superuser can see more: let that go".to_owned(),
        Keeper::remedy,
    );
    Failure::incomplete(format!(
        "{what}, and {durable}, but the daemon (process {daemon}) goes on serving it: {why}"
    ))
    .advise(format!(
        "{remedy}, and the daemon ends; `kill -TERM {daemon}` ends it at once, with errors for those who use the mount"
    ))
}

/// Names some of the processes.
fn named(processes: &[u32]) -> String {
    let shown: Vec<String> = processes.iter().take(NAMED).copied().map(name).collect();
    let shown = shown.join(", ");
    match processes.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Names a process, and its user if that is another than our own.
fn name(process: u32) -> String {
    let directory = PathBuf::from(format!("/proc/{process}"));
    let command = fs::read_to_string(directory.join("comm")).unwrap_or_default();
    let command = command.trim();
    let own = rustix::process::geteuid().as_raw();
    match fs::metadata(&directory) {
        Ok(found) if found.uid() != own => {
            format!("{command} (process {process} of user {})", found.uid())
        }
        _ => format!("{command} (process {process})"),
    }
}

/// Says whether a process has something of a filesystem open, as a file, a directory or a program.
fn has_open(process: u32, device: &str) -> bool {
    let directory = PathBuf::from(format!("/proc/{process}"));
    let descriptors = fs::read_dir(directory.join("fd")).into_iter().flatten();
    let descriptors = descriptors.filter_map(|entry| Some(entry.ok()?.path()));
    let links = ["cwd", "root", "exe"].map(|link| directory.join(link));
    links
        .into_iter()
        .chain(descriptors)
        .any(|link| device_at(CWD, link, AtFlags::empty()).is_ok_and(|found| found == device))
}

/// Returns the device number of what a path leads to. The kernel knows it, and asks no filesystem: one may not answer.
fn device_at(from: impl AsFd, path: impl Arg, how: AtFlags) -> io::Result<String> {
    let how = how | AtFlags::STATX_DONT_SYNC;
    let found = statx(from, path, how, StatxFlags::empty())?;
    Ok(format!("{}:{}", found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon() -> Pid {
        Pid::from_raw(77).unwrap()
    }

    #[test]
    fn a_process_with_an_open_file_is_a_user_of_its_filesystem() {
        let me = std::process::id();
        let file = tempfile::tempfile().unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let device = device_at(CWD, link, AtFlags::empty()).unwrap();
        assert!(has_open(me, &device));
        assert!(!has_open(me, "0:0"));
    }

    #[test]
    fn a_mount_of_another_type_that_has_the_number_now_keeps_nothing() {
        let proc = mountinfo::mount_at(Path::new("/proc")).unwrap().unwrap();
        let keeper = Keeper::of(&proc.device);
        assert!(!matches!(
            keeper,
            Some(Keeper::Mount(_) | Keeper::Namespaces(_))
        ));
        assert_eq!(Keeper::of("0:0"), None);
    }

    #[test]
    fn the_failure_names_the_process_and_the_command_that_lets_the_mount_go() {
        let me = std::process::id();
        let keeper = Keeper::Namespaces(vec![(me, "/mnt/it's".into())]);
        let failure = failure("/mnt/it's is unmounted", daemon(), Some(&keeper), None);
        assert!(failure.message.contains(&name(me)), "{failure:?}");
        assert!(failure.message.contains("is durable"), "{failure:?}");
        let advice = failure.advice.unwrap();
        let command = format!("`nsenter --target {me} --mount umount '/mnt/it'\\''s'`");
        assert!(advice.contains(&command), "{advice}");
        assert!(advice.contains("`kill -TERM 77`"), "{advice}");
    }

    #[test]
    fn changes_that_are_not_durable_are_not_said_to_be() {
        let failure = failure("/mnt is unmounted", daemon(), None, Some("disk full"));
        assert!(!failure.message.contains("is durable"), "{failure:?}");
        assert!(failure.message.contains("disk full"), "{failure:?}");
    }

    #[test]
    fn of_many_processes_some_are_named() {
        let processes: Vec<u32> = (4_000_000..4_000_007).collect();
        let shown = named(&processes);
        assert!(
            shown.contains("4000004") && !shown.contains("4000005"),
            "{shown}"
        );
        assert!(shown.ends_with(" and 2 more"), "{shown}");
    }
}
