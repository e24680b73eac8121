//! The daemon behind a mountpoint: its process, its end, its control socket, and what it tells of its volume.
//!
//! Each mount has one Unix socket in a directory of the user who mounted it. Its name begins with a hash of the
//! mountpoint and ends at random. So commands find it by listing that directory, and no other user can name it.
//!
//! A command trusts a socket only if the mount's user alone can have put it there, and if that user's process listens
//! (`places`). A daemon answers only its own user and the superuser. On a connection, the command first asks which mount
//! this is, and compares device and mountpoint with the kernel's table. Then it sends one request that repeats the
//! answer, and the daemon refuses it if it names another mount (`protocol`).
//!
//! Every message is a line of JSON. Empty lines before an answer say that it takes its time, and lines of progress how
//! far it is; all of that has limits (`exchange`). The daemon's process ends soon after it has answered that the volume
//! is unmounted, and a command waits for that too (`departure`). If another mount namespace keeps the mount, the daemon
//! does not end.
//!
//! Reports and failures are data here. The room `cli` asks over the socket, and puts the answers into sentences.

pub(crate) mod activity;
pub(crate) mod alerts;
pub(crate) mod budget;
mod code_orders;
pub(crate) mod dead_mount;
pub(crate) mod departure;
pub(crate) mod ending;
pub(crate) mod event_report;
pub(crate) mod event_watch;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod fault;
pub(crate) mod in_time;
mod left_refusal;
pub(crate) mod listener;
pub(crate) mod log_file;
mod member_names;
pub(crate) mod metrics;
pub(crate) mod mount_refusal;
pub(crate) mod mounted;
pub(crate) mod mounter;
mod passing;
pub(crate) mod peer;
pub(crate) mod places;
pub(crate) mod probe_gate;
pub(crate) mod process;
pub(crate) mod protocol;
pub(crate) mod quota;
mod quota_orders;
pub(crate) mod report;
pub(crate) mod scrub;
pub(crate) mod scrubbed;
pub(crate) mod server;
pub(crate) mod summary;
pub(crate) mod usage;
pub(crate) mod volume;
pub(crate) mod volume_failure;
