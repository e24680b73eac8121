//! Seeds that are printed and replay.

use rand::RngExt;

/// New seeds are below this number, so that they are short enough to be typed.
const SEEDS: u64 = 1 << 40;

/// Returns the number in an environment variable, if it is set.
///
/// # Panics
///
/// If the variable holds something else.
#[must_use]
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// Returns the seed of a run and prints it: `CAUCHYFS_SEED`, or else a new one.
#[must_use]
pub fn seed() -> u64 {
    let seed = number("CAUCHYFS_SEED").unwrap_or_else(|| rand::rng().random_range(0..SEEDS));
    println!("CAUCHYFS_SEED={seed}");
    seed
}
