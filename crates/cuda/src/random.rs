//! The interface to decode messages of the random code on a device.

use cauchyfs_codec::rateless::RatelessError;

use crate::DeviceError;

/// The reason why a device did not decode messages of the random code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The device failed. Targets are unspecified then.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The messages do not fit their description.
    #[error(transparent)]
    Messages(#[from] RatelessError),
}
