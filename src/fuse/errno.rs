//! The one table of errors and what they are to a caller.

use rustix::io::Errno;

use crate::fs::FsError;
use crate::transaction::CommitError;

/// Returns the errno that the reply carries.
///
/// No arm is `_`: a new variant must choose.
pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NoSpace => Errno::NOSPC,
        FsError::QuotaExceeded => Errno::DQUOT,
        FsError::CrossesQuota => Errno::XDEV,
        FsError::StillCounting => Errno::BUSY,
        FsError::NoQuota => Errno::SRCH,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::FileTooBig => Errno::FBIG,
        FsError::PermissionDenied => Errno::ACCESS,
        FsError::NotPermitted | FsError::Interlocked => Errno::PERM,
        FsError::ReadOnly => Errno::ROFS,
        FsError::NoData => Errno::NODATA,
        FsError::Range => Errno::RANGE,
        FsError::TooBig => Errno::TOOBIG,
        FsError::Invalid => Errno::INVAL,
        FsError::Unsupported => Errno::OPNOTSUPP,
        FsError::BadHandle => Errno::BADF,
        FsError::NoSuchOffset => Errno::NXIO,
        FsError::FailedWriteback { .. }
        | FsError::Corrupt { .. }
        | FsError::Io(_)
        | FsError::Format(_) => Errno::IO,
        FsError::Storage(error) => storage_errno(error),
    }
}

fn storage_errno(error: &CommitError) -> Errno {
    match error {
        CommitError::NoSpace => Errno::NOSPC,
        CommitError::ReadOnly | CommitError::Poisoned { .. } => Errno::ROFS,
        CommitError::Closed
        | CommitError::Format(_)
        | CommitError::Stripes(_)
        | CommitError::Meta(_)
        | CommitError::Members(_)
        | CommitError::Codec(_)
        | CommitError::Engine(_)
        | CommitError::Workers(_)
        | CommitError::Threads(_) => Errno::IO,
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
            (FsError::NotFound, Errno::NOENT),
            (FsError::NoSpace, Errno::NOSPC),
            (FsError::QuotaExceeded, Errno::DQUOT),
            (FsError::CrossesQuota, Errno::XDEV),
            (FsError::Unsupported, Errno::OPNOTSUPP),
            (FsError::Io(std::io::Error::other("x")), Errno::IO),
            (FsError::Storage(CommitError::NoSpace), Errno::NOSPC),
            (FsError::Storage(CommitError::Closed), Errno::IO),
            (FsError::Storage(poisoned), Errno::ROFS),
        ] {
            assert_eq!(errno(&error), expected, "{error}");
        }
    }
}
