//! Members that are drained, and then removed.

use super::super::{CommitError, MAX_MENDED_AT_CLOSE, Pipeline};
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId};

impl Pipeline {
    /// Drains a member, so that it can be removed. A call of [`Pipeline::rebuild`] must follow, which does both.
    ///
    /// # Errors
    ///
    /// The member stays, as far as [`Members::leaving`](crate::members::Members::leaving) does not say otherwise.
    /// [`CommitError::Members`] if the others would be too few; [`CommitError::NoSpace`] if they have too
    /// little room; else as for [`Pipeline::sync`].
    pub fn remove_member(&self, member: MemberIndex) -> Result<(), CommitError> {
        self.empty_member(member, None)
    }

    /// Drains a member like [`Pipeline::remove_member`], and moves its shards to another, as far as that has room. It
    /// does so after a restart, too.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::remove_member`].
    pub fn replace_member(&self, old: MemberIndex, new: MemberIndex) -> Result<(), CommitError> {
        self.empty_member(old, Some(new))
    }

    fn empty_member(
        &self,
        member: MemberIndex,
        heir: Option<MemberIndex>,
    ) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        if !self.has_room_without(member) {
            self.reaper.free_dead()?;
            if !self.has_room_without(member) {
                return Err(CommitError::NoSpace);
            }
        }
        let was_leaving = self.members.leaving().contains(&member);
        match heir {
            Some(heir) => self.members.set_leaving_to(member, heir)?,
            None => self.members.set_leaving(member, true)?,
        }
        let retired = self.volume.retire_segments().map_err(CommitError::from);
        let begun = retired.and_then(|()| self.sync());
        if begun.is_err()
            && !was_leaving
            && let Err(error) = self.members.set_leaving(member, false)
        {
            log::warn!("member {member} is being emptied although that was to be undone: {error}");
        }
        begun
    }

    /// Says whether a member replaces another, or is to: it has come for that, and is not to leave itself.
    #[must_use]
    pub fn may_succeed(&self, old: MemberIndex, new: MemberIndex) -> bool {
        let is_leaving = self.members.leaving().contains(&new);
        self.members.heir_of(old) == Some(new) && !is_leaving
    }

    /// Keeps a member that was to be drained: moved shards stay where they are, and nothing else moves.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if there is no such member, or no epoch can be begun.
    pub fn keep_member(&self, member: MemberIndex) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        Ok(self.members.set_leaving(member, false)?)
    }

    /// Says whether the other members have room for the data of one.
    fn has_room_without(&self, member: MemberIndex) -> bool {
        let loads = self.volume.loads();
        let taken = loads.get(&member).map_or(0, |load| load.taken);
        let others = loads.iter().filter(|(other, _)| **other != member);
        let room: u64 = others.map(|(_, load)| load.available).sum();
        room >= taken
    }

    /// Removes the members that are empty by now.
    pub(super) fn let_members_go(&self) -> Result<(), CommitError> {
        for member in self.members.leaving() {
            let names_it =
                |(_, segment): &(SegmentId, Segment)| segment.slots.contains(&Some(member));
            if self.volume.segments().iter().any(names_it) {
                continue;
            }
            // Its copy of the index is needed until another member has one in its place.
            self.commits.mend_index(MAX_MENDED_AT_CLOSE)?;
            if self.replicas.holders().contains(&member) {
                log::warn!(
                    "member {member} stays: no other has room for the copy of the index that it has"
                );
                continue;
            }
            let store = self.members.store(member);
            if !self.members.let_go(member)? {
                // The member is kept after all, and it may have something new already.
                continue;
            }
            self.volume.forget_member(member);
            if let Some(store) = store {
                self.members.clear(&store);
            }
            log::info!("member {member} is none any more");
        }
        Ok(())
    }
}
