//! Alerts: events of a volume, sent to receivers that the administrator chose.
//!
//! A confined daemon can neither run programs of others nor connect to other machines. So it starts [`process`] before it
//! confines itself, if [`config`] names receivers. That process delivers alerts. The two speak over a socket:
//! [`link`] is the daemon's end. The daemon sends every event of its log that the process does not have yet.
//!
//! [`grouping`] makes one group of the events that belong together, and [`outbox`] one notice of it for every receiver
//! that wants it. [`state`] keeps both durable, and [`delivery`] hands notices to receivers, each on a thread of its own.
//!
//! # Invariants
//!
//! - An event counts as seen once the notices about it are in the state file. So a crash at any moment loses none that the
//!   log of events still has; it may have a notice sent twice, with the same `id`.
//! - A notice leaves the state file once its receiver has accepted it. It is given up if attempts fail at the age of
//!   [`outbox::KEPT_FOR`]. If too many wait, the least severe is given up. The next notice counts those given up.
//! - No receiver waits for another, and no notice blocks others for good.
//! - A state file that cannot be read is never replaced, and one that is damaged is kept under another name.
//! - Bounded are events of a group, notices that wait, time and output of programs, and headers of answers of servers. A
//!   program that the kernel does not let go after it was killed is left to a thread of its own.

pub(crate) mod config;
pub(crate) mod delivery;
pub(crate) mod entry;
mod grouping;
pub(crate) mod link;
pub(crate) mod notice;
mod outbox;
mod parts;
pub(crate) mod places;
mod process;
mod protocol;
mod sender;
mod state;
mod supervisor;
