//! Counting what is really on the members (P6).

use std::collections::HashSet;

use super::{Core, Tally};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, files};
use crate::store::Store;

/// Which segment files there are on the members at hand, as their directories list them.
#[derive(Clone, Debug, Default)]
pub struct Census {
    files: HashSet<(MemberIndex, SegmentId)>,
}

impl Census {
    /// Returns how many more shards a stripe can lose before its data is lost; negative if it is.
    ///
    /// A shard counts if it was written and the file that should hold it is on a member at hand.
    #[must_use]
    pub fn losses_tolerated(&self, segment: &Segment, stripe: &Stripe) -> i16 {
        let is_there = |shard| {
            let member = super::layout::member_of(segment, stripe, shard);
            stripe.written.contains(shard)
                && member.is_some_and(|member| self.files.contains(&(member, stripe.segment)))
        };
        Tally::of(segment, stripe, is_there).losses_tolerated()
    }

    /// Returns the segments with a file on some member.
    pub(super) fn files(&self) -> impl Iterator<Item = (MemberIndex, SegmentId)> + '_ {
        self.files.iter().copied()
    }
}

impl Core {
    /// Lists the segment files of all members at hand: one call to each.
    pub(super) fn census(&self) -> Census {
        let mut found = HashSet::new();
        for member in self.members.live() {
            let list = |store: &dyn Store| store.list(files::SEGMENTS);
            match self.members.call(member, "list", list) {
                Ok(listed) => {
                    let segments = listed
                        .iter()
                        .filter_map(|(name, _)| files::parse_segment(name));
                    found.extend(segments.map(|segment| (member, segment)));
                }
                // It is out of the volume by now, and counts for nothing.
                Err(error) => log::debug!("{error}"),
            }
        }
        Census { files: found }
    }
}
