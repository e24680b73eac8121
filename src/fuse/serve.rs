//! A mount and the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::adapter::Adapter;
use super::device::Device;
use super::kernel;
use super::kernel_cache::KernelCache;
use super::memory::{MemoryService, PlainFiles};
use super::mount::{self, Mount, MountError, Mounted, Mounter, Unmount};
use super::negotiate::{Agreement, FileOpening, Offer, Wish};
use super::page_cache::PageCache;
use super::protocol::opcode;
use super::report::Report;
use super::request::{InFlight, Service};
use super::ring::{self, Rings, Traffic};
use super::serve_options::{ServeOptions, TransportChoice};
use super::turns::Turns;
use super::waiting::{OnFailure, WaitingRequests};
use crate::format::Ino;
use crate::fs::ServedFs;
use crate::workers::Threads;

/// The interval at which the thread checks whether the kernel has cut the connection.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The rest of the thread that reads the device after a FORGET. Inodes without names keep their space for so much longer.
const FORGETS_APART: Duration = Duration::from_millis(1);

/// The way on which requests of the kernel come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Over `io_uring`, with a queue for each CPU.
    Uring,
    /// Over `/dev/fuse`.
    Classic,
}

/// The reason why requests do not come over `io_uring`.
const NOT_OFFERED: &str = "the kernel does not offer FUSE over io_uring";

/// A mount that is being served.
#[derive(Debug)]
pub struct Serving {
    session: Running,
    mount: Mount,
}

/// The connection of a mount to the kernel.
#[derive(Debug)]
pub struct Connection {
    watched: OwnedFd,
    device: Arc<Device>,
    waiting: Arc<WaitingRequests>,
}

impl Connection {
    /// Returns whether the kernel has cut the connection: the filesystem is mounted nowhere, and no more requests come.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let mut device = [PollFd::new(&self.watched, PollFlags::empty())];
        let looked = poll(&mut device, Some(&Timespec::default()));
        looked.is_ok() && device[0].revents().contains(PollFlags::ERR)
    }

    /// Returns whether requests wait for the volume while it is away.
    #[must_use]
    pub fn has_requests_wait(&self) -> bool {
        self.waiting.on_failure() == OnFailure::Wait
    }

    /// Has the requests fail that wait for the volume, and those that come while it is away. Returns once they have failed,
    /// unless a member hangs. The caller is about to unmount.
    pub fn release_waiting(&self) {
        self.waiting.release();
    }

    /// Has requests wait for the volume again after [`Self::release_waiting`], because the mount stays.
    pub fn wait_again(&self) {
        self.waiting.take_again();
    }

    /// Refuses programs from now on, and has the kernel write back what it has accepted from them. `inodes` are those that
    /// the kernel may know. The caller ends the daemon next.
    ///
    /// The kernel looks at the attributes of a file before it accepts a write into its page cache. It would accept one also
    /// without a daemon. So it has to ask for them, and is refused. It writes back pages on request. Pages that a program
    /// has mapped can change after that, until the program writes or syncs.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told. What it has accepted may then be lost.
    pub fn refuse_programs(&self, inodes: &[Ino]) -> io::Result<()> {
        self.device.refuse_programs();
        let page_cache = PageCache::new(Arc::clone(&self.device));
        for ino in inodes {
            page_cache.distrust_attributes(*ino)?;
        }
        let mut written = Ok(());
        for ino in inodes {
            written = written.and(page_cache.write_back(*ino, 0, None));
        }
        written
    }
}

/// A session, and the signs of its end.
#[derive(Debug)]
struct Running {
    ended: Receiver<io::Result<()>>,
    connection: Connection,
    in_flight: InFlight,
    transport: Transport,
    kernel_cache: KernelCache,
}

/// Mounts `fs` on `mountpoint` through `mounter`, and serves it until it is unmounted, regardless of the process
/// that does it.
///
/// # Errors
///
/// If it cannot be mounted, or if the kernel and we do not agree on how to talk.
pub fn serve(
    served: Arc<ServedFs>,
    mounter: &impl Mounter,
    mountpoint: &Path,
    options: &ServeOptions,
) -> Result<Serving, MountError> {
    serve_through(
        mounter,
        mountpoint,
        options,
        |device, agreement, waiting| {
            let adapter = Adapter::new(served, options, agreement, device, waiting)?;
            Ok(Arc::new(adapter))
        },
    )
}

/// Mounts an empty filesystem in memory on `mountpoint`, and serves it as [`serve()`] does a volume. It has room for
/// `capacity` bytes of files. Their bytes also go into `plain_files`. A benchmark compares a volume with it.
///
/// # Errors
///
/// As [`serve()`].
pub fn serve_memory(
    capacity: u64,
    plain_files: Option<PlainFiles>,
    mounter: &impl Mounter,
    mountpoint: &Path,
    options: &ServeOptions,
) -> Result<Serving, MountError> {
    serve_through(mounter, mountpoint, options, |_, agreement, _| {
        let opens = agreement.file_opens();
        Ok(Arc::new(MemoryService::new(capacity, opens, plain_files)))
    })
}

/// Makes the service of a mount, from its connection, the agreement with the kernel, and the place where requests wait.
trait Begin:
    FnOnce(Arc<Device>, &Agreement, &Arc<WaitingRequests>) -> io::Result<Arc<dyn Service>>
{
}

impl<F> Begin for F where
    F: FnOnce(Arc<Device>, &Agreement, &Arc<WaitingRequests>) -> io::Result<Arc<dyn Service>>
{
}

/// Mounts, and has requests worked on by the service that `begin` returns.
fn serve_through(
    mounter: &impl Mounter,
    mountpoint: &Path,
    options: &ServeOptions,
    begin: impl Begin,
) -> Result<Serving, MountError> {
    let refused = |source| MountError::Refused {
        mountpoint: mountpoint.to_owned(),
        source,
    };
    if options.transport == TransportChoice::Uring && !ring::is_enabled() {
        return Err(refused(io::Error::other(format!(
            "{NOT_OFFERED}; `echo Y > {}` as root enables it (Linux 6.14 or later)",
            ring::PARAMETER
        ))));
    }
    let Mounted { device, mount } = mounter.mount(mountpoint, &options.flavor)?;
    let session = start(begin, device, options).map_err(|error| {
        if let Err(stuck) = mounter.unmount(&mount, Unmount::Lazily) {
            tracing::error!("the mount that could not be served stays: {stuck}");
        }
        refused(error)
    })?;
    if !mount::raise_read_ahead(mountpoint) {
        tracing::debug!("read-ahead stays at the kernel's default");
    }
    Ok(Serving { session, mount })
}

/// Negotiates with the kernel and starts the threads.
fn start(begin: impl Begin, device: OwnedFd, options: &ServeOptions) -> io::Result<Running> {
    let watched = device.try_clone()?;
    let device = Arc::new(Device::new(device));
    let waiting = Arc::new(WaitingRequests::new(options.on_failure));
    let connection = Connection {
        watched,
        device: Arc::clone(&device),
        waiting: Arc::clone(&waiting),
    };
    let (outcome, outcomes) = mpsc::channel();
    let session = Session {
        threads: Threads::default(),
        outcomes,
        device,
        waiting,
    };
    let count = options.request_threads();
    let rings = session.prepare_rings(options.transport, count, &outcome)?;
    let wish = Wish {
        writeback: options.writeback,
        uring: rings.is_some(),
        opening: opening(options),
    };
    let agreement = negotiate(&session.device, wish)?;
    let rings = rings.filter(|_| agreement.is_over_uring());
    let service = begin(Arc::clone(&session.device), &agreement, &session.waiting)?;
    let in_flight = service.in_flight().clone();
    let traffic = session.register(rings, &service, options.transport, &outcome)?;
    let (transport, readers) = match traffic {
        Some(_) => (Transport::Uring, 1),
        None => (Transport::Classic, count),
    };
    if options.on_failure == OnFailure::Wait {
        session.serve_waiting(&service, &outcome)?;
    }
    session.read_device(readers, traffic.as_ref(), &service, &outcome)?;
    let kernel_cache = KernelCache::new(Arc::clone(&session.device));
    drop(outcome);
    let (end, ended) = mpsc::channel();
    session.report_end(service, end)?;
    Ok(Running {
        ended,
        connection,
        in_flight,
        transport,
        kernel_cache,
    })
}

/// Returns the way in which the kernel is to open files. Where files are only read, a request for each tells a program
/// at once that it cannot write.
fn opening(options: &ServeOptions) -> FileOpening {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    if options.open_requests || options.flavor.read_only || !kernel::may_open_by_itself(&release) {
        FileOpening::Requested
    } else {
        FileOpening::ByKernel
    }
}

/// Answers the first request, INIT. Returns the agreement.
fn negotiate(device: &Arc<Device>, wish: Wish) -> io::Result<Agreement> {
    loop {
        let request = device
            .receive()?
            .ok_or_else(|| io::Error::other("the mount went away at once"))?;
        if request.header().opcode != opcode::INIT {
            return Err(io::Error::other("the kernel does not begin with INIT"));
        }
        let offer = Offer::parse(request.body()).map_err(io::Error::other)?;
        if offer.is_of_later_version() {
            request.answer_bytes(offer.version_only().bytes());
            continue;
        }
        let agreement = offer.agree(wish)?;
        request.answer_bytes(agreement.bytes());
        return Ok(agreement);
    }
}

/// The threads that serve a mount.
struct Session {
    threads: Threads,
    outcomes: Receiver<io::Result<()>>,
    device: Arc<Device>,
    waiting: Arc<WaitingRequests>,
}

impl Session {
    /// Sets up rings if they are wanted and to be had.
    fn prepare_rings(
        &self,
        wanted: TransportChoice,
        helpers: usize,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<Option<Rings>> {
        if wanted == TransportChoice::Classic || !ring::is_enabled() {
            return Ok(None);
        }
        let counts = (helpers, self.waiting.most());
        match Rings::prepare(&self.device, &self.threads, counts, outcome) {
            Ok(rings) => Ok(Some(rings)),
            Err(error) if wanted == TransportChoice::Uring => Err(error),
            Err(error) => {
                tracing::info!(
                    "requests come over /dev/fuse, because io_uring is not to be had: {error}"
                );
                Ok(None)
            }
        }
    }

    /// Registers rings, if there are any. Returns their traffic if requests come over them from now on.
    fn register(
        &self,
        rings: Option<Rings>,
        service: &Arc<dyn Service>,
        wanted: TransportChoice,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<Option<Arc<Traffic>>> {
        let Some(rings) = rings else {
            return match wanted {
                TransportChoice::Uring => Err(io::Error::other(NOT_OFFERED)),
                TransportChoice::Auto | TransportChoice::Classic => Ok(None),
            };
        };
        let (queues, traffic) = (rings.queues(), Arc::clone(rings.traffic()));
        match rings.register(&self.device, &self.threads, service, outcome) {
            Ok(()) => {
                tracing::info!("requests come over io_uring, in {queues} queues");
                Ok(Some(traffic))
            }
            Err(error) if wanted == TransportChoice::Uring => Err(error),
            Err(error) => {
                tracing::warn!(
                    "requests come over /dev/fuse, because the kernel refuses a queue: {error}"
                );
                Ok(None)
            }
        }
    }

    /// Starts `count` threads that read requests from the device. With `traffic`, requests come over rings, and the few that are
    /// read here count as served beside them.
    fn read_device(
        &self,
        count: usize,
        traffic: Option<&Arc<Traffic>>,
        service: &Arc<dyn Service>,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let turns = Arc::new(Turns::default());
        (0..count).try_for_each(|number| {
            let (service, device) = (Arc::clone(service), Arc::clone(&self.device));
            let (report, waiting) = (Report::new(outcome), Arc::clone(&self.waiting));
            let (turns, traffic) = (Arc::clone(&turns), traffic.cloned());
            self.threads.start(format!("request-{number}"), move || {
                let served = serve_device(&*service, &device, &turns, traffic.as_deref());
                waiting.end();
                report.send(served);
            })
        })
    }

    /// Starts the thread that works on requests which waited for the volume.
    fn serve_waiting(
        &self,
        service: &Arc<dyn Service>,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let (service, waiting) = (Arc::clone(service), Arc::clone(&self.waiting));
        let report = Report::new(outcome);
        self.threads.start("resume", move || {
            waiting.serve(&*service);
            report.send(Ok(()));
        })
    }

    /// Starts the thread that reports to `end` when one of the others fails, or all are done. The requests that a
    /// thread was to serve wait for it, so the mount cannot be served without it.
    fn report_end(
        self,
        service: impl Send + 'static,
        end: Sender<io::Result<()>>,
    ) -> io::Result<()> {
        thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || {
                // The receiver is gone if the requests were all answered before, or a thread failed.
                if let Some(failed) = self.outcomes.iter().find(Result::is_err) {
                    let _ = end.send(failed);
                }
                self.threads.wait();
                // Waits for the slow pool.
                drop(service);
                let _ = end.send(Ok(()));
            })
            .map(drop)
    }
}

/// Serves requests until the mount is gone.
///
/// Beside `io_uring`, a program that drops references would wake this thread for each of them, on another CPU. So this one
/// rests after a FORGET, and the kernel hands over all that came meanwhile at once. Its requests count in `traffic`.
fn serve_device(
    service: &dyn Service,
    device: &Arc<Device>,
    turns: &Turns,
    traffic: Option<&Traffic>,
) -> io::Result<()> {
    while let Some((request, _work)) = turns.receive(|| device.receive())? {
        let is_forget = matches!(
            request.header().opcode,
            opcode::FORGET | opcode::BATCH_FORGET
        );
        let served = traffic.map(Traffic::serve_beside);
        service.serve(request);
        drop(served);
        if is_forget && traffic.is_some() {
            thread::sleep(FORGETS_APART);
        }
    }
    Ok(())
}

impl Serving {
    /// Returns where it is mounted.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns the way on which requests come.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.session.transport
    }

    /// Returns what the kernel remembers of the mount.
    #[must_use]
    pub fn kernel_cache(&self) -> KernelCache {
        self.session.kernel_cache.clone()
    }

    /// Returns the requests that wait for the volume.
    #[must_use]
    pub fn waiting(&self) -> Arc<WaitingRequests> {
        Arc::clone(&self.session.connection.waiting)
    }

    /// Returns its connection to the kernel, to be looked at.
    ///
    /// # Errors
    ///
    /// If this process may have no more descriptors.
    pub fn connection(&self) -> io::Result<Connection> {
        let Connection {
            watched,
            device,
            waiting,
        } = &self.session.connection;
        Ok(Connection {
            watched: watched.try_clone()?,
            device: Arc::clone(device),
            waiting: Arc::clone(waiting),
        })
    }

    /// Waits until the mount is gone and all requests are answered.
    ///
    /// # Errors
    ///
    /// If the connection to the kernel broke, or a thread panicked. The mount may be there still, and requests wait.
    pub fn wait(self) -> io::Result<()> {
        self.session.wait()
    }
}

impl Running {
    /// Waits for the end of the session. The session waits for its threads, and a thread cannot end before a member
    /// answers to which it handed an operation. So the end of the session is not the only sign.
    fn wait(self) -> io::Result<()> {
        let mut was_cut = false;
        loop {
            match self.ended.recv_timeout(LOOK_INTERVAL) {
                Ok(ended) => return ended,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the session's thread panicked"));
                }
                // A look later, what was read last from the connection is being worked on.
                Err(RecvTimeoutError::Timeout) if was_cut && self.all_answered() => {
                    tracing::warn!("threads that served requests cannot end");
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => was_cut = self.connection.is_cut(),
            }
        }
    }

    fn all_answered(&self) -> bool {
        const SERVICE_AND_SELF: usize = 2;
        self.in_flight.holders() == SERVICE_AND_SELF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_fails_ends_the_session_though_others_serve_on() {
        for panics in [false, true] {
            let (outcome, outcomes) = mpsc::channel();
            let session = Session {
                threads: Threads::default(),
                outcomes,
                device: Arc::new(Device::new(tempfile::tempfile().unwrap().into())),
                waiting: Arc::new(WaitingRequests::new(OnFailure::Error)),
            };
            let (release, released) = mpsc::channel::<()>();
            let serving = Report::new(&outcome);
            let serve = move || {
                let _released = released.recv();
                serving.send(Ok(()));
            };
            session.threads.start("serves", serve).unwrap();
            let failing = Report::new(&outcome);
            let fail = move || {
                assert!(!panics, "on purpose");
                failing.send(Err(io::Error::other("on purpose")));
            };
            session.threads.start("fails", fail).unwrap();
            drop(outcome);
            let (end, ended) = mpsc::channel();
            session.report_end((), end).unwrap();
            let ended = ended.recv_timeout(Duration::from_secs(60));
            assert!(ended.is_ok_and(|outcome| outcome.is_err()), "{panics}");
            drop(release);
        }
    }
}
