//! What a scrub found on its way, put as it is when the scrub is through.
//!
//! Members come and go while everything is read, and what they take with them is rebuilt elsewhere. So what was
//! missing or wrong when it was passed is looked at again at the end, and what is reported is how it is then.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::super::{CommitError, InodeLocks, Pipeline};
use super::stripes::wrong_in;
use crate::format::record::Scrub;
use crate::format::{Epoch, StripeId};
use crate::volume::{Remedy, Verdict};

/// Stripes that are remembered; what is wrong of others stays in the report.
const MOST: usize = 1 << 15;

/// Stripes with shards that were wrong and could not be mended. Forgotten when the volume is closed: what the
/// record of a scrub says of them stays as it is then.
#[derive(Debug, Default)]
pub(super) struct Unmended(Mutex<BTreeMap<StripeId, Seen>>);

/// How a stripe was found.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Shards of it that are wrong still, as the record of the scrub counts them.
    wrong: u64,
    /// Who took part then: as long as nobody comes or goes, nothing more can be mended.
    epoch: Epoch,
}

impl Unmended {
    /// A scrub begins that has found nothing yet.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Takes note of what a look at some stripes left wrong.
    pub(super) fn note(&self, verdicts: &[Verdict], epoch: Epoch) {
        let mut seen = self.0.lock();
        for verdict in verdicts {
            let wrong = wrong_in(verdict);
            if wrong > 0 && seen.len() < MOST {
                seen.insert(verdict.stripe, Seen { wrong, epoch });
            }
        }
    }

    /// Takes those that were found so when others took part than do now.
    fn take_outdated(&self, epoch: Epoch) -> BTreeMap<StripeId, Seen> {
        let mut seen = self.0.lock();
        let (outdated, rest) = std::mem::take(&mut *seen)
            .into_iter()
            .partition(|(_, seen)| seen.epoch != epoch);
        *seen = rest;
        outdated
    }
}

impl Pipeline {
    /// Looks again at what could not be mended when it was passed, where members have come or gone since.
    pub(super) fn look_again(
        &self,
        scrub: &mut Scrub,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        let unmended = &self.scrubbing.unmended;
        for (stripe, seen) in unmended.take_outdated(self.members.epoch()) {
            let (pin, mut live) = (self.volume.pin(), vec![stripe]);
            if !self.has_backref(stripe)? {
                live.clear();
            }
            // It counts as it is now.
            let mut found = Scrub::default();
            let verdicts = self.volume.inspect(&live, Remedy::Mend)?;
            self.note_found(&mut found, &verdicts)?;
            drop(pin);
            self.rewrite_inconsistent(&mut found, verdicts, locks)?;
            scrub.repaired += found.repaired;
            scrub.wrong = scrub.wrong.saturating_sub(seen.wrong) + found.wrong;
        }
        Ok(())
    }

    /// Puts into the record what is missing and lost now.
    pub(super) fn count_what_is_left(&self, scrub: &mut Scrub) -> Result<(), CommitError> {
        scrub.missing = self.redundancy()?.missing_shards();
        let mut lost = 0;
        for (stripe, ranges) in self.volume.undecodable() {
            if self.has_backref(stripe)? {
                let bytes = ranges
                    .iter()
                    .map(|range| u64::from(range.end - range.start));
                lost += bytes.sum::<u64>();
            }
        }
        scrub.lost = if self.volume.undecodable_is_cut() {
            scrub.lost.max(lost)
        } else {
            lost
        };
        Ok(())
    }
}
