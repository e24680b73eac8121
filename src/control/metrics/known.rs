//! The families of metrics that a daemon sends: their names, types and help.
//!
//! The dashboard takes no others, and none of these with another type, because a daemon of another user may say anything.

use serde::{Deserialize, Serialize};

use FamilyKind::{Counter, Gauge, Histogram};

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FamilyKind {
    /// Values that rise and fall.
    Gauge,
    /// Values that only grow.
    Counter,
    /// Counts of values by size.
    Histogram,
}

/// A family that daemons send.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownFamily {
    pub(super) name: &'static str,
    pub(super) kind: FamilyKind,
    pub(super) help: &'static str,
}

/// Returns the family of a name. The name of a counter is without the suffix `_total`.
pub(super) fn known(name: &str) -> Option<&'static KnownFamily> {
    KNOWN.iter().find(|it| it.name == name)
}

const fn of(name: &'static str, kind: FamilyKind, help: &'static str) -> KnownFamily {
    KnownFamily { name, kind, help }
}

/// All of them, in the order of the page of one volume.
const KNOWN: &[KnownFamily] = &[
    of(
        "process_open_fds",
        Gauge,
        "Open file descriptors of the daemon when the state of the volume was asked for.",
    ),
    of(
        "cauchyfs_operation_duration_seconds",
        Histogram,
        "Time from the start of work on a request of the kernel to its answer, by operation.",
    ),
    of(
        "cauchyfs_operation_errors",
        Counter,
        "Requests of the kernel that were answered with an error, those of a program's mistake included.",
    ),
    of(
        "cauchyfs_operation_waits",
        Counter,
        "How often a request of the kernel had to wait for a volume that was away; each is answered, and counted, later.",
    ),
    of(
        "cauchyfs_read_bytes",
        Counter,
        "Bytes of files that the kernel read from the daemon; the page cache serves more.",
    ),
    of(
        "cauchyfs_written_bytes",
        Counter,
        "Bytes of files that the kernel wrote to the daemon.",
    ),
    of(
        "process_cpu_seconds",
        Counter,
        "Processor time of the daemon.",
    ),
    of(
        "process_resident_memory_bytes",
        Gauge,
        "Memory of the daemon that is resident.",
    ),
    of(
        "process_virtual_memory_bytes",
        Gauge,
        "Address space of the daemon.",
    ),
    of("process_threads", Gauge, "Threads of the daemon."),
    of(
        "cauchyfs_volume_info",
        Gauge,
        "The volume and the code of new data, always 1.",
    ),
    of(
        "cauchyfs_volume_state",
        Gauge,
        "State of the volume: 1 for the one that it has.",
    ),
    of(
        "cauchyfs_read_only",
        Gauge,
        "1 if the volume takes no writes.",
    ),
    of(
        "cauchyfs_mounted_read_only",
        Gauge,
        "1 if the volume was mounted to be read alone.",
    ),
    of(
        "cauchyfs_background_work_paused",
        Gauge,
        "1 if background work pauses on order.",
    ),
    of(
        "cauchyfs_alerts_running",
        Gauge,
        "1 if the process that sends alerts runs; absent without receivers.",
    ),
    of(
        "cauchyfs_removals_refused",
        Gauge,
        "1 if the interlock refuses to remove files; absent without one.",
    ),
    of(
        "cauchyfs_status_timestamp_seconds",
        Gauge,
        "When the state of the volume was asked for last, since 1970.",
    ),
    of(
        "cauchyfs_status_duration_seconds",
        Gauge,
        "How long that took.",
    ),
    of(
        "cauchyfs_commits",
        Counter,
        "Commits of the journal since the volume was opened.",
    ),
    of(
        "cauchyfs_commit_errors",
        Counter,
        "Commits of the journal that failed.",
    ),
    of(
        "cauchyfs_commit_callers",
        Counter,
        "Calls that wanted a commit; a commit serves all that came before it.",
    ),
    of(
        "cauchyfs_commit_seconds",
        Counter,
        "Time in which a commit ran.",
    ),
    of("cauchyfs_members", Gauge, "Members by state."),
    of(
        "cauchyfs_member_info",
        Gauge,
        "A member and its directory, always 1.",
    ),
    of(
        "cauchyfs_member_state",
        Gauge,
        "State of a member: 1 for the one that it has.",
    ),
    of(
        "cauchyfs_member_errors",
        Counter,
        "Errors of a member: of reading, of writing, and of checksums.",
    ),
    of(
        "cauchyfs_member_used_bytes",
        Gauge,
        "Bytes that the volume takes on a member.",
    ),
    of(
        "cauchyfs_member_free_bytes",
        Gauge,
        "Bytes that are free on a member.",
    ),
    of(
        "cauchyfs_member_full",
        Gauge,
        "1 if a member has no room for new data.",
    ),
    of(
        "cauchyfs_member_suspect",
        Gauge,
        "1 if bytes of a member were wrong since the last scrub.",
    ),
    of(
        "cauchyfs_capacity_bytes",
        Gauge,
        "Bytes of files that the volume can hold.",
    ),
    of(
        "cauchyfs_capacity_used_bytes",
        Gauge,
        "Bytes of these that are in use.",
    ),
    of(
        "cauchyfs_losses_promised",
        Gauge,
        "Losses of members that whole stripes survive.",
    ),
    of(
        "cauchyfs_unrecoverable_files",
        Gauge,
        "Files of which bytes are lost; more than 100000 count as that many.",
    ),
    of(
        "cauchyfs_index_copies",
        Gauge,
        "Copies of the index that are there.",
    ),
    of(
        "cauchyfs_index_copies_wanted",
        Gauge,
        "Copies of the index that there should be.",
    ),
    of(
        "cauchyfs_stripe_bytes",
        Gauge,
        "Live bytes of files by the losses of more members that they survive; -1 is lost.",
    ),
    of(
        "cauchyfs_stripes",
        Gauge,
        "Stripes by the losses of more members that they survive; -1 is lost.",
    ),
    of(
        "cauchyfs_stripe_dead_bytes",
        Gauge,
        "Bytes of stripes in use that no file holds any more; compaction frees them when room is short.",
    ),
    of(
        "cauchyfs_repair_queue_stripes",
        Gauge,
        "Stripes that survive fewer losses than promised.",
    ),
    of(
        "cauchyfs_repair_queue_bytes",
        Gauge,
        "Live bytes of files in these stripes.",
    ),
    of(
        "cauchyfs_rebuild_running",
        Gauge,
        "1 while a rebuild, a balance or a move of data runs.",
    ),
    of(
        "cauchyfs_rebuild_progress_ratio",
        Gauge,
        "The part of the last rebuild that is done.",
    ),
    of(
        "cauchyfs_rebuild_done_bytes",
        Gauge,
        "Bytes that the last rebuild has written.",
    ),
    of(
        "cauchyfs_rebuild_remaining_bytes",
        Gauge,
        "Bytes that are left of the last rebuild.",
    ),
    of(
        "cauchyfs_rebuild_remaining_seconds",
        Gauge,
        "Time that the rest takes at the speed until now; absent while nothing runs.",
    ),
    of(
        "cauchyfs_rebuild_waiting_bytes",
        Gauge,
        "Bytes of these that have no directory to go to.",
    ),
    of(
        "cauchyfs_rebuild_unreadable_bytes",
        Gauge,
        "Bytes of these that keep their place because data beside them cannot be read.",
    ),
    of("cauchyfs_scrub_running", Gauge, "1 while a scrub runs."),
    of(
        "cauchyfs_compaction_written_bytes",
        Counter,
        "Bytes that compaction has written to members, to free the space of bytes that no file holds any more.",
    ),
    of(
        "cauchyfs_scrub_progress_ratio",
        Gauge,
        "The part of the last scrub that is done.",
    ),
    of(
        "cauchyfs_scrub_repaired",
        Gauge,
        "Pieces that the last scrub has repaired.",
    ),
    of(
        "cauchyfs_scrub_last_finished_timestamp_seconds",
        Gauge,
        "When the last complete scrub finished, since 1970; absent if none has.",
    ),
    of(
        "cauchyfs_cache_hits",
        Counter,
        "Look-ups in the cache of shards that found one.",
    ),
    of(
        "cauchyfs_cache_misses",
        Counter,
        "Look-ups that found none, but for those while the cache was empty.",
    ),
    of(
        "cauchyfs_cache_bytes",
        Gauge,
        "Bytes that the cache of shards holds.",
    ),
    of(
        "cauchyfs_cache_limit_bytes",
        Gauge,
        "Bytes that it may hold.",
    ),
    of(
        "cauchyfs_coding_info",
        Gauge,
        "The coding engine, always 1.",
    ),
    of(
        "cauchyfs_coding_passes",
        Counter,
        "Stripes, or parts of some, that were coded.",
    ),
    of(
        "cauchyfs_coding_bytes",
        Counter,
        "Bytes that were gone over to code them.",
    ),
    of(
        "cauchyfs_coding_seconds",
        Counter,
        "Time in which at least one stripe was being coded.",
    ),
    of(
        "cauchyfs_coding_redone_passes",
        Counter,
        "Passes that the CPU did because a GPU had failed to.",
    ),
    of("cauchyfs_coding_gpus", Gauge, "GPUs in use."),
    of(
        "cauchyfs_coding_gpus_hanging",
        Gauge,
        "GPUs that do not answer.",
    ),
    of(
        "cauchyfs_gpu_coding_seconds",
        Counter,
        "Time in which a GPU had at least one batch of stripes to code, with the copies to it and back.",
    ),
];
