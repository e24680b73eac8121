//! Power cuts.

use cauchyfs_store::{Effect, Fault, FaultPlan, Scope};

/// Returns the fault that cuts the power at the `call`-th call that changes a disk; the first one is 1.
#[must_use]
pub fn power_cut_at(call: u64) -> Fault {
    Fault::at(call, Effect::PowerCut).of(Scope::Changing)
}

/// Takes the log of a plan that recorded, and counts the calls that change a disk: those at which the power can be cut.
#[must_use]
pub fn changing_calls(plan: &FaultPlan) -> u64 {
    let log = plan.take_log();
    log.iter().filter(|call| call.kind.changes()).count() as u64
}
