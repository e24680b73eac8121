//! Sandboxes of daemons.
//!
//! A daemon drops capabilities and system calls before it opens the volume, and can gain no privileges from then on.
//! What it can still do:
//!
//! | daemon | mounting | capabilities | denied system calls |
//! | --- | --- | --- | --- |
//! | superuser's, of its own volume | unmounts itself | those that serving takes, `CAP_SYS_ADMIN` | dangerous ones; mounting once it has mounted |
//! | superuser's, of a foreign volume | through a helper | those that serving takes | dangerous ones, mounting, unmounting, programs, `io_uring` |
//! | a user's, of its own volume | through a helper | none | dangerous ones, mounting, unmounting |
//! | a user's, of a foreign volume | through a helper | none | the same, programs, `io_uring` |
//!
//! The daemon of a foreign volume also takes memory up to a limit. [`crate::cli::mounter`] is the helper. A daemon of an
//! ordinary user needs it because `fusermount3`, a setuid program, has no effect for a process that can gain no
//! privileges.
//!
//! Landlock does not restrict a daemon, for two reasons: a member that returns is mounted anew on its path;
//! `member add` names directories that were unknown before.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cauchyfs_sandbox::calls::{self, Daemon};
use cauchyfs_sandbox::{memory, privileges};
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;

use super::note;
use crate::cli::directories::Directories;
use crate::cli::failure::{Failure, Fault};
use crate::cli::mounter::Mounting;
use crate::cli::size::format_size;
use crate::cli::volume::MEMBER_TIMEOUT;
use crate::store::{DirStore, StoreErrorKind, Trust};

/// Memory of the daemon of a foreign volume, in bytes, beside its caches.
const FOREIGN_MEMORY: u64 = 4 << 30;

/// Starts what mounts for a daemon, and confines the daemon, which is yet to open its volume; `cache_bytes` are its
/// caches.
///
/// # Errors
///
/// If the process that mounts cannot be started; if the volume is foreign and the kernel refuses what it offers.
/// Otherwise the daemon goes on with a warning.
pub(in crate::cli) fn begin_daemon(
    directories: &Directories,
    mountpoint: &Path,
    cache_bytes: usize,
) -> Result<Mounting, Failure> {
    let is_foreign = is_foreign(directories);
    let mounting = if geteuid().is_root() && !is_foreign {
        Mounting::Itself
    } else {
        Mounting::helper(mountpoint)?
    };
    let confined = confine_daemon(&mounting);
    if !is_foreign {
        confined.unwrap_or_else(|error| log::warn!("the daemon keeps all its rights: {error}"));
        return Ok(mounting);
    }
    confined.map_err(unconfined)?;
    log::info!("a member is owned by another user: no programs, no io_uring, limited memory");
    note(calls::deny_to_daemon(Daemon::Foreign).map_err(unconfined)?);
    limit_memory_of_daemon(cache_bytes)?;
    Ok(mounting)
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes a value")]
fn unconfined(error: io::Error) -> Failure {
    Failure::environment(format!("cannot confine the daemon: {error}"))
}

fn confine_daemon(mounting: &Mounting) -> io::Result<()> {
    privileges::keep(daemon_capabilities(mounting))?;
    note(calls::deny_to_daemon(Daemon::Starting)?);
    if mounting.is_helper() {
        calls::deny_to_daemon(Daemon::Helped)?;
    }
    Ok(())
}

/// Takes the right to mount from a daemon that has mounted.
pub(in crate::cli) fn end_mounting(mounting: &Mounting) {
    if !mounting.is_helper()
        && let Err(error) = calls::deny_to_daemon(Daemon::Mounted)
    {
        log::warn!("the daemon keeps the right to mount: {error}");
    }
}

fn daemon_capabilities(mounting: &Mounting) -> CapabilitySet {
    let mut kept = privileges::serving();
    if !mounting.is_helper() {
        kept |= CapabilitySet::SYS_ADMIN;
    }
    if hides_processes() {
        // Groups of callers are read from their processes.
        kept |= CapabilitySet::SYS_PTRACE;
    }
    kept
}

/// Says whether `/proc` shows a user only processes of its own.
fn hides_processes() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = mounts.lines();
    mounts.any(|mount| mount.contains(" /proc ") && mount.contains("hidepid="))
}

/// Says whether a member belongs to another user than this one. The superuser's also counts as another's if something
/// in it belongs to another user, or can be written to by one.
fn is_foreign(directories: &Directories) -> bool {
    let own = geteuid();
    let is_others = move |path: &Path| {
        if own.is_root() {
            let opened = DirStore::open_trusting(path, Trust::OwnUser);
            opened.is_err_and(|error| error.kind() == StoreErrorKind::Untrusted)
        } else {
            fs::metadata(path).is_ok_and(|found| found.uid() != own.as_raw())
        }
    };
    let present = &directories.present;
    let asked = directories
        .silent
        .ask_each(present, MEMBER_TIMEOUT, is_others);
    // One that does not answer is not read, either.
    asked.into_iter().flatten().any(|is_others| is_others)
}

/// Limits the memory of the daemon of a foreign volume.
fn limit_memory_of_daemon(cache_bytes: usize) -> Result<(), Failure> {
    let caches = u64::try_from(cache_bytes).unwrap_or(u64::MAX);
    let message = |bytes: u64| {
        let limit = format_size(bytes);
        format!(
            "cauchyfs: the daemon of a foreign volume needs more memory than its limit of {limit}\n  \
             a damaged or hostile volume may ask for any amount; a larger `--cache-size` raises the limit by twice as much\n"
        )
    };
    let code = Failure::exit_code(Fault::Environment).into();
    let bytes = FOREIGN_MEMORY.saturating_add(caches.saturating_mul(2));
    memory::limit(bytes, message, code).map_err(unconfined)
}
