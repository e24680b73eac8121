//! `cauchyfs status`.

use std::path::{Path, PathBuf};

use cauchyfs_sandbox::calls::CommandWork;

use super::args::StatusArguments;
use super::client::{self, Connection, Peer};
use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::{Failure, Outcome, warn_and_advise};
use super::held::Keeper;
use super::mounts;
use super::sandbox::Survey;
use super::shell::quoted_path;
use super::superseded;
use super::survey::survey_members;
use super::terminal;
use crate::control::exchange::BRIEF_TIMEOUT;
use crate::control::fault::Fault;
use crate::control::protocol::{Answer, Request};
use crate::control::report::StatusReport;
use crate::control::summary::blank_report;
use crate::control::volume::Volume;
use crate::control::volume_failure::VolumeFailure;
use crate::fuse::mountinfo::{self, MountEntry};

/// Shows how a volume is, mounted or not.
///
/// # Errors
///
/// If there is no volume where it was looked for, or it does not answer.
pub(super) fn run(arguments: &StatusArguments) -> Result<Outcome, Failure> {
    let FoundVolume {
        report,
        mountpoint,
        best,
    } = find(arguments)?;
    if arguments.json {
        terminal::json(&report).map_err(Failure::environment)?;
    } else {
        terminal::report(&report.for_people(mountpoint.as_deref()));
    }
    Ok(report.outcome().max(best))
}

/// The report on a volume that was found.
struct FoundVolume {
    report: StatusReport,
    /// The place where it is mounted.
    mountpoint: Option<PathBuf>,
    /// The best end of the command.
    best: Outcome,
}

impl FoundVolume {
    fn mounted(report: StatusReport, mountpoint: &Path) -> Self {
        Self {
            report,
            mountpoint: Some(mountpoint.to_owned()),
            best: Outcome::Done,
        }
    }

    /// A volume whose mount was taken away, and that something keeps: no command reaches it at its mountpoint.
    fn held(report: StatusReport) -> Self {
        Self {
            report,
            mountpoint: None,
            best: Outcome::Degraded,
        }
    }
}

fn find(arguments: &StatusArguments) -> Result<FoundVolume, Failure> {
    if let [path] = arguments.paths.as_slice() {
        if let Some(found) = of_mount(path)? {
            return Ok(found);
        }
        if let Some(found) = of_mount_taken_away(path)? {
            return Ok(found);
        }
    }
    let directories = find_directories(arguments)?;
    if let Some(entry) = mounts::mount_using(&directories, MEMBER_TIMEOUT) {
        let report = client::live_report(&entry.mountpoint, &entry)?;
        refuse_others(&directories, &report, &entry.mountpoint)?;
        return Ok(FoundVolume::mounted(report, &entry.mountpoint));
    }
    if let Some(daemon) = mounts::unlisted_using(&directories, MEMBER_TIMEOUT)
        && let Ok(connection) = daemon.connect(BRIEF_TIMEOUT)
        && let Some(report) = of_held(connection, daemon.mountpoint())?
    {
        refuse_others(&directories, &report, daemon.mountpoint())?;
        return Ok(FoundVolume::held(report));
    }
    Ok(FoundVolume {
        report: of_unmounted(arguments, &directories)?,
        mountpoint: None,
        best: Outcome::Done,
    })
}

fn find_directories(arguments: &StatusArguments) -> Result<Directories, Failure> {
    for path in &arguments.paths {
        if mount_of_ours(path)?.is_some() {
            let shown = path.display();
            return Err(Failure::usage(format!(
                "{shown} is where a volume is mounted, and is given with other paths"
            ))
            .advise(format!(
                "give it alone: `cauchyfs status {}`",
                quoted_path(path)
            )));
        }
    }
    Directories::find(&arguments.paths)
}

/// Returns the report of directories that no daemon has.
fn of_unmounted(
    arguments: &StatusArguments,
    directories: &Directories,
) -> Result<StatusReport, Failure> {
    let survey = Survey::begin(&arguments.sandbox, directories, CommandWork::Read)?;
    let elsewhere = superseded::places(directories, MEMBER_TIMEOUT);
    survey.narrow(directories, &elsewhere)?;
    let volume = match Volume::open_to_look(directories) {
        Ok(volume) => volume,
        // The members are there to be listed, whatever became of the records.
        Err(failure)
            if matches!(
                failure.fault,
                Fault::TooFew | Fault::Unreadable | Fault::Loss
            ) =>
        {
            failure.print();
            return survey_with_elsewhere(directories, &failure.message);
        }
        Err(failure) => return Err(failure),
    };
    let measured = volume.maintenance.reaper().measure_segments();
    let elsewhere = superseded::look_elsewhere(volume.transactions.members(), directories);
    let mut report = volume.report(false);
    if let Err(error) = measured {
        let reason = VolumeFailure::from(error).error;
        report.leave_out_capacity(&reason);
    }
    volume.close()?;
    Ok(StatusReport {
        elsewhere,
        ..report
    })
}

/// Says how a volume is of which nothing can be read, for this reason.
fn survey_with_elsewhere(directories: &Directories, reason: &str) -> Result<StatusReport, Failure> {
    let (members, notes) = survey_members(directories, MEMBER_TIMEOUT)?;
    let elsewhere = superseded::look_elsewhere(&members, directories);
    Ok(StatusReport {
        elsewhere,
        ..blank_report(&members, &notes, 0, reason)
    })
}

/// Refuses directories beside those of a mounted volume that are none of it.
fn refuse_others(
    directories: &Directories,
    report: &StatusReport,
    mountpoint: &Path,
) -> Result<(), Failure> {
    let is_member = |path: &&PathBuf| {
        let mut members = report
            .members
            .iter()
            .filter_map(|member| member.path.as_ref());
        members.any(|member| Path::new(member) == path.as_path())
    };
    let (ours, others): (Vec<&PathBuf>, Vec<_>) = directories.present.iter().partition(is_member);
    if others.is_empty() {
        return Ok(());
    }
    let listed = |paths: &[&PathBuf]| {
        let shown = paths.iter().map(|path| path.display().to_string());
        shown.collect::<Vec<_>>().join(", ")
    };
    Err(Failure::usage(format!(
        "of the volume mounted at {} are {}, and not {}",
        mountpoint.display(),
        listed(&ours),
        listed(&others)
    ))
    .advise("give the directories of one volume, or its mountpoint"))
}

/// Returns the report of the mount at `path`, or `None` if nothing of ours is mounted there.
fn of_mount(path: &Path) -> Result<Option<FoundVolume>, Failure> {
    let Some(entry) = mount_of_ours(path)? else {
        return Ok(None);
    };
    let mountpoint = &entry.mountpoint;
    let report = client::live_report(mountpoint, &entry)?;
    Ok(Some(FoundVolume::mounted(report, mountpoint)))
}

/// Returns the report of the volume whose mount at `path` was taken away, if something keeps that mount.
fn of_mount_taken_away(path: &Path) -> Result<Option<FoundVolume>, Failure> {
    let Ok(mountpoint) = mountinfo::locate(path) else {
        return Ok(None);
    };
    let Ok(Peer::Daemon(daemon)) = client::find_peer(&mountpoint, None, BRIEF_TIMEOUT) else {
        return Ok(None);
    };
    let report = of_held(daemon, &mountpoint)?;
    Ok(report.map(FoundVolume::held))
}

/// Returns the report of a daemon whose mount was taken away, if something keeps that mount; says what does.
fn of_held(daemon: Connection, mountpoint: &Path) -> Result<Option<StatusReport>, Failure> {
    let Some(keeper) = Keeper::of(daemon.device()) else {
        return Ok(None);
    };
    match client::ask(daemon, &Request::Status)? {
        Answer::Status(report) => {
            warn_and_advise(
                format_args!(
                    "the mount at {} was taken away, and its daemon goes on serving it: {}",
                    mountpoint.display(),
                    keeper.describe()
                ),
                keeper.remedy(),
            );
            Ok(Some(*report))
        }
        _ => Err(client::beside_the_point(mountpoint)),
    }
}

/// Returns the mount at `path`, if it is one of ours.
fn mount_of_ours(path: &Path) -> Result<Option<MountEntry>, Failure> {
    let Ok(mountpoint) = mountinfo::locate(path) else {
        return Ok(None);
    };
    let entry = mountinfo::mount_at(&mountpoint)
        .map_err(|error| Failure::environment(format!("cannot read the mount table: {error}")))?;
    Ok(entry.filter(MountEntry::is_ours))
}
