//! Stale copies: members whose directories are from an earlier time, from a backup, say, or from a snapshot.
//!
//! They look like members that were away, or like ones that never were. But the last data written to them is not there,
//! although the records say so. So everything has to be verified, as a scrub does, before the records of them count
//! again.
//!
//! A stale copy is known by a superblock older than the last one written to the member, or by a journal without the
//! newest records. The other superblocks tell the last one even of a member that was left out long ago. Superblocks are
//! written when an epoch begins, and about every hour while the volume is changed. A copy made since is known only by
//! the journal, in two cases. It comes while the volume is open that the member was part of, or the volume is opened
//! and the member was in the epoch. Otherwise its damage is found as any damage is. Of a member that was away when the
//! volume was opened, the others know only the superblock.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::epoch::Roster;
use super::{Access, Members};
use crate::format::MemberIndex;

/// The stale copies that are not verified yet, and the number of notes before each: a member that is restored once more
/// has another number.
pub type PutBack = BTreeMap<MemberIndex, u64>;

/// See [`PutBack`].
#[derive(Debug, Default)]
pub(super) struct Unverified(Mutex<(u64, PutBack)>);

impl Unverified {
    /// Gives a member a number. Returns whether it had none.
    fn add(&self, member: MemberIndex) -> bool {
        let mut all = self.0.lock();
        all.0 += 1;
        let number = all.0;
        all.1.insert(member, number).is_none()
    }
}

impl Members {
    /// Notes a member that is a stale copy.
    pub fn note_put_back(&self, member: MemberIndex) {
        // Not at each time that it comes and there is no space to take it in; a read-only open reports it in its own
        // way.
        if self.unverified.add(member) && self.access == Access::ReadWrite {
            log::warn!(
                "member {member} ({}) is from an earlier time: was the directory put back from a backup? \
                 everything is going to be verified",
                self.path(member)
            );
        }
    }

    /// Notes stale copies that were found before the volume was opened, and are not verified yet.
    pub fn restore_put_back(&self, members: impl IntoIterator<Item = MemberIndex>) {
        let known = self.put_back();
        let is_vacant = |index| self.member(index).is_none_or(|member| member.is_vacant());
        let members = members.into_iter();
        members
            .filter(|member| !known.contains_key(member) && !is_vacant(*member))
            .for_each(|member| {
                self.unverified.add(member);
            });
    }

    /// Notes the return of a member: if it is not verified yet, a scrub during its absence does not count for it.
    pub(super) fn note_return(&self, member: MemberIndex) {
        if self.put_back().contains_key(&member) {
            self.unverified.add(member);
        }
    }

    /// Another has the place of a member, or none.
    pub(super) fn forget_put_back(&self, member: MemberIndex) {
        self.unverified.0.lock().1.remove(&member);
    }

    /// Rewrites the superblocks of the members in the epoch, durably. From then on an earlier copy is known to be
    /// stale, also after the member is left out of an epoch. Call it from time to time.
    pub fn renew_superblocks(&self) {
        let is_whole = {
            let mut roster = self.roster.lock();
            if self.access == Access::ReadOnly || !roster.begun || self.is_failed() {
                return;
            }
            self.renew_all(&mut roster)
        };
        if !is_whole {
            self.settle();
        }
    }

    /// Returns the stale copies that are not verified yet, including absent ones.
    #[must_use]
    pub fn put_back(&self) -> PutBack {
        self.unverified.0.lock().1.clone()
    }

    /// Notes that everything was verified since these stale copies came.
    pub fn set_verified(&self, verified: &PutBack) {
        let is_verified =
            |member: &MemberIndex, number: &mut u64| verified.get(member) == Some(number);
        let mut all = self.unverified.0.lock();
        all.1.retain(|member, number| !is_verified(member, number));
    }

    /// Notes the members whose superblocks were lost, unless they are known to be up to date.
    pub(super) fn note_claimed(&self) {
        for (member, _) in self.claimed.iter().filter(|(_, is_current)| !**is_current) {
            self.unverified.add(*member);
        }
    }

    /// Notes the members whose superblocks are older than the last ones written to them.
    pub(super) fn note_older(&self, roster: &Roster) {
        for index in self.indices() {
            let found = roster.block(index);
            if found.is_some_and(|found| roster.is_older(found)) {
                self.note_put_back(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verification of one scrub does not cover a copy that came in between, but that is not news.
    #[test]
    fn whoever_is_put_back_once_more_has_another_number_and_was_known_before() {
        let unverified = Unverified::default();
        assert!(unverified.add(MemberIndex(2)));
        let first = unverified.0.lock().1.clone();
        assert!(!unverified.add(MemberIndex(2)));
        let second = unverified.0.lock().1.clone();
        assert_ne!(first, second);
        assert_eq!(second.len(), 1);
    }
}
