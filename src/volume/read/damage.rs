//! What is said of damage: a reader can meet the same a thousand times, and a whole member can be wrong.

use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::format::{ShardIndex, StripeId};

/// What is wrong with a shard, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::volume) enum Finding {
    /// Some blocks do not match their checksums.
    WrongBytes,
    /// The file is gone, or ends before it.
    Missing,
    /// There are no checksums to match.
    NoChecksums,
    /// Wrong blocks were written anew.
    Mended,
}

/// Findings that are remembered; the least recent is forgotten, and said again if it is met again.
const MOST_REMEMBERED: usize = 4096;

/// Findings that are said in a [`SPAN`].
const MOST_SAID: u32 = 50;

/// How long no more than [`MOST_SAID`] findings are said.
const SPAN: Duration = Duration::from_secs(60);

/// Says each finding once for each shard, and not too many of them.
#[derive(Debug)]
pub(in crate::volume) struct Damage(Mutex<State>);

#[derive(Debug)]
struct State {
    said: LruCache<(StripeId, ShardIndex, Finding), ()>,
    since: Option<Instant>,
    in_span: u32,
    left_out: u64,
}

impl Default for Damage {
    fn default() -> Self {
        Self(Mutex::new(State {
            said: LruCache::unbounded(),
            since: None,
            in_span: 0,
            left_out: 0,
        }))
    }
}

impl Damage {
    /// Logs `text` unless the same was found of this shard before, or too much was said just now.
    pub(in crate::volume) fn warn(
        &self,
        (stripe, shard): (StripeId, ShardIndex),
        finding: Finding,
        text: impl FnOnce() -> String,
    ) {
        let Some(left_out) = self.is_to_be_said((stripe, shard, finding), Instant::now()) else {
            return;
        };
        if left_out > 0 {
            log::warn!("{left_out} more shards were found wrong or mended");
        }
        log::warn!("stripe {stripe} shard {shard}: {}", text());
    }

    /// Returns how many findings were not said since the last that was, if this one is to be said.
    fn is_to_be_said(&self, found: (StripeId, ShardIndex, Finding), now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let known = state.said.put(found, ()).is_some();
        if state.said.len() > MOST_REMEMBERED {
            state.said.pop_lru();
        }
        if known {
            return None;
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

    fn found(stripe: u64) -> (StripeId, ShardIndex, Finding) {
        (StripeId(stripe), ShardIndex(0), Finding::WrongBytes)
    }

    #[test]
    fn each_finding_is_said_once_for_each_shard() {
        let (damage, now) = (Damage::default(), Instant::now());
        assert_eq!(damage.is_to_be_said(found(1), now), Some(0));
        assert_eq!(damage.is_to_be_said(found(1), now), None);
        assert_eq!(damage.is_to_be_said(found(1), now + 10 * SPAN), None);
        let (stripe, shard, _) = found(1);
        for other in [
            found(2),
            (stripe, ShardIndex(1), Finding::WrongBytes),
            (stripe, shard, Finding::Mended),
        ] {
            assert_eq!(damage.is_to_be_said(other, now), Some(0), "{other:?}");
        }
    }

    #[test]
    fn a_flood_is_cut_off_and_counted_and_its_memory_is_bounded() {
        let (damage, start) = (Damage::default(), Instant::now());
        let flood = 10 * MOST_REMEMBERED as u64;
        let said =
            (0..flood).filter(|&stripe| damage.is_to_be_said(found(stripe), start).is_some());
        assert_eq!(said.count(), MOST_SAID as usize);
        assert_eq!(damage.0.lock().said.len(), MOST_REMEMBERED);
        let later = start + SPAN;
        let left_out = flood - u64::from(MOST_SAID);
        assert_eq!(damage.is_to_be_said(found(flood), later), Some(left_out));
        assert_eq!(damage.is_to_be_said(found(flood + 1), later), Some(0));
    }
}
