//! Inodes.

use bytes::BufMut;

use super::{Record, VERSION, Value};
use crate::{Cookie, FormatError, Ino, NameFault, QuotaId, StripeClass, TARGET_MAX, wire::Reader};

/// Nanoseconds and seconds since the epoch; `nanos < 1_000_000_000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z, negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanos: u32,
}

impl Timestamp {
    fn put(self, value: &mut Vec<u8>) {
        value.put_i64_le(self.seconds);
        value.put_u32_le(self.nanos);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (seconds, nanos) = (reader.i64()?, reader.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(reader.bad("nanoseconds", nanos));
        }
        Ok(Self { seconds, nanos })
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the kind's number on disk.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::Symlink => 3,
            Self::Fifo => 4,
            Self::Socket => 5,
            Self::CharDevice => 6,
            Self::BlockDevice => 7,
        }
    }

    /// Takes a kind's number.
    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        match reader.u8()? {
            1 => Ok(Self::Regular),
            2 => Ok(Self::Directory),
            3 => Ok(Self::Symlink),
            4 => Ok(Self::Fifo),
            5 => Ok(Self::Socket),
            6 => Ok(Self::CharDevice),
            7 => Ok(Self::BlockDevice),
            other => Err(reader.bad("kind", other)),
        }
    }
}

/// Bytes that an inode carries in its own record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inline {
    /// None: a regular file's bytes are in extents, a directory's entries under their own keys.
    None,
    /// All bytes of a small regular file, as long as the file's size or shorter (the rest is zeros).
    Data(Vec<u8>),
    /// A symbolic link's target: 1 to 4095 bytes without NUL.
    Target(Vec<u8>),
}

impl Inline {
    fn put(&self, value: &mut Vec<u8>) {
        let (tag, bytes): (u8, &[u8]) = match self {
            Self::None => (0, &[]),
            Self::Data(bytes) => (1, bytes),
            Self::Target(bytes) => (2, bytes),
        };
        value.put_u8(tag);
        value.put_slice(bytes);
    }

    /// Takes everything that is left: inline bytes are a record's last field.
    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        match reader.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Data(reader.rest().to_vec())),
            2 => {
                let target = reader.rest();
                match NameFault::of_bytes(target, TARGET_MAX) {
                    Some(fault) => Err(FormatError::Name {
                        what: "symlink target",
                        fault,
                    }),
                    None => Ok(Self::Target(target.to_vec())),
                }
            }
            other => Err(reader.bad("inline tag", other)),
        }
    }
}

/// An inode: `b'i' ino`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; for a directory 2 plus its subdirectories; 0 once unlinked and still open.
    pub links: u32,
    /// Device number of a device node, as `makedev` packs it; else 0.
    pub rdev: u32,
    /// Size in bytes, up to 2⁶³−1.
    pub size: u64,
    /// Bytes held in extents (for `st_blocks`).
    pub allocated_bytes: u64,
    /// The part of these bytes that is in unwritten extents.
    pub unwritten_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// A directory's parent; for anything else [`Ino`] 0.
    pub parent: Ino,
    /// A directory's next free readdir cookie; else 0.
    pub next_cookie: Cookie,
    /// The quota that counts it, or [`QuotaId::NONE`]. One without a record counts nothing.
    pub quota: QuotaId,
    /// The class of the stripes for its new bytes; a directory's is inherited by what is made in it.
    pub class: StripeClass,
    /// Bytes carried in this record.
    pub inline: Inline,
}

/// Bytes of an inode's record before its inline bytes, when it has all optional fields.
const FIXED_LEN: usize = 119;

/// The optional fields that a record has.
mod flag {
    pub(super) const RDEV: u8 = 1;
    pub(super) const DIRECTORY: u8 = 2; // parent and next_cookie
    pub(super) const QUOTA: u8 = 4;
    pub(super) const UNWRITTEN: u8 = 8;
    pub(super) const CLASS: u8 = 16;
    pub(super) const ALL: u8 = RDEV | DIRECTORY | QUOTA | UNWRITTEN | CLASS;
}

impl Inode {
    fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.rdev != 0 {
            flags |= flag::RDEV;
        }
        if self.parent != Ino(0) || self.next_cookie != Cookie(0) {
            flags |= flag::DIRECTORY;
        }
        if self.quota != QuotaId::NONE {
            flags |= flag::QUOTA;
        }
        if self.unwritten_bytes != 0 {
            flags |= flag::UNWRITTEN;
        }
        if self.class != StripeClass::VOLUME {
            flags |= flag::CLASS;
        }
        flags
    }
}

impl Record for Inode {
    fn encode(&self) -> Value {
        let inline_len = match &self.inline {
            Inline::None => 0,
            Inline::Data(bytes) | Inline::Target(bytes) => bytes.len(),
        };
        let flags = self.flags();
        let mut value = Vec::with_capacity(FIXED_LEN + inline_len);
        value.put_u8(VERSION);
        value.put_u8(self.kind.number());
        value.put_u16_le(self.permissions);
        value.put_u8(flags);
        value.put_u32_le(self.uid);
        value.put_u32_le(self.gid);
        value.put_u32_le(self.links);
        value.put_u64_le(self.size);
        value.put_u64_le(self.allocated_bytes);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.put(&mut value);
        }
        if flags & flag::RDEV != 0 {
            value.put_u32_le(self.rdev);
        }
        if flags & flag::DIRECTORY != 0 {
            value.put_u64_le(self.parent.0);
            value.put_u64_le(self.next_cookie.0);
        }
        if flags & flag::QUOTA != 0 {
            value.put_u64_le(self.quota.0);
        }
        if flags & flag::UNWRITTEN != 0 {
            value.put_u64_le(self.unwritten_bytes);
        }
        if flags & flag::CLASS != 0 {
            value.put_u8(self.class.0);
        }
        self.inline.put(&mut value);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("inode", bytes);
        reader.version(VERSION)?;
        let kind = FileKind::take(&mut reader)?;
        let permissions = reader.u16()?;
        if permissions > 0o7777 {
            return Err(reader.bad("permissions", permissions));
        }
        let flags = reader.u8()?;
        if flags & !flag::ALL != 0 {
            return Err(reader.bad("flags", flags));
        }
        let mut inode = Self {
            kind,
            permissions,
            uid: reader.u32()?,
            gid: reader.u32()?,
            links: reader.u32()?,
            rdev: 0,
            size: reader.u64()?,
            allocated_bytes: reader.u64()?,
            unwritten_bytes: 0,
            atime: Timestamp::take(&mut reader)?,
            mtime: Timestamp::take(&mut reader)?,
            ctime: Timestamp::take(&mut reader)?,
            btime: Timestamp::take(&mut reader)?,
            parent: Ino(0),
            next_cookie: Cookie(0),
            quota: QuotaId::NONE,
            class: StripeClass::VOLUME,
            inline: Inline::None,
        };
        if i64::try_from(inode.size).is_err() {
            return Err(reader.bad("size", inode.size));
        }
        if flags & flag::RDEV != 0 {
            inode.rdev = reader.u32()?;
        }
        if flags & flag::DIRECTORY != 0 {
            inode.parent = Ino(reader.u64()?);
            inode.next_cookie = Cookie(reader.count("next cookie")?);
        }
        if flags & flag::QUOTA != 0 {
            inode.quota = QuotaId(reader.count("quota")?);
        }
        if flags & flag::UNWRITTEN != 0 {
            inode.unwritten_bytes = reader.u64()?;
            if inode.unwritten_bytes > inode.allocated_bytes {
                return Err(reader.bad("unwritten bytes", inode.unwritten_bytes));
            }
        }
        if flags & flag::CLASS != 0 {
            inode.class = StripeClass(reader.u8()?);
        }
        // One encoding for one value: a field that could have been left out must not be there.
        if inode.flags() != flags {
            return Err(reader.bad("flags", flags));
        }
        inode.inline = Inline::take(&mut reader)?;
        reader.finish()?;
        Ok(inode)
    }
}
