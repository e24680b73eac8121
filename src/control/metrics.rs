//! Metrics of one mount for Prometheus, over HTTP.
//!
//! `server` listens, `request` judges what comes, `sampler` asks the volume how it is, and `exposition` writes all numbers as
//! text. Nothing is measured for metrics alone but requests and commits, so a scrape shows what `cauchyfs status` shows.
//!
//! # Invariants
//!
//! - A scrape never waits long for a member that hangs: the sampler has a thread of its own, and a scrape that waited
//!   [`sampler::PATIENCE`] gets the sample before, whose age is a metric.
//! - Connections, their time, and the memory of each have limits (`server`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

mod exposition;
mod process;
pub(crate) mod request;
mod sampler;
mod server;

use exposition::Source;
use sampler::Sampler;

use super::listener::Survey;
use super::mounted::MountedVolume;
use crate::fuse::{OperationCounts, Transport};

/// The socket for metrics, before anything is served on it.
#[derive(Debug)]
pub(crate) struct MetricsSocket(TcpListener);

impl MetricsSocket {
    /// Listens at an address. A daemon does so before it confines itself, because it can open no such socket afterwards.
    ///
    /// # Errors
    ///
    /// Those of the system, for example if the address is in use.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Self)
    }
}

/// The metrics of a mount, until they are ended.
pub(crate) struct Metrics {
    sampler: Arc<Sampler>,
    server: server::Server,
}

impl Metrics {
    /// Serves metrics of a mounted volume. `survey` reports on it during an outage.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn start(
        socket: MetricsSocket,
        volume: &Arc<MountedVolume>,
        counts: Arc<OperationCounts>,
        transport: Transport,
        survey: Survey,
    ) -> io::Result<Self> {
        let sampler = Sampler::start(volume, survey)?;
        let source = Source::new(Arc::clone(&sampler), counts, transport);
        let MetricsSocket(listener) = socket;
        let server = server::Server::start(listener, Arc::new(move |format| source.page(format)));
        let server = server.inspect_err(|_| sampler.end())?;
        Ok(Self { sampler, server })
    }

    /// Takes no more connections, and looks at the volume no more. A look that is under way is waited for, a second at most.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.server.end();
        self.sampler.end();
    }
}
