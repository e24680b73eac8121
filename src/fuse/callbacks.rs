//! Requests of the kernel, one callback each, turned into calls of [`Fs`].
//!
//! # Invariants
//!
//! - Every request gets exactly one reply, also when a callback panics: see
//!   [`Context::answer`](super::request::Context::answer).
//! - A request that may wait for disks longer than a read does goes to the [`SlowPool`](super::pool::SlowPool).
//! - Nothing here decides anything about files: that is [`crate::fs`].

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags as RawOpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags as RawWriteFlags,
};

use super::adapter::{Adapter, GENERATION, TTL, written};
use super::convert::{
    absent, bare, caller, file_attr, file_type, ino, name, rename_mode, requested_time,
    time_or_now, whence, xattr_mode,
};
use super::negotiate::negotiate;
use crate::fs::{Allocation, Changes, Fs, FsError, Handle, OpenFlags, WriteFlags};

/// Cached pages stay valid from one open to the next, and direct writes may overlap in time.
const OPEN_FILE: FopenFlags =
    FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Cached listings stay valid from one opendir to the next.
const OPEN_DIRECTORY: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_CACHE_DIR);

/// The most bytes of one copy: the reply's count has 32 bits, and a call must end in bounded time.
const MAX_COPY: u64 = 1 << 30;

thread_local! {
    /// The memory in which reads of this thread land; grows to the largest request and is kept.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads the flags of `open(2)`. The kernel decides where an append goes: it knows the size that the file has with
/// what is in its page cache, and sends the offset with every write.
fn open_flags(flags: i32) -> OpenFlags {
    OpenFlags {
        append: false,
        ..OpenFlags::from_raw(flags)
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.writeback)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEntry) {
        self.context("lookup", request, parent).answer(
            reply,
            || match self.fs.names().lookup(ino(parent), name(child)) {
                Ok(attr) => Ok(file_attr(&attr)),
                Err(FsError::NotFound) => Ok(absent()),
                Err(error) => Err(error),
            },
            |reply, attr| reply.entry(&TTL, &attr, GENERATION),
        );
    }

    fn forget(&self, request: &Request, number: INodeNo, lookups: u64) {
        let context = self.context("forget", request, number);
        context.guard(|| self.fs.open_files().forget(ino(number), lookups));
    }

    fn getattr(
        &self,
        request: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let writes = |handle: FileHandle| self.fs.open_files().only_writes(Handle(handle.0));
        self.context("getattr", request, number).answer(
            reply,
            || match handle {
                Some(handle) if self.page_cache.is_starved(number) && writes(handle) => {
                    Err(FsError::NoSpace)
                }
                _ => self.fs.attributes().get(ino(number)),
            },
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
            // The kernel has kept to itself what it was asked for: a write or `chown(-1, -1)`. With
            // the writeback cache it still sends the time of it.
            kill_suid_sgid: mode.is_none()
                && uid.is_none()
                && gid.is_none()
                && size.is_none()
                && atime.is_none()
                && mtime.is_none(),
            handle: handle.map(|handle| Handle(handle.0)),
        };
        let caller = caller(request, 0);
        let context = self.context("setattr", request, number);
        if size.is_some() && self.fs.writer().is_being_cut(ino(number)) {
            return self.set_size_slowly(context, reply, caller, ino(number), changes);
        }
        self.change(
            self.sync_all,
            context,
            reply,
            |fs| fs.attributes().set(&caller, ino(number), changes),
            |reply, attr| reply.attr(&TTL, &file_attr(&attr)),
        );
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        self.context("readlink", request, number).answer(
            reply,
            || self.fs.attributes().read_link(ino(number)),
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
        self.name_entry(self.context("mknod", request, parent), reply, |fs| {
            fs.names()
                .mknod(&caller, ino(parent), name(child), mode, rdev)
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
        self.name_entry(self.context("mkdir", request, parent), reply, |fs| {
            fs.names().mkdir(&caller, ino(parent), name(child), mode)
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        self.name_empty(self.context("unlink", request, parent), reply, |fs| {
            fs.names().unlink(ino(parent), name(child))
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, child: &OsStr, reply: ReplyEmpty) {
        self.name_empty(self.context("rmdir", request, parent), reply, |fs| {
            fs.names().rmdir(ino(parent), name(child))
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
        self.name_entry(self.context("symlink", request, parent), reply, |fs| {
            let target = target.as_os_str().as_bytes();
            fs.names()
                .symlink(&caller, ino(parent), name(child), target)
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
        self.name_empty(self.context("rename", request, parent), reply, |fs| {
            let mode = rename_mode(flags)?;
            let (from, to) = (name(child), name(new_child));
            fs.names()
                .rename(ino(parent), from, ino(new_parent), to, mode)
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
        self.name_entry(self.context("link", request, number), reply, |fs| {
            fs.names().link(ino(number), ino(parent), name(child))
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: RawOpenFlags, reply: ReplyOpen) {
        let caller = caller(request, 0);
        self.context("open", request, number).answer(
            reply,
            || {
                self.fs
                    .open_files()
                    .open(&caller, ino(number), open_flags(flags.0))
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
        let flags = open_flags(flags);
        let context = self.context("create", request, parent);
        self.change(
            self.sync_names,
            context,
            reply,
            |fs| {
                fs.names()
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
            self.context("read", request, number).answer(
                reply,
                || {
                    let out = &mut buffer[..size];
                    let len = self.fs.reader().read(Handle(handle.0), offset, out)?;
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
        let context = self.context("write", request, number);
        let handle = Handle(handle.0);
        let how = WriteFlags {
            from_page_cache: write_flags.contains(RawWriteFlags::FUSE_WRITE_CACHE),
            kill_suid_sgid: write_flags.contains(RawWriteFlags::FUSE_WRITE_KILL_SUIDGID),
            at_once: false,
        };
        let waits_for_sync = flags.0 & libc::O_DSYNC != 0 && !how.from_page_cache;
        if !waits_for_sync {
            let at_once = WriteFlags {
                at_once: true,
                ..how
            };
            let outcome =
                context.attempt(
                    || match self.fs.writer().write(handle, offset, data, at_once) {
                        Err(FsError::NoSpace) => Ok(None),
                        outcome => outcome.map(Some),
                    },
                );
            match outcome {
                Ok(Some(len)) => return written(reply, len as u64),
                Ok(None) => {}
                Err(errno) => return reply.error(errno),
            }
        }
        // It waits for a sync, or until room is made: worth a copy, so that this thread goes on
        // reading requests.
        let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
        self.write_slowly(context, number, reply, how.from_page_cache, move || {
            fs.writer().write(handle, offset, &data, how)
        });
    }

    fn flush(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.empty(self.context("flush", request, number), reply, |fs| {
            fs.open_files().flush(Handle(handle.0))
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
        self.empty(self.context("release", request, number), reply, |fs| {
            fs.open_files().release(Handle(handle.0))
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
        self.empty_slowly(self.context("fsync", request, number), reply, move |fs| {
            fs.fsync(ino(number), datasync)
        });
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: RawOpenFlags, reply: ReplyOpen) {
        self.context("opendir", request, number).answer(
            reply,
            || self.fs.directories().open(ino(number)),
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
        let context = self.context("readdir", request, number);
        let listed = context.attempt(|| {
            self.fs
                .directories()
                .read(Handle(handle.0), offset, false, &mut |item| {
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
        let context = self.context("readdirplus", request, number);
        let listed = context.attempt(|| {
            self.fs
                .directories()
                .read(Handle(handle.0), offset, true, &mut |item| {
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
        self.empty(self.context("releasedir", request, number), reply, |fs| {
            fs.directories().release(Handle(handle.0))
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
        let context = self.context("fsyncdir", request, number);
        self.empty_slowly(context, reply, move |fs| fs.fsync(ino(number), datasync));
    }

    fn statfs(&self, request: &Request, number: INodeNo, reply: ReplyStatfs) {
        // Every member is asked.
        let context = self.context("statfs", request, number);
        let fs = Arc::clone(&self.fs);
        self.slow.run(move || {
            context.answer(
                reply,
                || fs.statfs(),
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
        });
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
        self.attribute(self.context("setxattr", request, number), reply, |fs| {
            fs.xattrs()
                .set(&caller, ino(number), name(key), value, xattr_mode(flags)?)
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
        let context = self.context("getxattr", request, number);
        self.xattr(context, reply, size, |fs| {
            fs.xattrs().get(ino(number), name(key))
        });
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(request, 0);
        let context = self.context("listxattr", request, number);
        self.xattr(context, reply, size, |fs| {
            fs.xattrs().list(&caller, ino(number))
        });
    }

    fn removexattr(&self, request: &Request, number: INodeNo, key: &OsStr, reply: ReplyEmpty) {
        self.attribute(self.context("removexattr", request, number), reply, |fs| {
            fs.xattrs().remove(ino(number), name(key))
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
        let context = self.context("fallocate", request, number);
        let caller = caller(request, 0);
        self.empty_slowly(context, reply, move |fs| {
            let mode = Allocation::from_raw(mode)?;
            fs.writer()
                .fallocate(&caller, Handle(handle.0), mode, offset, len)
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
        let context = self.context("lseek", request, number);
        let seek = move |fs: &Fs| {
            let offset = u64::try_from(offset).map_err(|_| FsError::NoSuchOffset)?;
            let found = fs.reader().seek(Handle(handle.0), offset, whence(from)?)?;
            i64::try_from(found).map_err(|_| FsError::Range)
        };
        if !self.fs.open_files().has_writer(ino(number)) {
            context.answer(reply, || seek(&self.fs), ReplyLseek::offset);
            return;
        }
        // Written bytes may be in the kernel's cache alone, and would be taken for a hole.
        let (fs, page_cache) = (Arc::clone(&self.fs), Arc::clone(&self.page_cache));
        self.slow.apart().run(move || {
            if context.tell(|| page_cache.write_back(number)) {
                context.answer(reply, || seek(&fs), ReplyLseek::offset);
            } else {
                reply.error(Errno::EIO);
            }
        });
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
        let context = self.context("copy_file_range", request, source);
        let caller = caller(request, 0);
        let (from, to) = (Handle(source_handle.0), Handle(target_handle.0));
        let len = len.min(MAX_COPY);
        let fs = Arc::clone(&self.fs);
        self.slow.run(move || {
            context.answer(
                reply,
                || {
                    fs.writer()
                        .copy_range(&caller, from, source_offset, to, target_offset, len)
                },
                written,
            );
        });
    }
}
