//! Random faults while writers are at work: directories that are lost, come back, are damaged, filled up
//! or hang, daemons that are killed, and whatever order these come in, but never more than a stripe can do
//! without at a time. No byte may be wrong, none that was acknowledged lost, no operation fail.
//!
//! What happens is a function of a seed, as far as threads are: `CAUCHYFS_CHAOS_SEED` replays one, and
//! `CAUCHYFS_CHAOS_STEPS` says for how long.

mod damage;
mod heal;
mod members;
mod node;
mod plan;
mod run;
mod tree;
mod writer;

use crate::support::skip_mounts;

/// Set to a number, to replay what it stands for.
const SEED: &str = "CAUCHYFS_CHAOS_SEED";

/// Set to a number, to try more or less than what is tried each time.
const STEPS: &str = "CAUCHYFS_CHAOS_STEPS";

/// Steps of each run, unless it is said how many.
const FEW_STEPS: u64 = 12;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|error| panic!("{variable}={value}: {error}")),
    )
}

#[test]
fn random_faults_cost_no_byte_and_no_operation() {
    if skip_mounts() {
        return;
    }
    let seed = number(SEED).unwrap_or_else(rand::random);
    run::run(plan::Seed(seed), number(STEPS).unwrap_or(FEW_STEPS));
}
