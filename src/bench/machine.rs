//! The machine, and the speed of its memory.

use std::{
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use serde::Serialize;

/// Bytes read or copied: far more than any cache holds.
const BYTES: usize = 256 << 20;

/// Rounds of which the best counts.
const ROUNDS: usize = 3;

/// The machine that rows were measured on. Rates are in 10⁹ bytes a second, of one thread.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Name of the CPU, as the system tells it.
    pub cpu: String,
    /// Threads that run at once.
    pub threads: usize,
    /// Bytes read.
    pub memory_read_gb_per_s: f64,
    /// Bytes copied, each read once and written once.
    pub memory_copy_gb_per_s: f64,
    /// Name of the GPU that can code, if there is one.
    pub gpu: Option<String>,
    /// Bytes copied inside the GPU.
    pub gpu_copy_gb_per_s: Option<f64>,
    /// Bytes whose blocks get a checksum inside the GPU.
    pub gpu_checksum_gb_per_s: Option<f64>,
    /// Bytes copied to the GPU.
    pub pcie_h2d_gb_per_s: Option<f64>,
}

impl Machine {
    /// Looks at this machine, for about a second.
    #[must_use]
    pub(super) fn measure() -> Self {
        let source = vec![1u8; BYTES];
        let mut target = vec![0u8; BYTES];
        let read = best(|| {
            black_box(sum(black_box(&source)));
        });
        let copy = best(|| black_box(&mut target).copy_from_slice(black_box(&source)));
        Self {
            cpu: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_read_gb_per_s: gb_per_s(read),
            memory_copy_gb_per_s: gb_per_s(copy),
            gpu: None,
            gpu_copy_gb_per_s: None,
            gpu_checksum_gb_per_s: None,
            pcie_h2d_gb_per_s: None,
        }
    }
}

/// Adds all words up, in as many independent sums as keep the memory busy.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    let (chunks, _) = bytes.as_chunks::<128>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<8>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

fn best(mut work: impl FnMut()) -> Duration {
    let once = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..ROUNDS).map(once).min().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "a constant far below 2^52")]
fn gb_per_s(time: Duration) -> f64 {
    BYTES as f64 / time.as_secs_f64() / 1e9
}

/// Returns how much memory this machine has, in bytes.
pub(super) fn memory_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let unit = usize::try_from(info.mem_unit).unwrap_or(1);
    usize::try_from(info.totalram).map_or(usize::MAX, |units| units.saturating_mul(unit))
}

/// Returns what Linux calls the CPU.
pub(super) fn cpu_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
