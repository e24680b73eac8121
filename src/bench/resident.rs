//! Rows of GPUs: stripes that stay in the memory of one, next to copies inside it.

use std::time::{Duration, Instant};

use super::bus::{GPU_ENGINE, cpu_seconds};
use super::error::BenchError;
use super::row::{Row, RowPlan, median, to_f64};
use super::setting::Operation;
use crate::codec::{Geometry, Matrix};
use crate::cuda::{DeviceError, Gpu, Resident};

/// Bytes of all stripes: far more than the caches of a GPU hold.
const TOTAL_BYTES: usize = 2 << 30;

/// The number of turns of each contender.
const TURNS: u32 = 5;

/// The most that is queued for one turn.
const MOST_ROUNDS: f64 = 1000.0;

/// Returns two rates of a GPU, in 10⁹ bytes a second. The first is of copies within its memory, each byte
/// read and written. The second is of reading bytes and computing the checksums of their blocks.
///
/// # Errors
///
/// If it is lost or has too little memory.
pub(super) fn rates_inside(gpu: &Gpu, time: Duration) -> Result<(f64, f64), DeviceError> {
    let mirror = Matrix::from_fn(1, 1, |_, _| 1);
    let mut resident = gpu.resident(&mirror, false, 1 << 20, TOTAL_BYTES)?;
    let (copied, summed) = (resident.copied_bytes(), resident.summed_bytes());
    let (mut copy_rounds, mut sum_rounds) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        copy_rounds.push(rate(&mut resident, Resident::copy, time / TURNS)?);
        sum_rounds.push(rate(&mut resident, Resident::sum, time / TURNS)?);
    }
    let rate = |rounds, bytes| median(rounds) * to_f64(bytes) / 1e9;
    Ok((rate(copy_rounds, copied), rate(sum_rounds, summed)))
}

impl RowPlan {
    /// Measures a GPU for about as long as `time`, with stripes that lie in its memory.
    ///
    /// # Errors
    ///
    /// If it is lost or has too little memory.
    pub(super) fn measure_resident(&self, gpu: &Gpu, time: Duration) -> Result<Row, BenchError> {
        let geometry = self.geometry();
        let matrix = match self.setting.operation {
            Operation::Encode | Operation::Verify => self.generator().clone(),
            Operation::Decode => decode_matrix(geometry, self.generator()),
        };
        let is_compared = self.setting.operation == Operation::Verify;
        let shard_bytes = self.setting.shard_bytes;
        let mut resident = gpu.resident(&matrix, is_compared, shard_bytes, TOTAL_BYTES)?;
        let turn = time / TURNS / 2;
        let (mut rates, mut limits) = (Vec::new(), Vec::new());
        let data_bytes = to_f64(resident.source_bytes());
        let moved = to_f64(matrix.rows() + matrix.columns()) / to_f64(matrix.columns());
        // A copy reads what it copies and writes it.
        let copied = 2.0 * to_f64(resident.copied_bytes()) / moved;
        let mut seconds_per_tb = Vec::new();
        for _ in 0..TURNS {
            let cpu = cpu_seconds();
            let start = Instant::now();
            let reached = rate(&mut resident, Resident::apply, turn)? * data_bytes;
            let busy = start.elapsed().as_secs_f64();
            seconds_per_tb.push((cpu_seconds() - cpu) / (busy * reached) * 1e12);
            rates.push(reached / 1e9);
            limits.push(rate(&mut resident, Resident::copy, turn)? * copied / 1e9);
        }
        Ok(Row {
            engine: GPU_ENGINE,
            threads: 1,
            gb_per_s: median(rates),
            limit_gb_per_s: median(limits),
            cpu_seconds_per_tb: Some(median(seconds_per_tb)),
            ..self.blank_row()
        })
    }
}

/// Returns how many rounds of some work a GPU gets done in a second.
fn rate(
    resident: &mut Resident,
    work: impl Fn(&mut Resident, u32) -> Result<Duration, DeviceError>,
    time: Duration,
) -> Result<f64, DeviceError> {
    let once = work(resident, 1)?.as_secs_f64();
    let rounds = (time.as_secs_f64() / once).clamp(1.0, MOST_ROUNDS);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits"
    )]
    let rounds = rounds as u32;
    Ok(f64::from(rounds) / work(resident, rounds)?.as_secs_f64())
}

/// Returns the matrix that computes as many data shards as there are parities, the first ones, from the k
/// shards that follow: the worst case.
fn decode_matrix(geometry: Geometry, generator: &Matrix) -> Matrix {
    let (k, m) = (geometry.data_shards(), geometry.parity_shards());
    let all: Vec<usize> = (0..k).collect();
    let rows = Matrix::from_fn(k + m, k, |row, column| match row.checked_sub(k) {
        None => u8::from(row == column),
        Some(parity) => generator.at(parity, column),
    });
    let lost = k.min(m);
    let used: Vec<usize> = (lost..lost + k).collect();
    let solved = rows.select(&used, &all).inverse();
    let solved = solved.expect("any k shards of a stripe determine the others");
    solved.select(&all[..lost], &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_of_the_worst_case_gives_the_first_shards_back() {
        for (k, m) in [(1, 1), (4, 2), (10, 4), (3, 5)] {
            let geometry = Geometry::new(k, m).expect("valid");
            let generator = Matrix::cauchy(geometry);
            let lost = k.min(m);
            let data: Vec<u8> = (0..k).map(|i| i.to_le_bytes()[0] * 17 + 3).collect();
            let data = Matrix::from_fn(k, 1, |row, _| data[row]);
            let parity = generator.times(&data);
            let used = Matrix::from_fn(k, 1, |row, _| match (lost + row).checked_sub(k) {
                None => data.at(lost + row, 0),
                Some(row) => parity.at(row, 0),
            });
            let found = decode_matrix(geometry, &generator).times(&used);
            let first: Vec<usize> = (0..lost).collect();
            assert_eq!(found, data.select(&first, &[0]), "{k}+{m}");
        }
    }
}
