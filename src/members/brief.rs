//! Reading what other members have as well, and not waiting for one that is slow.
//!
//! A member that hangs is left behind after the timeout. Until then nobody needs to wait for it who can
//! have the same from others: who does not answer in a moment is slow, and is asked for nothing of the
//! kind until he has answered.

use crate::format::MemberIndex;
use crate::store::{Op, Outcome, Request, Space, StoreError, StoreErrorKind, StoreRef};

use super::{ErrorClass, Members};

/// How long to wait for members that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A moment: others have what does not come.
    Brief,
    /// Until they answer, or are left behind.
    Full,
}

impl Members {
    /// Reads like [`Members::run`]. With [`Patience::Brief`], members that do not answer in a moment, and
    /// those that are slow already, come to [`StoreErrorKind::Slow`], unless they are more than the others
    /// can do without.
    #[must_use]
    pub fn read(&self, ops: Vec<(MemberIndex, Op)>, patience: Patience) -> Vec<Outcome> {
        if patience == Patience::Full {
            return self.run(ops);
        }
        let (slow, spare) = (self.slow(), self.spare());
        if slow.len() > spare {
            return self.run(ops);
        }
        let mut outcomes: Vec<Option<Outcome>> = ops.iter().map(|_| None).collect();
        let mut asked = Vec::with_capacity(ops.len());
        for (at, (index, op)) in ops.into_iter().enumerate() {
            if slow.contains(&index) {
                outcomes[at] = Some(Err(self.slow_error(index)));
            } else {
                asked.push((at, (index, op)));
            }
        }
        let (places, ops): (Vec<usize>, Vec<_>) = asked.into_iter().unzip();
        let is_brief = slow.len() < spare;
        let answers = self.run_by(ops, |requests: Vec<Request>| {
            if is_brief {
                self.executor.run_briefly(requests, spare)
            } else {
                self.executor.run_sparing(requests, spare)
            }
        });
        for (at, answer) in places.into_iter().zip(answers) {
            outcomes[at] = Some(answer);
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Says whether a member is slow, and the others can do without it.
    #[must_use]
    pub fn is_avoided(&self, member: MemberIndex) -> bool {
        let slow = self.slow();
        slow.contains(&member) && slow.len() <= self.spare()
    }

    /// Returns the room on each live member's filesystem, as it was last if the member is slow. Members
    /// may share one.
    #[must_use]
    pub fn spaces(&self) -> Vec<(MemberIndex, Space)> {
        let live = self.live().into_iter();
        live.filter_map(|index| Some((index, self.space(index)?)))
            .collect()
    }

    fn space(&self, index: MemberIndex) -> Option<Space> {
        let known = || self.spaces.lock().get(&index).copied();
        let Some(known) = known() else {
            let space = self.call(index, "measure", |store| store.space()).ok()?;
            self.spaces.lock().insert(index, space);
            return Some(space);
        };
        let store = self.store(index)?;
        if self.executor.is_slow(&store) {
            return Some(known);
        }
        let measured = self
            .executor
            .call_briefly(&store, "measure", |store| store.space());
        match measured {
            Ok(space) => {
                self.spaces.lock().insert(index, space);
                Some(space)
            }
            Err(error) if error.kind() == StoreErrorKind::Slow => Some(known),
            Err(error) => {
                if error.is_member_failure() {
                    self.fail(index, &error);
                }
                None
            }
        }
    }

    /// Leaves behind the members that have been slow for too long.
    pub(super) fn judge_slow(&self) {
        if !self.executor.has_slow() {
            return;
        }
        let stores: Vec<(MemberIndex, StoreRef)> = self
            .live()
            .into_iter()
            .filter_map(|index| Some((index, self.store(index)?)))
            .collect();
        let (indices, stores): (Vec<_>, Vec<_>) = stores.into_iter().unzip();
        let overdue = self.executor.overdue(&stores, self.spare());
        for (index, error) in indices.into_iter().zip(overdue) {
            if let Some(error) = error {
                self.count_error(index, ErrorClass::Read);
                self.fail(index, &error);
            }
        }
    }

    /// Returns the live members that are slow.
    fn slow(&self) -> Vec<MemberIndex> {
        if !self.executor.has_slow() {
            return Vec::new();
        }
        let is_slow = |index: &MemberIndex| {
            self.store(*index)
                .is_some_and(|store| self.executor.is_slow(&store))
        };
        self.live().into_iter().filter(is_slow).collect()
    }

    fn slow_error(&self, index: MemberIndex) -> StoreError {
        StoreError::slow(self.path(index), "read", "directory")
    }
}
