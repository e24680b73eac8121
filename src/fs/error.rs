//! The failures of filesystem calls.

use std::io;

use crate::format::{FormatError, Ino};
use crate::transaction::CommitError;

/// The failure of a filesystem call; nothing was changed unless the variant says otherwise.
///
/// Each variant stands for one errno. The table is at the FUSE edge and matches exhaustively, so a new
/// variant must choose its errno there.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// There is no such name or inode (`ENOENT`).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (`EEXIST`).
    #[error("the name exists")]
    Exists,
    /// A directory is needed here (`ENOTDIR`).
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot take this call (`EISDIR`).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (`ENOTEMPTY`).
    #[error("directory is not empty")]
    NotEmpty,
    /// No placement is left for the bytes, even after making room (`ENOSPC`).
    #[error("no space left on the volume")]
    NoSpace,
    /// A quota of a directory has no room for it (`EDQUOT`).
    #[error("the quota of a directory is used up")]
    QuotaExceeded,
    /// The names lie in different quotas (`EXDEV`): programs such as `mv` copy then.
    #[error("a quota of a directory lies between the two names")]
    CrossesQuota,
    /// Another directory, which has a new quota, is still being counted (`EBUSY`).
    #[error("another directory with a new quota is still being counted")]
    StillCounting,
    /// The directory has no quota (`ESRCH`).
    #[error("the directory has no quota")]
    NoQuota,
    /// The inode has as many links as can be counted (`EMLINK`).
    #[error("too many links")]
    TooManyLinks,
    /// The name or symlink target is too long (`ENAMETOOLONG`).
    #[error("name is too long")]
    NameTooLong,
    /// The range ends beyond the largest file, 2⁶³−1 bytes (`EFBIG`).
    #[error("beyond the largest file size")]
    FileTooBig,
    /// The kind of inode forbids it, for any caller (`EACCES`).
    #[error("access denied")]
    PermissionDenied,
    /// The call is not permitted on this inode (`EPERM`).
    #[error("operation not permitted")]
    NotPermitted,
    /// Too many files were removed within an hour, and the interlock refuses to remove more (`EPERM`).
    #[error("too many files were removed within an hour; `cauchyfs resume` lets more go")]
    Interlocked,
    /// The filesystem is mounted read-only (`EROFS`).
    #[error("filesystem is read-only")]
    ReadOnly,
    /// There is no such extended attribute (`ENODATA`).
    #[error("no such attribute")]
    NoData,
    /// An attribute's name is empty or longer than 255 bytes (`ERANGE`).
    #[error("attribute name out of range")]
    Range,
    /// An attribute's value or a list of attributes is too long (`E2BIG`).
    #[error("attribute value is too big")]
    TooBig,
    /// An argument makes no sense (`EINVAL`).
    #[error("invalid argument")]
    Invalid,
    /// This filesystem does not do that (`EOPNOTSUPP`).
    #[error("operation not supported")]
    Unsupported,
    /// The handle is not open, or not open for this (`EBADF`).
    #[error("bad handle")]
    BadHandle,
    /// There is no data, or no hole, at or behind this offset (`ENXIO`).
    #[error("no such offset")]
    NoSuchOffset,
    /// The writeback of the bytes from a page cache failed (`EIO`): their writer was told.
    #[error("inode {ino}: writing back the bytes at {offset} from the page cache failed")]
    FailedWriteback {
        /// The inode concerned.
        ino: u64,
        /// Offset in the file, in bytes.
        offset: u64,
    },
    /// Records of the index contradict each other (`EIO`). `cauchyfs check` tells more.
    #[error("inode {ino}: {what}")]
    Corrupt {
        /// The inode concerned.
        ino: u64,
        /// The damage of it.
        what: &'static str,
    },
    /// A file below cannot be written (`EIO`). Only the filesystem that a benchmark measures reports this.
    #[error(transparent)]
    Io(io::Error),
    /// A record of the index does not decode (`EIO`).
    #[error("a record of the index is damaged")]
    Format(#[from] FormatError),
    /// The layer below failed (`EIO`, or `EROFS` where that layer has become read-only).
    #[error(transparent)]
    Storage(CommitError),
}

impl From<CommitError> for FsError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::NoSpace => Self::NoSpace,
            CommitError::ReadOnly => Self::ReadOnly,
            other => Self::Storage(other),
        }
    }
}

/// Returns the error for records of an inode that contradict each other.
pub(super) fn corrupt(ino: Ino, what: &'static str) -> FsError {
    FsError::Corrupt { ino: ino.0, what }
}
