use uuid::Uuid;

use super::*;
use crate::format::record::Scrub;
use crate::format::{MemberId, VolumeId};

/// A volume whose looks are at times that a test chooses.
struct Watched {
    changes: Changes,
    seen: Seen,
    now: Instant,
}

impl Watched {
    /// Returns a healthy volume of six members that was looked at once.
    fn new() -> Self {
        let members = (0..6).map(|index| (MemberIndex(index), online(index)));
        let mut watched = Self {
            changes: Changes::default(),
            seen: Seen {
                members: members.collect(),
                code: CodeSeen {
                    data: 4,
                    parity: 2,
                    code: "rs-cauchy".to_owned(),
                    unit_bytes: 1 << 20,
                },
                scrub: Some(scrub(ScrubState::Never, 0)),
                ..Seen::default()
            },
            now: Instant::now(),
        };
        assert_eq!(watched.look(), [], "nothing has happened");
        watched
    }

    fn member(&mut self, index: u16) -> &mut MemberSeen {
        self.seen.members.get_mut(&MemberIndex(index)).unwrap()
    }

    /// Looks half a second later; returns the member and the kind of each event.
    fn look(&mut self) -> Vec<(Option<u16>, EventKind)> {
        self.look_after(Duration::from_millis(500))
    }

    fn look_after(&mut self, passed: Duration) -> Vec<(Option<u16>, EventKind)> {
        self.now += passed;
        let noted = self.changes.see(&self.seen, self.now).into_iter();
        let noted = noted.map(|(member, kind)| (member.map(|it| it.index.0), kind));
        noted.collect()
    }

    fn count(&mut self, losses_tolerated: i64, lost: &[&str]) -> Vec<EventKind> {
        self.seen.redundancy = Some(RedundancySeen {
            losses_tolerated,
            losses_promised: 2,
            stripes: 3,
            bytes: 300,
            lost_files: lost.iter().map(ToString::to_string).collect(),
            lost_bytes: 7 * lost.len() as u64,
        });
        let noted = self.look().into_iter().map(|(_, kind)| kind).collect();
        self.seen.redundancy = None;
        noted
    }
}

fn online(index: u16) -> MemberSeen {
    MemberSeen {
        id: MemberId(Uuid::from_u128(index.into())),
        path: format!("/srv/d{index}"),
        state: MemberState::Online,
        reason: String::new(),
        is_draining: false,
        errors: ErrorCounts::default(),
        is_slow: false,
    }
}

fn scrub(state: ScrubState, bytes: u64) -> ScrubStatus {
    ScrubStatus {
        state,
        progress: 0.5,
        bytes_passed: bytes,
        bytes_total: 100,
        record: Scrub {
            bytes,
            repaired: 2,
            ..Scrub::default()
        },
    }
}

fn rebuild(state: RebuildState, bytes_done: u64, bytes_left: u64) -> RebuildProgress {
    RebuildProgress {
        state,
        bytes_done,
        bytes_left,
        elapsed: Duration::from_secs(9),
        ..RebuildProgress::default()
    }
}

#[test]
fn a_member_that_goes_and_comes_back_is_told_once_each_with_the_reason_and_the_time() {
    let mut volume = Watched::new();
    volume.member(2).state = MemberState::Missing;
    volume.member(2).reason = "its directory is gone".to_owned();
    let reason = "its directory is gone".to_owned();
    assert_eq!(
        volume.look(),
        [(Some(2), EventKind::MemberMissing { reason })]
    );
    assert_eq!(volume.look(), []);
    volume.member(2).state = MemberState::Faulted;
    let reason = "it fails".to_owned();
    volume.member(2).reason.clone_from(&reason);
    assert_eq!(
        volume.look(),
        [(Some(2), EventKind::MemberFaulted { reason })]
    );
    *volume.member(2) = online(2);
    let back = volume.look_after(Duration::from_secs(60));
    assert_eq!(
        back,
        [(Some(2), EventKind::MemberBack { seconds_away: 61 })]
    );
    assert_eq!(volume.look(), []);
}

#[test]
fn a_member_that_is_away_at_the_mount_is_told_at_the_first_look() {
    let mut volume = Watched::new();
    volume.changes = Changes::default();
    volume.member(4).state = MemberState::Missing;
    let reason = String::new();
    assert_eq!(
        volume.look(),
        [(Some(4), EventKind::MemberMissing { reason })]
    );
}

#[test]
fn thousands_of_errors_become_one_event_a_minute_for_each_member_and_none_is_left_out() {
    let mut volume = Watched::new();
    let mut told = 0;
    let mut events = 0;
    for _ in 0..590 {
        volume.member(1).errors.checksum += 10;
        for (member, kind) in volume.look() {
            let EventKind::ChecksumErrors { errors, .. } = kind else {
                panic!("{kind:?}");
            };
            assert_eq!(member, Some(1));
            told += errors;
            events += 1;
        }
    }
    assert_eq!(events, 5, "in five minutes");
    volume.member(3).errors.write = 2;
    let now = volume.look();
    assert!(
        matches!(
            now[..],
            [(
                Some(3),
                EventKind::IoErrors {
                    read: 0,
                    write: 2,
                    ..
                }
            )]
        ),
        "{now:?}"
    );
    let last = volume.changes.end(volume.now);
    let [(_, EventKind::ChecksumErrors { errors, .. })] = &last[..] else {
        panic!("{last:?}");
    };
    assert_eq!(told + errors, 5900);
}

#[test]
fn errors_of_a_member_that_came_back_count_from_nothing() {
    let mut volume = Watched::new();
    volume.member(1).errors.read = 5;
    assert_eq!(volume.look().len(), 1);
    volume.member(1).errors.read = 0;
    assert_eq!(volume.look(), []);
    volume.member(1).errors.read = 3;
    let told = volume.look_after(Duration::from_secs(61));
    assert!(
        matches!(told[..], [(Some(1), EventKind::IoErrors { read: 3, .. })]),
        "{told:?}"
    );
}

#[test]
fn a_member_is_slow_after_two_seconds_and_in_time_again_after_thirty() {
    let mut volume = Watched::new();
    volume.member(0).is_slow = true;
    assert_eq!(volume.look(), []);
    volume.member(0).is_slow = false;
    assert_eq!(volume.look(), [], "that was a moment");
    volume.member(0).is_slow = true;
    assert_eq!(volume.look(), []);
    let slow = volume.look_after(Duration::from_secs(2));
    assert_eq!(slow, [(Some(0), EventKind::MemberSlow { seconds: 2 })]);
    assert_eq!(volume.look_after(Duration::from_secs(8)), []);
    volume.member(0).is_slow = false;
    assert_eq!(volume.look(), []);
    let prompt = volume.look_after(Duration::from_secs(30));
    assert_eq!(
        prompt,
        [(Some(0), EventKind::MemberResponsive { seconds: 10 })]
    );
}

#[test]
fn members_that_are_added_drained_replaced_and_removed_are_told_apart() {
    let mut volume = Watched::new();
    volume.seen.members.insert(MemberIndex(6), online(6));
    assert_eq!(
        volume.look(),
        [(Some(6), EventKind::MemberAdded { members: 7 })]
    );
    volume.member(2).is_draining = true;
    assert_eq!(
        volume.look(),
        [(Some(2), EventKind::MemberDraining { members: 7 })]
    );
    volume.seen.members.remove(&MemberIndex(2));
    volume.seen.heirs = BTreeMap::from([(MemberIndex(2), MemberIndex(6))]);
    assert_eq!(
        volume.look(),
        [(Some(2), EventKind::MemberReplaced { by: 6 })]
    );
    volume.member(3).state = MemberState::Missing;
    assert_eq!(volume.look().len(), 1);
    *volume.member(3) = MemberSeen {
        id: MemberId(Uuid::from_u128(99)),
        ..online(3)
    };
    assert_eq!(
        volume.look(),
        [(Some(3), EventKind::MemberReplaced { by: 3 })],
        "another directory in its place is no return"
    );
    volume.seen.members.remove(&MemberIndex(0));
    assert_eq!(
        volume.look(),
        [(Some(0), EventKind::MemberRemoved { members: 5 })]
    );
}

#[test]
fn redundancy_is_told_when_it_falls_when_it_falls_further_and_when_it_is_whole_again() {
    let mut volume = Watched::new();
    assert_eq!(volume.count(2, &[]), []);
    let reduced = |losses_tolerated| EventKind::RedundancyReduced {
        losses_tolerated,
        losses_promised: 2,
        stripes: 3,
        bytes: 300,
    };
    assert_eq!(volume.count(1, &[]), [reduced(1)]);
    assert_eq!(volume.count(1, &[]), []);
    assert_eq!(volume.count(0, &[]), [reduced(0)]);
    assert_eq!(volume.count(1, &[]), [], "it is better, and not whole");
    let restored = EventKind::RedundancyRestored {
        losses_tolerated: 2,
    };
    assert_eq!(volume.count(2, &[]), [restored]);
    assert_eq!(volume.count(2, &[]), []);
}

#[test]
fn lost_files_are_told_together_and_further_ones_after_a_while() {
    let mut volume = Watched::new();
    let lost = |files: u64, first: &[&str]| EventKind::RangesLost {
        files,
        bytes: 7 * files,
        first_files: FirstNames(first.iter().map(ToString::to_string).collect()),
    };
    volume.count(1, &[]);
    let names: Vec<String> = (10..50).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = ["n10", "n11", "n12"];
    assert_eq!(volume.count(1, &names), [lost(40, &first)]);
    assert_eq!(volume.count(1, &names), []);
    let more: Vec<&str> = names.iter().copied().chain(["z"]).collect();
    assert_eq!(volume.count(1, &more), [], "it belongs to the same outage");
    volume.now += LOSS_PAUSE;
    assert_eq!(volume.count(1, &more), [lost(41, &["z"])]);
    let recovered = EventKind::RangesRecovered { files: 41 };
    assert_eq!(volume.count(1, &[]), [recovered]);
    assert_eq!(volume.count(1, &["a"]), [lost(1, &["a"])], "a new outage");
}

/// No loss is hidden by one that was told just before.
#[test]
fn a_loss_that_waits_is_told_also_if_it_comes_after_the_last_change() {
    let mut volume = Watched::new();
    volume.count(1, &[]);
    assert_eq!(volume.count(1, &["a"]).len(), 1);
    assert_eq!(volume.count(1, &["b", "c"]), []);
    assert!(volume.changes.is_reduced(), "so it is counted again");
    volume.now += LOSS_PAUSE;
    let told = volume.count(1, &["b", "c"]);
    assert!(
        matches!(&told[..], [EventKind::RangesLost { files: 2, .. }]),
        "{told:?}"
    );
    let told = volume.count(1, &["b", "c", "d", "e", "f"]);
    assert!(
        matches!(&told[..], [EventKind::RangesLost { files: 5, .. }]),
        "a far greater loss does not wait: {told:?}"
    );
    assert_eq!(volume.changes.end(volume.now), []);
    assert_eq!(volume.count(1, &["b", "c", "d", "e", "f", "g"]), []);
    let told = volume.changes.end(volume.now);
    assert!(
        matches!(&told[..], [(None, EventKind::RangesLost { files: 6, .. })]),
        "the end of the watch hides none: {told:?}"
    );
}

#[test]
fn a_rebuild_is_told_from_its_first_work_to_its_end_and_an_idle_one_not_at_all() {
    let mut volume = Watched::new();
    volume.seen.rebuild = rebuild(RebuildState::Running, 0, 0);
    assert_eq!(volume.look(), [], "it looks whether there is work");
    volume.seen.rebuild = rebuild(RebuildState::Idle, 0, 0);
    assert_eq!(volume.look(), []);
    volume.seen.rebuild = rebuild(RebuildState::Running, 0, 90);
    let began = EventKind::RebuildStarted { bytes_left: 90 };
    assert_eq!(volume.look(), [(None, began)]);
    volume.seen.rebuild = rebuild(RebuildState::Running, 40, 50);
    assert_eq!(volume.look(), []);
    let finished = rebuild(RebuildState::Finished, 90, 0);
    volume.seen.rebuild = finished;
    let ended = EventKind::RebuildFinished {
        bytes: 90,
        seconds: 9,
    };
    assert_eq!(volume.look(), [(None, ended)]);
    // A later check that has nothing to do keeps the report of this one.
    volume.seen.rebuild = rebuild(RebuildState::Running, 0, 0);
    assert_eq!(volume.look(), []);
    volume.seen.rebuild = finished;
    assert_eq!(volume.look(), []);
}

#[test]
fn a_rebuild_between_two_looks_is_told_with_its_end() {
    let mut volume = Watched::new();
    volume.seen.rebuild = rebuild(RebuildState::Finished, 7, 0);
    let kinds: Vec<EventKind> = volume.look().into_iter().map(|(_, kind)| kind).collect();
    assert!(
        matches!(
            kinds[..],
            [
                EventKind::RebuildStarted { .. },
                EventKind::RebuildFinished { bytes: 7, .. }
            ]
        ),
        "{kinds:?}"
    );
}

#[test]
fn a_rebuild_that_leaves_shards_or_makes_no_progress_is_stuck_and_told_once() {
    let mut volume = Watched::new();
    volume.seen.rebuild = rebuild(RebuildState::Running, 5, 90);
    assert_eq!(volume.look().len(), 1);
    let stuck = |bytes_waiting, seconds| EventKind::RebuildStuck {
        bytes_waiting,
        bytes_unreadable: 0,
        seconds,
    };
    assert_eq!(volume.look_after(STUCK_AFTER), [(None, stuck(0, 300))]);
    assert_eq!(volume.look_after(STUCK_AFTER), []);
    let ended = RebuildProgress {
        bytes_waiting: 80,
        ..rebuild(RebuildState::Finished, 10, 0)
    };
    volume.seen.rebuild = ended;
    let noted = volume.look();
    assert_eq!(noted.len(), 2, "{noted:?}");
    assert_eq!(noted[1], (None, stuck(80, 0)));
    for state in [RebuildState::Running, RebuildState::Finished] {
        volume.seen.rebuild = RebuildProgress { state, ..ended };
        assert!(!volume.look().contains(&(None, stuck(80, 0))));
    }
}

#[test]
fn a_rebuild_that_fails_is_told_once_for_each_reason() {
    let mut watched = Watched::new();
    let failed = |reason: &str| {
        let reason = reason.to_owned();
        (None, EventKind::RebuildFailed { reason })
    };
    let mut look_with = |reason: Option<&str>| {
        watched.seen.rebuild_failure = reason.map(str::to_owned);
        watched.look()
    };
    assert_eq!(look_with(Some("no space")), [failed("no space")]);
    assert_eq!(look_with(Some("no space")), []);
    assert_eq!(look_with(Some("read-only")), [failed("read-only")]);
    assert_eq!(look_with(None), []);
    assert_eq!(look_with(Some("read-only")), [failed("read-only")]);
}

#[test]
fn a_paused_job_is_not_stuck() {
    let mut volume = Watched::new();
    volume.seen.rebuild = rebuild(RebuildState::Running, 5, 90);
    volume.seen.scrub = Some(scrub(ScrubState::Running, 5));
    assert_eq!(volume.look().len(), 2);
    volume.seen.is_paused = true;
    assert_eq!(volume.look_after(2 * STUCK_AFTER), []);
    volume.seen.is_paused = false;
    assert_eq!(volume.look(), []);
    assert_eq!(volume.look_after(STUCK_AFTER).len(), 2);
}

#[test]
fn a_scrub_is_told_when_it_begins_stops_goes_on_and_ends_also_between_two_looks() {
    let mut volume = Watched::new();
    volume.seen.scrub = Some(scrub(ScrubState::Running, 0));
    let begun = EventKind::ScrubStarted { percent: 50 };
    assert_eq!(volume.look(), [(None, begun)]);
    volume.seen.scrub = Some(scrub(ScrubState::Stopped, 9));
    let stopped = EventKind::ScrubStopped { percent: 50 };
    assert_eq!(volume.look(), [(None, stopped)]);
    assert_eq!(volume.look(), []);
    let mut finished = scrub(ScrubState::Finished, 80);
    finished.record.began = 1000;
    finished.record.last_finished = 1001;
    volume.seen.scrub = Some(finished);
    let ended = EventKind::ScrubFinished {
        bytes: 80,
        repaired: 2,
        wrong: 0,
        bytes_lost: 0,
    };
    let noted = volume.look();
    assert!(
        matches!(noted[0].1, EventKind::ScrubStarted { .. }),
        "{noted:?}"
    );
    assert_eq!(noted[1..], [(None, ended)]);
    assert_eq!(volume.look(), []);
}

#[test]
fn low_room_and_full_members_are_told_with_some_distance_between_the_limits() {
    let mut volume = Watched::new();
    let mut room = |bytes_free, full: &[u16]| {
        volume.seen.space = Some(SpaceSeen {
            bytes_free,
            bytes_usable: 1000,
            full: full.iter().copied().map(MemberIndex).collect(),
        });
        let noted = volume.look();
        volume.seen.space = None;
        assert_eq!(volume.look(), [], "nothing was measured");
        noted
    };
    assert_eq!(room(50, &[]), []);
    assert_eq!(
        room(49, &[3]),
        [
            (Some(3), EventKind::MemberFull { full: 1 }),
            (
                None,
                EventKind::SpaceLow {
                    bytes_free: 49,
                    bytes_usable: 1000
                }
            )
        ]
    );
    assert_eq!(room(60, &[3]), [], "between the limits nothing changes");
    assert_eq!(
        room(70, &[]),
        [
            (Some(3), EventKind::MemberHasRoom { full: 0 }),
            (
                None,
                EventKind::SpaceRecovered {
                    bytes_free: 70,
                    bytes_usable: 1000
                }
            )
        ]
    );
}

#[test]
fn a_volume_that_takes_no_changes_and_then_does_is_told() {
    let mut volume = Watched::new();
    for index in 0..3 {
        volume.member(index).state = MemberState::Missing;
    }
    volume.seen.has_failed = true;
    let failed = EventKind::ReadOnly {
        online: 3,
        needed: 4,
    };
    assert!(volume.look().contains(&(None, failed)));
    for index in 0..3 {
        *volume.member(index) = online(index);
    }
    volume.seen.has_failed = false;
    assert!(
        volume
            .look()
            .contains(&(None, EventKind::Writable { online: 6 }))
    );
    assert_eq!(volume.look(), []);
}

#[test]
fn a_change_of_the_stripe_unit_is_told_as_one_of_the_code() {
    let mut volume = Watched::new();
    volume.seen.code.unit_bytes = 64 << 10;
    volume.seen.has_other_codes = Some(true);
    let noted = volume.look();
    assert!(
        matches!(noted[..], [(None, EventKind::CodeChangeStarted { .. })]),
        "{noted:?}"
    );
}

#[test]
fn a_change_of_the_code_is_told_until_all_stripes_have_it() {
    let mut volume = Watched::new();
    volume.seen.code.parity = 3;
    volume.seen.has_other_codes = Some(true);
    let noted = volume.look();
    assert!(
        matches!(
            noted[..],
            [(None, EventKind::CodeChangeStarted { parity: 3, .. })]
        ),
        "{noted:?}"
    );
    assert_eq!(volume.look(), []);
    let noted = volume.look_after(STUCK_AFTER);
    assert_eq!(noted, [(None, EventKind::CodeChangeStuck { seconds: 300 })]);
    volume.seen.has_other_codes = Some(false);
    let noted = volume.look();
    assert!(
        matches!(
            noted[..],
            [(None, EventKind::CodeChangeFinished { parity: 3, .. })]
        ),
        "{noted:?}"
    );
}

#[test]
fn conditions_that_ended_while_there_was_no_daemon_are_told_to_have_ended() {
    let event = |member: Option<u16>, kind: EventKind| Event {
        time_ms: 5000,
        sequence: 0,
        volume: VolumeId(Uuid::from_u128(3)),
        member: member.map(|index| online(index).subject(MemberIndex(index))),
        severity: kind.severity(),
        kind,
    };
    let missing = || EventKind::MemberMissing {
        reason: String::new(),
    };
    let reduced = EventKind::RedundancyReduced {
        losses_tolerated: 0,
        losses_promised: 2,
        stripes: 1,
        bytes: 1,
    };
    let lost = EventKind::RangesLost {
        files: 2,
        bytes: 9,
        first_files: FirstNames::default(),
    };
    let low = EventKind::SpaceLow {
        bytes_free: 1,
        bytes_usable: 100,
    };
    let mut volume = Watched::new();
    volume.member(4).state = MemberState::Missing;
    volume.changes = Changes::default();
    volume.changes.remember(&[
        event(Some(1), missing()),
        event(Some(2), missing()),
        event(Some(2), EventKind::MemberBack { seconds_away: 3 }),
        event(Some(4), missing()),
        event(Some(5), EventKind::MemberFull { full: 1 }),
        event(None, reduced),
        event(None, lost),
        event(None, low),
    ]);
    let returned = volume.changes.returned(&volume.seen, 12_000);
    let members: Vec<Option<u16>> = returned
        .iter()
        .map(|it| it.0.as_ref().map(|it| it.index.0))
        .collect();
    assert_eq!(members, [Some(1)]);
    assert_eq!(returned[0].1, EventKind::MemberBack { seconds_away: 7 });
    let reason = String::new();
    assert_eq!(
        volume.look(),
        [(Some(4), EventKind::MemberMissing { reason })]
    );
    volume.seen.space = Some(SpaceSeen {
        bytes_free: 50,
        bytes_usable: 100,
        full: BTreeSet::new(),
    });
    let recovered = EventKind::SpaceRecovered {
        bytes_free: 50,
        bytes_usable: 100,
    };
    let has_room = EventKind::MemberHasRoom { full: 0 };
    assert_eq!(volume.look(), [(Some(5), has_room), (None, recovered)]);
    let restored = EventKind::RedundancyRestored {
        losses_tolerated: 2,
    };
    let found = EventKind::RangesRecovered { files: 2 };
    assert_eq!(volume.count(2, &[]), [restored, found]);
    assert_eq!(volume.count(2, &[]), []);
}

#[test]
fn a_refusal_and_the_order_that_ends_it_are_told_with_their_numbers() {
    let refused = InterlockChange::Refused {
        removals: RefusedRemovals {
            removed: 25,
            files: 100,
        },
        percent: 25,
    };
    let expected = EventKind::RemovalsRefused {
        removed: 25,
        files: 100,
        percent: 25,
    };
    assert_eq!(told(refused), expected);
    let allowed = InterlockChange::Allowed {
        refused_for: Duration::from_millis(9500),
    };
    assert_eq!(told(allowed), EventKind::RemovalsAllowed { seconds: 9 });
}
