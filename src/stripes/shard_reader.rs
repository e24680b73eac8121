//! Reading rows of shards: fetched from their members, verified, and reconstructed from other shards if need be.
//!
//! # Invariants
//!
//! - A block is used only after its checksum matched: corruption becomes an erasure right here.
//! - Reconstructed blocks are verified as well before they leave.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use super::cache::ShardCache;
use super::damage::{Damage, Finding};
use super::dirty::Dirty;
use super::error::StripeError;
use super::locator::{Located, Locator, Rows, mismatches};
use super::stripe_coder::StripeCoder;
use crate::format::{BLOCK_SIZE, MemberIndex, ShardIndex};
use crate::membership::{ErrorClass, Members, Wait};
use crate::store::{Buffer, Op, Pool, StoreError, StoreErrorKind};
use lost::Lost;

mod decode;
mod in_memory;
mod lost;

/// The most bytes of a shard that are copied from the memory of a member on the thread of the caller. More is copied by
/// several threads at once.
const MOST_COPIED_HERE: usize = 128 << 10;

/// The result of reading some rows.
enum Fetched {
    /// All blocks are right.
    Good(Buffer),
    /// Some blocks are wrong: the ranges of bytes in the shard that must be decoded.
    Bad(Buffer, Vec<Range<usize>>),
    /// The shard was never written, its member is gone, or it cannot be read or verified.
    Absent,
    /// Its member does not answer at once.
    Slow,
}

/// Reads rows of shards, whichever shards are left.
pub(super) struct ShardReader {
    members: Arc<Members>,
    locator: Arc<Locator>,
    coder: Arc<StripeCoder>,
    pool: Pool,
    cache: Arc<ShardCache>,
    dirty: Arc<Dirty>,
    damage: Arc<Damage>,
    /// The number of reconstructions of rows.
    decodes: AtomicU64,
}

impl ShardReader {
    /// Creates the part. It reads into memory of `pool`, and uses shards in `cache`.
    pub(super) fn new(
        members: Arc<Members>,
        locator: Arc<Locator>,
        coder: Arc<StripeCoder>,
        pool: Pool,
        cache: Arc<ShardCache>,
        dirty: Arc<Dirty>,
        damage: Arc<Damage>,
    ) -> Self {
        Self {
            members,
            locator,
            coder,
            pool,
            cache,
            dirty,
            damage,
            decodes: AtomicU64::new(0),
        }
    }

    /// Returns how often rows of a stripe were reconstructed.
    #[cfg(test)]
    pub(super) fn decodes(&self) -> u64 {
        self.decodes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the bytes of `wanted`, read or reconstructed, all of them verified.
    ///
    /// Data that a member does not deliver in a moment is reconstructed from the others, if they are enough.
    pub(super) fn fetch(
        &self,
        located: &Located,
        wanted: &[Rows],
    ) -> Result<Vec<Bytes>, StripeError> {
        let fetched = self.fetch_directly(located, wanted, Wait::HedgeDelay)?;
        let was_slow = fetched.iter().any(|one| matches!(one, Fetched::Slow));
        match self.complete(located, wanted, fetched) {
            Err(StripeError::TooFewShards { .. }) if was_slow => {
                let fetched = self.fetch_directly(located, wanted, Wait::Full)?;
                self.complete(located, wanted, fetched)
            }
            completed => completed,
        }
    }

    /// Fetches like [`ShardReader::fetch`]; notes which blocks are unrecoverable if too few shards are left.
    ///
    /// # Errors
    ///
    /// As for [`ShardReader::fetch`].
    pub(super) fn fetch_or_note(
        &self,
        located: &Located,
        wanted: &[Rows],
    ) -> Result<Vec<Bytes>, StripeError> {
        let fetched = self.fetch(located, wanted);
        fetched.inspect_err(|error| self.note_lost(located, wanted, error))
    }

    /// Notes which blocks of the rows cannot be recovered.
    fn note_lost(&self, located: &Located, wanted: &[Rows], error: &StripeError) {
        if !matches!(error, StripeError::TooFewShards { .. }) {
            return;
        }
        let of_payload = |rows: &Rows| located.payload_range(rows.shard, &rows.range);
        let is_known = |range: &Range<u32>| self.damage.unrecoverable().overlaps(located.id, range);
        if wanted
            .iter()
            .filter_map(of_payload)
            .any(|range| is_known(&range))
        {
            return;
        }
        let blocks = wanted.iter().flat_map(|rows| {
            let starts = rows.range.clone().step_by(BLOCK_SIZE);
            starts.map(|start| Rows {
                shard: rows.shard,
                range: start..start + BLOCK_SIZE,
            })
        });
        let is_lost = |block: &Rows| {
            let fetched = self.fetch(located, std::slice::from_ref(block));
            matches!(fetched, Err(StripeError::TooFewShards { .. }))
        };
        let lost: Vec<_> = blocks
            .filter(is_lost)
            .filter_map(|block| of_payload(&block))
            .collect();
        self.damage.unrecoverable().add(located.id, &lost);
    }

    /// Reconstructs what is missing from what was fetched of `wanted`.
    fn complete(
        &self,
        located: &Located,
        wanted: &[Rows],
        fetched: Vec<Fetched>,
    ) -> Result<Vec<Bytes>, StripeError> {
        let mut whole: Vec<Option<Bytes>> = wanted.iter().map(|_| None).collect();
        let mut have = Vec::with_capacity(wanted.len());
        let mut lost = Vec::new();
        for (index, (rows, fetched)) in wanted.iter().zip(fetched).enumerate() {
            match fetched {
                Fetched::Good(buffer) => {
                    let bytes = buffer.freeze();
                    whole[index] = Some(bytes.clone());
                    have.push((rows, bytes));
                }
                Fetched::Bad(buffer, ranges) => lost.push(Lost::wrong(index, rows, buffer, ranges)),
                Fetched::Absent | Fetched::Slow => {
                    let buffer = self.pool.buffer(rows.range.len());
                    lost.push(Lost::absent(index, rows, buffer));
                }
            }
        }
        if !lost.is_empty() {
            self.decode_into(located, &have, &mut lost)?;
        }
        for Lost { index, buffer, .. } in lost {
            whole[index] = Some(buffer.freeze());
        }
        Ok(whole.into_iter().flatten().collect())
    }

    /// Reads rows from the members that hold them, all at once, and verifies them.
    fn fetch_directly(
        &self,
        located: &Located,
        wanted: &[Rows],
        patience: Wait,
    ) -> Result<Vec<Fetched>, StripeError> {
        let mut fetched: Vec<Fetched> = wanted.iter().map(|_| Fetched::Absent).collect();
        let mut asked = Vec::new();
        let mut ops = Vec::new();
        for (index, rows) in wanted.iter().enumerate() {
            if located.is_implied(rows.shard) {
                fetched[index] = Fetched::Good(self.pool.zeroed(rows.range.len()));
            } else if let Some(member) = self.reachable(located, rows.shard) {
                let mut buffer = self.pool.buffer(rows.range.len());
                if self.fill_in_memory(located, rows, member, &mut buffer) {
                    fetched[index] = self.verify(located, rows, member, buffer)?;
                } else {
                    asked.push((index, member));
                    ops.push((member, read_op(located, rows, buffer)));
                }
            }
        }
        if ops.is_empty() {
            return Ok(fetched);
        }
        let outcomes = self.members.io().read(ops, patience);
        for ((index, member), outcome) in asked.into_iter().zip(outcomes) {
            match outcome {
                Ok(Some(buffer)) => {
                    fetched[index] = self.verify(located, &wanted[index], member, buffer)?;
                }
                Ok(None) => {}
                Err(error) if error.kind() == StoreErrorKind::Slow => {
                    fetched[index] = Fetched::Slow;
                }
                Err(error) => self.note_unreadable(located, wanted[index].shard, member, &error),
            }
        }
        Ok(fetched)
    }

    /// Returns the member to read a shard from, if it was written and its member is there.
    pub(super) fn reachable(&self, located: &Located, shard: ShardIndex) -> Option<MemberIndex> {
        if !located.record.written.contains(shard) {
            return None;
        }
        let member = located.member_of(shard)?;
        self.members.membership().is_live(member).then_some(member)
    }

    /// Fills `buffer` with a few rows if their member has them in memory. Returns whether it did.
    fn fill_in_memory(
        &self,
        located: &Located,
        rows: &Rows,
        member: MemberIndex,
        buffer: &mut Buffer,
    ) -> bool {
        let offset = located.record.offset + rows.range.start as u64;
        let io = self.members.io();
        buffer.len() <= MOST_COPIED_HERE
            && io.read_in_memory(member, &located.segment.name, offset, buffer)
    }

    /// Takes note of it if the file of a shard is gone or too short, so that it is rebuilt.
    fn note_unreadable(
        &self,
        located: &Located,
        shard: ShardIndex,
        member: MemberIndex,
        error: &StoreError,
    ) {
        if error.kind().lacks_file() || error.kind() == StoreErrorKind::ShortRead {
            self.damage.note_missing((located.id, shard), || {
                format!("it is not on member {member}: {error}")
            });
        } else {
            tracing::debug!("stripe {}: {error}", located.id);
        }
    }

    fn verify(
        &self,
        located: &Located,
        rows: &Rows,
        member: MemberIndex,
        buffer: Buffer,
    ) -> Result<Fetched, StripeError> {
        let shard = (located.id, rows.shard);
        let Some(sums) = self.locator.sums_of(located, rows)? else {
            self.damage.warn(shard, Finding::NoChecksums, || {
                "there are no checksums".to_owned()
            });
            return Ok(Fetched::Absent);
        };
        let bad = mismatches(rows, &buffer, &sums);
        if bad.is_empty() {
            return Ok(Fetched::Good(buffer));
        }
        self.members.io().count_error(member, ErrorClass::Checksum);
        self.damage.warn(shard, Finding::WrongBytes, || {
            format!("wrong bytes on member {member}, first at {:?}", bad[0])
        });
        Ok(Fetched::Bad(buffer, bad))
    }
}

/// Returns the operation that reads rows of a shard into `buf`.
fn read_op(located: &Located, rows: &Rows, buf: Buffer) -> Op {
    Op::Read {
        name: Arc::clone(&located.segment.name),
        offset: located.record.offset + rows.range.start as u64,
        buf,
    }
}
