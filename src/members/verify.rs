//! Verifying superblocks, both slots of each, and writing damaged ones anew.

use std::collections::BTreeMap;

use super::epoch::Roster;
use super::{Access, Members};
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::format::{MemberIndex, files};
use crate::store::{Outcome, Pool, Request};

/// What verifying superblocks came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedSuperblocks {
    /// How many slots of each member were found to be damaged.
    pub found: BTreeMap<MemberIndex, u64>,
    /// Slots that were damaged, and are right now, durably.
    pub repaired: u64,
    /// Slots that are damaged still.
    pub wrong: u64,
}

impl Members {
    /// Reads both slots of the superblock of every member that belongs to the epoch, and writes those anew
    /// that are not as they should be. One slot of each is right at any moment.
    pub fn verify_superblocks(&self) -> VerifiedSuperblocks {
        let mut verified = VerifiedSuperblocks::default();
        {
            let mut roster = self.roster.lock();
            let members: Vec<MemberIndex> = roster.admitted.iter().copied().collect();
            for member in members {
                let found = self.wrong_slots(&roster, member);
                if found == 0 {
                    continue;
                }
                log::warn!("member {member}: {found} slots of its superblock are damaged");
                self.count_wrong(member, found);
                verified.found.insert(member, found);
                if self.access == Access::ReadWrite && roster.begun {
                    self.renew(&mut roster, member);
                }
                let left = self.wrong_slots(&roster, member);
                verified.repaired += found.saturating_sub(left);
                verified.wrong += left;
            }
        }
        if self.all.read().iter().any(|member| !member.is_up()) {
            self.settle();
        }
        verified
    }

    /// Returns how many slots of a member are not as they should be; none if it does not answer.
    fn wrong_slots(&self, roster: &Roster, member: MemberIndex) -> u64 {
        let (Some(block), Some(store)) = (roster.block(member), self.store(member)) else {
            return 0;
        };
        let pool = Pool::new(0);
        let read = |slot: usize| {
            let offset = (slot * SLOT_BYTES) as u64;
            Request::read(&store, files::SUPERBLOCK, offset, pool.buffer(SLOT_BYTES))
        };
        let outcomes = self.executor.run((0..SLOTS).map(read).collect());
        let mut wrong = 0;
        for (slot, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Err(error) if error.is_member_failure() => {
                    self.mark_down(member, &error);
                    return 0;
                }
                read => wrong += u64::from(!is_right(slot, read, block)),
            }
        }
        wrong
    }

    /// Writes the superblock of a member into both slots, one after the other: the newer one stays where
    /// it is until the next is durable.
    fn renew(&self, roster: &mut Roster, member: MemberIndex) {
        // First over the older slot, or the damaged one of the two.
        for _slot in 0..SLOTS {
            let Some(block) = roster.renewed(member) else {
                return;
            };
            if !self.write_superblocks(roster, vec![block]) {
                return;
            }
        }
    }
}

/// Says whether a slot holds what was written to it last: the newest superblock, or the one before.
fn is_right(slot: usize, read: Outcome, newest: &Superblock) -> bool {
    let Ok(Some(bytes)) = read else {
        return false;
    };
    let Ok(found) = Superblock::decode(&bytes) else {
        return false;
    };
    let is_newest = newest.slot_offset() == (slot * SLOT_BYTES) as u64;
    let is_of_member = found.volume == newest.volume && found.member == newest.member;
    if is_newest {
        found == *newest
    } else {
        is_of_member && found.generation <= newest.generation
    }
}
