//! Operations that the kernel requests, each turned into a call of [`Fs`].
//!
//! Nothing here decides anything about files: that is [`crate::fs`].

use super::convert::{rename_mode, whence, xattr_mode};
use super::negotiate::{FileOpening, FileOpens};
use super::protocol::{
    Answer, Malformed, OpenCache, Operation, RequestedAttributes, attributes, by_kernel, created,
    entry, negative_entry, opened, size_needed, statx, written,
};
use super::request::Request;
use crate::format::Ino;
use crate::fs::{Allocation, Changes, Fs, FsError, Handle, OpenFlags};

/// The most bytes of one copy: the reply's count has 32 bits, and a call must end in bounded time.
const MAX_COPY: u64 = 1 << 30;

impl From<Malformed> for FsError {
    fn from(_: Malformed) -> Self {
        Self::Invalid
    }
}

/// Carries out an operation and returns the answer.
///
/// # Errors
///
/// Those of [`Fs`].
pub(super) fn perform(
    fs: &Fs,
    opens: FileOpens,
    request: &Request,
    operation: Operation<'_>,
) -> Result<Answer, FsError> {
    match operation {
        Operation::Lookup { .. }
        | Operation::Symlink { .. }
        | Operation::MkNod { .. }
        | Operation::MkDir { .. }
        | Operation::Unlink { .. }
        | Operation::RmDir { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. } => change_names(fs, request, operation),
        Operation::Create { .. } | Operation::Tmpfile { .. } => {
            create(fs, opens, request, operation)
        }
        Operation::SetXattr { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattr { .. }
        | Operation::RemoveXattr { .. } => use_xattrs(fs, request, operation),
        Operation::GetAttr { .. }
        | Operation::Statx { .. }
        | Operation::SetAttr(_)
        | Operation::ReadLink => use_attributes(fs, request, operation),
        _ => use_files(fs, opens, request, operation),
    }
}

fn change_names(fs: &Fs, request: &Request, operation: Operation<'_>) -> Result<Answer, FsError> {
    let parent = request.ino();
    let names = fs.names();
    let made = match operation {
        Operation::Lookup { name } => {
            return match names.lookup(parent, name) {
                Ok(attr) => Ok(entry(&attr)),
                Err(FsError::NotFound) => Ok(negative_entry()),
                Err(error) => Err(error),
            };
        }
        Operation::Symlink { name, target } => {
            names.symlink(&request.caller(0), parent, name, target)?
        }
        Operation::MkNod {
            name,
            mode,
            umask,
            rdev,
        } => names.mknod(&request.caller(umask), parent, name, mode, rdev)?,
        Operation::MkDir { name, mode, umask } => {
            names.mkdir(&request.caller(umask), parent, name, mode)?
        }
        Operation::Link { source, name } => names.link(source, parent, name)?,
        Operation::Unlink { name } => {
            return names.unlink(parent, name).map(|()| Answer::EMPTY);
        }
        Operation::RmDir { name } => return names.rmdir(parent, name).map(|()| Answer::EMPTY),
        Operation::Rename {
            name,
            new_parent,
            new_name,
            flags,
        } => {
            let mode = rename_mode(flags)?;
            let caller = request.caller(0);
            names.rename(&caller, parent, name, new_parent, new_name, mode)?;
            return Ok(Answer::EMPTY);
        }
        _ => return Err(FsError::Invalid),
    };
    Ok(entry(&made))
}

/// Makes a file, with a name or without one. Nothing is to be closed where the kernel opens files by itself: the look-up
/// that it counts holds the inode.
fn create(
    fs: &Fs,
    opens: FileOpens,
    request: &Request,
    operation: Operation<'_>,
) -> Result<Answer, FsError> {
    let parent = request.ino();
    let (flags, (attr, handle)) = match operation {
        Operation::Create {
            name,
            flags,
            mode,
            umask,
        } => {
            let caller = request.caller(umask);
            let made = fs
                .names()
                .create(&caller, parent, name, mode, open_flags(flags))?;
            (flags, made)
        }
        Operation::Tmpfile { flags, mode, umask } => {
            let caller = request.caller(umask);
            let made = fs
                .names()
                .tmpfile(&caller, parent, mode, open_flags(flags))?;
            (flags, made)
        }
        _ => return Err(FsError::Invalid),
    };
    let cache = cache_for(fs, opens, attr.ino, flags);
    match opens.opening {
        FileOpening::Requested => Ok(created(&attr, handle, cache)),
        FileOpening::ByKernel => {
            fs.open_files().release(handle)?;
            Ok(created(&attr, by_kernel(attr.ino, flags), cache))
        }
    }
}

fn use_xattrs(fs: &Fs, request: &Request, operation: Operation<'_>) -> Result<Answer, FsError> {
    let ino = request.ino();
    match operation {
        Operation::SetXattr { name, value, flags } => {
            let mode = xattr_mode(flags)?;
            fs.xattrs()
                .set(&request.caller(0), ino, name, value, mode)?;
            Ok(Answer::EMPTY)
        }
        Operation::RemoveXattr { name } => {
            fs.xattrs().remove(ino, name)?;
            Ok(Answer::EMPTY)
        }
        Operation::GetXattr { name, room } => fit(fs.xattrs().get(ino, name)?, room),
        Operation::ListXattr { room } => fit(fs.xattrs().list(&request.caller(0), ino)?, room),
        _ => Err(FsError::Invalid),
    }
}

/// Answers with bytes, or with their length if the caller has no room for any.
fn fit(bytes: Vec<u8>, room: u32) -> Result<Answer, FsError> {
    match u32::try_from(bytes.len()) {
        Ok(len) if room == 0 => Ok(size_needed(len)),
        Ok(len) if len <= room => Ok(Answer::Bytes(bytes)),
        Ok(_) => Err(FsError::Range),
        Err(_) => Err(FsError::TooBig),
    }
}

fn use_attributes(fs: &Fs, request: &Request, operation: Operation<'_>) -> Result<Answer, FsError> {
    let ino = request.ino();
    match operation {
        Operation::GetAttr { .. } => Ok(attributes(&fs.attributes().get(ino)?)),
        Operation::Statx { .. } => Ok(statx(&fs.attributes().get(ino)?)),
        Operation::SetAttr(wanted) => {
            let caller = request.caller(0);
            let attr = fs.attributes().set(&caller, ino, changes(&wanted))?;
            Ok(attributes(&attr))
        }
        Operation::ReadLink => Ok(Answer::Bytes(fs.attributes().read_link(ino)?)),
        _ => Err(FsError::Invalid),
    }
}

/// Translates the attributes to set.
pub(super) fn changes(wanted: &RequestedAttributes) -> Changes {
    Changes {
        permissions: wanted.mode.map(|mode| (mode & 0o7777) as u16),
        uid: wanted.uid,
        gid: wanted.gid,
        size: wanted.size,
        atime: wanted.atime,
        mtime: wanted.mtime,
        ctime: wanted.ctime,
        // The kernel has kept to itself what it was asked for: a write or `chown(-1, -1)`. With
        // the writeback cache it still sends the time of it.
        kill_suid_sgid: wanted.mode.is_none()
            && wanted.uid.is_none()
            && wanted.gid.is_none()
            && wanted.size.is_none()
            && wanted.atime.is_none()
            && wanted.mtime.is_none(),
        handle: wanted.handle,
    }
}

fn use_files(
    fs: &Fs,
    opens: FileOpens,
    request: &Request,
    operation: Operation<'_>,
) -> Result<Answer, FsError> {
    let ino = request.ino();
    match operation {
        Operation::Open { flags } => {
            let caller = request.caller(0);
            let handle = fs.open_files().open(&caller, ino, open_flags(flags))?;
            return Ok(opened(handle, cache_for(fs, opens, ino, flags)));
        }
        Operation::OpenDir => {
            let handle = fs.directories().open(ino)?;
            return Ok(opened(handle, OpenCache::Listing));
        }
        Operation::CopyFileRange {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } => {
            let (caller, len) = (request.caller(0), len.min(MAX_COPY));
            let copied = fs
                .writer()
                .copy_range(&caller, from, from_offset, to, to_offset, len)?;
            return Ok(written(copied));
        }
        Operation::Fallocate {
            handle,
            mode,
            offset,
            len,
        } => {
            let (caller, mode) = (request.caller(0), Allocation::from_raw(mode)?);
            fs.writer().fallocate(&caller, handle, mode, offset, len)?;
        }
        // A kernel that opens files and directories by itself may say that it closes one, too.
        Operation::Release {
            handle: Handle::ByCaller { .. },
        }
        | Operation::ReleaseDir {
            handle: Handle::ByCaller { .. },
        } => {}
        Operation::Release { handle } => fs.open_files().release(handle)?,
        Operation::ReleaseDir { handle } => fs.directories().release(handle)?,
        _ => return Err(FsError::Invalid),
    }
    Ok(Answer::EMPTY)
}

/// Returns the use of the page cache for a file that is opened. Where a quota has little room, a write is to fail at once,
/// and not after the kernel has accepted it.
fn cache_for(fs: &Fs, opens: FileOpens, ino: Ino, flags: i32) -> OpenCache {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if writes && opens.maps_direct && fs.quotas().is_tight(ino) {
        OpenCache::None
    } else {
        OpenCache::Pages
    }
}

/// Reads the flags of `open(2)`. The kernel decides where an append goes: it knows the size that the file has with
/// what is in its page cache, and sends the offset with every write.
fn open_flags(flags: i32) -> OpenFlags {
    OpenFlags {
        append: false,
        ..OpenFlags::from_raw(flags)
    }
}

/// Finds data or a hole.
///
/// # Errors
///
/// Those of [`crate::fs::FileReader::seek`].
pub(super) fn seek(fs: &Fs, operation: Operation<'_>) -> Result<u64, FsError> {
    let Operation::LSeek {
        handle,
        offset,
        whence: from,
    } = operation
    else {
        return Err(FsError::Invalid);
    };
    // The kernel's offsets are signed.
    if i64::try_from(offset).is_err() {
        return Err(FsError::NoSuchOffset);
    }
    let found = fs.reader().seek(handle, offset, whence(from)?)?;
    match i64::try_from(found) {
        Ok(_) => Ok(found),
        Err(_) => Err(FsError::Range),
    }
}

/// Has `forget_one` forget the look-ups that an operation takes back.
pub(super) fn forget(
    request: &Request,
    operation: Operation<'_>,
    mut forget_one: impl FnMut(Ino, u64),
) {
    match operation {
        Operation::Forget { lookups } => forget_one(request.ino(), lookups),
        Operation::BatchForget(forgets) => {
            for (ino, lookups) in forgets.pairs() {
                forget_one(ino, lookups);
            }
        }
        _ => {}
    }
}
