//! Stale copies: members whose directories are from an earlier time, from a backup, say, or from a snapshot.
//!
//! They look like members that were away, or like ones that never were. But the last data written to them is not there,
//! although the records say so. So everything has to be verified, as a scrub does, before the records of them count
//! again.
//!
//! A stale copy is known by a superblock older than the last one written to the member. It is also known by a journal that
//! ends before the last record that the member acknowledged. The other superblocks tell both, even of a member that was left out long
//! ago. A copy of the newest record may still lack shards from before, because copying takes time. So a directory also
//! counts as one if it is not the very directory that the member lost while the volume is open.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::access::Access;
use super::snapshot::Membership;
use crate::format::MemberIndex;

/// The stale copies that are not verified yet, and the number of notes before each: a member that is restored once more
/// has another number.
pub type UnverifiedCopies = BTreeMap<MemberIndex, u64>;

/// The stale copies that are not verified yet, and the number of the last note.
#[derive(Debug, Default)]
struct Unverified(Mutex<(u64, UnverifiedCopies)>);

impl Unverified {
    /// Gives a member a number. Returns whether it had none.
    fn add(&self, member: MemberIndex) -> bool {
        let mut all = self.0.lock();
        all.0 += 1;
        let number = all.0;
        all.1.insert(member, number).is_none()
    }
}

/// The stale copies among the members.
#[derive(Debug)]
pub struct StaleCopies {
    access: Access,
    membership: Arc<Membership>,
    unverified: Unverified,
}

impl StaleCopies {
    pub(super) fn new(access: Access, membership: Arc<Membership>) -> Self {
        Self {
            access,
            membership,
            unverified: Unverified::default(),
        }
    }

    /// Notes a member that is a stale copy.
    pub fn note(&self, member: MemberIndex) {
        // Not at each time that it comes and there is no space to take it in; a read-only open reports it in its own
        // way.
        if self.unverified.add(member) && self.access == Access::ReadWrite {
            tracing::warn!(
                journal.member = %member, "member {member} ({}) is from an earlier time: was the directory put back from a backup? \
                 everything is going to be verified",
                self.membership.path(member)
            );
        }
    }

    /// Notes stale copies that were found before the volume was opened, and are not verified yet.
    pub fn restore(&self, members: impl IntoIterator<Item = MemberIndex>) {
        let known = self.unverified();
        let is_new = |member: &MemberIndex| {
            !known.contains_key(member) && !self.membership.has_no_member(*member)
        };
        for member in members.into_iter().filter(is_new) {
            self.unverified.add(member);
        }
    }

    /// Returns the stale copies that are not verified yet, including absent ones.
    #[must_use]
    pub fn unverified(&self) -> UnverifiedCopies {
        self.unverified.0.lock().1.clone()
    }

    /// Notes that everything was verified since these stale copies came.
    pub fn set_verified(&self, verified: &UnverifiedCopies) {
        let is_verified =
            |member: &MemberIndex, number: &mut u64| verified.get(member) == Some(number);
        let mut all = self.unverified.0.lock();
        all.1.retain(|member, number| !is_verified(member, number));
    }

    /// Notes the return of a member: if it is not verified yet, a scrub during its absence does not count for it.
    pub(super) fn note_return(&self, member: MemberIndex) {
        if self.unverified().contains_key(&member) {
            self.unverified.add(member);
        }
    }

    /// Forgets a member: another has its place, or none.
    pub(super) fn forget(&self, member: MemberIndex) {
        self.unverified.0.lock().1.remove(&member);
    }

    /// Notes the members whose superblocks were recovered and that are not known to be up to date.
    pub(super) fn note_recovered(&self, recovered: &BTreeMap<MemberIndex, bool>) {
        for (member, _) in recovered.iter().filter(|(_, is_current)| !**is_current) {
            self.unverified.add(*member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verification of one scrub does not cover a copy that came in between, but that is not news.
    #[test]
    fn a_copy_that_comes_once_more_has_another_number_and_was_known_before() {
        let unverified = Unverified::default();
        assert!(unverified.add(MemberIndex(2)));
        let first = unverified.0.lock().1.clone();
        assert!(!unverified.add(MemberIndex(2)));
        let second = unverified.0.lock().1.clone();
        assert_ne!(first, second);
        assert_eq!(second.len(), 1);
    }
}
