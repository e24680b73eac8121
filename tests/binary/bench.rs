//! `cauchyfs bench` measures what it was asked for, and says so in the form that was agreed on.

use serde_json::Value;

use crate::support::{CAUCHYFS, must, run};

/// The shortest bench there is: one stripe of 2+1, for an instant.
const QUICK: [&str; 12] = [
    "--data",
    "2",
    "--parity",
    "1",
    "--shard-bytes",
    "4KiB",
    "--threads",
    "1",
    "--working-set",
    "warm",
    "--seconds",
    "0.01",
];

fn quick(more: &[&str]) -> String {
    must(CAUCHYFS, &[&["bench", "codec"], &QUICK[..], more].concat())
}

#[test]
fn the_json_document_has_the_fields_of_the_contract_and_nothing_else_is_printed() {
    let output = run(
        CAUCHYFS,
        &[&["bench", "codec", "--json"], &QUICK[..]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "no progress without a terminal: {output:?}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");

    let machine = report["machine"].as_object().expect("the machine");
    assert!(machine["cpu"].is_string() && machine["threads"].as_u64() > Some(0));
    for rate in ["memory_read_gb_per_s", "memory_copy_gb_per_s"] {
        assert!(machine[rate].as_f64() > Some(0.0), "{rate}: {machine:?}");
    }
    for key in [
        "gpu",
        "gpu_copy_gb_per_s",
        "gpu_checksum_gb_per_s",
        "pcie_h2d_gb_per_s",
    ] {
        assert!(machine.contains_key(key), "{key}: {machine:?}");
    }

    let rows = report["rows"].as_array().expect("rows");
    let operations: Vec<&str> = rows.iter().filter_map(|row| row["op"].as_str()).collect();
    assert_eq!(operations, ["encode", "decode", "verify"]);
    for row in rows {
        assert_eq!(row["engine"], report["chosen_engine"], "{row}");
        assert_eq!(row["code"], "rs-cauchy", "{row}");
        assert_eq!(row["working_set"], "warm", "{row}");
        let numbers = ["data", "parity", "shard_bytes", "threads"].map(|key| row[key].as_u64());
        assert_eq!(numbers, [2, 1, 4096, 1].map(Some), "{row}");
        assert!(row["gb_per_s"].as_f64() > Some(0.0), "{row}");
        assert!(row["limit_gb_per_s"].as_f64() > Some(0.0), "{row}");
        let rival = &row["isal_gb_per_s"];
        assert!(
            rival.is_null() || rival.as_f64() > Some(0.0),
            "a key in every row, with a rate where ISA-L could be loaded: {row}"
        );
    }
}

#[test]
fn lists_are_measured_in_every_combination() {
    let json = quick(&[
        "--json",
        "--engine",
        "auto,scalar",
        "--code",
        "rs-cauchy,crs-w4",
    ]);
    let report: Value = serde_json::from_str(&json).expect("one JSON document");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 2 * 3);
    for (engine, code) in [("scalar", "crs-w4"), ("scalar", "rs-cauchy")] {
        let both = |row: &&Value| row["engine"] == engine && row["code"] == code;
        assert_eq!(rows.iter().filter(both).count(), 3, "{engine} {code}");
    }
}

#[test]
fn the_table_has_a_line_per_row_and_marks_the_engine_of_auto() {
    let table = quick(&["--op", "encode", "--engine", "auto,scalar"]);
    let lines = |needle: &str| table.lines().filter(|line| line.contains(needle)).count();
    assert_eq!(lines("encode"), 2, "{table}");
    assert_eq!(lines("scalar   rs-cauchy"), 1, "not marked: {table}");
    assert_eq!(lines("* rs-cauchy"), 1, "{table}");
    assert_eq!(lines("memory, one thread: read"), 1, "{table}");
}

#[test]
fn schedules_are_counted_and_the_result_of_a_search_can_be_checked_in() {
    let table = must(CAUCHYFS, &["bench", "schedule", "--code", "crs-w4"]);
    assert_eq!(table.matches("crs-w4").count(), 5, "{table}");
    let narrow = ["--code", "crs-w5", "--data", "2", "--parity", "2"];
    let found = must(
        CAUCHYFS,
        &[&["bench", "schedule", "--search", "2"], &narrow[..]].concat(),
    );
    let entry = found.lines().last().expect("a line");
    assert!(
        entry.starts_with("Entry { width: 5, parity: &[2, 3], data: &[0, 1], seed: "),
        "points are kept unless others are asked for: {found}"
    );
}
