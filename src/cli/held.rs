//! The holders of a mount that was taken away: another mount namespace, another mountpoint, or something open of it.
//!
//! The daemon serves it until that is gone: a program in the other mount namespace may be writing. Commands that wait for
//! the daemon name what keeps it, and end.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::path::Arg;
use rustix::process::Pid;

use super::client;
use super::failure::{Failure, Outcome, warn};
use super::shell::quoted_path;
use crate::control::departure::Departure;
use crate::control::in_time::ask_each;
use crate::fuse::mountinfo;

/// The time that a daemon may take to end although something keeps its mount, which may be gone the next moment.
const BRIEFLY: Duration = Duration::from_millis(500);

/// The time that it may take to end if nothing is found that keeps its mount.
const DEPARTURE: Duration = Duration::from_secs(6);

/// The time that the tables of mappings of all processes may take.
const MAPS: Duration = Duration::from_secs(2);

/// The number of processes that are named.
const NAMED: usize = 5;

/// A holder that keeps a filesystem mounted.
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
        let mapping = mapping(device);
        let mut users = mountinfo::processes();
        users.retain(|process| has_open(*process, device) || mapping.contains(process));
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
            Self::Mount(path) => format!("`umount {}` takes that away", quoted_path(path)),
            // No command that enters the namespace: it would run programs of its owner, perhaps as root.
            Self::Namespaces(found) => {
                let path = found.first().map(|(_, path)| path.display().to_string());
                let path = path.unwrap_or_default();
                format!("end the process, or unmount {path} where it runs")
            }
            Self::Users(_) => "close what is open there, or end the process".to_owned(),
        }
    }
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
    match client::wait(departure, patience)? {
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
        None => "everything written before that is durable".to_owned(),
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

/// Returns the processes that have mapped a file of a filesystem, as they do with shared libraries: no descriptor of it
/// has to be open. A process whose memory is locked can hold up the answer, and then there is none.
pub(super) fn mapping(device: &str) -> Vec<u32> {
    let device = device.to_owned();
    let find = move |_: &Path| {
        let mut found = mountinfo::processes();
        found.retain(|process| has_mapped(*process, &device));
        found
    };
    let found = ask_each(&[PathBuf::from("/proc")], MAPS, find);
    found.into_iter().flatten().flatten().collect()
}

fn has_mapped(process: u32, device: &str) -> bool {
    // The process may have ended.
    let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    maps.lines()
        .any(|line| mapped_device(line).is_some_and(|found| found == device))
}

/// Returns the device number in a line `ADDRESSES rwxp OFFSET MAJ:MIN INODE PATH` of a table of mappings, which has it in
/// hexadecimal digits; none if no file is mapped there.
fn mapped_device(line: &str) -> Option<String> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let inode = fields.next()?;
    (inode != "0").then_some(format!("{}:{}", number(major)?, number(minor)?))
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
    fn a_line_of_mappings_tells_the_device_of_a_file_and_anonymous_memory_has_none() {
        for (line, device) in [
            (
                "7f3e1c000000-7f3e1c021000 r-xp 00002000 00:2f 1234  /mnt/a b/lib.so",
                Some("0:47"),
            ),
            (
                "55d0-55d1 r--p 00000000 103:1a 9 /usr/bin/x (deleted)",
                Some("259:26"),
            ),
            ("7f3e-7f3f rw-p 00000000 00:00 0 ", None),
            ("7ffd-7ffe rw-p 00000000 00:00 0   [stack]", None),
            ("", None),
            ("7f3e-7f3f rw-p 0", None),
        ] {
            assert_eq!(mapped_device(line).as_deref(), device, "{line}");
        }
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
    fn the_failure_names_the_process_and_the_way_to_release_the_mount() {
        let me = std::process::id();
        let keeper = Keeper::Namespaces(vec![(me, "/mnt/inner".into())]);
        let failure = failure("/mnt is unmounted", daemon(), Some(&keeper), None);
        assert!(failure.message.contains(&name(me)), "{failure:?}");
        assert!(failure.message.contains("is durable"), "{failure:?}");
        let advice = failure.advice.unwrap();
        assert!(
            advice.contains("unmount /mnt/inner where it runs"),
            "{advice}"
        );
        assert!(advice.contains("`kill -TERM 77`"), "{advice}");
    }

    #[test]
    fn changes_that_are_not_durable_are_not_acknowledged() {
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
