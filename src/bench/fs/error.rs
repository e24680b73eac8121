//! The reasons why a filesystem could not be measured.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a filesystem could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsBenchError {
    /// The system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempt.
        action: &'static str,
        /// The path concerned.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },

    /// The jobs need more room.
    #[error("{} has {free} bytes free, and the jobs need {needed}", path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// The bytes that are free.
        free: u64,
        /// The bytes that the jobs need at most.
        needed: u64,
    },

    /// The user stopped it.
    #[error("interrupted before all jobs were measured")]
    Interrupted,
}

impl FsBenchError {
    /// Returns a function that adds the attempt and the path to an error of the system.
    pub(super) fn of<E: Into<io::Error>>(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}
