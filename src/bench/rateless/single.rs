//! The time of each decoder for one message.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{
    gpu::GpuMessages,
    report::{Decoder, GpuRow, Pattern, SingleRow},
    room::Room,
    site::{EXTRA_PACKETS, PACKET_BYTES, RatelessSite, SEED},
    timing::median_us,
};
use crate::bench::{BenchError, row::to_f64};
use crate::codec::WorkerPool;
use crate::codec::rateless::{Echelon, Form, IncrementalDecoder, Method, RandomCode, RandomCodec};

/// The parts of the redimensioned decoder.
const PARTS: usize = 8;

/// A message of which more packets arrived than it needs.
struct Message<'s> {
    codec: RandomCodec<'s>,
    sources: Vec<u8>,
    numbers: Vec<u64>,
    arrived: Room,
}

impl<'s> Message<'s> {
    /// Returns a message of noise, and the first run of packets that completes it.
    fn new(site: RatelessSite<'s>, packets: usize) -> Result<Self, BenchError> {
        let code = RandomCode::new(Form::Plain, packets, SEED)?;
        let codec = RandomCodec::new(code, site.engine);
        let count = packets + EXTRA_PACKETS;
        let runs = (0..)
            .step_by(count)
            .map(|first| first..first + count as u64);
        let is_complete = |run: &std::ops::Range<u64>| {
            let mut rows = Echelon::new(code);
            run.clone().for_each(|number| {
                rows.add(number);
            });
            rows.is_complete()
        };
        let numbers: Vec<u64> = runs
            .into_iter()
            .find(is_complete)
            .into_iter()
            .flatten()
            .collect();
        let mut sources = vec![0; packets * PACKET_BYTES];
        SmallRng::seed_from_u64(SEED).fill_bytes(&mut sources);
        let mut arrived = Room::new(count * PACKET_BYTES)?;
        let packets: Vec<&[u8]> = sources.chunks_exact(PACKET_BYTES).collect();
        let mut targets: Vec<&mut [u8]> = arrived.chunks_exact_mut(PACKET_BYTES).collect();
        codec.encode(&numbers, &packets, &mut targets)?;
        Ok(Self {
            codec,
            sources,
            numbers,
            arrived,
        })
    }

    /// Measures the message on the GPU, if there is one.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the GPU fails, or the result is not what was encoded.
    fn on_gpu(&mut self, site: RatelessSite<'_>, base_us: f64) -> Result<Vec<GpuRow>, BenchError> {
        let Some(gpus) = site.gpus else {
            return Ok(Vec::new());
        };
        let mut result = Room::new(self.sources.len())?;
        let given = GpuMessages {
            code: self.codec.code(),
            pattern: Pattern::Different,
            messages: 1,
            packets_per_message: self.numbers.len(),
            packet_bytes: PACKET_BYTES,
            numbers: &mut self.numbers,
            packets: &mut self.arrived,
            targets: &mut result,
            base_us,
        };
        given.measure(site, gpus, |_, targets| targets == self.sources)
    }

    /// Returns the packets that arrived.
    fn received(&self) -> Vec<(u64, &[u8])> {
        let arrived = self.arrived.chunks_exact(PACKET_BYTES);
        self.numbers.iter().copied().zip(arrived).collect()
    }

    /// Returns the median time of a decoder, in microseconds.
    ///
    /// # Errors
    ///
    /// [`BenchError::NotDecoded`] if the result is not what was encoded.
    fn time(
        &self,
        site: RatelessSite<'_>,
        decoder: Decoder,
        threads: usize,
    ) -> Result<f64, BenchError> {
        let codec = match threads {
            1 => self.codec,
            _ => self.codec.with_workers(site.workers),
        };
        let received = self.received();
        let mut result = vec![0; self.sources.len()];
        let mut targets: Vec<&mut [u8]> = result.chunks_exact_mut(PACKET_BYTES).collect();
        let method = match decoder {
            Decoder::Serial => Method::Serial,
            Decoder::Words => Method::Words,
            Decoder::Parts => Method::Parts(PARTS),
            Decoder::Tables | Decoder::Incremental => Method::Tables,
        };
        let time = median_us(site.time, || {
            if decoder == Decoder::Incremental {
                let mut incremental = IncrementalDecoder::new(codec, PACKET_BYTES);
                for (number, packet) in &received {
                    incremental.add(*number, packet)?;
                }
                incremental.finish(&mut targets)?;
            } else {
                codec.decode(method, &received, &mut targets)?;
            }
            Ok(())
        })?;
        if result != self.sources {
            return Err(BenchError::NotDecoded);
        }
        Ok(time)
    }
}

/// Measures all decoders on a message of so many packets.
///
/// # Errors
///
/// [`BenchError`] if no code has so many source packets, or a decoder gives wrong bytes.
pub(super) fn measure(
    site: RatelessSite<'_>,
    packets: usize,
) -> Result<(Vec<SingleRow>, Vec<GpuRow>), BenchError> {
    let mut message = Message::new(site, packets)?;
    let base_us = message.time(site, Decoder::Serial, 1)?;
    let mut rows = Vec::new();
    let all = site.workers.width();
    for decoder in Decoder::ALL {
        for threads in [1, all] {
            let is_threaded = matches!(decoder, Decoder::Parts | Decoder::Tables);
            if threads > 1 && !is_threaded || threads == all && rows_have(&rows, decoder, all) {
                continue;
            }
            let median_us = match decoder {
                Decoder::Serial => base_us,
                _ => message.time(site, decoder, threads)?,
            };
            rows.push(SingleRow {
                packets,
                received: message.numbers.len(),
                decoder,
                threads,
                median_us,
                base_us,
                speed_up: base_us / median_us,
                gb_per_s: to_f64(message.sources.len()) / median_us / 1e3,
            });
        }
    }
    Ok((rows, message.on_gpu(site, base_us)?))
}

/// Returns whether a decoder was measured with so many threads.
fn rows_have(rows: &[SingleRow], decoder: Decoder, threads: usize) -> bool {
    rows.iter()
        .any(|row| row.decoder == decoder && row.threads == threads)
}

/// Returns the time of the base case for a message of so many packets, in microseconds.
///
/// # Errors
///
/// As [`measure`].
pub(super) fn base_us(site: RatelessSite<'_>, packets: usize) -> Result<f64, BenchError> {
    Message::new(site, packets)?.time(site, Decoder::Serial, 1)
}
