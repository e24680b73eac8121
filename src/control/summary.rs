//! Reports composed from the parts of a volume.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::report::{
    CapacityReport, CodeReport, ErrorCounts, GeometryReport, IndexReport, LostFiles, MemberReport,
    MemberState, PageCacheReport, RebuildReport, RedundancyReport, RewritingReport, ScrubReport,
    StatusReport, SurvivalReport, UncountedReport, VolumeState,
};
use super::scrubbed::{MemberDefects, Scrubbed, UnverifiedMember};
use super::volume_failure::VolumeFailure;
use crate::codec::CodeId;
use crate::format::{MemberIndex, StripeClass};
use crate::fs::Fs;
use crate::maintenance::{
    Maintenance, RebuildProgress, RebuildState, Redundancy, RedundancyCounter, RedundancyRow,
    RewriteStatus, ScrubState, ScrubStatus,
};
use crate::membership::{self, Access, Members, Unusable};
use crate::transaction::{FullMembers, Transactions};

/// The greatest progress of work that is not done. The end of a part of it is no end as long as others may follow.
const MOST_WHILE_RUNNING: f64 = 0.99;

/// Files that are listed by name at most.
const MOST_LISTED: usize = 100_000;

/// The reason why nothing can be counted of a volume with too few members.
pub(crate) const TOO_FEW: &str = "too few members are online to read the records of the volume";

/// Reports on a volume of which nothing can be counted by what its directories alone tell. It gets the reason.
pub(crate) type Survey = Box<dyn Fn(&str) -> Option<StatusReport> + Send + Sync>;

/// Says how an open volume is, counted and not remembered; `notes` say why directories were left out. A value that cannot
/// be counted is left out, with the reason.
pub(crate) fn report(
    fs: &Fs,
    maintenance: &Maintenance,
    notes: &[Unusable],
    mounted: bool,
) -> StatusReport {
    report_listing(maintenance, notes, mounted, |counted| {
        files_in(fs, maintenance.redundancy(), counted)
    })
}

/// Says the same of a mounted volume, but counts the lost files instead of naming them: at most 100,000, and none if they
/// cannot be counted. It needs no filesystem, so that no one who waits for the end of that waits for the count.
pub(super) fn report_without_names(
    maintenance: &Maintenance,
    notes: &[Unusable],
) -> (StatusReport, Option<u64>) {
    let mut files = None;
    let report = report_listing(maintenance, notes, true, |counted| {
        let inodes = maintenance
            .redundancy()
            .inodes_in(&counted.unrecoverable, MOST_LISTED)
            .map_err(VolumeFailure::from)?;
        files = Some(inodes.len() as u64);
        Ok(LostFiles::uncounted())
    });
    (report, files)
}

fn report_listing(
    maintenance: &Maintenance,
    notes: &[Unusable],
    mounted: bool,
    list: impl FnOnce(&Redundancy) -> Result<LostFiles, VolumeFailure>,
) -> StatusReport {
    let transactions = maintenance.transactions();
    let members = transactions.members();
    members.io().probe_hedged();
    let (rows, lost_files) = count(maintenance, list);
    let rows = rows.map(|counted| {
        let rows = counted.rows.iter().map(row_report).collect::<Vec<_>>();
        (Some(rows), codes(transactions, &counted))
    });
    let scrub = maintenance.scrubber().scrub_status();
    let last_finished = scrub.as_ref().map(|scrub| scrub.record.last_finished);
    let mut blank = blank_report(members, notes, last_finished.unwrap_or_default(), TOO_FEW);
    blank
        .uncounted
        .retain(|it| it.field.starts_with("members."));
    note_work(&mut blank.members, maintenance, mounted);
    let mut uncounted = |field: &str, failure: &VolumeFailure| {
        let reason = failure.error.clone();
        blank.uncounted.push(UncountedReport::new(field, reason));
    };
    let redundancy = rows.map_err(|failure| uncounted("redundancy", &failure));
    let (redundancy, codes) = redundancy.unwrap_or_default();
    let lost_files = lost_files.unwrap_or_else(|failure| {
        uncounted("unrecoverable_files", &failure);
        LostFiles::uncounted()
    });
    let waiting = maintenance.scrubber().stripes_waiting();
    let limit = maintenance.scrubber().bytes_per_second();
    let scrub = scrub.and_then(|scrub| Ok(scrub_report(&scrub, limit, waiting?)));
    let scrub = scrub.map_err(|error| uncounted("scrub", &error.into()));
    let scrub = scrub.ok();
    let capacity = capacity(transactions);
    if capacity.bytes_usable.is_none() {
        blank
            .uncounted
            .push(UncountedReport::new("capacity", TOO_FEW));
    }
    let rewriting = maintenance
        .rebuild()
        .rewrite_status()
        .unwrap_or_else(|error| {
            blank
                .uncounted
                .push(UncountedReport::new("rewriting", error.to_string()));
            RewriteStatus::default()
        });
    let rebuild = rebuild_of(maintenance, &mut blank.uncounted);
    let index = index_report(transactions);
    let mounted_read_only = mounted && members.access() == Access::ReadOnly;
    let has_failed = transactions.has_failed();
    let rows = redundancy.as_deref();
    let mut state = StatusReport::judge(&blank.members, rows, Some(&index), &blank.geometry);
    if mounted {
        state = state_of_mount(state, transactions, rows.is_some());
    }
    StatusReport {
        state,
        mounted,
        read_only: mounted_read_only || mounted && has_failed,
        mounted_read_only,
        full_member: transactions.on_full_members(),
        codes,
        awaits_rewrite: rewriting.is_ordered,
        rewriting: RewritingReport::of(&rewriting),
        engine: transactions.engine_name().to_owned(),
        coding: Some(transactions.coding().into()),
        redundancy,
        index: Some(index),
        lost: lost_files,
        scrub,
        capacity,
        rebuild,
        ..blank
    }
}

/// Counts the redundancy, and lists the files that are lost, each as far as it can be.
fn count(
    maintenance: &Maintenance,
    list: impl FnOnce(&Redundancy) -> Result<LostFiles, VolumeFailure>,
) -> (
    Result<Arc<Redundancy>, VolumeFailure>,
    Result<LostFiles, VolumeFailure>,
) {
    match maintenance.redundancy().redundancy() {
        Ok(counted) => {
            let listed = list(&counted);
            (Ok(counted), listed)
        }
        Err(error) => {
            let failure = VolumeFailure::from(error);
            (Err(failure.clone()), Err(failure))
        }
    }
}

/// Says how far the rebuild of a volume is, or its last one, and what is yet to be done for orders.
fn rebuild_of(maintenance: &Maintenance, uncounted: &mut Vec<UncountedReport>) -> RebuildReport {
    let rebuild = maintenance.rebuild();
    let awaits_balance = rebuild.awaits_balance().unwrap_or_else(|error| {
        let reason = error.to_string();
        uncounted.push(UncountedReport::new("rebuild.awaits_balance", reason));
        false
    });
    RebuildReport {
        awaits_balance,
        failure: rebuild.status().failure(),
        ..rebuild_report(&rebuild.status().progress())
    }
}

/// Returns the state of a mounted volume that was judged by its parts. It may serve although its redundancy cannot be
/// counted, and take no writes although nothing is lost.
fn state_of_mount(
    judged: VolumeState,
    transactions: &Transactions,
    is_counted: bool,
) -> VolumeState {
    let is_away = transactions.members().membership().is_failed();
    let is_readable = !is_away && !transactions.index_copies().members.is_empty();
    match judged {
        VolumeState::Failed if !is_counted && is_readable => VolumeState::Degraded,
        VolumeState::Healthy if transactions.has_failed() => VolumeState::Degraded,
        judged => judged,
    }
}

/// Counts the data that has each code: the bytes of files that the count found in each segment. While some have another
/// stripe unit than new data, counts those of each unit apart.
fn codes(transactions: &Transactions, counted: &Redundancy) -> Vec<CodeReport> {
    let mut bytes: BTreeMap<(bool, u64, u8, u8, u32), u64> = BTreeMap::new();
    let in_force = transactions.members().shape().unit_bytes();
    let mut has_other_unit = false;
    for (segment, record) in transactions.segments() {
        let Some(live) = counted.live.get(&segment).filter(|live| **live > 0) else {
            continue;
        };
        let of_directories = record.class != StripeClass::VOLUME;
        let (data, parity) = (record.data_shards, record.parity_shards);
        let unit = transactions.past_unit_of(segment).unwrap_or(in_force);
        has_other_unit |= unit != in_force;
        let code = (of_directories, record.code, data, parity, unit);
        *bytes.entry(code).or_default() += live;
    }
    let report = |((of_directories, code, data, parity, unit), bytes)| CodeReport {
        geometry: GeometryReport {
            data: usize::from(data),
            parity: usize::from(parity),
            code: CodeId(code).to_string(),
            stripe_unit_bytes: has_other_unit.then_some(unit),
            survives: None,
        },
        bytes,
        of_directories,
    };
    bytes.into_iter().map(report).collect()
}

/// Looks for the copies of the index.
pub(super) fn index_report(transactions: &Transactions) -> IndexReport {
    let copies = transactions.index_copies();
    IndexReport {
        copies_wanted: copies.wanted,
        members: copies.members.iter().map(|member| member.0).collect(),
    }
}

/// Measures the capacity; there is none to tell while too few members are online for a stripe.
fn capacity(transactions: &Transactions) -> CapacityReport {
    let space = transactions.space();
    let is_measured = space.usable_total > 0;
    CapacityReport {
        bytes_usable: is_measured.then_some(space.usable_total),
        bytes_used: is_measured.then_some(space.usable_used),
    }
}

/// Notes which members are full, and which are being rebuilt.
fn note_work(members: &mut [MemberReport], maintenance: &Maintenance, mounted: bool) {
    let rebuilding = maintenance.rebuild().status().members();
    let full = if mounted {
        maintenance.transactions().full_members()
    } else {
        BTreeSet::new()
    };
    for member in members {
        member.full = full.contains(&MemberIndex(member.index));
        if member.state == MemberState::Online && rebuilding.contains(&MemberIndex(member.index)) {
            member.state = MemberState::Rebuilding;
        }
    }
}

/// Returns a row of what was counted as it is shown.
pub(crate) fn row_report(row: &RedundancyRow) -> RedundancyReport {
    RedundancyReport {
        losses_tolerated: i64::from(row.losses_tolerated),
        stripes: row.stripes,
        bytes: row.bytes,
        dead_bytes: row.dead,
        as_promised: row.as_promised,
        of_older_code: row.of_older_code,
    }
}

/// Makes a report of what the members alone tell, and asks each of them; `scrubbed` is when they were last verified, in
/// seconds since 1970. `reason` says why nothing else can be counted.
pub(crate) fn blank_report(
    members: &Members,
    notes: &[Unusable],
    scrubbed: u64,
    reason: &str,
) -> StatusReport {
    blank_report_of(members, members.status(), (notes, scrubbed), reason)
}

/// Makes the same report of members that were `found` so.
pub(crate) fn blank_report_of(
    members: &Members,
    found: Vec<membership::MemberStatus>,
    (notes, scrubbed): (&[Unusable], u64),
    reason: &str,
) -> StatusReport {
    let shared_devices = shared_devices(&found);
    let found = found.into_iter();
    let reports: Vec<MemberReport> = found
        .map(|status| member_report(status, notes, scrubbed))
        .collect();
    let of_members = reports.iter().filter_map(UncountedReport::of_member);
    let mut uncounted = UncountedReport::of_records(reason);
    uncounted.extend(of_members);
    StatusReport {
        shared_devices,
        volume: members.shape().volume_id().to_string(),
        label: members.shape().label().to_owned(),
        state: VolumeState::Failed,
        mounted: false,
        transport: None,
        read_only: false,
        mounted_read_only: false,
        paused: false,
        alerts: None,
        interlock: None,
        full_member: FullMembers::Stop,
        elsewhere: None,
        geometry: GeometryReport {
            data: members.shape().geometry().data_shards(),
            parity: members.shape().geometry().parity_shards(),
            code: members.shape().code().to_string(),
            stripe_unit_bytes: Some(members.shape().unit_bytes()),
            survives: SurvivalReport::of(members.shape().survival()),
        },
        codes: Vec::new(),
        awaits_rewrite: false,
        rewriting: RewritingReport::default(),
        engine: "none".to_owned(),
        coding: None,
        members: reports,
        redundancy: None,
        index: None,
        lost: LostFiles::uncounted(),
        capacity: CapacityReport::default(),
        scrub: None,
        rebuild: RebuildReport::default(),
        uncounted,
    }
}

/// Returns the members that share a filesystem with others, by number.
fn shared_devices(members: &[membership::MemberStatus]) -> Vec<Vec<u16>> {
    let mut on: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
    for member in members {
        if let Some(filesystem) = member.filesystem {
            on.entry(filesystem).or_default().push(member.index.0);
        }
    }
    on.into_values()
        .filter(|members| members.len() > 1)
        .collect()
}

/// Says how far a rebuild is.
#[expect(
    clippy::cast_precision_loss,
    reason = "a part of the whole is shown with few digits"
)]
pub(crate) fn rebuild_report(progress: &RebuildProgress) -> RebuildReport {
    let left = progress.bytes_left + progress.bytes_waiting + progress.bytes_unreadable;
    let done = progress.bytes_before + progress.bytes_done;
    let whole = done + left;
    RebuildReport {
        state: progress.state,
        kind: progress.kind,
        progress: match (whole, progress.state) {
            // The work is being counted.
            (0, RebuildState::Running) => 0.0,
            (0, _) => 1.0,
            // The next part of it is counted once this one is written.
            (_, RebuildState::Running) => (done as f64 / whole as f64).min(MOST_WHILE_RUNNING),
            _ => done as f64 / whole as f64,
        },
        bytes_left: left,
        bytes_done: done,
        bytes_moved: progress.moved_before + progress.bytes_moved,
        bytes_waiting: progress.bytes_waiting,
        bytes_without_member: progress.bytes_without_member,
        bytes_unreadable: progress.bytes_unreadable,
        bytes_per_second: None,
        seconds: progress.elapsed.as_secs(),
        milliseconds: u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
        awaits_balance: false,
        failure: None,
    }
}

/// Reports on a member; where its directory could not be used, `notes` say why. `scrubbed` is when it was
/// last verified, in seconds since 1970.
pub(crate) fn member_report(
    status: membership::MemberStatus,
    notes: &[Unusable],
    scrubbed: u64,
) -> MemberReport {
    let known = notes.iter().find(|note| note.path == status.path);
    let reason = match (status.refusal, status.state, known) {
        (None, membership::MemberState::Missing, Some(note)) => Some(note.reason.clone()),
        (refusal, _, _) => refusal.or(status.reason),
    };
    MemberReport {
        index: status.index.0,
        id: status.id.to_string(),
        path: Some(status.path).filter(|path| !path.is_empty()),
        state: match status.state {
            membership::MemberState::Online if status.draining => MemberState::Removing,
            membership::MemberState::Online => MemberState::Online,
            membership::MemberState::Missing => MemberState::Missing,
            membership::MemberState::Faulted => MemberState::Faulted,
        },
        reason,
        bytes_used: status.page_cache.map(|_| status.bytes_used),
        bytes_free: status.page_cache.map(|_| status.bytes_free),
        page_cache: status.page_cache.map(PageCacheReport::from),
        suspect: status.wrong_at > Some(scrubbed),
        full: false,
        errors: ErrorCounts {
            read: status.errors.read,
            write: status.errors.write,
            checksum: status.errors.checksum,
        },
    }
}

/// Names the files that hold bytes that are lost.
pub(crate) fn files_in(
    fs: &Fs,
    counter: &RedundancyCounter,
    redundancy: &Redundancy,
) -> Result<LostFiles, VolumeFailure> {
    if redundancy.unrecoverable.is_empty() {
        return Ok(LostFiles::default());
    }
    let inodes = counter
        .inodes_in(&redundancy.unrecoverable, MOST_LISTED)
        .map_err(VolumeFailure::from)?;
    let paths = fs
        .paths_of(&inodes, MOST_LISTED)
        .map_err(VolumeFailure::from)?;
    let shown = paths.iter().map(|path| String::from_utf8_lossy(path));
    Ok(LostFiles {
        paths: Some(shown.map(Cow::into_owned).collect()),
        are_all: redundancy.lists_all_lost() && inodes.len().max(paths.len()) < MOST_LISTED,
    })
}

/// Says for `status` how the last scrub went, or how far the one is that is under way.
pub(crate) fn scrub_report(
    status: &ScrubStatus,
    bytes_per_second: Option<u64>,
    stripes_waiting: u64,
) -> ScrubReport {
    let is_running = status.state == ScrubState::Running;
    ScrubReport {
        stripes_waiting,
        state: status.state,
        progress: match status.state {
            // The scrub counts missing shards at its end.
            ScrubState::Running => status.progress.min(MOST_WHILE_RUNNING),
            _ => status.progress,
        },
        bytes_per_second: bytes_per_second.filter(|_| is_running),
        repaired: status.record.repaired,
        finished_at: moment(status.record.last_finished),
    }
}

/// Says what a scrub came to.
pub(crate) fn scrubbed_of(
    fs: &Fs,
    maintenance: &Maintenance,
    status: &ScrubStatus,
) -> Result<Scrubbed, VolumeFailure> {
    let redundancy = maintenance.redundancy();
    let counted = redundancy.redundancy().map_err(VolumeFailure::from)?;
    let lost_now = redundancy.lost_bytes_in(&counted);
    let lost_now = lost_now.map_err(VolumeFailure::from)?;
    let record = status.record;
    let members = fs.transactions().members();
    let scrubber = maintenance.scrubber();
    let stripes_waiting = scrubber.stripes_waiting().map_err(VolumeFailure::from)?;
    let defects = scrubber.found_by_scrub().into_iter();
    let defects = defects.map(|(member, pieces)| MemberDefects {
        index: member.0,
        path: Some(members.membership().path(member)).filter(|path| !path.is_empty()),
        pieces,
    });
    Ok(Scrubbed {
        state: status.state,
        progress: status.progress,
        bytes_read: record.bytes,
        repaired: record.repaired,
        wrong: record.wrong,
        stripes_waiting,
        waiting_for_space: scrubber.lacks_space(),
        // Others rebuild meanwhile.
        missing: counted.missing_shards(),
        missing_for_now: counted.missing_beside_too_many(),
        unverified: maintenance.scrubber().unverified_by_scrub(),
        unverified_members: unverified_members(members),
        defects: defects.collect(),
        // Of the files that are named as well, though it did not come to them.
        bytes_lost: record.lost.max(lost_now),
        began_at: moment(record.began),
        finished_at: moment(record.last_finished),
        lost: files_in(fs, redundancy, &counted)?,
    })
}

fn unverified_members(members: &Members) -> Vec<UnverifiedMember> {
    let (live, put_back) = (
        members.membership().live(),
        members.stale_copies().unverified(),
    );
    let unverified = put_back.into_keys().filter(|index| live.contains(index));
    unverified
        .map(|index| UnverifiedMember {
            index: index.0,
            path: members.membership().path(index),
        })
        .collect()
}

/// Writes a moment as RFC 3339 has it; 0 seconds are none.
fn moment(seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    let moment = jiff::Timestamp::from_second(seconds).ok()?;
    Some(moment.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_begins_at_nothing_and_what_had_nothing_to_do_is_complete() {
        let report = |state, bytes_done, bytes_left| {
            rebuild_report(&RebuildProgress {
                state,
                bytes_done,
                bytes_left,
                elapsed: std::time::Duration::from_millis(250),
                ..RebuildProgress::default()
            })
        };
        let parts = [
            (report(RebuildState::Running, 0, 0), 0.0),
            (report(RebuildState::Running, 0, 8), 0.0),
            (report(RebuildState::Running, 2, 6), 0.25),
            (report(RebuildState::Running, 8, 0), 0.99),
            (report(RebuildState::Running, 9999, 1), 0.99),
            (report(RebuildState::Finished, 8, 0), 1.0),
            (report(RebuildState::Finished, 0, 0), 1.0),
            (report(RebuildState::Idle, 0, 0), 1.0),
        ];
        for (report, expected) in parts {
            assert!((report.progress - expected).abs() < 1e-9, "{report:?}");
            assert_eq!((report.seconds, report.milliseconds), (0, 250));
        }
    }

    /// It has passed all segments then, and counts what is missing.
    #[test]
    fn a_scrub_is_complete_only_once_it_ended_and_has_a_limit_only_until_then() {
        let report = |state, progress| {
            let status = ScrubStatus {
                state,
                progress,
                bytes_passed: 0,
                bytes_total: 0,
                record: crate::format::record::Scrub::default(),
            };
            scrub_report(&status, Some(5), 0)
        };
        let running = report(ScrubState::Running, 1.0);
        assert!(running.progress < 1.0, "{running:?}");
        assert_eq!(running.bytes_per_second, Some(5));
        let finished = report(ScrubState::Finished, 1.0);
        assert!(finished.progress >= 1.0, "{finished:?}");
        assert_eq!(finished.bytes_per_second, None);
    }

    #[test]
    fn moved_bytes_are_part_of_those_that_were_written_also_before() {
        let report = rebuild_report(&RebuildProgress {
            bytes_done: 8,
            bytes_moved: 7,
            bytes_before: 5,
            moved_before: 2,
            ..RebuildProgress::default()
        });
        assert_eq!((report.bytes_done, report.bytes_moved), (13, 9));
    }

    #[test]
    fn moments_are_written_as_in_rfc_3339() {
        assert_eq!(moment(0), None);
        assert_eq!(
            moment(1_700_000_000).as_deref(),
            Some("2023-11-14T22:13:20Z")
        );
    }
}
