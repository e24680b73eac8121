//! Draining a member: first it takes nothing new, and once nothing is on it any more it is removed. Until then it can
//! be kept after all.

use super::error::MembersError;
use super::join::MemberChanges;
use super::member::Member;
use super::stripe_code::StripeCode;
use crate::format::{MemberIndex, files};
use crate::store::{Executor, Store, StoreError, StoreRef};

/// Change of the heir of a member's data.
#[derive(Clone, Copy, Debug)]
enum Heir {
    Named(MemberIndex),
    Forgotten,
    Kept,
}

impl MemberChanges {
    /// Sets whether a member is to be drained. Durable on return.
    ///
    /// # Errors
    ///
    /// [`MembersError::TooFewLeft`] if it is, and the others were too few for a stripe;
    /// [`MembersError::NoSuchMember`], [`MembersError::NotNow`].
    pub fn set_draining(&self, index: MemberIndex, is_draining: bool) -> Result<(), MembersError> {
        let heir = if is_draining {
            Heir::Kept
        } else {
            Heir::Forgotten
        };
        self.change_draining(index, is_draining, heir)
    }

    /// Takes back the mark of a member that is to be drained. One that has come to replace it still has. Durable on return.
    ///
    /// # Errors
    ///
    /// As for [`MemberChanges::set_draining`].
    pub fn undo_draining(&self, index: MemberIndex) -> Result<(), MembersError> {
        self.change_draining(index, false, Heir::Kept)
    }

    /// Marks a member as draining, and names the heir of its data:
    /// [`Membership::heir_of`](super::snapshot::Membership::heir_of). Durable on return.
    ///
    /// # Errors
    ///
    /// As for [`MemberChanges::set_draining`].
    pub fn set_draining_to(
        &self,
        index: MemberIndex,
        heir: MemberIndex,
    ) -> Result<(), MembersError> {
        self.change_draining(index, true, Heir::Named(heir))
    }

    fn change_draining(
        &self,
        index: MemberIndex,
        is_draining: bool,
        heir: Heir,
    ) -> Result<(), MembersError> {
        let _one_at_a_time = self.one_at_a_time.lock();
        let mut state = self.epochs.lock();
        if !self.epochs.may_write(&state) {
            return Err(MembersError::NotNow);
        }
        if self.membership.has_no_member(index) {
            return Err(MembersError::NoSuchMember { index });
        }
        let others = self.membership.staying().into_iter();
        let staying = others.filter(|other| *other != index).count();
        let needed = self.shape.geometry().total_shards();
        if is_draining && staying < needed {
            return Err(MembersError::TooFewLeft {
                index,
                staying,
                needed,
                replaced: None,
            });
        }
        if let Some(entry) = state.table_mut().get_mut(usize::from(index.0)) {
            entry.draining = is_draining;
        }
        match heir {
            Heir::Named(heir) => state
                .succession
                .note(index, heir, &self.membership.path(index)),
            Heir::Forgotten => state.succession.forget_heir(index),
            Heir::Kept => {}
        }
        let target = state.admitted.clone();
        let raised = self.epochs.raise(&mut state, target);
        self.epochs.publish(&state);
        raised
    }

    /// Notes another code for new stripes, while no member comes or goes: see [`Epochs::change_code`].
    ///
    /// # Errors
    ///
    /// As [`Epochs::change_code`].
    pub fn change_code(&self, wanted: StripeCode) -> Result<(), MembersError> {
        let _one_at_a_time = self.one_at_a_time.lock();
        self.epochs.change_code(wanted)
    }

    /// Removes a member that holds nothing any more; durable when it returns true. Returns false if the member is not
    /// being drained, or not any more.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members fail on the way that the volume cannot go on.
    pub fn remove_drained(&self, index: MemberIndex) -> Result<bool, MembersError> {
        let _one_at_a_time = self.one_at_a_time.lock();
        let mut state = self.epochs.lock();
        if self.membership.is_failed() || !self.membership.draining().contains(&index) {
            return Ok(false);
        }
        state.vacate(index);
        self.stale_copies.forget(index);
        self.acknowledged.forget(index);
        self.membership
            .publish_member(index, Member::vacant(), state.published());
        let target = state.admitted.clone();
        let raised = self.epochs.raise(&mut state, target);
        self.epochs.publish(&state);
        raised.map(|()| true)
    }

    /// Removes the files in a directory of a removed member, and leaves it to others.
    pub fn clear(&self, store: &StoreRef) {
        clear(store, &self.executor);
        self.locks.release(store);
    }
}

/// Removes all that a volume has in a directory that is no member of it any more, as far as that is possible.
pub fn clear(store: &StoreRef, executor: &Executor) {
    if let Err(error) = executor.call(store, "clear", remove_all) {
        tracing::warn!("{error}; what is left in {} is of no use", store.label());
    }
}

/// Removes all files of a member, and the subdirectory. Removes the superblock after the files that are nothing without
/// it.
fn remove_all(store: &dyn Store) -> Result<(), StoreError> {
    for (name, _) in store.list(files::SEGMENTS)? {
        store.remove(&name)?;
    }
    store.remove_if_empty(files::SEGMENTS)?;
    let others = [
        files::INDEX,
        files::BALLAST,
        files::DATA_BALLAST,
        files::EVENTS,
        files::OLD_EVENTS,
    ];
    let others = others.into_iter().chain(files::JOURNALS);
    for name in others.chain([files::SUPERBLOCK, files::LOCK]) {
        store.remove(name)?;
    }
    Ok(())
}
