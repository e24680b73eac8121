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

/// The shortest run of the random code.
const QUICK_RATELESS: [&str; 10] = [
    "bench",
    "rateless",
    "--packets",
    "32,300",
    "--messages",
    "1,9",
    "--trials",
    "100",
    "--seconds",
    "0.001",
];

#[test]
fn the_random_code_is_measured_beside_the_exact_probability_and_the_base_case() {
    let output = run(CAUCHYFS, &[&QUICK_RATELESS[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "no progress without a terminal: {output:?}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["packet_bits"], 8192);

    let completeness = report["completeness"].as_array().expect("rows");
    let received: Vec<u64> = completeness
        .iter()
        .filter_map(|row| row["received"].as_u64())
        .collect();
    let expected: Vec<u64> = (32..=45).collect();
    assert_eq!(received, expected, "only of k = 32: 300 are too many");
    let exact = completeness[10]["exact"].as_f64().expect("a number");
    assert!((exact - 0.999_023).abs() < 1e-5, "{exact}");

    let single = report["single"].as_array().expect("rows");
    for packets in [32, 300] {
        for decoder in ["serial", "words", "parts", "tables", "incremental"] {
            let is_row = |row: &&Value| {
                row["packets"] == packets && row["decoder"] == decoder && row["threads"] == 1
            };
            let rows: Vec<&Value> = single.iter().filter(is_row).collect();
            assert_eq!(rows.len(), 1, "{packets} {decoder}");
            let [time, base, speed_up] = ["median_us", "base_us", "speed_up"]
                .map(|key| rows[0][key].as_f64().expect("a number"));
            assert!(
                time > 0.0 && (speed_up - base / time).abs() < 1e-6 * speed_up,
                "{rows:?}"
            );
        }
    }
    let bulk = report["bulk"].as_array().expect("rows");
    for numbers in ["different", "equal"] {
        for messages in [1, 9] {
            let is_row = |row: &&Value| {
                row["numbers"] == numbers && row["messages"] == messages && row["threads"] == 1
            };
            let rows: Vec<&Value> = bulk.iter().filter(is_row).collect();
            assert_eq!(rows.len(), 1, "{numbers} {messages}");
            for figure in ["speed_up", "copy_speed_up"] {
                assert!(rows[0][figure].as_f64() > Some(0.0), "{figure}: {rows:?}");
            }
        }
    }

    let on_gpu = report["on_gpu"].as_array().expect("rows");
    if report["gpu"].is_null() {
        assert!(on_gpu.is_empty(), "{on_gpu:?}");
        return;
    }
    for (packets, messages) in [(300, 1), (32, 9)] {
        let is_row = |row: &&Value| {
            (&row["packets"], &row["messages"]) == (&packets.into(), &messages.into())
                && row["numbers"] == "different"
        };
        let rows = on_gpu.iter().filter(is_row);
        let found: Vec<&Value> = rows.map(|row| &row["place"]).collect();
        assert_eq!(found, ["gpu", "pinned"], "{packets} {messages}");
    }
}

#[test]
fn the_tables_of_the_random_code_have_a_line_per_row() {
    let table = must(CAUCHYFS, &QUICK_RATELESS);
    let lines = |needle: &str| table.lines().filter(|line| line.contains(needle)).count();
    assert_eq!(lines("  serial  "), 2, "{table}");
    assert!(
        lines("  different  ") >= 2 && lines("  equal  ") >= 2,
        "{table}"
    );
    assert_eq!(lines("messages  complete     exact"), 1, "{table}");
    let has_gpu = lines("  kernels  ") > 0;
    assert_eq!(lines("no GPU"), usize::from(!has_gpu), "{table}");
}

/// A run of the literature's figures that ends within seconds. The thesis is left out: it takes gigabytes.
const QUICK_PAPERS: [&str; 6] = [
    "bench",
    "papers",
    "--source",
    "g-crs,fast19,gpu-rscode,opencl",
    "--seconds",
    "0.002",
];

/// Returns the row of a table that has this quantity.
fn row_of<'r>(table: &'r Value, quantity: &str) -> &'r Value {
    let rows = table["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["quantity"] == quantity);
    row.unwrap_or_else(|| panic!("no {quantity}: {rows:?}"))
}

#[test]
fn figures_of_the_literature_stand_beside_ours_with_their_ratio_or_the_reason_why_there_is_none() {
    let output = run(CAUCHYFS, &[&QUICK_PAPERS[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "no progress without a terminal: {output:?}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let tables = report["tables"].as_array().expect("tables");
    let sources: Vec<&str> = tables.iter().filter_map(|t| t["source"].as_str()).collect();
    assert_eq!(sources, ["g-crs", "fast19", "gpu-rscode", "opencl"]);
    for row in tables
        .iter()
        .flat_map(|t| t["rows"].as_array().expect("rows"))
    {
        let [published, ours, ratio] = ["published", "ours", "ratio"].map(|key| row[key].as_f64());
        match (ours.zip(published), ratio) {
            (Some((ours, published)), Some(ratio)) => {
                let is_less_better = row["unit"] == "ms" || row["unit"] == "XORs";
                let expected = if is_less_better {
                    published / ours
                } else {
                    ours / published
                };
                assert!((ratio - expected).abs() <= 1e-9 * expected, "{row}");
            }
            (both, ratio) => assert!(both.is_none() && ratio.is_none(), "{row}"),
        }
        assert_eq!(ours.is_some(), row["missing"].is_null(), "{row}");
        assert_eq!(
            published.is_some(),
            row["published_on"].is_string(),
            "{row}"
        );
        assert!(ours.is_none_or(|ours| ours > 0.0), "{row}");
    }

    let [g_crs, fast19, gpu_rscode, opencl] = &tables[..] else {
        unreachable!("four tables");
    };
    let xors = row_of(fast19, "crs-w4 6+2");
    assert_eq!(
        (&xors["published"], &xors["unit"]),
        (&57.0.into(), &"XORs".into())
    );
    for row in [
        row_of(fast19, "rs-cauchy 10+4, encode"),
        row_of(g_crs, "CPU, 1 thread, warm: k=10 m=2 w=4"),
        row_of(opencl, "CPU, threads: 1"),
    ] {
        assert!(
            row["ours"].as_f64() > Some(0.0) && row["unit"] == "GB/s",
            "{row}"
        );
    }
    let tables = row_of(
        gpu_rscode,
        "1,600 MB: CPU, 1 thread, table look-up, the slowest engine",
    );
    assert!(tables["ours"].as_f64() > Some(0.0), "{tables}");
    assert_eq!(tables["published"], 4309.08);

    let of_gpu = [
        row_of(g_crs, "GPU: m=1 w=8"),
        row_of(gpu_rscode, "1,600 MB: GPU, the best of these"),
        row_of(opencl, "GPU, over the bus"),
        row_of(
            opencl,
            "one queue: both at best, of the lower of sum and plain XOR",
        ),
    ];
    let has_gpu = report["gpu"].is_string();
    for row in of_gpu {
        let missing = if has_gpu {
            Value::Null
        } else {
            "no GPU".into()
        };
        assert_eq!(row["missing"], missing, "{row}");
    }
}

#[test]
fn the_tables_of_the_literature_have_a_line_per_figure() {
    let table = must(
        CAUCHYFS,
        &[
            "bench",
            "papers",
            "--source",
            "fast19",
            "--seconds",
            "0.001",
        ],
    );
    let lines = |needle: &str| table.lines().filter(|line| line.contains(needle)).count();
    assert_eq!(lines(" XORs "), 10, "{table}");
    assert_eq!(lines("ISA-L "), 5, "{table}");
    assert_eq!(lines("paper        ours    ratio"), 1, "{table}");
    assert_eq!(lines("T. Zhou and C. Tian"), 1, "no other source: {table}");
}
