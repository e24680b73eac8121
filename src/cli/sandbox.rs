//! Sandboxes of the commands that work on directories, and of [daemons](daemon).
//!
//! A volume may be another's, and its bytes made to deceive. So `extract`, and `check`, `status` and `events` of
//! directories give up what they do not need before they read the first byte of a member:
//!
//! | | files | superuser's capabilities |
//! | --- | --- | --- |
//! | `check`, `status`, `events` | reads members | reading files of every owner |
//! | `check --repair` | reads and changes members | the same, and changing them |
//! | `extract` | reads members, fills OUT | reading, and making files of every owner |
//!
//! All of them also read `/proc` and what `/sys` says of the CPUs. They start threads and no process, have no
//! `io_uring`, and take memory up to a limit. They give up sockets before they decode more than superblocks.
//!
//! [`crate::cli::superseded`] has to look at superblocks at places that members name. While these are found, any file
//! can be read, and superblocks of members alone are decoded; see [`Survey`].
//!
//! [`cauchyfs_sandbox`] does all that, and tells what a kernel lacks; that is a line of the log then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cauchyfs_sandbox::calls::{self, CommandWork};
use cauchyfs_sandbox::files::{self, Access, Grant};
use cauchyfs_sandbox::{Missing, memory, privileges};
use clap::Args;
use rustix::thread::CapabilitySet;

use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::Failure;
use super::size::{format_size, parse_size};
use crate::control::fault::Fault;
use crate::control::in_time::ask_each;
use crate::format::files::SUPERBLOCK;

mod daemon;

pub(super) use daemon::{Confined, Needs, begin_daemon};

/// Memory of a command that leaves room to work, in bytes.
const LEAST_MEMORY: u64 = 256 << 20;

/// Memory of a command, in bytes, on machines with little.
const COMMAND_MEMORY: u64 = 4 << 30;

/// Places that commands read besides members: who holds locks, what is mounted, how many CPUs there are.
const SYSTEM: [&str; 3] = ["/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup"];

/// How a command is confined.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct SandboxArguments {
    /// Most memory that the command may take; it ends with code 2 when it needs more. 4 GiB unless given, or half of the
    /// machine's memory if that is more.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory_limit: Option<u64>,
    /// Leave files, system calls and capabilities unrestricted; for volumes of your own, on kernels that have trouble
    /// with it.
    #[arg(long)]
    no_sandbox: bool,
}

/// Returns the limit of memory of a command that none is given for, in bytes.
fn usual_memory() -> u64 {
    let machine = rustix::system::sysinfo();
    let half = machine.totalram * u64::from(machine.mem_unit) / 2;
    half.max(COMMAND_MEMORY)
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < LEAST_MEMORY => {
            Err(format!("at least {} are needed", format_size(LEAST_MEMORY)))
        }
        bytes => Ok(bytes),
    }
}

/// Confines a command that reads members.
///
/// # Errors
///
/// If the kernel refuses what it offers.
pub(super) fn read(arguments: &SandboxArguments, directories: &Directories) -> Result<(), Failure> {
    restrict_calls(arguments, CommandWork::Read, privileges::reading())?;
    restrict_sockets(arguments)?;
    restrict_files(arguments, members(directories, Access::Read))
}

/// Confines a command that reads members and makes files below `out`, which exists; with `with_privileges` also device
/// nodes, setgid bits and the attributes of the system.
///
/// # Errors
///
/// If `out` cannot be opened, or the kernel refuses what it offers.
pub(super) fn extract(
    arguments: &SandboxArguments,
    directories: &Directories,
    out: &Path,
    with_privileges: bool,
) -> Result<(), Failure> {
    let access = if with_privileges {
        Access::FillWithDevices
    } else {
        Access::Fill
    };
    let opened = fs::canonicalize(out).and_then(|out| Grant::new(&out, access));
    let target = opened
        .map_err(|error| Failure::environment(format!("cannot open {}: {error}", out.display())))?;
    restrict_calls(
        arguments,
        CommandWork::Fill,
        privileges::filling(with_privileges),
    )?;
    restrict_sockets(arguments)?;
    let mut grants = members(directories, Access::Read);
    grants.push(target);
    restrict_files(arguments, grants)
}

/// A command that may read any file while it finds out at which places it has to look. It can change members
/// alone, and those only if its work is to repair them.
#[derive(Debug)]
#[must_use = "more can be read than is needed until it is narrowed"]
pub(super) struct Survey {
    arguments: SandboxArguments,
    access: Access,
}

impl Survey {
    /// Confines a command that `works` on members; it can read any file yet.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what it offers.
    pub(super) fn begin(
        arguments: &SandboxArguments,
        directories: &Directories,
        work: CommandWork,
    ) -> Result<Self, Failure> {
        let (access, kept) = match work {
            CommandWork::Repair => (Access::Change, privileges::changing()),
            _ => (Access::Read, privileges::reading()),
        };
        restrict_calls(arguments, work, kept)?;
        // A later restriction narrows this one, and cannot widen it.
        let mut grants = members(directories, access);
        grants.extend(Grant::new(Path::new("/"), Access::Read));
        restrict_files(arguments, grants)?;
        Ok(Self {
            arguments: *arguments,
            access,
        })
    }

    /// Restricts it to the members, and to superblocks at `elsewhere`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what it offers.
    pub(super) fn narrow(
        self,
        directories: &Directories,
        elsewhere: &[PathBuf],
    ) -> Result<(), Failure> {
        restrict_sockets(&self.arguments)?;
        let mut grants = members(directories, self.access);
        grants.extend(superblocks_at(elsewhere));
        restrict_files(&self.arguments, grants)
    }
}

/// Grants reading the superblocks at `places`.
fn superblocks_at(places: &[PathBuf]) -> impl Iterator<Item = Grant> {
    let found = ask_each(places, MEMBER_TIMEOUT, superblock_at);
    found.into_iter().flatten().flatten()
}

/// Grants listing a directory in which a superblock lies, and reading that.
fn superblock_at(path: &Path) -> Vec<Grant> {
    let superblock = path.join(SUPERBLOCK);
    let is_file = fs::symlink_metadata(&superblock).is_ok_and(|found| found.is_file());
    if !is_file {
        return Vec::new();
    }
    let grants = [
        Grant::new(path, Access::List),
        Grant::new(&superblock, Access::Read),
    ];
    grants.into_iter().filter_map(Result::ok).collect()
}

/// Grants access to all members that answer. Those that do not are refused to the command, which leaves them out.
fn members(directories: &Directories, access: Access) -> Vec<Grant> {
    let present = &directories.present;
    let grant = move |path: &Path| Grant::new(path, access);
    let asked = directories.silent.ask_each(present, MEMBER_TIMEOUT, grant);
    let granted = asked.into_iter().zip(present);
    let granted = granted.filter_map(|(grant, path)| match grant? {
        Ok(grant) => Some(grant),
        Err(error) => {
            tracing::info!("{} cannot be opened: {error}", path.display());
            None
        }
    });
    granted.collect()
}

/// Restricts memory, capabilities and system calls, and writing to files.
fn restrict_calls(
    arguments: &SandboxArguments,
    work: CommandWork,
    kept: CapabilitySet,
) -> Result<(), Failure> {
    limit_memory(arguments.memory_limit.unwrap_or_else(usual_memory))?;
    if arguments.no_sandbox {
        return Ok(());
    }
    privileges::keep(kept).map_err(refused)?;
    note(calls::allow_only(work).map_err(refused)?);
    Ok(())
}

/// Takes sockets from a command, which has asked the daemons of this machine by then.
fn restrict_sockets(arguments: &SandboxArguments) -> Result<(), Failure> {
    if !arguments.no_sandbox {
        note(calls::deny_sockets().map_err(refused)?);
    }
    Ok(())
}

fn restrict_files(arguments: &SandboxArguments, mut grants: Vec<Grant>) -> Result<(), Failure> {
    if arguments.no_sandbox {
        return Ok(());
    }
    grants.extend(system());
    note(files::restrict_to(grants).map_err(refused)?);
    Ok(())
}

/// Grants reading [`SYSTEM`].
fn system() -> impl Iterator<Item = Grant> {
    let places = SYSTEM.iter().map(Path::new);
    places.filter_map(|path| Grant::new(path, Access::Read).ok())
}

/// Limits the memory of a command.
fn limit_memory(bytes: u64) -> Result<(), Failure> {
    let message = |bytes: u64| {
        let (limit, double) = (format_size(bytes), bytes.saturating_mul(2) >> 20);
        format!(
            "cauchyfs: more memory is needed than the limit of {limit}\n  \
             `--memory-limit {double}MiB` allows more; a damaged or hostile volume may ask for any amount\n"
        )
    };
    let code = Failure::exit_code(Fault::Environment).into();
    memory::limit(bytes, message, code).map_err(refused)
}

fn note(missing: Option<Missing>) {
    if let Some(missing) = missing {
        tracing::info!("{missing}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes a value")]
fn refused(error: io::Error) -> Failure {
    Failure::environment(format!("cannot enter the sandbox: {error}"))
        .advise("`--no-sandbox` goes without one, for directories that you trust")
}
