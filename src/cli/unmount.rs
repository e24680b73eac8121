//! `cauchyfs unmount`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use super::args::UnmountArguments;
use super::client::{self, Peer};
use super::failure::{Failure, Outcome, warn, warn_and_advise};
use super::held;
use super::shell::quoted_path;
use crate::control::dead_mount::{ClearedMounts, clear_dead, is_dead, is_gone};
use crate::control::departure::Departure;
use crate::control::exchange::ANSWER_TIMEOUT;
use crate::control::protocol::{Answer, Request};
use crate::control::server;
use crate::fuse::mount::{Mount, MountError, Unmount};
use crate::fuse::mountinfo::{self, MountEntry};

/// The time that a daemon may take to end once it has said that it does.
const DEPARTURE: Duration = Duration::from_secs(15);

/// The time if it has said that it is held up: the cause may just have gone.
const BRIEFLY: Duration = Duration::from_secs(1);

/// The number of processes that are named if they keep a mount busy.
const NAMED_USERS: usize = 5;

/// Unmounts, and returns once the daemon is gone and everything is durable.
///
/// # Errors
///
/// If nothing of ours is mounted there, if it is in use, or if another mount namespace keeps the daemon.
pub(super) fn run(arguments: &UnmountArguments) -> Result<Outcome, Failure> {
    let shown = arguments.mountpoint.display();
    let place = quoted_path(&arguments.mountpoint);
    let mountpoint = mountinfo::locate(&arguments.mountpoint)
        .map_err(|error| Failure::usage(format!("cannot find {shown}: {error}")))?;
    let entry = mountinfo::mount_at(&mountpoint)
        .map_err(|error| Failure::environment(format!("cannot read the mount table: {error}")))?;
    if let Some(entry) = &entry
        && !entry.is_ours()
    {
        return Err(Failure::usage(format!(
            "{shown} is a mount of type {}, not of CauchyFS",
            entry.fs_type
        )));
    }
    // A daemon may be flushing still although its mount was taken away with umount(8).
    let daemon = match (find_peer(&mountpoint, entry.as_ref())?, &entry) {
        (Peer::Daemon(daemon), _) => daemon,
        (Peer::OtherVersion(_), Some(entry)) => return clear_outdated(entry, arguments.lazy),
        (Peer::OtherVersion(spoken), None) => {
            return Err(client::other_version(spoken, &mountpoint));
        }
        (Peer::Remains(pid), Some(entry)) => return clear_remains(entry, pid),
        (Peer::None, Some(entry)) => return clear(entry, arguments.lazy),
        (Peer::Remains(_) | Peer::None, None) => {
            return Err(Failure::usage(format!("nothing is mounted at {shown}")));
        }
    };
    let request = Request::Unmount {
        lazy: arguments.lazy,
    };
    let departure = daemon.departure();
    let device = daemon.device().to_owned();
    match client::ask(daemon, &request) {
        Ok(Answer::Held(trouble)) => {
            // This command may run in a mount namespace that has a mount of its own.
            if let Some(entry) = &entry
                && !is_gone(&mountpoint, Some(entry))
            {
                take_away_from_living(entry, arguments.lazy)?;
            }
            let what = format!("{shown} is unmounted");
            let trouble = trouble.map(|reason| reason.to_string());
            held::leave(&what, &device, &departure, trouble.as_deref())
        }
        // A daemon of another user may say what it likes.
        Ok(Answer::Unmounted | Answer::Lingering(_))
            if entry.is_some() && !is_gone(&mountpoint, entry.as_ref()) =>
        {
            Err(Failure::environment(format!(
                "the daemon answered that {shown} is unmounted, and it is still in the mount table"
            ))
            .advise(format!("`umount {place}` takes it away")))
        }
        Ok(Answer::Unmounted) => leave(&departure, DEPARTURE, &[]),
        Ok(Answer::Lingering(members)) => leave(&departure, BRIEFLY, &members),
        Ok(Answer::Busy) => Err(busy(&mountpoint)),
        Ok(_) => Err(client::beside_the_point(&mountpoint)),
        // Unmounted, and not closed in good order: it ends all the same.
        Err(failure) if is_gone(&mountpoint, entry.as_ref()) => {
            client::wait(&departure, DEPARTURE)?;
            match &failure.advice {
                Some(advice) => warn_and_advise(failure.message, advice),
                None => warn(failure.message),
            }
            Ok(Outcome::Degraded)
        }
        // It died over the question.
        Err(failure) => match (find_peer(&mountpoint, entry.as_ref())?, &entry) {
            (Peer::Remains(pid), Some(entry)) => clear_remains(entry, pid),
            (Peer::None, Some(entry)) if is_dead(entry) => clear(entry, arguments.lazy),
            _ => Err(failure),
        },
    }
}

/// Waits for the end of a daemon that has made everything durable. Its process can be held up by
/// `members`, and if it is, the caller must know.
fn leave(
    departure: &Departure,
    patience: Duration,
    members: &[String],
) -> Result<Outcome, Failure> {
    let Some(pid) = client::wait(departure, patience)? else {
        return Ok(Outcome::Done);
    };
    let pid = pid.as_raw_nonzero();
    warn(if members.is_empty() {
        format!("everything is durable, but the daemon's process {pid} does not end")
    } else {
        format!(
            "everything is durable, but the daemon's process {pid} cannot end before {} answers, and keeps it \
             locked; what is left can be mounted without it",
            members.join(" and ")
        )
    });
    Ok(Outcome::Degraded)
}

/// Finds the daemon behind a mountpoint that a command is to act upon.
fn find_peer(mountpoint: &Path, entry: Option<&MountEntry>) -> Result<Peer, Failure> {
    client::find_peer(mountpoint, entry, ANSWER_TIMEOUT)
}

/// Takes away a mount whose daemon cannot be asked.
fn clear(entry: &MountEntry, lazy: bool) -> Result<Outcome, Failure> {
    if is_dead(entry) {
        let cleared = clear_dead(entry).map_err(|error| not_unmounted(&entry.mountpoint, error))?;
        let cleared = said_of(&cleared, &entry.mountpoint);
        server::clear(&entry.mountpoint);
        warn(cleared);
        return Ok(Outcome::Done);
    }
    take_away_from_living(entry, lazy)?;
    let others = mountinfo::mounts().unwrap_or_default();
    if others.iter().any(|other| other.device == entry.device) {
        // It was a part of the volume in another place, and the daemon goes on.
        return Ok(Outcome::Done);
    }
    warn("the daemon could not be asked, and may still be making the last changes durable");
    Ok(Outcome::Degraded)
}

/// Takes away a mount whose daemon speaks another version of the control protocol, as after an upgrade. The daemon ends
/// in good order, and does not say when.
fn clear_outdated(entry: &MountEntry, lazy: bool) -> Result<Outcome, Failure> {
    take_away_from_living(entry, lazy)?;
    warn(
        "the daemon is of another version, and may still be making the last changes durable; its log says when it is \
         done",
    );
    Ok(Outcome::Degraded)
}

fn take_away_from_living(entry: &MountEntry, lazy: bool) -> Result<(), Failure> {
    let how = if lazy {
        Unmount::Lazily
    } else {
        Unmount::WhenIdle
    };
    take_away(entry, how)
}

/// Takes away a mount whose daemon has ended, of which something hangs that keeps the process.
fn clear_remains(entry: &MountEntry, pid: Pid) -> Result<Outcome, Failure> {
    let cleared = clear_dead(entry).map_err(|error| not_unmounted(&entry.mountpoint, error))?;
    let cleared = said_of(&cleared, &entry.mountpoint);
    server::clear(&entry.mountpoint);
    let pid = pid.as_raw_nonzero();
    warn(format!(
        "{cleared}; its process {pid} cannot end before the directory answers on which it hangs, and keeps all of \
         them locked"
    ));
    Ok(Outcome::Degraded)
}

/// Says what has become of mounts whose daemons were gone.
pub(super) fn said_of(cleared: &ClearedMounts, mountpoint: &Path) -> String {
    let shown = mountpoint.display();
    let daemons = if cleared.count == 1 {
        format!("the daemon of {shown} was gone; what it")
    } else {
        format!(
            "the daemons of {} mounts at {shown}, one above the other, were gone; what they",
            cleared.count
        )
    };
    let below = if cleared.hid_another {
        "; the volume that was mounted below is there, and in use"
    } else {
        ""
    };
    format!("{daemons} had not made durable is recovered or lost as after a crash{below}")
}

fn take_away(entry: &MountEntry, how: Unmount) -> Result<(), Failure> {
    let taken = Mount::of(entry).unmount(how);
    taken.map_err(|error| not_unmounted(&entry.mountpoint, error))
}

/// Says why the mount at `mountpoint` could not be taken away.
pub(super) fn not_unmounted(mountpoint: &Path, error: MountError) -> Failure {
    match error {
        MountError::Busy(_) => busy(mountpoint),
        other => Failure::environment(other),
    }
}

fn busy(mountpoint: &Path) -> Failure {
    let users = users_of(mountpoint);
    let shown = mountpoint.display();
    let message = if users.is_empty() {
        format!("{shown} is in use")
    } else {
        format!("{shown} is in use by {}", users.join(", "))
    };
    Failure::environment(message).advise(format!(
        "close what is open there and leave its directories, or use `cauchyfs unmount --lazy {}`",
        quoted_path(mountpoint)
    ))
}

/// Names processes that have a file open or mapped, or their working directory, below `mountpoint`.
fn users_of(mountpoint: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mounted = mountinfo::mount_at(mountpoint).ok().flatten();
    let mapping = mounted.map_or_else(Vec::new, |entry| held::mapping(&entry.device));
    processes
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(pid, process): &(u32, PathBuf)| {
            mapping.contains(pid) || is_below(process, mountpoint)
        })
        .take(NAMED_USERS)
        .map(|(pid, process)| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            format!("{} (process {pid})", name.trim())
        })
        .collect()
}

/// Says whether a process, by its directory in `/proc`, uses something below `mountpoint`. Reads
/// links alone, so that a mount that does not answer cannot hold us up.
fn is_below(process: &Path, mountpoint: &Path) -> bool {
    let descriptors = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    ["cwd", "root", "exe"]
        .into_iter()
        .map(|link| process.join(link))
        .chain(descriptors)
        .filter_map(|link| fs::read_link(link).ok())
        .any(|target| target.starts_with(mountpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let home = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(home.path()).unwrap();
        let _open = fs::File::create(base.join("f")).unwrap();
        let me = format!("(process {})", std::process::id());
        assert!(users_of(&base).iter().any(|user| user.ends_with(&me)));
    }
}
