//! Alerts: events of a volume, sent to receivers that the administrator chose.
//!
//! A daemon confines itself, so it can neither run programs of others nor is it to connect to other machines. Before that
//! it starts [`process`], which delivers alerts. It does so only if [`config`] names receivers. The two speak over a
//! socket: [`link`] is the daemon's end. The daemon sends every event of its log that the process does not have yet.
//!
//! [`grouping`] makes one group of the events that belong together, and [`outbox`] one notice of it for every receiver
//! that wants it. [`state`] keeps both durable, and [`delivery`] hands notices to receivers, each on a thread of its own.
//!
//! # Invariants
//!
//! - An event counts as seen once the notices about it are in the state file. So a crash at any moment loses none; it may
//!   have one sent twice, with the same `id`.
//! - A notice leaves the state file once its receiver has accepted it, or after [`outbox::KEPT_FOR`].
//! - No receiver waits for another.
//! - Everything is bounded: events of a group, notices that wait, time and output of programs, answers of servers.

pub(crate) mod config;
pub(crate) mod delivery;
mod grouping;
pub(crate) mod link;
pub(crate) mod notice;
mod outbox;
pub(crate) mod places;
pub(crate) mod process;
mod protocol;
mod sender;
mod state;
