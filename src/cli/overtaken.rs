//! Looking for the rest of a volume before it is written to without.
//!
//! Only where the rest may have been written to alone. A disk that spins up is waited for, one that hangs no longer
//! than a member is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use super::directories::Directories;
use super::failure::{Failure, warn};
use super::volume::{MEMBER_TIMEOUT, members_failure, survey_members};
use crate::format::files::SUPERBLOCK;
use crate::members::{Members, MembersError, Seat};
use crate::store::{DirStore, Store, StoreRef};

/// Refuses to write to members that were left behind by others, which lie where they were last.
///
/// # Errors
///
/// If such are found: written to, each half would have what the other lacks.
pub(super) fn refuse(directories: &Directories) -> Result<(), Failure> {
    // What is wrong with them is said by whoever opens them.
    let Ok((members, _)) = survey_members(directories) else {
        return Ok(());
    };
    check(&members, directories).map_or(Ok(()), Err)
}

fn check(members: &Members, directories: &Directories) -> Option<Failure> {
    let others = open(unnamed(members.may_have_gone_on(), directories));
    let checked = members.check_not_overtaken(&others);
    checked.err().map(|error| members_failure(&error))
}

/// Takes note of members that nobody named, but lie where they were last, and were mounted apart from these
/// before: they cannot be taken in as they are, and whoever asks how they are is to know.
pub(super) fn note_apart(members: &Members, directories: &Directories) {
    let geometry = members.geometry();
    if geometry.data_shards() > geometry.parity_shards() {
        return; // nobody can have been
    }
    let away = members.absentees().into_iter().map(|member| member.path);
    let paths = away.filter(|path| !path.is_empty()).collect();
    for other in open(unnamed(paths, directories)) {
        if let Err(error @ MembersError::Diverged { .. }) = members.check_seat(Seat::Own, &other)
            && let Some(member) = members.at(&[other.label()])
        {
            members.note_refusal(member, &error);
        }
    }
}

/// Returns those of `paths` that nobody named.
fn unnamed(paths: Vec<String>, directories: &Directories) -> impl Iterator<Item = PathBuf> + '_ {
    let is_named = |path: &PathBuf| {
        let mut named = directories.present.iter().chain(&directories.absent);
        named.any(|named| named == path)
    };
    let paths = paths.into_iter().map(PathBuf::from);
    paths.filter(move |path| !is_named(path))
}

/// Opens what can be opened in time of directories that may hang.
fn open(paths: impl Iterator<Item = PathBuf>) -> Vec<StoreRef> {
    let started = Instant::now();
    let opening: Vec<_> = paths.map(|path| (start_to_open(&path), path)).collect();
    let opened = opening.into_iter().filter_map(|(opening, path)| {
        let left = MEMBER_TIMEOUT.saturating_sub(started.elapsed());
        let opened = opening.recv_timeout(left);
        if matches!(opened, Err(RecvTimeoutError::Timeout)) {
            warn(format_args!(
                "{} does not answer: nobody knows whether the member that was there was written to without these",
                path.display()
            ));
        }
        opened.ok()
    });
    opened.collect()
}

/// Opens a directory on a thread of its own, and sees that it answers.
fn start_to_open(path: &Path) -> Receiver<StoreRef> {
    let (found, receiver) = channel();
    let open = {
        let path = path.to_owned();
        move || {
            let opened = DirStore::open(&path).and_then(|store| {
                store.open_len(SUPERBLOCK)?;
                Ok(Arc::new(store) as StoreRef)
            });
            match opened {
                // Nobody may be waiting any more.
                Ok(store) => drop(found.send(store)),
                Err(error) => log::debug!("{error}"),
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("find".to_owned()).spawn(open) {
        log::warn!("nobody looks for a member at {}: {error}", path.display());
    }
    receiver
}
