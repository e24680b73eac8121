//! Metrics of the volume: what `status` shows of it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::out::{Labels, Out};
use crate::control::metrics::sampler::Sample;
use crate::control::report::{
    AlertsState, CodingReport, MemberReport, MemberState, RebuildReport, RedundancyReport,
    StatusReport, VolumeState,
};
use crate::fuse::Transport;
use crate::maintenance::RebuildState;
use crate::stripes::CacheUse;

const MEMBER_STATES: [(MemberState, &str); 5] = [
    (MemberState::Online, "online"),
    (MemberState::Missing, "missing"),
    (MemberState::Faulted, "faulted"),
    (MemberState::Rebuilding, "rebuilding"),
    (MemberState::Removing, "removing"),
];

const VOLUME_STATES: [(VolumeState, &str); 3] = [
    (VolumeState::Healthy, "healthy"),
    (VolumeState::Degraded, "degraded"),
    (VolumeState::Failed, "failed"),
];

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has no other numbers"
)]
pub(super) fn number(value: u64) -> f64 {
    value as f64
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

fn label(name: &'static str, value: &(impl ToString + ?Sized)) -> Labels {
    vec![(name, value.to_string())]
}

fn seconds_since_1970(moment: SystemTime) -> Option<f64> {
    let since = moment.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}

/// Writes the volume as a whole, and its commits.
pub(super) fn write_volume(
    sample: &Sample,
    transport: Transport,
    out: &mut Out<'_>,
) -> fmt::Result {
    let report = &sample.report;
    let transport = match transport {
        Transport::Uring => "uring",
        Transport::Classic => "classic",
    };
    let info = vec![
        ("volume", report.volume.clone()),
        ("label", report.label.clone()),
        ("code", report.geometry.code.clone()),
        ("data", report.geometry.data.to_string()),
        ("parity", report.geometry.parity.to_string()),
        ("transport", transport.to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    out.gauges("cauchyfs_volume_info", [(info, 1.0)])?;
    let states =
        VOLUME_STATES.map(|(state, name)| (label("state", name), flag(report.state == state)));
    out.gauges("cauchyfs_volume_state", states)?;
    out.gauge("cauchyfs_read_only", flag(report.read_only))?;
    out.gauge("cauchyfs_mounted_read_only", flag(report.mounted_read_only))?;
    out.gauge("cauchyfs_background_work_paused", flag(report.paused))?;
    out.gauge(
        "cauchyfs_alerts_running",
        report
            .alerts
            .as_ref()
            .map(|it| flag(it.state == AlertsState::Running)),
    )?;
    out.gauge(
        "cauchyfs_removals_refused",
        report.interlock.as_ref().map(|it| flag(it.refuses)),
    )?;
    out.gauge(
        "cauchyfs_status_timestamp_seconds",
        seconds_since_1970(sample.taken_at),
    )?;
    out.gauge(
        "cauchyfs_status_duration_seconds",
        sample.took.as_secs_f64(),
    )?;
    let Some(commits) = sample.commits else {
        return Ok(());
    };
    out.counter("cauchyfs_commits", &commits.commits)?;
    out.counter("cauchyfs_commit_errors", &commits.failed)?;
    out.counter("cauchyfs_commit_callers", &commits.callers)?;
    out.counter("cauchyfs_commit_seconds", &commits.time.as_secs_f64())
}

/// Writes each member. A survey does not count errors, and does not know which member is full or suspect.
pub(super) fn write_members(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let members = &sample.report.members;
    let counted: &[MemberReport] = if sample.is_surveyed { &[] } else { members };
    let of = |member: &MemberReport| label("member", &member.index);
    out.gauges(
        "cauchyfs_members",
        MEMBER_STATES.map(|(state, name)| {
            let found = members.iter().filter(|it| it.state == state);
            (label("state", name), number(found.count() as u64))
        }),
    )?;
    out.gauges(
        "cauchyfs_member_info",
        members.iter().map(|it| {
            let path = it.path.clone().unwrap_or_default();
            (vec![("member", it.index.to_string()), ("path", path)], 1.0)
        }),
    )?;
    let states = members.iter().flat_map(|it| {
        MEMBER_STATES.map(|(state, name)| {
            let labels = vec![("member", it.index.to_string()), ("state", name.to_owned())];
            (labels, flag(it.state == state))
        })
    });
    out.gauges("cauchyfs_member_state", states)?;
    let errors = counted.iter().flat_map(|it| {
        let counts = [
            ("read", it.errors.read),
            ("write", it.errors.write),
            ("checksum", it.errors.checksum),
        ];
        counts.map(|(kind, count)| {
            let labels = vec![("member", it.index.to_string()), ("kind", kind.to_owned())];
            (labels, count)
        })
    });
    out.counters("cauchyfs_member_errors", errors)?;
    let bytes = |value: fn(&MemberReport) -> Option<u64>| {
        let known = members.iter().filter_map(move |it| Some((it, value(it)?)));
        known.map(move |(it, bytes)| (of(it), number(bytes)))
    };
    out.gauges("cauchyfs_member_used_bytes", bytes(|it| it.bytes_used))?;
    out.gauges("cauchyfs_member_free_bytes", bytes(|it| it.bytes_free))?;
    out.gauges(
        "cauchyfs_member_full",
        counted.iter().map(|it| (of(it), flag(it.full))),
    )?;
    out.gauges(
        "cauchyfs_member_suspect",
        counted.iter().map(|it| (of(it), flag(it.suspect))),
    )
}

/// Writes space, redundancy and losses.
pub(super) fn write_data(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let report = &sample.report;
    out.gauge(
        "cauchyfs_capacity_bytes",
        report.capacity.bytes_usable.map(number),
    )?;
    out.gauge(
        "cauchyfs_capacity_used_bytes",
        report.capacity.bytes_used.map(number),
    )?;
    out.gauge(
        "cauchyfs_losses_promised",
        number(report.geometry.losses_survived() as u64),
    )?;
    if let Some(rows) = &report.redundancy {
        write_redundancy(rows, report.geometry.full_redundancy(), out)?;
    }
    out.gauge(
        "cauchyfs_unrecoverable_files",
        sample.lost_files.map(number),
    )?;
    let Some(index) = &report.index else {
        return Ok(());
    };
    out.gauge("cauchyfs_index_copies", number(index.members.len() as u64))?;
    out.gauge(
        "cauchyfs_index_copies_wanted",
        number(index.copies_wanted as u64),
    )
}

fn write_redundancy(rows: &[RedundancyReport], full: i64, out: &mut Out<'_>) -> fmt::Result {
    let by = |value: fn(&RedundancyReport) -> u64| {
        let rows = rows.iter();
        rows.map(move |row| {
            (
                label("losses_tolerated", &row.losses_tolerated),
                number(value(row)),
            )
        })
    };
    out.gauges("cauchyfs_stripe_bytes", by(|row| row.bytes))?;
    out.gauges("cauchyfs_stripes", by(|row| row.stripes))?;
    out.gauge(
        "cauchyfs_stripe_dead_bytes",
        number(rows.iter().map(|row| row.dead_bytes).sum()),
    )?;
    let queued = rows.iter().filter(|row| row.reduced_stripes(full) > 0);
    let stripes = queued.clone().map(|row| row.reduced_stripes(full));
    out.gauge("cauchyfs_repair_queue_stripes", number(stripes.sum()))?;
    let bytes = queued.map(|row| row.bytes);
    out.gauge("cauchyfs_repair_queue_bytes", number(bytes.sum()))
}

/// Writes rebuild and scrub. A survey knows of neither.
pub(super) fn write_work(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let report = &sample.report;
    if sample.is_surveyed {
        return Ok(());
    }
    write_rebuild(&report.rebuild, out)?;
    if let Some(bytes) = &sample.bytes_compacted {
        out.counter("cauchyfs_compaction_written_bytes", bytes)?;
    }
    write_scrub(report, out)
}

fn write_rebuild(rebuild: &RebuildReport, out: &mut Out<'_>) -> fmt::Result {
    out.gauge(
        "cauchyfs_rebuild_running",
        flag(rebuild.state == RebuildState::Running),
    )?;
    out.gauge("cauchyfs_rebuild_progress_ratio", rebuild.progress)?;
    out.gauge("cauchyfs_rebuild_done_bytes", number(rebuild.bytes_done))?;
    out.gauge(
        "cauchyfs_rebuild_remaining_bytes",
        number(rebuild.bytes_left),
    )?;
    out.gauge("cauchyfs_rebuild_remaining_seconds", rebuild.seconds_left())?;
    out.gauge(
        "cauchyfs_rebuild_waiting_bytes",
        number(rebuild.bytes_waiting),
    )?;
    out.gauge(
        "cauchyfs_rebuild_unreadable_bytes",
        number(rebuild.bytes_unreadable),
    )
}

fn write_scrub(report: &StatusReport, out: &mut Out<'_>) -> fmt::Result {
    let Some(scrub) = &report.scrub else {
        return Ok(());
    };
    out.gauge("cauchyfs_scrub_running", flag(report.is_scrubbing()))?;
    out.gauge("cauchyfs_scrub_progress_ratio", scrub.progress)?;
    out.gauge("cauchyfs_scrub_repaired", number(scrub.repaired))?;
    let finished = scrub.finished_at.as_deref();
    let finished = finished.and_then(|it| it.parse::<jiff::Timestamp>().ok());
    out.gauge(
        "cauchyfs_scrub_last_finished_timestamp_seconds",
        finished.map(|it| it.as_duration().as_secs_f64()),
    )
}

/// Writes the use of the cache of shards.
pub(super) fn write_cache(cache: &CacheUse, out: &mut Out<'_>) -> fmt::Result {
    out.counter("cauchyfs_cache_hits", &cache.hits)?;
    out.counter("cauchyfs_cache_misses", &cache.misses)?;
    out.gauge("cauchyfs_cache_bytes", number(cache.bytes))?;
    out.gauge("cauchyfs_cache_limit_bytes", number(cache.limit_bytes))
}

/// Writes the work of coding.
pub(super) fn write_coding(coding: &CodingReport, engine: &str, out: &mut Out<'_>) -> fmt::Result {
    let sides = [("cpu", coding.cpu), ("cuda", coding.cuda)];
    out.gauges("cauchyfs_coding_info", [(label("engine", engine), 1.0)])?;
    out.counters(
        "cauchyfs_coding_passes",
        sides.map(|(side, coded)| (label("processor", side), coded.passes)),
    )?;
    out.counters(
        "cauchyfs_coding_bytes",
        sides.map(|(side, coded)| (label("processor", side), coded.bytes)),
    )?;
    out.counters(
        "cauchyfs_coding_seconds",
        sides.map(|(side, coded)| (label("processor", side), coded.seconds)),
    )?;
    out.counter("cauchyfs_coding_redone_passes", &coding.redone)?;
    out.gauge("cauchyfs_coding_gpus", number(coding.gpus.len() as u64))?;
    out.gauge(
        "cauchyfs_coding_gpus_hanging",
        number(coding.gpus_hanging.len() as u64),
    )?;
    out.counters(
        "cauchyfs_gpu_coding_seconds",
        coding.gpu_times.iter().enumerate().map(|(number, gpu)| {
            let labels = vec![("gpu", number.to_string()), ("name", gpu.name.clone())];
            (labels, gpu.seconds)
        }),
    )
}
