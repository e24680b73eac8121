//! One run of a rebuild or of balancing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::scope::RebuildScope;
use crate::format::MemberIndex;
use crate::maintenance::InodeLocks;
use crate::maintenance::pace::Pace;

/// Settings and state of one run of a rebuild or of balancing.
pub(super) struct Round<'a> {
    pub(super) scope: RebuildScope,
    /// The absent members whose shards may move to others; all of them, if `None`.
    pub(super) given: Option<&'a [MemberIndex]>,
    pub(super) pace: &'a Pace<'a>,
    /// The locks that moving bytes into other stripes needs, if that is wanted.
    pub(super) locks: Option<&'a dyn InodeLocks>,
    /// Returns whether more urgent work came.
    pub(super) gives_way: &'a dyn Fn() -> bool,
    /// The members that were online when the plan was made.
    pub(super) online: Vec<MemberIndex>,
    /// Members that had no room, or failed otherwise, while the plan was carried out.
    pub(super) refusing: BTreeSet<MemberIndex>,
    pub(super) began: Instant,
    /// The time taken by earlier rebuilds that count with this one.
    pub(super) elapsed_before: Duration,
}

impl<'a> Round<'a> {
    pub(super) fn new(
        scope: RebuildScope,
        pace: &'a Pace<'a>,
        locks: Option<&'a dyn InodeLocks>,
    ) -> Self {
        Self {
            scope,
            given: None,
            pace,
            locks,
            gives_way: &|| false,
            online: Vec::new(),
            refusing: BTreeSet::new(),
            began: Instant::now(),
            elapsed_before: Duration::ZERO,
        }
    }

    /// Returns whether a member keeps its shards while it is absent, unless it is drained.
    pub(super) fn spares(&self, member: MemberIndex) -> bool {
        let is_given = self.given.is_none_or(|given| given.contains(&member));
        self.scope == RebuildScope::Online || !is_given
    }

    /// Returns the time taken so far.
    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed_before + self.began.elapsed()
    }
}
