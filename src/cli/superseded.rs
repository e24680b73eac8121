//! Looking for the rest of a volume before it is written to without.
//!
//! Only where the rest may have been written to alone. A disk that spins up is waited for, one that hangs no longer
//! than a member is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::directories::Directories;
use super::failure::{Failure, warn};
use super::survey::survey_members;
use crate::codec::Geometry;
use crate::control::report::ElsewhereReport;
use crate::control::volume_failure::VolumeFailure;
use crate::format::files::SUPERBLOCK;
use crate::membership::{JoinAs, Members, MembersError, directory};
use crate::store::{Executor, ExecutorKind, Store, StoreRef};

/// Refuses to write to members without which others have gone on; the others are looked for where they lay last.
///
/// # Errors
///
/// If such are found: written to, each half would have what the other lacks.
pub(super) fn refuse(directories: &Directories, member_timeout: Duration) -> Result<(), Failure> {
    // The code that opens them waits long enough for one that hangs.
    if geometry_of(directories, member_timeout).is_some_and(has_no_halves) {
        return Ok(());
    }
    // The code that opens them reports their defects.
    let Ok((members, _)) = survey_members(directories, member_timeout) else {
        return Ok(());
    };
    check(&members, directories).map_or(Ok(()), Err)
}

/// Returns the directories beside those given at which [`refuse`] and [`look_elsewhere`] may look.
pub(super) fn places(directories: &Directories, member_timeout: Duration) -> Vec<PathBuf> {
    if geometry_of(directories, member_timeout).is_some_and(has_no_halves) {
        return Vec::new();
    }
    let Ok((members, _)) = survey_members(directories, member_timeout) else {
        return Vec::new();
    };
    let away = members.absentees().into_iter().map(|member| member.path);
    let places = members.epochs().may_have_gone_on().into_iter().chain(away);
    unnamed(places.collect(), directories).collect()
}

/// Says whether no two parts of a volume can be written to without each other.
fn has_no_halves(geometry: Geometry) -> bool {
    geometry.data_shards() > geometry.parity_shards()
}

/// Returns the geometry from the first member that answers; none if no member does in time.
fn geometry_of(directories: &Directories, member_timeout: Duration) -> Option<Geometry> {
    let (told, geometries) = channel();
    let answering = directories.present.iter();
    for path in answering.filter(|path| !directories.silent.has(path)) {
        let told = told.clone();
        look_at(path, move |path| {
            let store = directory::open(path)?;
            let executor = Executor::new(ExecutorKind::Inline, member_timeout);
            let members = Members::survey(vec![Arc::new(store)], Arc::new(executor))?;
            // Another may have told it before.
            told.send(members.shape().geometry()).ok();
            Ok(())
        });
    }
    drop(told);
    geometries.recv_timeout(member_timeout).ok()
}

fn check(members: &Members, directories: &Directories) -> Option<Failure> {
    let patience = members.io().executor().timeout();
    let others = open(
        unnamed(members.epochs().may_have_gone_on(), directories),
        patience,
    );
    let checked = members.epochs().check_not_superseded(&others);
    let failure = checked.err().map(|error| VolumeFailure::from(&error));
    failure.map(Failure::from)
}

/// Takes note of members that were not named but lie where they were last, and that were mounted apart from these
/// before. They cannot be taken in as they are, and `status` shows them. Returns their paths.
pub(super) fn note_apart(members: &Members, directories: &Directories) -> Vec<String> {
    if has_no_halves(members.shape().geometry()) {
        return Vec::new();
    }
    let away = members.absentees().into_iter().map(|member| member.path);
    let patience = members.io().executor().timeout();
    let mut apart = Vec::new();
    for other in open(unnamed(away.collect(), directories), patience) {
        // A volume that has gone on from the state of these takes them in.
        let is_ahead = members
            .epochs()
            .check_not_superseded(std::slice::from_ref(&other));
        if is_ahead.is_ok()
            && let Err(error @ MembersError::Diverged { .. }) =
                members.changes().check(JoinAs::Returning, &other)
            && let Some(member) = members.membership().at(&[other.label()])
        {
            members.changes().note_refusal(member, &error);
            apart.push(other.label());
        }
    }
    apart
}

/// Reports on members that were not named, and that can be written to without those that are here, or were. Includes
/// those that were mounted apart, as [`note_apart`] does.
pub(super) fn look_elsewhere(
    members: &Members,
    directories: &Directories,
) -> Option<ElsewhereReport> {
    if has_no_halves(members.shape().geometry()) {
        return None;
    }
    let apart = note_apart(members, directories);
    let paths = members.epochs().may_have_gone_on();
    let has_places = paths.iter().all(|path| !path.is_empty());
    let unseen: Vec<PathBuf> = unnamed(paths, directories).collect();
    let others = open(unseen.iter().cloned(), members.io().executor().timeout());
    let went_on = |paths| {
        Some(ElsewhereReport {
            paths,
            went_on: Some(true),
        })
    };
    if let Err(MembersError::Superseded { branch }) = members.epochs().check_not_superseded(&others)
    {
        return went_on(branch.paths);
    }
    if !apart.is_empty() {
        return went_on(apart);
    }
    if unseen.is_empty() && has_places {
        return None;
    }
    let is_known = |path: &String| {
        let mut others = others.iter().filter(|other| other.label() == *path);
        others.any(|other| members.epochs().is_known(other))
    };
    let paths = unseen.iter().map(|path| path.display().to_string());
    let paths: Vec<String> = paths.collect();
    let are_known = has_places && paths.iter().all(is_known);
    Some(ElsewhereReport {
        paths,
        went_on: are_known.then_some(false),
    })
}

/// Returns those of `paths` that are known and were not named.
fn unnamed(paths: Vec<String>, directories: &Directories) -> impl Iterator<Item = PathBuf> + '_ {
    let is_named = |path: &PathBuf| {
        let mut named = directories.present.iter().chain(&directories.absent);
        named.any(|named| named == path)
    };
    let known = paths.into_iter().filter(|path| !path.is_empty());
    let paths = known.map(PathBuf::from);
    paths.filter(move |path| !is_named(path))
}

/// Opens what can be opened in time of directories that may hang.
fn open(paths: impl Iterator<Item = PathBuf>, patience: Duration) -> Vec<StoreRef> {
    let started = Instant::now();
    let opening: Vec<_> = paths.map(|path| (start_to_open(&path), path)).collect();
    let opened = opening.into_iter().filter_map(|(opening, path)| {
        let left = patience.saturating_sub(started.elapsed());
        let opened = opening.recv_timeout(left);
        if matches!(opened, Err(RecvTimeoutError::Timeout)) {
            warn(format_args!(
                "{} does not answer: the member that was there may have been written to without these",
                path.display()
            ));
        }
        opened.ok()
    });
    opened.collect()
}

/// Opens a directory, and sees that it answers.
fn start_to_open(path: &Path) -> Receiver<StoreRef> {
    let (found, receiver) = channel();
    look_at(path, move |path| {
        let store = directory::open(path)?;
        store.open_len(SUPERBLOCK)?;
        // The receiver may be gone.
        drop(found.send(Arc::new(store) as StoreRef));
        Ok(())
    });
    receiver
}

/// Looks at a directory that may hang, on a thread of its own.
fn look_at(path: &Path, look: impl FnOnce(&Path) -> Result<(), MembersError> + Send + 'static) {
    let shown = path.display();
    let path = path.to_owned();
    let work = move || {
        if let Err(error) = look(&path) {
            tracing::debug!("{error}");
        }
    };
    if let Err(error) = thread::Builder::new().name("find".to_owned()).spawn(work) {
        tracing::warn!("no thread looks for a member at {shown}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::survey::{executor, stores};
    use crate::transaction::{CreateOptions, Transactions};

    /// Makes a volume in directories below one.
    fn volume(home: &Path, data: usize, parity: usize) -> Directories {
        let paths: Vec<PathBuf> = (0..data + parity)
            .map(|index| home.join(format!("{data}+{parity}.{index}")))
            .collect();
        Directories::make(&paths, |paths| {
            let options = CreateOptions::new(Geometry::new(data, parity).unwrap());
            let created = Transactions::create(&stores(paths)?, &options, executor(PATIENCE));
            created.map_err(Failure::environment)
        })
        .unwrap();
        Directories::find(&paths).unwrap()
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn any_member_that_answers_tells_whether_a_volume_can_be_parted() {
        let home = tempfile::tempdir().unwrap();
        for (data, parity, has_none) in [(2, 1, true), (1, 1, false), (1, 2, false)] {
            let mut directories = volume(home.path(), data, parity);
            for left in (1..=directories.present.len()).rev() {
                let geometry = geometry_of(&directories, PATIENCE);
                assert_eq!(geometry.map(has_no_halves), Some(has_none), "{left} left");
                let gone = &directories.present[left - 1];
                std::fs::write(gone.join(SUPERBLOCK), "").unwrap();
            }
            assert!(geometry_of(&directories, PATIENCE).is_none());
            directories.present.clear();
            assert!(geometry_of(&directories, PATIENCE).is_none());
        }
    }
}
