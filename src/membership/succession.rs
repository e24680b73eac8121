//! The fate of members that are gone: the members in their places, and those whose data is being rebuilt elsewhere.
//!
//! The superblocks hold it. So the next open of the volume, after a crash too, continues the work and understands a
//! command that is given once more.

use std::collections::BTreeSet;

use super::fields::noted_path;
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

    /// Returns the absent members that are not waited for: their data is being rebuilt on others.
    pub(super) fn given_up(&self) -> &BTreeSet<MemberIndex> {
        &self.given_up
    }

    /// Notes which absent members are not waited for, in place of the earlier note.
    pub(super) fn set_given_up(&mut self, given_up: BTreeSet<MemberIndex>) {
        self.given_up = given_up;
    }

    /// These are in the epoch.
    pub(super) fn admit(&mut self, members: &BTreeSet<MemberIndex>) {
        self.given_up.retain(|member| !members.contains(member));
    }

    /// Returns the member that gets the data of another, or has got it.
    pub(super) fn heir_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        let mut replaced = self.replaced.iter();
        let found = replaced.find(|replaced| replaced.index == index)?;
        Some(found.heir).filter(|heir| *heir != index)
    }

    /// Returns the member that has the data of the one that was last at one of these paths.
    pub(super) fn heir_at(&self, paths: &[String]) -> Option<MemberIndex> {
        let was_there = |replaced: &&Replaced| {
            let mut paths = paths.iter();
            !replaced.path.is_empty() && paths.any(|path| path.as_bytes() == replaced.path)
        };
        let newest = self.replaced.iter().rev().find(was_there);
        newest.map(|replaced| replaced.heir)
    }
}
