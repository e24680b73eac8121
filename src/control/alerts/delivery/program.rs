//! Programs that take a notice on their standard input.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, Signal, kill_process_group};

use super::failure::DeliveryFailure;
use crate::control::alerts::config::demand_trusted_command;
use crate::control::process::keep_descriptors_to_ourselves;

/// The whole environment of programs.
const PATH: (&str, &str) = (
    "PATH",
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
);

/// Most bytes of the standard error of a program that are kept for a message.
const MOST_SAID: usize = 300;

/// Most pieces of the standard error that are read at a time.
const MOST_PIECES: usize = 64;

/// The interval at which the end of a program is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a program with `input`. It gets no descriptor and no variable of ours but `PATH`. At the end of `timeout`, it is
/// killed with all processes of its group. What it leaves behind when it ends by itself goes on.
pub(super) fn run(
    command: &[String],
    input: &[u8],
    timeout: Duration,
) -> Result<(), DeliveryFailure> {
    let [program, arguments @ ..] = command else {
        return Err(DeliveryFailure::new("no program is named"));
    };
    let failed = |error| DeliveryFailure::new(format_args!("cannot run {program}: {error}"));
    demand_trusted_command(command).map_err(failed)?;
    let mut started = Command::new(program);
    started.args(arguments).env_clear().env(PATH.0, PATH.1);
    let Ended { status, said } = run_command(started, program, input, timeout)?;
    if status.success() {
        return Ok(());
    }
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

/// The end of a program.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// The head of its standard error.
    pub(super) said: String,
}

/// Runs a command with `input`, and names it `name` in failures. At the end of `timeout`, it is killed with all processes
/// of its group.
pub(super) fn run_command(
    mut command: Command,
    name: &str,
    input: &[u8],
    timeout: Duration,
) -> Result<Ended, DeliveryFailure> {
    let failed = |error| DeliveryFailure::new(format_args!("cannot run {name}: {error}"));
    // A command that tests receivers may have been given some.
    keep_descriptors_to_ourselves();
    let mut child = command
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let until = Instant::now() + timeout;
    let talk = Talk::new(child.stdin.take(), child.stderr.take(), input);
    let talk = talk.and_then(|mut talk| Ok((talk.until_end(&mut child, until)?, talk.said())));
    if !matches!(talk, Ok((Some(_), _))) {
        end(child);
    }
    let (status, said) = talk.map_err(failed)?;
    status.map(|status| Ended { status, said }).ok_or_else(|| {
        let seconds = timeout.as_secs();
        DeliveryFailure::new(format_args!(
            "{name}: it took more than {seconds} s, and was killed"
        ))
    })
}

/// The input and output of a program that runs. A process that it left behind may keep its pipes open for ever, so
/// nothing here blocks.
struct Talk<'a> {
    stdin: Option<ChildStdin>,
    /// The input that it has not taken yet.
    rest: &'a [u8],
    stderr: Option<ChildStderr>,
    /// The head of its standard error.
    head: Vec<u8>,
}

impl<'a> Talk<'a> {
    fn new(
        stdin: Option<ChildStdin>,
        stderr: Option<ChildStderr>,
        input: &'a [u8],
    ) -> io::Result<Self> {
        if let Some(stdin) = &stdin {
            ioctl_fionbio(stdin, true)?;
        }
        if let Some(stderr) = &stderr {
            ioctl_fionbio(stderr, true)?;
        }
        Ok(Self {
            stdin,
            rest: input,
            stderr,
            head: Vec::new(),
        })
    }

    /// Talks until the program ends, and returns its status. Returns none if it runs at `until`.
    fn until_end(&mut self, child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = child.try_wait()?;
            // After the end as well, for its last words.
            self.write();
            self.read();
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            self.pause()?;
        }
    }

    /// Waits until a pipe is ready, for [`LOOK`] at most.
    fn pause(&self) -> io::Result<()> {
        let stdin = self.stdin.as_ref();
        let stdin = stdin.map(|it| PollFd::new(it, PollFlags::OUT));
        let stderr = self.stderr.as_ref();
        let stderr = stderr.map(|it| PollFd::new(it, PollFlags::IN));
        let mut pipes: Vec<PollFd<'_>> = stdin.into_iter().chain(stderr).collect();
        let patience = Timespec::try_from(LOOK).map_err(io::Error::other)?;
        match poll(&mut pipes, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&mut self) {
        while let Some(stdin) = &mut self.stdin {
            match stdin.write(self.rest) {
                Ok(count @ 1..) => self.rest = &self.rest[count..],
                Err(error) if is_for_now(&error) => return,
                // All is written, or it reads no more. It need not read all, and its exit code decides.
                Ok(0) | Err(_) => self.stdin = None,
            }
        }
    }

    /// Reads what is there, in pieces whose number is bounded.
    fn read(&mut self) {
        let mut piece = [0; 4096];
        for _ in 0..MOST_PIECES {
            let Some(stderr) = &mut self.stderr else {
                return;
            };
            match stderr.read(&mut piece) {
                Ok(count @ 1..) => {
                    let room = MOST_SAID.saturating_sub(self.head.len());
                    self.head.extend_from_slice(&piece[..count.min(room)]);
                }
                Err(error) if is_for_now(&error) => return,
                Ok(0) | Err(_) => self.stderr = None,
            }
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Kills a program that runs, with its group. It has not been reaped, so the number of the group is still its own.
fn end(mut child: Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group
        && let Err(error) = kill_process_group(group, Signal::KILL)
    {
        tracing::debug!("a process of a receiver goes on: {error}");
    }
    // The kernel may keep it for a while, such as on a server that is away.
    let reaper = thread::Builder::new().name("reaper".to_owned());
    if let Err(error) = reaper.spawn(move || child.wait()) {
        tracing::debug!("a program that was killed stays a zombie: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert_eq!(failure.text, "/bin/sh: it ended with code 7: no room");
        let began = Instant::now();
        let failure = shell("sleep 100 & sleep 100", 1).unwrap_err();
        assert!(failure.text.contains("was killed"), "{failure}");
        // A child that stays keeps the pipe open, and is not waited for.
        let failure = shell("setsid sleep 100 & sleep 100", 1).unwrap_err();
        assert!(failure.text.contains("was killed"), "{failure}");
        shell("sleep 100 &", 500).unwrap();
        assert!(began.elapsed() < Duration::from_secs(90));
        shell("head -c 10000000 /dev/zero >&2", 20).unwrap();
        let absent = ["/absent".to_owned()];
        assert!(run(&absent, b"", Duration::from_secs(1)).is_err());
    }
}
