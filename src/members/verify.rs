//! Verifies superblocks, both slots of each, and rewrites those that are damaged or gone.

use std::collections::BTreeMap;
use std::slice;

use super::epoch::Roster;
use super::slots::chain;
use super::{Access, ErrorClass, Members};
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::format::{MemberIndex, files};
use crate::store::{Outcome, Pool, Request, Store, StoreError};

/// The result of verifying superblocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedSuperblocks {
    /// The number of damaged slots found, by member.
    pub found: BTreeMap<MemberIndex, u64>,
    /// Slots that were damaged, and are right now, durably.
    pub repaired: u64,
    /// Slots that are damaged still.
    pub wrong: u64,
}

/// The condition of a member's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// So many slots are wrong.
    Wrong(u64),
    /// Its file is not there.
    Gone,
}

impl Condition {
    fn wrong_slots(self) -> u64 {
        match self {
            Self::Wrong(slots) => slots,
            Self::Gone => SLOTS as u64,
        }
    }
}

impl Members {
    /// Reads both slots of the superblock of every member in the epoch, and rewrites those that are wrong. One slot of
    /// each is right at any moment, unless another program deleted it. Then it is created again from the last one
    /// written to it.
    pub fn verify_superblocks(&self) -> VerifiedSuperblocks {
        // A member whose directory was deleted still answers as long as it is open.
        self.probe();
        let mut verified = VerifiedSuperblocks::default();
        {
            let mut roster = self.roster.lock();
            let members: Vec<MemberIndex> = roster.admitted.iter().copied().collect();
            for member in members {
                let condition = self.condition_of(&roster, member);
                let found = condition.wrong_slots();
                if found == 0 {
                    continue;
                }
                log::warn!("member {member}: {found} slots of its superblock are damaged");
                self.count_wrong(member, found);
                verified.found.insert(member, found);
                if self.access == Access::ReadWrite && roster.begun {
                    match condition {
                        Condition::Gone => self.make_anew(&mut roster, member),
                        Condition::Wrong(_) => self.renew(&mut roster, member),
                    }
                }
                let left = self.condition_of(&roster, member).wrong_slots();
                verified.repaired += found.saturating_sub(left);
                verified.wrong += left;
            }
        }
        if self.all.read().iter().any(|member| !member.is_up()) {
            self.settle();
        }
        verified
    }

    /// Counts superblocks that were deleted while the volume is open, once each, so that the owner has them created
    /// again.
    pub(super) fn look_for_superblocks(&self) {
        for index in self.live() {
            // By its name: an open superblock answers although it was deleted. A slow member will be judged in time.
            let len =
                self.call_briefly(index, "look for", |store| store.open_len(files::SUPERBLOCK));
            let is_gone = match len {
                Ok(_) => false,
                Err(error) if is_absent(&error) => true,
                Err(_) => continue,
            };
            let Some(member) = self.member(index) else {
                continue;
            };
            if member.note_superblock(is_gone) {
                log::warn!("member {index}: its superblock was deleted by someone else");
                member.count_errors(ErrorClass::Checksum, 1);
            }
        }
    }

    /// Returns the condition of a member's superblock; one that does not answer counts as right.
    fn condition_of(&self, roster: &Roster, member: MemberIndex) -> Condition {
        let (Some(block), Some(store)) = (roster.block(member), self.store(member)) else {
            return Condition::Wrong(0);
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
                Err(error) if is_absent(&error) => return Condition::Gone,
                Err(error) if error.is_member_failure() => {
                    self.mark_down(member, &error);
                    return Condition::Wrong(0);
                }
                read => wrong += u64::from(!is_right(slot, read, block)),
            }
        }
        Condition::Wrong(wrong)
    }

    /// Creates the missing superblock of a member again, if the directory is surely its own: it is at the same place,
    /// locked by this process, and has its journals. A directory that is being deleted is left alone.
    fn make_anew(&self, roster: &mut Roster, member: MemberIndex) {
        let (Some(block), Some(store)) = (roster.renewed(member), self.store(member)) else {
            return;
        };
        let is_whole = |store: &dyn Store| {
            store.probe()?;
            let mut journals = files::JOURNALS.iter();
            journals.try_for_each(|journal| store.open_len(journal).map(drop))
        };
        let is_held = self.holds.has(&store.label());
        match self.executor.call(&store, "look at", is_whole) {
            Ok(()) if is_held => {}
            Ok(()) => {
                log::warn!("member {member} gets no superblock: nobody has locked its directory");
                return;
            }
            Err(error) => {
                log::warn!("member {member} gets no superblock: {}", chain(&error));
                return;
            }
        }
        self.write_made(slice::from_ref(&block));
        if self.is_up(member) {
            log::info!("member {member} has a superblock again");
            roster.note_written(block);
        }
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

/// Says that a directory has no such file of its own.
fn is_absent(error: &StoreError) -> bool {
    error.kind().lacks_file()
}

/// Says whether a slot holds the last superblock written to it: the newest, or the one before.
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
