//! Writing superblocks to the members that are online.

use std::sync::Arc;

use super::epoch_state::EpochState;
use super::slots;
use super::snapshot::Membership;
use crate::format::MemberIndex;
use crate::format::superblock::Superblock;
use crate::store::{Executor, Op, Store, StoreRequest};

/// The writer of superblocks. A member that fails a write is marked missing or faulted; the caller goes on without it.
#[derive(Debug)]
pub(super) struct SuperblockWriter {
    membership: Arc<Membership>,
    executor: Arc<Executor>,
}

impl SuperblockWriter {
    pub(super) fn new(membership: Arc<Membership>, executor: Arc<Executor>) -> Self {
        Self {
            membership,
            executor,
        }
    }

    /// Creates superblocks where there are none, in both slots.
    pub(super) fn create(&self, blocks: &[Superblock]) {
        for block in blocks {
            let Some(store) = self.membership.store(block.index) else {
                continue;
            };
            let whole = block.clone();
            let write = move |store: &dyn Store| slots::write_whole(store, &whole);
            if let Err(error) = self.executor.call(&store, "write the superblock", write) {
                self.membership.mark_failed(block.index, &error);
            }
        }
    }

    /// Writes superblocks in parallel, then syncs them in parallel; returns false if a member failed,
    /// which is then absent.
    pub(super) fn write(&self, state: &mut EpochState, blocks: Vec<Superblock>) -> bool {
        let write = self.run_on_each(&blocks, slots::write_op);
        let sync = self.run_on_each(&blocks, |_| slots::sync_op());
        for block in blocks {
            // A failed member may have this superblock or the one before.
            if self.membership.is_online(block.index) {
                state.note_written(block);
            }
        }
        write && sync
    }

    /// Rewrites the superblocks of all members in the epoch, except for those that are gone; returns false if a member
    /// failed.
    pub(super) fn renew_all(&self, state: &mut EpochState) -> bool {
        let has_one = |index: &&MemberIndex| {
            let member = self.membership.member(**index);
            member.is_some_and(|it| it.is_online() && !it.observed().lacks_superblock())
        };
        let online = state.admitted.iter().filter(has_one);
        let blocks = online.filter_map(|index| state.renewed(*index)).collect();
        self.write(state, blocks)
    }

    /// Runs one operation for each superblock's member that is online; returns whether all of them were, and still are.
    fn run_on_each(&self, blocks: &[Superblock], op: impl Fn(&Superblock) -> Op) -> bool {
        let (indices, requests): (Vec<_>, Vec<_>) = blocks
            .iter()
            .filter_map(|block| {
                let (index, op) = (block.index, op(block));
                let store = self.membership.store(index)?;
                Some((index, StoreRequest { store, op }))
            })
            .unzip();
        let mut all = indices.len() == blocks.len();
        for (index, outcome) in indices.into_iter().zip(self.executor.run(requests)) {
            if let Err(error) = outcome {
                self.membership.mark_failed(index, &error);
                all = false;
            }
        }
        all
    }
}
