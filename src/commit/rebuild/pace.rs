//! How fast a rebuild goes, and a scrub: no faster than it was told to, and at half its speed while others
//! work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sets the pace of background work, and says when it is to stop.
pub struct Pace<'a> {
    /// Bytes that may be written in a second; 0 if that is not limited. Looked at after each piece.
    pub bytes_per_second: &'a AtomicU64,
    /// Waits; returns whether to go on.
    pub wait: &'a dyn Fn(Duration) -> bool,
}

impl Pace<'_> {
    /// Rests after a piece of work: so long that the limit is kept, and as long as the work took if others
    /// used the volume meanwhile. Returns whether to go on.
    pub(super) fn rest(&self, bytes: u64, took: Duration, in_use: bool) -> bool {
        let bytes_per_second = match self.bytes_per_second.load(Ordering::Relaxed) {
            0 => None,
            limit => Some(limit),
        };
        (self.wait)(pause(bytes_per_second, bytes, took, in_use))
    }
}

/// Returns how long to rest after a piece of work.
pub(in crate::commit) fn pause(
    bytes_per_second: Option<u64>,
    bytes: u64,
    took: Duration,
    in_use: bool,
) -> Duration {
    let least = match bytes_per_second {
        Some(rate) => {
            let microseconds = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
            Duration::from_micros(u64::try_from(microseconds).unwrap_or(u64::MAX))
        }
        None => Duration::ZERO,
    };
    let for_others = if in_use { took } else { Duration::ZERO };
    least.saturating_sub(took).max(for_others)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(100);

    #[test]
    fn the_limit_is_kept_and_others_get_as_much_time() {
        let millis = Duration::from_millis;
        assert_eq!(pause(None, 1 << 20, TOOK, false), Duration::ZERO);
        assert_eq!(pause(None, 1 << 20, TOOK, true), TOOK);
        assert_eq!(pause(Some(1_000_000), 500_000, TOOK, false), millis(400));
        assert_eq!(pause(Some(1_000_000), 500_000, TOOK, true), millis(400));
        assert_eq!(pause(Some(1_000_000), 50_000, TOOK, false), Duration::ZERO);
        assert_eq!(pause(Some(1_000_000), 50_000, TOOK, true), TOOK);
        assert!(pause(Some(1), u64::MAX, TOOK, false) > millis(u64::from(u32::MAX)));
    }
}
