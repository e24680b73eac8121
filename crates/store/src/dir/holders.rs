//! The processes that have a file locked (`/proc/locks`), and whether they can end.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs as sys;
use serde::{Deserialize, Serialize};

/// Returns the processes that have the `flock` of a file; none if they are not to be found, as those of other machines
/// and containers. Filesystems whose files have other device numbers than they have themselves, such as btrfs, list
/// their locks under those: there the number of the inode decides.
pub(super) fn of(file: &impl AsFd) -> Vec<u32> {
    let (Ok(stat), Ok(table)) = (sys::fstat(file), fs::read_to_string("/proc/locks")) else {
        return Vec::new();
    };
    let (major, minor) = (sys::major(stat.st_dev), sys::minor(stat.st_dev));
    let inode = format!(":{}", stat.st_ino);
    let place = format!("{major:02x}:{minor:02x}{inode}");
    let holders = |place: &str| -> Vec<u32> {
        let lines = table.lines();
        lines.filter_map(|line| holder_in(line, place)).collect()
    };
    match holders(&place) {
        exact if !exact.is_empty() => exact,
        _ => holders(&inode),
    }
}

/// Returns the user for whom a process was started, who may be another than the one with whose rights it runs. Returns
/// nothing where that is hidden from this process.
pub(super) fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let user = users.split_whitespace().next()?.parse().ok()?;
    let mapped = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    is_told(user, &mapped, overflow.trim().parse().ok()).then_some(user)
}

/// Says whether a number stands for one user. In a user namespace that does not map all users, `overflow` stands for
/// every one that is not mapped.
fn is_told(user: u32, mapped: &str, overflow: Option<u32>) -> bool {
    let counts = mapped
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let count: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
    count >= u64::from(u32::MAX) || overflow.is_some_and(|overflow| user != overflow)
}

/// A process that has a directory locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// The name of its program; empty if that is not known.
    pub program: String,
    /// True if it was killed, and cannot end because an operation on one of its directories hangs.
    pub is_held_up: bool,
}

impl Holder {
    /// Describes a process of this machine.
    pub(crate) fn of(pid: u32) -> Self {
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self {
            pid,
            program: program.trim().to_owned(),
            is_held_up: is_held_up(pid),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        if self.is_held_up {
            f.write_str(", which was killed and cannot end before what hangs of it is over")?;
        }
        Ok(())
    }
}

/// Says whether a process was killed, and is still there because of an operation that hangs. The system takes
/// nothing that it had open from it until then: no lock, and no socket.
#[must_use]
pub fn is_held_up(pid: u32) -> bool {
    let state = |stat: &Path| fs::read_to_string(stat).ok().as_deref().and_then(state_in);
    let process = PathBuf::from(format!("/proc/{pid}"));
    if state(&process.join("stat")) != Some('Z') {
        return false;
    }
    // All of it ends when its first thread is asked to, but for those that the system cannot interrupt.
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    let mut threads = threads.filter_map(Result::ok);
    threads.any(|thread| state(&thread.path().join("stat")) == Some('D'))
}

/// Returns the state of a process or thread from its `stat`, in which a name comes before it that may hold anything.
fn state_in(stat: &str) -> Option<char> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

/// Returns the process that a line of the table says has the lock of a file whose place ends with `place`; those that
/// wait for it are marked by an arrow.
fn holder_in(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let (pid, found) = (words.nth(2)?, words.next()?);
    found.ends_with(place).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_told_from_waiters_and_from_other_locks() {
        let place = "fd:01:77";
        let holder = |line: &str| holder_in(line, place);
        assert_eq!(
            holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:77 0 EOF"),
            Some(4711)
        );
        assert_eq!(
            holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:78 0 EOF"),
            None
        );
        assert_eq!(
            holder("1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:77 0 EOF"),
            None
        );
        assert_eq!(
            holder("2: POSIX  ADVISORY  WRITE 4711 fd:01:77 0 EOF"),
            None
        );
        assert_eq!(holder("3: FLOCK"), None);
    }

    #[test]
    fn an_unmapped_user_is_not_named() {
        let everyone = "         0          0 4294967295\n";
        let some = "         0       1000          1\n         1     100000      65536\n";
        assert!(is_told(65534, everyone, Some(65534)));
        assert!(is_told(1000, some, Some(65534)));
        assert!(!is_told(65534, some, Some(65534)));
        assert!(!is_told(1000, "", None));
    }

    #[test]
    fn the_state_of_a_process_is_told_whatever_its_name() {
        assert_eq!(state_in("4711 (cauchyfs) Z 1 4711"), Some('Z'));
        assert_eq!(state_in("4711 (a) D (b) S 1 4711"), Some('S'));
        assert_eq!(state_in("4711 (cauchyfs)"), None);
        assert_eq!(state_in(""), None);
    }

    #[test]
    fn a_process_that_is_alive_or_a_zombie_does_not_count_as_held_up() {
        assert!(!is_held_up(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let stat = PathBuf::from(format!("/proc/{}/stat", child.id()));
        while state_in(&fs::read_to_string(&stat).unwrap()) != Some('Z') {
            std::thread::yield_now();
        }
        assert!(!is_held_up(child.id()));
        child.wait().unwrap();
        assert!(!is_held_up(child.id()));
    }
}
