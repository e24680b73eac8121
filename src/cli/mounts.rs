//! The mounts on this machine that use directories on which a command is to work.
//!
//! Directories are in use while a daemon has them locked. Those that it lost, or was mounted without, are not in use,
//! whatever volume they are of. But a mount that writes to these makes a second half of the volume, with writes that
//! the first lacks. One of the two has to be given up some day.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::client::{self, Peer, Unlisted};
use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::Failure;
use super::held::{self, Keeper};
use super::shell::quoted_path;
use super::survey::survey;
use crate::control::exchange::{ANSWER_TIMEOUT, BRIEF_TIMEOUT};
use crate::control::protocol::{Answer, Request};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::membership::directory;

/// Time in which daemons have to answer which members they are without. Those that take longer are not counted.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(5);

/// A directory that is locked, and the users for whom the processes run that have it locked; none if that is unknown.
#[derive(Clone, Debug)]
struct Locked {
    path: PathBuf,
    users: Vec<u32>,
}

impl Locked {
    /// Says whether a daemon of `user` may have it locked. Where the process is unknown, our own user may.
    fn may_be_of(&self, user: Option<u32>) -> bool {
        match (user, self.users.as_slice()) {
            (Some(user), []) => user == own_user(),
            (Some(user), users) => users.contains(&user),
            (None, _) => false,
        }
    }
}

/// Says whether to believe a daemon of `user` that uses `directories`: it names one of `locked`, and none
/// that a process of another user has locked.
fn is_believed(user: Option<u32>, directories: &[PathBuf], locked: &[Locked]) -> bool {
    let mut named = locked
        .iter()
        .filter(|locked| directories.contains(&locked.path))
        .peekable();
    named.peek().is_some() && named.all(|locked| locked.may_be_of(user))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns which of `directories` are locked.
fn locked_of(directories: &Directories, member_timeout: Duration) -> Vec<Locked> {
    let users_of = |path: &Path| {
        let store = directory::open(path).ok()?;
        store.may_be_locked().then(|| store.lock_users())
    };
    let present = &directories.present;
    let asked = directories
        .silent
        .ask_each(present, member_timeout, users_of);
    let locked = present.iter().zip(asked).filter_map(|(path, users)| {
        let (path, users) = (path.clone(), users.flatten()?);
        Some(Locked { path, users })
    });
    locked.collect()
}

/// Returns the running mount that uses one of `directories`, if any. A daemon counts only if its user has the lock.
pub(super) fn mount_using(
    directories: &Directories,
    member_timeout: Duration,
) -> Option<MountEntry> {
    let locked = locked_of(directories, member_timeout);
    // No other daemon is asked, of which one may hang.
    let may_use = |entry: &MountEntry| locked.iter().any(|lock| lock.may_be_of(entry.user()));
    let entries = all_of_ours().filter(may_use).collect();
    // A daemon may first have to be found, and then to answer.
    find(entries, 2 * ANSWER_TIMEOUT, move |entry| {
        match ask(entry, &Request::Directories)? {
            Answer::Directories(used) => is_believed(entry.user(), &used, &locked).then_some(()),
            _ => None,
        }
    })
    .map(|(entry, ())| entry)
}

/// Returns the daemon of our own user that uses one of `directories`, and whose mount was taken away here.
pub(super) fn unlisted_using(
    directories: &Directories,
    member_timeout: Duration,
) -> Option<Unlisted> {
    let locked = locked_of(directories, member_timeout);
    if !locked.iter().any(|lock| lock.may_be_of(Some(own_user()))) {
        return None;
    }
    let uses = |daemon: &Unlisted| {
        let asked = daemon.connect(BRIEF_TIMEOUT);
        let asked = asked.and_then(|daemon| client::ask(daemon, &Request::Directories));
        matches!(asked, Ok(Answer::Directories(used)) if is_believed(Some(own_user()), &used, &locked))
    };
    client::unlisted(BRIEF_TIMEOUT).into_iter().find(uses)
}

/// Refuses to work on directories of a daemon whose mount was taken away, if something keeps that mount. The daemon has
/// made everything durable then, and serves on. One that is about to end is waited for.
///
/// # Errors
///
/// If there is such a daemon.
pub(super) fn refuse_held(
    directories: &Directories,
    member_timeout: Duration,
) -> Result<(), Failure> {
    let Some(unlisted) = unlisted_using(directories, member_timeout) else {
        return Ok(());
    };
    // The code that opens the directories waits for a daemon that has ended meanwhile.
    let Ok(daemon) = unlisted.connect(BRIEF_TIMEOUT) else {
        return Ok(());
    };
    let (device, departure) = (daemon.device().to_owned(), daemon.departure());
    let shown = unlisted.mountpoint().display();
    let trouble = match client::ask(daemon, &Request::AwaitEnd) {
        Ok(Answer::Held(trouble)) => trouble.map(|reason| reason.to_string()),
        Ok(Answer::Mounted) => {
            return Err(Failure::environment(format!(
                "these directories are in use: they are mounted at {shown} in the mount namespace of their daemon"
            )));
        }
        Ok(_) => return Ok(()),
        Err(_) if Keeper::of(&device).is_none() => return Ok(()),
        Err(failure) => Some(failure.message),
    };
    let what = format!("these directories are in use: their mount at {shown} was taken away");
    held::leave(&what, &device, &departure, trouble.as_deref()).map(drop)
}

/// Refuses to work on directories that a running mount uses.
///
/// # Errors
///
/// If one does.
pub(super) fn refuse_mounted(directories: &Directories) -> Result<(), Failure> {
    let Some(entry) = mount_using(directories, MEMBER_TIMEOUT) else {
        return refuse_held(directories, MEMBER_TIMEOUT);
    };
    let shown = entry.mountpoint.display();
    let place = quoted_path(&entry.mountpoint);
    Err(Failure::environment(format!(
        "these directories are in use: they are mounted at {shown}"
    ))
    .advise(format!(
        "`cauchyfs unmount {place}` first, or use the files there"
    )))
}

/// Refuses to mount directories apart from the rest of their volume, where that is mounted without them.
/// It cannot be known of other machines, and of mounts that begin at the same moment. A daemon counts only if its user
/// is our own, the superuser, or the owner of one of the directories: no other user can hold up or prevent a mount.
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
    let concerned = users_concerned(directories, member_timeout);
    let entries: Vec<MountEntry> = all_of_ours()
        .filter(|entry| entry.user().is_some_and(|user| concerned.contains(&user)))
        .collect();
    if entries.is_empty() {
        return Ok(());
    }
    // The code that opens them reports their defects.
    let Ok(given) = survey(directories, member_timeout) else {
        return Ok(());
    };
    let ids: Vec<String> = given.present().map(|member| member.id.clone()).collect();
    let volume = given.volume.clone();
    let found = find(entries, MEMBERSHIP_TIMEOUT, move |entry| {
        match ask(entry, &Request::Membership)? {
            Answer::Membership(other) if other.writable && other.volume == volume => {
                let mut away = other.away.into_iter();
                away.find(|absent| ids.contains(&absent.id))
            }
            _ => None,
        }
    });
    let Some((entry, absent)) = found else {
        return Ok(());
    };
    let shown = entry.mountpoint.display();
    let place = quoted_path(&entry.mountpoint);
    let number = absent.index;
    Err(Failure::environment(format!(
        "the volume is mounted at {shown} without member {number}: mounted apart, each half would have \
         writes that the other lacks"
    ))
    .advise(format!(
        "at its usual path it is taken in there by itself, and from elsewhere with `cauchyfs member replace \
         {place} {number} DIR`; or `cauchyfs unmount {place}`, and mount all directories together; \
         `-o ro` mounts these to look at"
    )))
}

fn all_of_ours() -> impl Iterator<Item = MountEntry> {
    let mounts = mountinfo::mounts().unwrap_or_default();
    mounts.into_iter().filter(MountEntry::is_ours)
}

/// Returns the users whose daemons may say that they have the volume of `directories` mounted.
fn users_concerned(directories: &Directories, member_timeout: Duration) -> Vec<u32> {
    let owner = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
    let owners = directories
        .silent
        .ask_each(&directories.present, member_timeout, owner);
    let owners = owners.into_iter().flatten().flatten();
    owners.chain([own_user(), 0]).collect()
}

/// Asks mounts all at once, and returns the first of which `ask` returns something within `patience`.
fn find<T: Send + 'static>(
    entries: Vec<MountEntry>,
    patience: Duration,
    ask: impl Fn(&MountEntry) -> Option<T> + Clone + Send + 'static,
) -> Option<(MountEntry, T)> {
    let (sender, answers) = channel();
    for entry in entries {
        let (ask, sender) = (ask.clone(), sender.clone());
        let work = move || {
            if let Some(found) = ask(&entry) {
                // Another may have been found first.
                drop(sender.send((entry, found)));
            }
        };
        if let Err(error) = thread::Builder::new().spawn(work) {
            tracing::warn!("a mount is not asked: {error}");
        }
    }
    drop(sender);
    match answers.recv_timeout(patience) {
        Ok(found) => Some(found),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            tracing::warn!("a mount does not answer within {patience:?}, and is left out");
            None
        }
    }
}

/// Asks the daemon of a mount; one that is gone, or is not for this user to ask, has nothing to say.
fn ask(entry: &MountEntry, request: &Request) -> Option<Answer> {
    let patience = match request {
        Request::Membership => BRIEF_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    };
    let found = client::find_peer(&entry.mountpoint, Some(entry), patience);
    let asked = found.and_then(|peer| match peer {
        Peer::Daemon(daemon) => client::ask(daemon, request).map(Some),
        Peer::OtherVersion(spoken) => Err(client::other_version(spoken, &entry.mountpoint)),
        Peer::Remains(_) | Peer::None => Ok(None),
    });
    match asked {
        Ok(answer) => answer,
        Err(failure) => {
            let shown = entry.mountpoint.display();
            tracing::debug!("the daemon of {shown}: {}", failure.message);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGER: u32 = 4_000_000;
    const OWNER: u32 = 4_000_001;

    fn locked(path: &str, users: &[u32]) -> Locked {
        Locked {
            path: path.into(),
            users: users.to_vec(),
        }
    }

    #[test]
    fn a_daemon_is_believed_only_if_its_user_has_the_lock_of_all_that_it_names() {
        let used = ["/a", "/b"].map(PathBuf::from);
        let is_believed = |user: u32, locked: &[Locked]| is_believed(Some(user), &used, locked);
        let theirs = [locked("/a", &[OWNER]), locked("/b", &[OWNER, 0])];
        assert!(is_believed(OWNER, &theirs));
        assert!(!is_believed(STRANGER, &theirs));
        assert!(!is_believed(0, &theirs));
        // It does not name what is asked about.
        assert!(!is_believed(OWNER, &[locked("/c", &[OWNER])]));
        assert!(!is_believed(OWNER, &[]));
        // Where the process that has the lock is unknown, our own daemon can be it.
        let unknown = [locked("/a", &[])];
        assert!(is_believed(own_user(), &unknown));
        assert!(!is_believed(STRANGER, &unknown));
    }

    #[test]
    fn daemons_that_never_answer_are_waited_for_no_longer_than_the_limit() {
        let some = mountinfo::mounts().unwrap().into_iter().take(3).collect();
        let (stop, hang) = channel::<()>();
        let hang = std::sync::Arc::new(std::sync::Mutex::new(hang));
        let found = find(some, Duration::from_millis(50), move |_| {
            // Until the other end is gone.
            hang.lock().unwrap().recv().unwrap_err();
            Some(())
        });
        assert!(found.is_none(), "{found:?}");
        drop(stop);
    }
}
