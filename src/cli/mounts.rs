//! What the mounts on this machine have to do with directories that a command is to work on.
//!
//! Directories are in use while a daemon has them locked: those that it lost, or was mounted without, are
//! not, whatever volume they are of. But whoever mounts these to write to them makes a second half of the
//! volume, with writes that the first lacks, and one of the two has to be given up some day.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::control::{self, ANSWER_TIMEOUT, Answer, BRIEF_TIMEOUT, Peer, Request};
use super::directories::Directories;
use super::failure::Failure;
use super::volume::{MEMBER_TIMEOUT, survey};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::store::DirStore;

/// Returns the running mount that uses one of `directories`, if any.
pub(super) fn mount_using(
    directories: &Directories,
    member_timeout: Duration,
) -> Option<MountEntry> {
    let may_be_locked = |path: &Path| DirStore::open(path).is_ok_and(|store| store.may_be_locked());
    let present = &directories.present;
    let asked = directories
        .silent
        .ask_each(present, member_timeout, may_be_locked);
    let locked = present.iter().zip(asked);
    let locked: Vec<PathBuf> = locked
        .filter(|(_, is_locked)| *is_locked == Some(true))
        .map(|(path, _)| path.clone())
        .collect();
    if locked.is_empty() {
        // No daemon needs to be asked, of which one may hang.
        return None;
    }
    find(move |entry| match ask(entry, &Request::Directories)? {
        Answer::Directories(used) => used.iter().any(|used| locked.contains(used)).then_some(()),
        _ => None,
    })
    .map(|(entry, ())| entry)
}

/// Refuses to work on directories that a running mount uses.
///
/// # Errors
///
/// If one does.
pub(super) fn refuse_mounted(directories: &Directories) -> Result<(), Failure> {
    let Some(entry) = mount_using(directories, MEMBER_TIMEOUT) else {
        return Ok(());
    };
    let shown = entry.mountpoint.display();
    Err(Failure::environment(format!(
        "these directories are in use: they are mounted at {shown}"
    ))
    .advise(format!(
        "`cauchyfs unmount {shown}` first, or use the files there"
    )))
}

/// Refuses to mount directories apart from the rest of their volume, where that is mounted without them.
/// It cannot be known of mounts of other users, of other machines, and of such as begin at the same moment.
///
/// # Errors
///
/// If a mount is seen that lacks one of them.
pub(super) fn refuse_other_half(
    directories: &Directories,
    member_timeout: Duration,
) -> Result<(), Failure> {
    if all_of_ours().next().is_none() {
        return Ok(());
    }
    // What is wrong with them is said by whoever opens them.
    let Ok(given) = survey(directories, member_timeout) else {
        return Ok(());
    };
    let ids: Vec<String> = given.present().map(|member| member.id.clone()).collect();
    let volume = given.volume.clone();
    let found = find(move |entry| match ask(entry, &Request::Membership)? {
        Answer::Membership(other) if other.writable && other.volume == volume => {
            let mut away = other.away.into_iter();
            away.find(|absent| ids.contains(&absent.id))
        }
        _ => None,
    });
    let Some((entry, absent)) = found else {
        return Ok(());
    };
    let shown = entry.mountpoint.display();
    let number = absent.index;
    Err(Failure::environment(format!(
        "the volume is mounted at {shown} without member {number}: mounted apart, each half would have \
         writes that the other lacks"
    ))
    .advise(format!(
        "at its usual path it is taken in there by itself, and from elsewhere with `cauchyfs member replace \
         {shown} {number} DIR`; or `cauchyfs unmount {shown}`, and mount all directories together; \
         `-o ro` mounts these to look at"
    )))
}

fn all_of_ours() -> impl Iterator<Item = MountEntry> {
    let mounts = mountinfo::mounts().unwrap_or_default();
    mounts.into_iter().filter(MountEntry::is_ours)
}

/// Asks all mounts at once, and returns the first of which `ask` returns something.
fn find<T: Send + 'static>(
    ask: impl Fn(&MountEntry) -> Option<T> + Clone + Send + 'static,
) -> Option<(MountEntry, T)> {
    let (sender, answers) = channel();
    for entry in all_of_ours() {
        let (ask, sender) = (ask.clone(), sender.clone());
        let work = move || {
            if let Some(found) = ask(&entry) {
                // Another may have been found first.
                drop(sender.send((entry, found)));
            }
        };
        if let Err(error) = thread::Builder::new().spawn(work) {
            log::warn!("a mount is not asked: {error}");
        }
    }
    drop(sender);
    answers.recv().ok()
}

/// Asks the daemon of a mount; one that is gone, or is not for this user to ask, has nothing to say.
fn ask(entry: &MountEntry, request: &Request) -> Option<Answer> {
    let patience = match request {
        Request::Membership => BRIEF_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    };
    let found = control::find_peer(&entry.mountpoint, Some(entry), patience);
    let asked = found.and_then(|peer| match peer {
        Peer::Daemon(daemon) => control::ask(daemon, request).map(Some),
        Peer::OtherVersion(failure) => Err(failure),
        Peer::Remains(_) | Peer::None => Ok(None),
    });
    match asked {
        Ok(answer) => answer,
        Err(failure) => {
            let shown = entry.mountpoint.display();
            log::debug!("the daemon of {shown}: {}", failure.message);
            None
        }
    }
}
