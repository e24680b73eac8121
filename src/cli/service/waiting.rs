//! Waiting until as many members are there as a volume needs.
//!
//! Opening the membership decides whether they suffice, as in a mount. A process of its own does that. It confines itself
//! before it reads a member, and a confined process could not become the daemon any more.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cauchyfs_sandbox::calls::CommandWork;

use super::super::args::MountArguments;
use super::super::directories::Directories;
use super::super::failure::{Failure, Outcome};
use super::super::sandbox::{SandboxArguments, Survey};
use super::super::survey::{executor, usable_stores};
use super::super::terminal;
use super::super::time::Wait;
use super::supervision;
use crate::control::fault::Fault;
use crate::control::in_time::Silent;
use crate::control::process::program;
use crate::control::volume_failure::VolumeFailure;
use crate::membership::{Access, Members, MembersError};

/// The pause between two looks at the directories.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The time that a look may take beyond those for which it waits for directories that hang.
const LOOK_PATIENCE: Duration = Duration::from_secs(60);

/// Most processes that looked, and cannot end because a directory hangs.
const MOST_STUCK: usize = 8;

/// Waits until enough members are there, if `arguments` ask for that. `probe_line` are the arguments of the process that
/// looks.
///
/// # Errors
///
/// If they are too few when the time is up, or something else keeps the volume from being opened.
pub(in crate::cli) fn wait_for_members(
    arguments: &MountArguments,
    probe_line: &[OsString],
) -> Result<(), Failure> {
    let Some(Wait(limit)) = arguments.service.wait_for_members else {
        return Ok(());
    };
    let until = limit.map(|limit| Instant::now() + limit);
    let mut named = String::new();
    let mut looks = Looks {
        probe_line,
        patience: LOOK_PATIENCE + 2 * arguments.member_timeout,
        stuck: Vec::new(),
    };
    loop {
        let failure = match looks.look()? {
            None => return Ok(()),
            Some(failure) if failure.fault != Fault::TooFew => return Err(failure),
            Some(failure) => failure,
        };
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(failure);
        }
        if failure.message != named {
            tracing::warn!("waiting for members: {}", failure.message);
            supervision::tell_status(&format!("waiting for members: {}", failure.message));
            named = failure.message;
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Processes that look at the members, one after the other.
struct Looks<'a> {
    /// The arguments of each.
    probe_line: &'a [OsString],
    /// The time for which an answer is waited for.
    patience: Duration,
    /// Those that have not ended.
    stuck: Vec<Child>,
}

impl Looks<'_> {
    /// Has a process look at the members. Returns its failure, if it has one. A directory that hangs may keep the process
    /// from ending, so only its answer is waited for.
    fn look(&mut self) -> Result<Option<Failure>, Failure> {
        let cannot = |error| Failure::environment(format!("cannot look at the members: {error}"));
        // One whose state cannot be asked for counts as stuck.
        self.stuck
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        if self.stuck.len() >= MOST_STUCK {
            return Ok(Some(too_few(Failure::environment(
                "directories hang, and so do the processes that look at them",
            ))));
        }
        let mut child = program()
            .args(self.probe_line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(cannot)?;
        let output = child.stdout.take();
        self.stuck.push(child);
        let (sender, answer) = mpsc::channel();
        thread::Builder::new()
            .name("look".to_owned())
            .spawn(move || {
                let mut line = String::new();
                let read = output.map(|output| BufReader::new(output).read_line(&mut line));
                // Nothing waits any more if this took too long.
                let _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(line));
            })
            .map_err(cannot)?;
        let Ok(line) = answer.recv_timeout(self.patience) else {
            return Ok(Some(too_few(Failure::environment(
                "the look at the members takes too long: a directory hangs",
            ))));
        };
        serde_json::from_str(&line.unwrap_or_default()).map_err(|_| {
            Failure::environment("the process that looks at the members died without a word")
                .advise("run the same command without --wait-for-members to see why")
        })
    }
}

/// Says whether this process is to look, and to mount nothing.
pub(in crate::cli) fn is_probe(arguments: &MountArguments) -> bool {
    arguments.service.probe
}

/// Looks whether enough of the directories `typed` are there, and prints the failure if not, as JSON.
///
/// # Errors
///
/// If that cannot be printed.
pub(in crate::cli) fn probe(
    typed: &[PathBuf],
    access: Access,
    member_timeout: Duration,
) -> Result<Outcome, Failure> {
    let (directories, refused) = Directories::sort(typed, member_timeout, Silent::default());
    let found = match refused.into_iter().next() {
        Some((_, failure)) => Err(failure),
        None => open(directories, access, member_timeout),
    };
    terminal::json_line(&found.err()).map_err(Failure::environment)?;
    Ok(Outcome::Done)
}

/// Opens the membership, and gives it up again.
fn open(directories: Directories, access: Access, member_timeout: Duration) -> Result<(), Failure> {
    let directories = directories.not_none().map_err(too_few)?;
    let survey = Survey::begin(
        &SandboxArguments::default(),
        &directories,
        CommandWork::Repair,
    )?;
    survey.narrow(&directories, &[])?;
    let (stores, _) = usable_stores(&directories, member_timeout);
    let executor = executor(member_timeout);
    match Members::open(stores, access, Arc::clone(&executor)) {
        Ok(members) => {
            members.release();
            Ok(())
        }
        // The mount itself waits for these.
        Err(
            MembersError::InUse { .. }
            | MembersError::HeldUp { .. }
            | MembersError::PartlyInUse { .. },
        ) => Ok(()),
        Err(error) => {
            let is_early = matches!(
                error,
                MembersError::NoMember { .. } | MembersError::NoDirectory
            );
            let failure = Failure::from(VolumeFailure::from(&error));
            Err(if is_early { too_few(failure) } else { failure })
        }
    }
}

/// Makes a failure one that members may end which are yet to come.
fn too_few(failure: Failure) -> Failure {
    Failure {
        fault: Fault::TooFew,
        ..failure
    }
}
