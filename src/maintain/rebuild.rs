//! Rebuilding in the background: when it was asked for, and by itself when members have been away for
//! long enough, or are back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Stop;
use crate::commit::{CommitError, Pace, Pipeline};
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

/// When something is to be done about them.
#[derive(Debug)]
struct Watch {
    members: Members,
    since: Instant,
    /// When it was last looked whether there was something to do.
    looked: Option<Instant>,
}

impl Watch {
    /// Returns whether it is time to look whether something is to be rebuilt.
    fn is_due(&self, after: Option<Duration>, now: Instant) -> bool {
        if let Some(looked) = self.looked {
            return now.duration_since(looked) >= LOOK_INTERVAL;
        }
        let patience = if self.members.all_here || self.members.leaving {
            Some(SETTLED)
        } else {
            after
        };
        patience.is_some_and(|patience| now.duration_since(self.since) >= patience)
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

    /// Rebuilds if it is time to.
    pub(super) fn work(&self, pipeline: &Pipeline) -> Result<(), CommitError> {
        let (ordered, balance) = {
            let mut state = self.state.lock();
            let ordered = (state.ordered > state.done).then_some(state.ordered);
            (ordered, std::mem::take(&mut state.balance))
        };
        if ordered.is_none() && !self.is_called_for(pipeline)? {
            return Ok(());
        }
        let pace = Pace {
            bytes_per_second: &self.bytes_per_second,
            wait: &|time| self.stop.sleep(time),
        };
        let mut outcome = pipeline.rebuild(&pace).map(drop);
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

    /// Says whether something is to be rebuilt without having been asked for.
    fn is_called_for(&self, pipeline: &Pipeline) -> Result<bool, CommitError> {
        let now = Instant::now();
        let members = members_of(pipeline);
        let all_here = members.all_here;
        let leaving = members.leaving;
        {
            let mut state = self.state.lock();
            let watch = match state.watch.take() {
                Some(watch) if watch.members == members => watch,
                _ => Watch {
                    members,
                    since: now,
                    looked: None,
                },
            };
            let is_due = watch.is_due(self.after, now);
            let looked = if is_due { Some(now) } else { watch.looked };
            state.watch = Some(Watch { looked, ..watch });
            if !is_due {
                return Ok(false);
            }
        }
        pipeline.look_for_files();
        Ok(!all_here || leaving || pipeline.lacks_shards()?)
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
        let watch = |all_here, looked| Watch {
            members: Members {
                epoch: Epoch(3),
                live: Vec::new(),
                all_here,
                leaving: false,
                lacks_files: false,
            },
            since: start,
            looked,
        };
        assert!(!watch(false, None).is_due(after, at(99)));
        assert!(watch(false, None).is_due(after, at(100)));
        assert!(!watch(false, Some(at(100))).is_due(after, at(600)));
        assert!(watch(false, Some(at(100))).is_due(after, at(700)));
        assert!(!watch(true, None).is_due(after, at(4)));
        assert!(watch(true, None).is_due(after, at(5)));
        assert!(!watch(false, None).is_due(None, at(1_000_000)));
        assert!(watch(true, None).is_due(None, at(5)));
    }
}
