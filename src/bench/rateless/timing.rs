//! Medians of runs.

use std::time::{Duration, Instant};

use crate::bench::{BenchError, row::median};

/// The fewest runs of a measurement.
const LEAST_RUNS: usize = 3;

/// The most runs of a measurement: the median does not become better by more.
const MOST_RUNS: usize = 1001;

/// Repeats work for about as long as `time`, and returns the median of its time in microseconds.
///
/// # Errors
///
/// The first error of the work.
pub(super) fn median_us(
    time: Duration,
    mut work: impl FnMut() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let start = Instant::now();
    let mut runs = Vec::new();
    while runs.len() < LEAST_RUNS || (start.elapsed() < time && runs.len() < MOST_RUNS) {
        let start = Instant::now();
        work()?;
        runs.push(1e6 * start.elapsed().as_secs_f64());
    }
    Ok(median(runs))
}
