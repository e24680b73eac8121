//! Scheduling of rebuilds: on order, when members have been absent for long enough, and when members return. A rebuild
//! onto other members goes on when the volume is opened again, and so do moves of shards to members that have fewer. Work that
//! failed is tried again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::stop::StopSignal;
use crate::format::{Epoch, MemberIndex};
use crate::maintenance::{
    InodeLocks, Maintenance, Pace, Rebuild, RebuildProgress, RebuildScope, RebuildState, Recheck,
    RedundancyCounter,
};
use crate::membership::Members;
use crate::transaction::{CommitError, Transactions};

use due::{DueTimes, MembersSeen};
use lasting_limit::LastingLimit;
use orders::OpenOrders;
use retries::{FailedWork, Retries};
use waiting::{RoomSeen, WaitingShards};

mod accounts;
mod due;
mod lasting;
mod lasting_limit;
mod limit;
mod orders;
mod retries;
mod waiting;

pub use orders::{OrderNumber, RebuildOrders};

/// The interval at which stripes are looked for that have another code than new ones, if they found no room before.
const CODE_CHANGE_INTERVAL: Duration = Duration::from_secs(600);

/// Scheduler of the rebuilds of a volume. One thread runs it.
pub(super) struct RebuildScheduler {
    members: Arc<Members>,
    transactions: Arc<Transactions>,
    redundancy: Arc<RedundancyCounter>,
    recheck: Arc<Recheck>,
    rebuild: Arc<Rebuild>,
    locks: Arc<dyn InodeLocks>,
    /// The longest absence of a member before its shards are rebuilt elsewhere; for ever, if `None`.
    rebuild_after: Option<Duration>,
    orders: Arc<RebuildOrders>,
    due: Mutex<Option<DueTimes>>,
    waiting: Mutex<Option<WaitingShards>>,
    lasting_limit: LastingLimit,
    retries: Retries,
    /// The time at which the codes of stripes were looked at, and the epoch of members then.
    looked_at_codes: Mutex<Option<(Instant, Epoch)>>,
    stop: Arc<StopSignal>,
}

impl RebuildScheduler {
    pub(super) fn new(
        maintenance: &Maintenance,
        locks: Arc<dyn InodeLocks>,
        rebuild_after: Option<Duration>,
        orders: Arc<RebuildOrders>,
        stop: Arc<StopSignal>,
    ) -> Self {
        Self {
            members: Arc::clone(maintenance.transactions().members()),
            transactions: Arc::clone(maintenance.transactions()),
            redundancy: Arc::clone(maintenance.redundancy()),
            recheck: Arc::clone(maintenance.recheck()),
            rebuild: Arc::clone(maintenance.rebuild()),
            locks,
            rebuild_after,
            lasting_limit: LastingLimit::new(
                Arc::clone(maintenance.transactions()),
                Arc::clone(&orders),
            ),
            orders,
            due: Mutex::default(),
            waiting: Mutex::default(),
            retries: Retries::default(),
            looked_at_codes: Mutex::default(),
            stop,
        }
    }

    /// Carries out the open orders, and rebuilds without an order if that is due.
    pub(super) fn run(&self) -> Result<(), CommitError> {
        self.run_by(&Instant::now)
    }

    /// Does the same by another clock.
    pub(super) fn run_by(&self, clock: &dyn Fn() -> Instant) -> Result<(), CommitError> {
        let now = clock();
        self.retries.note_absent(&self.absent());
        let failed = self.retries.due(now);
        let looked = self.lasting_limit.look();
        let resumed = looked.and_then(|()| self.resume(&failed, now));
        let open = self.orders.open();
        self.see_members(now, |_| ());
        let mut decision = Decision {
            newest: open.newest,
            absent: self.absent(),
            gives_up: open.gives_up.clone(),
        };
        let interrupted = resumed.and_then(|interrupted| {
            if open.everything {
                self.begin_elsewhere(&decision)?;
            }
            Ok(interrupted)
        });
        // Orders end with the reason.
        let interrupted = interrupted.inspect_err(|error| {
            self.orders.finish_rebuild(open.newest, Err(error.clone()));
            self.keep_moves(error, clock);
        })?;
        let causes = Causes {
            goes_on: Some(interrupted).filter(|it| !it.is_empty() && !open.everything),
            failed: rebuild_in(failed),
            with_room: self.waiting_with_room(now),
        };
        let scope = self.scope(&open, &causes, &mut decision.absent, now);
        if matches!(scope, Ok(Some(RebuildScope::Everything))) {
            let over = self.see_members(now, |due| due.over(self.rebuild_after, now));
            let absent = self.absent().into_iter();
            let spared: Vec<MemberIndex> = absent
                .filter(|it| over.contains(it) && !decision.absent.contains(it))
                .collect();
            decision.absent.extend(spared);
            decision.gives_up.extend(over);
        }
        let pace = Pace {
            bytes_per_second: self.orders.limit(),
            wait: &|time| self.stop.sleep(time) && self.stop.wait_out_pause(),
        };
        let mut is_left = true;
        if let Some(scope) = scope.transpose() {
            let rebuilt = scope.and_then(|scope| {
                let done = self.rebuild_or_retry(scope, &decision, &pace, clock)?;
                let given = decision.absent.iter().copied().collect();
                self.note_waiting((scope, given), &done, causes.with_room.as_ref());
                if scope == RebuildScope::Everything {
                    self.note_checked(now);
                }
                log_done("rebuilt", &done);
                self.orders.add_rebuilt(open.newest, &done);
                is_left = self.leaves_work(&done)?;
                Ok(())
            });
            let limit = self.orders.bytes_per_second();
            self.orders.finish_rebuild(open.newest, rebuilt.clone());
            self.lasting_limit.keep(limit);
            rebuilt.inspect_err(|error| self.keep_moves(error, clock))?;
        }
        if let Some(order) = open.balance {
            let limit = self.orders.bytes_per_second();
            let balanced = self.balance(order, open.newest, &pace, clock);
            self.lasting_limit.keep(limit);
            balanced?;
            is_left = self.leaves_work(&self.rebuild.status().progress())?;
        }
        if !is_left && !self.stop.is_set() {
            self.end_limit()?;
        }
        Ok(())
    }

    /// Forgets the limit of orders, because a rebuild left nothing to do, unless other work of them waits.
    fn end_limit(&self) -> Result<(), CommitError> {
        let waits_for_room = self.waiting.lock().is_some();
        if waits_for_room || self.retries.has_work() || self.orders.lasting().awaits_work() {
            return Ok(());
        }
        self.lasting_limit.end()
    }

    /// Notes that moves of shards ended with work that failed, and are to be tried again.
    fn keep_moves(&self, error: &CommitError, clock: &dyn Fn() -> Instant) {
        if self.orders.lasting().awaits_balance() && !self.retries.has_work() {
            self.note_failure(FailedWork::Balance, error, clock());
        }
    }

    /// Returns whether a rebuild left something to do for the orders that it was for.
    fn leaves_work(&self, done: &RebuildProgress) -> Result<bool, CommitError> {
        let is_done = done.state == RebuildState::Finished && !done.leaves_something();
        Ok(!is_done || self.awaits_other_code()?)
    }

    /// Returns whether stripes have another code than new ones, or than their files.
    fn awaits_other_code(&self) -> Result<bool, CommitError> {
        let is_rewrite_open = self.transactions.catalog.rewrite_order()?.is_some();
        Ok(is_rewrite_open || self.rebuild.has_other_codes())
    }

    /// Looks for work of orders that an unmount or a crash interrupted, and opens the moves of shards among it again, or after
    /// a failure. Returns the absent members whose shards are to be rebuilt on others.
    fn resume(
        &self,
        failed: &[FailedWork],
        now: Instant,
    ) -> Result<BTreeSet<MemberIndex>, CommitError> {
        let lasting = self.orders.lasting();
        let looked = lasting.look(self.retries.may_try(now));
        match &looked {
            Ok(interrupted) if interrupted.is_known => self.note_done(&FailedWork::Look),
            Ok(_) => {}
            Err(error) => self.note_failure(FailedWork::Look, error, now),
        }
        let interrupted = looked?;
        let is_due = failed.contains(&FailedWork::Balance) && lasting.awaits_balance();
        if interrupted.balance || is_due {
            self.orders.resume_balance();
        }
        Ok(interrupted.elsewhere)
    }

    /// Notes the members that an order for everything does not give up: the next open of the volume goes on with it.
    fn begin_elsewhere(&self, decision: &Decision) -> Result<(), CommitError> {
        let absent = decision.absent.iter().copied();
        let kept = absent.filter(|member| !decision.gives_up.contains(member));
        self.orders.lasting().begin(decision.newest, kept.collect())
    }

    /// Returns the scope of the rebuild that is to be done now, if one is. Takes the members that keep their shards from the
    /// `absent` ones.
    fn scope(
        &self,
        open: &OpenOrders,
        causes: &Causes,
        absent: &mut Vec<MemberIndex>,
        now: Instant,
    ) -> Result<Option<RebuildScope>, CommitError> {
        if let Some(given) = &causes.goes_on {
            self.spare_all_but(given, absent);
        }
        // Absent members keep their time although shards are yet to be moved.
        if open.everything || causes.goes_on.is_some() || self.is_code_change_due(now) {
            return Ok(Some(RebuildScope::Everything));
        }
        if open.rebuild {
            return Ok(Some(if self.are_absent_given_up() {
                RebuildScope::Everything
            } else {
                RebuildScope::Online
            }));
        }
        if let Some((scope, given)) = &causes.failed {
            self.spare_all_but(given, absent);
            return Ok(Some(*scope));
        }
        if let Some(waiting) = &causes.with_room {
            self.spare_all_but(&waiting.given, absent);
            return Ok(Some(waiting.scope));
        }
        self.scope_in_need(now)
    }

    /// Leaves the `given` members and those given up among the `absent` ones. The others keep their shards.
    fn spare_all_but(&self, given: &BTreeSet<MemberIndex>, absent: &mut Vec<MemberIndex>) {
        let given_up = self.members.membership().given_up();
        absent.retain(|member| given.contains(member) || given_up.contains(member));
    }

    /// Returns whether stripes have another code than new ones, or than their files, and a look at them is due. One is due
    /// after a long time, or since the members changed. One that went and came back is a change: stripes wait for it, or some were written without
    /// it. A change of the code that a crash or an unmount interrupted goes on so.
    fn is_code_change_due(&self, now: Instant) -> bool {
        self.rebuild.note_online();
        // Absent members keep their time, and stripes would be written without them. Nothing waits for those given up.
        if !self.are_absent_given_up() {
            return false;
        }
        let epoch = self.members.membership().epoch();
        let mut looked = self.looked_at_codes.lock();
        let is_due = looked
            .is_none_or(|(looked, then)| now >= looked + CODE_CHANGE_INTERVAL || epoch != then);
        if !is_due {
            return false;
        }
        *looked = Some((now, epoch));
        // A change of the code of the volume waits for all members, also for those.
        let is_changing = self.absent().is_empty() && self.rebuild.has_other_codes();
        // An order that cannot be read counts as one: the rebuild meets the error again, and reports it.
        is_changing || self.rebuild.has_rewriting_to_do().unwrap_or(true)
    }

    /// Rebuilds the missing shards of a scope, or notes that this is to be tried again.
    fn rebuild_or_retry(
        &self,
        scope: RebuildScope,
        decision: &Decision,
        pace: &Pace<'_>,
        clock: &dyn Fn() -> Instant,
    ) -> Result<RebuildProgress, CommitError> {
        let given = match scope {
            RebuildScope::Everything => decision.absent.iter().copied().collect(),
            RebuildScope::Online => BTreeSet::new(),
        };
        let work = FailedWork::Rebuild(scope, given);
        let rebuilt = self.rebuild(scope, decision, pace);
        match &rebuilt {
            Ok(done) if done.state == RebuildState::Finished => self.note_done(&work),
            // It was stopped.
            Ok(_) => {}
            Err(error) => self.note_failure(work, error, clock()),
        }
        rebuilt
    }

    /// Notes work that failed. `status` tells the reason until it is done.
    fn note_failure(&self, work: FailedWork, error: &CommitError, now: Instant) {
        self.rebuild.status().set_failure(Some(error.to_string()));
        self.retries.note_failure(work, now);
    }

    /// Notes work that was done.
    fn note_done(&self, work: &FailedWork) {
        if self.retries.note_done(work) {
            self.rebuild.status().set_failure(None);
            // They ended with the rebuild that failed.
            if self.orders.lasting().awaits_balance() {
                self.orders.resume_balance();
            }
        }
    }

    /// Rebuilds the missing shards of a scope. Members that went away since the decision keep their time and their shards.
    fn rebuild(
        &self,
        scope: RebuildScope,
        decision: &Decision,
        pace: &Pace<'_>,
    ) -> Result<RebuildProgress, CommitError> {
        if scope == RebuildScope::Online {
            return self.rebuild.run(scope, &*self.locks, pace);
        }
        // A caller that waits for this asks afterwards which ranges are unrecoverable.
        self.recheck.run(&|| !self.stop.is_set())?;
        // Until the rebuild is complete, the next open of the volume continues it.
        self.members.epochs().give_up(&decision.gives_up);
        let membership = self.members.membership();
        let draining = membership.draining().into_iter();
        // One that goes away before it has replaced another is not waited for.
        let heirs = draining.filter_map(|member| membership.heir_of(member));
        let given: Vec<MemberIndex> = decision.absent.iter().copied().chain(heirs).collect();
        let done = self.rebuild.run_without(&given, &*self.locks, pace)?;
        let is_complete = done.state == RebuildState::Finished && !done.leaves_something();
        if is_complete {
            self.orders.lasting().end(decision.newest)?;
        }
        // An order to rewrite files that is still open goes on without them.
        if is_complete && !self.rebuild.has_rewriting_to_do()? {
            // Later orders give up others, and are to outlast this daemon.
            let later = self.orders.given_up_after(decision.newest);
            self.members.epochs().set_given_up(later);
        }
        Ok(done)
    }

    /// Moves shards to members that have fewer, for all orders up to `order`. Gives way to orders later than `newest`,
    /// and to rebuilds that become due.
    fn balance(
        &self,
        order: u64,
        newest: u64,
        pace: &Pace<'_>,
        clock: &dyn Fn() -> Instant,
    ) -> Result<(), CommitError> {
        let gives_way = || self.orders.has_later_than(newest) || self.scope_due(clock()).is_some();
        let before = self.orders.moved();
        let mut balanced = self.rebuild.balance(pace, &gives_way, &before);
        if let Ok(done) = &mut balanced {
            done.elapsed = done.elapsed.saturating_sub(before.elapsed);
            log_done("balanced", done);
            if done.state == RebuildState::Finished {
                let ended = self.orders.lasting().end_balance(order);
                balanced = ended.and(balanced);
            }
        }
        match &balanced {
            Ok(done) if done.state == RebuildState::Finished => {
                self.note_done(&FailedWork::Balance);
            }
            // It gave way to other work.
            Ok(_) => {}
            Err(error) => self.note_failure(FailedWork::Balance, error, clock()),
        }
        self.orders.finish_balance(order, &balanced);
        balanced.map(drop)
    }

    /// Returns the shards that waited for room, if there is some by now.
    fn waiting_with_room(&self, now: Instant) -> Option<WaitingShards> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut().filter(|waiting| waiting.is_due(now))?;
        waiting.note_checked(now);
        waiting.can_go_on(&self.room()).then(|| waiting.clone())
    }

    /// Notes the shards that found no room. Those that online members lack may wait for less than all.
    fn note_waiting(
        &self,
        (scope, given): (RebuildScope, BTreeSet<MemberIndex>),
        progress: &RebuildProgress,
        before: Option<&WaitingShards>,
    ) {
        let rebuilt = (scope, given);
        let waits = WaitingShards::after(rebuilt, progress, before, self.room(), Instant::now());
        let mut waiting = self.waiting.lock();
        let is_for_all = |waiting: &WaitingShards| waiting.scope == RebuildScope::Everything;
        if scope == RebuildScope::Everything || !waiting.as_ref().is_some_and(is_for_all) {
            *waiting = waits;
        }
    }

    /// Notes the membership as it is, and applies `ask` to the due times.
    fn see_members<R>(&self, now: Instant, ask: impl FnOnce(&mut DueTimes) -> R) -> R {
        let seen = MembersSeen {
            epoch: self.members.membership().epoch(),
            online: self.members.membership().live(),
            absent: self.absent(),
            is_draining: !self.members.membership().draining().is_empty(),
            lacks_files: self.redundancy.lacks_files(),
            left_out: self.transactions.left_out(),
        };
        let mut due = self.due.lock();
        let due = due.get_or_insert_with(|| {
            DueTimes::new(seen.clone(), self.members.membership().given_up(), now)
        });
        due.see(seen, now);
        ask(due)
    }

    /// Returns the scope for which a check is due without an order.
    fn scope_due(&self, now: Instant) -> Option<RebuildScope> {
        self.see_members(now, |due| due.due(self.rebuild_after, now))
    }

    /// Notes a check for all missing shards.
    fn note_checked(&self, at: Instant) {
        if let Some(due) = &mut *self.due.lock() {
            due.note_checked(RebuildScope::Everything, at);
        }
    }

    /// Returns the scope that has to be rebuilt without an order. Where a check is due, looks for missing files and
    /// shards.
    fn scope_in_need(&self, now: Instant) -> Result<Option<RebuildScope>, CommitError> {
        let Some(scope) = self.scope_due(now) else {
            return Ok(None);
        };
        let is_whole = {
            let mut due = self.due.lock();
            due.as_mut().is_some_and(|due| {
                due.note_checked(scope, now);
                due.is_whole()
            })
        };
        self.redundancy.look_for_files();
        let may_be_known = scope == RebuildScope::Online || is_whole;
        let is_in_need = !may_be_known || self.redundancy.may_lack_shards()?;
        if !is_in_need && is_whole && !self.awaits_other_code()? {
            self.end_limit()?;
        }
        Ok(is_in_need.then_some(scope))
    }

    /// Returns the absent members, and the room of the others.
    fn room(&self) -> RoomSeen {
        RoomSeen {
            absent: self.absent(),
            free: self.transactions.room_by_member(),
        }
    }

    /// Returns whether all absent members are given up.
    fn are_absent_given_up(&self) -> bool {
        let given_up = self.members.membership().given_up();
        self.absent().iter().all(|member| given_up.contains(member))
    }

    fn absent(&self) -> Vec<MemberIndex> {
        let absent = self.members.membership().away().into_iter();
        absent.map(|(member, _)| member).collect()
    }
}

/// Causes of a rebuild besides open orders and the time.
struct Causes {
    /// The absent members whose shards an interrupted order has rebuilt on others, if there are any.
    goes_on: Option<BTreeSet<MemberIndex>>,
    /// The rebuild that is tried again, and the absent members whose shards it moves.
    failed: Option<(RebuildScope, BTreeSet<MemberIndex>)>,
    /// The shards that waited for room, if there is some by now.
    with_room: Option<WaitingShards>,
}

/// Returns the rebuild among work that failed.
fn rebuild_in(failed: Vec<FailedWork>) -> Option<(RebuildScope, BTreeSet<MemberIndex>)> {
    failed.into_iter().find_map(|work| match work {
        FailedWork::Rebuild(scope, given) => Some((scope, given)),
        FailedWork::Look | FailedWork::Balance => None,
    })
}

/// The members on which a rebuild was decided.
#[derive(Debug)]
struct Decision {
    /// The number of the last order then.
    newest: u64,
    /// Those that were absent.
    absent: Vec<MemberIndex>,
    /// Those of them that are not waited for any more.
    gives_up: BTreeSet<MemberIndex>,
}

/// Logs the progress of a rebuild or of balancing, if anything was done or is left.
fn log_done(what: &str, progress: &RebuildProgress) {
    let RebuildProgress {
        bytes_done,
        bytes_left,
        bytes_waiting,
        bytes_unreadable,
        elapsed,
        ..
    } = *progress;
    let left = bytes_left + bytes_waiting + bytes_unreadable;
    if bytes_done > 0 || left > 0 {
        tracing::info!(
            "{what}: {bytes_done} bytes of shards written in {elapsed:.1?}, {left} are left"
        );
    }
}
