//! `cauchyfs quota`.

mod arguments;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::client::LiveMount;
use super::failure::{Failure, Outcome, warn_and_advise};
use super::progress;
use super::shell::quoted_path;
use super::size::{format_count, format_size};
use super::terminal;
use crate::control::protocol::{Answer, Request};
use crate::control::quota::{QuotaEntry, QuotaRequest};
use crate::fs::QuotaLimits;

pub(super) use arguments::QuotaArguments;
use arguments::{QuotaCommand, SetQuotaArguments};

/// The interval at which a count that is under way is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// The document that `quota show --json` prints.
#[derive(Debug, Serialize)]
struct QuotaDocument<'a> {
    quotas: Vec<ShownQuota<'a>>,
}

/// A quota in a document.
#[derive(Debug, Serialize)]
struct ShownQuota<'a> {
    path: Option<String>,
    bytes_limit: Option<u64>,
    bytes_used: u64,
    files_limit: Option<u64>,
    files_used: u64,
    state: &'a str,
}

/// A directory of a mounted volume.
struct QuotaDirectory {
    mount: LiveMount,
    path: PathBuf,
    /// Its inode number.
    ino: u64,
}

impl QuotaDirectory {
    /// Finds a directory, and the volume in which it lies.
    fn of(directory: &Path) -> Result<Self, Failure> {
        let shown = directory.display();
        let path = fs::canonicalize(directory)
            .map_err(|error| Failure::usage(format!("cannot find {shown}: {error}")))?;
        let found = fs::metadata(&path)
            .map_err(|error| Failure::environment(format!("cannot look at {shown}: {error}")))?;
        if !found.is_dir() {
            return Err(Failure::usage(format!("{shown} is no directory"))
                .advise("a quota limits what lies below a directory"));
        }
        Ok(Self {
            mount: LiveMount::around(&path)?,
            path,
            ino: found.ino(),
        })
    }

    /// Asks for quotas: all, or those that count `directory`.
    fn quotas(&self, directory: Option<u64>) -> Result<Vec<QuotaEntry>, Failure> {
        match self
            .mount
            .ask(&Request::Quota(QuotaRequest::List { directory }))?
        {
            Answer::Quotas(quotas) => Ok(quotas),
            _ => Err(self.mount.beside_the_point()),
        }
    }

    /// Returns the path of the directory of a quota, if it is known.
    fn path_of(&self, quota: &QuotaEntry) -> Option<PathBuf> {
        let path = quota.path.as_deref()?;
        // An empty path would leave a slash behind the mountpoint.
        Some(if path.is_empty() {
            self.mount.mountpoint().to_owned()
        } else {
            self.mount.mountpoint().join(path)
        })
    }

    fn line_of(&self, quota: &QuotaEntry) -> String {
        let path = self.path_of(quota);
        let path = path.map_or_else(
            || format!("inode {}", quota.directory),
            |path| path.display().to_string(),
        );
        format!("{path}: {}", usage_of(quota))
    }
}

/// Returns what a quota counts, and of how much.
fn usage_of(quota: &QuotaEntry) -> String {
    let bytes = format_size(quota.bytes);
    let bytes = match quota.max_bytes {
        Some(limit) => format!("{bytes} of {}", format_size(limit)),
        None => format!("{bytes} (no limit)"),
    };
    let files = match quota.max_files {
        Some(limit) => format!("{} of {}", quota.files, format_count(limit, "file")),
        None => format!("{} (no limit)", format_count(quota.files, "file")),
    };
    let state = match state_of(quota) {
        "counting" => ", still counting",
        "stopped" => ", not all counted",
        _ => "",
    };
    format!("{bytes}, {files}{state}")
}

/// Sets, shows or clears quotas of a mounted volume.
///
/// # Errors
///
/// If the directory lies in no mounted volume, or the daemon cannot do it.
pub(super) fn run(arguments: &QuotaArguments) -> Result<Outcome, Failure> {
    match &arguments.command {
        QuotaCommand::Set(set) => run_set(set),
        QuotaCommand::Show(show) => {
            let place = QuotaDirectory::of(&show.directory)?;
            let is_whole = place.path == place.mount.mountpoint();
            let quotas = place.quotas((!is_whole).then_some(place.ino))?;
            run_show(&place, &quotas, show.json)
        }
        QuotaCommand::Clear(clear) => {
            let place = QuotaDirectory::of(&clear.directory)?;
            let directory = place.ino;
            match place
                .mount
                .ask(&Request::Quota(QuotaRequest::Clear { directory }))?
            {
                Answer::QuotaChanged => Ok(Outcome::Done),
                _ => Err(place.mount.beside_the_point()),
            }
        }
    }
}

fn run_show(place: &QuotaDirectory, quotas: &[QuotaEntry], json: bool) -> Result<Outcome, Failure> {
    if json {
        let shown = quotas.iter().map(|quota| ShownQuota {
            path: place.path_of(quota).map(|path| path.display().to_string()),
            bytes_limit: quota.max_bytes,
            bytes_used: quota.bytes,
            files_limit: quota.max_files,
            files_used: quota.files,
            state: state_of(quota),
        });
        let document = QuotaDocument {
            quotas: shown.collect(),
        };
        terminal::json(&document).map_err(Failure::environment)?;
    } else if quotas.is_empty() {
        terminal::line(format_args!("no quota at {}", place.path.display()));
    } else {
        let lines: Vec<String> = quotas.iter().map(|quota| place.line_of(quota)).collect();
        terminal::report(&terminal::join_lines(&lines));
    }
    Ok(Outcome::Done)
}

/// Returns the state of a quota in one word.
fn state_of(quota: &QuotaEntry) -> &'static str {
    match (quota.counting, quota.at_work) {
        (false, _) => "in_force",
        (true, true) => "counting",
        (true, false) => "stopped",
    }
}

fn run_set(arguments: &SetQuotaArguments) -> Result<Outcome, Failure> {
    let place = QuotaDirectory::of(&arguments.directory)?;
    let request = Request::Quota(QuotaRequest::Set {
        directory: place.ino,
        limits: QuotaLimits {
            bytes: arguments.bytes.unwrap_or_default(),
            files: arguments.files.unwrap_or_default(),
        },
    });
    let Answer::QuotaChanged = place.mount.ask(&request)? else {
        return Err(place.mount.beside_the_point());
    };
    let quota = wait_for_count(&place)?;
    terminal::line(place.line_of(&quota));
    let is_over = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
    if is_over(quota.bytes, quota.max_bytes) || is_over(quota.files, quota.max_files) {
        warn_and_advise(
            "more is used than the limit allows: nothing below the directory can grow, or be made",
            "remove files, or set a higher limit",
        );
    }
    Ok(Outcome::Done)
}

/// Waits until everything below the directory is counted, and returns the quota then.
fn wait_for_count(place: &QuotaDirectory) -> Result<QuotaEntry, Failure> {
    let bar = progress::bar_of("{spinner} {msg}");
    loop {
        let quotas = place.quotas(Some(place.ino))?;
        let own = quotas
            .into_iter()
            .find(|quota| quota.directory == place.ino);
        let Some(quota) = own else {
            return Err(Failure::environment(
                "another command has cleared the quota",
            ));
        };
        match state_of(&quota) {
            "counting" => {
                let files = format_count(quota.files, "file");
                bar.set_message(format!("{files} counted, {}", format_size(quota.bytes)));
                std::thread::sleep(INTERVAL);
            }
            "stopped" => {
                bar.finish_and_clear();
                return Err(Failure::incomplete(
                    "the limits hold, and not everything below the directory is counted",
                )
                .advise(format!(
                    "the log says why; once that is repaired, `cauchyfs quota set {} --bytes {}` goes on",
                    quoted_path(&place.path),
                    quota.max_bytes.map_or_else(|| "none".to_owned(), |limit| limit.to_string()),
                )));
            }
            _ => {
                bar.finish_and_clear();
                return Ok(quota);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_no_thread_continues_is_not_waited_for() {
        let quota = |counting, at_work| QuotaEntry {
            directory: 7,
            path: None,
            max_bytes: None,
            bytes: 0,
            max_files: None,
            files: 1,
            counting,
            at_work,
        };
        assert_eq!(state_of(&quota(false, false)), "in_force");
        assert_eq!(state_of(&quota(true, true)), "counting");
        assert_eq!(state_of(&quota(true, false)), "stopped");
    }

    #[test]
    fn each_limit_stands_beside_what_is_used_of_it() {
        let quota = |max_bytes, max_files| QuotaEntry {
            directory: 7,
            path: None,
            max_bytes,
            bytes: 512,
            max_files,
            files: 1,
            counting: false,
            at_work: false,
        };
        let limited = usage_of(&quota(Some(1 << 30), Some(20)));
        assert_eq!(limited, "512 B of 1.0 GiB, 1 of 20 files");
        let free = usage_of(&quota(None, None));
        assert_eq!(free, "512 B (no limit), 1 file (no limit)");
    }
}
