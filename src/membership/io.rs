//! Operations on the members that are online, and the consequences of their failures.

use std::io;
use std::sync::Arc;

use super::epochs::Epochs;
use super::health::ErrorClass;
use super::member::Member;
use super::snapshot::Membership;
use crate::format::MemberIndex;
use crate::store::{
    Executor, Op, Outcome, Store, StoreError, StoreErrorKind, StoreRef, StoreRequest,
};

/// Operations on the members that are online: in parallel, bounded in time, and hedged where others have the same data.
///
/// A member that fails an operation is marked missing or faulted. Before the operation returns, an epoch without the
/// member is durable on all others.
#[derive(Debug)]
pub struct MemberIo {
    pub(super) membership: Arc<Membership>,
    epochs: Arc<Epochs>,
    pub(super) executor: Arc<Executor>,
}

impl MemberIo {
    /// Returns operations on these members; `epochs` makes the failure of one durable.
    pub(super) fn new(
        membership: Arc<Membership>,
        epochs: Arc<Epochs>,
        executor: Arc<Executor>,
    ) -> Self {
        Self {
            membership,
            epochs,
            executor,
        }
    }

    /// Returns the executor that runs the operations.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Runs operations on members in parallel, and returns their outcomes, in their order.
    ///
    /// The outcome of an operation on a member that is not online is [`StoreErrorKind::Gone`], without an attempt. A
    /// member that fails one is marked missing or faulted, as with [`MemberIo::fail`], before this returns.
    #[must_use]
    pub fn run(&self, ops: Vec<(MemberIndex, Op)>) -> Vec<Outcome> {
        self.run_by(ops, |requests| {
            let spare = self.membership.spare();
            self.executor.run_sparing(requests, spare)
        })
    }

    /// Runs operations like [`MemberIo::run`], with `execute` to run the requests to members that are online.
    pub(super) fn run_by(
        &self,
        ops: Vec<(MemberIndex, Op)>,
        execute: impl FnOnce(Vec<StoreRequest>) -> Vec<Outcome>,
    ) -> Vec<Outcome> {
        let mut asked = Vec::with_capacity(ops.len());
        let mut requests = Vec::with_capacity(ops.len());
        for (index, op) in ops {
            let class = match op {
                Op::Read { .. } => ErrorClass::Read,
                _ => ErrorClass::Write,
            };
            let (member, store) = self.membership.asked(index).unzip();
            asked.push((index, class, member));
            requests.extend(store.map(|store| StoreRequest { store, op }));
        }
        let mut answers = execute(requests).into_iter();
        let mut has_failures = false;
        let mut outcomes = Vec::with_capacity(asked.len());
        for (index, class, member) in asked {
            let answer = member.as_ref().and_then(|_| answers.next());
            let outcome = answer.unwrap_or_else(|| Err(self.gone(index, "reach")));
            if let Err(error) = &outcome {
                has_failures |= match &member {
                    Some(member) => self.note_error(index, member, class, error),
                    None => true,
                };
            }
            outcomes.push(outcome);
        }
        if has_failures {
            self.epochs.publish_failures();
        }
        outcomes
    }

    /// Counts an error, and marks the member missing or faulted if the error calls for it; returns whether it does.
    fn note_error(
        &self,
        index: MemberIndex,
        member: &Arc<Member>,
        class: ErrorClass,
        error: &StoreError,
    ) -> bool {
        match error.kind() {
            // The failure of a full or mistaken request says nothing of the member.
            StoreErrorKind::NoSpace
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::InvalidName
            | StoreErrorKind::Slow
            | StoreErrorKind::Exhausted => {}
            _ => member.observed().count_errors(class, 1),
        }
        let has_failed = error.is_member_failure();
        if has_failed {
            self.membership.mark_asked_failed(index, member, error);
        }
        has_failed
    }

    /// Runs any work on one member's store, bounded in time; `action` is a verb for messages. A member that fails is
    /// marked missing or faulted, as with [`MemberIo::run`].
    ///
    /// # Errors
    ///
    /// Those of `work`; [`StoreErrorKind::Hung`] if it does not return in time;
    /// [`StoreErrorKind::Gone`] if the member is not online.
    pub fn call<T: Send + 'static>(
        &self,
        member: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call_by(member, action, |store| {
            let spare = self.membership.spare();
            self.executor.call_sparing(store, action, spare, work)
        })
    }

    /// Runs work like [`MemberIo::call`], with `execute` to run it if the member is online.
    pub(super) fn call_by<T>(
        &self,
        index: MemberIndex,
        action: &'static str,
        execute: impl FnOnce(&StoreRef) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some((member, store)) = self.membership.asked(index) else {
            self.epochs.publish_failures();
            return Err(self.gone(index, action));
        };
        let result = execute(&store);
        if let Err(error) = &result
            && error.is_member_failure()
        {
            self.membership.mark_asked_failed(index, &member, error);
            self.epochs.publish_failures();
        }
        result
    }

    /// Marks a member missing or faulted because of `error`. Nothing reaches it from now on, and when this returns an
    /// epoch without it is durable on the others. A member that is absent already stays so. The volume is failed
    /// instead, and no epoch is begun, if fewer than `data_shards` are left. The same applies if so few of the epoch
    /// are left that the absent ones could go on by themselves.
    pub fn fail(&self, member: MemberIndex, error: &StoreError) {
        self.membership.mark_failed(member, error);
        self.epochs.publish_failures();
    }

    /// Marks a member faulted whose journal does not hold what it acknowledged any more, as long as the volume goes on
    /// without it. The caller has noted durably that it is a stale copy. It returns with a new journal, and is
    /// verified.
    pub fn fail_stale_copy(&self, member: MemberIndex) {
        if self.membership.spare() == 0 {
            return;
        }
        let source = io::Error::other("someone else wrote to its journal");
        let path = self.membership.path(member);
        let error = StoreError::new(StoreErrorKind::Overwritten, path, "find", "records", source);
        self.fail(member, &error);
    }

    /// Asks every live member whether its directory is still there. Marks those missing whose directory is gone, and
    /// those faulted that owe an answer for too long.
    pub(super) fn probe(&self) {
        self.fail_overdue();
        let live = self.membership.live().into_iter();
        // The call of `run` marks failed members; there is nothing else to do about them.
        let _ = self.run(live.map(|index| (index, Op::Probe)).collect());
    }

    /// Counts an error of a member. [`MemberIo::run`] counts failed reads and writes itself.
    pub fn count_error(&self, member: MemberIndex, class: ErrorClass) {
        self.count_errors(member, class, 1);
    }

    /// Counts blocks of a member that were wrong, or gone, if there are any.
    pub fn count_wrong(&self, member: MemberIndex, blocks: u64) {
        if blocks > 0 {
            self.count_errors(member, ErrorClass::Checksum, blocks);
        }
    }

    fn count_errors(&self, member: MemberIndex, class: ErrorClass, errors: u64) {
        if let Some(member) = self.membership.member(member) {
            member.observed().count_errors(class, errors);
        }
    }

    /// Returns the error of an operation on a member that is not online.
    fn gone(&self, index: MemberIndex, action: &'static str) -> StoreError {
        let reason = match self.membership.member(index) {
            Some(member) => {
                let reason = &member.health().reason;
                reason
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string)
            }
            None => format!("there is no member {index}"),
        };
        let path = self.membership.path(index);
        let source = io::Error::other(reason);
        StoreError::new(StoreErrorKind::Gone, path, action, "directory", source)
    }
}
