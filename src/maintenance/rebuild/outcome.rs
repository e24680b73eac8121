//! Outcomes of the steps of a rebuild.

use crate::maintenance::rebuild_status::Obstacle;

/// Outcome of the rebuild of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentOutcome {
    /// The slots have their shards, or at least more of them.
    Improved,
    /// Nothing could be done.
    Blocked(Obstacle),
    /// The segment lacks nothing any more.
    Needless,
    /// The rebuild has to stop.
    Stopped,
}

/// Outcome of carrying out one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanOutcome {
    /// Every segment of the plan was tried.
    Complete {
        /// Set if the rebuild of at least one segment improved it.
        improved: bool,
    },
    /// The plan was made for other online members, or more urgent work came.
    Outdated,
    /// The rebuild has to stop.
    Stopped,
}
