//! Open files as the protocol has them: numbers that the kernel repeats with each request.

use crate::format::Ino;
use crate::fs::{Handle, OpenFlags};

/// The number of a file or directory that the kernel opened without a request. Those that [`crate::fs::Fs`] opens have
/// greater ones.
const OPENED_BY_KERNEL: u64 = 0;

/// The number of a file that CREATE opened for the kernel, for writing only.
const CREATED_TO_WRITE: u64 = u64::MAX;

/// Returns the handle of inode `ino` that has this number. The request says with which flags it was opened, if
/// anything does.
pub(super) fn handle(number: u64, ino: Ino, open_flags: i32) -> Handle {
    match number {
        OPENED_BY_KERNEL => by_kernel(ino, open_flags),
        CREATED_TO_WRITE => by_kernel(ino, open_flags & !libc::O_ACCMODE | libc::O_WRONLY),
        number => Handle::Numbered(number),
    }
}

/// Returns the number of a handle.
pub(super) fn number(handle: Handle) -> u64 {
    match handle {
        Handle::Numbered(number) => number,
        Handle::ByCaller { flags, .. } if flags.write && !flags.read => CREATED_TO_WRITE,
        Handle::ByCaller { .. } => OPENED_BY_KERNEL,
    }
}

/// Returns the handle of a regular file or directory that the kernel opens and closes without a request. It checks by itself
/// that a file may be written to; appending is its own affair, too.
pub(in crate::fuse) fn by_kernel(ino: Ino, open_flags: i32) -> Handle {
    Handle::ByCaller {
        ino,
        flags: OpenFlags {
            append: false,
            ..OpenFlags::from_raw(open_flags)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_went_out() {
        for handle_out in [
            Handle::Numbered(1),
            by_kernel(Ino(7), libc::O_RDWR),
            by_kernel(Ino(7), libc::O_WRONLY),
        ] {
            let back = handle(number(handle_out), Ino(7), libc::O_RDWR);
            assert_eq!(back, handle_out);
        }
    }

    #[test]
    fn a_request_tells_whether_a_file_opened_by_the_kernel_is_synced() {
        let flags = libc::O_WRONLY | libc::O_DSYNC;
        for number in [OPENED_BY_KERNEL, CREATED_TO_WRITE] {
            let Handle::ByCaller { ino, flags } = handle(number, Ino(7), flags) else {
                panic!("{number} is no number of ours");
            };
            assert_eq!((ino, flags.sync, flags.read), (Ino(7), true, false));
        }
    }
}
