//! Signals that end programs, as `/proc` tells of them.
//!
//! The kernel reports that a program which waits got a signal, but not which one. A program may handle a signal, and an
//! interval timer sends one every moment. Of a program that waits in direct I/O, the kernel reports no signal at all.

use std::fs;

/// The number of the signal that ends a program in any case.
const KILL: u32 = libc::SIGKILL.unsigned_abs();

/// The signals that end no program unless it asks for that: it ignores them, or stops or goes on.
const HARMLESS: [i32; 8] = [
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// The flag of a thread that is about to end: the kernel's `PF_EXITING`.
const EXITING: u64 = 4;

/// The place of the flags in `/proc/PID/stat`, counted from the state.
const FLAGS_FIELD: usize = 6;

/// The flag of a thread that a signal ends: the kernel's `PF_SIGNALED`. Every reader may know it, unlike the exit code.
const SIGNALED: u64 = 0x400;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// No signal ends it. It belongs to this process.
    Lives {
        /// The number of the process.
        process: u32,
    },
    /// A signal ends its process, and waits for it to come back from the kernel.
    Dies,
    /// There is no such thread.
    Gone,
}

/// Returns the state of thread `id`. A thread that cannot be looked at counts as gone.
pub(super) fn life_of(id: u32) -> Life {
    let read = |name| fs::read_to_string(format!("/proc/{id}/{name}"));
    let Ok(status) = read("status") else {
        return Life::Gone;
    };
    // A thread that ends has taken its signal already, and its process may wait for what it has begun.
    let is_killed = || read("stat").is_ok_and(|stat| was_killed(&stat));
    match number(&status, "Tgid:", 10) {
        Some(_) if has_fatal_signal(&status) || is_killed() => Life::Dies,
        Some(process) => {
            u32::try_from(process).map_or(Life::Gone, |process| Life::Lives { process })
        }
        None => Life::Gone,
    }
}

/// Reads a field of `/proc/PID/status`.
fn number(status: &str, field: &str, radix: u32) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(value.trim(), radix).ok()
}

/// Returns whether a thread has a signal to take that ends its process, from its `/proc/PID/status`.
fn has_fatal_signal(status: &str) -> bool {
    let signals = |field| number(status, field, 16).unwrap_or(0);
    let taken_otherwise = signals("SigBlk:") | signals("SigIgn:") | signals("SigCgt:");
    let harmless = HARMLESS
        .iter()
        .filter_map(|signal| bit(signal.unsigned_abs()));
    let harmless = harmless.fold(0, |all, one| all | one);
    let fatal = !taken_otherwise & !harmless | bit(KILL).unwrap_or(0);
    (signals("SigPnd:") | signals("ShdPnd:")) & fatal != 0
}

/// Returns the bit that stands for a signal.
fn bit(signal: u32) -> Option<u64> {
    1u64.checked_shl(signal.checked_sub(1)?)
}

/// Returns whether a thread ends because of a signal, from its `/proc/PID/stat`.
fn was_killed(stat: &str) -> bool {
    // The name before the state is in brackets, and may have any in it.
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return false;
    };
    let flags = fields.split_whitespace().nth(FLAGS_FIELD);
    let flags = flags.and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0 && flags & SIGNALED != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn status(pending: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tx\nTgid:\t7\nSigQ:\t0/1\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn signals_end_a_program_unless_it_blocks_handles_or_ignores_them() {
        let of = |signal: i32| bit(signal.unsigned_abs()).unwrap();
        for signal in [
            libc::SIGTERM,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGALRM,
            64,
        ] {
            let one = of(signal);
            assert!(has_fatal_signal(&status(one, 0, 0, 0, 0)), "{signal}");
            assert!(has_fatal_signal(&status(0, one, 0, 0, !one)), "{signal}");
            for (blocked, ignored, caught) in [(one, 0, 0), (0, one, 0), (0, 0, one)] {
                let status = status(one, one, blocked, ignored, caught);
                assert!(!has_fatal_signal(&status), "{signal}");
            }
        }
        for signal in [libc::SIGCHLD, libc::SIGTSTP, libc::SIGWINCH, libc::SIGURG] {
            assert!(
                !has_fatal_signal(&status(of(signal), 0, 0, 0, 0)),
                "{signal}"
            );
        }
        let kill = of(libc::SIGKILL);
        assert!(has_fatal_signal(&status(kill, 0, !0, !0, !0)));
        assert!(!has_fatal_signal(&status(0, 0, 0, 0, 0)));
        assert!(!has_fatal_signal(""));
    }

    #[test]
    fn a_thread_that_ends_by_a_signal_is_told_from_one_that_ends_by_itself() {
        let stat = |flags: u64| format!("7 (a) b) D 1 1 1 0 -1 {flags} 0 0\n");
        assert!(was_killed(&stat(EXITING | SIGNALED | 0x40_0100)));
        for flags in [EXITING, SIGNALED, 0x40_0100] {
            assert!(!was_killed(&stat(flags)), "{flags}");
        }
        assert!(!was_killed(""));
    }

    #[test]
    fn a_process_lives_until_it_is_killed_and_is_gone_once_it_is_waited_for() {
        let mut sleep = Command::new("sleep");
        let mut sleep = sleep.arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let process = sleep.id();
        assert_eq!(life_of(process), Life::Lives { process });
        sleep.kill().unwrap();
        cauchyfs_testkit::eventually("it dies", std::time::Duration::from_secs(60), || {
            life_of(process) == Life::Dies
        });
        sleep.wait().unwrap();
        assert_eq!(life_of(process), Life::Gone);
    }
}
