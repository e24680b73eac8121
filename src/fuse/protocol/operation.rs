//! Operations that the kernel requests.

use super::handle::handle;
use super::kind::OperationKind;
use super::{Fields, Malformed, opcode};
use crate::format::Ino;
use crate::format::record::Timestamp;
use crate::fs::{Handle, TimeOrNow};

/// The bits of a SETATTR that say which of its fields count.
mod field {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const CTIME: u32 = 1 << 10;
}

/// The bit of a GETATTR or STATX that says that it comes with a handle.
const WITH_HANDLE: u32 = 1 << 0;

/// The bytes of an inode and the number of its look-ups to forget.
const FORGET_PAIR: usize = 16;

/// An operation and its arguments, which lie where the request does. Fields have the names that system calls give them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::fuse) enum Operation<'a> {
    /// Look up a name in the directory of the header.
    Lookup { name: &'a [u8] },
    /// Forget look-ups of the inode of the header. There is no answer.
    Forget { lookups: u64 },
    /// Forget look-ups of many inodes. There is no answer.
    BatchForget(Forgets<'a>),
    /// Return attributes, for an open file or by number.
    GetAttr { handle: Option<Handle> },
    /// Return attributes with the time of birth, for an open file or by number.
    Statx { handle: Option<Handle> },
    /// Change attributes.
    SetAttr(RequestedAttributes),
    /// Return the target of a symlink.
    ReadLink,
    /// Make a symlink.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Make a file, device node, pipe or socket.
    MkNod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    /// Make a directory.
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    /// Remove a name of anything but a directory.
    Unlink { name: &'a [u8] },
    /// Remove a directory.
    RmDir { name: &'a [u8] },
    /// Move a name.
    Rename {
        name: &'a [u8],
        new_parent: Ino,
        new_name: &'a [u8],
        flags: u32,
    },
    /// Give the inode `source` another name, in the directory of the header.
    Link { source: Ino, name: &'a [u8] },
    /// Open a file.
    Open { flags: i32 },
    /// Make and open a file.
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    /// Make and open a file without a name, in the directory of the header.
    Tmpfile { flags: i32, mode: u32, umask: u32 },
    /// Read from a file.
    Read {
        handle: Handle,
        offset: u64,
        size: u32,
    },
    /// Write to a file.
    Write {
        handle: Handle,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        open_flags: i32,
    },
    /// Return the total and free space.
    StatFs,
    /// Note that a descriptor of a file is closed.
    Flush,
    /// Close a file.
    Release { handle: Handle },
    /// Make a file durable, or its data alone.
    Fsync,
    /// Set an extended attribute.
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    /// Return an extended attribute, or its length if there is no room.
    GetXattr { name: &'a [u8], room: u32 },
    /// Return the names of extended attributes, or their length if there is no room.
    ListXattr { room: u32 },
    /// Remove an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// Open a directory.
    OpenDir,
    /// List a directory.
    ReadDir {
        handle: Handle,
        offset: u64,
        room: u32,
    },
    /// List a directory, with attributes.
    ReadDirPlus {
        handle: Handle,
        offset: u64,
        room: u32,
    },
    /// Close a directory.
    ReleaseDir { handle: Handle },
    /// Make a directory durable.
    FsyncDir,
    /// End the wait of the request with this number. There is no answer.
    Interrupt { unique: u64 },
    /// Control a device.
    Ioctl,
    /// Reserve or free space of a file.
    Fallocate {
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// Find data or a hole.
    LSeek {
        handle: Handle,
        offset: u64,
        whence: i32,
    },
    /// Copy from one file to another.
    CopyFileRange {
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    },
    /// Something that this filesystem has no part in. The kernel gets `ENOSYS`, and does not ask again.
    Unknown,
}

/// The attributes that a SETATTR sets; the fields are those of [`crate::fs::Changes`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::fuse) struct RequestedAttributes {
    pub(in crate::fuse) mode: Option<u32>,
    pub(in crate::fuse) uid: Option<u32>,
    pub(in crate::fuse) gid: Option<u32>,
    pub(in crate::fuse) size: Option<u64>,
    pub(in crate::fuse) atime: Option<TimeOrNow>,
    pub(in crate::fuse) mtime: Option<TimeOrNow>,
    pub(in crate::fuse) ctime: Option<Timestamp>,
    pub(in crate::fuse) handle: Option<Handle>,
}

/// Pairs of an inode and the number of its look-ups to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Returns the pairs.
    pub(in crate::fuse) fn pairs(self) -> impl Iterator<Item = (Ino, u64)> {
        self.0.chunks_exact(FORGET_PAIR).filter_map(|pair| {
            let mut fields = Fields(pair);
            Some((Ino(fields.u64().ok()?), fields.u64().ok()?))
        })
    }
}

/// Returns the length of the fixed fields of an operation; the kernel's other arguments follow them.
pub(in crate::fuse) fn fixed_len(opcode: u32) -> usize {
    match opcode {
        opcode::FORGET
        | opcode::INTERRUPT
        | opcode::BATCH_FORGET
        | opcode::MKDIR
        | opcode::RENAME
        | opcode::LINK
        | opcode::OPEN
        | opcode::OPENDIR
        | opcode::SETXATTR
        | opcode::GETXATTR
        | opcode::LISTXATTR => 8,
        opcode::GETATTR
        | opcode::MKNOD
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::CREATE
        | opcode::TMPFILE
        | opcode::RENAME2 => 16,
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::LSEEK | opcode::STATX => 24,
        opcode::FALLOCATE | opcode::IOCTL => 32,
        opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS => 40,
        opcode::COPY_FILE_RANGE => 56,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

impl<'a> Operation<'a> {
    /// Reads an operation on an inode from its fixed fields, behind which may be more bytes, and from what follows them.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if something is missing.
    pub(in crate::fuse) fn parse(
        opcode: u32,
        ino: Ino,
        fixed: &[u8],
        rest: &'a [u8],
    ) -> Result<Self, Malformed> {
        let fixed = Fields(fixed);
        let rest = Fields(rest);
        match opcode {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => Self::of_names(opcode, fixed, rest),
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                Self::of_xattrs(opcode, fixed, rest)
            }
            opcode::READ
            | opcode::WRITE
            | opcode::FALLOCATE
            | opcode::LSEEK
            | opcode::COPY_FILE_RANGE => Self::of_data(opcode, ino, fixed, rest),
            _ => Self::of_inodes(opcode, ino, fixed, rest),
        }
    }

    fn of_names(
        opcode: u32,
        mut fixed: Fields<'_>,
        mut rest: Fields<'a>,
    ) -> Result<Self, Malformed> {
        Ok(match opcode {
            opcode::LOOKUP => Self::Lookup { name: rest.name()? },
            opcode::UNLINK => Self::Unlink { name: rest.name()? },
            opcode::RMDIR => Self::RmDir { name: rest.name()? },
            opcode::SYMLINK => Self::Symlink {
                name: rest.name()?,
                target: rest.name()?,
            },
            opcode::MKNOD => {
                let (mode, rdev, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
                Self::MkNod {
                    name: rest.name()?,
                    mode,
                    umask,
                    rdev,
                }
            }
            opcode::MKDIR => Self::MkDir {
                mode: fixed.u32()?,
                umask: fixed.u32()?,
                name: rest.name()?,
            },
            opcode::LINK => Self::Link {
                source: Ino(fixed.u64()?),
                name: rest.name()?,
            },
            opcode::CREATE => Self::Create {
                flags: fixed.i32()?,
                mode: fixed.u32()?,
                umask: fixed.u32()?,
                name: rest.name()?,
            },
            // A name comes with it that stands for nothing.
            opcode::TMPFILE => Self::Tmpfile {
                flags: fixed.i32()?,
                mode: fixed.u32()?,
                umask: fixed.u32()?,
            },
            _ => Self::Rename {
                new_parent: Ino(fixed.u64()?),
                flags: match opcode {
                    opcode::RENAME2 => fixed.u32()?,
                    _ => 0,
                },
                name: rest.name()?,
                new_name: rest.name()?,
            },
        })
    }

    fn of_xattrs(
        opcode: u32,
        mut fixed: Fields<'_>,
        mut rest: Fields<'a>,
    ) -> Result<Self, Malformed> {
        Ok(match opcode {
            opcode::SETXATTR => {
                let (size, flags) = (fixed.u32()?, fixed.i32()?);
                Self::SetXattr {
                    name: rest.name()?,
                    value: rest.bytes(size as usize)?,
                    flags,
                }
            }
            opcode::GETXATTR => Self::GetXattr {
                room: fixed.u32()?,
                name: rest.name()?,
            },
            opcode::LISTXATTR => Self::ListXattr { room: fixed.u32()? },
            _ => Self::RemoveXattr { name: rest.name()? },
        })
    }

    fn of_data(
        opcode: u32,
        ino: Ino,
        mut fixed: Fields<'_>,
        mut rest: Fields<'a>,
    ) -> Result<Self, Malformed> {
        let number = fixed.u64()?;
        let offset = fixed.u64()?;
        // For requests that do not say with which flags the file was opened.
        let open_file = handle(number, ino, libc::O_RDWR);
        Ok(match opcode {
            opcode::READ => {
                let (size, _flags) = (fixed.u32()?, fixed.u32()?);
                let _lock_owner = fixed.u64()?;
                Self::Read {
                    handle: handle(number, ino, fixed.i32()?),
                    offset,
                    size,
                }
            }
            opcode::WRITE => {
                let (size, flags) = (fixed.u32()?, fixed.u32()?);
                let _lock_owner = fixed.u64()?;
                let open_flags = fixed.i32()?;
                // The page cache writes on behalf of no open file in particular.
                let writes = open_flags & !libc::O_ACCMODE | libc::O_RDWR;
                Self::Write {
                    handle: handle(number, ino, writes),
                    offset,
                    data: rest.bytes(size as usize)?,
                    flags,
                    open_flags,
                }
            }
            opcode::FALLOCATE => Self::Fallocate {
                handle: open_file,
                offset,
                len: fixed.u64()?,
                mode: fixed.i32()?,
            },
            opcode::LSEEK => Self::LSeek {
                handle: open_file,
                offset,
                whence: fixed.i32()?,
            },
            _ => {
                let target = Ino(fixed.u64()?);
                Self::CopyFileRange {
                    from: open_file,
                    from_offset: offset,
                    to: handle(fixed.u64()?, target, libc::O_RDWR),
                    to_offset: fixed.u64()?,
                    len: fixed.u64()?,
                }
            }
        })
    }

    fn of_inodes(
        opcode: u32,
        ino: Ino,
        mut fixed: Fields<'_>,
        rest: Fields<'a>,
    ) -> Result<Self, Malformed> {
        let open = |number| handle(number, ino, libc::O_RDWR);
        let mut listing = |with_attributes: bool| {
            let (handle, offset, room) = (open(fixed.u64()?), fixed.u64()?, fixed.u32()?);
            Ok(if with_attributes {
                Self::ReadDirPlus {
                    handle,
                    offset,
                    room,
                }
            } else {
                Self::ReadDir {
                    handle,
                    offset,
                    room,
                }
            })
        };
        Ok(match opcode {
            opcode::READDIR => listing(false)?,
            opcode::READDIRPLUS => listing(true)?,
            opcode::FORGET => Self::Forget {
                lookups: fixed.u64()?,
            },
            opcode::BATCH_FORGET => {
                let count = fixed.u32()? as usize;
                let all = rest
                    .0
                    .get(..count.saturating_mul(FORGET_PAIR))
                    .ok_or(Malformed)?;
                Self::BatchForget(Forgets(all))
            }
            opcode::GETATTR | opcode::STATX => {
                let (flags, _padding) = (fixed.u32()?, fixed.u32()?);
                let handle = open(fixed.u64()?);
                let handle = (flags & WITH_HANDLE != 0).then_some(handle);
                if opcode == opcode::GETATTR {
                    Self::GetAttr { handle }
                } else {
                    // The answer has all attributes, so the wanted ones need not be read.
                    Self::Statx { handle }
                }
            }
            opcode::SETATTR => Self::SetAttr(RequestedAttributes::parse(ino, fixed)?),
            opcode::READLINK => Self::ReadLink,
            opcode::OPEN => Self::Open {
                flags: fixed.i32()?,
            },
            opcode::STATFS => Self::StatFs,
            opcode::FLUSH => Self::Flush,
            opcode::RELEASE => Self::Release {
                handle: open(fixed.u64()?),
            },
            opcode::RELEASEDIR => Self::ReleaseDir {
                handle: open(fixed.u64()?),
            },
            opcode::FSYNC => Self::Fsync,
            opcode::FSYNCDIR => Self::FsyncDir,
            opcode::OPENDIR => Self::OpenDir,
            opcode::INTERRUPT => Self::Interrupt {
                unique: fixed.u64()?,
            },
            opcode::IOCTL => Self::Ioctl,
            _ => Self::Unknown,
        })
    }

    /// Returns the kind of the operation.
    pub(in crate::fuse) fn kind(&self) -> OperationKind {
        match self {
            Self::Lookup { .. } => OperationKind::Lookup,
            Self::Forget { .. } | Self::BatchForget(_) => OperationKind::Forget,
            Self::GetAttr { .. } => OperationKind::GetAttr,
            Self::Statx { .. } => OperationKind::Statx,
            Self::SetAttr(_) => OperationKind::SetAttr,
            Self::ReadLink => OperationKind::ReadLink,
            Self::Symlink { .. } => OperationKind::Symlink,
            Self::MkNod { .. } => OperationKind::MkNod,
            Self::MkDir { .. } => OperationKind::MkDir,
            Self::Unlink { .. } => OperationKind::Unlink,
            Self::RmDir { .. } => OperationKind::RmDir,
            Self::Rename { .. } => OperationKind::Rename,
            Self::Link { .. } => OperationKind::Link,
            Self::Open { .. } => OperationKind::Open,
            Self::Create { .. } => OperationKind::Create,
            Self::Tmpfile { .. } => OperationKind::Tmpfile,
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::StatFs => OperationKind::StatFs,
            Self::Flush => OperationKind::Flush,
            Self::Release { .. } => OperationKind::Release,
            Self::Fsync => OperationKind::Fsync,
            Self::SetXattr { .. } => OperationKind::SetXattr,
            Self::GetXattr { .. } => OperationKind::GetXattr,
            Self::ListXattr { .. } => OperationKind::ListXattr,
            Self::RemoveXattr { .. } => OperationKind::RemoveXattr,
            Self::OpenDir => OperationKind::OpenDir,
            Self::ReadDir { .. } => OperationKind::ReadDir,
            Self::ReadDirPlus { .. } => OperationKind::ReadDirPlus,
            Self::ReleaseDir { .. } => OperationKind::ReleaseDir,
            Self::FsyncDir => OperationKind::FsyncDir,
            Self::Interrupt { .. } => OperationKind::Interrupt,
            Self::Ioctl => OperationKind::Ioctl,
            Self::Fallocate { .. } => OperationKind::Fallocate,
            Self::LSeek { .. } => OperationKind::LSeek,
            Self::CopyFileRange { .. } => OperationKind::CopyFileRange,
            Self::Unknown => OperationKind::Unknown,
        }
    }
}

impl RequestedAttributes {
    fn parse(ino: Ino, mut fixed: Fields<'_>) -> Result<Self, Malformed> {
        let valid = fixed.u32()?;
        let _padding = fixed.u32()?;
        let handle = handle(fixed.u64()?, ino, libc::O_RDWR);
        let size = fixed.u64()?;
        let _lock_owner = fixed.u64()?;
        let seconds = [fixed.i64()?, fixed.i64()?, fixed.i64()?];
        let nanos = [fixed.u32()?, fixed.u32()?, fixed.u32()?];
        let [atime, mtime, ctime] = std::array::from_fn(|i| Timestamp {
            seconds: seconds[i],
            nanos: nanos[i],
        });
        let mode = fixed.u32()?;
        let _unused = fixed.u32()?;
        let (uid, gid) = (fixed.u32()?, fixed.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let time = |set, now, time| {
            has(set).then(|| {
                if has(now) {
                    TimeOrNow::Now
                } else {
                    TimeOrNow::At(time)
                }
            })
        };
        Ok(Self {
            mode: has(field::MODE).then_some(mode),
            uid: has(field::UID).then_some(uid),
            gid: has(field::GID).then_some(gid),
            size: has(field::SIZE).then_some(size),
            atime: time(field::ATIME, field::ATIME_NOW, atime),
            mtime: time(field::MTIME, field::MTIME_NOW, mtime),
            ctime: has(field::CTIME).then_some(ctime),
            handle: has(field::HANDLE).then_some(handle),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPCODES: std::ops::Range<u32> = 0..64;
    const INO: Ino = Ino(9);

    #[test]
    fn no_request_is_read_beyond_its_end_whatever_its_bytes() {
        for byte in [0, 1, 0x7f, 0xff] {
            let bytes = [byte; 200];
            for opcode in OPCODES {
                for fixed in 0..=88 {
                    for rest in 0..40 {
                        // It may be malformed; it must not panic.
                        let parsed = Operation::parse(opcode, INO, &bytes[..fixed], &bytes[..rest]);
                        if let Ok(Operation::BatchForget(forgets)) = parsed {
                            assert!(forgets.pairs().count() * FORGET_PAIR <= rest);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_operation_needs_all_its_fixed_fields_but_padding() {
        let name = b"name\0other\0";
        let complete = [0; 88];
        for opcode in OPCODES {
            let len = fixed_len(opcode);
            assert!(
                Operation::parse(opcode, INO, &complete[..len], name).is_ok(),
                "{opcode}"
            );
            // Padding and what is of no use at the end may be missing.
            let unused = match opcode {
                opcode::OPENDIR
                | opcode::IOCTL
                | opcode::FSYNC
                | opcode::FSYNCDIR
                | opcode::FLUSH => len,
                opcode::READDIR | opcode::READDIRPLUS => 20,
                opcode::RELEASE | opcode::RELEASEDIR => 16,
                opcode::COPY_FILE_RANGE | opcode::STATX => 8,
                _ => 4,
            };
            for shorter in 0..len.saturating_sub(unused) {
                let parsed = Operation::parse(opcode, INO, &complete[..shorter], name);
                assert_eq!(parsed, Err(Malformed), "{opcode}, {shorter} bytes");
            }
        }
    }

    #[test]
    fn names_end_before_a_nul_and_must_have_one() {
        let rename = |rest| Operation::parse(opcode::RENAME2, INO, &[1; 16], rest);
        let flags = u32::from_ne_bytes([1; 4]);
        let new_parent = Ino(u64::from_ne_bytes([1; 8]));
        assert_eq!(
            rename(b"old\0new\0"),
            Ok(Operation::Rename {
                name: b"old",
                new_parent,
                new_name: b"new",
                flags,
            })
        );
        assert_eq!(rename(b"old\0new"), Err(Malformed));
        assert_eq!(rename(b"old"), Err(Malformed));
    }

    #[test]
    fn a_write_has_the_bytes_that_it_announces_or_is_refused() {
        let mut fixed = Vec::new();
        for number in [7u64, 4096] {
            fixed.extend(number.to_ne_bytes());
        }
        fixed.extend(3u32.to_ne_bytes());
        fixed.extend(5u32.to_ne_bytes());
        fixed.extend(0u64.to_ne_bytes());
        fixed.extend(libc::O_DSYNC.to_ne_bytes());
        fixed.extend([0; 4]);
        assert_eq!(
            Operation::parse(opcode::WRITE, INO, &fixed, b"abcd"),
            Ok(Operation::Write {
                handle: Handle::Numbered(7),
                offset: 4096,
                data: b"abc",
                flags: 5,
                open_flags: libc::O_DSYNC,
            })
        );
        assert_eq!(
            Operation::parse(opcode::WRITE, INO, &fixed, b"ab"),
            Err(Malformed)
        );
    }

    #[test]
    fn times_before_the_epoch_arrive_as_they_were_set() {
        let mut fixed = Vec::new();
        fixed.extend((field::ATIME | field::MTIME | field::MTIME_NOW).to_ne_bytes());
        fixed.extend([0; 28]);
        for seconds in [-2i64, 5, 9] {
            fixed.extend(seconds.to_ne_bytes());
        }
        for nanos in [800_000_000u32, 1, 2] {
            fixed.extend(nanos.to_ne_bytes());
        }
        fixed.extend([0; 20]);
        let expected = RequestedAttributes {
            atime: Some(TimeOrNow::At(Timestamp {
                seconds: -2,
                nanos: 800_000_000,
            })),
            mtime: Some(TimeOrNow::Now),
            ..RequestedAttributes::default()
        };
        assert_eq!(
            Operation::parse(opcode::SETATTR, INO, &fixed, b""),
            Ok(Operation::SetAttr(expected))
        );
    }
}
