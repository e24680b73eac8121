//! System calls as all of a directory makes them.

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

/// Repeats a system call for as long as signals interrupt it.
pub(super) fn retry<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(call)
}

/// Mode bits of new files: their owner alone.
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o600);

/// Mode bits of new subdirectories.
pub(super) const DIR_MODE: Mode = Mode::from_raw_mode(0o700);

/// `statat` and others never follow a link in the last component.
pub(super) const NO_FOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;
