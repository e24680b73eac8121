//! Opening members as stores, and looking at as many as are there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::directories::Directories;
use super::failure::Failure;
use crate::control::report::StatusReport;
use crate::control::summary::{TOO_FEW, blank_report};
use crate::control::volume_failure::VolumeFailure;
use crate::membership::{AbsenceReason, Members, Unusable, directory};
use crate::store::{Executor, ExecutorKind, StoreRef};

/// Returns the executor over which all I/O of members goes.
pub(super) fn executor(member_timeout: Duration) -> Arc<Executor> {
    Arc::new(Executor::new(ExecutorKind::Auto, member_timeout))
}

/// Opens directories as stores.
///
/// # Errors
///
/// If one cannot be opened.
pub(super) fn stores(directories: &[PathBuf]) -> Result<Vec<StoreRef>, Failure> {
    directories
        .iter()
        .map(|path| {
            let store = directory::open(path).map_err(VolumeFailure::from)?;
            Ok(Arc::new(store) as StoreRef)
        })
        .collect()
}

/// Opens directories as stores and leaves out those that cannot be, with a note each.
pub(super) fn usable_stores(
    directories: &Directories,
    member_timeout: Duration,
) -> (Vec<StoreRef>, Vec<Unusable>) {
    let absent = |path: &PathBuf| {
        let is_silent = directories.silent.has(path);
        let path = path.display().to_string();
        let reason = if is_silent {
            AbsenceReason::Silent
        } else {
            AbsenceReason::NoDirectory
        };
        Unusable { path, reason }
    };
    let mut notes: Vec<Unusable> = directories.absent.iter().map(absent).collect();
    let mut stores: Vec<StoreRef> = Vec::new();
    let silent = &directories.silent;
    let opened = silent.ask_each(&directories.present, member_timeout, |path| {
        directory::open(path)
    });
    for (path, opened) in directories.present.iter().zip(opened) {
        let path = path.display().to_string();
        let reason = match opened {
            Some(Ok(store)) => {
                stores.push(Arc::new(store));
                continue;
            }
            Some(Err(error)) => AbsenceReason::of_failure(&error),
            None => AbsenceReason::Silent,
        };
        notes.push(Unusable { path, reason });
    }
    (stores, notes)
}

/// Takes note of the directories on which something hangs that was asked of them over an executor.
pub(super) fn note_silent(directories: &Directories, stores: &[StoreRef], executor: &Executor) {
    for store in stores.iter().filter(|store| executor.is_hanging(store)) {
        let path = PathBuf::from(store.label());
        directories.silent.note(&path, executor.timeout());
    }
}

/// Says how a volume is of which too few members are there to read anything.
///
/// # Errors
///
/// If the directories do not belong together.
pub(super) fn survey(
    directories: &Directories,
    member_timeout: Duration,
) -> Result<StatusReport, Failure> {
    let (members, notes) = survey_members(directories, member_timeout)?;
    Ok(blank_report(&members, &notes, 0, TOO_FEW))
}

/// Looks at the members, however few are there, and says which directories could not be used.
///
/// # Errors
///
/// If the directories do not belong together.
pub(super) fn survey_members(
    directories: &Directories,
    member_timeout: Duration,
) -> Result<(Arc<Members>, Vec<Unusable>), Failure> {
    let (stores, mut notes) = usable_stores(directories, member_timeout);
    let executor = executor(member_timeout);
    let members = Members::survey(stores.clone(), Arc::clone(&executor));
    note_silent(directories, &stores, &executor);
    let members = members.map_err(|error| VolumeFailure::from(&error))?;
    notes.extend(members.unusable().iter().cloned());
    Ok((members, notes))
}
