//! The adapter of one mount: it decides on which thread a request is worked on, and answers it.
//!
//! # Invariants
//!
//! - Every request gets exactly one answer, also when the work panics: [`Context::attempt`] turns a panic into an
//!   error, and a [`Request`] that is dropped answers by itself. No panic ends the thread: see [`contain`].
//! - A request that may wait for disks longer than a read does goes to the [`SlowPool`]. Of those that wait
//!   for a commit alone, one at most commits on its thread. The others take no thread: the one that commits answers them.
//! - A job of the pool holds no adapter: the adapter waits for the pool when it is dropped.
//! - A request that waits for the volume holds no filesystem: the old one is closed once nothing holds it.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::answers::{Answers, needs_volume, with_volume_of};
use super::callbacks::{changes, forget, perform, seek};
use super::device::Device;
use super::negotiate::{Agreement, FileOpening, FileOpens};
use super::page_cache::{Lack, PageCache};
use super::pool::SlowPool;
use super::protocol::{
    Answer, FROM_PAGE_CACHE, Listing, Operation, attributes, offset_found, space, written,
};
use super::request::{Context, InFlight, Request, Service, contain};
use super::seek::{first_doubtful, seek_what_is_written};
use super::serve_options::ServeOptions;
use super::waiting::WaitingRequests;
use crate::format::Ino;
use crate::fs::{Fs, FsError, Handle, ServedFs, WriteFlags};

/// The bit of a WRITE that clears setuid and setgid.
const KILL_SUID_SGID: u32 = 1 << 2;

/// Serves one mount.
pub(super) struct Adapter {
    served: Arc<ServedFs>,
    answers: Answers,
    device: Arc<Device>,
    slow: SlowPool,
    page_cache: Arc<PageCache>,
    opens: FileOpens,
    /// The kernel needs no FLUSH to report failed writes.
    closes_by_itself: bool,
    /// Shared by all requests that are not answered yet.
    in_flight: InFlight,
    durable: DurableChanges,
    /// A thread that serves requests may commit, because others serve the rest meanwhile.
    commits_itself: bool,
}

/// The changes that are durable before they are answered.
struct DurableChanges {
    /// Those of names.
    names: bool,
    /// All others.
    all: bool,
}

impl Adapter {
    /// Returns an adapter of what is `served`, for a mount with these options, at the other end of `device`, as agreed
    /// with the kernel. Requests that wait for the volume do so in `waiting`.
    ///
    /// # Errors
    ///
    /// If threads cannot be started.
    pub(super) fn new(
        served: Arc<ServedFs>,
        options: &ServeOptions,
        agreement: &Agreement,
        device: Arc<Device>,
        waiting: &Arc<WaitingRequests>,
    ) -> io::Result<Self> {
        Ok(Self {
            answers: Answers::new(&served, waiting, options.counts.clone()),
            served,
            slow: SlowPool::start()?,
            page_cache: Arc::new(PageCache::new(Arc::clone(&device))),
            device,
            opens: agreement.file_opens(),
            closes_by_itself: agreement.closes_by_itself(),
            in_flight: InFlight::counting(options.counts.clone()),
            durable: DurableChanges {
                names: options.flavor.sync || options.flavor.dirsync,
                all: options.flavor.sync,
            },
            commits_itself: options.request_threads() > 1,
        })
    }
}

impl Service for Adapter {
    fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    fn serve(&self, request: Request) {
        contain(|| self.dispatch(request));
    }

    fn is_open(&self) -> bool {
        let served = self.served.current();
        let open = served.as_ref();
        open.is_some_and(|fs| !fs.transactions().lacks_members())
    }
}

impl Adapter {
    /// Works on a request, here or on another thread, and answers it.
    fn dispatch(&self, request: Request) {
        let Ok(operation) = request.operation() else {
            let header = request.header();
            tracing::error!("the kernel's request {header:?} is malformed");
            return request.answer(Err(Errno::INVAL));
        };
        if self.device.refuses_programs() && !completes_accepted(&operation) {
            return self.answers.refuse(request, Errno::NOTCONN);
        }
        if let Operation::Interrupt { unique } = operation
            && self.answers.tries_again()
        {
            self.answers.waiting().interrupt(unique);
            return request.end();
        }
        let served = self.served.present();
        let Some(fs) = &*served else {
            return self.serve_without_volume(request);
        };
        if self.needs_volume(&operation) && self.answers.waits_for(fs) {
            return self.answers.wait(request);
        }
        let context = self.in_flight.begin(operation.kind(), request.header());
        match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => {
                let forget_one = |ino, lookups| fs.open_files().forget(ino, lookups);
                context.guard(|| forget(&request, operation, forget_one));
                request.end();
            }
            Operation::Fsync | Operation::FsyncDir | Operation::Flush
                if fs.take_loss(request.ino()) =>
            {
                context.fail();
                request.answer(Err(Errno::IO));
            }
            Operation::Read {
                handle,
                offset,
                size,
            } => self.read(fs, &context, request, handle, offset, size),
            Operation::Write { .. } => self.write(fs, context, request),
            Operation::ReadDir {
                handle,
                offset,
                room,
            } => self.list(fs, &context, request, handle, offset, room, false),
            Operation::ReadDirPlus {
                handle,
                offset,
                room,
            } => self.list(fs, &context, request, handle, offset, room, true),
            // One commit covers the whole volume: a sync of data alone costs the same.
            Operation::Fsync | Operation::FsyncDir => {
                self.sync(fs, context, request);
            }
            Operation::StatFs => self.count_space(context, request),
            // As much data as the caller likes.
            Operation::Fallocate { .. } | Operation::CopyFileRange { .. } => {
                self.perform_slowly(fs, context, request);
            }
            Operation::SetAttr(wanted)
                if wanted.size.is_some() && fs.writer().may_resize_slowly(request.ino()) =>
            {
                self.set_size_slowly(fs, context, request);
            }
            Operation::LSeek { offset, whence, .. } => {
                self.seek(fs, context, request, offset, whence);
            }
            Operation::GetAttr {
                handle: Some(handle),
            }
            | Operation::Statx {
                handle: Some(handle),
            } if let Some(lack) = self.lack_to_learn_of(fs, &request, handle) => {
                request.answer(context.attempt(|| Err(lack.error())));
            }
            Operation::Ioctl => request.answer(Err(Errno::NOTTY)),
            Operation::Open { .. } if self.opens.opening == FileOpening::ByKernel => {
                request.answer(Err(Errno::NOSYS));
            }
            Operation::OpenDir if self.opens.directories_by_kernel => {
                request.answer(Err(Errno::NOSYS));
            }
            // Nothing is to be flushed: a write is in the transactions when it is answered.
            Operation::Flush if !self.closes_by_itself => request.answer(Ok(Answer::EMPTY)),
            // The kernel then answers by itself from now on.
            Operation::Flush | Operation::Interrupt { .. } | Operation::Unknown => {
                request.answer(Err(Errno::NOSYS));
            }
            _ => {
                let durable = self.is_durable_at_once(&operation);
                let outcome = context.attempt(|| perform(fs, self.opens, &request, operation));
                match outcome {
                    Ok(answer) if durable => self.answer_when_durable(fs, context, request, answer),
                    outcome => self.answers.give(fs, request, outcome),
                }
            }
        }
    }

    /// Answers a request while no volume is open, or has it wait for one.
    fn serve_without_volume(&self, request: Request) {
        match request.operation() {
            Ok(Operation::Flush) if self.answers.tries_again() && self.closes_by_itself => {
                request.answer(Err(Errno::NOSYS));
            }
            _ => self.answers.without_volume(request),
        }
    }

    /// Returns whether an operation of a program needs an open volume.
    fn needs_volume(&self, operation: &Operation<'_>) -> bool {
        needs_volume(operation) && !(self.closes_by_itself && *operation == Operation::Flush)
    }

    /// Returns whether a change must be durable before it is answered.
    fn is_durable_at_once(&self, operation: &Operation<'_>) -> bool {
        match operation {
            Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile { .. } => self.durable.names,
            Operation::SetAttr(_) | Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => {
                self.durable.all
            }
            _ => false,
        }
    }

    /// Returns what a writer that asks for attributes is to hear; see [`PageCache`].
    fn lack_to_learn_of(&self, fs: &Fs, request: &Request, handle: Handle) -> Option<Lack> {
        let lack = self.page_cache.starved(request.ino())?;
        fs.open_files().only_writes(handle).then_some(lack)
    }

    /// Answers once everything is durable. A sync that fails with the volume is done again.
    fn sync(&self, fs: &Arc<Fs>, context: Context, request: Request) {
        let (answers, members) = (
            self.answers.clone(),
            Arc::clone(fs.transactions().members()),
        );
        fs.sync_for(request.ino(), self.commits_itself, move |synced| {
            let outcome = context.attempt(|| synced.map(|()| Answer::EMPTY));
            answers.give_committed(&members, request, outcome);
        });
    }

    /// Answers a change that was made once it is durable. It is not made again if the volume fails: its second outcome
    /// could be another.
    fn answer_when_durable(
        &self,
        fs: &Arc<Fs>,
        context: Context,
        request: Request,
        answer: Answer,
    ) {
        fs.sync_for(request.ino(), self.commits_itself, move |synced| {
            request.answer(context.attempt(|| synced.map(|()| answer)));
        });
    }

    fn perform_slowly(&self, fs: &Arc<Fs>, context: Context, request: Request) {
        let (fs, opens, answers) = (Arc::clone(fs), self.opens, self.answers.clone());
        self.slow.run(move || {
            let outcome = context.attempt(|| perform(&fs, opens, &request, request.operation()?));
            answers.give(&fs, request, outcome);
        });
    }

    /// Answers with the space of every member.
    fn count_space(&self, context: Context, request: Request) {
        let served = Arc::clone(&self.served);
        self.slow.run(move || {
            let counted = context.attempt(|| Ok(space(&served.statfs_below(request.ino())?)));
            request.answer(counted);
        });
    }

    /// Sets attributes on the slow pool, because the size of a large file is among them.
    fn set_size_slowly(&self, fs: &Arc<Fs>, context: Context, request: Request) {
        let (fs, durable, answers) = (Arc::clone(fs), self.durable.all, self.answers.clone());
        self.slow.run(move || {
            let work = || {
                let Operation::SetAttr(wanted) = request.operation()? else {
                    return Err(FsError::Invalid);
                };
                let caller = request.caller(0);
                let attr = fs
                    .attributes()
                    .set(&caller, request.ino(), changes(&wanted))?;
                if durable {
                    fs.syncfs()?;
                }
                Ok(attributes(&attr))
            };
            let outcome = context.attempt(work);
            answers.give(&fs, request, outcome);
        });
    }

    /// Writes here if that ends soon. A write that waits for a sync, or until room is made, moves to the slow pool.
    fn write(&self, fs: &Arc<Fs>, context: Context, request: Request) {
        let tries_again = self.answers.tries_again();
        match context.attempt(|| write_at_once(fs, &request, tries_again)) {
            Ok(Some(len)) => {
                context.moved(len);
                request.answer(Ok(written(len as u64)));
            }
            Ok(None) => self.write_slowly(fs, context, request),
            Err(errno) => self.answers.give(fs, request, Err(errno)),
        }
    }

    fn write_slowly(&self, fs: &Arc<Fs>, context: Context, request: Request) {
        let (fs, page_cache) = (Arc::clone(fs), Arc::clone(&self.page_cache));
        let (apart, answers) = (self.slow.apart(), self.answers.clone());
        self.slow.run(move || {
            let mut from_page_cache = false;
            let outcome = context.attempt(|| {
                let write = Write::of(&request, answers.tries_again())?;
                from_page_cache = write.how.from_page_cache;
                write.run(&fs, write.how)
            });
            let outcome = outcome.map_err(|errno| with_volume_of(&fs, errno));
            let ino = request.ino();
            match outcome {
                Ok(len) => {
                    context.moved(len);
                    request.answer(Ok(written(len as u64)));
                }
                Err(errno) if answers.failed_with_volume(&fs, errno) => answers.wait(request),
                Err(errno) if from_page_cache && let Some(lack) = Lack::of(errno) => {
                    page_cache.note_starved(ino, lack);
                    request.answer(Err(errno));
                    apart.run(move || {
                        context.tell(|| page_cache.distrust_attributes(ino));
                    });
                }
                Err(errno) => request.answer(Err(errno)),
            }
        });
    }

    /// Finds data or a hole. Where the file has a hole, or ends, the kernel may cache bytes that are not here yet.
    fn seek(&self, fs: &Arc<Fs>, context: Context, request: Request, offset: u64, whence: i32) {
        let found = context.attempt(|| seek(fs, request.operation()?));
        if self.may_be_cached(fs, request.ino()) && first_doubtful(offset, whence, found).is_some()
        {
            self.seek_again(context, request);
        } else {
            self.answers.give(fs, request, found.map(offset_found));
        }
    }

    /// Returns whether the kernel may cache bytes of a file that are not here yet.
    fn may_be_cached(&self, fs: &Fs, ino: Ino) -> bool {
        match self.opens.opening {
            FileOpening::ByKernel => true,
            FileOpening::Requested => fs.open_files().has_writer(ino),
        }
    }

    /// Seeks on a thread that may wait until the kernel has written what it caches. Those writes may wait for the volume,
    /// so the thread holds no filesystem meanwhile.
    fn seek_again(&self, context: Context, request: Request) {
        let (served, page_cache) = (Arc::clone(&self.served), Arc::clone(&self.page_cache));
        let answers = self.answers.clone();
        self.slow.apart().run(move || {
            match seek_what_is_written(&context, &served, &page_cache, &request) {
                Some((fs, found)) => answers.give(&fs, request, found.map(offset_found)),
                None => answers.without_volume(request),
            }
        });
    }

    /// Reads into the memory of the answer.
    fn read(
        &self,
        fs: &Fs,
        context: &Context,
        mut request: Request,
        handle: Handle,
        offset: u64,
        size: u32,
    ) {
        let out = request.memory(size as usize);
        let outcome = context.attempt(|| fs.reader().read(handle, offset, out));
        if let Ok(len) = outcome {
            context.moved(len);
        }
        self.answers.give_memory(fs, request, outcome);
    }

    /// Lists a directory into the memory of the answer.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of one operation, besides what all work needs"
    )]
    fn list(
        &self,
        fs: &Fs,
        context: &Context,
        mut request: Request,
        handle: Handle,
        offset: u64,
        room: u32,
        with_attributes: bool,
    ) {
        let mut listing = Listing::new(request.memory(room as usize), with_attributes);
        let outcome = context.attempt(|| {
            fs.directories()
                .read(handle, offset, with_attributes, &mut |item| {
                    listing.add(&item)
                })
        });
        let len = listing.len();
        self.answers.give_memory(fs, request, outcome.map(|()| len));
    }
}

/// A write and its flags.
struct Write<'a> {
    handle: Handle,
    offset: u64,
    data: &'a [u8],
    how: WriteFlags,
    waits_for_sync: bool,
}

impl<'a> Write<'a> {
    fn of(request: &'a Request, tries_again: bool) -> Result<Self, FsError> {
        let Operation::Write {
            handle,
            offset,
            data,
            flags,
            open_flags,
        } = request.operation()?
        else {
            return Err(FsError::Invalid);
        };
        let how = WriteFlags {
            from_page_cache: flags & FROM_PAGE_CACHE != 0,
            is_direct: open_flags & libc::O_DIRECT != 0,
            unprivileged: (flags & KILL_SUID_SGID != 0).then(|| request.caller(0)),
            at_once: false,
            tries_again,
        };
        Ok(Self {
            handle,
            offset,
            data,
            how,
            waits_for_sync: open_flags & libc::O_DSYNC != 0 && !how.from_page_cache,
        })
    }

    fn run(&self, fs: &Fs, how: WriteFlags) -> Result<usize, FsError> {
        fs.writer().write(self.handle, self.offset, self.data, how)
    }
}

/// Returns whether a request completes what the kernel has accepted from programs: it writes back pages and times, or
/// gives something back.
fn completes_accepted(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Write { flags, .. } => flags & FROM_PAGE_CACHE != 0,
        // Programs cannot set this time.
        Operation::SetAttr(wanted) => wanted.ctime.is_some(),
        Operation::Forget { .. }
        | Operation::BatchForget(_)
        | Operation::Flush
        | Operation::Fsync
        | Operation::FsyncDir
        | Operation::Release { .. }
        | Operation::ReleaseDir { .. } => true,
        _ => false,
    }
}

/// Writes, unless that has to wait.
fn write_at_once(fs: &Fs, request: &Request, tries_again: bool) -> Result<Option<usize>, FsError> {
    let write = Write::of(request, tries_again)?;
    if write.waits_for_sync {
        return Ok(None);
    }
    let at_once = WriteFlags {
        at_once: true,
        ..write.how
    };
    match write.run(fs, at_once) {
        Err(FsError::NoSpace | FsError::QuotaExceeded) => Ok(None),
        outcome => outcome.map(Some),
    }
}
