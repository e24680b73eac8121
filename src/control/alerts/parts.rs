//! The parts of the program that work on alerts beside a daemon: how each is started, and how it ends.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Argument that asks for the process that delivers alerts; the configuration and the directory of the state follow.
pub(super) const PROCESS: &str = "--alerts-process";

/// Argument that asks for its supervisor; the same follows.
pub(super) const SUPERVISOR: &str = "--alerts-supervisor";

/// Code with which the process ends to be started again at once.
pub(super) const BEGIN_AGAIN: u8 = 75;

/// Variables that name the certificates to trust.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The places at which the process works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessPlaces {
    pub(super) config: PathBuf,
    pub(super) state: PathBuf,
}

/// Returns this program as it runs, also if an upgrade has replaced its file: both ends speak one language. It gets no
/// variable but those that name certificates.
pub(super) fn same_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("cauchyfs").env_clear().envs(certificates());
    command
}

fn certificates() -> impl Iterator<Item = (&'static str, OsString)> {
    let named = CERTIFICATES.into_iter();
    named.filter_map(|name| Some((name, std::env::var_os(name)?)))
}
