//! Quotas of directories, as commands order and see them.

use serde::{Deserialize, Serialize};

use crate::fs::{QuotaLimits, QuotaReport};

/// A quota of a mounted volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaEntry {
    /// The inode number of its directory.
    pub(crate) directory: u64,
    /// The path of the directory below the mountpoint, without a leading slash. Bytes that are no text are replaced.
    pub(crate) path: Option<String>,
    /// The most bytes, if limited.
    pub(crate) max_bytes: Option<u64>,
    /// The bytes below the directory.
    pub(crate) bytes: u64,
    /// The most inodes, if limited.
    pub(crate) max_files: Option<u64>,
    /// The inodes below the directory, and the directory itself.
    pub(crate) files: u64,
    /// True if not everything below the directory is counted yet.
    pub(crate) counting: bool,
    /// True if the daemon counts just now.
    pub(crate) at_work: bool,
}

impl From<QuotaReport> for QuotaEntry {
    fn from(report: QuotaReport) -> Self {
        let path = report.path.as_deref();
        Self {
            directory: report.root.0,
            path: path.map(|path| String::from_utf8_lossy(path).into_owned()),
            max_bytes: report.max_bytes,
            bytes: report.usage.bytes,
            max_files: report.max_files,
            files: report.usage.files,
            counting: report.is_counting,
            at_work: report.is_at_work,
        }
    }
}

/// A request about quotas. Directories are named by their inode numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QuotaRequest {
    /// Give a directory a quota, or other limits.
    Set {
        /// The directory.
        directory: u64,
        /// The limits.
        limits: QuotaLimits,
    },
    /// Take the quota of a directory away.
    Clear {
        /// The directory.
        directory: u64,
    },
    /// Asks for all quotas, or for those that count a directory.
    List {
        /// The directory.
        directory: Option<u64>,
    },
}
