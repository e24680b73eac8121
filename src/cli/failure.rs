//! The end of a command: exit codes, and errors of one line with a second that says what to do.

use std::fmt::Display;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::terminal;
use crate::control::fault::Fault;

/// The result of a command that did its work, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Exit code 0.
    Done,
    /// Exit code 3: done or running, but degraded or incomplete.
    Degraded,
    /// Exit code 4: data is lost.
    Lost,
}

/// The failure of a command to do its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    /// The cause.
    pub(super) fault: Fault,
    /// The failure, in one line.
    pub(super) message: String,
    /// The advice, in one line.
    pub(super) advice: Option<String>,
}

impl Failure {
    /// The caller asked for something that cannot be.
    pub(super) fn usage(message: impl Display) -> Self {
        Self::new(Fault::Usage, message)
    }

    /// The system around us failed.
    pub(super) fn environment(message: impl Display) -> Self {
        Self::new(Fault::Environment, message)
    }

    /// A part was done, and something keeps us from the rest.
    pub(super) fn incomplete(message: impl Display) -> Self {
        Self::new(Fault::Incomplete, message)
    }

    fn new(fault: Fault, message: impl Display) -> Self {
        Self {
            fault,
            message: message.to_string(),
            advice: None,
        }
    }

    /// Returns the exit code of a process that ends for it.
    pub(super) fn exit_code(fault: Fault) -> u8 {
        match fault {
            Fault::Usage => 1,
            Fault::Environment | Fault::TooFew | Fault::Unreadable => 2,
            Fault::Incomplete => 3,
            Fault::Loss => 4,
        }
    }

    /// Adds what to do about it.
    pub(super) fn advise(mut self, advice: impl Display) -> Self {
        self.advice = Some(advice.to_string());
        self
    }

    /// Prints it on standard error.
    pub(super) fn print(&self) {
        terminal::error_lines(&self.message, self.advice.as_ref());
    }
}

impl Outcome {
    /// Returns the exit code of a process that ends with it.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Degraded => 3,
            Self::Lost => 4,
        }
    }
}

impl From<Fault> for ExitCode {
    fn from(fault: Fault) -> Self {
        Self::from(Failure::exit_code(fault))
    }
}

/// Prints a warning on standard error.
pub(super) fn warn(text: impl Display) {
    terminal::error_lines(format_args!("warning: {text}"), None::<&str>);
}

/// Prints a warning on standard error, and advice on a second line.
pub(super) fn warn_and_advise(text: impl Display, advice: impl Display) {
    terminal::error_lines(format_args!("warning: {text}"), Some(advice));
}
