//! Arguments and results of the filesystem's operations.

use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::{FileKind, Inline, Inode, Timestamp};

use super::error::FsError;
use super::interlock::Interlock;

/// Looks up the supplementary groups of a process; called only where they matter.
pub type GroupLookup = fn(pid: u32) -> Vec<u32>;

/// The user and groups of the process that asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User that new inodes belong to.
    pub uid: u32,
    /// Group that new inodes belong to, unless the directory hands down its own.
    pub gid: u32,
    /// Process.
    pub pid: u32,
    /// Permission bits that new inodes do not get, unless the directory has a default ACL.
    pub umask: u32,
    /// Supplementary groups of `pid`.
    pub groups: GroupLookup,
}

impl Caller {
    /// The superuser, without a umask.
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        pid: 0,
        umask: 0,
        groups: |_| Vec::new(),
    };

    /// Returns whether the caller is the superuser.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns whether the caller may keep the setgid bit on an inode of `gid`.
    pub(super) fn may_set_gid_of(&self, gid: u32) -> bool {
        self.is_root() || self.gid == gid || (self.groups)(self.pid).contains(&gid)
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// The kind of the inode.
    pub kind: FileKind,
    /// Permission bits, setuid, setgid and sticky.
    pub permissions: u16,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub rdev: u32,
    /// Size in bytes; for a directory the number of its entries.
    pub size: u64,
    /// Storage in units of 512 bytes, holes left out.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Size of reads and writes that suits.
    pub block_size: u32,
}

impl Attr {
    pub(super) fn new(ino: Ino, inode: &Inode) -> Self {
        let in_record = match &inode.inline {
            Inline::Data(data) => data.len() as u64,
            _ => 0,
        };
        let written = inode.allocated_bytes.saturating_sub(inode.unwritten_bytes);
        let unwritten = inode.unwritten_bytes;
        let blocks = written.min(inode.size).saturating_add(unwritten);
        Self {
            ino,
            kind: inode.kind,
            permissions: inode.permissions,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            // Data behind the end of a file that is being cut does not belong to the file any more. Unwritten extents
            // may lie behind the end for good.
            blocks_512: blocks.saturating_add(in_record).div_ceil(512),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            block_size: super::BLOCK_BYTES,
        }
    }
}

/// A point in time that a caller sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrNow {
    /// The time when the call is carried out.
    Now,
    /// This one.
    At(Timestamp),
}

/// The changes for [`super::Attributes::set`]; a field that is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permission bits, setuid, setgid and sticky. An access ACL follows them.
    pub permissions: Option<u16>,
    /// Owner. On anything but a directory this clears setuid and setgid.
    pub uid: Option<u32>,
    /// Group. On anything but a directory this clears setuid and setgid.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeOrNow>,
    /// Last change of content.
    pub mtime: Option<TimeOrNow>,
    /// Last change of the inode, as a page cache recorded it.
    pub ctime: Option<Timestamp>,
    /// Clear setuid and setgid as a write of the caller would.
    pub kill_suid_sgid: bool,
    /// The open file through which it is asked, if any.
    pub handle: Option<Handle>,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// A file or directory that [`super::Fs`] opened under this number, until the caller closes it.
    Numbered(u64),
    /// A regular file or a directory that the caller opened by itself. A look-up of the caller holds the inode, and there
    /// is nothing to close.
    ByCaller {
        /// The inode.
        ino: Ino,
        /// The flags with which the caller opened it, as far as it tells.
        flags: OpenFlags,
    },
}

/// The flags with which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one flag of open(2), independent of the others"
)]
pub struct OpenFlags {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub append: bool,
    /// The file is cut to nothing (`O_TRUNC`).
    pub truncate: bool,
    /// The name must be new (`O_EXCL`); with a temporary file: it never gets a name.
    pub exclusive: bool,
    /// A write returns once it is durable (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
    /// The page cache is bypassed (`O_DIRECT`).
    pub direct: bool,
    /// Reading leaves the time of last access (`O_NOATIME`).
    pub no_atime: bool,
    /// Only a directory will do (`O_DIRECTORY`).
    pub directory: bool,
}

impl OpenFlags {
    /// Reads the flags of `open(2)`.
    #[must_use]
    pub fn from_raw(flags: i32) -> Self {
        let access = flags & libc::O_ACCMODE;
        let has = |flag: i32| flags & flag == flag;
        Self {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            append: has(libc::O_APPEND),
            truncate: has(libc::O_TRUNC),
            exclusive: has(libc::O_EXCL),
            // O_SYNC contains O_DSYNC.
            sync: has(libc::O_DSYNC),
            direct: has(libc::O_DIRECT),
            no_atime: has(libc::O_NOATIME),
            directory: has(libc::O_DIRECTORY),
        }
    }

    /// For reading only.
    #[must_use]
    pub fn read_only() -> Self {
        Self::from_raw(libc::O_RDONLY)
    }

    /// For reading and writing.
    #[must_use]
    pub fn read_write() -> Self {
        Self::from_raw(libc::O_RDWR)
    }
}

/// The special properties of a write.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a property of its own, independent of the others"
)]
pub struct WriteFlags {
    /// It comes from a page cache that keeps size and times itself: the caller, the handle's flags
    /// and the clock mean nothing.
    pub from_page_cache: bool,
    /// It comes from a program with `O_DIRECT`, past any page cache: it writes its own bytes, and none around them.
    pub is_direct: bool,
    /// The caller, if it has no right to keep setuid and setgid by a change: the write clears them.
    pub unprivileged: Option<Caller>,
    /// Fail for lack of space at once, rather than make room first, or clear away what is left of a file
    /// that was longer: both take time.
    pub at_once: bool,
    /// A write that fails together with its volume is done again once the volume is back, so that its bytes are not lost.
    pub tries_again: bool,
}

/// The treatment of an existing file at the new name of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces what has it.
    Replace,
    /// Fails if something has it (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two (`RENAME_EXCHANGE`).
    Exchange,
    /// Replaces what has it, and leaves a whiteout at the old name (`RENAME_WHITEOUT`).
    Whiteout,
    /// Fails if something has it, and otherwise leaves a whiteout at the old name (`RENAME_WHITEOUT` with
    /// `RENAME_NOREPLACE`).
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Returns whether the old name then stands for a whiteout: the character device 0:0, by which overlayfs marks a
    /// name of a lower layer as deleted.
    #[must_use]
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// The condition on the existence of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Set,
    /// It must be new (`XATTR_CREATE`).
    Create,
    /// It must be there (`XATTR_REPLACE`).
    Replace,
}

/// The target of [`super::FileReader::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that is stored (`SEEK_DATA`).
    Data,
    /// The next byte that is not, or the end of the file (`SEEK_HOLE`).
    Hole,
}

/// The effect of [`super::FileWriter::fallocate`] on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Makes sure that it can be written; the file grows if the range ends behind it.
    Allocate,
    /// Makes sure that it can be written.
    AllocateKeepSize,
    /// Frees its storage; it reads as zeros.
    PunchHole,
    /// Makes it read as zeros; the file grows if the range ends behind it.
    ZeroRange,
    /// Makes it read as zeros.
    ZeroRangeKeepSize,
}

impl Allocation {
    /// Reads the mode of `fallocate(2)`.
    ///
    /// # Errors
    ///
    /// [`FsError::Unsupported`] for a mode that no variant stands for.
    pub fn from_raw(mode: i32) -> Result<Self, FsError> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        match mode {
            0 => Ok(Self::Allocate),
            KEEP => Ok(Self::AllocateKeepSize),
            PUNCH => Ok(Self::PunchHole),
            ZERO => Ok(Self::ZeroRange),
            ZERO_KEEP => Ok(Self::ZeroRangeKeepSize),
            _ => Err(FsError::Unsupported),
        }
    }
}

/// An entry of a directory, as [`super::Directories::read`] hands it out.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: FileKind,
    /// Offset at which to go on behind it.
    pub next: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The inode's attributes, if they were asked for.
    pub attr: Option<Attr>,
}

/// The total and free space of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceReport {
    /// Unit of the numbers of blocks, in bytes.
    pub block_size: u32,
    /// Blocks of data that the volume holds when full.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that an ordinary user can have.
    pub blocks_available: u64,
    /// Inodes there can be beside those there are, which are not counted.
    pub files: u64,
    /// Inodes that can still be made: an estimate, since only space limits them.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// The times at which reading changes the time of last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// If it is not newer than the last change, or a day old.
    #[default]
    Relatime,
    /// Never.
    NoAtime,
    /// Always.
    Strict,
}

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The options with which a filesystem is opened. By default it is opened for reading and writing, with relatime and
/// the system's clock; a new volume belongs to this process's user.
#[derive(Clone)]
pub struct FsOptions {
    /// The times at which reading changes the time of last access.
    pub atime: AtimePolicy,
    /// User and group that the root directory of a new volume belongs to.
    pub root_owner: (u32, u32),
    /// Refuse every change.
    pub read_only: bool,
    /// Have listings leave out each entry that a look-up of its name does not find. This costs a look-up an entry. It
    /// serves volumes that others have made: a listing could have one name twice.
    pub confirms_listings: bool,
    /// The source of times.
    pub clock: Clock,
    /// The limit on files that are removed within an hour, if there is one.
    pub interlock: Option<Arc<Interlock>>,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            atime: AtimePolicy::default(),
            root_owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            read_only: false,
            confirms_listings: true,
            clock: Arc::new(kernel_time),
            interlock: None,
        }
    }
}

/// The clock that the kernel stamps its own files and the writes in its page cache with. A finer one
/// would run ahead of it by a tick, and files would seem older than what they were made from.
fn kernel_time() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanos: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}
