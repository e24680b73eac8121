use std::time::{Duration, Instant};

use super::*;
use crate::control::report::{
    AlertsReport, AlertsState, CodingReport, GpuTimeReport, InterlockReport, MemberState,
    StatusReport, tests as reports,
};
use crate::maintenance::RebuildState;
use crate::stripes::CacheUse;
use crate::transaction::CommitCounts;

/// A volume that lacks member 2, with one stripe without redundancy.
pub(crate) fn report() -> StatusReport {
    let mut report = reports::report(&[2], &[(1, 7), (0, 1)], &[0, 1, 3]);
    report.members[2].bytes_used = None;
    report.members[1].path = Some("/srv/\"a\\b\nc\"".to_owned());
    report.members[1].errors.checksum = 3;
    report
}

fn page(format: Format) -> String {
    let commits = CommitCounts {
        commits: 2,
        failed: 1,
        callers: 9,
        time: Duration::from_millis(1500),
    };
    let sample = Sample::from_report(report(), Some(0), Some(commits), Instant::now());
    page_of(sample, format)
}

fn page_of(sample: Sample, format: Format) -> String {
    let read = OperationCount {
        name: "read",
        buckets: std::array::from_fn(|bucket| if bucket < 2 { 2 } else { 0 }),
        time: Duration::from_micros(50),
        failed: 1,
    };
    let numbers = PageNumbers {
        sample: Arc::new(sample),
        transport: Transport::Classic,
        operations: vec![read],
        bytes_read: 4096,
        bytes_written: 7,
        waited: 7,
        process: ProcessUse::now(),
    };
    families::page(numbers.families().unwrap(), format).unwrap()
}

/// Splits a line into its series and the value, which the formats write in several ways.
fn parsed(line: &str) -> (&str, Result<f64, &str>) {
    let (series, value) = line.rsplit_once(' ').unwrap_or((line, ""));
    (series, value.parse().map_err(|_| value))
}

#[track_caller]
fn assert_has(page: &str, lines: &[&str]) {
    for line in lines {
        let is_there = page.lines().any(|it| parsed(it) == parsed(line));
        assert!(is_there, "{line}\n{page}");
    }
}

#[test]
fn both_formats_show_the_same_numbers_and_name_types_as_each_demands() {
    let open = page(Format::OpenMetrics);
    let text = page(Format::Text);
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    assert!(!text.contains("# EOF"), "{text}");
    assert_has(&open, &["# TYPE cauchyfs_commits counter"]);
    assert_has(&text, &["# TYPE cauchyfs_commits_total counter"]);
    // The order of labels has no meaning.
    let longest = "cauchyfs_operation_duration_seconds_bucket{le=\"+Inf\",operation=\"read\"} 4";
    assert_has(&open, &[longest]);
    for page in [&open, &text] {
        assert_has(
            page,
            &[
                "# TYPE cauchyfs_operation_duration_seconds histogram",
                "cauchyfs_operation_duration_seconds_count{operation=\"read\"} 4",
                "cauchyfs_operation_errors_total{operation=\"read\"} 1",
                "cauchyfs_read_bytes_total 4096",
                "cauchyfs_written_bytes_total 7",
                "cauchyfs_commits_total 2",
                "cauchyfs_commit_errors_total 1",
                "cauchyfs_commit_callers_total 9",
                "cauchyfs_commit_seconds_total 1.5",
                "cauchyfs_member_errors_total{member=\"1\",kind=\"checksum\"} 3",
            ],
        );
    }
    assert_has(
        &text,
        &[
            "cauchyfs_operation_duration_seconds_bucket{operation=\"read\",le=\"1e-05\"} 2",
            "cauchyfs_operation_duration_seconds_bucket{operation=\"read\",le=\"3e-05\"} 4",
            "cauchyfs_operation_duration_seconds_bucket{operation=\"read\",le=\"+Inf\"} 4",
            "cauchyfs_members{state=\"online\"} 5",
            "cauchyfs_members{state=\"missing\"} 1",
            "cauchyfs_member_state{member=\"2\",state=\"missing\"} 1",
            "cauchyfs_member_state{member=\"2\",state=\"online\"} 0",
            "cauchyfs_member_info{member=\"1\",path=\"/srv/\\\"a\\\\b\\nc\\\"\"} 1",
            "cauchyfs_volume_state{state=\"degraded\"} 1",
            "cauchyfs_volume_state{state=\"healthy\"} 0",
            "cauchyfs_stripes{losses_tolerated=\"0\"} 1",
            "cauchyfs_repair_queue_stripes 8",
            "cauchyfs_repair_queue_bytes 2",
            "cauchyfs_losses_promised 2",
            "cauchyfs_index_copies 3",
            "cauchyfs_stripe_dead_bytes 6",
        ],
    );
}

#[test]
fn a_value_that_is_unknown_has_no_series() {
    let unknown = report();
    assert_eq!(unknown.members[2].state, MemberState::Missing);
    let text = page(Format::Text);
    assert!(text.contains("cauchyfs_member_used_bytes{member=\"1\"}"));
    assert!(!text.contains("cauchyfs_member_used_bytes{member=\"2\"}"));
    // No scrub has finished, and nothing is coded.
    assert!(!text.contains("cauchyfs_scrub_last_finished"));
    assert!(!text.contains("cauchyfs_coding_bytes"));
}

/// A rate of a counter that falls to zero and comes back would show errors that nothing had.
#[test]
fn a_survey_shows_no_counters_and_no_work_that_it_does_not_know() {
    let mut surveyed = Sample::from_report(report(), None, None, Instant::now());
    surveyed.is_surveyed = true;
    let text = page_of(surveyed, Format::Text);
    for unknown in [
        "member_errors",
        "member_full",
        "member_suspect",
        "rebuild_",
        "commits",
    ] {
        assert!(!text.contains(&format!("cauchyfs_{unknown}")), "{unknown}");
    }
    assert!(!text.contains("cauchyfs_unrecoverable_files"));
    assert!(text.contains("cauchyfs_member_state{member=\"2\",state=\"missing\"} 1"));
}

#[test]
fn every_family_is_written_once_with_help_and_type() {
    let text = page(Format::Text);
    let named = |prefix: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        let names = lines.map(|line| line.split(' ').next().unwrap().to_owned());
        names.collect()
    };
    let (helps, types) = (named("# HELP "), named("# TYPE "));
    assert_eq!(helps, types);
    let mut once = types.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), types.len(), "{types:?}");
    assert!(types.len() > 40, "{types:?}");
}

#[test]
fn alerts_interlock_cache_and_the_rest_of_a_rebuild_have_numbers_where_there_are_such() {
    let absent = page(Format::Text);
    for name in [
        "alerts_running",
        "removals_refused",
        "cache_",
        "compaction_",
        "gpu_coding_",
        "rebuild_remaining_seconds",
    ] {
        assert!(!absent.contains(&format!("cauchyfs_{name}")), "{name}");
    }
    assert_has(
        &page_of(full_sample(), Format::Text),
        &[
            "cauchyfs_alerts_running 0",
            "cauchyfs_removals_refused 1",
            "cauchyfs_rebuild_remaining_seconds 8",
            "cauchyfs_cache_hits_total 3",
            "cauchyfs_cache_misses_total 4",
            "cauchyfs_cache_bytes 10",
            "cauchyfs_cache_limit_bytes 20",
            "cauchyfs_compaction_written_bytes_total 77",
            "cauchyfs_gpu_coding_seconds_total{gpu=\"0\",name=\"H100\"} 1.5",
            "cauchyfs_gpu_coding_seconds_total{gpu=\"1\",name=\"H100\"} 2.5",
        ],
    );
}

/// Returns a sample with all that a volume may tell.
fn full_sample() -> Sample {
    let mut report = report();
    report.alerts = Some(AlertsReport {
        state: AlertsState::Restarting,
        since: "2026-11-27T00:00:00Z".to_owned(),
        reason: None,
        seconds_to_next: None,
    });
    report.interlock = Some(InterlockReport {
        percent: 25,
        refuses: true,
        removed: 25,
        files: 100,
    });
    report.rebuild.state = RebuildState::Running;
    report.rebuild.bytes_done = 100;
    report.rebuild.bytes_left = 400;
    report.rebuild.milliseconds = 2000;
    let cache = CacheUse {
        bytes: 10,
        limit_bytes: 20,
        hits: 3,
        misses: 4,
    };
    let worked = |seconds| GpuTimeReport {
        name: "H100".to_owned(),
        seconds,
    };
    report.coding = Some(CodingReport {
        gpu_times: vec![worked(1.5), worked(2.5)],
        ..CodingReport::default()
    });
    let mut sample = Sample::from_report(report, None, None, Instant::now());
    sample.cache = Some(cache);
    sample.bytes_compacted = Some(77);
    sample
}

/// Every metric that the dashboard for Grafana or an alert rule asks for is served.
#[test]
fn dashboard_and_alert_rules_ask_for_metrics_that_exist() {
    let commits = CommitCounts::default();
    let mut sample = full_sample();
    sample.commits = Some(commits);
    sample.lost_files = Some(0);
    let text = page_of(sample, Format::Text);
    let types = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name, kind))
    });
    let mut served = std::collections::BTreeSet::new();
    for (name, kind) in types {
        served.insert(name.to_owned());
        if kind == "histogram" {
            served.extend(["bucket", "count", "sum"].map(|it| format!("{name}_{it}")));
        }
    }
    let asked = [
        include_str!("../../../../contrib/grafana/cauchyfs.json"),
        include_str!("../../../../contrib/prometheus/alerts.yml"),
    ];
    for asked in asked {
        let is_part = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        let words = asked.split(|it| !is_part(it));
        let names: Vec<&str> = words.filter(|it| it.starts_with("cauchyfs_")).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(served.contains(name), "{name}");
        }
    }
}
