//! Superblocks, journals and the copies of the index.

use std::ops::ControlFlow;

use super::Scrubber;
use crate::format::record::Scrub;
use crate::transaction::CommitError;

impl Scrubber {
    /// Verifies everything outside of segments, and repairs it from other members, until `go_on` returns false.
    pub(super) fn scrub_metadata(
        &self,
        scrub: &mut Scrub,
        go_on: &mut dyn FnMut(&Scrub) -> Result<bool, CommitError>,
    ) -> Result<(), CommitError> {
        let superblocks = self.members.verify_superblocks();
        scrub.repaired += superblocks.repaired;
        scrub.wrong += superblocks.wrong;
        self.note_found_on(superblocks.found);
        if self.meta.journals_differ()? {
            // The index takes in what the journals hold, and they begin empty.
            self.commits.checkpoint()?;
            scrub.repaired += 1;
        }
        let (mut page, mut damaged) = (0, 0);
        while let Some(piece) = self.replicas.verify(page)? {
            scrub.repaired += piece.repaired;
            damaged += piece.damaged;
            page = piece.next;
            self.note_found_on(piece.found);
            if !go_on(scrub)? {
                return Ok(());
            }
        }
        if damaged > 0 {
            // Pages that a crash left half written, and that nothing leads to, are no loss; an index that
            // can be read from end to end has all of it.
            self.meta
                .visit(&[], &[u8::MAX], &mut |_, _| ControlFlow::Continue(()))?;
        }
        self.commits.complete_index()
    }
}
