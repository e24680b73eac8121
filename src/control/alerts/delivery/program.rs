//! Programs that take a notice on their standard input.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::failure::DeliveryFailure;
use crate::control::alerts::config::demand_trusted;
use crate::control::process::keep_descriptors_to_ourselves;

/// The whole environment of programs.
const PATH: (&str, &str) = (
    "PATH",
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
);

/// Most bytes of the standard error of a program that are kept for a message.
const MOST_SAID: usize = 300;

/// The interval at which the end of a program is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a program with `input`. It gets no descriptor and no variable of ours but `PATH`. At the end of `timeout`, it is
/// killed with all processes of its group.
pub(super) fn run(
    command: &[String],
    input: &[u8],
    timeout: Duration,
) -> Result<(), DeliveryFailure> {
    let [program, arguments @ ..] = command else {
        return Err(DeliveryFailure::new("no program is named"));
    };
    let failed = |error| DeliveryFailure::new(format_args!("cannot run {program}: {error}"));
    let found = fs::metadata(program).map_err(failed)?;
    demand_trusted(found.uid(), found.mode(), 0o022).map_err(failed)?;
    // A command that tests receivers may have been given some.
    keep_descriptors_to_ourselves();
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env(PATH.0, PATH.1)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let until = Instant::now() + timeout;
    let ended = thread::scope(|scope| {
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let writer = thread::Builder::new().spawn_scoped(scope, move || {
            // A program need not read all of it, and its exit code decides.
            stdin.map(|mut stdin| stdin.write_all(input))
        });
        let reader = thread::Builder::new().spawn_scoped(scope, move || {
            stderr.map_or_else(String::new, |mut stderr| head_of(&mut stderr))
        });
        let status = wait(&mut child, until);
        // Processes that it left behind would keep the threads waiting.
        kill_group(&child);
        let said = match (writer, reader) {
            (Ok(_), Ok(reader)) => reader.join().unwrap_or_default(),
            (Err(error), _) | (_, Err(error)) => error.to_string(),
        };
        status.map(|status| (status, said))
    });
    let (status, said) = ended.map_err(failed)?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("it ended with code {code}"),
                (None, Some(signal)) => format!("signal {signal} ended it"),
                (None, None) => "it failed".to_owned(),
            };
            let said = said.trim();
            let colon = if said.is_empty() { "" } else { ": " };
            Err(DeliveryFailure::new(format_args!(
                "{program}: {how}{colon}{said}"
            )))
        }
        None => {
            let seconds = timeout.as_secs();
            let text = format_args!("{program}: it took more than {seconds} s, and was killed");
            Err(DeliveryFailure::new(text))
        }
    }
}

/// Waits for the end of a program until `until`, and kills it then. Returns none if it was killed.
fn wait(child: &mut Child, until: Instant) -> std::io::Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            kill_group(child);
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

fn kill_group(child: &Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        match kill_process_group(group, Signal::KILL) {
            // It is empty if the program left nothing behind.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::debug!("a process of a receiver goes on: {error}"),
        }
    }
}

/// Reads all, and returns the head of it.
fn head_of(from: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let room = MOST_SAID.saturating_sub(head.len());
        head.extend_from_slice(&piece[..count.min(room)]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> Result<(), DeliveryFailure> {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        run(&command, b"input", Duration::from_secs(seconds))
    }

    #[test]
    fn a_program_gets_its_input_a_clean_environment_and_no_descriptor() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("out");
        let shown = out.display();
        shell(
            &format!("exec > '{shown}'; cat; echo; env; ls /proc/self/fd"),
            20,
        )
        .unwrap();
        let out = fs::read_to_string(out).unwrap();
        assert!(out.starts_with("input\n"), "{out}");
        assert!(!out.contains("HOME=") && !out.contains("CARGO"), "{out}");
        let descriptors = out.lines().filter(|line| line.parse::<u32>().is_ok());
        // Those of `ls`: input, output, error, and the directory.
        assert_eq!(descriptors.count(), 4, "{out}");
    }

    #[test]
    fn failures_are_named_and_a_program_that_hangs_is_killed_with_its_children() {
        let failure = shell("echo no room >&2; exit 7", 20).unwrap_err();
        assert_eq!(failure.0, "/bin/sh: it ended with code 7: no room");
        let began = Instant::now();
        let failure = shell("sleep 1000 & sleep 1000", 1).unwrap_err();
        assert!(failure.0.contains("was killed"), "{failure}");
        assert!(began.elapsed() < Duration::from_secs(60));
        // A child that stays keeps the pipe open, and is not waited for.
        shell("sleep 1000 &", 20).unwrap();
        shell("head -c 10000000 /dev/zero >&2", 20).unwrap();
        let absent = ["/absent".to_owned()];
        assert!(run(&absent, b"", Duration::from_secs(1)).is_err());
    }
}
