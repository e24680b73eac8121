//! The adapter of one mount, and the answers that requests of one kind have in common.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request,
};

use super::convert::file_attr;
use super::mount::MountFlavor;
use super::page_cache::PageCache;
use super::pool::SlowPool;
use super::request::{Context, InFlight, Refuse};
use crate::format::Ino;
use crate::fs::{Attr, Caller, Changes, Fs, FsError};

/// The time for which the kernel may trust names and attributes, missing names included. We are the only
/// writer and every change passes through the kernel, so the answer is: as long as it likes.
pub(super) const TTL: Duration = Duration::from_secs(3600);

/// Inode numbers are never used twice, so none needs a generation.
pub(super) const GENERATION: Generation = Generation(0);

/// Serves one mount.
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    pub(super) slow: SlowPool,
    pub(super) page_cache: Arc<PageCache>,
    /// Shared by all requests that are not answered yet.
    pub(super) in_flight: InFlight,
    pub(super) writeback: bool,
    /// A change of names is durable before it is answered.
    pub(super) sync_names: bool,
    /// Any other change is durable before it is answered.
    pub(super) sync_all: bool,
}

impl Adapter {
    /// Returns an adapter of `fs` for a mount of this flavor; with `writeback`, the kernel collects small writes.
    ///
    /// # Errors
    ///
    /// If threads cannot be started.
    pub(super) fn new(fs: Arc<Fs>, flavor: &MountFlavor, writeback: bool) -> io::Result<Self> {
        Ok(Self {
            fs,
            slow: SlowPool::start()?,
            page_cache: Arc::default(),
            in_flight: InFlight::default(),
            writeback,
            sync_names: flavor.sync || flavor.dirsync,
            sync_all: flavor.sync,
        })
    }

    /// Notes that a request is at work on inode `number`.
    pub(super) fn context(
        &self,
        operation: &'static str,
        request: &Request,
        number: INodeNo,
    ) -> Context {
        self.in_flight.begin(operation, request, number)
    }

    /// Runs a write on the slow pool, because it may wait for a sync, or until room is made.
    pub(super) fn write_slowly(
        &self,
        context: Context,
        number: INodeNo,
        reply: ReplyWrite,
        from_page_cache: bool,
        write: impl FnOnce() -> Result<usize, FsError> + Send + 'static,
    ) {
        let (page_cache, apart) = (Arc::clone(&self.page_cache), self.slow.apart());
        self.slow.run(move || match context.attempt(write) {
            Ok(len) => written(reply, len as u64),
            Err(errno) if from_page_cache && errno == Errno::ENOSPC => {
                page_cache.note_starved(number);
                reply.error(errno);
                apart.run(move || {
                    context.tell(|| page_cache.distrust_attributes(number));
                });
            }
            Err(errno) => reply.error(errno),
        });
    }

    /// Runs `work`, a change. With `durable`, answers once it cannot be lost any more, and waits for that on the slow
    /// pool.
    pub(super) fn change<T: Send + 'static, R: Refuse + Send + 'static>(
        &self,
        durable: bool,
        context: Context,
        reply: R,
        work: impl FnOnce(&Fs) -> Result<T, FsError>,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        if !durable {
            context.answer(reply, || work(&self.fs), send);
            return;
        }
        match context.attempt(|| work(&self.fs)) {
            Ok(value) => {
                let fs = Arc::clone(&self.fs);
                self.slow
                    .run(move || context.answer(reply, || fs.syncfs().map(|()| value), send));
            }
            Err(errno) => reply.refuse(errno),
        }
    }

    /// Sets attributes on the slow pool, because the size of a large file is among them.
    pub(super) fn set_size_slowly(
        &self,
        context: Context,
        reply: ReplyAttr,
        caller: Caller,
        number: Ino,
        changes: Changes,
    ) {
        let (fs, durable) = (Arc::clone(&self.fs), self.sync_all);
        self.slow.run(move || {
            let work = || {
                let attr = fs.attributes().set(&caller, number, changes)?;
                if durable {
                    fs.syncfs()?;
                }
                Ok(attr)
            };
            context.answer(reply, work, |reply, attr| {
                reply.attr(&TTL, &file_attr(&attr));
            });
        });
    }

    /// Runs a change of names, and answers with an entry, whose look-up `work` has counted.
    pub(super) fn name_entry(
        &self,
        context: Context,
        reply: ReplyEntry,
        work: impl FnOnce(&Fs) -> Result<Attr, FsError>,
    ) {
        self.change(self.sync_names, context, reply, work, |reply, attr| {
            reply.entry(&TTL, &file_attr(&attr), GENERATION);
        });
    }

    /// Runs a change of names.
    pub(super) fn name_empty(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        self.change(self.sync_names, context, reply, work, |reply, ()| {
            reply.ok();
        });
    }

    /// Runs a change of an inode.
    pub(super) fn attribute(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        self.change(self.sync_all, context, reply, work, |reply, ()| reply.ok());
    }

    /// Runs `work`, whose reply is empty.
    pub(super) fn empty(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        context.answer(reply, || work(&self.fs), |reply, ()| reply.ok());
    }

    /// Runs `work`, whose reply is empty, on the slow pool, because it may wait for disks.
    pub(super) fn empty_slowly(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError> + Send + 'static,
    ) {
        let fs = Arc::clone(&self.fs);
        self.slow
            .run(move || context.answer(reply, || work(&fs), |reply, ()| reply.ok()));
    }

    /// Answers with bytes, or with their length if the caller has no room for any.
    pub(super) fn xattr(
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

/// Replies how many bytes were written.
pub(super) fn written(reply: ReplyWrite, bytes: u64) {
    // A request is at most 1 MiB for writes; for copies the kernel takes a short count.
    reply.written(u32::try_from(bytes).unwrap_or(u32::MAX));
}
