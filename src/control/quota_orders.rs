//! Carrying out what commands say about quotas.

use super::failure::DaemonFailure;
use super::protocol::Answer;
use super::quota::{QuotaEntry, QuotaRequest};
use crate::format::Ino;
use crate::fs::{Fs, FsError};

/// Does what a request says.
///
/// # Errors
///
/// Those of [`crate::fs::DirectoryQuotas`].
pub(crate) fn answer(fs: &Fs, request: QuotaRequest) -> Result<Answer, DaemonFailure> {
    let quotas = fs.quotas();
    let answered = match request {
        QuotaRequest::Set { directory, limits } => quotas
            .set(Ino(directory), limits)
            .map(|()| Answer::QuotaChanged),
        QuotaRequest::Clear { directory } => {
            quotas.clear(Ino(directory)).map(|()| Answer::QuotaChanged)
        }
        QuotaRequest::List { directory } => quotas
            .list(directory.map(Ino))
            .map(|listed| Answer::Quotas(listed.into_iter().map(QuotaEntry::from).collect())),
    };
    answered.map_err(failure)
}

fn failure(error: FsError) -> DaemonFailure {
    match error {
        FsError::ReadOnly => DaemonFailure::MountedReadOnly,
        error => DaemonFailure::Volume {
            failure: error.into(),
        },
    }
}
