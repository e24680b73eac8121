//! Random faults while writers are at work. Directories are lost, come back, are damaged, filled up, hang, or are
//! replaced by old copies. Shard files are exchanged, daemons are killed, and other mount namespaces hold the mount. These
//! come in any order, but never more at a time than a stripe can do without. No byte may be wrong, none that was
//! acknowledged lost, no operation fail.
//!
//! Outages alone go beyond that: so many directories go away that the volume fails. Changes that were not durable may be
//! lost then, as after a kill. The same mount and the same open files go on once the directories are back. Half of the seeds mount
//! with `on-failure=wait`.
//!
//! The events are a function of a seed, as far as threads are: `CAUCHYFS_CHAOS_SEED` replays one, and
//! `CAUCHYFS_CHAOS_STEPS` says for how long.
//! `CAUCHYFS_CHAOS_ONLY=Outage` tries one kind of event alone.

mod damage;
mod exchange;
mod heal;
mod members;
mod node;
mod outage;
mod plan;
mod run;
mod swap;
mod tree;
mod writer;

use cauchyfs_testkit::number;

use crate::support::skip_mounts;

/// Set to a number, to replay what it stands for.
const SEED: &str = "CAUCHYFS_CHAOS_SEED";

/// Set to a number, to try more or less than what is tried each time.
const STEPS: &str = "CAUCHYFS_CHAOS_STEPS";

/// Set to the name of an event, such as `Outage`, to have no other.
const ONLY: &str = "CAUCHYFS_CHAOS_ONLY";

/// Steps of each run, unless the environment sets another number.
const FEW_STEPS: u64 = 12;

#[test]
fn random_faults_cost_no_byte_and_no_operation() {
    if skip_mounts() {
        return;
    }
    let seed = number(SEED).unwrap_or_else(rand::random);
    let steps = number(STEPS).unwrap_or(FEW_STEPS);
    let only = std::env::var(ONLY)
        .ok()
        .map(|name| plan::named(&name).unwrap_or_else(|| panic!("{ONLY} names no event: {name}")));
    run::run(plan::Seed(seed), steps, only);
}
