//! The report on the state of a volume, as `status --json` prints it.

use serde::{Deserialize, Serialize};

use crate::codec::Survival;
use crate::fuse::Transport;
use crate::maintenance::ScrubState;
use crate::membership::AbsenceReason;
use crate::store::PageCacheUse;
use crate::transaction::FullMembers;

mod alerts;
mod coding;
mod interlock;
mod lost;
mod rebuild;
mod redundancy;
mod rewriting;
mod uncounted;
mod usage;

pub(crate) use alerts::{AlertsReport, AlertsState};
#[cfg(test)]
pub(crate) use coding::GpuTimeReport;
pub(crate) use coding::{CodedReport, CodingReport};
pub(crate) use interlock::InterlockReport;
pub(crate) use lost::LostFiles;
pub(crate) use rebuild::RebuildReport;
pub(crate) use redundancy::RedundancyReport;
pub(crate) use rewriting::{RewritingObstacle, RewritingReport};
pub(crate) use uncounted::UncountedReport;
pub(crate) use usage::{
    FilesUsageReport, MemberShardsReport, MemberUsageReport, StripesReport, UsesReport,
    VolumeUsageReport,
};

/// The document that `status --json` prints; its shape is a contract.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the document"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusReport {
    pub(crate) volume: String,
    pub(crate) label: String,
    pub(crate) state: VolumeState,
    pub(crate) mounted: bool,
    /// The way on which requests of the kernel come; nothing if it is not mounted.
    #[serde(default)]
    pub(crate) transport: Option<Transport>,
    /// True if it is mounted and takes no writes now: it was mounted so, or too much failed.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// True if it was mounted read-only. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) mounted_read_only: bool,
    /// True if background work pauses on order. Daemons before this field do not pause.
    #[serde(default)]
    pub(crate) paused: bool,
    /// The delivery of alerts; none without receivers, and where it is not mounted.
    #[serde(default)]
    pub(crate) alerts: Option<AlertsReport>,
    /// The limit on files that are removed within an hour; none without one.
    #[serde(default)]
    pub(crate) interlock: Option<InterlockReport>,
    /// The course of writes while members are full.
    #[serde(default)]
    pub(crate) full_member: FullMembers,
    /// The other half of the volume: a volume that is not mounted may have fallen behind it.
    #[serde(default)]
    pub(crate) elsewhere: Option<ElsewhereReport>,
    /// The code of new data.
    pub(crate) geometry: GeometryReport,
    /// The codes that data has. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) codes: Vec<CodeReport>,
    /// True if data of files has another code than theirs, and is yet to be written again.
    #[serde(default)]
    pub(crate) awaits_rewrite: bool,
    #[serde(default)]
    pub(crate) rewriting: RewritingReport,
    pub(crate) engine: String,
    /// Nothing where the volume is not open.
    pub(crate) coding: Option<CodingReport>,
    pub(crate) members: Vec<MemberReport>,
    /// None if it cannot be counted, as all that follows; `uncounted` has the reasons.
    pub(crate) redundancy: Option<Vec<RedundancyReport>>,
    /// Members that share a device, by number: its failure is the loss of all of them. `redundancy` counts members.
    #[serde(default)]
    pub(crate) shared_devices: Vec<Vec<u16>>,
    /// Nothing where too few members are there to read it.
    pub(crate) index: Option<IndexReport>,
    #[serde(flatten)]
    pub(crate) lost: LostFiles,
    pub(crate) capacity: CapacityReport,
    pub(crate) scrub: Option<ScrubReport>,
    pub(crate) rebuild: RebuildReport,
    /// The values that could not be counted.
    #[serde(default)]
    pub(crate) uncounted: Vec<UncountedReport>,
}

/// The data of a volume that has one code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CodeReport {
    #[serde(flatten)]
    pub(crate) geometry: GeometryReport,
    /// The bytes of files in its stripes, counted as for the redundancy. Daemons before this count the bytes of all shards.
    pub(crate) bytes: u64,
    /// True if it is the code of a directory, and stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) of_directories: bool,
}

/// Members that were not given, and are enough to be written to without those that were, or were so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ElsewhereReport {
    /// Their paths, now or last.
    pub(crate) paths: Vec<String>,
    /// True if they have gone on without the others, which may have done so, too; `None` if not all of them can be
    /// read, so that this is unknown.
    pub(crate) went_on: Option<bool>,
}

/// The state of a volume, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VolumeState {
    /// All members are there and every stripe has all its shards.
    Healthy,
    /// Everything is readable, with less redundancy than promised.
    Degraded,
    /// Not everything is readable.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GeometryReport {
    pub(crate) data: usize,
    pub(crate) parity: usize,
    pub(crate) code: String,
    /// The most bytes of one shard of a new stripe. Stripes that are there have one only while some have another unit than
    /// new ones. Daemons before this field do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stripe_unit_bytes: Option<u32>,
    /// The losses that whole stripes survive; none for codes that survive as many as there are parity shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) survives: Option<SurvivalReport>,
}

impl GeometryReport {
    /// Returns how many losses whole stripes survive, whichever they are.
    pub(crate) fn losses(&self) -> usize {
        self.survives
            .map_or(self.parity, |survival| survival.losses)
    }
}

/// The losses that whole stripes of `random-gf2` survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SurvivalReport {
    /// Losses that are survived, whichever they are.
    pub(crate) losses: usize,
    /// The sets of one loss more that are survived as well.
    pub(crate) sets_beyond_survived: u64,
    /// All sets of one loss more.
    pub(crate) sets_beyond: u64,
}

impl SurvivalReport {
    /// Reports on a code; `None` if counting parity shards says it all.
    pub(crate) fn of(survival: Survival) -> Option<Self> {
        let (sets_beyond_survived, sets_beyond) = survival.beyond_guaranteed()?;
        Some(Self {
            losses: survival.guaranteed(),
            sets_beyond_survived,
            sets_beyond,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    pub(crate) index: u16,
    pub(crate) id: String,
    pub(crate) path: Option<String>,
    pub(crate) state: MemberState,
    /// The reason for its state. JSON has the sentence as well.
    #[serde(flatten, with = "reason_and_cause")]
    pub(crate) reason: Option<AbsenceReason>,
    /// None if the member does not answer, as the next.
    pub(crate) bytes_used: Option<u64>,
    pub(crate) bytes_free: Option<u64>,
    /// The way from its large files to their device, if it is online. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) page_cache: Option<PageCacheReport>,
    pub(crate) errors: ErrorCounts,
    /// True if bytes of it were wrong since the last scrub.
    #[serde(default)]
    pub(crate) suspect: bool,
    /// True if it is mounted to be written to, and has no room for new data.
    #[serde(default)]
    pub(crate) full: bool,
}

/// The reason for the state of a member in JSON: `reason` is a sentence, `cause` a word with its fields.
mod reason_and_cause {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::membership::AbsenceReason;

    #[derive(Serialize)]
    struct StatusDocument<'a> {
        reason: Option<String>,
        cause: Option<&'a AbsenceReason>,
    }

    #[derive(Deserialize)]
    struct Cause {
        cause: Option<AbsenceReason>,
    }

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(
        reason: &Option<AbsenceReason>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let document = StatusDocument {
            reason: reason.as_ref().map(ToString::to_string),
            cause: reason.as_ref(),
        };
        document.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<AbsenceReason>, D::Error> {
        Cause::deserialize(deserializer).map(|document| document.cause)
    }
}

impl GeometryReport {
    /// Returns how many shards a stripe has. The numbers may be a daemon's, and any.
    pub(crate) fn width(&self) -> usize {
        self.data.saturating_add(self.parity)
    }

    /// Returns how many losses a whole stripe survives, whichever they are.
    pub(crate) fn losses_survived(&self) -> usize {
        self.survives
            .map_or(self.parity, |survives| survives.losses)
    }

    /// Returns how many losses the redundancy of a whole stripe is counted as.
    pub(crate) fn full_redundancy(&self) -> i64 {
        i64::try_from(self.losses_survived()).unwrap_or(i64::MAX)
    }
}

impl ErrorCounts {
    /// Returns the sum. The numbers may be a daemon's, and any.
    pub(crate) fn total(self) -> u64 {
        let Self {
            read,
            write,
            checksum,
        } = self;
        read.saturating_add(write).saturating_add(checksum)
    }
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemberState {
    /// In use.
    Online,
    /// Its directory is gone.
    Missing,
    /// Its directory is there and failed.
    Faulted,
    /// It is being brought up to date.
    Rebuilding,
    /// It is being emptied.
    Removing,
}

/// The part of the kernel's page cache in I/O on the segments of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PageCacheReport {
    /// The segments lie in memory.
    Whole,
    /// All I/O goes through it: the filesystem takes no `O_DIRECT`.
    Used,
    /// I/O bypasses it.
    Bypassed,
}

impl From<PageCacheUse> for PageCacheReport {
    fn from(page_cache: PageCacheUse) -> Self {
        match page_cache {
            PageCacheUse::Whole => Self::Whole,
            PageCacheUse::Used => Self::Used,
            PageCacheUse::Bypassed => Self::Bypassed,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorCounts {
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) checksum: u64,
}

/// The copies of the index, of which one is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexReport {
    pub(crate) copies_wanted: usize,
    /// The members that have one.
    pub(crate) members: Vec<u16>,
}

impl IndexReport {
    pub(crate) fn is_short(&self) -> bool {
        self.members.len() < self.copies_wanted
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CapacityReport {
    pub(crate) bytes_usable: Option<u64>,
    pub(crate) bytes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScrubReport {
    pub(crate) state: ScrubState,
    pub(crate) progress: f64,
    pub(crate) repaired: u64,
    /// Stripes that it left to be rewritten, because their bytes would have been less protected. Daemons before this field
    /// do not tell.
    #[serde(default)]
    pub(crate) stripes_waiting: u64,
    /// The most bytes that it reads in a second; none while none runs, or without a limit.
    #[serde(default)]
    pub(crate) bytes_per_second: Option<u64>,
    pub(crate) finished_at: Option<String>,
}

impl MemberReport {
    /// Says whether its directory takes part.
    pub(crate) fn is_here(&self) -> bool {
        match self.state {
            MemberState::Online | MemberState::Rebuilding | MemberState::Removing => true,
            MemberState::Missing | MemberState::Faulted => false,
        }
    }

    /// Says whether something of it is there, but not its superblock.
    pub(crate) fn has_lost_superblock(&self) -> bool {
        let reason = self.reason.as_ref();
        !self.is_here() && reason.is_some_and(AbsenceReason::is_missing_superblock)
    }

    /// Says whether it is being emptied, to be removed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state == MemberState::Removing
    }

    /// Names it for a sentence: `member 2 (/srv/d2)`.
    pub(crate) fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("member {} ({path})", self.index),
            None => format!("member {}", self.index),
        }
    }
}

impl StatusReport {
    /// Judges the parts: the one place that says what `healthy` means. A volume of which nothing can be counted cannot be
    /// read.
    pub(crate) fn judge(
        members: &[MemberReport],
        redundancy: Option<&[RedundancyReport]>,
        index: Option<&IndexReport>,
        geometry: &GeometryReport,
    ) -> VolumeState {
        let online = members.iter().filter(|member| member.is_here()).count();
        let full = geometry.full_redundancy();
        let Some(redundancy) = redundancy else {
            return VolumeState::Failed;
        };
        let is_lost = redundancy
            .iter()
            .any(|row| row.losses_tolerated < 0 && row.stripes > 0);
        if online < geometry.data || is_lost {
            VolumeState::Failed
        } else if online < members.len()
            || index.is_some_and(IndexReport::is_short)
            || redundancy.iter().any(|row| row.reduced_stripes(full) > 0)
        {
            VolumeState::Degraded
        } else {
            VolumeState::Healthy
        }
    }

    /// Returns the rows of the redundancy; none if it was not counted.
    pub(crate) fn rows(&self) -> &[RedundancyReport] {
        self.redundancy.as_deref().unwrap_or_default()
    }

    /// Says whether a scrub is under way.
    pub(crate) fn is_scrubbing(&self) -> bool {
        let scrub = self.scrub.as_ref();
        scrub.is_some_and(|scrub| scrub.state == ScrubState::Running)
    }

    /// Says whether a volume that was mounted to be written to takes no writes any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.mounted && self.read_only && !self.mounted_read_only
    }

    /// Says whether what has gone on elsewhere lacks what is here, as that lacks it.
    pub(crate) fn is_parted(&self) -> bool {
        let is_elsewhere = |path: &String| {
            let elsewhere = self.elsewhere.as_ref();
            elsewhere.is_some_and(|elsewhere| elsewhere.paths.contains(path))
        };
        self.absentees().any(|member| {
            member.reason == Some(AbsenceReason::MountedApart)
                && member.path.as_ref().is_some_and(is_elsewhere)
        })
    }

    /// Returns the members that are online.
    pub(crate) fn present(&self) -> impl Iterator<Item = &MemberReport> {
        self.members.iter().filter(|member| member.is_here())
    }

    /// Returns the members that are not online.
    pub(crate) fn absentees(&self) -> impl Iterator<Item = &MemberReport> {
        self.members.iter().filter(|member| !member.is_here())
    }
}

#[cfg(test)]
pub(crate) use tests::report as report_without;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn member(index: u16, state: MemberState) -> MemberReport {
        MemberReport {
            index,
            id: format!("id-{index}"),
            path: Some(format!("/srv/d{index}")),
            state,
            reason: None,
            bytes_used: Some(0),
            bytes_free: Some(0),
            page_cache: None,
            errors: ErrorCounts::default(),
            suspect: false,
            full: false,
        }
    }

    pub(crate) fn report(away: &[u16], rows: &[(i64, u64)], index: &[u16]) -> StatusReport {
        let members: Vec<_> = (0..6)
            .map(|index| {
                let gone = away.contains(&index);
                member(
                    index,
                    if gone {
                        MemberState::Missing
                    } else {
                        MemberState::Online
                    },
                )
            })
            .collect();
        let geometry = GeometryReport {
            data: 4,
            parity: 2,
            code: "rs-cauchy".to_owned(),
            stripe_unit_bytes: Some(1 << 20),
            survives: None,
        };
        let redundancy: Vec<_> = rows
            .iter()
            .map(|&(losses_tolerated, stripes)| RedundancyReport {
                losses_tolerated,
                stripes,
                bytes: 1,
                dead_bytes: 3,
                as_promised: 0,
                of_older_code: 0,
            })
            .collect();
        let index = IndexReport {
            copies_wanted: 3,
            members: index.to_vec(),
        };
        StatusReport {
            volume: "v".to_owned(),
            label: "photos".to_owned(),
            state: StatusReport::judge(&members, Some(&redundancy), Some(&index), &geometry),
            mounted: true,
            transport: None,
            read_only: false,
            mounted_read_only: false,
            paused: false,
            alerts: None,
            interlock: None,
            full_member: FullMembers::Stop,
            elsewhere: None,
            geometry,
            codes: Vec::new(),
            awaits_rewrite: false,
            rewriting: RewritingReport::default(),
            engine: "scalar".to_owned(),
            coding: None,
            members,
            redundancy: Some(redundancy),
            shared_devices: Vec::new(),
            index: Some(index),
            lost: LostFiles::default(),
            capacity: CapacityReport {
                bytes_usable: Some(0),
                bytes_used: Some(0),
            },
            scrub: Some(ScrubReport::default()),
            rebuild: RebuildReport::default(),
            uncounted: Vec::new(),
        }
    }

    #[test]
    fn healthy_means_that_no_member_no_shard_and_no_copy_of_the_index_is_missing() {
        let state = |away: &[u16], rows: &[(i64, u64)]| report(away, rows, &[0, 1, 2]).state;
        assert_eq!(state(&[], &[(2, 9)]), VolumeState::Healthy);
        assert_eq!(state(&[], &[]), VolumeState::Healthy);
        assert_eq!(state(&[], &[(2, 9), (1, 1)]), VolumeState::Degraded);
        assert_eq!(state(&[3], &[(2, 9)]), VolumeState::Degraded);
        assert_eq!(state(&[1, 3], &[(0, 9)]), VolumeState::Degraded);
        assert_eq!(state(&[1, 3, 5], &[(-1, 9)]), VolumeState::Failed);
        assert_eq!(state(&[1, 3, 5], &[]), VolumeState::Failed);
        assert_eq!(state(&[], &[(-1, 1)]), VolumeState::Failed);
        let short = report(&[], &[(2, 9)], &[0, 4]);
        assert_eq!(short.state, VolumeState::Degraded);
        let StatusReport {
            members,
            index,
            geometry,
            ..
        } = report(&[], &[(2, 9)], &[0, 1, 2]);
        let uncounted = StatusReport::judge(&members, None, index.as_ref(), &geometry);
        assert_eq!(uncounted, VolumeState::Failed);
    }

    #[test]
    fn a_value_that_cannot_be_counted_is_null_and_its_reason_is_listed() {
        let mut report = report(&[2], &[(1, 7)], &[0, 1, 3]);
        report.redundancy = None;
        report.scrub = None;
        report.lost = LostFiles::uncounted();
        report.capacity = CapacityReport::default();
        report.members[2].bytes_used = None;
        report.members[2].reason = Some(AbsenceReason::NoDirectory);
        report.uncounted = UncountedReport::of_records("the index is gone");
        let of_member = UncountedReport::of_member(&report.members[2]);
        report.uncounted.extend(of_member);
        let value = serde_json::to_value(&report).unwrap();
        for path in [
            "/redundancy",
            "/scrub",
            "/unrecoverable_files",
            "/capacity/bytes_used",
            "/members/2/bytes_used",
        ] {
            assert!(
                value.pointer(path).is_some_and(serde_json::Value::is_null),
                "{path}"
            );
        }
        assert_eq!(
            report.why_uncounted("redundancy"),
            Some("the index is gone")
        );
        let reason = AbsenceReason::NoDirectory.to_string();
        assert_eq!(report.why_uncounted("members.2"), Some(reason.as_str()));
        assert_eq!(report.why_uncounted("members.1"), None);
        let read: StatusReport = serde_json::from_value(value).unwrap();
        assert_eq!(read, report);
    }

    #[test]
    fn the_reason_of_a_member_is_shown_as_a_sentence_and_as_a_word_with_fields() {
        let mut report = report(&[2], &[(1, 7)], &[0, 1, 3]);
        report.members[2].reason = Some(AbsenceReason::ForeignContent {
            found: "photo".to_owned(),
        });
        let value = serde_json::to_value(&report).unwrap();
        let away = &value["members"][2];
        assert_eq!(
            away["reason"],
            "what is there is no member of the volume: it has photo"
        );
        assert_eq!(
            away["cause"],
            serde_json::json!({"kind": "foreign_content", "found": "photo"})
        );
        let online = value["members"][0].as_object().unwrap();
        assert!(online["reason"].is_null() && online["cause"].is_null());
        let read: StatusReport = serde_json::from_value(value).unwrap();
        assert_eq!(read, report);
    }

    #[test]
    fn the_document_has_the_keys_of_the_contract() {
        let value = serde_json::to_value(report(&[2], &[(1, 7)], &[0, 1, 3])).unwrap();
        for key in [
            "volume",
            "label",
            "state",
            "mounted",
            "geometry",
            "engine",
            "coding",
            "members",
            "redundancy",
            "index",
            "unrecoverable_files",
            "unrecoverable_files_complete",
            "capacity",
            "scrub",
            "rebuild",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["state"], "degraded");
        assert_eq!(value["members"][2]["state"], "missing");
        assert_eq!(value["members"][0]["reason"], serde_json::Value::Null);
        assert_eq!(value["scrub"]["state"], "never");
        assert_eq!(value["rebuild"]["state"], "idle");
        assert_eq!(value["rebuild"]["progress"], 1.0);
        assert_eq!(value["redundancy"][0]["losses_tolerated"], 1);
        assert_eq!(value["index"]["copies_wanted"], 3);
        assert_eq!(value["index"]["members"][2], 3);
    }
}
