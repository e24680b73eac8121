//! The status of each member, as reports show it.

use std::path::PathBuf;

use super::Members;
use super::access::Access;
use super::health::{MemberState, MemberStatus};
use super::reason::AbsenceReason;
use crate::format::MemberIndex;
use crate::store::Operations;

impl Members {
    /// Returns the status of each member, by index, and asks each how much it holds; for a slow one, the last answer
    /// counts.
    #[must_use]
    pub fn status(&self) -> Vec<MemberStatus> {
        let mut members = self.known_status();
        for member in &mut members {
            self.measure(member);
        }
        members
    }

    /// Returns the last known status of each member, by index. Asks none of them.
    #[must_use]
    pub fn known_members(&self) -> Vec<MemberStatus> {
        self.known_status()
    }

    /// Returns the members that do not take part, by index. Asks none of them, nor any other.
    #[must_use]
    pub fn absentees(&self) -> Vec<MemberStatus> {
        let mut members = self.known_status();
        members.retain(|member| member.state != MemberState::Online);
        members
    }

    /// Returns the operations of each member that is online since its directory was opened: reads, and writes with syncs.
    #[must_use]
    pub fn traffic(&self) -> Vec<(MemberIndex, Operations, Operations)> {
        let snapshot = self.membership.snapshot();
        let counted = snapshot.members().filter_map(|(index, member)| {
            let traffic = member.store()?.traffic()?;
            Some((index, traffic.reads(), traffic.writes()))
        });
        counted.collect()
    }

    /// Returns the directories that are open and locked.
    #[must_use]
    pub fn in_use(&self) -> Vec<PathBuf> {
        self.locks.paths().into_iter().map(PathBuf::from).collect()
    }

    /// Returns the known status of each member without asking it.
    fn known_status(&self) -> Vec<MemberStatus> {
        let stale = self.epochs.stale();
        let read_only = self.access == Access::ReadOnly;
        let unverified = self.stale_copies.unverified();
        let snapshot = self.membership.snapshot();
        let members = snapshot.members().filter(|(_, it)| !it.is_vacant());
        members
            .map(|(index, member)| {
                let health = member.health().clone();
                let waiting = stale.contains(&index);
                let waiting = waiting.then_some(AbsenceReason::Stale { read_only });
                let unverified = unverified.contains_key(&index);
                let unverified = unverified.then_some(AbsenceReason::Unverified);
                MemberStatus {
                    index,
                    id: member.id,
                    path: member.path.clone(),
                    state: health.state,
                    reason: health.reason.or(unverified).or(waiting),
                    refusal: health.refusal,
                    draining: snapshot.is_draining(index),
                    bytes_used: 0,
                    bytes_free: 0,
                    page_cache: None,
                    filesystem: None,
                    errors: member.observed().errors(),
                    wrong_at: member.observed().wrong_at(),
                }
            })
            .collect()
    }

    /// Fills in what a member says of its space. One that cannot say keeps 0 bytes: its state then tells why.
    fn measure(&self, member: &mut MemberStatus) {
        if !self.membership.is_online(member.index) {
            return;
        }
        let taken = self.io.taken(member.index);
        if let Some((taken, space)) = taken.zip(self.io.space(member.index)) {
            member.bytes_used = taken;
            member.bytes_free = space.free_bytes;
            member.page_cache = Some(space.page_cache);
            member.filesystem = Some(space.filesystem);
        }
    }
}
