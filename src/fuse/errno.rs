//! The one table of errors and what they are to a caller.

use fuser::Errno;

use crate::fs::FsError;
use crate::transaction::CommitError;

/// Returns the errno that the reply carries.
///
/// No arm is `_`: a new variant must choose.
pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::FileTooBig => Errno::EFBIG,
        FsError::PermissionDenied => Errno::EACCES,
        FsError::NotPermitted => Errno::EPERM,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NoData => Errno::ENODATA,
        FsError::Range => Errno::ERANGE,
        FsError::TooBig => Errno::E2BIG,
        FsError::Invalid => Errno::EINVAL,
        FsError::Unsupported => Errno::EOPNOTSUPP,
        FsError::BadHandle => Errno::EBADF,
        FsError::NoSuchOffset => Errno::ENXIO,
        FsError::FailedWriteback { .. } | FsError::Corrupt { .. } | FsError::Format(_) => {
            Errno::EIO
        }
        FsError::Storage(error) => storage_errno(error),
    }
}

fn storage_errno(error: &CommitError) -> Errno {
    match error {
        CommitError::NoSpace => Errno::ENOSPC,
        CommitError::ReadOnly | CommitError::Poisoned { .. } => Errno::EROFS,
        CommitError::Closed
        | CommitError::Format(_)
        | CommitError::Volume(_)
        | CommitError::Meta(_)
        | CommitError::Members(_)
        | CommitError::Codec(_)
        | CommitError::Engine(_)
        | CommitError::Workers(_)
        | CommitError::Threads(_) => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_volume_reach_the_caller_as_errno() {
        let poisoned = CommitError::Poisoned {
            reason: "a sync failed".into(),
        };
        for (error, expected) in [
            (FsError::NotFound, Errno::ENOENT),
            (FsError::NoSpace, Errno::ENOSPC),
            (FsError::Unsupported, Errno::EOPNOTSUPP),
            (FsError::Storage(CommitError::NoSpace), Errno::ENOSPC),
            (FsError::Storage(CommitError::Closed), Errno::EIO),
            (FsError::Storage(poisoned), Errno::EROFS),
        ] {
            assert_eq!(errno(&error).code(), expected.code(), "{error}");
        }
    }
}
