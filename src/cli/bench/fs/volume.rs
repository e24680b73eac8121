//! The volume that the measured directory is on, and a directory below it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::MeasuredDirectory;
use crate::cli::client;
use crate::control::report::{MemberState, StatusReport};
use crate::fuse::Transport;
use crate::fuse::mountinfo::{self, MountEntry};

/// The volume of a directory, if it is on one.
#[derive(Debug)]
pub(super) enum MeasuredVolume {
    /// The volume is mounted here, and its daemon has reported on it.
    Known(Box<StatusReport>),
    /// There is none, or its daemon does not answer: a sentence.
    Unknown(String),
}

impl MeasuredVolume {
    /// Finds the volume of a directory, whose path is free of symlinks.
    pub(super) fn at(directory: &Path) -> Self {
        let Some(entry) = mount_of(directory).filter(MountEntry::is_ours) else {
            return Self::Unknown(format!(
                "{} is on no volume of CauchyFS; `--below DIR2` names a directory to compare it with",
                directory.display()
            ));
        };
        match client::live_report(&entry.mountpoint, &entry) {
            Ok(report) => Self::Known(Box::new(report)),
            Err(failure) => Self::Unknown(failure.message),
        }
    }

    /// Returns the way on which requests come.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self {
            Self::Known(report) => report.transport,
            Self::Unknown(_) => None,
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
            Self::Unknown(reason) => return Err(reason.clone()),
        };
        let mut online = report
            .members
            .iter()
            .filter(|member| member.state == MemberState::Online);
        let found = online.find_map(|member| {
            let directory = beside(Path::new(member.path.as_ref()?))?;
            Some(MeasuredDirectory {
                directory,
                transport: None,
                member: Some(member.index),
            })
        });
        found.ok_or_else(|| {
            "no directory of a member can be seen from here; `--below DIR2` names one".to_owned()
        })
    }
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
}
