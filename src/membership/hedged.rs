//! Hedged reads: reads of data that other members have as well, without waiting for a slow one.
//!
//! A member that hangs is marked faulted after the timeout. Until then a caller need not wait for it if others can give
//! the same. A member that does not answer within the hedge delay is slow, and gets no such request until it has
//! answered.

use std::sync::Arc;

use super::health::ErrorClass;
use super::io::MemberIo;
use super::member::Measured;
use crate::format::{MemberIndex, files};
use crate::store::{Op, Outcome, Space, Store, StoreError, StoreErrorKind, StoreRef};

/// The time to wait for members that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The hedge delay: others have the data that does not come.
    HedgeDelay,
    /// Until they answer, or are marked faulted.
    Full,
}

impl MemberIo {
    /// Reads like [`MemberIo::run`]. With [`Wait::HedgeDelay`], the outcome is [`StoreErrorKind::Slow`] for members
    /// that do not answer within the hedge delay, and for those that are slow already. This does not apply if they are
    /// more than the others can do without.
    #[must_use]
    pub fn read(&self, ops: Vec<(MemberIndex, Op)>, wait: Wait) -> Vec<Outcome> {
        if wait == Wait::Full {
            return self.run(ops);
        }
        let (slow, spare) = (self.slow(), self.membership.spare());
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
        let is_hedged = slow.len() < spare;
        let answers = self.run_by(ops, |requests| {
            if is_hedged {
                self.executor.run_hedged(requests, spare)
            } else {
                self.executor.run_sparing(requests, spare)
            }
        });
        for (at, answer) in places.into_iter().zip(answers) {
            outcomes[at] = Some(answer);
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Fills `out` from a file of a member on this thread, if the bytes are in memory there. Returns whether it did;
    /// otherwise the content of `out` is unspecified. Waits for no device, and does nothing while any member is slow.
    #[must_use]
    pub fn read_in_memory(
        &self,
        member: MemberIndex,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> bool {
        if self.executor.has_slow() {
            return false;
        }
        let read = |store: &StoreRef| store.read_in_memory(name, offset, out);
        self.membership.with_store(member, read) == Some(true)
    }

    /// Returns whether a member is slow, and the others can do without it.
    #[must_use]
    pub fn is_avoided(&self, member: MemberIndex) -> bool {
        let slow = self.slow();
        slow.contains(&member) && slow.len() <= self.membership.spare()
    }

    /// Returns the room on each live member's filesystem, as it was last if the member is slow. Members
    /// may share one.
    #[must_use]
    pub fn spaces(&self) -> Vec<(MemberIndex, Space)> {
        let live = self.membership.live().into_iter();
        live.filter_map(|index| Some((index, self.space(index)?)))
            .collect()
    }

    /// Returns the room on a member's filesystem, as it was last if the member is slow.
    pub(super) fn space(&self, index: MemberIndex) -> Option<Space> {
        let measure = |store: &dyn Store| store.space();
        self.measured(index, |measured| &mut measured.space, measure)
    }

    /// Returns how many bytes the files of a member take, as they did last if the member is slow.
    pub(super) fn taken(&self, index: MemberIndex) -> Option<u64> {
        let measure = |store: &dyn Store| Ok(store.taken("")? + store.taken(files::SEGMENTS)?);
        self.measured(index, |measured| &mut measured.taken, measure)
    }

    /// Returns the files of a live member with the bytes that each takes, in no order.
    ///
    /// # Errors
    ///
    /// As for [`MemberIo::call`].
    pub fn taken_by_file(&self, index: MemberIndex) -> Result<Vec<(String, u64)>, StoreError> {
        self.call(index, "measure", |store| {
            let mut files = store.taken_by_file("")?;
            files.extend(store.taken_by_file(files::SEGMENTS)?);
            Ok(files)
        })
    }

    /// Measures a property of a member, and remembers it for when the member is slow. Waits for a property that was
    /// never measured.
    fn measured<T: Copy + Send + 'static>(
        &self,
        index: MemberIndex,
        property: impl Fn(&mut Measured) -> &mut Option<T>,
        measure: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let observed = Arc::clone(self.membership.member(index)?.observed());
        let known = *property(&mut observed.measured.lock());
        let measured = if known.is_some() {
            self.call_hedged(index, "measure", measure)
        } else {
            self.call(index, "measure", measure)
        };
        match measured {
            Ok(measured) => {
                *property(&mut observed.measured.lock()) = Some(measured);
                Some(measured)
            }
            Err(error) if error.kind() == StoreErrorKind::Slow => known,
            Err(_) => None,
        }
    }

    /// Runs any work that changes nothing like [`MemberIo::call`], but waits for the hedge delay only.
    ///
    /// # Errors
    ///
    /// As for [`MemberIo::call`]; [`StoreErrorKind::Slow`] if the member does not answer within the hedge delay, or is
    /// slow already.
    pub fn call_hedged<T: Send + 'static>(
        &self,
        index: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call_by(index, action, |store| {
            if self.executor.is_slow(store) {
                Err(self.slow_error(index))
            } else {
                self.executor.call_hedged(store, action, work)
            }
        })
    }

    /// Asks every live member whether its directory is still there, like [`MemberIo::probe`], but waits for no
    /// more than the hedge delay for each.
    pub fn probe_hedged(&self) {
        for index in self.membership.live() {
            // The call marks a lost member missing; a slow one will be judged in time.
            let _ = self.call_hedged(index, "find", |store| store.probe());
        }
    }

    /// Marks the members faulted that have been slow for too long.
    pub(super) fn fail_overdue(&self) {
        if !self.executor.has_slow() {
            return;
        }
        let (indices, stores): (Vec<_>, Vec<_>) = self.live_stores().into_iter().unzip();
        let overdue = self.executor.overdue(&stores, self.membership.spare());
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
        let stores = self.live_stores().into_iter();
        let slow = stores.filter(|(_, store)| self.executor.is_slow(store));
        slow.map(|(index, _)| index).collect()
    }

    fn live_stores(&self) -> Vec<(MemberIndex, StoreRef)> {
        let live = self.membership.live().into_iter();
        live.filter_map(|index| Some((index, self.membership.store(index)?)))
            .collect()
    }

    fn slow_error(&self, index: MemberIndex) -> StoreError {
        let path = self.membership.path(index);
        StoreError::slow(path, "read", "directory")
    }
}
