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
    out.gauges(
        "cauchyfs_volume_info",
        "The volume and the code of new data, always 1.",
        [(info, 1.0)],
    )?;
    let states =
        VOLUME_STATES.map(|(state, name)| (label("state", name), flag(report.state == state)));
    out.gauges(
        "cauchyfs_volume_state",
        "State of the volume: 1 for the one that it has.",
        states,
    )?;
    out.gauge(
        "cauchyfs_read_only",
        "1 if the volume takes no writes.",
        flag(report.read_only),
    )?;
    out.gauge(
        "cauchyfs_mounted_read_only",
        "1 if the volume was mounted to be read alone.",
        flag(report.mounted_read_only),
    )?;
    out.gauge(
        "cauchyfs_background_work_paused",
        "1 if background work pauses on order.",
        flag(report.paused),
    )?;
    out.gauge(
        "cauchyfs_alerts_running",
        "1 if the process that sends alerts runs; absent without receivers.",
        report
            .alerts
            .as_ref()
            .map(|it| flag(it.state == AlertsState::Running)),
    )?;
    out.gauge(
        "cauchyfs_removals_refused",
        "1 if the interlock refuses to remove files; absent without one.",
        report.interlock.as_ref().map(|it| flag(it.refuses)),
    )?;
    out.gauge(
        "cauchyfs_status_timestamp_seconds",
        "When the state of the volume was asked for last, since 1970.",
        seconds_since_1970(sample.taken_at),
    )?;
    out.gauge(
        "cauchyfs_status_duration_seconds",
        "How long that took.",
        sample.took.as_secs_f64(),
    )?;
    let Some(commits) = sample.commits else {
        return Ok(());
    };
    out.counter(
        "cauchyfs_commits",
        "Commits of the journal since the volume was opened.",
        &commits.commits,
    )?;
    out.counter(
        "cauchyfs_commit_errors",
        "Commits of the journal that failed.",
        &commits.failed,
    )?;
    out.counter(
        "cauchyfs_commit_callers",
        "Calls that wanted a commit; a commit serves all that came before it.",
        &commits.callers,
    )?;
    out.counter(
        "cauchyfs_commit_seconds",
        "Time in which a commit ran.",
        &commits.time.as_secs_f64(),
    )
}

/// Writes each member. A survey does not count errors, and does not know which member is full or suspect.
pub(super) fn write_members(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let members = &sample.report.members;
    let counted: &[MemberReport] = if sample.is_surveyed { &[] } else { members };
    let of = |member: &MemberReport| label("member", &member.index);
    out.gauges(
        "cauchyfs_members",
        "Members by state.",
        MEMBER_STATES.map(|(state, name)| {
            let found = members.iter().filter(|it| it.state == state);
            (label("state", name), number(found.count() as u64))
        }),
    )?;
    out.gauges(
        "cauchyfs_member_info",
        "A member and its directory, always 1.",
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
    out.gauges(
        "cauchyfs_member_state",
        "State of a member: 1 for the one that it has.",
        states,
    )?;
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
    out.counters(
        "cauchyfs_member_errors",
        "Errors of a member: of reading, of writing, and of checksums.",
        errors,
    )?;
    let bytes = |value: fn(&MemberReport) -> Option<u64>| {
        let known = members.iter().filter_map(move |it| Some((it, value(it)?)));
        known.map(move |(it, bytes)| (of(it), number(bytes)))
    };
    out.gauges(
        "cauchyfs_member_used_bytes",
        "Bytes that the volume takes on a member.",
        bytes(|it| it.bytes_used),
    )?;
    out.gauges(
        "cauchyfs_member_free_bytes",
        "Bytes that are free on a member.",
        bytes(|it| it.bytes_free),
    )?;
    out.gauges(
        "cauchyfs_member_full",
        "1 if a member has no room for new data.",
        counted.iter().map(|it| (of(it), flag(it.full))),
    )?;
    out.gauges(
        "cauchyfs_member_suspect",
        "1 if bytes of a member were wrong since the last scrub.",
        counted.iter().map(|it| (of(it), flag(it.suspect))),
    )
}

/// Writes space, redundancy and losses.
pub(super) fn write_data(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let report = &sample.report;
    out.gauge(
        "cauchyfs_capacity_bytes",
        "Bytes of files that the volume can hold.",
        report.capacity.bytes_usable.map(number),
    )?;
    out.gauge(
        "cauchyfs_capacity_used_bytes",
        "Bytes of these that are in use.",
        report.capacity.bytes_used.map(number),
    )?;
    out.gauge(
        "cauchyfs_losses_promised",
        "Losses of members that whole stripes survive.",
        number(report.geometry.losses_survived() as u64),
    )?;
    if let Some(rows) = &report.redundancy {
        write_redundancy(rows, report.geometry.full_redundancy(), out)?;
    }
    out.gauge(
        "cauchyfs_unrecoverable_files",
        "Files of which bytes are lost; more than 100000 count as that many.",
        sample.lost_files.map(number),
    )?;
    let Some(index) = &report.index else {
        return Ok(());
    };
    out.gauge(
        "cauchyfs_index_copies",
        "Copies of the index that are there.",
        number(index.members.len() as u64),
    )?;
    out.gauge(
        "cauchyfs_index_copies_wanted",
        "Copies of the index that there should be.",
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
    out.gauges(
        "cauchyfs_stripe_bytes",
        "Live bytes of files by the losses of more members that they survive; -1 is lost.",
        by(|row| row.bytes),
    )?;
    out.gauges(
        "cauchyfs_stripes",
        "Stripes by the losses of more members that they survive; -1 is lost.",
        by(|row| row.stripes),
    )?;
    out.gauge(
        "cauchyfs_stripe_dead_bytes",
        "Bytes of stripes in use that no file holds any more; compaction frees them when room is short.",
        number(rows.iter().map(|row| row.dead_bytes).sum()),
    )?;
    let queued = rows.iter().filter(|row| row.losses_tolerated < full);
    let sum = |value: fn(&RedundancyReport) -> u64| number(queued.clone().map(value).sum());
    out.gauge(
        "cauchyfs_repair_queue_stripes",
        "Stripes that survive fewer losses than promised.",
        sum(|row| row.stripes),
    )?;
    out.gauge(
        "cauchyfs_repair_queue_bytes",
        "Live bytes of files in these stripes.",
        sum(|row| row.bytes),
    )
}

/// Writes rebuild and scrub. A survey knows of neither.
pub(super) fn write_work(sample: &Sample, out: &mut Out<'_>) -> fmt::Result {
    let report = &sample.report;
    if sample.is_surveyed {
        return Ok(());
    }
    write_rebuild(&report.rebuild, out)?;
    if let Some(bytes) = &sample.bytes_compacted {
        out.counter(
            "cauchyfs_compaction_written_bytes",
            "Bytes that compaction has written to members, to free the space of bytes that no file holds any more.",
            bytes,
        )?;
    }
    write_scrub(report, out)
}

fn write_rebuild(rebuild: &RebuildReport, out: &mut Out<'_>) -> fmt::Result {
    out.gauge(
        "cauchyfs_rebuild_running",
        "1 while a rebuild, a balance or a move of data runs.",
        flag(rebuild.state == RebuildState::Running),
    )?;
    out.gauge(
        "cauchyfs_rebuild_progress_ratio",
        "The part of the last rebuild that is done.",
        rebuild.progress,
    )?;
    out.gauge(
        "cauchyfs_rebuild_done_bytes",
        "Bytes that the last rebuild has written.",
        number(rebuild.bytes_done),
    )?;
    out.gauge(
        "cauchyfs_rebuild_remaining_bytes",
        "Bytes that are left of the last rebuild.",
        number(rebuild.bytes_left),
    )?;
    out.gauge(
        "cauchyfs_rebuild_remaining_seconds",
        "Time that the rest takes at the speed until now; absent while nothing runs.",
        rebuild.seconds_left(),
    )?;
    out.gauge(
        "cauchyfs_rebuild_waiting_bytes",
        "Bytes of these that have no directory to go to.",
        number(rebuild.bytes_waiting),
    )?;
    out.gauge(
        "cauchyfs_rebuild_unreadable_bytes",
        "Bytes of these that keep their place because data beside them cannot be read.",
        number(rebuild.bytes_unreadable),
    )
}

fn write_scrub(report: &StatusReport, out: &mut Out<'_>) -> fmt::Result {
    let Some(scrub) = &report.scrub else {
        return Ok(());
    };
    out.gauge(
        "cauchyfs_scrub_running",
        "1 while a scrub runs.",
        flag(report.is_scrubbing()),
    )?;
    out.gauge(
        "cauchyfs_scrub_progress_ratio",
        "The part of the last scrub that is done.",
        scrub.progress,
    )?;
    out.gauge(
        "cauchyfs_scrub_repaired",
        "Pieces that the last scrub has repaired.",
        number(scrub.repaired),
    )?;
    let finished = scrub.finished_at.as_deref();
    let finished = finished.and_then(|it| it.parse::<jiff::Timestamp>().ok());
    out.gauge(
        "cauchyfs_scrub_last_finished_timestamp_seconds",
        "When the last complete scrub finished, since 1970; absent if none has.",
        finished.map(|it| it.as_duration().as_secs_f64()),
    )
}

/// Writes the use of the cache of shards.
pub(super) fn write_cache(cache: &CacheUse, out: &mut Out<'_>) -> fmt::Result {
    out.counter(
        "cauchyfs_cache_hits",
        "Look-ups in the cache of shards that found one.",
        &cache.hits,
    )?;
    out.counter(
        "cauchyfs_cache_misses",
        "Look-ups that found none, but for those while the cache was empty.",
        &cache.misses,
    )?;
    out.gauge(
        "cauchyfs_cache_bytes",
        "Bytes that the cache of shards holds.",
        number(cache.bytes),
    )?;
    out.gauge(
        "cauchyfs_cache_limit_bytes",
        "Bytes that it may hold.",
        number(cache.limit_bytes),
    )
}

/// Writes the work of coding.
pub(super) fn write_coding(coding: &CodingReport, engine: &str, out: &mut Out<'_>) -> fmt::Result {
    let sides = [("cpu", coding.cpu), ("cuda", coding.cuda)];
    out.gauges(
        "cauchyfs_coding_info",
        "The coding engine, always 1.",
        [(label("engine", engine), 1.0)],
    )?;
    out.counters(
        "cauchyfs_coding_passes",
        "Stripes, or parts of some, that were coded.",
        sides.map(|(side, coded)| (label("processor", side), coded.passes)),
    )?;
    out.counters(
        "cauchyfs_coding_bytes",
        "Bytes that were gone over to code them.",
        sides.map(|(side, coded)| (label("processor", side), coded.bytes)),
    )?;
    out.float_counters(
        "cauchyfs_coding_seconds",
        "Time in which at least one stripe was being coded.",
        sides.map(|(side, coded)| (label("processor", side), coded.seconds)),
    )?;
    out.counter(
        "cauchyfs_coding_redone_passes",
        "Passes that the CPU did because a GPU had failed to.",
        &coding.redone,
    )?;
    out.gauge(
        "cauchyfs_coding_gpus",
        "GPUs in use.",
        number(coding.gpus.len() as u64),
    )?;
    out.gauge(
        "cauchyfs_coding_gpus_hanging",
        "GPUs that do not answer.",
        number(coding.gpus_hanging.len() as u64),
    )?;
    out.float_counters(
        "cauchyfs_gpu_coding_seconds",
        "Time in which a GPU had at least one batch of stripes to code, with the copies to it and back.",
        coding.gpu_times.iter().enumerate().map(|(number, gpu)| {
            let labels = vec![("gpu", number.to_string()), ("name", gpu.name.clone())];
            (labels, gpu.seconds)
        }),
    )
}
