//! Values of the kernel's protocol, and ours.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, RenameFlags, Request};

use crate::format::Ino;
use crate::format::record::{FileKind, Timestamp};
use crate::fs::{Attr, Caller, FsError, RenameMode, TimeOrNow, Whence, XattrMode};

/// Returns the user and groups of the process that asks.
pub(super) fn caller(request: &Request, umask: u32) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
        umask,
        groups: supplementary_groups,
    }
}

/// Reads a process's supplementary groups; none if it is gone.
fn supplementary_groups(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Groups:"))?;
            Some(
                line.split_whitespace()
                    .filter_map(|id| id.parse().ok())
                    .collect(),
            )
        })
        .unwrap_or_default()
}

pub(super) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

pub(super) fn name(name: &OsStr) -> &[u8] {
    name.as_bytes()
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks_512,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.permissions,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_size,
        flags: 0,
    }
}

/// The attributes of nothing: an entry with inode 0 tells the kernel to remember that a name does
/// not exist.
pub(super) fn absent() -> FileAttr {
    bare(Ino(0), FileKind::Regular)
}

/// Attributes that say what an inode is and nothing more.
pub(super) fn bare(ino: Ino, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Converts to the standard library's time; what it cannot hold becomes the epoch.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds >= 0 {
        UNIX_EPOCH.checked_add(seconds)
    } else {
        UNIX_EPOCH.checked_sub(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(UNIX_EPOCH)
}

/// Converts a time that fuser decoded from a request.
///
/// For times before the epoch fuser 0.18 takes the nanoseconds away instead of adding them: `-2 s +
/// 800 ms` arrives as 2.8 s before the epoch. Its two numbers are intact, so they are taken apart.
pub(super) fn requested_time(time: SystemTime) -> Timestamp {
    let (sign, distance) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (1, after),
        Err(before) => (-1, before.duration()),
    };
    Timestamp {
        seconds: sign * i64::try_from(distance.as_secs()).unwrap_or(i64::MAX),
        nanos: distance.subsec_nanos(),
    }
}

pub(super) fn time_or_now(time: fuser::TimeOrNow) -> TimeOrNow {
    match time {
        fuser::TimeOrNow::Now => TimeOrNow::Now,
        fuser::TimeOrNow::SpecificTime(time) => TimeOrNow::At(requested_time(time)),
    }
}

/// # Errors
///
/// `Invalid` for any combination but the two that POSIX and Linux give a meaning here.
pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, FsError> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(FsError::Invalid)
    }
}

/// # Errors
///
/// `Invalid` unless it is one of the two flags of setxattr(2), or none.
pub(super) fn xattr_mode(flags: i32) -> Result<XattrMode, FsError> {
    match flags {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid),
    }
}

/// # Errors
///
/// `Invalid` for the positions that the kernel works out by itself.
pub(super) fn whence(whence: i32) -> Result<Whence, FsError> {
    match whence {
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(FsError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_survive_the_way_out() {
        for (seconds, nanos) in [
            (0, 0),
            (1, 999_999_999),
            (-1, 0),
            (-2, 800_000_000),
            (1 << 33, 5),
        ] {
            let time = system_time(Timestamp { seconds, nanos });
            let expected = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            let signed = match time.duration_since(UNIX_EPOCH) {
                Ok(after) => i128::try_from(after.as_nanos()).unwrap(),
                Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap(),
            };
            assert_eq!(signed, expected, "{seconds} s {nanos} ns");
        }
    }

    #[test]
    fn a_time_as_fuser_decodes_it_gives_its_two_numbers_back() {
        // As fuser::time::system_time_from_time does it.
        let decoded = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(
            requested_time(decoded),
            Timestamp {
                seconds: -2,
                nanos: 800_000_000
            }
        );
        let decoded = UNIX_EPOCH + Duration::new(2, 1);
        assert_eq!(
            requested_time(decoded),
            Timestamp {
                seconds: 2,
                nanos: 1
            }
        );
    }

    #[test]
    fn this_process_has_the_groups_that_the_kernel_says() {
        let mine = supplementary_groups(std::process::id());
        let kernel = rustix::process::getgroups().unwrap();
        assert_eq!(mine.len(), kernel.len());
        assert_eq!(supplementary_groups(u32::MAX), Vec::<u32>::new());
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        let both = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        assert!(matches!(rename_mode(both), Err(FsError::Invalid)));
        assert!(matches!(
            rename_mode(RenameFlags::RENAME_WHITEOUT),
            Err(FsError::Invalid)
        ));
        assert!(matches!(xattr_mode(3), Err(FsError::Invalid)));
        assert!(matches!(whence(libc::SEEK_SET), Err(FsError::Invalid)));
    }
}
