//! Fixtures that the tests of several rooms and programs share.
//!
//! | for | use |
//! | --- | --- |
//! | bytes that can be told apart | [`pattern`], [`fill_pattern`] |
//! | sets of lost members | [`subsets`] |
//! | a run that replays | [`seed`], [`number`] |
//! | a condition that comes true later | [`eventually`] |
//! | volumes in memory | [`disks`], [`stores`], [`executor`] |
//! | a power cut at a certain call | [`power_cut_at`], [`changing_calls`] |
//!
//! The kit knows backing stores, and no room above them. So the tests of every room can use it.

mod memory;
mod pattern;
mod power;
mod seed;

use std::time::{Duration, Instant};

pub use memory::{disks, executor, stores};
pub use pattern::{fill_pattern, pattern};
pub use power::{changing_calls, power_cut_at};
pub use seed::{number, seed};

/// Returns all sets of at most `most` of the numbers below `count`, the empty set included.
///
/// # Examples
///
/// ```
/// let lost = cauchyfs_testkit::subsets(3, 1);
/// assert_eq!(lost, [vec![], vec![0], vec![1], vec![2]]);
/// ```
#[must_use]
pub fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    let members = |bits: usize| (0..count).filter(move |index| bits >> index & 1 == 1);
    (0..1_usize << count)
        .map(|bits| members(bits).collect::<Vec<_>>())
        .filter(|set| set.len() <= most)
        .collect()
}

/// Polls until `is_true`.
///
/// # Panics
///
/// If that takes longer than `patience`.
#[track_caller]
pub fn eventually(what: &str, patience: Duration, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < patience, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
