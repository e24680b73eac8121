//! Reads data that other members have as well, without waiting for a slow one.
//!
//! A member that hangs is marked faulted after the timeout. Until then a caller need not wait for it if others can give
//! the same. A member that does not answer in a moment is slow, and gets no such request until it has answered.

use crate::format::{MemberIndex, files};
use crate::store::{Op, Outcome, Request, Space, Store, StoreError, StoreErrorKind, StoreRef};

use super::{ErrorClass, Members};

/// The time to wait for members that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A moment: others have the data that does not come.
    Brief,
    /// Until they answer, or are marked faulted.
    Full,
}

/// The last known values of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastKnown {
    /// The room on its filesystem.
    space: Option<Space>,
    /// Bytes that its files take.
    taken: Option<u64>,
}

impl Members {
    /// Reads like [`Members::run`]. With [`Patience::Brief`], the outcome is [`StoreErrorKind::Slow`] for members that
    /// do not answer in a moment, and for those that are slow already. This does not apply if they are more than the
    /// others can do without.
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

    /// Returns the room on a member's filesystem, as it was last if the member is slow.
    pub(super) fn space(&self, index: MemberIndex) -> Option<Space> {
        let measure = |store: &dyn Store| store.space();
        self.measured(index, |known| &mut known.space, measure)
    }

    /// Returns how many bytes the files of a member take, as they did last if the member is slow.
    pub(super) fn taken(&self, index: MemberIndex) -> Option<u64> {
        let measure = |store: &dyn Store| Ok(store.taken("")? + store.taken(files::SEGMENTS)?);
        self.measured(index, |known| &mut known.taken, measure)
    }

    /// Measures a property of a member, and remembers it for when the member is slow. Waits for a property that was
    /// never measured.
    fn measured<T: Copy + Send + 'static>(
        &self,
        index: MemberIndex,
        place: impl Fn(&mut LastKnown) -> &mut Option<T>,
        measure: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let known = *place(self.last_known.lock().entry(index).or_default());
        let measured = if known.is_some() {
            self.call_briefly(index, "measure", measure)
        } else {
            self.call(index, "measure", measure)
        };
        match measured {
            Ok(measured) => {
                *place(self.last_known.lock().entry(index).or_default()) = Some(measured);
                Some(measured)
            }
            Err(error) if error.kind() == StoreErrorKind::Slow => known,
            Err(_) => None,
        }
    }

    /// Runs any work that changes nothing like [`Members::call`], but waits for a moment only.
    ///
    /// # Errors
    ///
    /// As for [`Members::call`]; [`StoreErrorKind::Slow`] if the member does not answer in a moment, or is
    /// slow already.
    pub fn call_briefly<T: Send + 'static>(
        &self,
        index: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call_by(index, action, |store| {
            if self.executor.is_slow(store) {
                Err(self.slow_error(index))
            } else {
                self.executor.call_briefly(store, action, work)
            }
        })
    }

    /// Asks every live member whether its directory is still there, like [`Members::probe`], but waits for no
    /// more than a moment for each.
    pub fn look(&self) {
        for index in self.live() {
            // The call marks a lost member missing; a slow one will be judged in time.
            let _ = self.call_briefly(index, "find", |store| store.probe());
        }
    }

    /// Marks the members faulted that have been slow for too long.
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
