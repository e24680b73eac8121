//! The start of the program as one of the parts that work on alerts.

use std::ffi::OsString;
use std::io;

use super::notice::Wording;
use super::parts::{PROCESS, ProcessPlaces, SUPERVISOR};
use super::{process, supervisor};

/// A part of the program that works beside a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The process that delivers alerts.
    Process(ProcessPlaces),
    /// Its supervisor.
    Supervisor(ProcessPlaces),
}

/// Returns the part that the program was started as, if it is one for alerts.
pub(crate) fn asked_for(given: &[OsString]) -> Option<Asked> {
    let [_, word, config, state] = given else {
        return None;
    };
    let places = ProcessPlaces {
        config: config.into(),
        state: state.into(),
    };
    if word == PROCESS {
        return Some(Asked::Process(places));
    }
    (word == SUPERVISOR).then_some(Asked::Supervisor(places))
}

/// Works as the part that the program was started as, and returns the code with which it ends.
///
/// # Errors
///
/// If it cannot work, or its daemon broke the connection.
pub(crate) fn run(part: &Asked, wording: Wording) -> io::Result<u8> {
    match part {
        Asked::Process(places) => process::run(places, wording),
        Asked::Supervisor(places) => supervisor::run(places).map(|()| 0),
    }
}
