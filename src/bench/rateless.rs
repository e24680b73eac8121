//! Measuring the random code: how many packets complete a message, and how long decoders take.
//!
//! Speed-ups are over the base case of the same run: serial elimination on (G|X), one bit a step.

mod bulk;
mod completeness;
mod gpu;
mod report;
mod room;
mod single;
mod site;
mod timing;

use std::time::Duration;

pub use report::{
    BulkRow, CompletenessRow, Decoder, GpuRow, MessagePlace, Pattern, RatelessReport, SingleRow,
};

use crate::bench::{
    BenchError,
    bus::{Gpus, present},
    machine::cpu_name,
};
use crate::codec;
use crate::workers::Workers;
use site::{BULK_PACKETS, PACKET_BYTES, RatelessSite};

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct RatelessWishes {
    /// Numbers of source packets.
    pub packets: Vec<usize>,
    /// Numbers of messages that are decoded in bulk.
    pub messages: Vec<usize>,
    /// Messages of which the completeness is counted, for each number of source packets up to 256.
    pub trials: usize,
    /// Seconds that a row takes at least. A row has at least three runs.
    pub seconds: f64,
}

/// The numbers of source packets that are measured unless others are asked for.
pub const USUAL_PACKETS: [usize; 6] = [32, 64, 128, 256, 512, 1024];

/// The numbers of messages in bulk that are measured unless others are asked for.
pub const USUAL_MESSAGES: [usize; 6] = [1, 16, 256, 1024, 16_384, 65_536];

/// Measures what is wished for. `progress` is called before each measurement, with its name and their number.
///
/// # Errors
///
/// [`BenchError`] if there is no such code, the system gives no memory or no threads, or there is a GPU that fails.
pub fn run(
    wishes: &RatelessWishes,
    progress: impl Fn(&str, usize),
) -> Result<RatelessReport, BenchError> {
    let gpus = present(Gpus::open_first())?;
    run_on(gpus.as_ref(), wishes, progress)
}

/// Measures the same with a GPU that is open already, or without one.
///
/// # Errors
///
/// As [`run`].
pub(in crate::bench) fn run_on(
    gpus: Option<&Gpus>,
    wishes: &RatelessWishes,
    progress: impl Fn(&str, usize),
) -> Result<RatelessReport, BenchError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = Workers::new(threads)?;
    let site = RatelessSite {
        engine: codec::select("auto")?,
        workers: &workers,
        gpus,
        time: Duration::try_from_secs_f64(wishes.seconds).unwrap_or(Duration::MAX),
    };
    let total = 2 * wishes.packets.len() + Pattern::ALL.len() * wishes.messages.len();
    let mut completeness = Vec::new();
    for &packets in &wishes.packets {
        progress(&format!("k = {packets}, completeness"), total);
        if packets <= completeness::MOST_PACKETS {
            completeness.extend(completeness::count(packets, wishes.trials)?);
        }
    }
    let (mut single, mut on_gpu) = (Vec::new(), Vec::new());
    for &packets in &wishes.packets {
        progress(&format!("k = {packets}, one message"), total);
        let (rows, gpu_rows) = single::measure(site, packets)?;
        single.extend(rows);
        on_gpu.extend(gpu_rows);
    }
    let base = single
        .iter()
        .find(|row| row.packets == BULK_PACKETS)
        .map(|row| row.base_us);
    let base = match base {
        _ if wishes.messages.is_empty() => 0.0,
        Some(base) => base,
        None => single::base_us(site, BULK_PACKETS)?,
    };
    let messages = |count: usize| progress(&format!("{count} messages in bulk"), total);
    let (bulk, gpu_rows) = bulk::measure(site, &wishes.messages, base, messages)?;
    on_gpu.extend(gpu_rows);
    Ok(RatelessReport {
        cpu: cpu_name(),
        threads,
        engine: site.engine.name(),
        packet_bits: 8 * PACKET_BYTES,
        completeness,
        single,
        bulk,
        gpu: gpus.map(|gpus| gpus.name().to_owned()),
        on_gpu,
    })
}
