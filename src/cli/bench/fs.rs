//! `cauchyfs bench fs`.

mod memory;
mod volume;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::arguments::FsArguments;
use super::progress_bar;
use crate::bench::fs::{
    self as bench, ColumnReport, Columns, FsBenchError, FsReport, FsSite, LeftOut, Load, Wake,
};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::size::format_size;
use crate::cli::terminal;
use crate::fuse::Transport;

use memory::MemoryMount;
use volume::{MeasuredVolume, PlainPlaces};

/// A directory to measure, and what is known of it.
#[derive(Debug)]
struct MeasuredDirectory {
    directory: PathBuf,
    transport: Option<Transport>,
    /// The member that it was found by.
    member: Option<u16>,
}

/// The directories to measure. Dropping it removes the sites before the mounts that some of them are on, because fields
/// are dropped in this order.
struct Bench {
    sites: Columns<FsSite>,
    /// The mounts of FUSE alone and of plain files.
    _mounts: [Option<MemoryMount>; 2],
    places: Columns<MeasuredDirectory>,
    left_out: Vec<LeftOut>,
}

/// Measures a directory, and beside it the directory below, the limit of FUSE, and that of plain files if it is asked for.
///
/// # Errors
///
/// If the directory cannot be measured. A column beside it is left out instead, unless it was asked for.
pub(super) fn run(arguments: &FsArguments) -> Result<Outcome, Failure> {
    let load = Load {
        size: arguments.size,
        seconds: Duration::try_from_secs_f64(arguments.seconds).unwrap_or(Duration::MAX),
        jobs: arguments.jobs,
    };
    if let Some(transport) = &arguments.serve {
        return memory::serve(
            &arguments.directory,
            transport,
            &load,
            &arguments.plain_files,
        );
    }
    let stop = stop_on_signals().map_err(Failure::environment)?;
    let mut bench = Bench::prepare(arguments, &load)?;
    let wake = Wake::measure().map_err(Failure::environment)?;
    let bar = progress_bar();
    let rows = bench::run(&load, &mut bench.sites, &stop, |job, total| {
        bar.set_length(total as u64);
        bar.set_message(job.name());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let rows = rows.map_err(failure)?;
    let columns = bench.columns();
    let report = FsReport {
        columns,
        left_out: std::mem::take(&mut bench.left_out),
        size_bytes: load.size,
        seconds: arguments.seconds,
        rows,
        wake,
    };
    // The report comes first, because removing a file may fail.
    if arguments.json {
        terminal::json(&report).map_err(Failure::environment)?;
    } else {
        terminal::report(&report.to_string());
    }
    bench.sites.try_map(FsSite::remove).map_err(failure)?;
    Ok(Outcome::Done)
}

impl Bench {
    fn prepare(arguments: &FsArguments, load: &Load) -> Result<Self, Failure> {
        let directory = existing_directory(&arguments.directory)?;
        let volume = MeasuredVolume::at(&directory);
        let transport = volume.transport();
        let wanted = arguments.plain.then(|| volume.plain_places(load));
        let plain_places = wanted.transpose()?;
        let directory = MeasuredDirectory {
            directory,
            transport,
            member: None,
        };
        let site = FsSite::create(&directory.directory, load).map_err(failure)?;
        let mut left_out = Vec::new();
        let mut leave_out = |column, reason| left_out.push(LeftOut { column, reason });
        let below = match &arguments.below {
            Some(path) => Some(below_asked_for(path, load)?),
            None => below_of(&volume, load)
                .map_err(|reason| leave_out("below", reason))
                .ok(),
        };
        let (below_site, below) = below.unzip();
        let (fuse_mount, (fuse_site, fuse)) = match MemoryMount::with_site(transport, load, None) {
            Ok((mount, fuse)) => (Some(mount), Some(fuse).unzip()),
            Err(reason) => {
                leave_out("fuse", reason);
                (None, (None, None))
            }
        };
        let plain = plain_places.map(|places| plain_asked_for(transport, load, &places));
        let (plain_mount, plain) = plain.transpose()?.unzip();
        let (plain_site, plain) = plain.unzip();
        Ok(Self {
            sites: Columns {
                directory: site,
                below: below_site,
                fuse: fuse_site,
                plain: plain_site,
            },
            _mounts: [fuse_mount, plain_mount],
            places: Columns {
                directory,
                below,
                fuse,
                plain,
            },
            left_out,
        })
    }

    fn columns(&self) -> Columns<ColumnReport> {
        let (sites, places) = (&self.sites, &self.places);
        let both = |site: &Option<FsSite>, place: &Option<MeasuredDirectory>| {
            let both = site.as_ref().zip(place.as_ref());
            both.map(|(site, place)| column(site, place))
        };
        Columns {
            directory: column(&sites.directory, &places.directory),
            below: both(&sites.below, &places.below),
            fuse: both(&sites.fuse, &places.fuse),
            plain: both(&sites.plain, &places.plain),
        }
    }
}

fn column(site: &FsSite, place: &MeasuredDirectory) -> ColumnReport {
    let mount = volume::mount_of(&place.directory);
    ColumnReport {
        path: place.directory.display().to_string(),
        filesystem: mount.map_or_else(|| "unknown".to_owned(), |mount| mount.fs_type),
        transport: place.transport.map(|transport| match transport {
            Transport::Uring => "uring",
            Transport::Classic => "classic",
        }),
        member: place.member,
        direct: site.is_direct(),
    }
}

/// Returns a flag that is set when the user stops the program. A user who does not want to wait for the end of a call
/// stops it again, and it ends at once.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Returns the path of a directory, free of symlinks.
fn existing_directory(path: &Path) -> Result<PathBuf, Failure> {
    let shown = path.display();
    let look = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::usage(format!("cannot find {shown}: {error}"))
        }
        _ => Failure::environment(format!("cannot look at {shown}: {error}"))
            .advise("if the daemon of a volume is dead there, mount the volume again"),
    };
    let found = fs::canonicalize(path).map_err(look)?;
    if !fs::metadata(&found).map_err(look)?.is_dir() {
        return Err(Failure::usage(format!("{shown} is no directory"))
            .advise("name a directory, for example where a volume is mounted"));
    }
    Ok(found)
}

/// Makes a site in the directory that the user names for the column `below`.
fn below_asked_for(path: &Path, load: &Load) -> Result<(FsSite, MeasuredDirectory), Failure> {
    let directory = existing_directory(path)?;
    let site = FsSite::create(&directory, load).map_err(failure)?;
    let place = MeasuredDirectory {
        directory,
        transport: None,
        member: None,
    };
    Ok((site, place))
}

/// Makes a site on the filesystem of a member; returns a sentence if there is none.
fn below_of(volume: &MeasuredVolume, load: &Load) -> Result<(FsSite, MeasuredDirectory), String> {
    let place = volume.place_below()?;
    let site = FsSite::create(&place.directory, load).map_err(|error| {
        let failure = failure(error);
        format!(
            "{}; `--below DIR2` names another directory",
            failure.message
        )
    })?;
    Ok((site, place))
}

/// Mounts the filesystem in memory that also writes plain files, and makes a site on it.
fn plain_asked_for(
    transport: Option<Transport>,
    load: &Load,
    places: &PlainPlaces,
) -> Result<(MemoryMount, (FsSite, MeasuredDirectory)), Failure> {
    MemoryMount::with_site(transport, load, Some(places)).map_err(|reason| {
        Failure::environment(format!("`--plain` cannot be measured: {reason}"))
            .advise("without `--plain` the other columns are measured")
    })
}

fn failure(error: FsBenchError) -> Failure {
    match error {
        FsBenchError::NoSpace { path, free, needed } => Failure::environment(format!(
            "{} has {} free, and the jobs need {}",
            path.display(),
            format_size(free),
            format_size(needed)
        ))
        .advise("a smaller `--size` needs less"),
        FsBenchError::Interrupted => Failure::incomplete(error),
        FsBenchError::Io { .. } => Failure::environment(error),
    }
}
