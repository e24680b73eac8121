//! Values of the kernel's protocol, and ours.

use crate::fs::{FsError, RenameMode, Whence, XattrMode};

/// The flags of a rename that leaves a whiteout and replaces nothing.
const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;

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
/// `Invalid` for any combination that renameat2(2) gives no meaning.
pub(super) fn rename_mode(flags: u32) -> Result<RenameMode, FsError> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout),
        WHITEOUT_NOREPLACE => Ok(RenameMode::WhiteoutNoReplace),
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
    fn a_whiteout_can_be_asked_for_with_and_without_replacing() {
        let mode = |flags| rename_mode(flags).unwrap();
        assert_eq!(mode(libc::RENAME_WHITEOUT), RenameMode::Whiteout);
        assert_eq!(mode(WHITEOUT_NOREPLACE), RenameMode::WhiteoutNoReplace);
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        for flags in [
            libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE,
            libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE,
            WHITEOUT_NOREPLACE | libc::RENAME_EXCHANGE,
            1 << 3,
        ] {
            let refused = rename_mode(flags);
            assert!(matches!(refused, Err(FsError::Invalid)), "{flags:#x}");
        }
        assert!(matches!(xattr_mode(3), Err(FsError::Invalid)));
        assert!(matches!(whence(libc::SEEK_SET), Err(FsError::Invalid)));
    }
}
