//! The kernel's FUSE protocol, ABI 7.45 (`include/uapi/linux/fuse.h`): requests as bytes, and the answers' layouts.
//!
//! A request is a [`Header`], the fixed fields of its operation, and what follows: names, values, data. `/dev/fuse`
//! delivers them in one piece and `io_uring` in three. Numbers have the byte order of the machine.
//!
//! # Invariants
//!
//! - Reading a request never panics, regardless of its bytes: what is too short or lacks a NUL is [`Malformed`].

mod handle;
mod kind;
mod layout;
mod operation;

pub(super) use handle::by_kernel;
pub(super) use kind::OperationKind;
pub(super) use layout::{
    Answer, INVALIDATE_INODE, INVALIDATE_NAME, Listing, OpenCache, RETRIEVE, STORE, attributes,
    created, entry, invalidation, name_invalidation, negative_entry, offset_found, opened,
    retrieval, size_needed, space, statx, storage, written,
};
pub(super) use operation::{Operation, RequestedAttributes, fixed_len};

use crate::format::Ino;

/// The bit of a WRITE that comes from the kernel's page cache.
pub(super) const FROM_PAGE_CACHE: u32 = 1 << 0;

/// The major version of the protocol.
pub(super) const MAJOR: u32 = 7;

/// The minor version that [`MAJOR`] is spoken in. It is the first with requests over `io_uring`.
pub(super) const MINOR: u32 = 42;

/// The bytes of an answer's header: length, error, and number of the request.
pub(super) const ANSWER_HEADER: usize = 16;

/// A request that is shorter than its kind demands.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's request is malformed")]
pub(super) struct Malformed;

/// The numbers of the operations.
pub(super) mod opcode {
    pub(in super::super) const LOOKUP: u32 = 1;
    pub(in super::super) const FORGET: u32 = 2;
    pub(in super::super) const GETATTR: u32 = 3;
    pub(in super::super) const SETATTR: u32 = 4;
    pub(in super::super) const READLINK: u32 = 5;
    pub(in super::super) const SYMLINK: u32 = 6;
    pub(in super::super) const MKNOD: u32 = 8;
    pub(in super::super) const MKDIR: u32 = 9;
    pub(in super::super) const UNLINK: u32 = 10;
    pub(in super::super) const RMDIR: u32 = 11;
    pub(in super::super) const RENAME: u32 = 12;
    pub(in super::super) const LINK: u32 = 13;
    pub(in super::super) const OPEN: u32 = 14;
    pub(in super::super) const READ: u32 = 15;
    pub(in super::super) const WRITE: u32 = 16;
    pub(in super::super) const STATFS: u32 = 17;
    pub(in super::super) const RELEASE: u32 = 18;
    pub(in super::super) const FSYNC: u32 = 20;
    pub(in super::super) const SETXATTR: u32 = 21;
    pub(in super::super) const GETXATTR: u32 = 22;
    pub(in super::super) const LISTXATTR: u32 = 23;
    pub(in super::super) const REMOVEXATTR: u32 = 24;
    pub(in super::super) const FLUSH: u32 = 25;
    pub(in super::super) const INIT: u32 = 26;
    pub(in super::super) const OPENDIR: u32 = 27;
    pub(in super::super) const READDIR: u32 = 28;
    pub(in super::super) const RELEASEDIR: u32 = 29;
    pub(in super::super) const FSYNCDIR: u32 = 30;
    pub(in super::super) const CREATE: u32 = 35;
    pub(in super::super) const INTERRUPT: u32 = 36;
    pub(in super::super) const IOCTL: u32 = 39;
    pub(in super::super) const NOTIFY_REPLY: u32 = 41;
    pub(in super::super) const BATCH_FORGET: u32 = 42;
    pub(in super::super) const FALLOCATE: u32 = 43;
    pub(in super::super) const READDIRPLUS: u32 = 44;
    pub(in super::super) const RENAME2: u32 = 45;
    pub(in super::super) const LSEEK: u32 = 46;
    pub(in super::super) const COPY_FILE_RANGE: u32 = 47;
    pub(in super::super) const TMPFILE: u32 = 51;
    pub(in super::super) const STATX: u32 = 52;
}

/// The part that all requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of the operation, from [`opcode`].
    pub(super) opcode: u32,
    /// The number of the request, which its answer repeats.
    pub(super) unique: u64,
    /// The inode that the request is about.
    pub(super) ino: Ino,
    /// The user of the process that asks.
    pub(super) uid: u32,
    /// Its group.
    pub(super) gid: u32,
    /// The process.
    pub(super) pid: u32,
}

impl Header {
    /// The bytes of a header.
    pub(super) const LEN: usize = 40;

    /// Reads a header, and the length of the whole request.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there are too few bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<(usize, Self), Malformed> {
        let mut fields = Fields(bytes);
        let len = fields.u32()? as usize;
        let header = Self {
            opcode: fields.u32()?,
            unique: fields.u64()?,
            ino: Ino(fields.u64()?),
            uid: fields.u32()?,
            gid: fields.u32()?,
            pid: fields.u32()?,
        };
        fields.u32()?;
        Ok((len, header))
    }
}

/// The bytes of a request that are yet to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*chunk)
    }

    /// Reads a number of 32 bits.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if there are too few bytes; so all other methods.
    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(u32::from_ne_bytes)
    }

    /// Reads a signed number of 32 bits.
    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.chunk().map(i32::from_ne_bytes)
    }

    /// Reads a number of 64 bits.
    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_ne_bytes)
    }

    /// Reads a signed number of 64 bits.
    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.chunk().map(i64::from_ne_bytes)
    }

    /// Reads a name, which ends before a NUL.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let name = self.bytes(end.ok_or(Malformed)?)?;
        self.0 = &self.0[1..];
        Ok(name)
    }

    /// Reads `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}
