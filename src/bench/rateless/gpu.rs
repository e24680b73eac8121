//! The time of a GPU for messages that lie in its memory, and for messages in pinned memory of this machine.

use std::time::Duration;

use super::{
    report::{GpuRow, MessagePlace},
    site::RatelessSite,
    timing::median_us,
};
use crate::bench::bus::Gpus;
use crate::bench::row::{median, to_f64};
use crate::bench::{BenchError, rateless::Pattern};
use crate::codec::rateless::{Bulk, Numbers, RandomCode};
use crate::cuda::{Device, DeviceError, Gpu, RandomError, ResidentMessages};

/// The number of turns of kernels.
const TURNS: u32 = 5;

/// The most that is queued for one turn.
const MOST_ROUNDS: f64 = 1000.0;

/// Messages to be decoded by a GPU.
pub(super) struct GpuMessages<'m> {
    pub(super) code: RandomCode,
    pub(super) pattern: Pattern,
    pub(super) messages: usize,
    pub(super) packets_per_message: usize,
    pub(super) packet_bytes: usize,
    pub(super) numbers: &'m mut [u64],
    pub(super) packets: &'m mut [u8],
    pub(super) targets: &'m mut [u8],
    /// The time of the base case for one message.
    pub(super) base_us: f64,
}

impl GpuMessages<'_> {
    /// Returns what is to be decoded, and the place for the result.
    fn split(&mut self) -> (Bulk<'_>, &mut [u8]) {
        let bulk = Bulk {
            messages: self.messages,
            packets_per_message: self.packets_per_message,
            packet_bytes: self.packet_bytes,
            numbers: match self.pattern {
                Pattern::Different => Numbers::Different(self.numbers),
                Pattern::Equal => Numbers::Equal(self.numbers),
            },
            packets: self.packets,
        };
        (bulk, self.targets)
    }

    /// Measures kernels alone, and calls from pinned memory and back. `is_right` looks at ranks and targets.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the GPU fails or has too little memory, or the result is wrong.
    pub(super) fn measure(
        mut self,
        site: RatelessSite<'_>,
        gpus: &Gpus,
        is_right: impl Fn(&[usize], &[u8]) -> bool,
    ) -> Result<Vec<GpuRow>, BenchError> {
        let gpu = gpus.first();
        let kernels = self.kernels(site, gpu)?;
        let pinned = PinnedMessages::new(gpu, &mut self)?;
        let transported = pinned.messages.transported(site, gpus, is_right)?;
        Ok(vec![kernels, transported])
    }

    /// Measures kernels on messages that lie in the memory of the GPU.
    fn kernels(&mut self, site: RatelessSite<'_>, gpu: &Gpu) -> Result<GpuRow, BenchError> {
        let mut resident = gpu
            .resident_messages(self.code, &self.split().0)
            .map_err(failed)?;
        let solve_us = resident
            .is_solved_on_device()
            .then(|| kernel_us(site.time, &mut resident, ResidentMessages::solve))
            .transpose()?;
        let median_us = kernel_us(site.time, &mut resident, ResidentMessages::decode)?;
        Ok(GpuRow {
            solve_us,
            ..self.row(MessagePlace::Gpu, median_us)
        })
    }

    /// Measures calls from pinned memory to pinned memory, and the bus beside them.
    fn transported(
        &mut self,
        site: RatelessSite<'_>,
        gpus: &Gpus,
        is_right: impl Fn(&[usize], &[u8]) -> bool,
    ) -> Result<GpuRow, BenchError> {
        let mut decoder = gpus.first().random_decoder()?;
        let sources = self.code.source_packets();
        let code = self.code;
        let (bulk, targets) = self.split();
        // Right bytes from the CPU may lie there.
        targets.fill(0);
        let mut ranks = Vec::new();
        let mut decode = || {
            ranks = decoder.decode(code, &bulk, targets).map_err(failed)?;
            Ok(())
        };
        // Memory on the GPU grows by the first call.
        decode()?;
        let median_us = median_us(site.time, decode)?;
        if !is_right(&ranks, targets) {
            return Err(BenchError::NotDecoded);
        }
        let time = site.time.max(LEAST_BUS_TIME);
        let bus = gpus.both_ways_gb_per_s((self.packets_per_message, sources), time)?;
        Ok(GpuRow {
            complete: Some(ranks.iter().filter(|rank| **rank == sources).count()),
            bus_gb_per_s: Some(bus),
            ..self.row(MessagePlace::Pinned, median_us)
        })
    }

    fn row(&self, place: MessagePlace, median_us: f64) -> GpuRow {
        let message_us = median_us / to_f64(self.messages);
        GpuRow {
            packets: self.code.source_packets(),
            received: self.packets_per_message,
            messages: self.messages,
            numbers: self.pattern,
            place,
            complete: None,
            median_us,
            message_us,
            solve_us: None,
            base_us: self.base_us,
            speed_up: self.base_us / message_us,
            gb_per_s: to_f64(self.code.source_packets() * self.packet_bytes) / message_us / 1e3,
            bus_gb_per_s: None,
        }
    }
}

/// The least time for which the bus is measured.
const LEAST_BUS_TIME: Duration = Duration::from_millis(100);

fn failed(error: RandomError) -> BenchError {
    match error {
        RandomError::Device(error) => error.into(),
        RandomError::Messages(error) => error.into(),
        other => BenchError::Device(DeviceError::Failed {
            operation: "decode messages",
            reason: other.to_string(),
        }),
    }
}

/// Returns the time that some kernels take, in microseconds.
fn kernel_us(
    time: Duration,
    resident: &mut ResidentMessages,
    work: impl Fn(&mut ResidentMessages, u32) -> Result<Duration, DeviceError>,
) -> Result<f64, DeviceError> {
    // The first round pays for what is done only once.
    work(resident, 1)?;
    let once = work(resident, 1)?.as_secs_f64();
    let rounds = (time.as_secs_f64() / once / f64::from(TURNS)).clamp(1.0, MOST_ROUNDS);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits"
    )]
    let rounds = rounds as u32;
    let turns = (0..TURNS).map(|_| {
        let seconds = work(resident, rounds)?.as_secs_f64();
        Ok(1e6 * seconds / f64::from(rounds))
    });
    Ok(median(turns.collect::<Result<_, DeviceError>>()?))
}

/// Messages whose memory is pinned.
struct PinnedMessages<'p, 'm> {
    gpu: &'p Gpu,
    messages: &'p mut GpuMessages<'m>,
}

impl<'p, 'm> PinnedMessages<'p, 'm> {
    fn new(gpu: &'p Gpu, messages: &'p mut GpuMessages<'m>) -> Result<Self, DeviceError> {
        gpu.pin(messages.packets)?;
        let pinned = gpu.pin(messages.targets).and_then(|()| {
            let numbers = gpu.pin_numbers(messages.numbers);
            if numbers.is_err() {
                unpinned(gpu.unpin(messages.targets));
            }
            numbers
        });
        if pinned.is_err() {
            unpinned(gpu.unpin(messages.packets));
        }
        pinned.map(|()| Self { gpu, messages })
    }
}

impl Drop for PinnedMessages<'_, '_> {
    fn drop(&mut self) {
        unpinned(self.gpu.unpin(self.messages.packets));
        unpinned(self.gpu.unpin(self.messages.targets));
        unpinned(self.gpu.unpin_numbers(self.messages.numbers));
    }
}

fn unpinned(result: Result<(), DeviceError>) {
    if let Err(error) = result {
        tracing::debug!("memory stays pinned: {error}");
    }
}
