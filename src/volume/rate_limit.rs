//! Rate limiter for repeated log messages: a reader can meet the same damage a thousand times, and a whole member can
//! be wrong.

use std::hash::Hash;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

/// Messages that are remembered; the least recent is forgotten, and logged again if it is met again.
const MOST_REMEMBERED: usize = 4096;

/// Messages that are logged in a [`SPAN`].
const MOST_SAID: u32 = 50;

/// The time within which at most [`MOST_SAID`] messages are logged.
const SPAN: Duration = Duration::from_secs(60);

/// Logs each message once, or once in a while, and not too many of them.
#[derive(Debug)]
pub struct Said<T: Hash + Eq> {
    /// The time after which a message may be logged again.
    again: Option<Duration>,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T: Hash + Eq> {
    said: LruCache<T, Instant>,
    since: Option<Instant>,
    in_span: u32,
    left_out: u64,
}

impl<T: Hash + Eq> Said<T> {
    /// Has each thing said once.
    #[must_use]
    pub fn once() -> Self {
        Self::again_after(None)
    }

    /// Has each thing said once in a minute.
    #[must_use]
    pub fn once_in_a_while() -> Self {
        Self::again_after(Some(SPAN))
    }

    fn again_after(again: Option<Duration>) -> Self {
        let state = State {
            said: LruCache::unbounded(),
            since: None,
            in_span: 0,
            left_out: 0,
        };
        Self {
            again,
            state: Mutex::new(state),
        }
    }

    /// Returns how many messages were suppressed since the last one, if this one is to be logged. Repetitions of a
    /// known message do not count.
    pub fn is_to_be_said(&self, thing: T, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_known = state.said.get(&thing).is_some_and(|said| {
            let since = now.saturating_duration_since(*said);
            self.again.is_none_or(|again| since < again)
        });
        if is_known {
            return None;
        }
        state.said.put(thing, now);
        if state.said.len() > MOST_REMEMBERED {
            state.said.pop_lru();
        }
        if state.since.is_none_or(|since| since + SPAN <= now) {
            (state.since, state.in_span) = (Some(now), 0);
        }
        if state.in_span == MOST_SAID {
            state.left_out += 1;
            return None;
        }
        state.in_span += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once_or_once_in_a_while() {
        let now = Instant::now();
        for (said, again) in [(Said::once(), None), (Said::once_in_a_while(), Some(0))] {
            assert_eq!(said.is_to_be_said("one", now), Some(0));
            assert_eq!(said.is_to_be_said("other", now), Some(0));
            for _ in 0..3 {
                assert_eq!(said.is_to_be_said("one", now + SPAN / 2), None);
            }
            // It was met all the time.
            assert_eq!(said.is_to_be_said("one", now + SPAN), again);
            assert_eq!(said.is_to_be_said("one", now + SPAN), None);
        }
    }

    #[test]
    fn a_flood_is_cut_off_and_counted_and_its_memory_is_bounded() {
        let (said, start) = (Said::once(), Instant::now());
        let flood = 10 * MOST_REMEMBERED as u64;
        let heard = (0..flood).filter(|&thing| said.is_to_be_said(thing, start).is_some());
        assert_eq!(heard.count(), MOST_SAID as usize);
        assert_eq!(said.state.lock().said.len(), MOST_REMEMBERED);
        let later = start + SPAN;
        let left_out = flood - u64::from(MOST_SAID);
        assert_eq!(said.is_to_be_said(flood, later), Some(left_out));
        assert_eq!(said.is_to_be_said(flood + 1, later), Some(0));
    }
}
