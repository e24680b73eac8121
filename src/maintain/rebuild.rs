//! Rebuilding in the background: when it was asked for, and by itself when members have been away for
//! long enough, or are back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Stop;
use crate::commit::{CommitError, InodeLocks, Pace, Pipeline};
use crate::format::{Epoch, MemberIndex};

/// How long members have to be as they are before what they lack is rebuilt, if none is away.
const SETTLED: Duration = Duration::from_secs(5);

/// How often it is looked whether shards are missing although no member comes or goes.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// An order to rebuild, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderNumber(pub u64);

/// Orders, and what became of them.
#[derive(Debug)]
pub struct Rebuilder {
    /// How long a member may be away before what it held is rebuilt elsewhere; for ever, if `None`.
    after: Option<Duration>,
    /// Bytes that may be written in a second; 0 if that is not limited.
    bytes_per_second: AtomicU64,
    state: Mutex<State>,
    /// Told when an order was carried out.
    done: Condvar,
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct State {
    ordered: u64,
    done: u64,
    balance: bool,
    failure: Option<CommitError>,
    watch: Option<Watch>,
}

/// Members as they have been for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Members {
    epoch: Epoch,
    live: Vec<MemberIndex>,
    all_here: bool,
    /// Whether one is being emptied.
    leaving: bool,
    /// Whether files on them are known to be gone or too short.
    lacks_files: bool,
}

/// What is to be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Everything, also what members have that are away.
    Everything,
    /// What members lack that are at hand.
    AtHand,
}

/// When something is to be done about them.
#[derive(Debug)]
struct Watch {
    members: Members,
    since: Instant,
    /// When it was last looked whether there was something to do.
    looked: Option<Instant>,
    /// When that was done for those at hand alone.
    looked_at_hand: Option<Instant>,
}

impl Watch {
    /// Returns what it is time to look for. Those that are back need not wait for those that are away.
    fn due(&self, after: Option<Duration>, now: Instant) -> Option<Task> {
        let has_passed = |looked: Option<Instant>, patience| match looked {
            Some(looked) => now.duration_since(looked) >= LOOK_INTERVAL,
            None => now.duration_since(self.since) >= patience,
        };
        let patience = if self.members.all_here || self.members.leaving {
            Some(SETTLED)
        } else {
            after
        };
        if patience.is_some_and(|patience| has_passed(self.looked, patience)) {
            return Some(Task::Everything);
        }
        let at_hand = self.looked_at_hand.max(self.looked);
        has_passed(at_hand, SETTLED).then_some(Task::AtHand)
    }

    fn note(&mut self, task: Task, now: Instant) {
        match task {
            Task::Everything => self.looked = Some(now),
            Task::AtHand => self.looked_at_hand = Some(now),
        }
    }
}

impl Rebuilder {
    pub(super) fn new(after: Option<Duration>, stop: Arc<Stop>) -> Self {
        Self {
            after,
            bytes_per_second: AtomicU64::new(0),
            state: Mutex::default(),
            done: Condvar::new(),
            stop,
        }
    }

    /// Asks for a rebuild, with a limit to the bytes written in a second, and for shards to be moved to
    /// members that have fewer afterwards; the limit counts at once for one that is under way, too.
    pub fn order(&self, bytes_per_second: Option<u64>, balance: bool) -> OrderNumber {
        self.bytes_per_second
            .store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
        let order = {
            let mut state = self.state.lock();
            state.ordered += 1;
            state.balance |= balance;
            OrderNumber(state.ordered)
        };
        self.stop.nudge();
        order
    }

    /// Waits until an order has been carried out, as far as that is possible, but no longer than so long.
    /// Returns `None` if it has not been then.
    ///
    /// # Errors
    ///
    /// What kept the last rebuild from being so.
    pub fn outcome(
        &self,
        order: OrderNumber,
        patience: Duration,
    ) -> Option<Result<(), CommitError>> {
        let mut state = self.state.lock();
        let is_open = |state: &mut State| state.done < order.0;
        if self
            .done
            .wait_while_for(&mut state, is_open, patience)
            .timed_out()
        {
            return None;
        }
        Some(state.failure.clone().map_or(Ok(()), Err))
    }

    /// Waits for an order, but no longer than so long; returns whether to go on.
    pub(super) fn wait_for_order(&self, time: Duration) -> bool {
        self.stop.sleep_until(time, || {
            let state = self.state.lock();
            state.ordered > state.done
        })
    }

    /// Rebuilds if it is time to; `locks` are those of the inodes whose extents are moved.
    pub(super) fn work(
        &self,
        pipeline: &Pipeline,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        let (ordered, balance) = {
            let mut state = self.state.lock();
            let ordered = (state.ordered > state.done).then_some(state.ordered);
            (ordered, std::mem::take(&mut state.balance))
        };
        let task = match ordered {
            Some(_) => Some(Task::Everything),
            None => self.called_for(pipeline)?,
        };
        let Some(task) = task else {
            return Ok(());
        };
        let pace = Pace {
            bytes_per_second: &self.bytes_per_second,
            wait: &|time| self.stop.sleep(time),
        };
        let rebuilt = match task {
            Task::Everything => pipeline.rebuild(locks, &pace),
            Task::AtHand => pipeline.catch_up(&pace),
        };
        let mut outcome = rebuilt.map(drop);
        if outcome.is_ok() && balance {
            outcome = pipeline.balance(&pace).map(drop);
        }
        let mut state = self.state.lock();
        state.done = state.done.max(ordered.unwrap_or(0));
        state.failure = outcome.clone().err();
        self.done.notify_all();
        if state.done == state.ordered {
            // Nobody asked for it to be slow next time.
            self.bytes_per_second.store(0, Ordering::Relaxed);
        }
        outcome
    }

    /// Returns what is to be rebuilt without having been asked for.
    fn called_for(&self, pipeline: &Pipeline) -> Result<Option<Task>, CommitError> {
        let now = Instant::now();
        let members = members_of(pipeline);
        let is_whole = members.all_here && !members.leaving;
        let task = {
            let mut state = self.state.lock();
            let mut watch = match state.watch.take() {
                Some(watch) if watch.members == members => watch,
                _ => Watch {
                    members,
                    since: now,
                    looked: None,
                    looked_at_hand: None,
                },
            };
            let task = watch.due(self.after, now);
            if let Some(task) = task {
                watch.note(task, now);
            }
            state.watch = Some(watch);
            task
        };
        let Some(task) = task else {
            return Ok(None);
        };
        pipeline.look_for_files();
        let may_be_known = task == Task::AtHand || is_whole;
        Ok((!may_be_known || pipeline.lacks_shards()?).then_some(task))
    }
}

fn members_of(pipeline: &Pipeline) -> Members {
    let members = pipeline.members();
    Members {
        epoch: members.epoch(),
        live: members.live(),
        all_here: members.live().len() == members.count(),
        leaving: !members.leaving().is_empty(),
        lacks_files: pipeline.lacks_files(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_members_held_that_are_away_is_rebuilt_once_after_the_time_that_they_are_given() {
        let after = Some(Duration::from_secs(100));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let watch = |all_here, looked: Option<Instant>| Watch {
            members: Members {
                epoch: Epoch(3),
                live: Vec::new(),
                all_here,
                leaving: false,
                lacks_files: false,
            },
            since: start,
            looked,
            looked_at_hand: Some(at(5)),
        };
        assert_eq!(watch(false, None).due(after, at(99)), None);
        let everything = Some(Task::Everything);
        assert_eq!(watch(false, None).due(after, at(100)), everything);
        assert_eq!(watch(false, Some(at(100))).due(after, at(600)), None);
        assert_eq!(watch(false, Some(at(100))).due(after, at(700)), everything);
        assert_eq!(watch(true, None).due(after, at(4)), None);
        assert_eq!(watch(true, None).due(after, at(5)), everything);
        assert_eq!(watch(true, None).due(None, at(5)), everything);
    }

    #[test]
    fn who_is_back_gets_what_it_missed_at_once_although_others_stay_away_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for after in [None, Some(Duration::from_secs(3600))] {
            let mut watch = Watch {
                members: Members {
                    epoch: Epoch(3),
                    live: Vec::new(),
                    all_here: false,
                    leaving: false,
                    lacks_files: false,
                },
                since: start,
                looked: None,
                looked_at_hand: None,
            };
            assert_eq!(watch.due(after, at(4)), None);
            assert_eq!(watch.due(after, at(5)), Some(Task::AtHand));
            watch.note(Task::AtHand, at(5));
            assert_eq!(watch.due(after, at(604)), None);
            assert_eq!(watch.due(after, at(605)), Some(Task::AtHand));
        }
    }
}
