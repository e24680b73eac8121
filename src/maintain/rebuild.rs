//! Rebuilding in the background: on request, and by itself when members have been away for long enough, or are back. A
//! rebuild onto other members goes on when the volume is opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Schedule, Stop};
use crate::commit::{CommitError, InodeLocks, Pace, Pipeline, RebuildProgress, RebuildState};
use crate::format::{Epoch, MemberIndex};

use accounts::Accounts;
use limit::Limit;
use room::Waiting;

mod accounts;
mod limit;
mod room;

/// The time for which members have to stay as they are before a rebuild, if none is away.
const SETTLED: Duration = Duration::from_secs(5);

/// The interval between checks for missing shards while no member comes or goes.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// An order to rebuild, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderNumber(pub u64);

/// Orders, and their outcomes.
#[derive(Debug)]
pub struct Rebuilder {
    /// The longest absence of a member before what it held is rebuilt elsewhere; for ever, if `None`.
    after: Option<Duration>,
    limit: Limit,
    state: Mutex<State>,
    /// The shards that found no room; the thread that rebuilds alone uses it.
    waiting: Mutex<Option<Waiting>>,
    /// Told when an order was carried out.
    done: Condvar,
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct State {
    ordered: u64,
    /// The last order for which missing shards were rebuilt.
    done: u64,
    /// The orders for which shards are still to be moved to members that have fewer.
    balance: BTreeSet<u64>,
    /// The progress of these moves so far.
    written: RebuildProgress,
    failure: Option<CommitError>,
    watch: Option<Watch>,
    accounts: Accounts,
}

impl State {
    /// Says whether there is something to do for an order.
    fn is_asked_for(&self) -> bool {
        self.is_ordered() || !self.balance.is_empty()
    }

    /// Says whether missing shards have to be rebuilt for an order.
    fn is_ordered(&self) -> bool {
        self.ordered > self.done
    }

    fn is_open(&self, order: OrderNumber) -> bool {
        self.done < order.0 || self.balance.contains(&order.0)
    }

    /// Ends the moves of shards for orders up to this one.
    fn end_balance(&mut self, order: u64) {
        self.balance.retain(|later| *later > order);
        if self.balance.is_empty() {
            self.written = RebuildProgress::default();
        }
    }

    /// Adds to the progress of open orders.
    fn add_written(&mut self, done: &RebuildProgress) {
        if !self.balance.is_empty() {
            self.written.bytes_done += done.bytes_done;
            self.written.elapsed += done.elapsed;
        }
    }

    /// Notes the outcome of a rebuild. Gives up the moves for all orders up to this one if it failed.
    fn note_failure(&mut self, order: u64, failure: Option<CommitError>) {
        if failure.is_some() {
            self.end_balance(order);
        }
        self.failure = failure;
    }
}

/// Members as they have been for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Members {
    epoch: Epoch,
    live: Vec<MemberIndex>,
    away: Vec<MemberIndex>,
    /// Set if one is being drained.
    leaving: bool,
    /// Set if files on them are known to be gone or too short.
    lacks_files: bool,
}

impl Members {
    /// Says whether all are there, and to stay.
    fn is_whole(&self) -> bool {
        self.away.is_empty() && !self.leaving
    }
}

/// The shards to rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// All missing shards, also those of absent members.
    Everything,
    /// The shards that online members lack.
    AtHand,
}

/// The times at which a rebuild of them is due.
#[derive(Debug)]
struct Watch {
    members: Members,
    /// The time of their last change.
    since: Instant,
    /// The begin of the absence of each absent member.
    away: BTreeMap<MemberIndex, Instant>,
    /// The members already given up when the volume was opened.
    given_up: BTreeSet<MemberIndex>,
    /// The time of the last check whether there was something to do.
    looked: Option<Instant>,
    /// The time of the last such check for online members alone.
    looked_at_hand: Option<Instant>,
}

impl Watch {
    fn new(members: Members, given_up: BTreeSet<MemberIndex>, now: Instant) -> Self {
        let away = members.away.iter().map(|member| (*member, now)).collect();
        Self {
            members,
            since: now,
            away,
            given_up,
            looked: None,
            looked_at_hand: None,
        }
    }

    /// Notes the members as they are now. An absent member keeps the begin of its absence when others follow.
    fn see(&mut self, members: Members, now: Instant) {
        if self.members != members {
            self.away.retain(|member, _| members.away.contains(member));
            for member in &members.away {
                self.away.entry(*member).or_insert(now);
            }
            self.members = members;
            self.since = now;
        }
    }

    /// Returns the task for which it is time to look. Returned members need not wait for absent ones.
    fn due(&self, after: Option<Duration>, now: Instant) -> Option<Task> {
        let is_settled = |looked: Option<Instant>| match looked.filter(|at| *at >= self.since) {
            Some(looked) => now.duration_since(looked) >= LOOK_INTERVAL,
            None => now.duration_since(self.since) >= SETTLED,
        };
        let is_time_for_all = if self.away.is_empty() || self.members.leaving {
            is_settled(self.looked)
        } else {
            self.is_to_go_on() || after.is_some_and(|after| self.is_given_up(after, now))
        };
        if is_time_for_all {
            return Some(Task::Everything);
        }
        is_settled(self.looked_at_hand.max(self.looked)).then_some(Task::AtHand)
    }

    /// Says whether shards of absent members were being rebuilt when the volume was closed, or its daemon died.
    fn is_to_go_on(&self) -> bool {
        let mut away = self.away.keys();
        self.looked.is_none() && away.any(|member| self.given_up.contains(member))
    }

    /// Says whether a member has been away for so long. Once all absent members have been seen to, says whether it is
    /// time to look again.
    fn is_given_up(&self, after: Duration, now: Instant) -> bool {
        let is_new = |since: &&Instant| self.looked.is_none_or(|looked| **since > looked);
        match (self.away.values().filter(is_new).min(), self.looked) {
            (Some(longest), _) => now.duration_since(*longest) >= after,
            (None, Some(looked)) => now.duration_since(looked) >= LOOK_INTERVAL,
            (None, None) => false,
        }
    }

    fn note(&mut self, task: Task, now: Instant) {
        match task {
            Task::Everything => self.looked = Some(now),
            Task::AtHand => self.looked_at_hand = Some(now),
        }
    }
}

impl Rebuilder {
    pub(super) fn new(schedule: Schedule, stop: Arc<Stop>) -> Self {
        Self {
            after: schedule.rebuild_after,
            limit: Limit::new(schedule.bytes_per_second),
            state: Mutex::default(),
            waiting: Mutex::default(),
            done: Condvar::new(),
            stop,
        }
    }

    /// Orders a rebuild, with a limit to the bytes written in a second. With `balance`, also moves shards afterwards to
    /// members that have fewer. The limit applies at once to a running rebuild, and to orders without one, until all
    /// orders are done or another limit is given. Without any limit the rebuild is unlimited, even if rebuilds without
    /// an order have one.
    ///
    /// Shards lost before the rebuild begins are rebuilt with it. Shards lost during the moves are rebuilt when they
    /// would be without an order, and before any more moves; so are those of orders given meanwhile.
    pub fn order(&self, bytes_per_second: Option<u64>, balance: bool) -> OrderNumber {
        let order = {
            let mut state = self.state.lock();
            self.limit.ask(bytes_per_second, !state.is_asked_for());
            state.ordered += 1;
            let order = state.ordered;
            if balance {
                state.balance.insert(order);
            } else {
                state.accounts.open(order);
            }
            OrderNumber(order)
        };
        self.stop.nudge();
        order
    }

    /// Lifts the limit of an order: the slow work has been given up.
    pub fn lift_limit(&self) {
        self.limit.lift(self.state.lock().is_asked_for());
    }

    /// Waits until an order has been carried out, as far as that is possible, but no longer than so long.
    /// Returns `None` if it has not been then.
    ///
    /// # Errors
    ///
    /// The failure of the last rebuild.
    pub fn outcome(
        &self,
        order: OrderNumber,
        patience: Duration,
    ) -> Option<Result<(), CommitError>> {
        let mut state = self.state.lock();
        let is_open = |state: &mut State| state.is_open(order);
        if self
            .done
            .wait_while_for(&mut state, is_open, patience)
            .timed_out()
        {
            return None;
        }
        Some(state.failure.clone().map_or(Ok(()), Err))
    }

    /// Returns the progress or the outcome of an order, with the rebuild done while it waited for its turn. `now` is
    /// the progress of the running rebuild, or of the last one.
    pub fn progress_of(&self, order: OrderNumber, now: RebuildProgress) -> RebuildProgress {
        self.state.lock().accounts.progress_of(order.0, now)
    }

    /// Waits for an order, but no longer than so long; returns whether to go on.
    pub(super) fn wait_for_order(&self, time: Duration) -> bool {
        self.stop.sleep_until(time, || {
            let state = self.state.lock();
            state.is_asked_for()
        })
    }

    /// Rebuilds if it is time to; `locks` are those of the inodes whose extents are moved.
    pub(super) fn work(
        &self,
        pipeline: &Pipeline,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        self.work_by(&Instant::now, pipeline, locks)
    }

    /// The same, by another clock.
    pub(super) fn work_by(
        &self,
        clock: &dyn Fn() -> Instant,
        pipeline: &Pipeline,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        let (is_ordered, ordered, balance) = {
            let state = self.state.lock();
            let balance = state.balance.last().copied();
            (state.is_ordered(), state.ordered, balance)
        };
        let now = clock();
        self.look(pipeline, now, |_| ());
        let roomy = self.with_room(pipeline, now);
        // Members that are away keep their time although shards are yet to be moved.
        let task = match &roomy {
            _ if is_ordered => Ok(Some(Task::Everything)),
            Some(waiting) => Ok(Some(waiting.task)),
            None => self.called_for(pipeline, now),
        };
        let pace = Pace {
            bytes_per_second: self.limit.in_force(),
            wait: &|time| self.stop.sleep(time),
        };
        if let Some(task) = task.transpose() {
            let rebuilt = task.and_then(|task| {
                let done = match task {
                    Task::Everything => {
                        // A caller that waits for this asks afterwards what is lost.
                        let goes_on = || !*self.stop.stopped.lock();
                        pipeline.recheck().run(&goes_on)?;
                        rebuild_everything(pipeline, locks, &pace)?
                    }
                    Task::AtHand => pipeline.catch_up(&pace)?,
                };
                self.note_waiting(pipeline, task, &done, roomy.as_ref());
                if task == Task::Everything {
                    self.note_looked(now);
                }
                log_rebuilt("rebuilt", &done);
                let mut state = self.state.lock();
                state.add_written(&done);
                state.accounts.add(ordered, &done);
                Ok(())
            });
            self.note_done(ordered, rebuilt.clone());
            rebuilt?;
        }
        let Some(balance) = balance else {
            return Ok(());
        };
        let gives_way = || {
            let is_ordered = self.state.lock().ordered > ordered;
            is_ordered || self.due(pipeline, clock()).is_some()
        };
        let before = self.state.lock().written;
        let mut balanced = pipeline.balance(&pace, &gives_way, &before);
        if let Ok(done) = &mut balanced {
            done.elapsed = done.elapsed.saturating_sub(before.elapsed);
            log_rebuilt("balanced", done);
        }
        self.note_balanced(balance, &balanced);
        balanced.map(drop)
    }

    /// Notes that all orders up to this one were carried out, except for the moves of shards, or the failure that
    /// prevented it.
    fn note_done(&self, order: u64, outcome: Result<(), CommitError>) {
        let mut state = self.state.lock();
        state.done = state.done.max(order);
        state.note_failure(order, outcome.err());
        self.announce(&state);
    }

    /// Notes the outcome of moving shards, for all orders up to this one. Interrupted moves go on once the work that
    /// interrupted them is done.
    fn note_balanced(&self, order: u64, outcome: &Result<RebuildProgress, CommitError>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(progress) if progress.state == RebuildState::Finished => state.end_balance(order),
            Ok(progress) => state.add_written(progress),
            Err(error) => state.note_failure(order, Some(error.clone())),
        }
        self.announce(&state);
    }

    fn announce(&self, state: &State) {
        self.done.notify_all();
        if !state.is_asked_for() {
            self.limit.reset();
        }
    }

    /// Returns the shards that waited for room, if there is some by now.
    fn with_room(&self, pipeline: &Pipeline, now: Instant) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut().filter(|waiting| waiting.is_due(now))?;
        waiting.note_seen(now);
        let (away, room) = room_of(pipeline);
        waiting.can_go_on(&away, &room).then(|| waiting.clone())
    }

    /// Notes the shards that found no room. Those that online members lack may wait for less than all.
    fn note_waiting(
        &self,
        pipeline: &Pipeline,
        task: Task,
        progress: &RebuildProgress,
        before: Option<&Waiting>,
    ) {
        let waits = Waiting::after(task, progress, before, room_of(pipeline), Instant::now());
        let mut waiting = self.waiting.lock();
        let is_for_all = |waiting: &Waiting| waiting.task == Task::Everything;
        if task == Task::Everything || !waiting.as_ref().is_some_and(is_for_all) {
            *waiting = waits;
        }
    }

    /// Notes the members as they are, and applies `ask` to that.
    fn look<R>(&self, pipeline: &Pipeline, now: Instant, ask: impl FnOnce(&Watch) -> R) -> R {
        let members = members_of(pipeline);
        let mut state = self.state.lock();
        let watch = state
            .watch
            .get_or_insert_with(|| Watch::new(members.clone(), pipeline.members().given_up(), now));
        watch.see(members, now);
        ask(watch)
    }

    /// Returns the task for which it is time to look without an order.
    fn due(&self, pipeline: &Pipeline, now: Instant) -> Option<Task> {
        self.look(pipeline, now, |watch| watch.due(self.after, now))
    }

    /// All that was missing at some moment was looked for.
    fn note_looked(&self, at: Instant) {
        if let Some(watch) = &mut self.state.lock().watch {
            watch.note(Task::Everything, at);
        }
    }

    /// Returns which shards have to be rebuilt without an order.
    fn called_for(&self, pipeline: &Pipeline, now: Instant) -> Result<Option<Task>, CommitError> {
        let Some(task) = self.due(pipeline, now) else {
            return Ok(None);
        };
        let is_whole = {
            let mut state = self.state.lock();
            let watch = state.watch.as_mut();
            watch.is_some_and(|watch| {
                watch.note(task, now);
                watch.members.is_whole()
            })
        };
        pipeline.redundancy_counter().look_for_files();
        let may_be_known = task == Task::AtHand || is_whole;
        Ok((!may_be_known || pipeline.redundancy_counter().may_lack_shards()?).then_some(task))
    }
}

/// Rebuilds missing shards, also those that absent members held. Until that is done, the next open of the volume
/// continues it.
fn rebuild_everything(
    pipeline: &Pipeline,
    locks: &dyn InodeLocks,
    pace: &Pace<'_>,
) -> Result<RebuildProgress, CommitError> {
    let members = pipeline.members();
    members.give_up_absentees();
    let done = pipeline.rebuild(locks, pace)?;
    if done.state == RebuildState::Finished && !done.leaves_something() {
        members.set_given_up(BTreeSet::new());
    }
    Ok(done)
}

/// Returns the absent members, and how much room the others have.
fn room_of(pipeline: &Pipeline) -> (Vec<MemberIndex>, BTreeMap<MemberIndex, u64>) {
    (away_of(pipeline), pipeline.room_by_member())
}

fn away_of(pipeline: &Pipeline) -> Vec<MemberIndex> {
    let away = pipeline.members().away().into_iter();
    away.map(|(member, _)| member).collect()
}

/// Logs the progress of a rebuild, if anything was done or is left.
fn log_rebuilt(what: &str, progress: &RebuildProgress) {
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
        let seconds = elapsed.as_secs();
        log::info!("{what}: {bytes_done} bytes of shards written in {seconds} s, {left} are left");
    }
}

fn members_of(pipeline: &Pipeline) -> Members {
    let members = pipeline.members();
    Members {
        epoch: members.epoch(),
        live: members.live(),
        away: away_of(pipeline),
        leaving: !members.leaving().is_empty(),
        lacks_files: pipeline.redundancy_counter().lacks_files(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    const SEVEN: MemberIndex = MemberIndex(7);
    const SIX: MemberIndex = MemberIndex(6);
    const FIVE: MemberIndex = MemberIndex(5);

    fn without(away: &[MemberIndex]) -> Members {
        Members {
            epoch: Epoch(3),
            live: Vec::new(),
            away: away.to_vec(),
            leaving: false,
            lacks_files: false,
        }
    }

    fn is_due(watch: &Watch, after: u64, now: Instant) -> bool {
        watch.due(Some(Duration::from_secs(after)), now) == Some(Task::Everything)
    }

    #[test]
    fn who_asks_without_a_limit_does_not_lift_the_one_that_another_asked_for() {
        let rebuilder = Rebuilder::new(Schedule::default(), Arc::new(Stop::default()));
        let limit = || rebuilder.limit.in_force().load(Ordering::Relaxed);
        for (asked, counts) in [(None, 0), (Some(5), 5), (None, 5), (Some(9), 9), (None, 9)] {
            rebuilder.order(asked, false);
            assert_eq!(limit(), counts, "asked for {asked:?}");
        }
        rebuilder.note_done(4, Ok(()));
        assert_eq!(limit(), 9, "the last is yet to be done");
        rebuilder.note_done(5, Ok(()));
        assert_eq!(limit(), 0);
        rebuilder.order(Some(5), false);
        rebuilder.lift_limit();
        assert_eq!(limit(), 0);
    }

    #[test]
    fn what_nobody_asked_for_has_a_limit_of_its_own() {
        let schedule = Schedule {
            bytes_per_second: Some(7),
            ..Schedule::default()
        };
        let rebuilder = Rebuilder::new(schedule, Arc::new(Stop::default()));
        let limit = || rebuilder.limit.in_force().load(Ordering::Relaxed);
        assert_eq!(limit(), 7);
        rebuilder.order(None, false);
        assert_eq!(limit(), 0, "who asks waits for it");
        rebuilder.order(Some(5), false);
        rebuilder.lift_limit();
        assert_eq!(limit(), 0);
        rebuilder.note_done(2, Ok(()));
        assert_eq!(limit(), 7);
        rebuilder.lift_limit();
        assert_eq!(limit(), 7);
    }

    #[test]
    fn what_members_held_that_are_away_is_rebuilt_once_after_the_time_that_they_are_given() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(without(&[SEVEN]), BTreeSet::new(), start);
        assert!(!is_due(&watch, 100, at(99)) && is_due(&watch, 100, at(100)));
        watch.note(Task::Everything, at(100));
        assert!(!is_due(&watch, 100, at(699)) && is_due(&watch, 100, at(700)));
        for after in [None, Some(Duration::from_secs(100))] {
            let watch = Watch::new(without(&[]), BTreeSet::new(), start);
            assert_eq!(watch.due(after, at(4)), None);
            assert_eq!(watch.due(after, at(5)), Some(Task::Everything));
        }
        let at_once = Watch::new(without(&[SEVEN]), BTreeSet::new(), start);
        assert!(is_due(&at_once, 0, start));
    }

    #[test]
    fn who_goes_as_well_gives_those_no_more_time_that_are_away() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(without(&[SEVEN]), BTreeSet::new(), start);
        watch.see(without(&[SIX, SEVEN]), at(90));
        assert!(!is_due(&watch, 100, at(99)) && is_due(&watch, 100, at(100)));
        // That rebuild was for both.
        watch.note(Task::Everything, at(100));
        assert!(!is_due(&watch, 100, at(250)));
        // Data of a member that goes later may come back with it.
        watch.see(without(&[FIVE, SIX, SEVEN]), at(300));
        assert!(!is_due(&watch, 1000, at(1299)) && is_due(&watch, 1000, at(1300)));
        // A member that was back has all the time again.
        let mut watch = Watch::new(without(&[SEVEN]), BTreeSet::new(), start);
        watch.see(without(&[]), at(50));
        watch.see(without(&[SEVEN]), at(54));
        assert!(!is_due(&watch, 100, at(153)) && is_due(&watch, 100, at(154)));
    }

    #[test]
    fn who_is_back_gets_what_it_missed_at_once_although_others_stay_away_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for after in [None, Some(Duration::from_secs(3600))] {
            let mut watch = Watch::new(without(&[SEVEN]), BTreeSet::new(), start);
            assert_eq!(watch.due(after, at(4)), None);
            assert_eq!(watch.due(after, at(5)), Some(Task::AtHand));
            watch.note(Task::AtHand, at(5));
            assert_eq!(watch.due(after, at(604)), None);
            assert_eq!(watch.due(after, at(605)), Some(Task::AtHand));
            watch.see(without(&[SIX, SEVEN]), at(606));
            assert_eq!(watch.due(after, at(610)), None);
            assert_eq!(watch.due(after, at(611)), Some(Task::AtHand));
        }
    }
    #[test]
    fn what_was_being_rebuilt_when_the_volume_was_opened_goes_on_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for after in [None, Some(Duration::from_secs(3600))] {
            let mut watch = Watch::new(without(&[SIX, SEVEN]), [SEVEN].into(), start);
            assert_eq!(watch.due(after, at(0)), Some(Task::Everything));
            watch.note(Task::Everything, at(0));
            assert_eq!(watch.due(after, at(4)), None, "once");
            let others = Watch::new(without(&[SIX]), [SEVEN].into(), start);
            assert_eq!(
                others.due(after, at(4)),
                None,
                "it is back, and another away"
            );
        }
    }
}
