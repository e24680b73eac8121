//! The time of decoding many messages by one call.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{
    gpu::GpuMessages,
    report::{BulkRow, GpuRow, Pattern},
    room::Room,
    site::{BULK_PACKETS, EXTRA_PACKETS, PACKET_BYTES, RatelessSite, SEED},
    timing::median_us,
};
use crate::bench::{BenchError, machine::memory_bytes, row::to_f64};
use crate::codec::rateless::{Bulk, Form, Numbers, RandomCode, RandomCodec, RatelessError};
use crate::codec::{Job, Matrix, Mode, Plan, Stores, WorkerPool};

/// Packets that arrive of each message.
const RECEIVED: usize = BULK_PACKETS + EXTRA_PACKETS;

/// The share of the machine's memory that messages may take.
const MEMORY_SHARE: usize = 4;

/// Messages whose result is compared with what was encoded.
const COMPARED: usize = 64;

/// Messages in memory, and room for the result.
struct Messages<'s> {
    codec: RandomCodec<'s>,
    pattern: Pattern,
    numbers: Vec<u64>,
    packets: Room,
    targets: Room,
}

impl<'s> Messages<'s> {
    /// Returns room for so many messages.
    ///
    /// # Errors
    ///
    /// [`BenchError::NoRoom`] if the system does not give the memory.
    fn new(codec: RandomCodec<'s>, messages: usize) -> Result<Self, BenchError> {
        Ok(Self {
            codec,
            pattern: Pattern::Different,
            numbers: Vec::new(),
            packets: Room::new(messages * RECEIVED * PACKET_BYTES)?,
            targets: Room::new(messages * BULK_PACKETS * PACKET_BYTES)?,
        })
    }

    /// Replaces all messages by new ones of noise.
    fn fill(&mut self, pattern: Pattern) -> Result<(), RatelessError> {
        self.pattern = pattern;
        self.numbers.clear();
        let messages = self.packets.chunks_exact_mut(RECEIVED * PACKET_BYTES);
        for (message, packets) in messages.enumerate() {
            let first = match pattern {
                Pattern::Different => message as u64 * RECEIVED as u64,
                Pattern::Equal => 0,
            };
            let numbers: Vec<u64> = (first..first + RECEIVED as u64).collect();
            let sources = source(message);
            let sources: Vec<&[u8]> = sources.chunks_exact(PACKET_BYTES).collect();
            let mut targets: Vec<&mut [u8]> = packets.chunks_exact_mut(PACKET_BYTES).collect();
            self.codec.encode(&numbers, &sources, &mut targets)?;
            if pattern == Pattern::Different || message == 0 {
                self.numbers.extend(numbers);
            }
        }
        Ok(())
    }

    /// Returns the median time of decoding the first `messages`, in microseconds, and how many of them were complete.
    ///
    /// # Errors
    ///
    /// [`BenchError::NotDecoded`] if the result is not what was encoded.
    fn time(
        &mut self,
        site: RatelessSite<'_>,
        messages: usize,
        threads: usize,
    ) -> Result<(f64, usize), BenchError> {
        let codec = match threads {
            1 => self.codec,
            _ => self.codec.with_workers(site.workers),
        };
        let numbers = match self.pattern {
            Pattern::Different => Numbers::Different(&self.numbers[..messages * RECEIVED]),
            Pattern::Equal => Numbers::Equal(&self.numbers),
        };
        let bulk = Bulk {
            messages,
            packets_per_message: RECEIVED,
            packet_bytes: PACKET_BYTES,
            numbers,
            packets: &self.packets[..messages * RECEIVED * PACKET_BYTES],
        };
        let message_bytes = BULK_PACKETS * PACKET_BYTES;
        let targets = &mut self.targets[..messages * message_bytes];
        // The last decoder left the right bytes there.
        targets.fill(0);
        let mut ranks = Vec::new();
        let time = median_us(site.time, || {
            ranks = codec.decode_bulk(&bulk, targets)?;
            Ok(())
        })?;
        let complete = complete(&ranks);
        if !is_decoded(&ranks, targets, complete) {
            return Err(BenchError::NotDecoded);
        }
        Ok((time, complete))
    }

    /// Returns the median time of copying as many packets as a message has source packets, in microseconds, for each of
    /// the first `messages`. Of copies into the cache and past it, the sooner one counts.
    ///
    /// # Errors
    ///
    /// [`BenchError::Codec`] if packets and targets do not fit each other.
    fn copy_time(&mut self, site: RatelessSite<'_>, messages: usize) -> Result<f64, BenchError> {
        let plan = Plan::new(Matrix::from_fn(1, 1, |_, _| 1));
        let message_bytes = BULK_PACKETS * PACKET_BYTES;
        let mut best = f64::INFINITY;
        for stores in [Stores::Cached, Stores::Streaming] {
            let time = median_us(site.time, || {
                let packets = self.packets.chunks_exact(RECEIVED * PACKET_BYTES);
                let targets = self.targets.chunks_exact_mut(message_bytes);
                for (packets, target) in packets.zip(targets).take(messages) {
                    let sources = [&packets[..message_bytes]];
                    let mut targets = [target];
                    let job = Job::new(&plan, &sources, &mut targets, Mode::Assign)?;
                    site.engine.run_plain(&mut job.with_stores(stores));
                }
                Ok(())
            })?;
            best = best.min(time / to_f64(messages));
        }
        Ok(best)
    }

    /// Measures the first `messages` on the GPU, if there is one. `complete` of them are complete.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the GPU fails, or the result is not what was encoded.
    fn on_gpu(
        &mut self,
        site: RatelessSite<'_>,
        (messages, complete): (usize, usize),
        base_us: f64,
    ) -> Result<Vec<GpuRow>, BenchError> {
        let Some(gpus) = site.gpus else {
            return Ok(Vec::new());
        };
        let numbers = match self.pattern {
            Pattern::Different => &mut self.numbers[..messages * RECEIVED],
            Pattern::Equal => &mut self.numbers[..],
        };
        let message_bytes = BULK_PACKETS * PACKET_BYTES;
        let given = GpuMessages {
            code: self.codec.code(),
            pattern: self.pattern,
            messages,
            packets_per_message: RECEIVED,
            packet_bytes: PACKET_BYTES,
            numbers,
            packets: &mut self.packets[..messages * RECEIVED * PACKET_BYTES],
            targets: &mut self.targets[..messages * message_bytes],
            base_us,
        };
        given.measure(site, gpus, |ranks, targets| {
            is_decoded(ranks, targets, complete)
        })
    }
}

/// Returns how many messages are complete.
fn complete(ranks: &[usize]) -> usize {
    ranks.iter().filter(|rank| **rank == BULK_PACKETS).count()
}

/// Returns whether as many messages as expected are complete, and the first of them are what was encoded.
fn is_decoded(ranks: &[usize], targets: &[u8], expected: usize) -> bool {
    let messages = targets.chunks_exact(BULK_PACKETS * PACKET_BYTES).zip(ranks);
    let mut compared = messages.take(COMPARED).enumerate();
    complete(ranks) == expected
        && compared
            .all(|(message, (found, rank))| *rank != BULK_PACKETS || found == source(message))
}

/// Returns the source packets of a message.
fn source(message: usize) -> Vec<u8> {
    let mut bytes = vec![0; BULK_PACKETS * PACKET_BYTES];
    SmallRng::seed_from_u64(SEED ^ message as u64).fill_bytes(&mut bytes);
    bytes
}

/// Measures calls of so many messages each. `base_us` is the time of the base case for one of them.
///
/// # Errors
///
/// [`BenchError`] if a quarter of the machine's memory does not hold them, or the result is wrong.
pub(super) fn measure(
    site: RatelessSite<'_>,
    counts: &[usize],
    base_us: f64,
    progress: impl Fn(usize),
) -> Result<(Vec<BulkRow>, Vec<GpuRow>), BenchError> {
    let Some(&most) = counts.iter().max() else {
        return Ok((Vec::new(), Vec::new()));
    };
    let needed = most.saturating_mul((RECEIVED + BULK_PACKETS) * PACKET_BYTES);
    let limit = memory_bytes() / MEMORY_SHARE;
    if needed > limit {
        return Err(BenchError::MessageMemory { needed, limit });
    }
    let code = RandomCode::new(Form::Plain, BULK_PACKETS, SEED)?;
    let mut messages = Messages::new(RandomCodec::new(code, site.engine), most)?;
    let mut threads = vec![1, site.workers.width()];
    threads.dedup();
    let (mut rows, mut gpu_rows) = (Vec::new(), Vec::new());
    for pattern in Pattern::ALL {
        messages.fill(pattern)?;
        for &count in counts {
            progress(count);
            let copy_us = messages.copy_time(site, count)?;
            let mut all_complete = 0;
            for &threads in &threads {
                let (time, complete) = messages.time(site, count, threads)?;
                all_complete = complete;
                let message_us = time / to_f64(count);
                rows.push(BulkRow {
                    packets: BULK_PACKETS,
                    received: RECEIVED,
                    messages: count,
                    numbers: pattern,
                    threads,
                    complete,
                    median_us: time,
                    message_us,
                    base_us,
                    speed_up: base_us / message_us,
                    copy_speed_up: (threads == 1).then_some(base_us / copy_us),
                    gb_per_s: to_f64(BULK_PACKETS * PACKET_BYTES) / message_us / 1e3,
                });
            }
            gpu_rows.extend(messages.on_gpu(site, (count, all_complete), base_us)?);
        }
    }
    Ok((rows, gpu_rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_no_decoder_wrote_or_completed_are_not_decoded() {
        let (ranks, incomplete) = ([BULK_PACKETS; 2], [BULK_PACKETS, BULK_PACKETS - 1]);
        let right: Vec<u8> = (0..2).flat_map(source).collect();
        let mut wrong = right.clone();
        *wrong.last_mut().expect("it has bytes") ^= 1;
        assert!(is_decoded(&ranks, &right, 2));
        assert!(!is_decoded(&ranks, &wrong, 2));
        assert!(!is_decoded(&ranks, &vec![0; right.len()], 2));
        assert!(!is_decoded(&[0; 2], &right, 2));
        assert!(
            is_decoded(&incomplete, &wrong, 1),
            "the second is left alone"
        );
    }
}
