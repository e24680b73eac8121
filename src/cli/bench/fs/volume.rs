//! The volume that the measured directory is on, and directories below it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{MeasuredDirectory, failure};
use crate::bench::fs::{Load, check_room};
use crate::cli::client;
use crate::cli::failure::Failure;
use crate::control::report::{MemberReport, MemberState, StatusReport};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::fuse::{PlainShape, Transport};
use crate::membership::CreateOptions;

/// The volume of a directory, if it is on one.
#[derive(Debug)]
pub(super) enum MeasuredVolume {
    /// The volume is mounted here, and its daemon has reported on it.
    Known(Box<StatusReport>),
    /// There is none: a sentence.
    None(String),
    /// Its daemon does not answer.
    Silent(Failure),
}

/// The directories beside members that plain files come into, and the numbers of the volume.
#[derive(Debug)]
pub(super) struct PlainPlaces {
    /// One for each shard of a stripe.
    pub(super) directories: Vec<PathBuf>,
    pub(super) shape: PlainShape,
}

impl MeasuredVolume {
    /// Finds the volume of a directory, whose path is free of symlinks.
    pub(super) fn at(directory: &Path) -> Self {
        let Some(entry) = mount_of(directory).filter(MountEntry::is_ours) else {
            let shown = directory.display();
            return Self::None(format!("{shown} is on no volume of CauchyFS"));
        };
        match client::live_report(&entry.mountpoint, &entry) {
            Ok(report) => Self::Known(Box::new(report)),
            Err(failure) => Self::Silent(failure),
        }
    }

    /// Returns the way on which requests come.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self {
            Self::Known(report) => report.transport,
            Self::None(_) | Self::Silent(_) => None,
        }
    }

    /// Returns a directory on the filesystem of the first member that is online.
    ///
    /// # Errors
    ///
    /// A sentence, if there is none.
    pub(super) fn place_below(&self) -> Result<MeasuredDirectory, String> {
        let report = match self {
            Self::Known(report) => report,
            Self::None(reason) => {
                return Err(format!(
                    "{reason}; `--below DIR2` names a directory to compare it with"
                ));
            }
            Self::Silent(failure) => return Err(failure.message.clone()),
        };
        let found = places(report).next().map(|(member, directory)| {
            let member = Some(member.index);
            MeasuredDirectory {
                directory,
                transport: None,
                member,
            }
        });
        found.ok_or_else(|| {
            "no directory of a member can be seen from here; `--below DIR2` names one".to_owned()
        })
    }

    /// Returns directories beside as many members as a stripe has shards. Their filesystems have room for plain files.
    ///
    /// # Errors
    ///
    /// If there are too few of them, or one has too little room.
    pub(super) fn plain_places(&self, load: &Load) -> Result<PlainPlaces, Failure> {
        let report = match self {
            Self::Known(report) => report,
            Self::None(reason) => {
                return Err(Failure::usage(format!(
                    "{reason}, so `--plain` has no members to write to"
                ))
                .advise("name a directory of a mounted volume, or leave `--plain` out"));
            }
            Self::Silent(failure) => return Err(failure.clone()),
        };
        let width = report.geometry.width();
        let places = places(report).map(|(_, directory)| directory);
        let directories: Vec<PathBuf> = places.take(width).collect();
        if directories.len() < width {
            let found = directories.len();
            return Err(Failure::environment(format!(
                "`--plain` needs directories of {width} members that are online, and {found} can be seen from here"
            ))
            .advise("run it where the members are mounted once they are online, or leave `--plain` out"));
        }
        let shape = PlainShape {
            data: report.geometry.data,
            parity: report.geometry.parity,
            unit_bytes: report
                .geometry
                .stripe_unit_bytes
                .unwrap_or(CreateOptions::UNIT_BYTES),
            bytes: load.bytes_at_once(),
        };
        check_room(&directories, shape.file_bytes()).map_err(failure)?;
        Ok(PlainPlaces { directories, shape })
    }
}

/// Returns the members that are online, each with the directory beside it, if that can be seen from here.
fn places(report: &StatusReport) -> impl Iterator<Item = (&MemberReport, PathBuf)> {
    let members = report.members.iter();
    let online = members.filter(|member| member.state == MemberState::Online);
    online.filter_map(|member| {
        let directory = beside(Path::new(member.path.as_ref()?))?;
        Some((member, directory))
    })
}

/// Returns the directory above a member, so that nothing comes into the member itself. If the member is the root of its
/// filesystem, only the member is on it. Then the directory is the member's, which takes no harm from another name.
fn beside(member: &Path) -> Option<PathBuf> {
    let member = fs::canonicalize(member).ok()?;
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    let above = member.parent()?;
    if device(above)? == device(&member)? {
        Some(above.to_owned())
    } else {
        Some(member)
    }
}

/// Returns the mount that a directory is on, by its path, which must be free of symlinks.
pub(super) fn mount_of(directory: &Path) -> Option<MountEntry> {
    let mounts = mountinfo::mounts().ok()?.into_iter();
    mounts
        .filter(|entry| directory.starts_with(&entry.mountpoint))
        // Of several at one place, the last lies on top.
        .max_by_key(|entry| entry.mountpoint.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::report_without;

    #[test]
    fn a_directory_is_on_the_mount_with_the_longest_path_to_it() {
        let proc = mount_of(Path::new("/proc/self")).unwrap();
        assert_eq!(proc.fs_type, "proc");
        let root = mount_of(Path::new("/")).unwrap();
        assert_eq!(root.mountpoint, Path::new("/"));
    }

    #[test]
    fn the_directory_above_a_member_is_taken_if_it_is_on_the_same_filesystem() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        fs::create_dir(home.join("d0")).unwrap();
        assert_eq!(beside(&home.join("d0")), Some(home.clone()));
        assert_eq!(beside(Path::new("/proc")), Some(PathBuf::from("/proc")));
        assert_eq!(beside(&home.join("gone")), None);
    }

    #[test]
    fn a_directory_on_no_volume_has_a_sentence_instead_of_a_place_below() {
        let volume = MeasuredVolume::at(Path::new("/proc"));
        let reason = volume.place_below().unwrap_err();
        assert!(reason.starts_with("/proc is on no volume"), "{reason}");
        assert_eq!(volume.transport(), None);
    }

    fn load(size: u64) -> Load {
        Load {
            size,
            seconds: std::time::Duration::ZERO,
            jobs: 1,
        }
    }

    /// Returns a 4+2 volume over directories in `home`, the last of which do not exist.
    fn volume(home: &Path, absent: usize) -> MeasuredVolume {
        let mut report = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        report
            .members
            .iter_mut()
            .rev()
            .take(absent)
            .for_each(|member| {
                member.path = Some("/nonexistent/d".to_owned());
            });
        let present = report.members.len() - absent;
        for (number, member) in report.members[..present].iter_mut().enumerate() {
            let directory = home.join(format!("parent{number}/d"));
            fs::create_dir_all(&directory).unwrap();
            member.path = Some(directory.to_str().unwrap().to_owned());
        }
        MeasuredVolume::Known(Box::new(report))
    }

    #[test]
    fn plain_files_have_a_directory_beside_each_member_and_the_numbers_of_the_volume() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let places = volume(&home, 0).plain_places(&load(1 << 20)).unwrap();
        let expected: Vec<PathBuf> = (0..6).map(|n| home.join(format!("parent{n}"))).collect();
        assert_eq!(places.directories, expected);
        let shape = PlainShape {
            data: 4,
            parity: 2,
            unit_bytes: 1 << 20,
            bytes: 2 << 20,
        };
        assert_eq!(places.shape, shape);
    }

    #[test]
    fn plain_files_without_members_or_room_for_them_are_refused_with_advice() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let none = MeasuredVolume::at(Path::new("/proc"));
        let refused = none.plain_places(&load(1)).unwrap_err();
        assert!(
            refused.message.starts_with("/proc is on no volume"),
            "{refused:?}"
        );
        assert!(refused.advice.is_some());
        let refused = volume(&home, 1).plain_places(&load(1)).unwrap_err();
        let expected =
            "`--plain` needs directories of 6 members that are online, and 5 can be seen from here";
        assert_eq!(refused.message, expected);
        let refused = volume(&home, 0).plain_places(&load(1 << 60)).unwrap_err();
        assert!(refused.message.contains("and the jobs need"), "{refused:?}");
    }
}
