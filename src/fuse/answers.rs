//! Common answers to requests of one kind.

use std::sync::Arc;

use fuser::{Errno, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr, Request};

use super::adapter::{Adapter, GENERATION, TTL};
use super::convert::file_attr;
use super::request::{Context, Refuse};
use crate::format::Ino;
use crate::fs::{Attr, Caller, Changes, Fs, FsError};

/// Replies how many bytes were written.
pub(super) fn written(reply: ReplyWrite, bytes: u64) {
    // A request is at most 1 MiB for writes; for copies the kernel takes a short count.
    reply.written(u32::try_from(bytes).unwrap_or(u32::MAX));
}

impl Adapter {
    /// Notes that a request is at work on inode `number`.
    pub(super) fn context(
        &self,
        operation: &'static str,
        request: &Request,
        number: INodeNo,
    ) -> Context {
        self.underway.begin(operation, request, number)
    }

    /// Writes where that may wait for a sync, or until room is made.
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

    /// Changes something; with `durable`, answers once that cannot be lost any more, and waits for it
    /// elsewhere.
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

    /// Sets attributes of a file that may be large, a size among them, where that may take its time.
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

    /// Changes names, and answers with an entry, whose lookup `work` has counted.
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

    /// Changes names.
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

    /// Changes an inode, and no name.
    pub(super) fn attribute(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        self.change(self.sync_all, context, reply, work, |reply, ()| reply.ok());
    }

    /// Does what has no answer but that it is done.
    pub(super) fn empty(
        &self,
        context: Context,
        reply: ReplyEmpty,
        work: impl FnOnce(&Fs) -> Result<(), FsError>,
    ) {
        context.answer(reply, || work(&self.fs), |reply, ()| reply.ok());
    }

    /// The same for what may wait for disks.
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

    /// Answers with bytes whose length the caller may ask for first.
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
