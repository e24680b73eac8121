//! The metadata on members in memory, with faults and power cuts.

mod bounds;
mod crafted;
mod crash;
mod damage;
mod faults;
mod full;
mod initialised;
mod joined;
mod lost_writes;
mod memory;
mod model;
mod refill;
mod refused_records;
pub(super) mod rig;
mod rollback;
mod survey;
mod trust;
mod untouched;
mod view;
