//! Requests of the kernel, one callback each, turned into calls of [`Fs`].
//!
//! # Invariants
//!
//! - Every request gets exactly one reply, also when a callback panics ([`Context::answer`]).
//! - What may wait for disks longer than a read does goes to the [`SlowPool`].
//! - Nothing here decides anything about files: that is [`crate::fs`].

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags as RawOpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags as RawWriteFlags,
};

use super::convert::{
    absent, bare, caller, file_attr, file_type, ino, name, rename_mode, requested_time,
    time_or_now, whence, xattr_mode,
};
use super::negotiate::negotiate;
use super::pool::SlowPool;
use super::request::Context;
use crate::fs::{Allocation, Attr, Changes, Fs, FsError, Handle, OpenFlags, WriteFlags};

/// How long the kernel may trust names and attributes, missing names included. We are the only
/// writer and every change passes through the kernel, so the answer is: as long as it likes.
const TTL: Duration = Duration::from_secs(3600);

/// Inode numbers are never used twice, so none needs a generation.
const GENERATION: Generation = Generation(0);

/// Cached pages stay valid from one open to the next, and direct writes may overlap in time.
const OPEN_FILE: FopenFlags =
    FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Cached listings stay valid from one opendir to the next.
const OPEN_DIRECTORY: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_CACHE_DIR);

thread_local! {
    /// Where reads of this thread land; grows to the largest request and is kept.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves one mount.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    slow: SlowPool,
    writeback: bool,
}

impl Adapter {
    /// Puts itself before `fs`.
    ///
    /// # Errors
    ///
    /// If threads cannot be started.
    pub(super) fn new(fs: Arc<Fs>, writeback: bool) -> io::Result<Self> {
        Ok(Self {
            fs,
            slow: SlowPool::start()?,
            writeback,
        })
    }

    /// Answers with an entry, whose lookup `work` has counted.
    fn entry(
        &self,
        context: Context,
        reply: ReplyEntry,
        work: impl FnOnce(&Fs) -> Result<Attr, FsError>,
    ) {
        context.answer(
            reply,
            || work(&self.fs),
            |reply, attr| reply.entry(&TTL, &file_attr(&attr), GENERATION),
        );
    }

    fn empty(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        context.answer(reply, || work(&self.fs), |reply, ()| reply.ok());
    }

    fn empty_slowly(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError> + Send + 'static,
    ) {
        let fs = Arc::clone(&self.fs);
        self.slow
            .run(move || context.answer(reply, || work(&fs), |reply, ()| reply.ok()));
    }

    /// Answers with bytes whose length the caller may ask for first.
    fn xattr(
        &self,
        context: Context,
        reply: ReplyXattr,
        room: u32,
        work: impl FnOnce(&Fs) -> Result<Vec<u8>, FsError>,
    ) {
        let fits = |bytes: Vec<u8>| match u32::try_from(bytes.len()) {
            Ok(len) if room == 0 || len <= room => Ok((len, bytes)),
            Ok(_) => Err(FsError::Range),
            Err(_) => Err(FsError::TooBig),
        };
        context.answer(
            reply,
            || work(&self.fs).and_then(fits),
            |reply, (len, bytes)| match room {
                0 => reply.size(len),
                _ => reply.data(&bytes),
            },
        );
    }
}

fn written(reply: ReplyWrite, bytes: u64) {
    // A request is at most 1 MiB for writes; for copies the kernel takes a short count.
    reply.written(u32::try_from(bytes).unwrap_or(u32::MAX));
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.writeback)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEntry) {
        Context::new("lookup", request, parent).answer(
            reply,
            || match self.fs.lookup(ino(parent), name(child)) {
                Ok(attr) => Ok(file_attr(&attr)),
                Err(FsError::NotFound) => Ok(absent()),
                Err(error) => Err(error),
            },
            |reply, attr| reply.entry(&TTL, &attr, GENERATION),
        );
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.fs.forget(ino(number), lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        Context::new("getattr", request, number).answer(
            reply,
            || self.fs.getattr(ino(number)),
            |reply, attr| reply.attr(&TTL, &file_attr(&attr)),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            permissions: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
            ctime: ctime.map(requested_time),
            kill_suid_sgid: mode.is_none()
                && uid.is_none()
                && gid.is_none()
                && size.is_none()
                && atime.is_none()
                && mtime.is_none()
                && ctime.is_none(),
            handle: handle.map(|handle| Handle(handle.0)),
        };
        let caller = caller(request, 0);
        Context::new("setattr", request, number).answer(
            reply,
            || self.fs.setattr(&caller, ino(number), changes),
            |reply, attr| reply.attr(&TTL, &file_attr(&attr)),
        );
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        Context::new("readlink", request, number).answer(
            reply,
            || self.fs.readlink(ino(number)),
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, umask);
        self.entry(Context::new("mknod", request, parent), reply, |fs| {
            fs.mknod(&caller, ino(parent), name(child), mode, rdev)
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, umask);
        self.entry(Context::new("mkdir", request, parent), reply, |fs| {
            fs.mkdir(&caller, ino(parent), name(child), mode)
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        self.empty(Context::new("unlink", request, parent), reply, |fs| {
            fs.unlink(ino(parent), name(child))
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        self.empty(Context::new("rmdir", request, parent), reply, |fs| {
            fs.rmdir(ino(parent), name(child))
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, 0);
        self.entry(Context::new("symlink", request, parent), reply, |fs| {
            let target = target.as_os_str().as_bytes();
            fs.symlink(&caller, ino(parent), name(child), target)
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        new_parent: INodeNo,
        new_child: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(Context::new("rename", request, parent), reply, |fs| {
            let mode = rename_mode(flags)?;
            let (from, to) = (name(child), name(new_child));
            fs.rename(ino(parent), from, ino(new_parent), to, mode)
        });
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        parent: INodeNo,
        child: &OsStr,
        reply: ReplyEntry,
    ) {
        self.entry(Context::new("link", request, number), reply, |fs| {
            fs.link(ino(number), ino(parent), name(child))
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: RawOpenFlags, reply: ReplyOpen) {
        let caller = caller(request, 0);
        Context::new("open", request, number).answer(
            reply,
            || {
                self.fs
                    .open_file(&caller, ino(number), OpenFlags::from_raw(flags.0))
            },
            |reply, handle| reply.opened(FileHandle(handle.0), OPEN_FILE),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        child: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = caller(request, umask);
        let flags = OpenFlags::from_raw(flags);
        Context::new("create", request, parent).answer(
            reply,
            || {
                self.fs
                    .create(&caller, ino(parent), name(child), mode, flags)
            },
            |reply, (attr, handle)| {
                let handle = FileHandle(handle.0);
                reply.created(&TTL, &file_attr(&attr), GENERATION, handle, OPEN_FILE);
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: RawOpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            Context::new("read", request, number).answer(
                reply,
                || {
                    let out = &mut buffer[..size];
                    let len = self.fs.read(Handle(handle.0), offset, out)?;
                    Ok(&out[..len])
                },
                ReplyData::data,
            );
        });
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: RawWriteFlags,
        flags: RawOpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let context = Context::new("write", request, number);
        let caller = caller(request, 0);
        let handle = Handle(handle.0);
        let how = WriteFlags {
            from_page_cache: write_flags.contains(RawWriteFlags::FUSE_WRITE_CACHE),
            kill_suid_sgid: write_flags.contains(RawWriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        if flags.0 & libc::O_DSYNC != 0 && !how.from_page_cache {
            // It waits for a sync: worth a copy, so that this thread goes on reading requests.
            let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
            self.slow.run(move || {
                context.answer(
                    reply,
                    || fs.write(&caller, handle, offset, &data, how),
                    |reply, len| written(reply, len as u64),
                );
            });
            return;
        }
        context.answer(
            reply,
            || self.fs.write(&caller, handle, offset, data, how),
            |reply, len| written(reply, len as u64),
        );
    }

    fn flush(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.empty(Context::new("flush", request, number), reply, |fs| {
            fs.flush(Handle(handle.0))
        });
    }

    fn release(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: RawOpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(Context::new("release", request, number), reply, |fs| {
            fs.release(Handle(handle.0))
        });
    }

    fn fsync(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.empty_slowly(Context::new("fsync", request, number), reply, move |fs| {
            fs.fsync(ino(number), datasync)
        });
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: RawOpenFlags, reply: ReplyOpen) {
        Context::new("opendir", request, number).answer(
            reply,
            || self.fs.opendir(ino(number)),
            |reply, handle| reply.opened(FileHandle(handle.0), OPEN_DIRECTORY),
        );
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let context = Context::new("readdir", request, number);
        let listed = context.attempt(|| {
            self.fs
                .readdir(Handle(handle.0), offset, false, &mut |item| {
                    let entry = OsStr::from_bytes(item.name);
                    !reply.add(INodeNo(item.ino.0), item.next, file_type(item.kind), entry)
                })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let context = Context::new("readdirplus", request, number);
        let listed = context.attempt(|| {
            self.fs
                .readdir(Handle(handle.0), offset, true, &mut |item| {
                    // Only "." and ".." may lack attributes, and the kernel uses none of theirs.
                    let attr = item
                        .attr
                        .as_ref()
                        .map_or_else(|| bare(item.ino, item.kind), file_attr);
                    let entry = OsStr::from_bytes(item.name);
                    !reply.add(
                        INodeNo(item.ino.0),
                        item.next,
                        entry,
                        &TTL,
                        &attr,
                        GENERATION,
                    )
                })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: RawOpenFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(Context::new("releasedir", request, number), reply, |fs| {
            fs.releasedir(Handle(handle.0))
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let context = Context::new("fsyncdir", request, number);
        self.empty_slowly(context, reply, move |fs| fs.fsync(ino(number), datasync));
    }

    fn statfs(&self, request: &Request, number: INodeNo, reply: ReplyStatfs) {
        Context::new("statfs", request, number).answer(
            reply,
            || self.fs.statfs(),
            |reply, space| {
                reply.statfs(
                    space.blocks,
                    space.blocks_free,
                    space.blocks_available,
                    space.files,
                    space.files_free,
                    space.block_size,
                    space.name_max,
                    space.block_size,
                );
            },
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        key: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request, 0);
        self.empty(Context::new("setxattr", request, number), reply, |fs| {
            fs.setxattr(&caller, ino(number), name(key), value, xattr_mode(flags)?)
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        key: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let context = Context::new("getxattr", request, number);
        self.xattr(context, reply, size, |fs| {
            fs.getxattr(ino(number), name(key))
        });
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let context = Context::new("listxattr", request, number);
        self.xattr(context, reply, size, |fs| fs.listxattr(ino(number)));
    }

    fn removexattr(&self, request: &Request, number: INodeNo, key: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request, 0);
        self.empty(Context::new("removexattr", request, number), reply, |fs| {
            fs.removexattr(&caller, ino(number), name(key))
        });
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        // Makes the kernel answer by itself from now on: files are always ready.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let context = Context::new("fallocate", request, number);
        let caller = caller(request, 0);
        self.empty_slowly(context, reply, move |fs| {
            let mode = Allocation::from_raw(mode)?;
            fs.fallocate(&caller, Handle(handle.0), mode, offset, len)
        });
    }

    fn lseek(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: i64,
        from: i32,
        reply: ReplyLseek,
    ) {
        Context::new("lseek", request, number).answer(
            reply,
            || {
                let offset = u64::try_from(offset).map_err(|_| FsError::NoSuchOffset)?;
                let found = self.fs.seek(Handle(handle.0), offset, whence(from)?)?;
                i64::try_from(found).map_err(|_| FsError::Range)
            },
            ReplyLseek::offset,
        );
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        source_handle: FileHandle,
        source_offset: u64,
        _: INodeNo,
        target_handle: FileHandle,
        target_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let context = Context::new("copy_file_range", request, source);
        let caller = caller(request, 0);
        let (from, to) = (Handle(source_handle.0), Handle(target_handle.0));
        let len = len.min(MAX_COPY);
        let fs = Arc::clone(&self.fs);
        self.slow.run(move || {
            context.answer(
                reply,
                || fs.copy_range(&caller, from, source_offset, to, target_offset, len),
                written,
            );
        });
    }
}

/// The most bytes of one copy: the reply's count has 32 bits, and a call must end in bounded time.
const MAX_COPY: u64 = 1 << 30;
