//! Errors of mounting and unmounting, in a form that crosses a socket.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fuse::mount::MountError;

/// A [`MountError`] without the mountpoint, which the receiver knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MountRefusal {
    /// [`MountError::Device`]
    Device(SystemError),
    /// [`MountError::Refused`]
    Refused(SystemError),
    /// [`MountError::NoHelper`]
    NoHelper(SystemError),
    /// [`MountError::Helper`]
    Helper(String),
    /// [`MountError::Busy`]
    Busy,
    /// [`MountError::NotOurs`]
    NotOurs,
    /// [`MountError::Stuck`]
    Stuck(SystemError),
}

/// An [`io::Error`] that can be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SystemError {
    errno: Option<i32>,
    text: String,
}

impl From<&io::Error> for SystemError {
    fn from(error: &io::Error) -> Self {
        Self {
            errno: error.raw_os_error(),
            text: error.to_string(),
        }
    }
}

impl From<SystemError> for io::Error {
    fn from(error: SystemError) -> Self {
        let SystemError { errno, text } = error;
        errno.map_or_else(|| Self::other(text), Self::from_raw_os_error)
    }
}

impl From<&MountError> for MountRefusal {
    fn from(error: &MountError) -> Self {
        match error {
            MountError::Device(source) => Self::Device(source.into()),
            MountError::Refused { source, .. } => Self::Refused(source.into()),
            MountError::NoHelper(source) => Self::NoHelper(source.into()),
            MountError::Helper(said) => Self::Helper(said.clone()),
            MountError::Busy(_) => Self::Busy,
            MountError::NotOurs(_) => Self::NotOurs,
            MountError::Stuck { source, .. } => Self::Stuck(source.into()),
        }
    }
}

impl MountRefusal {
    /// Returns the error for a mountpoint.
    pub(crate) fn at(self, mountpoint: &Path) -> MountError {
        let mountpoint = mountpoint.to_owned();
        match self {
            Self::Device(cause) => MountError::Device(cause.into()),
            Self::Refused(cause) => MountError::Refused {
                mountpoint,
                source: cause.into(),
            },
            Self::NoHelper(cause) => MountError::NoHelper(cause.into()),
            Self::Helper(said) => MountError::Helper(said),
            Self::Busy => MountError::Busy(mountpoint),
            Self::NotOurs => MountError::NotOurs(mountpoint),
            Self::Stuck(cause) => MountError::Stuck {
                mountpoint,
                source: cause.into(),
            },
        }
    }
}
