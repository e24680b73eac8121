//! Reading blocks of shards and checking them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::decode::Lost;
use super::{Located, Rows};
use crate::format::{BLOCK_SIZE, MemberIndex, ShardIndex};
use crate::members::{ErrorClass, Patience};
use crate::store::{Buffer, Op, StoreError, StoreErrorKind};
use crate::volume::damage::Finding;
use crate::volume::{Core, VolumeError};

/// The result of reading some rows.
pub(super) enum Fetched {
    /// All blocks are right.
    Good(Buffer),
    /// Some blocks are wrong: the ranges of bytes in the shard that must be decoded.
    Bad(Buffer, Vec<Range<usize>>),
    /// The shard was never written, its member is gone, or it cannot be read or verified.
    Absent,
    /// Its member does not answer at once.
    Slow,
}

impl Core {
    /// Returns the bytes of `wanted`, read or reconstructed, all of them verified.
    ///
    /// Data that a member does not deliver in a moment is reconstructed from the others, if they are enough.
    pub(in crate::volume) fn fetch(
        &self,
        located: &Located,
        wanted: &[Rows],
    ) -> Result<Vec<Bytes>, VolumeError> {
        let fetched = self.fetch_directly(located, wanted, Patience::Brief)?;
        let was_slow = fetched.iter().any(|one| matches!(one, Fetched::Slow));
        match self.complete(located, wanted, fetched) {
            Err(VolumeError::TooFewShards { .. }) if was_slow => {
                let fetched = self.fetch_directly(located, wanted, Patience::Full)?;
                self.complete(located, wanted, fetched)
            }
            completed => completed,
        }
    }

    /// Reconstructs what is missing from what was fetched of `wanted`.
    fn complete(
        &self,
        located: &Located,
        wanted: &[Rows],
        fetched: Vec<Fetched>,
    ) -> Result<Vec<Bytes>, VolumeError> {
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
    pub(super) fn fetch_directly(
        &self,
        located: &Located,
        wanted: &[Rows],
        patience: Patience,
    ) -> Result<Vec<Fetched>, VolumeError> {
        let mut fetched: Vec<Fetched> = wanted.iter().map(|_| Fetched::Absent).collect();
        let mut asked = Vec::new();
        let mut ops = Vec::new();
        for (index, rows) in wanted.iter().enumerate() {
            if located.is_implied(rows.shard) {
                fetched[index] = Fetched::Good(self.pool.zeroed(rows.range.len()));
            } else if let Some(member) = self.reachable(located, rows.shard) {
                asked.push((index, member));
                ops.push((member, self.read_op(located, rows)));
            }
        }
        let outcomes = self.members.read(ops, patience);
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
        let member = located.segment.member_of(&located.record, shard)?;
        self.members.live().contains(&member).then_some(member)
    }

    fn read_op(&self, located: &Located, rows: &Rows) -> Op {
        Op::Read {
            name: Arc::clone(&located.segment.name),
            offset: located.record.offset + rows.range.start as u64,
            buf: self.pool.buffer(rows.range.len()),
        }
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
            self.lacks_files.store(true, Ordering::Relaxed);
            self.damage.warn((located.id, shard), Finding::Missing, || {
                format!("it is not on member {member}: {error}")
            });
        } else {
            log::debug!("stripe {}: {error}", located.id);
        }
    }

    fn verify(
        &self,
        located: &Located,
        rows: &Rows,
        member: MemberIndex,
        buffer: Buffer,
    ) -> Result<Fetched, VolumeError> {
        let shard = (located.id, rows.shard);
        let Some(sums) = self.sums_of(located, rows)? else {
            self.damage.warn(shard, Finding::NoChecksums, || {
                "there are no checksums".to_owned()
            });
            return Ok(Fetched::Absent);
        };
        let bad = mismatches(rows, &buffer, &sums);
        if bad.is_empty() {
            return Ok(Fetched::Good(buffer));
        }
        self.members.count_error(member, ErrorClass::Checksum);
        self.damage.warn(shard, Finding::WrongBytes, || {
            format!("wrong bytes on member {member}, first at {:?}", bad[0])
        });
        Ok(Fetched::Bad(buffer, bad))
    }

    /// Returns the checksums of the blocks in `rows`, if the index has them.
    pub(in crate::volume) fn sums_of(
        &self,
        located: &Located,
        rows: &Rows,
    ) -> Result<Option<Vec<u32>>, VolumeError> {
        let stripe = located.id;
        let found = self.records.sums(stripe, rows.shard);
        let sums = found.map_err(|source| VolumeError::Lookup { stripe, source })?;
        let blocks = rows.range.start / BLOCK_SIZE..rows.range.end / BLOCK_SIZE;
        Ok(sums.and_then(|sums| sums.0.get(blocks).map(<[u32]>::to_vec)))
    }
}

/// Returns the ranges of the shard whose blocks do not match their checksums, neighbours joined.
pub(in crate::volume) fn mismatches(rows: &Rows, bytes: &[u8], sums: &[u32]) -> Vec<Range<usize>> {
    let mut bad: Vec<Range<usize>> = Vec::new();
    for (index, (block, &sum)) in bytes.chunks(BLOCK_SIZE).zip(sums).enumerate() {
        if crc32c::crc32c(block) == sum {
            continue;
        }
        let start = rows.range.start + index * BLOCK_SIZE;
        match bad.last_mut() {
            Some(last) if last.end == start => last.end += BLOCK_SIZE,
            _ => bad.push(start..start + BLOCK_SIZE),
        }
    }
    bad
}
