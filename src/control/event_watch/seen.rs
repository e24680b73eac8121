//! The state of a volume at one moment, as far as events tell of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::event::EventMember;
use crate::format::{MemberId, MemberIndex};
use crate::maintenance::{Maintenance, RebuildProgress, ScrubStatus};
use crate::membership::{ErrorCounts, MemberState, MemberStatus, Members};

/// One member at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberSeen {
    pub(super) id: MemberId,
    pub(super) path: String,
    pub(super) state: MemberState,
    /// The reason for its state, in words.
    pub(super) reason: String,
    pub(super) is_draining: bool,
    pub(super) errors: ErrorCounts,
    /// True if an operation on it has not answered yet, and its caller went on.
    pub(super) is_slow: bool,
}

/// The code of new stripes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeSeen {
    pub(super) data: u16,
    pub(super) parity: u16,
    pub(super) code: String,
    pub(super) unit_bytes: u32,
}

/// A count of the redundancy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RedundancySeen {
    /// The losses that the worst stripe survives; as many as promised without stripes.
    pub(super) losses_tolerated: i64,
    pub(super) losses_promised: i64,
    /// The stripes that survive fewer losses than promised.
    pub(super) stripes: u64,
    /// The bytes in them.
    pub(super) bytes: u64,
    /// The paths of files that hold lost ranges.
    pub(super) lost_files: BTreeSet<String>,
    /// The bytes of lost ranges.
    pub(super) lost_bytes: u64,
}

/// Measurements of the space, which ask every member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceSeen {
    pub(super) bytes_free: u64,
    /// 0 if too few members are online for a stripe.
    pub(super) bytes_usable: u64,
    pub(super) full: BTreeSet<MemberIndex>,
}

/// The state of a volume at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) members: BTreeMap<MemberIndex, MemberSeen>,
    /// The members that have the data of others, by the indexes of these.
    pub(super) heirs: BTreeMap<MemberIndex, MemberIndex>,
    /// True if the volume accepts no more changes, and was mounted to be written to.
    pub(super) has_failed: bool,
    pub(super) rebuild: RebuildProgress,
    /// The reason for which a rebuild failed that is tried again.
    pub(super) rebuild_failure: Option<String>,
    /// None if it cannot be read.
    pub(super) scrub: Option<ScrubStatus>,
    pub(super) code: CodeSeen,
    /// True if stripes have another code or stripe unit than new ones; none if that was not looked up.
    pub(super) has_other_codes: Option<bool>,
    /// None if nothing was measured for this look.
    pub(super) space: Option<SpaceSeen>,
    /// None if nothing was counted for this look.
    pub(super) redundancy: Option<RedundancySeen>,
    /// True if background work is paused.
    pub(super) is_paused: bool,
}

impl Seen {
    /// Looks at a volume, and asks none of its members. What takes longer is left out. `known` are the members that were there before.
    pub(super) fn of(maintenance: &Maintenance, known: impl Iterator<Item = MemberIndex>) -> Self {
        let transactions = maintenance.transactions();
        let members = transactions.members();
        let shape = members.shape();
        let heir = |index| Some((index, members.membership().heir_of(index)?));
        let count = |shards: usize| u16::try_from(shards).unwrap_or(u16::MAX);
        let found = members.known_members().into_iter();
        Self {
            members: found
                .map(|it| (it.index, member_seen(members, it)))
                .collect(),
            heirs: known.filter_map(heir).collect(),
            has_failed: transactions.has_failed(),
            rebuild: maintenance.rebuild().status().progress(),
            rebuild_failure: maintenance.rebuild().status().failure(),
            scrub: None,
            code: CodeSeen {
                data: count(shape.geometry().data_shards()),
                parity: count(shape.geometry().parity_shards()),
                code: shape.code().to_string(),
                unit_bytes: shape.unit_bytes(),
            },
            has_other_codes: None,
            space: None,
            redundancy: None,
            is_paused: false,
        }
    }

    /// Returns the number of members that are online.
    pub(super) fn online(&self) -> u16 {
        let members = self.members.values();
        let online = members.filter(|member| member.state == MemberState::Online);
        u16::try_from(online.count()).unwrap_or(u16::MAX)
    }

    /// Returns the number of members.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.members.len()).unwrap_or(u16::MAX)
    }
}

impl MemberSeen {
    /// Returns the member as an event names it.
    pub(super) fn subject(&self, index: MemberIndex) -> EventMember {
        EventMember {
            index,
            path: self.path.clone(),
        }
    }
}

fn member_seen(members: &Members, status: MemberStatus) -> MemberSeen {
    let store = members.membership().store(status.index);
    let reason = status.refusal.or(status.reason);
    MemberSeen {
        id: status.id,
        path: status.path,
        state: status.state,
        reason: reason.map_or_else(String::new, |reason| reason.to_string()),
        is_draining: status.draining,
        errors: status.errors,
        is_slow: store.is_some_and(|store| members.io().executor().is_slow(&store)),
    }
}
