//! The filesystem in memory: the process that serves it, and this end of it.
//!
//! It has a process of its own, as the daemon of a volume has. Besides, the process that measures can then be killed at
//! any time. One process that waits for itself could not end: its connection to the kernel would stay open.
//!
//! The serving process ends when its standard input does, and takes the mount and the mountpoint away. So they go even
//! if the process that measures is killed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::volume::PlainPlaces;
use super::{MeasuredDirectory, failure};
use crate::bench::fs::{FsSite, Load};
use crate::cli::bench::arguments::PlainArguments;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::size::format_size;
use crate::control::mounter::Mounting;
use crate::control::process::program;
use crate::fuse::mount::{Mount, MountFlavor, Mounter, Unmount};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::fuse::{
    OnFailure, PlainFiles, PlainShape, ServeOptions, Serving, Transport, TransportChoice, one_line,
    serve_memory,
};

/// The beginning of the name of a mountpoint.
const MOUNTPOINT: &str = "cauchyfs-bench-fuse-";

/// Room beyond what the jobs need, so that no rounding matters.
const SPARE: u64 = 1 << 20;

/// A message from the serving process, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum News {
    /// The mount is usable.
    Ready { transport: Transport },
    /// It is not going to be, for this reason.
    Failed(String),
}

/// The mount of the filesystem in memory.
#[derive(Debug)]
pub(super) struct MemoryMount {
    mountpoint: PathBuf,
    /// None if it could not be started.
    server: Option<Child>,
}

impl MemoryMount {
    /// Mounts it and makes a site on it. Requests come on the `wanted` way, that of the volume. Bytes also go into plain
    /// files in the places `plain`.
    ///
    /// # Errors
    ///
    /// A sentence, if it cannot be mounted.
    pub(super) fn with_site(
        wanted: Option<Transport>,
        load: &Load,
        plain: Option<&PlainPlaces>,
    ) -> Result<(Self, (FsSite, MeasuredDirectory)), String> {
        refuse_without_memory(load)?;
        let (memory, transport) = Self::start(wanted, load, plain)?;
        let directory = memory.mountpoint.clone();
        let site = FsSite::create(&directory, load).map_err(|error| failure(error).message)?;
        let place = MeasuredDirectory {
            directory,
            transport: Some(transport),
            member: None,
        };
        Ok((memory, (site, place)))
    }

    fn start(
        wanted: Option<Transport>,
        load: &Load,
        plain: Option<&PlainPlaces>,
    ) -> Result<(Self, Transport), String> {
        let mountpoint =
            make_mountpoint().map_err(|error| format!("no mountpoint can be made: {error}"))?;
        let transport = match wanted {
            Some(Transport::Classic) => "classic",
            Some(Transport::Uring) | None => "auto",
        };
        let size = load.size.to_string();
        let words = ["bench", "fs", "--serve", transport, "--size", &size].map(OsStr::new);
        let mut memory = Self {
            mountpoint,
            server: None,
        };
        let server = program()
            .args(words)
            .args(plain.map(plain_words).unwrap_or_default())
            .arg(&memory.mountpoint)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the process that measures.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("its process cannot be started: {error}"))?;
        let server = memory.server.insert(server);
        let mut line = String::new();
        if let Some(pipe) = server.stdout.take() {
            let read = BufReader::new(pipe).read_line(&mut line);
            read.map_err(|error| format!("its process cannot be heard: {error}"))?;
        }
        match serde_json::from_str(&line) {
            Ok(News::Ready { transport }) => Ok((memory, transport)),
            Ok(News::Failed(reason)) => Err(reason),
            Err(_) => Err("its process ended before the mount was usable".to_owned()),
        }
    }

    /// Unmounts it, and waits for the serving process.
    fn end(&mut self) -> io::Result<()> {
        if let Some(mut server) = self.server.take() {
            drop(server.stdin.take());
            let status = server.wait()?;
            if !status.success() {
                tracing::warn!("the process that served it ended: {status}");
            }
        }
        // The serving process has taken them away, unless it was killed.
        let left = mountinfo::mount_at(&self.mountpoint)?;
        if let Some(entry) = left.filter(MountEntry::is_ours) {
            let unmounted = Mount::of(&entry).unmount(Unmount::Abandoned);
            unmounted.map_err(io::Error::other)?;
        }
        remove_if_there(&self.mountpoint)
    }
}

impl Drop for MemoryMount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            let shown = self.mountpoint.display();
            tracing::warn!("the filesystem in memory at {shown} cannot be taken away: {error}");
        }
    }
}

/// Returns the arguments of the serving process that [`PlainArguments`] reads.
fn plain_words(plain: &PlainPlaces) -> Vec<OsString> {
    let PlainShape {
        parity, unit_bytes, ..
    } = plain.shape;
    let mut words = vec![
        format!("--plain-parity={parity}").into(),
        format!("--plain-unit={unit_bytes}").into(),
    ];
    for directory in &plain.directories {
        words.push("--plain-directory".into());
        words.push(directory.into());
    }
    words
}

/// Makes the plain files that the process which measures wants; none if it wants none.
fn plain_files(wanted: &PlainArguments, load: &Load) -> io::Result<Option<PlainFiles>> {
    let PlainArguments {
        directories,
        parity,
        unit_bytes,
    } = wanted;
    if directories.is_empty() {
        return Ok(None);
    }
    let shape = PlainShape {
        data: directories.len().saturating_sub(*parity),
        parity: *parity,
        unit_bytes: *unit_bytes,
        bytes: load.bytes_at_once(),
    };
    PlainFiles::create(directories, shape).map(Some)
}

/// Serves the filesystem in memory at `mountpoint` until standard input ends.
///
/// # Errors
///
/// If this program did not make the mountpoint, or if the mount cannot be taken away. If it cannot be mounted, the process
/// at the other end is told.
pub(super) fn serve(
    mountpoint: &Path,
    transport: &str,
    load: &Load,
    plain: &PlainArguments,
) -> Result<Outcome, Failure> {
    refuse_other_mountpoint(mountpoint)?;
    let served = serve_until_end(mountpoint, transport, load, plain);
    // The mountpoint also goes if the process at the other end was gone before it could be told anything.
    let removed = remove_if_there(mountpoint).map_err(Failure::environment);
    let serving = served?;
    removed?;
    serving
        .map_or(Ok(()), Serving::wait)
        .map_err(Failure::environment)?;
    Ok(Outcome::Done)
}

/// Mounts the filesystem in memory, tells the process at the other end, and unmounts it once standard input ends. Returns
/// nothing to wait for if it cannot be mounted.
fn serve_until_end(
    mountpoint: &Path,
    transport: &str,
    load: &Load,
    plain: &PlainArguments,
) -> Result<Option<Serving>, Failure> {
    let serving = match mount(mountpoint, transport, load, plain) {
        Ok(serving) => serving,
        Err(reason) => {
            tell(&News::Failed(reason)).map_err(Failure::environment)?;
            return Ok(None);
        }
    };
    let transport = serving.transport();
    let told = tell(&News::Ready { transport });
    let ended = told.and_then(|()| io::copy(&mut io::stdin(), &mut io::sink()));
    let unmounted = Mounting::Itself.unmount(serving.mount(), Unmount::Lazily);
    ended.map_err(Failure::environment)?;
    unmounted.map_err(Failure::environment)?;
    Ok(Some(serving))
}

/// Mounts the filesystem in memory; returns a sentence if that cannot be.
fn mount(
    mountpoint: &Path,
    transport: &str,
    load: &Load,
    plain: &PlainArguments,
) -> Result<Serving, String> {
    let plain = plain_files(plain, load).map_err(|error| error.to_string())?;
    let options = ServeOptions {
        counts: None,
        on_failure: OnFailure::Error,
        flavor: MountFlavor {
            source: "cauchyfs-bench".into(),
            allow_other: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: false,
            sync: false,
            dirsync: false,
            no_atime: false,
        },
        threads: 0,
        writeback: true,
        open_requests: false,
        transport: match transport {
            "classic" => TransportChoice::Classic,
            _ => TransportChoice::Auto,
        },
    };
    let capacity = load.bytes_needed().saturating_add(SPARE);
    serve_memory(capacity, plain, &Mounting::Itself, mountpoint, &options)
        .map_err(|error| one_line(&error))
}

fn tell(news: &News) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(news)?)?;
    out.flush()
}

/// Makes a directory with a unique name among the temporary files.
fn make_mountpoint() -> io::Result<PathBuf> {
    let home = fs::canonicalize(std::env::temp_dir())?;
    let path = home.join(format!("{MOUNTPOINT}{}", Uuid::new_v4()));
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Refuses a directory of the user, which would be removed in the end.
fn refuse_other_mountpoint(mountpoint: &Path) -> Result<(), Failure> {
    let name = mountpoint.file_name().and_then(OsStr::to_str);
    let number = name.and_then(|name| name.strip_prefix(MOUNTPOINT));
    if number.is_some_and(|number| Uuid::parse_str(number).is_ok()) {
        return Ok(());
    }
    Err(Failure::usage("`--serve` is for this program's own use"))
}

fn remove_if_there(directory: &Path) -> io::Result<()> {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Refuses a load for which this machine has too little memory.
fn refuse_without_memory(load: &Load) -> Result<(), String> {
    // The kernel caches the files.
    let needed = load.bytes_at_once();
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available_memory(&text) {
        Some(available) if available < needed => Err(format!(
            "it takes up to {} of memory, and {} are available; a smaller `--size` needs less",
            format_size(needed),
            format_size(available)
        )),
        _ => Ok(()),
    }
}

/// Returns the memory that programs can still have, from `/proc/meminfo`.
fn available_memory(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_and_anything_else_is_none() {
        let text = "MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n";
        assert_eq!(available_memory(text), Some(2 << 20));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 5"] {
            assert_eq!(available_memory(text), None, "{text}");
        }
        let here = fs::read_to_string("/proc/meminfo").unwrap();
        assert!(available_memory(&here).is_some());
    }

    #[test]
    fn no_directory_of_a_user_is_served_and_removed() {
        let own = format!("/tmp/{MOUNTPOINT}{}", Uuid::new_v4());
        assert!(refuse_other_mountpoint(Path::new(&own)).is_ok());
        for foreign in ["/tmp/empty", "/", "/tmp/cauchyfs-bench-fuse-mine", ".."] {
            assert!(
                refuse_other_mountpoint(Path::new(foreign)).is_err(),
                "{foreign}"
            );
        }
    }

    #[test]
    fn a_load_above_the_memory_is_refused_with_a_sentence() {
        let load = Load {
            size: u64::MAX,
            seconds: std::time::Duration::ZERO,
            jobs: 1,
        };
        let reason = refuse_without_memory(&load).unwrap_err();
        assert!(reason.contains("of memory"), "{reason}");
    }
}
