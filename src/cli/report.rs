//! The report on a volume for people: its text, and the advice on the next step.

mod advice;
mod codes;
mod lost;
mod text;
mod usage;

pub(super) use codes::{code_and_unit, codes_lines, is_code_changing, other_codes, rewriting};

/// The defects that a volume may have although all its members are there.
pub(super) const LACKS_COPIES: &str = "the index lacks copies";
pub(super) const LACKS_SHARDS: &str = "some stripes lack shards";

#[cfg(test)]
mod tests {
    use crate::cli::failure::Outcome;
    use crate::coding::{Coded, Coding};
    use crate::control::report::report_without as report;
    use crate::control::report::{
        AlertsReport, AlertsState, CapacityReport, CodingReport, StatusReport, UncountedReport,
        VolumeState,
    };
    use crate::maintenance::{RebuildState, ScrubState};

    #[test]
    fn a_volume_that_lacks_copies_of_its_index_counts_them_and_names_their_members() {
        let short = report(&[], &[(2, 9)], &[0, 4]);
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

    #[test]
    fn a_volume_that_serves_and_cannot_be_counted_is_told_apart_from_one_that_lacks_shards() {
        let mut report = report(&[], &[], &[0, 1, 2]);
        report.redundancy = None;
        report.state = VolumeState::Degraded;
        report.uncounted = vec![UncountedReport::new("redundancy", "a record is damaged")];
        let text = report.for_people(None);
        let first = text.lines().next().unwrap();
        assert_eq!(first, "photos: degraded, its redundancy cannot be counted");
        assert!(text.contains("not counted: redundancy: a record is damaged"));
        let last = text.lines().last().unwrap();
        assert!(last.contains("`cauchyfs check --repair"), "{last}");
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
    fn what_is_not_counted_is_shown_with_the_reason() {
        let mut report = report(&[2], &[(1, 7)], &[0, 1, 3]);
        report.redundancy = None;
        report.index = None;
        report.scrub = None;
        report.capacity = CapacityReport::default();
        report.members[2].bytes_used = None;
        report.members[2].bytes_free = None;
        report.uncounted = UncountedReport::of_records("the index is gone");
        report
            .uncounted
            .push(UncountedReport::new("members.2", "it is away"));
        let text = report.for_people(None);
        let line = "not counted: redundancy, index, unrecoverable files, capacity, scrub: the index is gone";
        assert!(text.lines().any(|it| it == line), "{text}");
        assert!(text.contains("\n? of ? used\n"), "{text}");
        assert!(
            text.contains("2       missing    ?           ?  "),
            "{text}"
        );
        assert!(!text.contains("no stripes"), "{text}");
    }

    #[test]
    fn alerts_that_are_not_sent_are_told_with_the_reason_and_the_next_step() {
        let with = |state| StatusReport {
            alerts: Some(AlertsReport {
                state,
                since: "2026-11-27T00:00:00Z".to_owned(),
                reason: Some("signal 9 ended it".to_owned()),
                seconds_to_next: Some(8),
            }),
            ..report(&[], &[(2, 9)], &[0, 1, 2])
        };
        let line = |state| {
            let text = with(state).for_people(Some("/mnt/a b".as_ref()));
            let line = text.lines().find(|line| line.contains("alerts"));
            line.map(str::to_owned)
        };
        assert_eq!(line(AlertsState::Running), None);
        let restarting = line(AlertsState::Restarting).unwrap();
        assert!(restarting.contains("signal 9 ended it; the next attempt is 8 s"));
        let ended = line(AlertsState::Ended).unwrap();
        assert!(ended.contains("`cauchyfs unmount '/mnt/a b'`"), "{ended}");
    }

    #[test]
    fn data_that_is_away_with_its_directories_is_not_reported_as_lost() {
        let outcome = |away: &[u16], rows: &[(i64, u64)]| {
            let report = report(away, rows, &[]);
            let state = VolumeState::Failed;
            StatusReport { state, ..report }.outcome()
        };
        assert_eq!(outcome(&[1, 3, 5], &[]), Outcome::Degraded);
        assert_eq!(outcome(&[1, 3], &[(-1, 9)]), Outcome::Lost);
        assert_eq!(outcome(&[], &[(-1, 9)]), Outcome::Lost);
    }

    #[test]
    fn members_that_share_a_device_qualify_what_survives() {
        let mut shared = report(&[], &[(2, 9)], &[0, 1, 2]);
        let line = "but members 0, 3 share a device, whose failure is the loss of 2 members";
        let says = |report: &StatusReport| report.for_people(None).lines().any(|it| it == line);
        assert!(!says(&shared));
        shared.shared_devices = vec![vec![0, 3]];
        assert!(says(&shared), "{}", shared.for_people(None));
        let rows = shared.redundancy.as_mut().expect("they were counted");
        rows[0].losses_tolerated = 0;
        assert!(!says(&shared), "nothing is said to survive");
    }

    /// A rebuild counts each part of its work when it begins it.
    #[test]
    fn a_rebuild_that_still_counts_what_is_left_is_not_called_done() {
        let mut running = report(&[], &[(2, 9)], &[0, 1, 2]);
        running.rebuild.state = RebuildState::Running;
        running.rebuild.progress = 1.0;
        running.rebuild.bytes_done = 3 << 20;
        let text = running.for_people(None);
        assert!(
            text.contains("rebuilding: 3.0 MiB done, and what is left is being counted\n"),
            "{text}"
        );
        running.rebuild.progress = 0.999;
        running.rebuild.bytes_left = 3 << 10;
        let text = running.for_people(None);
        assert!(
            text.contains("rebuilding: 99% done, 3.0 KiB left\n"),
            "{text}"
        );
    }

    #[test]
    fn the_limit_of_work_is_shown_beside_its_progress() {
        let mut running = report(&[], &[(2, 9)], &[0, 1, 2]);
        running.rebuild.state = RebuildState::Running;
        running.rebuild.progress = 0.5;
        running.rebuild.bytes_left = 3 << 10;
        running.rebuild.bytes_per_second = Some(50 << 20);
        let scrub = running.scrub.as_mut().expect("the report has one");
        scrub.state = ScrubState::Running;
        scrub.bytes_per_second = Some(2 << 20);
        let text = running.for_people(None);
        for line in [
            "rebuilding: 50% done, 3.0 KiB left, at most 50.0 MiB a second\n",
            "0 pieces repaired, at most 2.0 MiB a second\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
