//! Opening a volume, and waiting for processes that have its directories.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::VolumeOptions;
use crate::cli::directories::Directories;
use crate::cli::failure::Failure;
use crate::cli::mounts;
use crate::cli::survey::{executor, note_silent, survey, usable_stores};
use crate::control::fault::Fault;
use crate::control::report::MemberReport;
use crate::control::volume_failure::VolumeFailure;
use crate::maintenance::Maintenance;
use crate::membership::{AbsenceReason, MembersError, Unusable};
use crate::metadata::MetaError;
use crate::store::{Executor, StoreRef};
use crate::transaction::{CommitError, OpenOptions};

/// The time for which directories that nothing mounted uses may stay in use: by a daemon that is flushing what
/// `umount` left to it, or by a command that looks at them.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two attempts to open them.
const LEAVE_POLL: Duration = Duration::from_millis(100);

/// The time for which the same few of them may stay in use while all others are free, or all by a killed process. A
/// daemon releases them one after the other, except for those on which something hangs.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens the volume that the directories belong to, and says which directories could
/// not be used.
///
/// A daemon whose mount is gone may be flushing yet; that is waited for. It may keep a directory that hangs, perhaps
/// for ever, and the volume is opened without that one. If it was killed, it keeps all of them. Nothing is waited for
/// once the opening is no longer wanted: `is_wanted` says that.
///
/// # Errors
///
/// If they are not enough, or do not belong together, or stay in use.
pub(super) fn open_volume(
    directories: &Directories,
    options: &VolumeOptions,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(Arc<Maintenance>, Vec<Unusable>), Failure> {
    let started = Instant::now();
    let mut stuck_since: Option<Instant> = None;
    let mut left_out = Vec::new();
    loop {
        let (mut stores, mut notes) = usable_stores(directories, options.member_timeout);
        stores.retain(|store| is_elsewhere(&store.label(), &left_out));
        notes.append(&mut left_out);
        let error = match try_to_open(stores, directories, options, &mut notes) {
            Ok(maintenance) => return Ok((maintenance, notes)),
            Err(error) => error,
        };
        let in_use = match &error {
            CommitError::Members(error) if is_in_use(error) => &**error,
            error => {
                let mut failure = open_failure(error, directories, options);
                if options.restores_superblocks && failure.fault == Fault::TooFew {
                    // It is what the error advises that was tried.
                    failure.advice = None;
                }
                return Err(add_notes(failure, &notes));
            }
        };
        let failure = Failure::from(VolumeFailure::from(in_use));
        if let Some(entry) = mounts::mount_using(directories, options.member_timeout) {
            let shown = entry.mountpoint.display();
            return Err(failure.advise(format!("the volume is mounted at {shown}")));
        }
        let is_stuck = !matches!(in_use, MembersError::InUse { .. });
        let since = stuck_since.unwrap_or_else(Instant::now);
        stuck_since = is_stuck.then_some(since);
        match in_use {
            MembersError::HeldUp { .. } if since.elapsed() >= LET_GO_TIMEOUT => {
                return Err(failure);
            }
            MembersError::PartlyInUse { held } if since.elapsed() >= LET_GO_TIMEOUT => {
                left_out.clone_from(held);
            }
            _ if started.elapsed() >= LEAVE_TIMEOUT || !is_wanted() => return Err(failure),
            _ => {
                tracing::info!("{in_use}; waiting");
                std::thread::sleep(LEAVE_POLL);
            }
        }
    }
}

fn is_in_use(error: &MembersError) -> bool {
    matches!(
        error,
        MembersError::InUse { .. } | MembersError::HeldUp { .. } | MembersError::PartlyInUse { .. }
    )
}

/// Says whether a directory is none of those that were noted.
fn is_elsewhere(path: &str, notes: &[Unusable]) -> bool {
    notes.iter().all(|note| note.path != path)
}

/// Opens a volume, and notes which directories could not be used.
fn try_to_open(
    stores: Vec<StoreRef>,
    directories: &Directories,
    options: &VolumeOptions,
    notes: &mut Vec<Unusable>,
) -> Result<Arc<Maintenance>, CommitError> {
    let executor = executor(options.member_timeout);
    let all = stores.clone();
    let open = OpenOptions {
        access: options.access,
        engine: options.engine.clone(),
        cache_bytes: options.cache_bytes / 2,
        index_cache_bytes: options.cache_bytes / 2,
        threads: options.threads,
        full_members: options.full_members,
        ..OpenOptions::default()
    };
    let opened = if options.restores_superblocks {
        open_restoring(stores, &open, &executor, notes)
    } else {
        Maintenance::open(stores, &open, Arc::clone(&executor))
    };
    note_silent(directories, &all, &executor);
    let maintenance = opened?;
    for unusable in maintenance.transactions().members().unusable() {
        if is_elsewhere(&unusable.path, notes) {
            notes.push(unusable.clone());
        }
    }
    Ok(maintenance)
}

/// Opens a volume with the members that have lost their superblocks, which they have again then; notes which
/// directories cannot be told to be members, and why.
fn open_restoring(
    stores: Vec<StoreRef>,
    options: &OpenOptions,
    executor: &Arc<Executor>,
    notes: &mut Vec<Unusable>,
) -> Result<Arc<Maintenance>, CommitError> {
    let (claims, others) = crate::maintenance::identify_members(&stores, options, executor)?;
    notes.extend(others);
    let (silent, stores): (Vec<_>, Vec<_>) = stores
        .into_iter()
        .partition(|store| executor.is_hanging(store));
    notes.extend(silent.iter().map(|store| Unusable {
        path: store.label(),
        reason: AbsenceReason::Silent,
    }));
    Maintenance::open_recovering(stores, &claims, options, Arc::clone(executor))
}

/// Puts into words why a volume could not be opened: absent members may have what is damaged here.
fn open_failure(
    error: &CommitError,
    directories: &Directories,
    options: &VolumeOptions,
) -> Failure {
    let failure = Failure::from(VolumeFailure::from(error));
    let is_damaged = matches!(error, CommitError::Meta(error)
        if matches!(**error, MetaError::Poisoned { .. } | MetaError::DamagedIndex { .. }));
    if !is_damaged {
        return failure;
    }
    let Ok(report) = survey(directories, options.member_timeout) else {
        return failure;
    };
    let away: Vec<String> = report.absentees().map(MemberReport::name).collect();
    if away.is_empty() {
        return failure;
    }
    failure.advise(format!(
        "bring back {}: what is damaged here may be whole there",
        away.join(", ")
    ))
}

/// Adds what is known about the directories to a failure that has no advice of its own.
fn add_notes(failure: Failure, notes: &[Unusable]) -> Failure {
    if failure.advice.is_some() || notes.is_empty() {
        return failure;
    }
    let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
    failure.advise(notes.join("; "))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use super::*;
    use crate::codec::Geometry;
    use crate::control::in_time::Silent;
    use crate::membership::Access;
    use crate::transaction::{CreateOptions, Transactions};

    #[test]
    fn directories_in_use_are_waited_for_only_as_long_as_the_opening_is_wanted() {
        let home = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..2).map(|n| home.path().join(format!("d{n}"))).collect();
        for path in &paths {
            std::fs::create_dir(path).unwrap();
        }
        let options = VolumeOptions {
            access: Access::ReadWrite,
            ..VolumeOptions::looking()
        };
        let found =
            || Directories::find_within(&paths, options.member_timeout, Silent::default()).unwrap();
        let (stores, _) = usable_stores(&found(), options.member_timeout);
        let created = CreateOptions::new(Geometry::new(1, 1).unwrap());
        let executor = executor(options.member_timeout);
        Transactions::create(&stores, &created, executor).unwrap();
        drop(stores);
        let (held, _) = open_volume(&found(), &options, &|| true).unwrap();
        let asked = Cell::new(0);
        let is_wanted = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        let refused = open_volume(&found(), &options, &is_wanted);
        assert!(refused.is_err());
        assert_eq!(asked.get(), 3, "it is asked before each further attempt");
        held.close().unwrap();
        drop(held);
        open_volume(&found(), &options, &|| false).unwrap();
    }
}
