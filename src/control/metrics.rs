//! Metrics of one mount for Prometheus, over HTTP.
//!
//! `server` listens, `request` judges what comes, `sampler` asks the volume how it is, and `exposition` writes all numbers as
//! text. Nothing is measured for metrics alone but requests and commits, so a scrape shows what `cauchyfs status` shows.
//!
//! # Invariants
//!
//! - A scrape never waits long for a member that hangs, because the sampler has a thread of its own. A scrape that waited
//!   [`sampler::PATIENCE`] gets the sample before, whose age is a metric.
//! - Connections, their time, and the memory of each have limits (`server`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

pub(crate) mod crowd;
mod exposition;
pub(crate) mod families;
mod known;
mod process;
pub(crate) mod request;
mod sampler;
mod server;

pub(crate) use exposition::Source;
use sampler::Sampler;

use super::mounted::MountedVolume;
use super::server::Announced;
use super::summary::Survey;
use crate::fuse::OperationCounts;

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
    source: Arc<Source>,
    server: Option<server::Server>,
}

impl Metrics {
    /// Collects metrics of a volume that is about to be mounted. `survey` reports on it during an outage.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn start(
        volume: &Arc<MountedVolume>,
        counts: Arc<OperationCounts>,
        announced: Arc<Announced>,
        survey: Survey,
    ) -> io::Result<Self> {
        let sampler = Sampler::start(volume, survey)?;
        let volume = Arc::clone(volume);
        let source = Source::new(Arc::clone(&sampler), counts, announced, volume);
        let source = Arc::new(source);
        Ok(Self {
            sampler,
            source,
            server: None,
        })
    }

    /// Returns the origin of the numbers.
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Serves them over HTTP from now on.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn serve(&mut self, socket: MetricsSocket) -> io::Result<()> {
        let source = Arc::clone(&self.source);
        let MetricsSocket(listener) = socket;
        let page = Arc::new(move |format| source.page(format));
        self.server = Some(server::Server::start(listener, page)?);
        Ok(())
    }

    /// Takes no more connections, and looks at the volume no more. A look that is under way is waited for, a second at most.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.end();
        }
        self.sampler.end();
    }
}
