//! Everything that happens to a volume by itself, or by order: a part for each job, composed here.
//!
//! The parts use the transactions of the volume, and some of them use one another, from the top of this list to its end.

use std::sync::Arc;

use super::{Pipeline, RedundancyCounter};

/// The parts that maintain one open volume.
pub struct Maintenance {
    pipeline: Arc<Pipeline>,
    redundancy: Arc<RedundancyCounter>,
}

impl Maintenance {
    /// Composes the parts over the transactions of a volume.
    #[must_use]
    pub fn new(pipeline: Arc<Pipeline>) -> Arc<Self> {
        Arc::new(Self {
            redundancy: Arc::clone(pipeline.redundancy_counter()),
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
}
