//! System calls that the process can still make, by seccomp.
//!
//! Two kinds of filters:
//!
//! - A command that works on directories gets a **list of what it may call** ([`CommandWork`]). Its work is closed:
//!   files, threads, a clock, memory. All else fails with `ENOSYS`, as on a kernel that lacks the call. The C library
//!   goes back to an older call then, so a newer one that makes calls of its own time keeps working.
//! - A daemon gets a **list of what it may not call** ([`deny_to_daemon`]), with `EPERM`. It serves for months, and
//!   the driver of a GPU runs inside it, whose calls no list can foresee.
//!
//! `io_uring` runs operations that no filter sees, so a command gets none, and its executor uses threads. `clone3`
//! hides its flags behind a pointer. It fails with `ENOSYS`, and the C library uses `clone`, whose flags are checked.
//! A call by way of another architecture ends the process; one by x32 is not on the first list, and on the second.

use std::io;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::Missing;

mod list;

use list::Rules;

/// The work of a command, and the system calls that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandWork {
    /// Reads files; changes neither bytes, nor names, nor attributes.
    Read,
    /// Changes files and directories below members.
    Repair,
    /// Makes files of every kind, with all their attributes.
    Fill,
}

/// Lets the process make those system calls alone that `work` takes. It can run no program and start no process.
///
/// # Errors
///
/// If the kernel has seccomp and refuses the filter.
pub fn allow_only(work: CommandWork) -> io::Result<Option<Missing>> {
    let mut rules: Rules = list::READ.iter().map(|&call| (call, Vec::new())).collect();
    if work >= CommandWork::Repair {
        rules.extend(list::REPAIR.iter().map(|&call| (call, Vec::new())));
    }
    if work >= CommandWork::Fill {
        rules.extend(list::FILL.iter().map(|&call| (call, Vec::new())));
    }
    let only = |argument, values: &[u64]| -> Result<Vec<SeccompRule>, io::Error> {
        let equal = |&value: &u64| rule(vec![condition(argument, SeccompCmpOp::Eq, value)?]);
        values.iter().map(equal).collect()
    };
    // Threads, and no processes.
    let thread = number(libc::CLONE_THREAD);
    let is_thread = condition(0, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![rule(vec![is_thread])?]);
    let local = [number(libc::AF_UNIX)];
    rules.insert(libc::SYS_socket, only(0, &local)?);
    rules.insert(libc::SYS_socketpair, only(0, &local)?);
    let mut requests = list::IOCTLS.to_vec();
    if work >= CommandWork::Repair {
        requests.extend(list::REPAIR_IOCTLS);
    }
    rules.insert(libc::SYS_ioctl, only(1, &requests)?);
    rules.insert(libc::SYS_prctl, only(0, &list::PRCTLS)?);
    // Limits of this process alone.
    rules.insert(libc::SYS_prlimit64, only(0, &[0])?);
    let filter = Filter {
        rules,
        listed: SeccompAction::Allow,
        others: refuse(libc::ENOSYS),
    };
    filter.apply()
}

/// Denies the process sockets and messages over them from now on, with `EPERM`.
///
/// # Errors
///
/// If the kernel has seccomp and refuses the filter.
pub fn deny_sockets() -> io::Result<Option<Missing>> {
    let rules = list::SOCKETS.iter().map(|&call| (call, Vec::new()));
    let filter = Filter {
        rules: rules.collect(),
        listed: refuse(libc::EPERM),
        others: SeccompAction::Allow,
    };
    filter.apply()
}

/// Additional restrictions of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// Any daemon before it mounts.
    Starting,
    /// Any daemon once it has mounted: no further mount.
    Mounted,
    /// A daemon for which another process mounts and unmounts: it does neither.
    Helped,
    /// The daemon of a volume that belongs to another user: runs no program and has no `io_uring`.
    Foreign,
}

/// Denies a daemon the system calls that it never needs: tracing, modules, other kernels, namespaces, clocks, keys,
/// files by handle, sockets other than local ones.
///
/// # Errors
///
/// If the kernel has seccomp and refuses the filter.
pub fn deny_to_daemon(daemon: Daemon) -> io::Result<Option<Missing>> {
    let calls: Vec<i64> = match daemon {
        Daemon::Starting => list::DANGEROUS.to_vec(),
        Daemon::Mounted => list::MOUNTING.to_vec(),
        Daemon::Helped => [list::MOUNTING, &[libc::SYS_umount2]].concat(),
        Daemon::Foreign => list::FOREIGN.to_vec(),
    };
    let mut rules: Rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    if daemon == Daemon::Starting {
        let not = |value| condition(0, SeccompCmpOp::Ne, number(value));
        let is_remote = rule(vec![not(libc::AF_UNIX)?, not(libc::AF_NETLINK)?])?;
        rules.insert(libc::SYS_socket, vec![is_remote]);
        let spaces = list::NAMESPACES.map(|flag| {
            let flag = number(flag);
            rule(vec![condition(0, SeccompCmpOp::MaskedEq(flag), flag)?])
        });
        let spaces: io::Result<Vec<SeccompRule>> = spaces.into_iter().collect();
        rules.insert(libc::SYS_clone, spaces?);
    }
    #[cfg(target_arch = "x86_64")]
    list::add_x32(&mut rules);
    let filter = Filter {
        rules,
        listed: refuse(libc::EPERM),
        others: SeccompAction::Allow,
    };
    let missing = filter.apply()?;
    if missing.is_some() || daemon != Daemon::Starting {
        return Ok(missing);
    }
    let filter = Filter {
        rules: [(libc::SYS_clone3, Vec::new())].into(),
        listed: refuse(libc::ENOSYS),
        others: SeccompAction::Allow,
    };
    filter.apply()
}

struct Filter {
    rules: Rules,
    /// Taken where a rule applies.
    listed: SeccompAction,
    /// Taken otherwise.
    others: SeccompAction,
}

impl Filter {
    /// Installs it for all threads of the process.
    fn apply(self) -> io::Result<Option<Missing>> {
        let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else {
            return Ok(Some(Missing::Seccomp));
        };
        let program = SeccompFilter::new(self.rules, self.others, self.listed, arch)
            .and_then(BpfProgram::try_from)
            .map_err(io::Error::other)?;
        match apply_filter_all_threads(&program) {
            Ok(()) => Ok(None),
            Err(Error::Seccomp(error) | Error::Prctl(error)) if is_lack(&error) => {
                Ok(Some(Missing::Seccomp))
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Tells a kernel without seccomp, or a container that denies it, from a filter that is wrong.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [libc::ENOSYS, libc::EINVAL, libc::EPERM];
    error
        .raw_os_error()
        .is_some_and(|errno| lacks.contains(&errno))
}

fn refuse(errno: i32) -> SeccompAction {
    SeccompAction::Errno(errno.unsigned_abs())
}

/// Returns a flag or a constant of the C library as an argument of a system call.
fn number(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    // The kernel looks at 32 bits of these arguments.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        .map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}
