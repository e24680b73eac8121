//! The kinds of failure.

use serde::{Deserialize, Serialize};

/// The cause of a command's failure to do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// Exit code 1: wrong usage.
    Usage,
    /// Exit code 2: the environment or I/O failed.
    Environment,
    /// Exit code 2: there are too few members to read anything, which may be a matter of paths.
    TooFew,
    /// Exit code 2: the records of the volume cannot be read, or make no sense.
    Unreadable,
    /// Exit code 3: it is done in part, and cannot be finished now.
    Incomplete,
    /// Exit code 4: data is lost.
    Loss,
}
