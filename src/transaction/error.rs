//! The reasons why something could not be read, written or made durable.

use std::io;
use std::sync::Arc;

use crate::codec::CodecError;
use crate::coding::EngineError;
use crate::format::FormatError;
use crate::membership::{MembersError, Remedy, VolumeStep};
use crate::metadata::{MetaError, RecordError};
use crate::stripes::{OpenError, StripeError};
use crate::workers::WorkersError;

/// The reason why something could not be read, written or made durable.
///
/// Cheap to clone, so that all callers who shared a commit learn its outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// The members have no room. Nothing that was accepted is at risk; deleting makes room.
    #[error("no space left on the members")]
    NoSpace,

    /// The volume was opened for reading.
    #[error("the volume is open for reading only")]
    ReadOnly,

    /// Making things durable failed, so that nothing written since the last success can be trusted
    /// to survive. The volume stays readable.
    #[error("the volume is read-only since a failed commit: {reason}")]
    Poisoned {
        /// The cause.
        reason: Arc<str>,
    },

    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,

    /// A record of the index does not decode.
    #[error("a record of the index is damaged")]
    Format(#[from] FormatError),

    /// An operation on stripes failed.
    #[error(transparent)]
    Stripes(StripeError),

    /// An operation on the index or the journal failed.
    #[error(transparent)]
    Meta(Arc<MetaError>),

    /// An operation on the members as a whole failed.
    #[error(transparent)]
    Members(Arc<MembersError>),

    /// The volume's code is not available.
    #[error(transparent)]
    Codec(#[from] CodecError),

    /// The engine asked for is not available.
    #[error(transparent)]
    Engine(#[from] EngineError),

    /// The system has no threads left to compute parity on.
    #[error(transparent)]
    Workers(#[from] WorkersError),

    /// The system has no threads left, or no memory for their stacks.
    #[error("cannot start a thread: {0}")]
    Threads(Arc<io::Error>),
}

impl From<OpenError> for CommitError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Codec(error) => Self::Codec(error),
            OpenError::Threads(error) => Self::Threads(Arc::new(error)),
        }
    }
}

impl From<StripeError> for CommitError {
    fn from(error: StripeError) -> Self {
        match error {
            StripeError::NoSpace { .. } => Self::NoSpace,
            StripeError::ReadOnly => Self::ReadOnly,
            StripeError::Closed => Self::Closed,
            other => Self::Stripes(other),
        }
    }
}

impl From<MetaError> for CommitError {
    fn from(error: MetaError) -> Self {
        Arc::new(error).into()
    }
}

impl From<Arc<MetaError>> for CommitError {
    fn from(error: Arc<MetaError>) -> Self {
        match &*error {
            // A full journal has no space either, and the commit goes on to the index.
            MetaError::NoSpace | MetaError::JournalFull => Self::NoSpace,
            MetaError::ReadOnly => Self::ReadOnly,
            MetaError::Closed => Self::Closed,
            _ => Self::Meta(error),
        }
    }
}

impl From<RecordError> for CommitError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Format(error) => Self::Format(error),
            RecordError::Meta(error) => error.into(),
        }
    }
}

impl From<MembersError> for CommitError {
    fn from(error: MembersError) -> Self {
        Self::Members(Arc::new(error))
    }
}

impl CommitError {
    /// Returns the remedy, where there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Members(error) => error.remedy(),
            Self::Meta(error) => error.remedy(),
            Self::NoSpace => Some(VolumeStep::MakeRoom.into()),
            Self::Poisoned { .. } => Some(VolumeStep::CheckAndRemount.into()),
            Self::ReadOnly => Some(VolumeStep::MountWritable.into()),
            Self::Closed
            | Self::Format(_)
            | Self::Stripes(_)
            | Self::Codec(_)
            | Self::Engine(_)
            | Self::Workers(_)
            | Self::Threads(_) => None,
        }
    }
}
