//! The fate of members that are gone: the members in their places, and those whose data is being rebuilt elsewhere.
//!
//! The superblocks hold it. So the next open of the volume, after a crash too, continues the work and understands a
//! command that is given once more.

use std::collections::BTreeSet;

use super::epoch::{Roster, noted_path};
use super::{Access, Members};
use crate::format::MemberIndex;
use crate::format::superblock::{MAX_REPLACED, Replaced, Superblock};

/// The fate of members that are gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Succession {
    replaced: Vec<Replaced>,
    given_up: BTreeSet<MemberIndex>,
}

impl Succession {
    /// Takes the record in a superblock as far as it still holds: a build that does not know the record has kept it,
    /// even when members came or went.
    pub(super) fn of(block: &Superblock) -> Self {
        let is_of_epoch = |index: MemberIndex| {
            let entry = block.members.get(usize::from(index.0));
            let entry = entry.filter(|entry| !entry.is_vacant());
            entry.map(|entry| entry.current)
        };
        let (mut replaced, mut given_up) = (block.replaced(), block.given_up());
        replaced.retain(|replaced| is_of_epoch(replaced.heir).is_some());
        given_up.retain(|index| is_of_epoch(*index) == Some(false));
        Self { replaced, given_up }
    }

    /// Writes the record into a superblock.
    pub(super) fn write_to(&self, block: &mut Superblock) {
        block.set_given_up(&self.given_up);
        block.set_replaced(&self.replaced);
    }

    /// Gives to a member the data of another that was at this path, or has its very place.
    pub(super) fn note(&mut self, index: MemberIndex, heir: MemberIndex, path: &str) {
        self.forget_heir(index);
        let surplus = (self.replaced.len() + 1).saturating_sub(MAX_REPLACED);
        self.replaced.drain(..surplus);
        let path = noted_path(path);
        self.replaced.push(Replaced { index, heir, path });
    }

    /// Forgets the heir of a member, which keeps its data.
    pub(super) fn forget_heir(&mut self, index: MemberIndex) {
        self.replaced.retain(|replaced| replaced.index != index);
    }

    /// Another has the place of a member.
    pub(super) fn forget(&mut self, index: MemberIndex) {
        self.forget_heir(index);
        self.vacate(index);
    }

    /// Removes a member; keeps which member has its data.
    pub(super) fn vacate(&mut self, index: MemberIndex) {
        self.replaced.retain(|replaced| replaced.heir != index);
        self.given_up.remove(&index);
    }

    /// These are in the epoch.
    pub(super) fn admit(&mut self, members: &BTreeSet<MemberIndex>) {
        self.given_up.retain(|member| !members.contains(member));
    }

    /// Returns the member that gets the data of another, or has got it.
    fn heir_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        let mut replaced = self.replaced.iter();
        let found = replaced.find(|replaced| replaced.index == index)?;
        Some(found.heir).filter(|heir| *heir != index)
    }

    fn heir_at(&self, paths: &[String]) -> Option<MemberIndex> {
        let was_there = |replaced: &&Replaced| {
            let mut paths = paths.iter();
            !replaced.path.is_empty() && paths.any(|path| path.as_bytes() == replaced.path)
        };
        let newest = self.replaced.iter().rev().find(was_there);
        newest.map(|replaced| replaced.heir)
    }
}

impl Members {
    /// Returns the member that gets the data of another, or has got it: it has replaced the other, or is doing so.
    #[must_use]
    pub fn heir_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        self.succession.read().heir_of(index)
    }

    /// Returns the member that has the data of a former one, by the place of the latter.
    #[must_use]
    pub fn successor_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        let is_none = self.member(index).is_none_or(|member| member.is_vacant());
        self.heir_of(index).filter(|_| is_none)
    }

    /// The same by the path of the former member; of no use while a member is there.
    #[must_use]
    pub fn successor_at(&self, paths: &[String]) -> Option<MemberIndex> {
        let is_none = self.at(paths).is_none();
        self.succession.read().heir_at(paths).filter(|_| is_none)
    }

    /// Returns the absent members that are not waited for: their data is being rebuilt on others.
    #[must_use]
    pub fn given_up(&self) -> BTreeSet<MemberIndex> {
        self.succession.read().given_up.clone()
    }

    /// Notes the absent members whose data is being rebuilt on others, in place of the earlier note. A member that
    /// comes back counts no more. Durable on return, as far as the online members go.
    pub fn set_given_up(&self, given_up: BTreeSet<MemberIndex>) {
        let is_whole = {
            let mut roster = self.roster.lock();
            if self.access == Access::ReadOnly || !roster.begun || self.is_failed() {
                return;
            }
            if roster.succession.given_up == given_up {
                return;
            }
            roster.succession.given_up = given_up;
            *self.succession.write() = roster.succession.clone();
            self.renew_all(&mut roster)
        };
        if !is_whole {
            self.settle();
        }
    }

    /// Notes that no absent member is waited for: see [`Members::set_given_up`].
    pub fn give_up_absentees(&self) {
        let away = self.away().into_iter().map(|(index, _)| index);
        self.set_given_up(away.collect());
    }

    /// Rewrites the superblocks of all members in the epoch, except for those that are gone; returns false if a member
    /// failed.
    pub(super) fn renew_all(&self, roster: &mut Roster) -> bool {
        let has_one = |index: &&MemberIndex| {
            let member = self.member(**index);
            member.is_some_and(|member| member.is_up() && !member.lacks_superblock())
        };
        let up = roster.admitted.iter().filter(has_one);
        let blocks = up.filter_map(|index| roster.renewed(*index)).collect();
        self.write_superblocks(roster, blocks)
    }
}
