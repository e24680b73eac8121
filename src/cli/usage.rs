//! `cauchyfs usage`.

use std::path::{Path, PathBuf};

use super::args::UsageArguments;
use super::client::LiveMount;
use super::failure::{Failure, Outcome};
use super::terminal;
use crate::control::protocol::{Answer, Request};

/// Shows where the space of a volume goes, or where a file is.
///
/// # Errors
///
/// If the path lies in no mount of ours, or its daemon does not answer.
pub(super) fn run(arguments: &UsageArguments) -> Result<Outcome, Failure> {
    let path = path_of(arguments);
    let (mount, ino) = LiveMount::holding(&path)?;
    match mount.ask(&Request::Usage { ino })? {
        Answer::VolumeUsage(usage) if ino.is_none() => {
            if arguments.json {
                terminal::json(&usage).map_err(Failure::environment)?;
            } else {
                terminal::report(&usage.for_people());
            }
            Ok(Outcome::Done)
        }
        Answer::FilesUsage(usage) if ino.is_some() => {
            if arguments.json {
                terminal::json(&usage).map_err(Failure::environment)?;
            } else {
                terminal::report(&usage.for_people(&path));
            }
            Ok(usage.outcome())
        }
        _ => Err(mount.beside_the_point()),
    }
}

/// Returns the path that is asked for. One after the mountpoint begins there.
fn path_of(arguments: &UsageArguments) -> PathBuf {
    match &arguments.path {
        Some(path) if path != Path::new("") => arguments.mountpoint.join(path),
        _ => arguments.mountpoint.clone(),
    }
}
