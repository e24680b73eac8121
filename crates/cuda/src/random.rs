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

/// The way by which packets come to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketPath {
    /// All packets are copied to the device.
    Copied,
    /// The device reads the packets that it uses from pinned memory by itself, and leaves out those that it does not
    /// need. Packets that it cannot read so are copied.
    Read,
}
