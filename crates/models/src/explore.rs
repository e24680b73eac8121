//! The schedules under which a model runs.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Schedules in which each step is drawn.
const RANDOM_RUNS: usize = 1_500;

/// Schedules with few switches, at drawn steps: those find what needs one thread to be late by much.
const PCT_RUNS: usize = 1_500;

/// Switches of such a schedule, and one.
const PCT_DEPTH: usize = 4;

/// Stack of a thread. Unoptimized code needs more than the default.
const STACK_BYTES: usize = 128 << 10;

/// Runs a model under many schedules.
///
/// The seed is printed, and `CAUCHYFS_SEED` replays it. After a failure shuttle prints the schedule as well:
/// [`shuttle::replay`] runs that one alone.
///
/// # Panics
///
/// If a schedule breaks a promise, or leaves threads that wait for each other.
pub fn explore(model: fn()) {
    let seed = cauchyfs_testkit::seed();
    let random = RandomScheduler::new_from_seed(seed, RANDOM_RUNS);
    Runner::new(random, config()).run(model);
    let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, PCT_RUNS);
    Runner::new(pct, config()).run(model);
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}
