//! The options of stripes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec::{Accelerator, Engine};
use crate::store::Pinner;
use crate::workers::Workers;

/// The course of writes while some members have no room, and the others are too few for all shards of a stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullMembers {
    /// There is no space.
    #[default]
    Stop,
    /// Stripes have fewer shards, but never fewer than can be read. They get the others once there is room.
    Degrade,
}

/// The options with which the stripes of a volume are run.
#[derive(Clone, Debug)]
pub struct StripeOptions {
    /// The engine that computes parity.
    pub engine: &'static dyn Engine,
    /// Bytes that stripe buffers may take together; at least two of them are had in any case.
    pub buffer_bytes: usize,
    /// Bytes of shards read ahead or decoded that are kept.
    pub cache_bytes: usize,
    /// The course of writes while members are full.
    pub full_members: FullMembers,
    /// Threads that flush, and as many that read ahead. With 0 there are none: the caller that fills or syncs
    /// stripes flushes them, in the same order in every run, and nothing is read ahead.
    pub threads: usize,
    /// The threads on which stripes are encoded and decoded, shared by all volumes that do so.
    pub workers: Arc<Workers>,
    /// A device that may compute parity in the engine's place, or chooses for each stripe which of them does.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// The device driver that is told of the memory in which stripes are coded.
    pub pinner: Option<Arc<dyn Pinner>>,
}
