//! The outcome of passing stripes, kept for the second pass.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::format::record::Scrub;
use crate::format::{MemberIndex, SegmentId};

/// The number of wrong or missing pieces of each member.
pub(super) type DefectCounts = BTreeMap<MemberIndex, u64>;

/// The outcome of passing stripes of a segment.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// The counts that the record of the scrub sums up.
    pub(super) counted: Scrub,
    /// Shards that were wrong or missing, repaired or not.
    pub(super) found: DefectCounts,
    /// Shards that were written and could not be verified.
    pub(super) unread: DefectCounts,
    /// The number of stripes that are to be rewritten, and would be less protected afterwards.
    pub(super) waiting: u64,
    /// Set if the volume or its index had no space to rewrite one of them.
    pub(super) lacks_space: bool,
    /// Set if this is the outcome of the second pass.
    pub(super) is_second: bool,
}

impl Passed {
    pub(super) fn add(&mut self, other: Self) {
        add_counted(&mut self.counted, &other.counted);
        self.waiting += other.waiting;
        self.lacks_space |= other.lacks_space;
        add_defects(&mut self.found, other.found);
        add_defects(&mut self.unread, other.unread);
    }

    /// Returns whether another pass may have another outcome.
    fn is_open(&self) -> bool {
        let Scrub {
            wrong,
            missing,
            lost,
            ..
        } = self.counted;
        (wrong, missing, lost, self.waiting) != (0, 0, 0, 0) || !self.unread.is_empty()
    }
}

/// Adds counts to a record.
pub(super) fn add_counted(scrub: &mut Scrub, counted: &Scrub) {
    scrub.bytes += counted.bytes;
    scrub.repaired += counted.repaired;
    scrub.wrong += counted.wrong;
    scrub.missing += counted.missing;
    scrub.lost += counted.lost;
}

/// Adds counts of defects to others.
pub(super) fn add_defects(
    all: &mut DefectCounts,
    pieces: impl IntoIterator<Item = (MemberIndex, u64)>,
) {
    for (member, pieces) in pieces {
        *all.entry(member).or_default() += pieces;
    }
}

/// Segments that were passed and not found whole. Closing the volume forgets them; their counts in the record of the
/// scrub stay.
#[derive(Debug, Default)]
pub(super) struct PassedSegments(pub(super) Mutex<Passes>);

#[derive(Debug, Default)]
pub(super) struct Passes {
    pub(super) passed: BTreeMap<SegmentId, Passed>,
    pub(super) again: Option<Again>,
    /// Shards that the last scrub which went through did not verify.
    pub(super) unverified: u64,
}

/// A segment that is being passed once more.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) segment: SegmentId,
    /// The offset to continue at; `None` at the end of the segment.
    pub(super) from: Option<u64>,
    pub(super) passed: Passed,
}

impl PassedSegments {
    /// Forgets all segments, because a scrub begins.
    pub(super) fn forget(&self) {
        *self.0.lock() = Passes::default();
    }

    /// Notes the outcome of passing stripes of a segment.
    pub(super) fn note(&self, segment: SegmentId, passed: Passed) {
        if passed.is_open() {
            let mut state = self.0.lock();
            state.passed.entry(segment).or_default().add(passed);
        }
    }
}
