//! The change of the code of a volume.

use super::Transactions;
use super::error::CommitError;
use crate::membership::StripeCode;

impl Transactions {
    /// Notes another code for new stripes, which counts from the next opening of the volume on; durable on return. Nothing
    /// may be written meanwhile, nor until the volume is opened again.
    ///
    /// Bytes that only the journal has go into their stripes before, and the journal forgets them. They may be too many for
    /// a stripe of another code.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sync`] and of [`Epochs::change_code`](crate::membership::Epochs::change_code). Nothing is changed
    /// then, unless the volume has failed.
    pub fn change_code(&self, wanted: StripeCode) -> Result<(), CommitError> {
        self.members.epochs().check_code(wanted)?;
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        self.commits.checkpoint()?;
        Ok(self.members.changes().change_code(wanted)?)
    }
}
