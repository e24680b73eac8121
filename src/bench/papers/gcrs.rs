//! G-CRS: Cauchy Reed–Solomon on GPUs.

use super::site::PapersSite;
use super::table::{Missing, Ours, PaperRow, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::row::Row as CodecRow;
use crate::bench::setting::WorkingSet;
use crate::codec::CodeId;

/// Widths of symbols that the source has figures for.
const WIDTHS: [u16; 5] = [4, 5, 6, 7, 8];

/// The width of our kernels: they multiply in GF(2⁸).
const OUR_WIDTH: u16 = 8;

/// Parity shards, and figures of the source for each width, in GB/s.
const PUBLISHED: [(usize, [f64; 5]); 2] = [
    (1, [143.78, 144.19, 144.28, 144.67, 144.71]),
    (2, [131.40, 130.35, 130.53, 130.47, 131.38]),
];

/// The hardware of these figures.
const HARDWARE: &str = "GTX 980";

/// Data shards that are measured inside the GPU.
const DATA: [usize; 4] = [4, 10, 16, 32];

/// The data shards of figures whose source does not say how many it has.
const USUAL_DATA: usize = 10;

/// Parity shards that are measured inside the GPU.
const PARITY: [usize; 4] = [1, 2, 3, 4];

/// Length of a shard inside the GPU, in bytes.
const GPU_SHARD_BYTES: usize = 1 << 20;

/// Length of a shard on the CPU, in bytes.
const CPU_SHARD_BYTES: usize = 64 << 10;

/// Measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &mut PapersSite) -> Result<Table, BenchError> {
    let mut measured = Vec::new();
    for data in DATA {
        for parity in PARITY {
            let row = site.inside_gpu((data, parity), GPU_SHARD_BYTES)?;
            measured.push(((data, parity), row));
        }
    }
    let mut rows = published(&measured);
    for (geometry, row) in &measured {
        rows.extend(inside(*geometry, row.as_ref()));
    }
    for parity in PUBLISHED.map(|(parity, _)| parity) {
        for width in WIDTHS {
            let coded = (CodeId(width.into()), (USUAL_DATA, parity));
            let row = site.on_cpu(coded, CPU_SHARD_BYTES, (1, WorkingSet::Warm))?;
            let quantity = format!("CPU, 1 thread, warm: k={USUAL_DATA} m={parity} w={width}");
            rows.push(PaperRow::new(quantity, Unit::GbPerS, Ok(row.gb_per_s)));
        }
    }
    Ok(Table {
        source: Source::GCrs,
        title: "C. Liu and others, G-CRS: GPU accelerated Cauchy Reed-Solomon coding, TPDS 2018",
        rows,
        notes: vec![
            "The source's figures are those of 8,192 blocks of 128 threads. It does not state k, and ours has k=10 beside them.",
            "Our GPU kernels multiply in GF(2^8), so only w=8 is comparable. Codes with other w run on the CPU.",
            "Of a copy: may exceed 100 %, because half of what a copy moves is written, and encoding reads more than it writes.",
            "m=1 is plain XOR on our side.",
            "Left out: the source's figures for m=3 and more. Not found: its figures by k, and in percent of memory bandwidth.",
        ],
    })
}

/// The rates inside the GPU for one geometry, if there is a GPU.
type Measured = ((usize, usize), Option<CodecRow>);

/// Returns the rows of figures that the source has.
fn published(measured: &[Measured]) -> Vec<PaperRow> {
    let mut rows = Vec::new();
    for (parity, figures) in PUBLISHED {
        let is_ours = |row: &&Measured| row.0 == (USUAL_DATA, parity);
        let ours = measured.iter().find(is_ours).and_then(|row| row.1.as_ref());
        for (width, figure) in WIDTHS.into_iter().zip(figures) {
            let ours: Ours = match width {
                OUR_WIDTH => rate(ours),
                _ => Err(Missing::NotOffered),
            };
            let row = PaperRow::new(format!("GPU: m={parity} w={width}"), Unit::GbPerS, ours);
            rows.push(row.beside(figure, HARDWARE));
        }
    }
    rows
}

/// Returns the rows of one geometry inside the GPU.
fn inside((data, parity): (usize, usize), row: Option<&CodecRow>) -> [PaperRow; 2] {
    let name = format!("GPU: k={data} m={parity} w={OUR_WIDTH}");
    let share = row.map(|row| 100.0 * row.gb_per_s / row.limit_gb_per_s);
    [
        PaperRow::new(name.clone(), Unit::GbPerS, rate(row)),
        PaperRow::new(
            format!("{name}, of a copy of as many bytes"),
            Unit::Percent,
            share.ok_or(Missing::NoGpu),
        ),
    ]
}

fn rate(row: Option<&CodecRow>) -> Ours {
    row.map(|row| row.gb_per_s).ok_or(Missing::NoGpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::setting::Operation;

    fn row() -> CodecRow {
        CodecRow {
            engine: "cuda",
            code: "rs-cauchy".to_owned(),
            data: USUAL_DATA,
            parity: 1,
            shard_bytes: GPU_SHARD_BYTES,
            threads: 1,
            stripes: 1,
            working_set: WorkingSet::Device,
            operation: Operation::Encode,
            gb_per_s: 1447.1,
            limit_gb_per_s: 2894.2,
            isal_gb_per_s: None,
            cpu_seconds_per_tb: None,
            h2d_gb_per_s: None,
        }
    }

    #[test]
    fn only_the_width_of_our_kernels_is_compared_and_only_with_the_same_parity() {
        let measured = [((4, 1), None), ((10, 1), Some(row())), ((10, 2), None)];
        let rows = published(&measured);
        assert_eq!(rows.len(), 10);
        let ratios: Vec<Option<f64>> = rows.iter().map(PaperRow::ratio).collect();
        assert_eq!(ratios.iter().flatten().count(), 1, "{ratios:?}");
        assert!((ratios[4].expect("m=1 w=8") - 10.0).abs() < 1e-9);
        assert_eq!(rows[3].ours, Err(Missing::NotOffered));
        assert_eq!(rows[9].ours, Err(Missing::NoGpu));
    }

    #[test]
    fn the_share_is_that_of_a_copy_inside_the_gpu() {
        let [rate, share] = inside((10, 1), Some(&row()));
        assert_eq!((rate.ours, rate.unit), (Ok(1447.1), Unit::GbPerS));
        assert!((share.ours.expect("measured") - 50.0).abs() < 1e-9);
        assert_eq!(inside((10, 1), None)[1].ours, Err(Missing::NoGpu));
    }
}
