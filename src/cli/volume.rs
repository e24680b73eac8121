//! Opening a volume from directories, and saying how it is.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::directories::Directories;
use super::failure::{Failure, warn};
use super::report::{
    CapacityReport, ErrorCounts, GeometryReport, IndexReport, LostFiles, MemberReport, MemberState,
    RebuildReport, RebuildState, RedundancyReport, ScrubReport, StatusReport, VolumeState,
};
use super::scrub::scrub_report;
use crate::format::MemberIndex;
use crate::fs::{Fs, FsOptions};
use crate::maintenance;
use crate::maintenance::{
    Maintenance, RebuildProgress, Redundancy, RedundancyCounter, RedundancyRow,
};
use crate::maintenance::{RebuildOrders, Schedule, Scheduler};
use crate::membership::{self, AbsenceReason, Access, Members, Unusable, directory};
use crate::store::{Executor, ExecutorKind, StoreRef};
use crate::transaction::Transactions;

mod failure;
mod opening;

pub(super) use failure::VolumeFailure;
use opening::open_volume;

/// The time that a member may take for one operation before it counts as hung, unless an option says otherwise.
pub(super) const MEMBER_TIMEOUT: Duration = Duration::from_secs(10);

/// Files that are listed by name at most.
const MOST_LISTED: usize = 100_000;

/// The options for opening a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeOptions {
    /// Read-only writes nothing on any member.
    pub(super) access: Access,
    /// The coding engine by name.
    pub(super) engine: String,
    /// Bytes for caches, of shards and of the index in equal parts.
    pub(super) cache_bytes: usize,
    /// Workers for flushing and prefetching.
    pub(super) threads: usize,
    /// The time that a member may take for one operation before it counts as hung.
    pub(super) member_timeout: Duration,
    /// The background work, and its times.
    pub(super) schedule: Schedule,
    /// True if lost superblocks are recovered from the others, where anything may be written.
    pub(super) restores_superblocks: bool,
}

impl VolumeOptions {
    /// Returns what suits a command that looks at a volume and goes.
    pub(super) fn looking() -> Self {
        Self {
            access: Access::ReadOnly,
            engine: "cpu".to_owned(),
            cache_bytes: 64 << 20,
            threads: 2,
            member_timeout: MEMBER_TIMEOUT,
            schedule: Schedule::default(),
            restores_superblocks: false,
        }
    }
}

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
fn usable_stores(
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
fn note_silent(directories: &Directories, stores: &[StoreRef], executor: &Executor) {
    for store in stores.iter().filter(|store| executor.is_hanging(store)) {
        let path = PathBuf::from(store.label());
        directories.silent.note(&path, executor.timeout());
    }
}

/// Returns the members that are away and whose directories were not named.
fn left_out(transactions: &Transactions, directories: &Directories) -> Vec<MemberIndex> {
    let is_named = |path: &str| {
        let mut named = directories.present.iter().chain(&directories.absent);
        named.any(|named| named == Path::new(path))
    };
    let absentees = transactions.members().absentees().into_iter();
    let unnamed = absentees.filter(|member| !is_named(&member.path));
    unnamed.map(|member| member.index).collect()
}

/// A volume that is open for use.
pub(super) struct Volume {
    pub(super) transactions: Arc<Transactions>,
    pub(super) maintenance: Arc<Maintenance>,
    pub(super) fs: Arc<Fs>,
    /// The directories that could not be used, with reasons.
    pub(super) notes: Vec<Unusable>,
    scheduler: Option<Scheduler>,
}

impl Volume {
    /// Opens the volume that the directories belong to, background work included.
    ///
    /// # Errors
    ///
    /// As [`open_volume`], and if recovery fails.
    pub(super) fn open(
        directories: &Directories,
        options: &VolumeOptions,
        fs_options: FsOptions,
    ) -> Result<Self, Failure> {
        let mut volume = Self::open_at_rest(directories, options, fs_options)?;
        let locks = volume.fs.inode_locks();
        let left_out = left_out(&volume.transactions, directories);
        match Scheduler::start(&volume.maintenance, &locks, options.schedule, left_out) {
            Ok(started) => {
                volume.scheduler = Some(started);
                Ok(volume)
            }
            Err(error) => {
                let failure = Failure::environment(format!("cannot start a thread: {error}"));
                volume.close()?;
                Err(failure)
            }
        }
    }

    fn open_at_rest(
        directories: &Directories,
        options: &VolumeOptions,
        fs_options: FsOptions,
    ) -> Result<Self, Failure> {
        let (maintenance, notes) = open_volume(directories, options)?;
        let transactions = Arc::clone(maintenance.transactions());
        let fs = Fs::open(Arc::clone(&maintenance), fs_options).map_err(VolumeFailure::from)?;
        Ok(Self {
            maintenance,
            transactions,
            fs,
            notes,
            scheduler: None,
        })
    }

    /// Returns the orders to rebuild, if the volume may be written to.
    pub(super) fn orders(&self) -> Option<&Arc<RebuildOrders>> {
        self.scheduler.as_ref()?.orders()
    }

    /// Says how it is.
    ///
    /// # Errors
    ///
    /// As [`report`].
    pub(super) fn report(&self, mounted: bool) -> Result<StatusReport, VolumeFailure> {
        report(&self.fs, &self.maintenance, &self.notes, mounted)
    }

    /// Opens it to look at, writing nothing, and warns of directories that could not be used.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub(super) fn open_to_look(directories: &Directories) -> Result<Self, Failure> {
        let fs_options = FsOptions {
            read_only: true,
            ..FsOptions::default()
        };
        let volume = Self::open(directories, &VolumeOptions::looking(), fs_options)?;
        volume.notes.iter().for_each(warn);
        Ok(volume)
    }

    /// Opens it to change its records, without background work. Work that a crash cut off is finished first, and lost
    /// superblocks are recovered; nothing changes by itself then. Warns of directories that could not be used.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub(super) fn open_to_repair(directories: &Directories) -> Result<Self, Failure> {
        let options = VolumeOptions {
            access: Access::ReadWrite,
            restores_superblocks: true,
            ..VolumeOptions::looking()
        };
        let volume = Self::open_at_rest(directories, &options, FsOptions::default())?;
        volume.fs.wait_for_removal();
        volume.notes.iter().for_each(warn);
        Ok(volume)
    }

    /// Makes everything durable and releases the directories.
    ///
    /// # Errors
    ///
    /// If the last changes could not be made durable.
    pub(super) fn close(mut self) -> Result<(), VolumeFailure> {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop();
        }
        let files = self.fs.close().map_err(VolumeFailure::from);
        let storage = self.maintenance.close().map_err(VolumeFailure::from);
        files.and(storage)
    }
}

/// Says how an open volume is, counted and not remembered; `notes` say why directories were left out.
///
/// # Errors
///
/// If its records cannot be read.
pub(super) fn report(
    fs: &Fs,
    maintenance: &Maintenance,
    notes: &[Unusable],
    mounted: bool,
) -> Result<StatusReport, VolumeFailure> {
    let transactions = fs.transactions();
    let members = transactions.members();
    members.io().probe_hedged();
    let counted = maintenance
        .redundancy()
        .redundancy()
        .map_err(VolumeFailure::from)?;
    let redundancy: Vec<RedundancyReport> = counted.rows.iter().map(row_report).collect();
    let scrub = maintenance
        .scrubber()
        .scrub_status()
        .map_err(VolumeFailure::from)?;
    let mut blank = blank_report(members, notes, scrub.record.last_finished);
    let rebuilding = maintenance.rebuild().status().members();
    for member in &mut blank.members {
        if member.state == MemberState::Online && rebuilding.contains(&MemberIndex(member.index)) {
            member.state = MemberState::Rebuilding;
        }
    }
    let lost = files_in(fs, maintenance.redundancy(), &counted)?;
    let copies = transactions.index_copies();
    let index = IndexReport {
        copies_wanted: copies.wanted,
        members: copies.members.iter().map(|member| member.0).collect(),
    };
    let space = transactions.space();
    Ok(StatusReport {
        state: StatusReport::judge(&blank.members, &redundancy, Some(&index), &blank.geometry),
        mounted,
        read_only: mounted && members.access() == Access::ReadOnly,
        engine: transactions.engine_name().to_owned(),
        coding: Some(transactions.coding().into()),
        redundancy,
        index: Some(index),
        lost,
        scrub: scrub_report(&scrub),
        capacity: CapacityReport {
            bytes_usable: space.usable_total,
            bytes_used: space.usable_used,
        },
        rebuild: rebuild_report(&maintenance.rebuild().status().progress()),
        ..blank
    })
}

/// Returns a row of what was counted as it is shown.
pub(super) fn row_report(row: &RedundancyRow) -> RedundancyReport {
    RedundancyReport {
        losses_tolerated: i64::from(row.losses_tolerated),
        stripes: row.stripes,
        bytes: row.bytes,
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
    Ok(blank_report(&members, &notes, 0))
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

/// Makes a report of what the members alone tell; `scrubbed` is when they were last verified, in seconds since 1970.
pub(super) fn blank_report(members: &Members, notes: &[Unusable], scrubbed: u64) -> StatusReport {
    StatusReport {
        volume: members.shape().volume_id().to_string(),
        label: members.shape().label().to_owned(),
        state: VolumeState::Failed,
        mounted: false,
        read_only: false,
        elsewhere: None,
        geometry: GeometryReport {
            data: members.shape().geometry().data_shards(),
            parity: members.shape().geometry().parity_shards(),
            code: members.shape().code().to_string(),
        },
        engine: "none".to_owned(),
        coding: None,
        members: members
            .status()
            .into_iter()
            .map(|status| member_report(status, notes, scrubbed))
            .collect(),
        redundancy: Vec::new(),
        index: None,
        lost: LostFiles::default(),
        capacity: CapacityReport::default(),
        scrub: ScrubReport::default(),
        rebuild: RebuildReport::default(),
    }
}

/// Says how far a rebuild is.
#[expect(
    clippy::cast_precision_loss,
    reason = "a part of the whole is shown with few digits"
)]
pub(super) fn rebuild_report(progress: &RebuildProgress) -> RebuildReport {
    let left = progress.bytes_left + progress.bytes_waiting + progress.bytes_unreadable;
    let done = progress.bytes_before + progress.bytes_done;
    let whole = done + left;
    RebuildReport {
        state: match progress.state {
            maintenance::RebuildState::Idle => RebuildState::Idle,
            maintenance::RebuildState::Running => RebuildState::Running,
            maintenance::RebuildState::Finished => RebuildState::Finished,
            maintenance::RebuildState::Stopped => RebuildState::Stopped,
        },
        progress: if whole == 0 {
            1.0
        } else {
            done as f64 / whole as f64
        },
        bytes_left: left,
        bytes_done: done,
        bytes_waiting: progress.bytes_waiting,
        bytes_unreadable: progress.bytes_unreadable,
        seconds: progress.elapsed.as_secs(),
    }
}

/// Reports on a member; where its directory could not be used, `notes` say why. `scrubbed` is when it was
/// last verified, in seconds since 1970.
pub(super) fn member_report(
    status: membership::MemberStatus,
    notes: &[Unusable],
    scrubbed: u64,
) -> MemberReport {
    let known = notes.iter().find(|note| note.path == status.path);
    let reason = match (status.refusal, status.state, known) {
        (None, membership::MemberState::Missing, Some(note)) => Some(note.reason.clone()),
        (refusal, _, _) => refusal.or(status.reason),
    };
    MemberReport {
        index: status.index.0,
        id: status.id.to_string(),
        path: Some(status.path).filter(|path| !path.is_empty()),
        state: match status.state {
            membership::MemberState::Online if status.draining => MemberState::Removing,
            membership::MemberState::Online => MemberState::Online,
            membership::MemberState::Missing => MemberState::Missing,
            membership::MemberState::Faulted => MemberState::Faulted,
        },
        reason,
        bytes_used: status.bytes_used,
        bytes_free: status.bytes_free,
        suspect: status.wrong_at > Some(scrubbed),
        errors: ErrorCounts {
            read: status.errors.read,
            write: status.errors.write,
            checksum: status.errors.checksum,
        },
    }
}

/// Names the files that hold bytes that are lost.
pub(super) fn files_in(
    fs: &Fs,
    counter: &RedundancyCounter,
    redundancy: &Redundancy,
) -> Result<LostFiles, VolumeFailure> {
    if redundancy.unrecoverable.is_empty() {
        return Ok(LostFiles::default());
    }
    let inodes = counter
        .inodes_in(&redundancy.unrecoverable, MOST_LISTED)
        .map_err(VolumeFailure::from)?;
    let paths = fs
        .paths_of(&inodes, MOST_LISTED)
        .map_err(VolumeFailure::from)?;
    let shown = paths.iter().map(|path| String::from_utf8_lossy(path));
    Ok(LostFiles {
        paths: shown.map(Cow::into_owned).collect(),
        are_all: redundancy.lists_all_lost() && inodes.len().max(paths.len()) < MOST_LISTED,
    })
}
