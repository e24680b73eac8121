//! A mount and the threads that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use fuser::{Config, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::adapter::Adapter;
use super::mount::{self, Mount, MountError, MountFlavor, Mounted, Mounter, Unmount};
use super::request::InFlight;
use crate::fs::Fs;

/// The interval at which the thread checks whether the kernel has cut the connection.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The options for serving a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// The options of the mount.
    pub flavor: MountFlavor,
    /// Threads that read requests; 0 for one per CPU and two more.
    pub threads: usize,
    /// Let the kernel collect small writes.
    pub writeback: bool,
}

/// A mount that is being served.
#[derive(Debug)]
pub struct Serving {
    session: Running,
    mount: Mount,
}

/// The connection of a mount to the kernel.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Returns whether the kernel has cut the connection: the filesystem is mounted nowhere, and no more requests come.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let mut device = [PollFd::new(&self.0, PollFlags::empty())];
        let looked = poll(&mut device, Some(&Timespec::default()));
        looked.is_ok() && device[0].revents().contains(PollFlags::ERR)
    }
}

/// A session, and the signs of its end.
#[derive(Debug)]
struct Running {
    ended: Receiver<io::Result<()>>,
    connection: Connection,
    in_flight: InFlight,
}

/// Mounts `fs` on `mountpoint` through `mounter`, and serves it until it is unmounted, regardless of the process
/// that does it.
///
/// # Errors
///
/// If it cannot be mounted, or if the kernel and we do not agree on how to talk.
pub fn serve(
    fs: Arc<Fs>,
    mounter: &impl Mounter,
    mountpoint: &Path,
    options: &ServeOptions,
) -> Result<Serving, MountError> {
    let refused = |source| MountError::Refused {
        mountpoint: mountpoint.to_owned(),
        source,
    };
    let adapter = Adapter::new(fs, &options.flavor, options.writeback).map_err(refused)?;
    let Mounted { device, mount } = mounter.mount(mountpoint, &options.flavor)?;
    let session = start(adapter, device, options).map_err(|error| {
        if let Err(stuck) = mounter.unmount(&mount, Unmount::Lazily) {
            log::error!("the mount that could not be served stays: {stuck}");
        }
        refused(error)
    })?;
    if !mount::raise_read_ahead(mountpoint) {
        log::debug!("read-ahead stays at the kernel's default");
    }
    Ok(Serving { session, mount })
}

/// Negotiates with the kernel and starts the threads.
fn start(adapter: Adapter, device: OwnedFd, options: &ServeOptions) -> io::Result<Running> {
    let mut config = Config::default();
    config.n_threads = Some(match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from) + 2,
        threads => threads,
    });
    // The kernel lets in the users that the mount allows. fuser's own check would refuse requests that the kernel
    // sends on its own account, such as the times of pages that it writes back.
    let page_cache = Arc::clone(&adapter.page_cache);
    let in_flight = adapter.in_flight.clone();
    let watched = device.try_clone()?;
    let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
    page_cache.connect(session.notifier());
    let (end, ended) = mpsc::channel();
    std::thread::Builder::new()
        .name("session".to_owned())
        .spawn(move || {
            // The receiver is gone if the requests were all answered before.
            let _ = end.send(session.run());
        })?;
    Ok(Running {
        ended,
        connection: Connection(watched),
        in_flight,
    })
}

impl Serving {
    /// Returns where it is mounted.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns its connection to the kernel, to be looked at.
    ///
    /// # Errors
    ///
    /// If this process may have no more descriptors.
    pub fn connection(&self) -> io::Result<Connection> {
        let Connection(device) = &self.session.connection;
        device.try_clone().map(Connection)
    }

    /// Waits until the mount is gone and all requests are answered.
    ///
    /// # Errors
    ///
    /// If the connection to the kernel broke, or a thread panicked.
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
                    log::warn!("threads that served requests cannot end");
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => was_cut = self.connection.is_cut(),
            }
        }
    }

    fn all_answered(&self) -> bool {
        const ADAPTER_AND_SELF: usize = 2;
        self.in_flight.holders() == ADAPTER_AND_SELF
    }
}
