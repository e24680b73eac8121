//! Reading what members have in memory: on the thread of the caller, into the memory of the caller.
//!
//! The fast way of a healthy read. Whatever is unusual here is left to the usual way, which reads again: a member that is
//! not online, a slow one, bytes that are not in memory, bytes that do not match.

use super::ShardReader;
use crate::format::BLOCK_SIZE;
use crate::stripes::error::StripeError;
use crate::stripes::layout::ShardRange;
use crate::stripes::locator::{Located, Rows};

impl ShardReader {
    /// Fills `out` with the bytes of a range of a data shard, verified, if its member has them in memory. Returns whether
    /// it did; the content of `out` is unspecified otherwise.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(in crate::stripes) fn read_in_memory(
        &self,
        located: &Located,
        range: &ShardRange,
        out: &mut [u8],
    ) -> Result<bool, StripeError> {
        let (start, end) = (range.within.start, range.within.end);
        let whole = start.next_multiple_of(BLOCK_SIZE)..end / BLOCK_SIZE * BLOCK_SIZE;
        if whole.is_empty() {
            return self.read_parts_of_blocks(located, range, out);
        }
        let (head, rest) = out.split_at_mut(whole.start - start);
        let (middle, tail) = rest.split_at_mut(whole.len());
        let part = |within| ShardRange {
            shard: range.shard,
            within,
            out: 0..0,
        };
        let rows = Rows {
            shard: range.shard,
            range: whole.clone(),
        };
        Ok(self.read_blocks_in_memory(located, &rows, middle)?
            && self.read_parts_of_blocks(located, &part(start..whole.start), head)?
            && self.read_parts_of_blocks(located, &part(whole.end..end), tail)?)
    }

    /// Reads a range that covers no whole block, and lies in two at most.
    fn read_parts_of_blocks(
        &self,
        located: &Located,
        range: &ShardRange,
        out: &mut [u8],
    ) -> Result<bool, StripeError> {
        let mut done = 0;
        while done < out.len() {
            let at = range.within.start + done;
            let start = at / BLOCK_SIZE * BLOCK_SIZE;
            let rows = Rows {
                shard: range.shard,
                range: start..start + BLOCK_SIZE,
            };
            let mut block = [0; BLOCK_SIZE];
            if !self.read_blocks_in_memory(located, &rows, &mut block)? {
                return Ok(false);
            }
            let len = (rows.range.end - at).min(out.len() - done);
            out[done..done + len].copy_from_slice(&block[at - start..at - start + len]);
            done += len;
        }
        Ok(true)
    }

    /// Fills `out` with whole blocks, verified, if their member has them in memory. Returns whether it did.
    fn read_blocks_in_memory(
        &self,
        located: &Located,
        rows: &Rows,
        out: &mut [u8],
    ) -> Result<bool, StripeError> {
        let Some(member) = self.reachable(located, rows.shard) else {
            return Ok(false);
        };
        let offset = located.record.offset + rows.range.start as u64;
        let io = self.members.io();
        Ok(
            io.read_in_memory(member, &located.segment.name, offset, out)
                && self.locator.are_right(located, rows, out)?,
        )
    }
}
