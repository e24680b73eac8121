//! The results of a run, for machines (serde) and for people (Display).

use std::fmt;

use serde::Serialize;

use crate::bench::row::to_f64;
use crate::bench::{Machine, Operation, Row, WorkingSet};

/// Everything that one run measured. Serialized, it is what `bench codec --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The machine, and the speed of its memory.
    pub machine: Machine,
    /// The engine that `auto` picks.
    pub chosen_engine: &'static str,
    /// The file that ISA-L was loaded from, if it could be.
    pub isal: Option<String>,
    /// One entry per engine, code, geometry and setting.
    pub rows: Vec<Row>,
}

/// A table, the chosen engine marked by a star.
impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "{}, {} threads", machine.cpu, machine.threads)?;
        writeln!(
            f,
            "memory, one thread: read {:.1} GB/s, copy {:.1} GB/s",
            machine.memory_read_gb_per_s, machine.memory_copy_gb_per_s
        )?;
        if let (Some(gpu), Some(inside), Some(checksums), Some(rate)) = (
            &machine.gpu,
            machine.gpu_copy_gb_per_s,
            machine.gpu_checksum_gb_per_s,
            machine.pcie_h2d_gb_per_s,
        ) {
            writeln!(
                f,
                "{gpu}: copies inside {inside:.0} GB/s, checksums {checksums:.0} GB/s, copies to it {rate:.1} GB/s"
            )?;
        }
        match &self.isal {
            Some(library) => writeln!(f, "ISA-L: {library}")?,
            None => writeln!(f, "ISA-L: not found, so not compared")?,
        }
        writeln!(f, "\n{HEADING}")?;
        for row in &self.rows {
            write_row(f, row, row.engine == self.chosen_engine)?;
        }
        writeln!(
            f,
            "\nGB/s of data; limit: plain XOR of the same shards, or a copy of as many bytes inside the GPU or \
             over the bus; of H2D: of copies from pinned memory to the GPU and nothing else; threads: times \
             stripes of one call, if these are several; * the engine of `auto`"
        )
    }
}

const HEADING: &str = "engine   code       k+m    shard    threads  set      op      GB/s   limit  of it  ISA-L  ratio  CPU s/TB  of H2D";

fn write_row(f: &mut fmt::Formatter<'_>, row: &Row, chosen: bool) -> fmt::Result {
    let set = match row.working_set {
        WorkingSet::Warm => "warm",
        WorkingSet::Cold => "cold",
        WorkingSet::Device => "device",
        WorkingSet::Pinned => "pinned",
        WorkingSet::Pageable => "pageable",
    };
    let operation = match row.operation {
        Operation::Encode => "encode",
        Operation::Decode => "decode",
        Operation::Verify => "verify",
    };
    write!(
        f,
        "{:<7}{} {:<10} {:<6} {:<8} {:>7}  {set:<8} {operation:<6} {:>5.1}  {:>6.1}  {:>4.0}%",
        row.engine,
        if chosen { '*' } else { ' ' },
        row.code,
        format!("{}+{}", row.data, row.parity),
        shard_size(row.shard_bytes),
        threads(row),
        row.gb_per_s,
        row.limit_gb_per_s,
        100.0 * row.gb_per_s / row.limit_gb_per_s,
    )?;
    match row.isal_gb_per_s {
        Some(isal) => write!(f, "  {isal:>5.1}  {:>5.2}", row.gb_per_s / isal)?,
        None => write!(f, "      –      –")?,
    }
    match row.cpu_seconds_per_tb {
        Some(seconds) => write!(f, "  {seconds:>8.1}")?,
        None => f.write_str("         –")?,
    }
    match row.h2d_gb_per_s {
        Some(rate) => writeln!(f, "  {:>5.1}%", 100.0 * sent_gb_per_s(row) / rate),
        None => writeln!(f, "       –"),
    }
}

/// Returns how much went to the GPUs, in 10⁹ bytes a second.
fn sent_gb_per_s(row: &Row) -> f64 {
    let shards = match row.operation {
        Operation::Encode | Operation::Decode => row.data,
        Operation::Verify => row.data + row.parity,
    };
    row.gb_per_s * to_f64(shards) / to_f64(row.data)
}

/// Returns how many threads there were, and how many stripes each handed over at once.
fn threads(row: &Row) -> String {
    match row.stripes {
        1 => row.threads.to_string(),
        stripes => format!("{}×{stripes}", row.threads),
    }
}

/// Returns a length in the largest unit that it is a multiple of.
fn shard_size(bytes: usize) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line(Row);
    impl fmt::Display for Line {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_row(f, &self.0, false)
        }
    }

    #[test]
    fn rows_of_gpus_are_compared_with_copies_of_all_that_goes_there() {
        let row = |operation| Row {
            engine: "cuda",
            code: "rs-cauchy".to_owned(),
            data: 10,
            parity: 4,
            shard_bytes: 1 << 20,
            threads: 4,
            stripes: 16,
            working_set: WorkingSet::Pinned,
            operation,
            gb_per_s: 30.0,
            limit_gb_per_s: 50.0,
            isal_gb_per_s: None,
            cpu_seconds_per_tb: Some(2.5),
            h2d_gb_per_s: Some(60.0),
        };
        let encoding = Line(row(Operation::Encode)).to_string();
        assert!(
            encoding.ends_with("  60%      –      –       2.5   50.0%\n"),
            "{encoding}"
        );
        let verifying = Line(row(Operation::Verify)).to_string();
        assert!(verifying.ends_with("2.5   70.0%\n"), "{verifying}");
    }
}
