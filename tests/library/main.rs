//! Tests of the library through its public interface: filesystems on volumes in memory, and codecs.
//!
//! They are one program, because linking a program takes longer than most of them run.

#![expect(clippy::unwrap_used, reason = "a test")]

mod calls;
mod script;
mod volume;

mod acl;
mod check;
mod codec_isal;
mod codec_passes;
mod codes;
mod crash;
mod directory_codes;
mod failed_writeback;
mod fallocate;
mod faults;
mod golden;
mod limits;
mod listing;
mod model;
mod posix;
mod quota;
mod storm;
mod threads;
