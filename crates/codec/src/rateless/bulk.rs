//! Decoding of many independent messages by one call.
//!
//! All packets lie in one buffer, message after message, and so do all targets. This is also the layout in which a
//! device would take them.

use std::ops::Range;

use parking_lot::Mutex;

use super::{
    BitLanes, BitRows, RandomCodec, RatelessError, Selection, SelectionJob, columns::run,
    lanes::LANES,
};
use crate::{Stores, WorkerPool};

/// Targets of one call that take more than this together are taken to exceed the cache.
const CACHE_BYTES: usize = 8 << 20;

/// Pieces that each thread gets, so that no thread waits long for the last one.
const PIECES_PER_THREAD: usize = 4;

/// The fewest messages that are solved together: a batch takes as long as about so many alone, with k = 32 on AVX2.
const LEAST_BATCH: usize = 5;

/// The numbers of the packets of all messages.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    /// Every message has packets with these numbers: one elimination serves all.
    Equal(&'a [u64]),
    /// Each message has numbers of its own, message after message.
    Different(&'a [u64]),
}

/// Packets of many messages, all with the same number of packets, which are equally long.
#[derive(Debug, Clone, Copy)]
pub struct Bulk<'a> {
    /// How many messages there are.
    pub messages: usize,
    /// How many packets each of them has.
    pub packets_per_message: usize,
    /// The length of a packet, in bytes.
    pub packet_bytes: usize,
    /// The numbers of the packets.
    pub numbers: Numbers<'a>,
    /// The packets, message after message.
    pub packets: &'a [u8],
}

impl Bulk<'_> {
    /// Checks that all buffers are as long as messages of so many source packets need, and targets of so many bytes.
    ///
    /// # Errors
    ///
    /// [`RatelessError::BulkLength`] if one is not.
    pub fn check(&self, source_packets: usize, target_bytes: usize) -> Result<(), RatelessError> {
        let overflow = |kind, unit, seen| RatelessError::BulkLength {
            kind,
            unit,
            seen,
            needed: usize::MAX,
        };
        let check = |kind, unit, seen, needed: Option<usize>| match needed {
            Some(needed) if needed == seen => Ok(()),
            Some(needed) => Err(RatelessError::BulkLength {
                kind,
                unit,
                seen,
                needed,
            }),
            None => Err(overflow(kind, unit, seen)),
        };
        let rows = self.messages.checked_mul(self.packets_per_message);
        match self.numbers {
            Numbers::Equal(numbers) => check(
                "numbers",
                "entries",
                numbers.len(),
                Some(self.packets_per_message),
            )?,
            Numbers::Different(numbers) => check("numbers", "entries", numbers.len(), rows)?,
        }
        let bytes = rows.and_then(|rows| rows.checked_mul(self.packet_bytes));
        check("packets", "bytes", self.packets.len(), bytes)?;
        let sources = self.messages.checked_mul(source_packets);
        let bytes = sources.and_then(|sources| sources.checked_mul(self.packet_bytes));
        check("targets", "bytes", target_bytes, bytes)
    }
}

impl RandomCodec<'_> {
    /// Decodes many messages into one buffer, source packet after source packet, message after message. Returns the
    /// rank of each message. Those of a rank below k were not decoded, and their targets are unchanged.
    ///
    /// # Errors
    ///
    /// [`RatelessError::BulkLength`] if a buffer has another length than the messages need.
    pub fn decode_bulk(
        &self,
        bulk: &Bulk<'_>,
        targets: &mut [u8],
    ) -> Result<Vec<usize>, RatelessError> {
        let source_packets = self.code.source_packets();
        bulk.check(source_packets, targets.len())?;
        let solution = match bulk.numbers {
            Numbers::Equal(numbers) => Some(self.solve(numbers)),
            Numbers::Different(_) => None,
        };
        let mut ranks = vec![0; bulk.messages];
        let width = self.workers.map_or(1, WorkerPool::width);
        let piece_messages = piece_messages(bulk.messages, width);
        let message_bytes = source_packets * bulk.packet_bytes;
        let stores = if targets.len() > CACHE_BYTES {
            Stores::Streaming
        } else {
            Stores::Cached
        };
        let mut rest = targets;
        let mut parts = Vec::new();
        for (piece, ranks) in ranks.chunks_mut(piece_messages).enumerate() {
            let (targets, behind) = rest.split_at_mut(ranks.len() * message_bytes);
            rest = behind;
            parts.push(Mutex::new(Some((piece * piece_messages, ranks, targets))));
        }
        run(self.workers, parts.len(), &|part| {
            // Each part is run once, so the lock is never waited for.
            if let Some((first, ranks, targets)) = parts[part].lock().take() {
                self.decode_messages(bulk, (first, ranks), solution.as_ref(), targets, stores);
            }
        });
        drop(parts);
        Ok(ranks)
    }

    /// Returns the solution for packets with these numbers.
    fn solve(&self, numbers: &[u64]) -> Solution {
        let mut solution = Solution::new(numbers.len(), self.code.source_packets());
        solution.solve(self, numbers);
        solution
    }

    /// Decodes the messages from `first` on, one for each rank to be noted.
    fn decode_messages(
        &self,
        bulk: &Bulk<'_>,
        (first, ranks): (usize, &mut [usize]),
        shared: Option<&Solution>,
        targets: &mut [u8],
        stores: Stores,
    ) {
        let source_packets = self.code.source_packets();
        let blank = Solution::new(bulk.packets_per_message, source_packets);
        let (mut now, mut next) = (
            Prepared::new(shared.unwrap_or(&blank)),
            Prepared::new(shared.unwrap_or(&blank)),
        );
        let end = first + ranks.len();
        let mut batch = MessageBatch::new(bulk, ranks.len(), source_packets);
        now.prepare(self, bulk, first..end, batch.as_mut());
        let mut rest = targets;
        for (message, rank) in (first..).zip(ranks) {
            let (target, behind) = rest.split_at_mut(source_packets * bulk.packet_bytes);
            rest = behind;
            // Solved ahead, so that the packets of the next message come from memory while this one is computed.
            next.prepare(self, bulk, message + 1..end, batch.as_mut());
            *rank = now.solution.rank;
            if !now.sources.is_empty() {
                let mut targets: Vec<&mut [u8]> =
                    target.chunks_exact_mut(bulk.packet_bytes).collect();
                let job = SelectionJob::new(&now.solution.selection, &now.sources, &mut targets)
                    .expect("the packets of a message fit its selection");
                let job = job.with_next(&next.sources).with_stores(stores);
                let mut job = job.in_series();
                self.engine.run_selection(&mut job);
            }
            std::mem::swap(&mut now, &mut next);
        }
        self.engine.fence();
    }
}

/// Returns how many messages a thread of so many decodes in one go: whole batches, unless threads would be idle then.
fn piece_messages(messages: usize, threads: usize) -> usize {
    if threads == 1 {
        return messages.max(1);
    }
    let even = messages.div_ceil(threads * PIECES_PER_THREAD).max(1);
    let whole = even.next_multiple_of(LANES);
    if messages.div_ceil(whole) >= threads {
        whole
    } else {
        even
    }
}

/// A message that can be decoded at once.
struct Prepared<'a> {
    solution: Solution,
    /// The packets that the solution uses. None if the message cannot be decoded, or has no bytes.
    sources: Vec<&'a [u8]>,
}

impl<'a> Prepared<'a> {
    fn new(solution: &Solution) -> Self {
        Self {
            solution: solution.clone(),
            sources: Vec::new(),
        }
    }

    /// Becomes the first of some messages, if there is one.
    fn prepare(
        &mut self,
        codec: &RandomCodec<'_>,
        bulk: &Bulk<'a>,
        messages: Range<usize>,
        batch: Option<&mut MessageBatch>,
    ) {
        self.sources.clear();
        let message = messages.start;
        if messages.is_empty() {
            return;
        }
        let first = message * bulk.packets_per_message;
        if let Numbers::Different(numbers) = bulk.numbers {
            let numbers = &numbers[first..messages.end * bulk.packets_per_message];
            let together =
                batch.filter(|batch| messages.len() >= LEAST_BATCH || batch.has(message));
            if let Some(batch) = together {
                batch.solve(codec, (message, numbers), &mut self.solution);
            } else {
                let own = &numbers[..bulk.packets_per_message];
                self.solution.solve(codec, own);
            }
        }
        let source_packets = codec.code.source_packets();
        if self.solution.rank == source_packets && bulk.packet_bytes > 0 {
            let used = self.solution.order.iter().take(source_packets);
            self.sources.extend(used.map(|packet| {
                &bulk.packets[(first + packet) * bulk.packet_bytes..][..bulk.packet_bytes]
            }));
        }
    }
}

/// Small messages that are solved together, ahead of their turn.
struct MessageBatch {
    lanes: BitLanes,
    /// The messages that are solved.
    solved: Range<usize>,
}

impl MessageBatch {
    /// Returns a batch for so many messages with numbers of their own, if it is worth it and they are small enough.
    fn new(bulk: &Bulk<'_>, messages: usize, source_packets: usize) -> Option<Self> {
        if messages < LEAST_BATCH {
            return None;
        }
        let packets = match bulk.numbers {
            Numbers::Different(_) => bulk.packets_per_message,
            Numbers::Equal(_) => return None,
        };
        let lanes = BitLanes::new(packets, source_packets)?;
        Some(Self {
            lanes,
            solved: 0..0,
        })
    }

    /// Returns whether a message is solved already.
    fn has(&self, message: usize) -> bool {
        self.solved.contains(&message)
    }

    /// Solves a message. `numbers` are those of the packets of this message and of all that will follow it.
    fn solve(
        &mut self,
        codec: &RandomCodec<'_>,
        (message, numbers): (usize, &[u64]),
        solution: &mut Solution,
    ) {
        if !self.has(message) {
            let packets = solution.rows.rows();
            let numbers = numbers.chunks_exact(packets.max(1)).take(LANES);
            self.solved = message..message + numbers.len().max(1);
            for (lane, numbers) in numbers.enumerate() {
                self.lanes.set(lane, &codec.code, numbers);
            }
            codec.engine.eliminate_lanes(&mut self.lanes);
        }
        let lane = message - self.solved.start;
        solution.rank = self.lanes.rank(lane);
        if solution.rank == solution.rows.columns() {
            let (rows, order) = (&mut solution.rows, &mut solution.order);
            self.lanes.write_inverse(lane, rows, order);
            solution.selection.replace(rows, &(0..solution.rank));
        }
    }
}

/// The way to decode one message.
#[derive(Clone)]
struct Solution {
    /// The rows of its packets; after elimination, the inverse.
    rows: BitRows,
    /// The packets that the columns of the inverse stand for.
    order: Vec<usize>,
    rank: usize,
    /// The inverse as look-ups, if the rank is full.
    selection: Selection,
}

impl Solution {
    fn new(packets: usize, source_packets: usize) -> Self {
        Self {
            rows: BitRows::new(packets, source_packets),
            order: vec![0; packets],
            rank: 0,
            selection: Selection::default(),
        }
    }

    /// Becomes the solution for packets with these numbers.
    fn solve(&mut self, codec: &RandomCodec<'_>, numbers: &[u64]) {
        for (row, &number) in numbers.iter().enumerate() {
            codec.code.write_row(number, self.rows.row_mut(row));
            self.order[row] = row;
        }
        self.rank = codec.engine.eliminate(&mut self.rows, &mut self.order);
        if self.rank == self.rows.columns() {
            self.selection.replace(&self.rows, &(0..self.rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_batches_where_that_leaves_no_thread_idle() {
        let found = [
            (0, 1),
            (9, 1),
            (0, 3),
            (5, 3),
            (64, 4),
            (1024, 64),
            (1024, 24),
            (300, 64),
        ];
        let found = found.map(|(messages, threads)| piece_messages(messages, threads));
        assert_eq!(found, [1, 9, 1, 1, 8, 8, 16, 2]);
    }
}
