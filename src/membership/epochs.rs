//! Beginning an epoch: the members that are left agree, durably, that they go on without the others.
//!
//! Two steps, so that a power cut between two superblocks is never taken for two branches mounted apart:
//!
//! 1. *propose*: every member of the coming epoch notes its mark next to the current one; written to
//!    all in parallel, **synced** on all.
//! 2. *begin*: the mark is the current epoch, with the new table of members; written to all in
//!    parallel, **synced** on all.
//!
//! A member that fails on the way is left out of a further attempt, under a further mark. Nothing else
//! is written in an epoch before its second step is through. FORMAT.md, "Epochs", says how a volume
//! that was cut off in between is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::access::Access;
use super::acknowledged::Acknowledged;
use super::epoch_state::EpochState;
use super::error::MembersError;
use super::journal_end::newest_record;
use super::quorum::needed_to_go_on;
use super::shape::VolumeShape;
use super::snapshot::Membership;
use super::superblock_writer::SuperblockWriter;
use crate::format::MemberIndex;
use crate::format::journal::MAX_FILE_BYTES;
use crate::store::Executor;

/// The epochs of an open volume. The only code that begins one, and that publishes the membership.
#[derive(Debug)]
pub struct Epochs {
    pub(super) shape: Arc<VolumeShape>,
    access: Access,
    membership: Arc<Membership>,
    acknowledged: Arc<Acknowledged>,
    pub(super) executor: Arc<Executor>,
    pub(super) writer: SuperblockWriter,
    /// Held while an epoch is begun, through I/O.
    state: Mutex<EpochState>,
}

impl Epochs {
    /// Returns the epochs of a volume that has come to `state`.
    pub(super) fn new(
        shape: Arc<VolumeShape>,
        access: Access,
        membership: Arc<Membership>,
        acknowledged: Arc<Acknowledged>,
        executor: Arc<Executor>,
        state: EpochState,
    ) -> Self {
        Self {
            shape,
            access,
            writer: SuperblockWriter::new(Arc::clone(&membership), Arc::clone(&executor)),
            executor,
            membership,
            acknowledged,
            state: Mutex::new(state),
        }
    }

    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Waits until no epoch is being begun, and keeps others from beginning one.
    pub(super) fn lock(&self) -> MutexGuard<'_, EpochState> {
        self.state.lock()
    }

    /// Notes that the absent members of the newest epoch acknowledged the newest record of the volume, which any other one
    /// has. Call it before [`Epochs::begin`], which leaves them out.
    pub fn note_absent(&self) {
        let state = self.state.lock();
        let mut absent = state.listed();
        absent.retain(|index| !self.membership.is_online(*index));
        if absent.is_empty() {
            return;
        }
        let volume = self.shape.volume_id();
        let stores = state.admitted.iter();
        let mut stores = stores.filter_map(|index| self.membership.store(*index));
        let newest = stores.find_map(|store| {
            let newest = newest_record(&store, &self.executor, MAX_FILE_BYTES).ok()?;
            newest.filter(|newest| newest.volume == volume)
        });
        if let Some(newest) = newest {
            self.acknowledged.note_absent(absent, &newest);
        }
    }

    /// Begins to write. If other members are there than the superblocks say, those that are up to date begin a new
    /// epoch, durable on return. Call it once it is known that the volume can be used with the online members, because
    /// the absent ones are stale from here on. Until then a member that fails is set aside for as long as the volume is
    /// open, and no superblock knows of it. Lost superblocks are there again on return.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members failed since the volume was opened that it cannot go on.
    pub fn begin(&self) -> Result<(), MembersError> {
        let mut state = self.state.lock();
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        state.begun = true;
        let (current, doubtful) = state.take_recovered();
        self.writer.create(&current);
        let mut admitted = state.admitted.iter();
        let all_online = admitted.all(|index| self.membership.is_online(*index));
        if all_online && doubtful.is_empty() && state.is_settled() {
            return Ok(());
        }
        let target = state.admitted.clone();
        let raised = self.raise(&mut state, target);
        if raised.is_ok() {
            // Now that all others know that these are not up to date.
            self.writer.create(&doubtful);
        }
        self.publish(&state);
        raised
    }

    /// Takes those stale members into the epoch whose journals have all that the index may lack; durable on return. Call
    /// it once the index has all its copies. Does nothing if there are none, or nothing may be written.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members fail on the way that the volume cannot go on.
    pub fn admit_stale(&self) -> Result<(), MembersError> {
        let mut state = self.state.lock();
        let mut target = self.membership.online();
        // No member joins before this lock is free.
        target
            .retain(|index| state.admitted.contains(index) || self.acknowledged.has_needed(*index));
        if self.access == Access::ReadOnly || target.is_subset(&state.admitted) {
            return Ok(());
        }
        for index in target.difference(&state.admitted) {
            tracing::info!(journal.member = %index, "member {index} has the index and the journal again, and counts");
        }
        let raised = self.raise(&mut state, target);
        if raised.is_ok() {
            self.acknowledged.note_admitted(&state.admitted);
        }
        self.publish(&state);
        raised
    }

    /// Returns the members that take part, but wait for [`Epochs::admit_stale`].
    #[must_use]
    pub fn stale(&self) -> Vec<MemberIndex> {
        let state = self.state.lock();
        let mut live = self.membership.live();
        live.retain(|index| !state.admitted.contains(index));
        live
    }

    /// Returns whether a stale member waits for a checkpoint: its journal lacks records that the index may lack too.
    #[must_use]
    pub fn is_checkpoint_awaited(&self) -> bool {
        let mut stale = self.stale().into_iter();
        stale.any(|index| !self.acknowledged.has_needed(index))
    }

    /// Begins an epoch with those of `target` that are online, and with fewer as they fail on the way.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if too few are left; the volume is then failed for good. [`MembersError::NotNow`] if the
    /// directories are released meanwhile: no superblock can be written any more, although the members are online.
    pub(super) fn raise(
        &self,
        state: &mut EpochState,
        mut target: BTreeSet<MemberIndex>,
    ) -> Result<(), MembersError> {
        loop {
            if self.membership.is_released() {
                return Err(MembersError::NotNow);
            }
            target.retain(|index| self.membership.is_online(*index));
            self.check_alive(state, &target)?;
            let mark = state.next_mark();
            let proposals = state.proposals(mark, &target);
            if !self.writer.write(state, proposals) {
                continue;
            }
            let mut absent = state.absent(&target);
            // One that is back has a new journal, and is no copy.
            absent.retain(|index| !self.membership.is_online(*index));
            let mut records = self.acknowledged.last_records(absent);
            for (member, record) in &mut records {
                // A copy in its place may have the newest record and lack shards from before.
                record.is_surpassed |= self.membership.is_displaced(*member);
            }
            let beginnings = state.begin(&target, &records, |index| self.membership.path(index));
            if self.writer.write(state, beginnings) {
                state.note_durable();
                tracing::info!("epoch {} with {} members", mark.epoch, target.len());
                return Ok(());
            }
        }
    }

    /// Publishes which members are live, which are being drained, and which epoch it is.
    pub(super) fn publish(&self, state: &EpochState) {
        self.membership.publish(state.published());
    }

    /// Waits until an epoch without the members that failed is durable, or begins it; then publishes it.
    pub(super) fn publish_failures(&self) {
        let mut state = self.state.lock();
        match self.exclude_failed(&mut state) {
            // Released meanwhile: the next mount finds out.
            Ok(()) | Err(MembersError::NotNow) => {}
            Err(error) => tracing::error!("the volume has failed: {error}"),
        }
        self.publish(&state);
    }

    fn exclude_failed(&self, state: &mut EpochState) -> Result<(), MembersError> {
        let online = self.membership.online();
        if self.membership.is_failed() || self.membership.is_released() {
            return Ok(());
        }
        if !state.begun || state.admitted.is_subset(&online) {
            let admitted = state.admitted.intersection(&online).copied().collect();
            return self.check_alive(state, &admitted);
        }
        let target = state.admitted.clone();
        self.raise(state, target)
    }

    /// Checks that the volume can go on with `admitted` in its epoch; if not, it has failed.
    ///
    /// `data_shards` of any age are needed. Each epoch that may be the newest known to an absent member needs enough of
    /// its own members as well. Without these, the absent ones alone could be written to. Returned members that are not
    /// in the epoch yet do not count for this, because nothing on them says that the volume went on.
    pub(super) fn check_alive(
        &self,
        state: &EpochState,
        admitted: &BTreeSet<MemberIndex>,
    ) -> Result<(), MembersError> {
        let live = self.membership.online().len();
        let data = self.shape.geometry().data_shards();
        let parity = self.shape.geometry().parity_shards();
        let needed = |epoch: &BTreeSet<_>| match self.access {
            Access::ReadWrite => needed_to_go_on(epoch.len(), data, parity),
            Access::ReadOnly => 1,
        };
        let here = |epoch: &BTreeSet<_>| epoch.intersection(admitted).count();
        let mut epochs = state.last_epochs();
        let failed = if live < data {
            MembersError::Failed {
                kind: "left",
                live,
                needed: data,
                purpose: "read",
            }
        } else if let Some(epoch) = epochs.find(|epoch| here(epoch) < needed(epoch)) {
            MembersError::Failed {
                kind: "left that were up to date",
                live: here(epoch),
                needed: needed(epoch),
                purpose: match self.access {
                    Access::ReadWrite => "write",
                    Access::ReadOnly => "read",
                },
            }
        } else {
            return Ok(());
        };
        self.membership.set_failed();
        Err(failed)
    }

    /// Returns whether superblocks may be written: the volume is open to be written to, and goes on.
    pub(super) fn may_write(&self, state: &EpochState) -> bool {
        self.access == Access::ReadWrite && state.begun && !self.membership.is_failed()
    }

    /// Returns whether an epoch is durable without any member that is absent. Before that, no other process may have
    /// its directory, because it could take the directory for that of a current member.
    pub(super) fn is_loss_durable(&self, state: &EpochState) -> bool {
        let mut admitted = state.admitted.iter();
        let is_noted = state.begun && admitted.all(|index| self.membership.is_online(*index));
        !self.membership.is_failed() && (is_noted || self.access == Access::ReadOnly)
    }

    /// Notes the absent members whose data is being rebuilt on others, in place of the earlier note. A member that
    /// comes back counts no more. Durable on return, as far as the online members go.
    pub fn set_given_up(&self, given_up: BTreeSet<MemberIndex>) {
        let is_whole = {
            let mut state = self.state.lock();
            if !self.may_write(&state) || *state.succession.given_up() == given_up {
                return;
            }
            state.succession.set_given_up(given_up);
            self.membership.set_succession(state.succession.clone());
            self.writer.renew_all(&mut state)
        };
        if !is_whole {
            self.publish_failures();
        }
    }

    /// Notes that no absent member is waited for: see [`Epochs::set_given_up`]. Returns these members.
    pub fn give_up_absentees(&self) -> BTreeSet<MemberIndex> {
        let away = self.membership.away().into_iter();
        let absent: BTreeSet<MemberIndex> = away.map(|(index, _)| index).collect();
        self.set_given_up(absent.clone());
        absent
    }

    /// Notes that some members are not waited for, as far as they are absent, beside those given up before.
    pub fn give_up(&self, members: &BTreeSet<MemberIndex>) {
        let mut given_up = self.membership.given_up();
        given_up.extend(members);
        let away = self.membership.away();
        given_up.retain(|member| away.iter().any(|(index, _)| index == member));
        self.set_given_up(given_up);
    }

    /// Returns whether the superblocks note some incompatible features.
    #[must_use]
    pub fn uses_features(&self, incompat: u64) -> bool {
        self.state.lock().features().incompat & incompat == incompat
    }

    /// Notes incompatible features that the volume is about to use, in an epoch of its own; durable on return. Older builds
    /// then refuse the volume. Does nothing if they are noted already.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members fail on the way that the volume cannot go on, or nothing may be written.
    pub fn use_features(&self, incompat: u64) -> Result<(), MembersError> {
        if self.uses_features(incompat) {
            return Ok(());
        }
        self.note_in_epoch(|state| state.add_features(incompat))
    }

    /// Begins an epoch of the same members with a change of the superblocks, durable on return in all their copies.
    pub(super) fn note_in_epoch(
        &self,
        change: impl FnOnce(&mut EpochState),
    ) -> Result<(), MembersError> {
        let is_whole = {
            let mut state = self.state.lock();
            if !self.may_write(&state) {
                return Err(MembersError::NotNow);
            }
            change(&mut state);
            let target = state.admitted.clone();
            let raised = self.raise(&mut state, target);
            self.publish(&state);
            raised?;
            // Into the other slots as well.
            self.writer.renew_all(&mut state)
        };
        if !is_whole {
            self.publish_failures();
        }
        Ok(())
    }

    /// Rewrites the superblocks of the members in the epoch, durably. From then on an earlier copy is known to be
    /// stale, also after the member is left out of an epoch. Call it from time to time.
    pub fn renew_superblocks(&self) {
        let is_whole = {
            let mut state = self.state.lock();
            if !self.may_write(&state) {
                return;
            }
            self.writer.renew_all(&mut state)
        };
        if !is_whole {
            self.publish_failures();
        }
    }
}
