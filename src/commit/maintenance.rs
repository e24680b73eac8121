//! Everything that happens to a volume by itself, or by order: a part for each job, composed here.
//!
//! The parts use the transactions of the volume, and some of them use one another, from the top of this list to its end.

use std::sync::Arc;

use super::{Draining, Joining, Pipeline, Rebuild, Recheck, RedundancyCounter};

/// The parts that maintain one open volume.
pub struct Maintenance {
    pipeline: Arc<Pipeline>,
    redundancy: Arc<RedundancyCounter>,
    draining: Arc<Draining>,
    joining: Arc<Joining>,
    rebuild: Arc<Rebuild>,
    recheck: Arc<Recheck>,
}

impl Maintenance {
    /// Composes the parts over the transactions of a volume.
    #[must_use]
    pub fn new(pipeline: Arc<Pipeline>) -> Arc<Self> {
        Arc::new(Self {
            redundancy: Arc::clone(pipeline.redundancy_counter()),
            draining: Arc::clone(pipeline.draining()),
            joining: Arc::clone(pipeline.joining()),
            rebuild: Arc::clone(pipeline.rebuild()),
            recheck: Arc::clone(pipeline.recheck()),
            pipeline,
        })
    }

    /// Returns the transactions of the volume.
    #[must_use]
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// Returns the counter of redundancy.
    #[must_use]
    pub fn redundancy(&self) -> &Arc<RedundancyCounter> {
        &self.redundancy
    }

    /// Returns the draining of members.
    #[must_use]
    pub fn draining(&self) -> &Arc<Draining> {
        &self.draining
    }

    /// Returns the joining of directories.
    #[must_use]
    pub fn joining(&self) -> &Arc<Joining> {
        &self.joining
    }

    /// Returns the rebuild of missing shards.
    #[must_use]
    pub fn rebuild(&self) -> &Arc<Rebuild> {
        &self.rebuild
    }

    /// Returns the search for unrecoverable ranges that can be read again.
    #[must_use]
    pub fn recheck(&self) -> &Arc<Recheck> {
        &self.recheck
    }
}
