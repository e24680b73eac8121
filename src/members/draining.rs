//! Letting a member go: first it takes nothing new, and once nothing is on it any more it is no member. Until
//! then it can be kept after all.

use std::sync::Arc;

use super::health::Member;
use super::{Access, Members, MembersError};
use crate::format::{MemberIndex, files};
use crate::store::{Executor, Store, StoreError, StoreRef};

impl Members {
    /// Returns the members that are being emptied.
    #[must_use]
    pub fn leaving(&self) -> Vec<MemberIndex> {
        self.leaving.read().to_vec()
    }

    /// Returns the members that new segments go to: the online ones that are not being drained or, if these are too few
    /// for a stripe, all online ones.
    #[must_use]
    pub fn homes(&self) -> Vec<MemberIndex> {
        let (live, leaving) = (self.live(), self.leaving());
        let staying: Vec<_> = live
            .iter()
            .copied()
            .filter(|member| !leaving.contains(member))
            .collect();
        if staying.len() >= self.shape.geometry.total_shards() {
            staying
        } else {
            live
        }
    }

    /// Sets whether a member is to be drained. Durable on return.
    ///
    /// # Errors
    ///
    /// [`MembersError::TooFewLeft`] if it is, and the others were too few for a stripe;
    /// [`MembersError::NoSuchMember`], [`MembersError::NotNow`].
    pub fn set_leaving(&self, index: MemberIndex, is_leaving: bool) -> Result<(), MembersError> {
        self.change_leaving(index, is_leaving, None)
    }

    /// Marks a member as draining, and names the heir of its data: [`Members::heir_of`]. Durable on return.
    ///
    /// # Errors
    ///
    /// As for [`Members::set_leaving`].
    pub fn set_leaving_to(
        &self,
        index: MemberIndex,
        heir: MemberIndex,
    ) -> Result<(), MembersError> {
        self.change_leaving(index, true, Some(heir))
    }

    fn change_leaving(
        &self,
        index: MemberIndex,
        is_leaving: bool,
        heir: Option<MemberIndex>,
    ) -> Result<(), MembersError> {
        let _one_at_a_time = self.joining.lock();
        let mut roster = self.roster.lock();
        if self.access == Access::ReadOnly || self.is_failed() || !roster.begun {
            return Err(MembersError::NotNow);
        }
        match self.member(index) {
            Some(member) if !member.is_vacant() => {}
            _ => return Err(MembersError::NoSuchMember { index }),
        }
        let leaving = self.leaving();
        let stays = |other: &MemberIndex| *other != index && !leaving.contains(other);
        let staying = self.live().into_iter().filter(stays).count();
        let needed = self.shape.geometry.total_shards();
        if is_leaving && staying < needed {
            return Err(MembersError::TooFewLeft {
                index,
                staying,
                needed,
            });
        }
        if let Some(entry) = roster.table_mut().get_mut(usize::from(index.0)) {
            entry.leaving = is_leaving;
        }
        match heir {
            Some(heir) => roster.succession.note(index, heir, &self.path(index)),
            None if !is_leaving => roster.succession.forget_heir(index),
            None => {}
        }
        let target = roster.admitted.clone();
        let raised = self.raise_epoch(&mut roster, target);
        self.publish(&roster);
        raised
    }

    /// Removes a member that holds nothing any more; durable when it returns true. Returns false if the member is not
    /// being drained, or not any more.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members fail on the way that the volume cannot go on.
    pub fn let_go(&self, index: MemberIndex) -> Result<bool, MembersError> {
        let _one_at_a_time = self.joining.lock();
        let mut roster = self.roster.lock();
        if self.is_failed() || !self.leaving().contains(&index) {
            return Ok(false);
        }
        roster.vacate(index);
        self.forget_put_back(index);
        self.acknowledged.forget(index);
        if let Some(seat) = self.all.write().get_mut(usize::from(index.0)) {
            *seat = Arc::new(Member::vacant());
        }
        self.publish(&roster);
        let target = roster.admitted.clone();
        let raised = self.raise_epoch(&mut roster, target);
        self.publish(&roster);
        self.last_known.lock().remove(&index);
        raised.map(|()| true)
    }

    /// Removes the files in a directory of a removed member, and leaves it to others.
    pub fn clear(&self, store: &StoreRef) {
        clear(store, &self.executor);
        self.holds.free(store);
    }
}

/// Removes all that a volume has in a directory that is no member of it any more, as far as that is possible.
pub fn clear(store: &StoreRef, executor: &Executor) {
    if let Err(error) = executor.call(store, "clear", remove_all) {
        log::warn!("{error}; what is left in {} is of no use", store.label());
    }
}

/// Removes all files of a member, and the subdirectory. Removes the superblock after the files that are nothing without
/// it.
fn remove_all(store: &dyn Store) -> Result<(), StoreError> {
    for (name, _) in store.list(files::SEGMENTS)? {
        store.remove(&name)?;
    }
    store.remove_if_empty(files::SEGMENTS)?;
    let others = [files::INDEX, files::BALLAST, files::DATA_BALLAST];
    let others = others.into_iter().chain(files::JOURNALS);
    for name in others.chain([files::SUPERBLOCK, files::LOCK]) {
        store.remove(name)?;
    }
    Ok(())
}
