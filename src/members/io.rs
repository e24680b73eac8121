//! Operations on members, and the consequences of their failures.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::epoch::Roster;
use super::health::Member;
use super::superseded::needed_to_go_on;
use super::{AbsenceReason, Access, ErrorClass, MemberState, MemberStatus, Members, MembersError};
use crate::format::MemberIndex;
use crate::store::{Op, Outcome, Pool, Request, Store, StoreError, StoreErrorKind, StoreRef};

/// Bytes that are written at once to fill a file.
const NOISE_BYTES: usize = 1 << 20;

impl Members {
    /// Runs operations on members in parallel, and returns their outcomes, in their order.
    ///
    /// The outcome of an operation on a member that is not up is [`StoreErrorKind::Gone`], without an attempt. A member
    /// that fails one is marked down, as with [`Members::fail`], before this returns.
    #[must_use]
    pub fn run(&self, ops: Vec<(MemberIndex, Op)>) -> Vec<Outcome> {
        self.run_by(ops, |requests| {
            self.executor.run_sparing(requests, self.spare())
        })
    }

    /// The same, with `execute` to run the requests to members that are up.
    pub(super) fn run_by(
        &self,
        ops: Vec<(MemberIndex, Op)>,
        execute: impl FnOnce(Vec<Request>) -> Vec<Outcome>,
    ) -> Vec<Outcome> {
        let mut seats = Vec::with_capacity(ops.len());
        let mut requests = Vec::with_capacity(ops.len());
        for (index, op) in ops {
            let class = match op {
                Op::Read { .. } => ErrorClass::Read,
                _ => ErrorClass::Write,
            };
            let asked = self.asked(index);
            seats.push((index, class, asked.clone()));
            requests.extend(asked.map(|(_, store)| Request { store, op }));
        }
        let mut answers = execute(requests).into_iter();
        let mut disturbed = false;
        let mut outcomes = Vec::with_capacity(seats.len());
        for (index, class, asked) in seats {
            let answer = asked.as_ref().and_then(|_| answers.next());
            let outcome = answer.unwrap_or_else(|| Err(self.gone(index, "reach")));
            if let Err(error) = &outcome {
                disturbed |= match &asked {
                    Some((member, _)) => note(index, member, class, error),
                    None => true,
                };
            }
            outcomes.push(outcome);
        }
        if disturbed {
            self.settle();
        }
        outcomes
    }

    /// Runs any work on one member's store, bounded in time; `action` is a verb for messages. A member that fails is
    /// marked down, as with [`Members::run`].
    ///
    /// # Errors
    ///
    /// Those of `work`; [`StoreErrorKind::Hung`] if it does not return in time;
    /// [`StoreErrorKind::Gone`] if the member is not up.
    pub fn call<T: Send + 'static>(
        &self,
        member: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call_by(member, action, |store| {
            self.executor
                .call_sparing(store, action, self.spare(), work)
        })
    }

    /// The same, with `execute` to run the work if the member is up.
    pub(super) fn call_by<T>(
        &self,
        member: MemberIndex,
        action: &'static str,
        execute: impl FnOnce(&StoreRef) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some((asked, store)) = self.asked(member) else {
            self.settle();
            return Err(self.gone(member, action));
        };
        let result = execute(&store);
        if let Err(error) = &result
            && error.is_member_failure()
        {
            take_down(member, &asked, error);
            self.settle();
        }
        result
    }

    /// Returns a member that is up, and its directory: the directory's answer says nothing of another one that may have
    /// its place by then.
    fn asked(&self, index: MemberIndex) -> Option<(Arc<Member>, StoreRef)> {
        let member = self.member(index).filter(|_| !self.is_released())?;
        let store = member.store()?;
        Some((member, store))
    }

    /// Returns how many members can be given up before the volume has failed.
    pub(super) fn spare(&self) -> usize {
        let live = self.up_count();
        live.saturating_sub(self.shape.geometry.data_shards())
    }

    fn up_count(&self) -> usize {
        self.all
            .read()
            .iter()
            .filter(|member| member.is_up())
            .count()
    }

    /// Marks a member missing or faulted because of `error`. Nothing reaches it from now on, and when this returns an
    /// epoch without it is durable on the others. A member that is down already stays so. The volume is failed instead,
    /// and no epoch is begun, if fewer than `data_shards` are left. The same applies if so few of the epoch are left
    /// that the absent ones could go on by themselves.
    pub fn fail(&self, member: MemberIndex, error: &StoreError) {
        self.mark_down(member, error);
        self.settle();
    }

    /// Asks every live member whether its directory is still there. Marks those down whose directory is gone, and those
    /// that owe an answer for too long. Releases the directories of members that are down.
    pub fn probe(&self) {
        self.judge_slow();
        let probes = self.live().into_iter().map(|index| (index, Op::Probe));
        // The call of `run` marks failed members; there is nothing else to do about them.
        let _ = self.run(probes.collect());
        self.look_for_superblocks();
        self.let_go_of_the_lost();
    }

    /// Releases the directories of failed and replaced members, if no request to them is under way any more.
    pub(super) fn let_go_of_the_lost(&self) {
        let roster = self.roster.lock();
        let unused = self
            .holds
            .take_unused(&self.executor, || self.is_durable_who_is_lost(&roster));
        drop(roster);
        // This may take a moment.
        drop(unused);
    }

    /// Says whether an epoch is durable without any member that is down. Before that, no other process may have its
    /// directory, because it could take the directory for that of a current member.
    fn is_durable_who_is_lost(&self, roster: &Roster) -> bool {
        let is_noted = roster.begun && roster.admitted.iter().all(|index| self.is_up(*index));
        !self.is_failed() && (is_noted || self.access == Access::ReadOnly)
    }

    /// Counts an error of a member. [`Members::run`] counts failed reads and writes itself.
    pub fn count_error(&self, member: MemberIndex, class: ErrorClass) {
        self.count_errors(member, class, 1);
    }

    /// Counts pieces of a member that were wrong, or gone, if there are any.
    pub fn count_wrong(&self, member: MemberIndex, pieces: u64) {
        if pieces > 0 {
            self.count_errors(member, ErrorClass::Checksum, pieces);
        }
    }

    fn count_errors(&self, member: MemberIndex, class: ErrorClass, errors: u64) {
        if let Some(member) = self.member(member) {
            member.count_errors(class, errors);
        }
    }

    /// Makes a file that takes the space of `len` bytes, in the place of any file of that name. Where space cannot be
    /// reserved, it writes bytes that no filesystem can compress.
    ///
    /// # Errors
    ///
    /// The answer of the member; nothing is left of the file then.
    pub fn fill(&self, member: MemberIndex, name: &Arc<str>, len: u64) -> Result<(), StoreError> {
        let filled = self.try_fill(member, name, len);
        if filled.is_err() {
            self.one(member, remove_op(name))?;
        }
        filled
    }

    fn try_fill(&self, member: MemberIndex, name: &Arc<str>, len: u64) -> Result<(), StoreError> {
        self.one(member, remove_op(name))?;
        let file = Arc::clone(name);
        let reserves = self.call(member, "create", move |store| {
            store.create(&file, len)?;
            if store.space()?.reserves {
                return Ok(true);
            }
            // So that its length says how much of it was written.
            store.truncate(&file, 0)?;
            Ok(false)
        })?;
        if reserves {
            return Ok(());
        }
        let noise = noise();
        let mut offset = 0;
        while offset < len {
            let piece = noise
                .len()
                .min(usize::try_from(len - offset).unwrap_or(usize::MAX));
            let name = Arc::clone(name);
            let data = noise.slice(..piece);
            self.one(member, Op::Write { name, offset, data })?;
            offset += piece as u64;
        }
        let name = Arc::clone(name);
        self.one(member, Op::Sync { name })
    }

    fn one(&self, member: MemberIndex, op: Op) -> Result<(), StoreError> {
        let outcomes = self.run(vec![(member, op)]);
        outcomes
            .into_iter()
            .try_for_each(|outcome| outcome.map(drop))
    }

    /// Returns the status of each member, by index, and asks each how much it holds; for a slow one, the last answer
    /// counts.
    #[must_use]
    pub fn status(&self) -> Vec<MemberStatus> {
        let mut members = self.standing();
        for member in &mut members {
            (member.bytes_used, member.bytes_free) = self.usage(member.index);
        }
        members
    }

    /// Returns the members that do not take part, by index. Asks none of them, nor any other.
    #[must_use]
    pub fn absentees(&self) -> Vec<MemberStatus> {
        let mut members = self.standing();
        members.retain(|member| member.state != MemberState::Online);
        members
    }

    /// Returns the directories that are open and locked.
    #[must_use]
    pub fn in_use(&self) -> Vec<PathBuf> {
        self.holds.paths().into_iter().map(PathBuf::from).collect()
    }

    /// Returns the known status of each member without asking it.
    fn standing(&self) -> Vec<MemberStatus> {
        let stale: BTreeSet<_> = self.stale().into_iter().collect();
        let read_only = self.access() == Access::ReadOnly;
        let leaving = self.leaving();
        let put_back = self.put_back();
        let members = (0..).map(MemberIndex).zip(self.everyone());
        members
            .filter(|(_, member)| !member.is_vacant())
            .map(|(index, member)| {
                let health = member.health();
                let waiting = stale.contains(&index);
                let waiting = waiting.then_some(AbsenceReason::Stale { read_only });
                let unverified = put_back.contains_key(&index);
                let unverified = unverified.then_some(AbsenceReason::Unverified);
                MemberStatus {
                    index,
                    id: member.id,
                    path: member.path.clone(),
                    state: health.state,
                    reason: health.reason.or(unverified).or(waiting),
                    refusal: health.refusal,
                    leaving: leaving.contains(&index),
                    bytes_used: 0,
                    bytes_free: 0,
                    errors: member.errors(),
                    wrong_at: member.wrong_at(),
                }
            })
            .collect()
    }

    /// Bytes used and free, 0 where the member cannot say: its state then tells why.
    fn usage(&self, index: MemberIndex) -> (u64, u64) {
        if !self.is_up(index) {
            return (0, 0);
        }
        let usage = self.taken(index).zip(self.space(index));
        usage.map_or((0, 0), |(taken, space)| (taken, space.free_bytes))
    }

    pub(super) fn mark_down(&self, index: MemberIndex, error: &StoreError) {
        if let Some(member) = self.member(index) {
            take_down(index, &member, error);
        }
    }

    /// Waits until an epoch without the members that are down is durable, or begins it.
    pub(super) fn settle(&self) {
        let mut roster = self.roster.lock();
        if let Err(error) = self.leave_behind(&mut roster) {
            log::error!("the volume has failed: {error}");
        }
        self.publish(&roster);
    }

    fn leave_behind(&self, roster: &mut Roster) -> Result<(), MembersError> {
        let up: BTreeSet<_> = self.indices().filter(|index| self.is_up(*index)).collect();
        if self.is_failed() || self.is_released() {
            return Ok(());
        }
        if !roster.begun || roster.admitted.is_subset(&up) {
            let admitted = roster.admitted.intersection(&up).copied().collect();
            return self.check_alive(roster, &admitted);
        }
        self.raise_epoch(roster, roster.admitted.clone())
    }

    /// Checks that the volume can go on with `admitted` in its epoch; if not, it has failed.
    ///
    /// `data_shards` of any age are needed. Each epoch that may be the newest known to an absent member needs enough of
    /// its own members as well. Without these, the absent ones alone could be written to. Returned members that are not
    /// in the epoch yet do not count for this, because nothing on them says that the volume went on.
    pub(super) fn check_alive(
        &self,
        roster: &Roster,
        admitted: &BTreeSet<MemberIndex>,
    ) -> Result<(), MembersError> {
        let live = self.up_count();
        let data = self.shape.geometry.data_shards();
        let parity = self.shape.geometry.parity_shards();
        let needed = |epoch: &BTreeSet<_>| match self.access {
            Access::ReadWrite => needed_to_go_on(epoch.len(), data, parity),
            Access::ReadOnly => 1,
        };
        let here = |epoch: &BTreeSet<_>| epoch.intersection(admitted).count();
        let mut epochs = roster.last_epochs();
        let (kind, live, needed) = if live < data {
            ("left", live, data)
        } else if let Some(epoch) = epochs.find(|epoch| here(epoch) < needed(epoch)) {
            ("left that were up to date", here(epoch), needed(epoch))
        } else {
            return Ok(());
        };
        self.failed.store(true, Ordering::Release);
        Err(MembersError::Failed { kind, live, needed })
    }

    /// The error for an operation on a member that is not up.
    fn gone(&self, index: MemberIndex, action: &'static str) -> StoreError {
        let reason = match self.member(index).map(|member| member.health()) {
            Some(health) => health.reason.map_or_else(String::new, |it| it.to_string()),
            None => format!("there is no member {index}"),
        };
        let path = self.path(index);
        StoreError::new(
            StoreErrorKind::Gone,
            path,
            action,
            "directory",
            io::Error::other(reason),
        )
    }
}

/// Counts an error, and takes the member down if the error calls for it; returns whether it does.
fn note(index: MemberIndex, member: &Member, class: ErrorClass, error: &StoreError) -> bool {
    match error.kind() {
        // The failure of a full or mistaken request says nothing of the member.
        StoreErrorKind::NoSpace
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::InvalidName
        | StoreErrorKind::Slow
        | StoreErrorKind::Exhausted => {}
        _ => member.count_errors(class, 1),
    }
    let failed = error.is_member_failure();
    if failed {
        take_down(index, member, error);
    }
    failed
}

fn take_down(index: MemberIndex, member: &Member, error: &StoreError) {
    if member.mark_down(error) {
        log::warn!(
            "member {index} is left behind: {}",
            super::slots::chain(error)
        );
    }
}

fn remove_op(name: &Arc<str>) -> Op {
    Op::Remove {
        name: Arc::clone(name),
    }
}

/// Returns a megabyte that cannot be compressed, in memory fit for any way of writing.
fn noise() -> Bytes {
    let mut noise = Pool::new(0).buffer(NOISE_BYTES);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for word in noise.chunks_exact_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    noise.freeze()
}
