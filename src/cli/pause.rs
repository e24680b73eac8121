//! `cauchyfs pause` and `cauchyfs resume`.

use super::args::{PauseArguments, ResumeArguments};
use super::client::LiveMount;
use super::failure::{Failure, Outcome};
use super::shell::quoted_path;
use super::terminal;
use crate::control::protocol::{Answer, Request};

/// Has the daemon pause its background work.
///
/// # Errors
///
/// If nothing of ours is mounted there, or there is no such work.
pub(super) fn pause(arguments: &PauseArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    let Answer::Paused { was_paused } = mount.ask(&Request::Pause)? else {
        return Err(mount.beside_the_point());
    };
    let state = if was_paused {
        "was paused already"
    } else {
        "pauses"
    };
    let place = quoted_path(mount.mountpoint());
    terminal::line(format_args!(
        "background work {state}; `cauchyfs resume {place}` goes on with it"
    ));
    Ok(Outcome::Done)
}

/// Has the daemon go on with its background work if that is paused, or else with the removal of files that its interlock
/// refused.
///
/// # Errors
///
/// As for [`pause`].
pub(super) fn resume(arguments: &ResumeArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    let Answer::Resumed {
        was_paused,
        was_locked,
        is_locked,
    } = mount.ask(&Request::Resume)?
    else {
        return Err(mount.beside_the_point());
    };
    if was_locked {
        terminal::line("files are removed again, and the interlock counts from nothing");
        return Ok(Outcome::Done);
    }
    terminal::line(if was_paused {
        "background work goes on"
    } else {
        "background work was not paused"
    });
    if is_locked {
        let place = quoted_path(mount.mountpoint());
        terminal::line(format_args!(
            "the interlock still refuses to remove files; if they were to go, `cauchyfs resume {place}` once more"
        ));
    }
    Ok(Outcome::Done)
}
