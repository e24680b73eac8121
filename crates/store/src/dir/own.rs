//! Telling the files of a directory from others that lie under their names.
//!
//! A name inside a directory may lead to a file that is not the directory's own: a hard link to a file elsewhere, a
//! symbolic link, a fifo, a device, a file that was mounted there, or one of another user. None of these is read,
//! written or truncated. The rule compares mounts and not device numbers, because overlayfs and btrfs give files other
//! device numbers than the directory that holds them.
//!
//! A network filesystem may give every file to one user of the server's choice, who is not the owner of the directory.
//! The rule therefore also accepts the owner of a file that every directory has, and the owner that a file of this process's own gets.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::{self as sys, AtFlags, FileType, Mode, StatxFlags};
use rustix::io::Errno;

use super::calls::retry;

/// Mode bits that let others than the owner write. In a file with an access control list, the bits of the group are
/// its mask, which limits every entry of the list.
const WRITABLE_BY_OTHERS: Mode = Mode::from_raw_mode(0o022);

/// Users whose directories a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any user. The files must belong to the owner of the directory, to the process's user, or to root. Otherwise, to
    /// that of a file which tells it ([`FileRoles::owners`](super::FileRoles::owners)).
    Anyone,
    /// The process's user alone: everything must belong to that user, and no other may write to it.
    OwnUser,
}

/// Attributes that tell whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: FileType,
    pub(super) mode: Mode,
    pub(super) links: u32,
    pub(super) owner: u32,
    pub(super) len: u64,
    pub(super) blocks: u64,
    /// Device and inode number.
    pub(super) identity: (u64, u64),
    /// The mount through which it is seen, where the kernel tells it.
    pub(super) mount: Option<u64>,
    /// Seconds and nanoseconds of its making, where the filesystem tells them.
    pub(super) born: Option<(i64, u32)>,
}

impl Seen {
    /// Looks at an open file.
    pub(super) fn of(file: &impl AsFd) -> Result<Self, Errno> {
        Self::at(file, "", AtFlags::EMPTY_PATH)
    }

    /// Looks at a name, and follows no symbolic link.
    pub(super) fn named(
        directory: &impl AsFd,
        base: impl rustix::path::Arg + Copy,
    ) -> Result<Self, Errno> {
        Self::at(directory, base, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn at(
        directory: &impl AsFd,
        base: impl rustix::path::Arg + Copy,
        flags: AtFlags,
    ) -> Result<Self, Errno> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::BTIME;
        match retry(|| sys::statx(directory, base, flags, wanted)) {
            Ok(found) => Ok(Self {
                kind: FileType::from_raw_mode(found.stx_mode.into()),
                mode: Mode::from_raw_mode(found.stx_mode.into()),
                links: found.stx_nlink,
                owner: found.stx_uid,
                len: found.stx_size,
                blocks: found.stx_blocks,
                identity: (
                    sys::makedev(found.stx_dev_major, found.stx_dev_minor),
                    found.stx_ino,
                ),
                mount: StatxFlags::from_bits_retain(found.stx_mask)
                    .contains(StatxFlags::MNT_ID)
                    .then_some(found.stx_mnt_id),
                born: StatxFlags::from_bits_retain(found.stx_mask)
                    .contains(StatxFlags::BTIME)
                    .then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
            }),
            // Kernels before 4.11, and some sandboxes.
            Err(Errno::NOSYS) => retry(|| sys::statat(directory, base, flags)).map(Self::from_stat),
            Err(errno) => Err(errno),
        }
    }

    fn from_stat(found: sys::Stat) -> Self {
        Self {
            kind: FileType::from_raw_mode(found.st_mode),
            mode: Mode::from_raw_mode(found.st_mode),
            links: u32::try_from(found.st_nlink).unwrap_or(u32::MAX),
            owner: found.st_uid,
            len: u64::try_from(found.st_size).unwrap_or(0),
            blocks: u64::try_from(found.st_blocks).unwrap_or(0),
            identity: (found.st_dev, found.st_ino),
            mount: None,
            born: None,
        }
    }

    /// Says whether others than the owner may write to it. The mode of a symbolic link means nothing.
    pub(super) fn is_writable_by_others(&self) -> bool {
        self.kind != FileType::Symlink && self.mode.intersects(WRITABLE_BY_OTHERS)
    }

    /// Says whether both are seen through one mount. Kernels before 5.8 do not tell, and every file counts as on the
    /// same one there, because device numbers differ inside one overlayfs or btrfs.
    fn is_on_mount_of(&self, other: &Self) -> bool {
        match (self.mount, other.mount) {
            (Some(mount), Some(other)) => mount == other,
            _ => true,
        }
    }
}

/// The reason why a file or subdirectory is not the directory's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// It is of another kind than it has to be.
    Kind { needed: FileType },
    /// It has more than one name.
    Links(u32),
    /// Something is mounted there.
    Mounted,
    /// It belongs to a user who has nothing to do with the directory.
    Owner(u32),
    /// Others than its owner may write to it.
    Writable(Mode),
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { needed } if *needed == FileType::Directory => {
                f.write_str("it is not a directory, and has to be one")
            }
            Self::Kind { .. } => f.write_str("it is not a regular file, and has to be one"),
            Self::Links(links) => write!(
                f,
                "it is a hard link with {links} names, and a member's file has one name"
            ),
            Self::Mounted => f.write_str("another filesystem or file is mounted there"),
            Self::Owner(owner) => write!(
                f,
                "it belongs to uid {owner}, and has to belong to the user who has the directory"
            ),
            Self::Writable(mode) => write!(
                f,
                "others than its owner may write to it (mode {:04o})",
                mode.bits()
            ),
        }
    }
}

impl std::error::Error for Oddity {}

/// Rule by which a directory knows its own files.
#[derive(Debug)]
pub(super) struct Rule {
    top: Seen,
    user: u32,
    trust: Trust,
    /// The owner of the first of [`FileRoles::owners`](super::FileRoles::owners) when the directory was opened.
    owner_of_files: Option<u32>,
    /// The owner that the filesystem gives to new files, if the rest of the rule would refuse it.
    owner_of_new_files: OnceLock<u32>,
}

impl Rule {
    /// Makes the rule for a directory that was opened. The first file of `owners` that is its own tells the owner of all
    /// files; `named` looks at a name.
    pub(super) fn new(
        top: Seen,
        trust: Trust,
        owners: &[&str],
        named: impl Fn(&str) -> Result<Seen, Errno>,
    ) -> Self {
        let mut rule = Self {
            top,
            user: rustix::process::geteuid().as_raw(),
            trust,
            owner_of_files: None,
            owner_of_new_files: OnceLock::new(),
        };
        if trust == Trust::Anyone {
            let found = owners.iter().filter_map(|name| named(name).ok());
            let mut found = found.filter(|seen| rule.check_file_but_owner(seen).is_ok());
            rule.owner_of_files = found.next().map(|seen| seen.owner);
        }
        rule
    }

    /// Accepts from now on the owner of a file that this process has just made.
    pub(super) fn accept_owner_of_new(&self, file: &Seen) {
        if self.trust == Trust::Anyone && !self.may_own(file.owner) {
            self.owner_of_new_files.get_or_init(|| file.owner);
        }
    }

    /// Returns the directory as it was when it was opened.
    pub(super) fn top(&self) -> &Seen {
        &self.top
    }

    /// Says whether the directory belongs to the process's user.
    pub(super) fn is_own_users(&self) -> bool {
        self.top.owner == self.user
    }

    /// Returns which other users are to be trusted.
    pub(super) fn trust(&self) -> Trust {
        self.trust
    }

    /// Returns whether a user may own files of the directory.
    pub(super) fn may_own(&self, user: u32) -> bool {
        match self.trust {
            Trust::Anyone => self.may_use(user),
            Trust::OwnUser => user == self.user,
        }
    }

    /// Returns whether a user may run processes that work on the directory.
    pub(super) fn may_use(&self, user: u32) -> bool {
        let files = [self.owner_of_files, self.owner_of_new_files.get().copied()];
        [self.top.owner, self.user, 0].contains(&user) || files.contains(&Some(user))
    }

    /// Checks a file under one of the directory's names.
    pub(super) fn check_file(&self, file: &Seen) -> Result<(), Oddity> {
        self.check_file_but_owner(file)?;
        self.check_owner(file)
    }

    /// Checks a subdirectory.
    pub(super) fn check_directory(&self, directory: &Seen) -> Result<(), Oddity> {
        self.check_place(directory, FileType::Directory)?;
        self.check_owner(directory)
    }

    fn check_file_but_owner(&self, file: &Seen) -> Result<(), Oddity> {
        self.check_place(file, FileType::RegularFile)?;
        if file.links > 1 {
            return Err(Oddity::Links(file.links));
        }
        Ok(())
    }

    fn check_place(&self, seen: &Seen, needed: FileType) -> Result<(), Oddity> {
        if seen.kind != needed {
            return Err(Oddity::Kind { needed });
        }
        if !seen.is_on_mount_of(&self.top) {
            return Err(Oddity::Mounted);
        }
        Ok(())
    }

    fn check_owner(&self, seen: &Seen) -> Result<(), Oddity> {
        if !self.may_own(seen.owner) {
            return Err(Oddity::Owner(seen.owner));
        }
        if self.trust == Trust::OwnUser && seen.is_writable_by_others() {
            return Err(Oddity::Writable(seen.mode));
        }
        Ok(())
    }
}

/// The reason why an operation on a name failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The system refused it.
    Call(Errno),
    /// The file under this name is not the directory's own.
    Foreign(Oddity),
    /// The subdirectory is not the directory's own.
    ForeignDirectory(Oddity),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}
