//! Inspection of all shards of many stripes at once: read in large runs from all members, verified, and
//! repaired where they are wrong.
//!
//! Nothing is taken on trust. A shard is right if every block of it matches its checksum. A stripe is consistent if its
//! parity is what the code makes of the data. A recomputed range is written where the shard lies, synced, and read back
//! before it counts as repaired (P6). A file that is gone or too short is left to the rebuild.
//!
//! The caller holds a pin from before it saw that something refers to each of the stripes: none of them
//! is freed meanwhile.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::damage::Damage;
use super::error::StripeError;
use super::layout;
use super::locator::{Located, Locator};
use super::stripe_coder::StripeCoder;
use crate::format::record::ShardSet;
use crate::format::{ShardIndex, StripeId};
use crate::membership::{Access, Members};
use crate::store::Pool;

mod findings;
mod gather;
mod repair;
mod restore;
mod verify;

use findings::{FoundShard, Restored, ShardRepair};

/// The treatment of wrong shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// They are recomputed and written where they lie.
    Repair,
    /// Nothing.
    Report,
}

/// The result of inspecting all shards of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The stripe.
    pub stripe: StripeId,
    /// Bytes of shards that were read.
    pub bytes: u64,
    /// Shards that were wrong, or not in the file they should be in, and are right now, durably.
    pub repaired: u64,
    /// All that were.
    pub found: ShardSet,
    /// Those that are so still.
    pub wrong: ShardSet,
    /// The number of these that are in no file at all: they are left to the rebuild.
    pub gone: u64,
    /// Shards that were never written, or whose members are away.
    pub missing: u64,
    /// Shards that were written, and could not be verified: their members are away, or could not read them, or
    /// there are no checksums.
    pub unread: ShardSet,
    /// The ranges of the payload that parity cannot replace.
    pub lost: Vec<Range<u32>>,
    /// True if they would be lost also if all members were there.
    pub is_lost_for_good: bool,
    /// Blocks whose parity is not what the code makes of the data, although all checksums match.
    pub inconsistent: Option<Inconsistent>,
}

/// Blocks of a stripe whose parity is not what the code makes of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inconsistent {
    /// The stripe.
    pub stripe: StripeId,
    /// Their ranges in each of its shards, in order.
    pub rows: Vec<Range<u32>>,
    /// The shards that cannot be trusted in one of these blocks, in which they are most: parities that the data does not call
    /// for. One parity stands for them if absent shards would be needed to tell which ones.
    pub suspects: ShardSet,
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stripe, rows, .. } = self;
        let bytes: u64 = rows.iter().map(|r| u64::from(r.end - r.start)).sum();
        write!(
            f,
            "stripe {stripe}: parity is not what the data calls for in {bytes} bytes of each shard"
        )?;
        rows.first()
            .map_or(Ok(()), |first| write!(f, ", from byte {}", first.start))
    }
}

/// Inspects and repairs all shards of stripes.
pub(crate) struct Inspector {
    members: Arc<Members>,
    locator: Arc<Locator>,
    coder: Arc<StripeCoder>,
    pool: Pool,
    damage: Arc<Damage>,
}

impl Inspector {
    /// Creates the part; it reads into memory of `pool`.
    pub(super) fn new(
        members: Arc<Members>,
        locator: Arc<Locator>,
        coder: Arc<StripeCoder>,
        pool: Pool,
        damage: Arc<Damage>,
    ) -> Self {
        Self {
            members,
            locator,
            coder,
            pool,
            damage,
        }
    }

    /// Inspects all shards of some stripes of one segment, in the order in which they lie there, and applies `remedy` to
    /// wrong ones. Stripes that are not on members are left out.
    ///
    /// The caller holds a [`Pin`](super::Pin) from before it saw that something refers to each of them.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or its records make no sense.
    pub(crate) fn inspect(
        &self,
        stripes: &[StripeId],
        remedy: Remedy,
    ) -> Result<Vec<Verdict>, StripeError> {
        let mut located = Vec::with_capacity(stripes.len());
        for &stripe in stripes {
            match self.locator.locate(stripe) {
                Ok(found) => located.push(found),
                Err(StripeError::UnknownStripe { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.verify_all(&located, self.gather_all(&located))?;
        let mut restored = Vec::with_capacity(located.len());
        for (located, found) in located.iter().zip(&found) {
            restored.push(self.restore_shards(located, found)?);
        }
        self.hold_against_code(&located, &found, &mut restored)?;
        let mut verdicts = Vec::with_capacity(located.len());
        let mut repairs = Vec::new();
        let of_stripes = located.iter().zip(found).zip(restored);
        for (at, ((located, found), restored)) in of_stripes.enumerate() {
            verdicts.push(self.judge(located, &found, &restored));
            if remedy == Remedy::Repair {
                repairs.extend(repairs_of(located, &found, restored).map(|repair| (at, repair)));
            }
        }
        if self.members.access() == Access::ReadWrite {
            for (at, shard) in self.repair_all(&located, &repairs) {
                verdicts[at].repaired += 1;
                verdicts[at].wrong.remove(shard);
            }
        }
        Ok(verdicts)
    }

    fn judge(&self, located: &Located, found: &[FoundShard], restored: &Restored) -> Verdict {
        self.damage.unrecoverable().set(located.id, &restored.lost);
        let is_wrong =
            |shard: &usize| matches!(found[*shard], FoundShard::Wrong(..) | FoundShard::Gone);
        let away = found
            .iter()
            .filter(|found| matches!(found, FoundShard::Away));
        let gone = found
            .iter()
            .filter(|found| matches!(found, FoundShard::Gone));
        let read = found.iter().enumerate().filter(|(shard, found)| {
            found.bytes().is_some() && !located.is_implied(layout::shard(*shard))
        });
        let is_unread = |shard: &ShardIndex| {
            let is_away = matches!(found[usize::from(shard.0)], FoundShard::Away);
            is_away && located.record.written.contains(*shard)
        };
        let wrong: ShardSet = (0..found.len())
            .filter(is_wrong)
            .map(layout::shard)
            .collect();
        Verdict {
            stripe: located.id,
            bytes: read.count() as u64 * located.height() as u64,
            repaired: 0,
            found: wrong,
            wrong,
            gone: gone.count() as u64,
            missing: away.count() as u64,
            unread: (0..found.len())
                .map(layout::shard)
                .filter(is_unread)
                .collect(),
            lost: restored.lost.clone(),
            is_lost_for_good: restored.is_lost_for_good,
            inconsistent: (!restored.inconsistent.is_empty()).then(|| Inconsistent {
                stripe: located.id,
                rows: restored.inconsistent.clone(),
                suspects: restored.suspects,
            }),
        }
    }
}

/// Returns what can be written over the shards of a stripe that are wrong.
fn repairs_of(
    located: &Located,
    found: &[FoundShard],
    restored: Restored,
) -> impl Iterator<Item = ShardRepair> {
    let segment = Arc::clone(&located.segment);
    let record = located.record;
    // A file that is made for some shards would count for all the others that it is long enough for.
    let is_absent: BTreeSet<usize> = (0..found.len())
        .filter(|shard| matches!(found[*shard], FoundShard::Gone | FoundShard::Away))
        .collect();
    let fixed = restored.fixed.into_iter();
    fixed.filter_map(move |fixed| {
        let shard = layout::shard(fixed.shard);
        let member = segment.member_of(&record, shard)?;
        (!is_absent.contains(&fixed.shard) && !fixed.ranges.is_empty()).then(|| ShardRepair {
            shard,
            member,
            is_whole: fixed.is_whole,
            bytes: fixed.bytes,
            ranges: fixed.ranges,
        })
    })
}
