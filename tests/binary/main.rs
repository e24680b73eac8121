//! The real binary, on real mounts over real directories.
//!
//! Mounting needs the superuser and `/dev/fuse`; set `CAUCHYFS_SKIP_MOUNTS=1` to leave those tests
//! out, as `scripts/test.sh` does aloud where they cannot run.

mod advice;
mod alerts;
mod bench;
mod bench_fs;
mod birth;
mod branches;
mod chaos;
mod check;
mod code_change;
mod codes;
mod control;
mod crash;
mod daemon;
mod dashboard;
mod direct;
mod disks;
mod events;
mod export;
mod extract;
mod fallocate;
mod fio;
mod full;
mod hang;
mod interlock;
mod kinds;
mod members;
mod metrics;
mod misuse;
mod namespaces;
mod opening;
mod outage;
mod overlay;
mod owners;
mod packages;
mod posix;
mod privileges;
mod prometheus;
mod quota;
mod rebuild;
mod receivers;
mod replace;
mod sandbox;
mod scrub;
mod service;
mod session;
mod support;
mod transport;
mod usage;
mod waiting;
