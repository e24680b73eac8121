//! The segments that are being written.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::{MemberIndex, SegmentId, StripeClass};
use crate::stripes::segment_handle::SegmentHandle;

/// A segment that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) handle: Arc<SegmentHandle>,
    /// The greatest height of a stripe.
    pub(super) step: u64,
    /// The offset of the next stripe.
    pub(super) next: u64,
    /// Bytes that reservations hold, behind `next`.
    pub(super) reserved: u64,
    /// Stripes that are being written.
    pub(super) in_flight: usize,
    /// True if it has a record.
    pub(super) recorded: bool,
    /// A file of it is not there any more, or was replaced.
    pub(super) damaged: bool,
    /// Members that it does without because they had no room for it.
    pub(super) left_out: Vec<MemberIndex>,
    pub(super) stage: Stage,
}

/// The progress of writing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It takes reservations.
    Open,
    /// It takes no more; what is reserved and in flight is yet to come.
    Retired,
    /// Its final length is being recorded.
    Finishing,
}

impl Writing {
    pub(super) fn is_done(&self) -> bool {
        self.stage == Stage::Retired && self.reserved == 0 && self.in_flight == 0
    }
}

/// The segments that are being written, and the members that take no more of them.
#[derive(Debug, Default)]
pub(super) struct Frontier {
    /// The segments for the next stripes, one for each class.
    pub(super) current: BTreeMap<StripeClass, SegmentId>,
    /// Those after them.
    pub(super) ahead: BTreeMap<StripeClass, SegmentId>,
    pub(super) writing: BTreeMap<SegmentId, Writing>,
    pub(super) opening: bool,
    /// The segment whose files are being made.
    pub(super) unfinished: Option<SegmentId>,
    /// Segments opened for new bytes since the mount.
    pub(super) opened: BTreeMap<StripeClass, u32>,
    /// Members that had no space for a write although it was reserved, until something is freed.
    pub(super) full: Vec<MemberIndex>,
    /// Members without room for a segment that the log has named, until there is room for one.
    pub(super) named_full: Vec<MemberIndex>,
    /// Members that the newest segment of new data does without because they had no room for it.
    pub(super) left_out: Vec<MemberIndex>,
    /// True if members that cannot reserve have what they are to keep back; of those where that is known.
    pub(super) ballast: BTreeMap<MemberIndex, bool>,
}

impl Frontier {
    /// Adds a segment whose files are made.
    pub(super) fn begin_writing(&mut self, id: SegmentId, fresh: Writing) {
        self.writing.insert(id, fresh);
        self.unfinished = None;
    }

    /// Returns a class whose current segment is nearly full, while no other one is open.
    pub(super) fn class_nearly_full(&self) -> Option<StripeClass> {
        let mut current = self.current.iter();
        let is_nearly_full = |(class, segment): &(&StripeClass, &SegmentId)| {
            let writing = self.writing.get(segment);
            !self.ahead.contains_key(class)
                && writing.is_some_and(|writing| {
                    let len = writing.handle.record.len;
                    len - writing.next - writing.reserved < len / 4
                })
        };
        current.find(is_nearly_full).map(|(class, _)| *class)
    }
}
