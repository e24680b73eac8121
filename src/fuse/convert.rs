//! Values of the kernel's protocol, and ours.

use crate::fs::{FsError, RenameMode, Whence, XattrMode};

/// Reads a process's supplementary groups; none if it is gone.
pub(super) fn supplementary_groups(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Groups:"))?;
            Some(
                line.split_whitespace()
                    .filter_map(|id| id.parse().ok())
                    .collect(),
            )
        })
        .unwrap_or_default()
}

/// # Errors
///
/// `Invalid` for any combination but the two that POSIX and Linux give a meaning here.
pub(super) fn rename_mode(flags: u32) -> Result<RenameMode, FsError> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(FsError::Invalid),
    }
}

/// # Errors
///
/// `Invalid` unless it is one of the two flags of setxattr(2), or none.
pub(super) fn xattr_mode(flags: i32) -> Result<XattrMode, FsError> {
    match flags {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid),
    }
}

/// # Errors
///
/// `Invalid` for the positions that the kernel works out by itself.
pub(super) fn whence(whence: i32) -> Result<Whence, FsError> {
    match whence {
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(FsError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_the_groups_that_the_kernel_says() {
        let mine = supplementary_groups(std::process::id());
        let kernel = rustix::process::getgroups().unwrap();
        assert_eq!(mine.len(), kernel.len());
        assert_eq!(supplementary_groups(u32::MAX), Vec::<u32>::new());
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        let both = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
        assert!(matches!(rename_mode(both), Err(FsError::Invalid)));
        assert!(matches!(
            rename_mode(libc::RENAME_WHITEOUT),
            Err(FsError::Invalid)
        ));
        assert!(matches!(xattr_mode(3), Err(FsError::Invalid)));
        assert!(matches!(whence(libc::SEEK_SET), Err(FsError::Invalid)));
    }
}
