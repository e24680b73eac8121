//! Rate limiter for repeated log messages: a reader can meet the same damage a thousand times, and a whole member can
//! be wrong.

use std::hash::Hash;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

/// Messages that are remembered; the least recent is forgotten, and logged again if it is met again.
const MOST_REMEMBERED: usize = 4096;

/// Messages that are logged in a [`SPAN`].
const MOST_LOGGED: u32 = 50;

/// The time within which at most [`MOST_LOGGED`] messages are logged.
const SPAN: Duration = Duration::from_secs(60);

/// Logs each message once, or once in a while, and not too many of them.
#[derive(Debug)]
pub struct RateLimit<T: Hash + Eq> {
    /// The time after which a message may be logged again.
    again: Option<Duration>,
    state: Mutex<RecentMessages<T>>,
}

#[derive(Debug)]
struct RecentMessages<T: Hash + Eq> {
    logged: LruCache<T, Instant>,
    since: Option<Instant>,
    in_span: u32,
    left_out: u64,
}

impl<T: Hash + Eq> RateLimit<T> {
    /// Admits each message once.
    #[must_use]
    pub fn once() -> Self {
        Self::with_pause(None)
    }

    /// Admits each message once in a minute.
    #[must_use]
    pub fn once_a_minute() -> Self {
        Self::with_pause(Some(SPAN))
    }

    fn with_pause(again: Option<Duration>) -> Self {
        let state = RecentMessages {
            logged: LruCache::unbounded(),
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
    pub fn admit(&self, message: T, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let is_known = state.logged.get(&message).is_some_and(|logged| {
            let since = now.saturating_duration_since(*logged);
            self.again.is_none_or(|again| since < again)
        });
        if is_known {
            return None;
        }
        state.logged.put(message, now);
        if state.logged.len() > MOST_REMEMBERED {
            state.logged.pop_lru();
        }
        if state.since.is_none_or(|since| since + SPAN <= now) {
            (state.since, state.in_span) = (Some(now), 0);
        }
        if state.in_span == MOST_LOGGED {
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
    fn each_message_is_admitted_once_or_once_a_minute() {
        let now = Instant::now();
        for (logged, again) in [
            (RateLimit::once(), None),
            (RateLimit::once_a_minute(), Some(0)),
        ] {
            assert_eq!(logged.admit("one", now), Some(0));
            assert_eq!(logged.admit("other", now), Some(0));
            for _ in 0..3 {
                assert_eq!(logged.admit("one", now + SPAN / 2), None);
            }
            // It was met all the time.
            assert_eq!(logged.admit("one", now + SPAN), again);
            assert_eq!(logged.admit("one", now + SPAN), None);
        }
    }

    #[test]
    fn a_flood_is_cut_off_and_counted_and_its_memory_is_bounded() {
        let (logged, start) = (RateLimit::once(), Instant::now());
        let flood = 10 * MOST_REMEMBERED as u64;
        let heard = (0..flood).filter(|&thing| logged.admit(thing, start).is_some());
        assert_eq!(heard.count(), MOST_LOGGED as usize);
        assert_eq!(logged.state.lock().logged.len(), MOST_REMEMBERED);
        let later = start + SPAN;
        let left_out = flood - u64::from(MOST_LOGGED);
        assert_eq!(logged.admit(flood, later), Some(left_out));
        assert_eq!(logged.admit(flood + 1, later), Some(0));
    }
}
