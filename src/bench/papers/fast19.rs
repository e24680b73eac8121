//! The FAST '19 study: codes that XOR packets.

use super::site::PapersSite;
use super::table::{Missing, PaperRow, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::row::to_f64;
use crate::bench::setting::WorkingSet;
use crate::codec::{self, CodeId, Codec, CodecError, Studied};

/// Geometries whose encoding is measured.
const GEOMETRIES: [(usize, usize); 5] = [(6, 2), (6, 3), (8, 4), (10, 4), (10, 6)];

/// Length of a shard, in bytes.
const SHARD_BYTES: usize = 64 << 10;

/// Counts XORs, and measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &mut PapersSite) -> Result<Table, BenchError> {
    let counts = codec::study().map(|studied| count(site, studied));
    let mut rows: Vec<PaperRow> = counts.collect::<Result<_, _>>()?;
    for geometry in GEOMETRIES {
        rows.extend(encoding(site, geometry)?);
    }
    Ok(Table {
        source: Source::Fast19,
        title: "T. Zhou and C. Tian, Fast erasure coding for data storage, FAST 2019",
        rows,
        notes: vec![
            "XORs: of table 3, for a block of every shard. GB/s: one thread, warm, shards of 64 KiB.",
            "Not found: the study's throughput as numbers.",
        ],
    })
}

/// Returns the row of one count.
fn count(site: &PapersSite, studied: Studied) -> Result<PaperRow, BenchError> {
    let Studied {
        code,
        geometry,
        operations,
    } = studied;
    let unknown = CodecError::UnknownCodeNumber { number: code.0 };
    let count = Codec::new(code, geometry, site.engine)?.packet_operations();
    let count = count.ok_or(unknown)?;
    let row = PaperRow::new(format!("{code} {geometry}"), Unit::Xors, Ok(to_f64(count)));
    Ok(row.beside(to_f64(operations), "any"))
}

/// Returns the rates of all codes with one geometry.
fn encoding(site: &mut PapersSite, geometry: (usize, usize)) -> Result<Vec<PaperRow>, BenchError> {
    let (data, parity) = geometry;
    let name = |name: &str| format!("{name} {data}+{parity}, encode");
    let mut rows = Vec::new();
    for code in [CodeId(4), CodeId(8), CodeId::RS_CAUCHY] {
        let measured = site.on_cpu((code, geometry), SHARD_BYTES, (1, WorkingSet::Warm))?;
        let ours = Ok(measured.gb_per_s);
        rows.push(PaperRow::new(name(&measured.code), Unit::GbPerS, ours));
        if code == CodeId::RS_CAUCHY {
            let rival = measured.isal_gb_per_s.ok_or(Missing::NoIsal);
            rows.push(PaperRow::new(name("ISA-L"), Unit::GbPerS, rival));
        }
    }
    Ok(rows)
}
