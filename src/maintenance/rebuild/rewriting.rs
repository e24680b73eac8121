//! The state of the rewriting of files whose bytes have another code than theirs.

use crate::format::MemberIndex;

/// The state of an order to rewrite files, as far as memory keeps it.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// The order and the members with which the last look found nothing to move. The same look finds nothing again.
    pub(super) vain: Option<(u64, Present)>,
    /// The order that found no room, and how many bytes of shards it could not write.
    pub(super) no_room: Option<(u64, u64)>,
    /// The number of looks in turn that moved nothing although all that is left could be read.
    pub(super) futile: u32,
    /// The members with which stripes could not be read that the last order left. None once others were online, and until
    /// an order ended since the volume was opened.
    pub(super) left_with: Option<Vec<MemberIndex>>,
}

/// The members that a look for stripes to move counts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Present {
    /// Those that stay.
    pub(super) staying: Vec<MemberIndex>,
    /// The number that the volume has.
    pub(super) count: usize,
}

/// The rewriting of files whose bytes have another code than theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteStatus {
    /// Set if it is ordered, and not done as far as it can be.
    pub is_ordered: bool,
    /// Set if it waits for members.
    pub waits_for_members: bool,
    /// Set if it waits for room on them.
    pub waits_for_room: bool,
    /// The stripes that the last order left, because they cannot be read. They are tried again when members come back, and
    /// with the next order.
    pub stripes_left: u64,
}
