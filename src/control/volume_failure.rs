//! The failure of an operation on a volume: what a command needs to know of it.

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::fs::FsError;
use crate::fuse::one_line;
use crate::membership::{DirectoryStep, MembersError, Remedy};
use crate::metadata::MetaError;
use crate::store::{StoreError, StoreErrorKind};
use crate::stripes::StripeError;
use crate::transaction::CommitError;

/// The failure of an operation on a volume. It crosses the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeFailure {
    /// The error and its causes, in one line, as the log has it.
    pub(crate) error: String,
    /// The kind of failure, which decides the exit code.
    pub(crate) fault: Fault,
    /// The remedy, where there is one.
    pub(crate) remedy: Option<Remedy>,
}

impl VolumeFailure {
    fn new(error: &dyn std::error::Error, remedy: Option<Remedy>) -> Self {
        Self {
            error: one_line(error),
            fault: Fault::Environment,
            remedy,
        }
    }
}

impl From<StoreError> for VolumeFailure {
    fn from(error: StoreError) -> Self {
        let is_untrusted = error.kind() == StoreErrorKind::Untrusted;
        let remedy =
            is_untrusted.then(|| Remedy::directory(error.label(), DirectoryStep::GiveToRoot));
        Self::new(&error, remedy)
    }
}

impl From<FsError> for VolumeFailure {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Storage(error) => error.into(),
            error => {
                let mut failure = Self::new(&error, None);
                match error {
                    FsError::Corrupt { .. } | FsError::Format(_) => {
                        failure.fault = Fault::Unreadable;
                    }
                    FsError::NoQuota => failure.fault = Fault::Usage,
                    _ => {}
                }
                failure
            }
        }
    }
}

impl From<CommitError> for VolumeFailure {
    fn from(error: CommitError) -> Self {
        Self::from(&error)
    }
}

impl From<&CommitError> for VolumeFailure {
    fn from(error: &CommitError) -> Self {
        if let CommitError::Members(error) = error {
            return Self::from(&**error);
        }
        let mut failure = Self::new(error, error.remedy());
        if is_loss(error) {
            failure.fault = Fault::Loss;
        } else if is_unreadable(error) {
            failure.fault = Fault::Unreadable;
        }
        failure
    }
}

impl From<&MembersError> for VolumeFailure {
    fn from(error: &MembersError) -> Self {
        let mut failure = Self::new(error, error.remedy());
        match error {
            MembersError::TooFew { .. } => failure.fault = Fault::TooFew,
            // The given directories do not belong together, in whatever state the volume is.
            MembersError::MixedVolumes { .. }
            | MembersError::SameMember { .. }
            | MembersError::NoSuchMember { .. }
            | MembersError::TooFewLeft { .. }
            | MembersError::TooFewLeftForDirectories { .. }
            | MembersError::TooFewStay { .. }
            | MembersError::Foreign { .. } => failure.fault = Fault::Usage,
            _ => {}
        }
        failure
    }
}

/// Says whether data, or the record that leads to it, is on none of the online members.
fn is_loss(error: &CommitError) -> bool {
    match error {
        CommitError::Stripes(error) => matches!(error, StripeError::TooFewShards { .. }),
        CommitError::Meta(error) => matches!(
            **error,
            MetaError::NoIndex { .. } | MetaError::OldIndex { .. } | MetaError::LostRecords { .. }
        ),
        _ => false,
    }
}

/// Says whether records are there, and cannot be read.
fn is_unreadable(error: &CommitError) -> bool {
    match error {
        CommitError::Format(_) => true,
        CommitError::Meta(error) => matches!(
            **error,
            MetaError::Poisoned { .. }
                | MetaError::DamagedIndex { .. }
                | MetaError::RefusedRecord { .. }
                | MetaError::TooLarge { .. }
        ),
        _ => false,
    }
}
