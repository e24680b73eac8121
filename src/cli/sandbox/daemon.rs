//! Sandboxes of daemons.
//!
//! A daemon drops capabilities and system calls before it opens the volume, and can gain no privileges from then on.
//! It can still do the following:
//!
//! | daemon | mounting | capabilities | denied system calls |
//! | --- | --- | --- | --- |
//! | superuser's, of its own volume | unmounts itself | those that serving takes, `CAP_SYS_ADMIN` | dangerous ones; mounting once it has mounted |
//! | superuser's, of a foreign volume | through a helper | those that serving takes | dangerous ones, mounting, unmounting, programs, `io_uring` |
//! | a user's, of its own volume | through a helper | none | dangerous ones, mounting, unmounting |
//! | a user's, of a foreign volume | through a helper | none | the same, programs, `io_uring` |
//!
//! The daemon of a foreign volume also takes memory up to a limit. [`crate::control::mounter`] is the helper. A daemon of an
//! ordinary user needs it because `fusermount3`, a setuid program, has no effect for a process that can gain no
//! privileges.
//!
//! Landlock restricts the daemon of a foreign volume to the members that it was mounted with and a few other places:
//! `/proc`, the directory of its control socket, and the kernel's read-ahead. The helper opens its log file again. [`crate::cli::superseded`] has to look at
//! superblocks at places that members name. Until then any file can be read, and superblocks of members alone are
//! decoded.
//!
//! Landlock does not restrict the daemons of other volumes, for two reasons: a member that returns is mounted again on
//! its path; `member add` names directories that were unknown before. The daemon of a foreign volume does neither.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cauchyfs_sandbox::calls::{self, Daemon};
use cauchyfs_sandbox::files::{self, Access, Grant};
use cauchyfs_sandbox::{memory, privileges};
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;

use super::{members, note, superblocks_at, system};
use crate::cli::directories::{Directories, MEMBER_TIMEOUT};
use crate::cli::failure::Failure;
use crate::cli::size::format_size;
use crate::control::fault::Fault;
use crate::control::mounter::Mounting;
use crate::membership::directory;
use crate::store::{StoreErrorKind, Trust};

/// Memory of the daemon of a foreign volume, in bytes, beside its caches.
const FOREIGN_MEMORY: u64 = 4 << 30;

/// The place of the kernel's read-ahead of each mount.
const READ_AHEAD: &str = "/sys/devices/virtual/bdi";

/// The directories of a daemon, and limits on what it does with them.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Needs<'a> {
    pub(in crate::cli) directories: &'a Directories,
    pub(in crate::cli) mountpoint: &'a Path,
    /// The directory of its control socket, and of its log.
    pub(in crate::cli) runtime: &'a Path,
    /// The log file that it was given.
    pub(in crate::cli) log_file: Option<&'a Path>,
    /// Memory of its caches, in bytes.
    pub(in crate::cli) cache_bytes: usize,
    pub(in crate::cli) read_only: bool,
}

impl Needs<'_> {
    /// Grants what the daemon of a foreign volume uses while it serves.
    fn grants(&self) -> Vec<Grant> {
        let access = if self.read_only {
            Access::Read
        } else {
            Access::Change
        };
        let mut grants = members(self.directories, access);
        let others = [
            (self.runtime, Access::Fill),
            (Path::new(READ_AHEAD), Access::Change),
        ];
        let others = others.into_iter().filter_map(|(path, access)| {
            let granted = Grant::new(path, access);
            granted
                .inspect_err(|error| tracing::info!("{} cannot be opened: {error}", path.display()))
                .ok()
        });
        grants.extend(others);
        grants
    }
}

/// A daemon that has given up what it does not need.
#[derive(Debug)]
pub(in crate::cli) struct Confined {
    mounting: Mounting,
    is_foreign: bool,
}

/// Starts what mounts for a daemon, and confines the daemon, which is yet to open its volume. The daemon of a foreign
/// volume can still read any file, until [`Confined::narrow`].
///
/// # Errors
///
/// If the process that mounts cannot be started; if the volume is foreign and the kernel refuses what it offers.
/// Otherwise the daemon goes on with a warning.
pub(in crate::cli) fn begin_daemon(needs: &Needs<'_>) -> Result<Confined, Failure> {
    let is_foreign = is_foreign(needs.directories);
    let mounting = if geteuid().is_root() && !is_foreign {
        Mounting::Itself
    } else {
        Mounting::helper(needs.mountpoint, needs.log_file).map_err(|error| {
            Failure::environment(format!("cannot start a process that mounts: {error}"))
        })?
    };
    let confined = confine_daemon(&mounting);
    if is_foreign {
        confined.map_err(unconfined)?;
        tracing::info!(
            "a member is owned by another user: no programs, no io_uring, no GPU, limited memory, no other files"
        );
        note(calls::deny_to_daemon(Daemon::Foreign).map_err(unconfined)?);
        limit_memory_of_daemon(needs.cache_bytes)?;
        let everything = Grant::new(Path::new("/"), Access::Read);
        restrict_files(needs.grants().into_iter().chain(everything))?;
    } else {
        confined.unwrap_or_else(|error| tracing::warn!("the daemon keeps all its rights: {error}"));
    }
    Ok(Confined {
        mounting,
        is_foreign,
    })
}

impl Confined {
    /// Returns what mounts and unmounts for the daemon.
    pub(in crate::cli) fn mounting(&self) -> &Mounting {
        &self.mounting
    }

    /// Returns whether a member belongs to another user.
    pub(in crate::cli) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Restricts the daemon of a foreign volume to its files, and to superblocks at `elsewhere`, before it decodes
    /// more than superblocks.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what it offers.
    pub(in crate::cli) fn narrow(
        &self,
        needs: &Needs<'_>,
        elsewhere: impl FnOnce() -> Vec<PathBuf>,
    ) -> Result<(), Failure> {
        if !self.is_foreign {
            return Ok(());
        }
        let grants = needs.grants().into_iter();
        restrict_files(grants.chain(superblocks_at(&elsewhere())))
    }

    /// Returns the coding engine to use where `asked` was asked for. The driver of a GPU opens files and programs, so a
    /// foreign volume is coded on the CPU.
    ///
    /// # Errors
    ///
    /// If a GPU was asked for by name.
    pub(in crate::cli) fn engine<'a>(&self, asked: &'a str) -> Result<&'a str, Failure> {
        match asked {
            "auto" if self.is_foreign => Ok("cpu"),
            "cuda" if self.is_foreign => Err(Failure::usage(
                "a volume that another user can change is coded on the CPU only",
            )
            .advise("leave out `--engine cuda`")),
            asked => Ok(asked),
        }
    }

    /// Takes the right to mount from a daemon that has mounted.
    pub(in crate::cli) fn end_mounting(&self) {
        if !self.mounting.is_helper()
            && let Err(error) = calls::deny_to_daemon(Daemon::Mounted)
        {
            tracing::warn!("the daemon keeps the right to mount: {error}");
        }
    }
}

fn restrict_files(grants: impl Iterator<Item = Grant>) -> Result<(), Failure> {
    let missing = files::restrict_to(grants.chain(system()).collect());
    note(missing.map_err(unconfined)?);
    Ok(())
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
            let opened = directory::open_trusting(path, Trust::OwnUser);
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
