//! The report on the state of a volume, as `status` shows it.

use serde::{Deserialize, Serialize};

use super::failure::Outcome;
use crate::coding::{Coded, Coding};
use crate::membership::AbsenceReason;

mod advice;
mod lost;
mod text;

pub(super) use lost::LostFiles;

/// The defects that a volume may have although all its members are there.
pub(super) const LACKS_COPIES: &str = "the index lacks copies";
pub(super) const LACKS_SHARDS: &str = "some stripes lack shards";

/// The document that `status --json` prints; its shape is a contract.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StatusReport {
    pub(super) volume: String,
    pub(super) label: String,
    pub(super) state: VolumeState,
    pub(super) mounted: bool,
    /// True if it is mounted, and not to be written to.
    #[serde(default)]
    pub(super) read_only: bool,
    /// The other half of the volume: a volume that is not mounted may have fallen behind it.
    #[serde(default)]
    pub(super) elsewhere: Option<ElsewhereReport>,
    pub(super) geometry: GeometryReport,
    pub(super) engine: String,
    /// Nothing where the volume is not open.
    pub(super) coding: Option<CodingReport>,
    pub(super) members: Vec<MemberReport>,
    pub(super) redundancy: Vec<RedundancyReport>,
    /// Nothing where too few members are there to read it.
    pub(super) index: Option<IndexReport>,
    #[serde(flatten)]
    pub(super) lost: LostFiles,
    pub(super) capacity: CapacityReport,
    pub(super) scrub: ScrubReport,
    pub(super) rebuild: RebuildReport,
}

/// Members that were not given, and are enough to be written to without those that were, or were so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ElsewhereReport {
    /// Their paths, now or last.
    pub(super) paths: Vec<String>,
    /// True if they have gone on without the others, which may have done so, too; `None` if not all of them can be
    /// read, so that this is unknown.
    pub(super) went_on: Option<bool>,
}

/// The work of coding since the volume was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CodingReport {
    pub(super) cpu: CodedReport,
    pub(super) cuda: CodedReport,
    /// Passes that the CPU did because a GPU had failed to.
    pub(super) redone: u64,
    /// The GPUs in use.
    pub(super) gpus: Vec<String>,
    /// Those that do not answer; stripes wait for them.
    #[serde(default)]
    pub(super) gpus_hanging: Vec<String>,
}

/// The work of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CodedReport {
    pub(super) passes: u64,
    pub(super) bytes: u64,
    /// While at least one pass was under way.
    pub(super) gb_per_s: f64,
}

impl From<Coded> for CodedReport {
    fn from(coded: Coded) -> Self {
        Self {
            passes: coded.passes,
            bytes: coded.bytes,
            gb_per_s: coded.bytes_per_second() / 1e9,
        }
    }
}

impl From<Coding> for CodingReport {
    fn from(coding: Coding) -> Self {
        Self {
            cpu: coding.cpu.into(),
            cuda: coding.cuda.into(),
            redone: coding.redone,
            gpus: coding.devices,
            gpus_hanging: coding.hanging,
        }
    }
}

/// The state of a volume, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum VolumeState {
    /// All members are there and every stripe has all its shards.
    Healthy,
    /// Everything is readable, with less redundancy than promised.
    Degraded,
    /// Not everything is readable.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GeometryReport {
    pub(super) data: usize,
    pub(super) parity: usize,
    pub(super) code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberReport {
    pub(super) index: u16,
    pub(super) id: String,
    pub(super) path: Option<String>,
    pub(super) state: MemberState,
    /// The reason for its state. JSON has the sentence as well.
    #[serde(flatten, with = "reason_and_cause")]
    pub(super) reason: Option<AbsenceReason>,
    pub(super) bytes_used: u64,
    pub(super) bytes_free: u64,
    pub(super) errors: ErrorCounts,
    /// True if bytes of it were wrong since the last scrub.
    #[serde(default)]
    pub(super) suspect: bool,
}

/// The reason for the state of a member in JSON: `reason` is a sentence, `cause` a word with its fields.
mod reason_and_cause {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::membership::AbsenceReason;

    #[derive(Serialize)]
    struct Document<'a> {
        reason: Option<String>,
        cause: Option<&'a AbsenceReason>,
    }

    #[derive(Deserialize)]
    struct Cause {
        cause: Option<AbsenceReason>,
    }

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        reason: &Option<AbsenceReason>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let document = Document {
            reason: reason.as_ref().map(ToString::to_string),
            cause: reason.as_ref(),
        };
        document.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<AbsenceReason>, D::Error> {
        Cause::deserialize(deserializer).map(|document| document.cause)
    }
}

impl GeometryReport {
    /// Returns how many shards a stripe has. The numbers may be a daemon's, and any.
    pub(super) fn width(&self) -> usize {
        self.data.saturating_add(self.parity)
    }
}

impl ErrorCounts {
    /// Returns the sum. The numbers may be a daemon's, and any.
    fn total(self) -> u64 {
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
pub(super) enum MemberState {
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ErrorCounts {
    pub(super) read: u64,
    pub(super) write: u64,
    pub(super) checksum: u64,
}

/// Live data that survives the loss of so many more members; negative: is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RedundancyReport {
    pub(super) losses_tolerated: i64,
    pub(super) stripes: u64,
    pub(super) bytes: u64,
}

/// The copies of the index, of which one is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexReport {
    pub(super) copies_wanted: usize,
    /// The members that have one.
    pub(super) members: Vec<u16>,
}

impl IndexReport {
    pub(super) fn is_short(&self) -> bool {
        self.members.len() < self.copies_wanted
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CapacityReport {
    pub(super) bytes_usable: u64,
    pub(super) bytes_used: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ScrubReport {
    pub(super) state: ScrubState,
    pub(super) progress: f64,
    pub(super) repaired: u64,
    pub(super) finished_at: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScrubState {
    #[default]
    Never,
    Running,
    Finished,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RebuildReport {
    pub(super) state: RebuildState,
    pub(super) progress: f64,
    pub(super) bytes_left: u64,
    pub(super) bytes_done: u64,
    /// The bytes that have no directory to go to.
    pub(super) bytes_waiting: u64,
    /// The bytes that keep their place because data beside them cannot be read.
    pub(super) bytes_unreadable: u64,
    /// For how long it has been running, or was.
    pub(super) seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RebuildState {
    #[default]
    Idle,
    Running,
    Finished,
    Stopped,
}

impl Default for RebuildReport {
    /// Nothing was asked for, and nothing is left to do.
    fn default() -> Self {
        Self {
            state: RebuildState::Idle,
            progress: 1.0,
            bytes_left: 0,
            bytes_done: 0,
            bytes_waiting: 0,
            bytes_unreadable: 0,
            seconds: 0,
        }
    }
}

impl MemberReport {
    /// Says whether its directory takes part.
    fn is_here(&self) -> bool {
        match self.state {
            MemberState::Online | MemberState::Rebuilding | MemberState::Removing => true,
            MemberState::Missing | MemberState::Faulted => false,
        }
    }

    /// Says whether something of it is there, but not its superblock.
    pub(super) fn has_lost_superblock(&self) -> bool {
        let reason = self.reason.as_ref();
        !self.is_here() && reason.is_some_and(AbsenceReason::is_missing_superblock)
    }

    /// Says whether it is being emptied, to be removed.
    pub(super) fn is_leaving(&self) -> bool {
        self.state == MemberState::Removing
    }

    /// Names it for a sentence: `member 2 (/srv/d2)`.
    pub(super) fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("member {} ({path})", self.index),
            None => format!("member {}", self.index),
        }
    }
}

impl StatusReport {
    /// Judges the parts: the one place that says what `healthy` means.
    pub(super) fn judge(
        members: &[MemberReport],
        redundancy: &[RedundancyReport],
        index: Option<&IndexReport>,
        geometry: &GeometryReport,
    ) -> VolumeState {
        let online = members.iter().filter(|member| member.is_here()).count();
        let full = i64::try_from(geometry.parity).unwrap_or(i64::MAX);
        let is_lost = redundancy
            .iter()
            .any(|row| row.losses_tolerated < 0 && row.stripes > 0);
        if online < geometry.data || is_lost {
            VolumeState::Failed
        } else if online < members.len()
            || index.is_some_and(IndexReport::is_short)
            || redundancy
                .iter()
                .any(|row| row.losses_tolerated < full && row.stripes > 0)
        {
            VolumeState::Degraded
        } else {
            VolumeState::Healthy
        }
    }

    /// Returns how a command that shows this report ends.
    pub(super) fn outcome(&self) -> Outcome {
        match self.state {
            VolumeState::Healthy => Outcome::Done,
            VolumeState::Degraded => Outcome::Degraded,
            VolumeState::Failed => Outcome::Lost,
        }
    }

    /// Says whether what has gone on elsewhere lacks what is here, as that lacks it.
    fn is_parted(&self) -> bool {
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
    pub(super) fn present(&self) -> impl Iterator<Item = &MemberReport> {
        self.members.iter().filter(|member| member.is_here())
    }

    /// Returns the members that are not online.
    pub(super) fn absentees(&self) -> impl Iterator<Item = &MemberReport> {
        self.members.iter().filter(|member| !member.is_here())
    }
}

#[cfg(test)]
pub(super) use tests::report as report_without;

#[cfg(test)]
mod tests {
    use super::*;

    fn member(index: u16, state: MemberState) -> MemberReport {
        MemberReport {
            index,
            id: format!("id-{index}"),
            path: Some(format!("/srv/d{index}")),
            state,
            reason: None,
            bytes_used: 0,
            bytes_free: 0,
            errors: ErrorCounts::default(),
            suspect: false,
        }
    }

    pub(in crate::cli) fn report(away: &[u16], rows: &[(i64, u64)], index: &[u16]) -> StatusReport {
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
        };
        let redundancy: Vec<_> = rows
            .iter()
            .map(|&(losses_tolerated, stripes)| RedundancyReport {
                losses_tolerated,
                stripes,
                bytes: 1,
            })
            .collect();
        let index = IndexReport {
            copies_wanted: 3,
            members: index.to_vec(),
        };
        StatusReport {
            volume: "v".to_owned(),
            label: "photos".to_owned(),
            state: StatusReport::judge(&members, &redundancy, Some(&index), &geometry),
            mounted: true,
            read_only: false,
            elsewhere: None,
            geometry,
            engine: "scalar".to_owned(),
            coding: None,
            members,
            redundancy,
            index: Some(index),
            lost: LostFiles::default(),
            capacity: CapacityReport::default(),
            scrub: ScrubReport::default(),
            rebuild: RebuildReport::default(),
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
        let text = short.for_people(None);
        assert!(text.starts_with("photos: degraded, the index lacks copies"));
        assert!(text.contains("the index has 2 of 3 copies, on members 0, 4"));
        let said = |members: &[u16], expected: &str| {
            let text = report(&[], &[(2, 9)], members).for_people(None);
            assert!(text.lines().any(|line| line == expected), "{text}");
        };
        said(&[4], "the index has 1 of 3 copies, on member 4");
        said(&[], "the index has 0 of 3 copies");
    }

    #[test]
    fn the_report_opens_with_the_state_and_ends_with_the_advice() {
        let text = report(&[2, 4], &[(0, 7)], &[0, 1, 3]).for_people(None);
        let first = text.lines().next().unwrap();
        assert_eq!(first, "photos: degraded, 2 of 6 members are away");
        let last = text.lines().last().unwrap();
        assert!(
            last.starts_with("next: bring back member 2 (/srv/d2), member 4 (/srv/d4)"),
            "{last}"
        );
        assert!(text.contains("would not survive another loss"), "{text}");
    }

    /// Bytes that were written just now are in memory.
    #[test]
    fn an_empty_plan_is_not_reported_as_final() {
        let mut report = report(&[], &[], &[0, 1, 2]);
        let text = report.for_people(None);
        assert!(text.contains("gets there within five seconds"), "{text}");
        report.mounted = false;
        let text = report.for_people(None);
        assert!(text.contains("\nno stripes\n"), "{text}");
    }

    #[test]
    fn status_reports_coding_by_engine_and_speed_if_there_was_any() {
        let coded = |bytes, millis| {
            let busy = std::time::Duration::from_millis(millis);
            let passes = 1;
            Coded {
                passes,
                bytes,
                busy,
            }
        };
        let mut coding = Coding::default();
        assert_eq!(CodingReport::from(coding.clone()).in_words(), None);
        coding.cuda = coded(4 << 30, 100);
        coding.devices = vec!["H100".to_owned()];
        let words = CodingReport::from(coding.clone()).in_words();
        assert_eq!(words.as_deref(), Some("coded 4.0 GiB on H100 at 42.9 GB/s"));
        coding.cpu = coded(1 << 30, 1000);
        let text = StatusReport {
            coding: Some(coding.into()),
            ..report(&[], &[(2, 9)], &[0, 1, 2])
        }
        .for_people(None);
        let words = "coded 1.0 GiB on the CPU at 1.1 GB/s, 4.0 GiB on H100";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_named_whether_or_not_anything_was_coded() {
        let coding = Coding {
            hanging: vec!["H100".to_owned()],
            ..Coding::default()
        };
        let words = CodingReport::from(coding).in_words().unwrap();
        assert!(words.starts_with("H100 does not answer"), "{words}");
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
