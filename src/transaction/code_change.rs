//! The change of the code of a volume.

use super::Transactions;
use super::error::CommitError;
use crate::format::SegmentId;
use crate::membership::StripeCode;

impl Transactions {
    /// Notes another code for new stripes, which counts from the next opening of the volume on; durable on return. Nothing
    /// may be written meanwhile, nor until the volume is opened again.
    ///
    /// 1. Bytes that only the journal has go into their stripes, and the journal forgets them. They may be too many for a
    ///    stripe of another code.
    /// 2. If the stripe unit changes, the index notes which segments have the present one. **Commit**. The note stays true if
    ///    what follows fails.
    /// 3. The superblocks of all members get the new code.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sync`] and of [`Epochs::change_code`](crate::membership::Epochs::change_code). Nothing is changed
    /// then, unless the volume has failed.
    pub fn change_code(&self, wanted: StripeCode) -> Result<(), CommitError> {
        self.members.epochs().check_code(wanted)?;
        self.stripes.writer().retire_segments()?; // step 1
        self.commits.sync()?;
        self.commits.checkpoint()?;
        let unit_bytes = self.members.shape().unit_bytes();
        if wanted.unit_bytes != unit_bytes {
            self.note_unit(unit_bytes)?; // step 2
        }
        Ok(self.members.changes().change_code(wanted)?) // step 3
    }

    /// Notes durably which segments have the present stripe unit. That stays true if the unit does not change after all.
    fn note_unit(&self, unit_bytes: u32) -> Result<(), CommitError> {
        let segments = self.stripes.segments().all();
        let segments: Vec<SegmentId> = segments.iter().map(|segment| segment.id).collect();
        let below = self.records.upcoming_segment();
        let units = self.records.past_units();
        units.note(below, unit_bytes, &segments)?;
        self.commits.sync()
    }
}
