//! Opening a volume from directories.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::{Failure, warn};
use crate::control::volume::Volume;
use crate::format::MemberIndex;
use crate::fs::{FsOptions, Kept, LostChanges};
use crate::maintenance::Schedule;
use crate::membership::Access;
use crate::transaction::{FullMembers, Transactions};

mod opening;

use opening::open_volume;

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
    /// The course of writes while members are full.
    pub(super) full_members: FullMembers,
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
            full_members: FullMembers::Stop,
            schedule: Schedule::default(),
            restores_superblocks: false,
        }
    }
}

fn no_thread(error: &io::Error) -> Failure {
    Failure::environment(format!("cannot start a thread: {error}"))
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

impl Volume {
    /// Opens the volume that the directories belong to, background work included.
    ///
    /// # Errors
    ///
    /// As [`open_volume`], and if recovery fails.
    pub(in crate::cli) fn open(
        directories: &Directories,
        options: &VolumeOptions,
        fs_options: FsOptions,
    ) -> Result<Self, Failure> {
        let mut volume = Self::open_at_rest(directories, options, fs_options)?;
        let left_out = left_out(&volume.transactions, directories);
        if let Err(error) = volume.start_work(options.schedule, left_out) {
            volume.close()?;
            return Err(no_thread(&error));
        }
        Ok(volume)
    }

    /// Opens the volume again that was lost beneath a mount, background work included. Callers keep their references, and
    /// learn of the changes that were `lost`. The members `left_out` stay out. If directories are in use, it is tried again
    /// only as long as the opening `is_wanted`.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub(in crate::cli) fn open_again(
        directories: &Directories,
        (options, is_wanted): (&VolumeOptions, &dyn Fn() -> bool),
        fs_options: FsOptions,
        (kept, lost): (&Kept, &LostChanges),
        left_out: Vec<MemberIndex>,
    ) -> Result<Self, Failure> {
        let (maintenance, notes) = open_volume(directories, options, is_wanted)?;
        let mut volume = Self::over_again(maintenance, notes, fs_options, kept, lost)?;
        if let Err(error) = volume.start_work(options.schedule, left_out) {
            volume.close()?;
            return Err(no_thread(&error));
        }
        Ok(volume)
    }

    fn open_at_rest(
        directories: &Directories,
        options: &VolumeOptions,
        fs_options: FsOptions,
    ) -> Result<Self, Failure> {
        let (maintenance, notes) = open_volume(directories, options, &|| true)?;
        Ok(Self::over(maintenance, notes, fs_options)?)
    }

    /// Opens it to look at, writing nothing, and warns of directories that could not be used.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub(in crate::cli) fn open_to_look(directories: &Directories) -> Result<Self, Failure> {
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
    pub(in crate::cli) fn open_to_repair(directories: &Directories) -> Result<Self, Failure> {
        let options = VolumeOptions {
            access: Access::ReadWrite,
            restores_superblocks: true,
            ..VolumeOptions::looking()
        };
        let volume = Self::open_at_rest(directories, &options, FsOptions::default())?;
        volume.fs.wait_for_removal();
        volume.fs.quotas().wait();
        volume.notes.iter().for_each(warn);
        Ok(volume)
    }
}
