//! Failures of operations on a backing directory, and what they say about the directory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::dir::holders::Holder;

/// The class of a failure, as callers distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreErrorKind {
    /// The file is not there.
    NotFound,
    /// The file is there already and was to be new.
    AlreadyExists,
    /// The backing filesystem, or the user's quota on it, is full.
    NoSpace,
    /// The backing filesystem is mounted read-only.
    ReadOnly,
    /// The daemon's user may not do this.
    Denied,
    /// Another holder has the directory locked.
    InUse,
    /// The file under this name is not the directory's own: a hard link, no regular file, one of another user, or one
    /// that was mounted there. Nothing of it was read or changed. A new file can take the name.
    Foreign,
    /// The directory belongs to a user whom this process does not trust, or such a user may write to it.
    Untrusted,
    /// The file ended before the bytes asked for.
    ShortRead,
    /// The directory that was opened is not at its path any more: deleted, moved or unmounted.
    Gone,
    /// Another directory is in the place of the one that was opened.
    Displaced,
    /// A file does not hold any more what was written to it: another program wrote there.
    Overwritten,
    /// The operation did not answer within the timeout. It may still take effect later.
    Hung,
    /// The operation did not answer in a moment, and its caller goes on without it. It may still take effect later.
    Slow,
    /// The power of a simulated machine is off: nothing has an effect any more.
    PowerCut,
    /// The backing filesystem does not know this operation.
    Unsupported,
    /// The name is not one that a store takes; a mistake of the caller.
    InvalidName,
    /// This process, or the whole system, is out of descriptors, memory or threads.
    Exhausted,
    /// Any other failure of the backing filesystem.
    Io,
}

impl StoreErrorKind {
    /// Returns whether the directory lacks the file: there is none, or the one under its name is not its own.
    #[must_use]
    pub fn lacks_file(self) -> bool {
        matches!(self, Self::NotFound | Self::Foreign)
    }
}

/// One failed operation on one backing directory.
///
/// Cheap to clone, so that one failure can be handed to every caller that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{label}: cannot {action} {name}")]
pub struct StoreError {
    kind: StoreErrorKind,
    label: String,
    action: &'static str,
    name: String,
    source: Arc<io::Error>,
}

impl StoreError {
    /// Describes a failure whose kind is known; `source` says in words what was seen.
    #[must_use]
    pub fn new(
        kind: StoreErrorKind,
        label: impl Into<String>,
        action: &'static str,
        name: impl Into<String>,
        source: io::Error,
    ) -> Self {
        Self {
            kind,
            label: label.into(),
            action,
            name: name.into(),
            source: Arc::new(source),
        }
    }

    /// Describes a failed system call, the kind taken from its errno.
    #[must_use]
    pub fn from_io(
        label: impl Into<String>,
        action: &'static str,
        name: impl Into<String>,
        source: io::Error,
    ) -> Self {
        Self::new(classify(&source), label, action, name, source)
    }

    /// The operation did not answer within `timeout`.
    #[must_use]
    pub fn hung(
        label: impl Into<String>,
        action: &'static str,
        name: impl Into<String>,
        timeout: Duration,
    ) -> Self {
        let text = format!("no answer within {} ms", timeout.as_millis());
        let source = io::Error::new(io::ErrorKind::TimedOut, text);
        Self::new(StoreErrorKind::Hung, label, action, name, source)
    }

    /// The operation did not answer in a moment, and is not waited for.
    #[must_use]
    pub fn slow(label: impl Into<String>, action: &'static str, name: impl Into<String>) -> Self {
        let source = io::Error::new(io::ErrorKind::WouldBlock, "no answer in a moment");
        Self::new(StoreErrorKind::Slow, label, action, name, source)
    }

    /// Another process has the directory: `holder`, if it is known.
    #[must_use]
    pub fn in_use(label: impl Into<String>, holder: Option<Holder>) -> Self {
        let source = match holder {
            Some(holder) => io::Error::new(io::ErrorKind::WouldBlock, holder),
            None => Errno::WOULDBLOCK.into(),
        };
        Self::new(StoreErrorKind::InUse, label, "lock", "directory", source)
    }

    /// A file of `label` ended before the `wanted` bytes at `offset`.
    #[must_use]
    pub fn short_read(
        label: impl Into<String>,
        name: impl Into<String>,
        offset: u64,
        wanted: usize,
    ) -> Self {
        let text = format!("the file ends before the {wanted} bytes at {offset}");
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, text);
        Self::new(StoreErrorKind::ShortRead, label, "read", name, source)
    }

    /// Returns the class of the failure.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the label of the store: its path.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the process that has the directory, if that is why it failed, and known.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.source.get_ref()?.downcast_ref()
    }

    /// Returns what was tried: a verb such as `"read"`.
    #[must_use]
    pub fn action(&self) -> &'static str {
        self.action
    }

    /// Returns the file inside the directory, or `"directory"` where none was concerned.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the member itself must be held to have failed.
    ///
    /// False for what a healthy directory answers too. These are: a file that is absent, not its own, too short or
    /// there already; no space; a lock held elsewhere; a name that no store takes; no answer in a moment; and a
    /// shortage on our side.
    #[must_use]
    pub fn is_member_failure(&self) -> bool {
        match self.kind {
            StoreErrorKind::NotFound
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::NoSpace
            | StoreErrorKind::InUse
            | StoreErrorKind::Foreign
            | StoreErrorKind::ShortRead
            | StoreErrorKind::InvalidName
            | StoreErrorKind::Slow
            | StoreErrorKind::Exhausted => false,
            StoreErrorKind::ReadOnly
            | StoreErrorKind::Denied
            | StoreErrorKind::Untrusted
            | StoreErrorKind::Gone
            | StoreErrorKind::Displaced
            | StoreErrorKind::Overwritten
            | StoreErrorKind::Hung
            | StoreErrorKind::PowerCut
            | StoreErrorKind::Unsupported
            | StoreErrorKind::Io => true,
        }
    }

    /// Returns the failure of a sync after all bytes were written. Without space for them the bytes may become durable
    /// later nevertheless, so the directory has failed.
    pub(super) fn of_written(self) -> Self {
        match self.kind {
            StoreErrorKind::NoSpace => self.with_kind(StoreErrorKind::Io),
            _ => self,
        }
    }

    /// Returns the same failure under another kind, where the place knows more than the errno.
    pub(super) fn with_kind(mut self, kind: StoreErrorKind) -> Self {
        self.kind = kind;
        self
    }
}

/// Sorts an errno into the classes that callers act upon.
fn classify(error: &io::Error) -> StoreErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => StoreErrorKind::NotFound,
        Some(Errno::EXIST) => StoreErrorKind::AlreadyExists,
        Some(Errno::NOSPC | Errno::DQUOT) => StoreErrorKind::NoSpace,
        // A descriptor is unfit only for writing, where the file could be opened for nothing else.
        Some(Errno::ROFS | Errno::BADF) => StoreErrorKind::ReadOnly,
        Some(Errno::ACCESS | Errno::PERM) => StoreErrorKind::Denied,
        Some(Errno::AGAIN) => StoreErrorKind::InUse,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => StoreErrorKind::Exhausted,
        Some(Errno::STALE | Errno::NOTCONN | Errno::NODEV | Errno::NXIO | Errno::NOTDIR) => {
            StoreErrorKind::Gone
        }
        Some(Errno::TIMEDOUT) => StoreErrorKind::Hung,
        Some(Errno::OPNOTSUPP | Errno::NOSYS) => StoreErrorKind::Unsupported,
        _ => StoreErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: Errno) -> StoreError {
        StoreError::from_io("/srv/d2", "read", "log.0", io::Error::from(errno))
    }

    #[test]
    fn only_answers_of_a_healthy_directory_spare_the_member() {
        for errno in [
            Errno::NOENT,
            Errno::EXIST,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::AGAIN,
            Errno::MFILE,
            Errno::NOMEM,
        ] {
            assert!(!of(errno).is_member_failure(), "{errno}");
        }
        assert!(!StoreError::short_read("/srv/d2", "chunks/0a", 0, 1).is_member_failure());
        for errno in [
            Errno::IO,
            Errno::ROFS,
            Errno::STALE,
            Errno::PERM,
            Errno::NOTCONN,
        ] {
            assert!(of(errno).is_member_failure(), "{errno}");
        }
    }

    #[test]
    fn the_text_names_the_directory_the_action_and_the_file_and_keeps_the_source() {
        let error = of(Errno::IO);
        assert_eq!(error.to_string(), "/srv/d2: cannot read log.0");
        let source = std::error::Error::source(&error).expect("the errno is the source");
        assert!(
            source.to_string().contains("Input/output error"),
            "{source}"
        );
    }
}
