//! Verifies superblocks, both slots of each, and rewrites those that are damaged or gone.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use super::access::Access;
use super::directory_locks::DirectoryLocks;
use super::epoch_state::EpochState;
use super::epochs::Epochs;
use super::health::ErrorClass;
use super::io::MemberIo;
use super::slots::chain;
use super::snapshot::Membership;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::format::{MemberIndex, files};
use crate::store::{Outcome, Pool, Store, StoreError, StoreRequest};

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

/// The superblocks of the members that are online, as they lie on disk.
#[derive(Debug)]
pub(super) struct Superblocks {
    access: Access,
    membership: Arc<Membership>,
    epochs: Arc<Epochs>,
    io: Arc<MemberIo>,
    locks: Arc<DirectoryLocks>,
}

impl Superblocks {
    pub(super) fn new(
        access: Access,
        membership: Arc<Membership>,
        epochs: Arc<Epochs>,
        io: Arc<MemberIo>,
        locks: Arc<DirectoryLocks>,
    ) -> Self {
        Self {
            access,
            membership,
            epochs,
            io,
            locks,
        }
    }

    /// Reads both slots of the superblock of every member in the epoch, and rewrites those that are wrong. One slot of
    /// each is right at any moment, unless another program deleted it. Then it is created again from the last one
    /// written to it.
    pub(super) fn verify(&self) -> VerifiedSuperblocks {
        let mut verified = VerifiedSuperblocks::default();
        {
            let mut state = self.epochs.lock();
            let members: Vec<MemberIndex> = state.admitted.iter().copied().collect();
            // All of them first, because two files may have been exchanged.
            for member in &members {
                self.refresh(*member);
            }
            for member in members {
                let condition = self.condition_of(&state, member);
                let found = condition.wrong_slots();
                if found == 0 {
                    continue;
                }
                tracing::warn!(%member, "{found} slots of its superblock are damaged");
                self.io.count_wrong(member, found);
                verified.found.insert(member, found);
                if self.access == Access::ReadWrite && state.begun {
                    match condition {
                        Condition::Gone => self.create_again(&mut state, member),
                        Condition::Wrong(_) => self.rewrite(&mut state, member),
                    }
                }
                let left = self.condition_of(&state, member).wrong_slots();
                verified.repaired += found.saturating_sub(left);
                verified.wrong += left;
            }
        }
        if self.membership.has_absent() {
            self.epochs.publish_failures();
        }
        verified
    }

    /// Counts superblocks that were deleted while the volume is open, once each, so that the owner has them created
    /// again.
    pub(super) fn note_deleted(&self) {
        for index in self.membership.live() {
            // By its name: an open superblock answers although it was deleted. A slow member will be judged in time.
            let len = self
                .io
                .call_hedged(index, "look for", |store| store.open_len(files::SUPERBLOCK));
            let is_gone = match len {
                Ok(_) => false,
                Err(error) if is_absent(&error) => true,
                Err(_) => continue,
            };
            let Some(member) = self.membership.member(index) else {
                continue;
            };
            if member.observed().note_superblock(is_gone) {
                tracing::warn!(member = %index, "its superblock was deleted by someone else");
                member.observed().count_errors(ErrorClass::Checksum, 1);
            }
        }
    }

    /// Closes a superblock that is open if another file has its name by now.
    fn refresh(&self, member: MemberIndex) {
        let Some(store) = self.membership.store(member) else {
            return;
        };
        let refresh = |store: &dyn Store| store.refresh(files::SUPERBLOCK);
        if let Err(error) = self.io.executor().call(&store, "find", refresh) {
            tracing::debug!(%member, "{error}: a read of the superblock tells more");
        }
    }

    /// Returns the condition of a member's superblock; one that does not answer counts as right.
    fn condition_of(&self, state: &EpochState, member: MemberIndex) -> Condition {
        let (Some(block), Some(store)) = (state.block(member), self.membership.store(member))
        else {
            return Condition::Wrong(0);
        };
        let pool = Pool::new(0);
        let read = |slot: usize| {
            let offset = (slot * SLOT_BYTES) as u64;
            StoreRequest::read(&store, files::SUPERBLOCK, offset, pool.buffer(SLOT_BYTES))
        };
        let outcomes = self.io.executor().run((0..SLOTS).map(read).collect());
        let mut wrong = 0;
        for (slot, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Err(error) if is_absent(&error) => return Condition::Gone,
                Err(error) if error.is_member_failure() => {
                    self.membership.mark_failed(member, &error);
                    return Condition::Wrong(0);
                }
                read => wrong += u64::from(!is_right(slot, read, block)),
            }
        }
        Condition::Wrong(wrong)
    }

    /// Creates the missing superblock of a member again, if the directory is surely its own: it is at the same path,
    /// locked by this process, and has its journals. A directory that is being deleted is left alone.
    fn create_again(&self, state: &mut EpochState, member: MemberIndex) {
        let (Some(block), Some(store)) = (state.renewed(member), self.membership.store(member))
        else {
            return;
        };
        let is_whole = |store: &dyn Store| {
            store.probe()?;
            let mut journals = files::JOURNALS.iter();
            journals.try_for_each(|journal| store.open_len(journal).map(drop))
        };
        let is_locked = self.locks.has(&store.label());
        match self.io.executor().call(&store, "look at", is_whole) {
            Ok(()) if is_locked => {}
            Ok(()) => {
                tracing::warn!(
                    journal.member = %member, "member {member} gets no superblock: no process has locked its directory"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(journal.member = %member, "member {member} gets no superblock: {}", chain(&error));
                return;
            }
        }
        self.epochs.writer.create(slice::from_ref(&block));
        if self.membership.is_online(member) {
            tracing::info!(journal.member = %member, "member {member} has a superblock again");
            state.note_written(block);
        }
    }

    /// Writes the superblock of a member into both slots, one after the other: the newer one stays where
    /// it is until the next is durable.
    fn rewrite(&self, state: &mut EpochState, member: MemberIndex) {
        // First over the older slot, or the damaged one of the two.
        for _slot in 0..SLOTS {
            let Some(block) = state.renewed(member) else {
                return;
            };
            if !self.epochs.writer.write(state, vec![block]) {
                return;
            }
        }
    }
}

/// Returns whether a directory has no such file of its own.
fn is_absent(error: &StoreError) -> bool {
    error.kind().lacks_file()
}

/// Returns whether a slot holds the last superblock written to it: the newest, or the one before.
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
