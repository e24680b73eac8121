//! The advice for each state.

use super::*;
use crate::control::report::report_without as report;
use crate::maintenance::ScrubState;
use crate::store::{Holder, StoreError};

fn damaged_superblock() -> AbsenceReason {
    AbsenceReason::SuperblockDamaged {
        detail: "no magic".to_owned(),
    }
}

fn advice(change: impl FnOnce(&mut StatusReport), away: &[u16], rows: &[(i64, u64)]) -> String {
    let mut report = report(away, rows, &[0, 1, 3]);
    change(&mut report);
    report.next_step(None)
}

/// Makes do with 3+2 shards for six members.
fn spare(report: &mut StatusReport) {
    report.geometry.data = 3;
}

#[test]
fn whole_volumes_need_nothing() {
    assert_eq!(advice(|_| {}, &[], &[(2, 7)]), "nothing to do");
}

#[test]
fn a_full_member_that_keeps_the_others_from_taking_data_is_named_with_the_remedy() {
    let full = |members: &'static [usize]| {
        move |report: &mut StatusReport| {
            for member in members {
                report.members[*member].full = true;
            }
        }
    };
    let waiting = |report: &mut StatusReport| {
        full(&[2])(report);
        report.rebuild.bytes_waiting = 3 << 20;
    };
    for said in [
        advice(full(&[2]), &[], &[(2, 7)]),
        advice(full(&[2]), &[], &[(1, 7)]),
        advice(waiting, &[], &[(2, 7)]),
    ] {
        assert!(said.contains("no room on member 2 (/srv/d2):"), "{said}");
        assert!(
            said.contains("`cauchyfs member replace MOUNTPOINT 2 DIR`"),
            "{said}"
        );
    }
    let degrades = |report: &mut StatusReport| {
        full(&[2])(report);
        report.full_member = FullMembers::Degrade;
    };
    let said = advice(degrades, &[], &[(1, 7)]);
    assert!(
        said.starts_with("new data survives the loss of 1 more member only"),
        "{said}"
    );
    // The others are enough for a stripe, or have no room either.
    let is_enough = |report: &mut StatusReport| {
        spare(report);
        full(&[2])(report);
    };
    assert_eq!(advice(is_enough, &[], &[(2, 7)]), "nothing to do");
    let said = advice(full(&[0, 1, 2, 3, 4, 5]), &[], &[(2, 7)]);
    assert_eq!(said, "nothing to do");
}

#[test]
fn status_reports_a_volume_that_is_nearly_full_or_lacks_room_for_waiting_data() {
    let used = |bytes_used| {
        move |report: &mut StatusReport| {
            report.capacity.bytes_usable = Some(100 << 20);
            report.capacity.bytes_used = Some(bytes_used);
        }
    };
    assert_eq!(advice(used(90 << 20), &[], &[(2, 7)]), "nothing to do");
    let said = advice(used(98 << 20), &[], &[(2, 7)]);
    assert!(said.contains("room for 2.0 MiB more"), "{said}");
    assert!(
        said.contains("`cauchyfs member add MOUNTPOINT DIR`"),
        "{said}"
    );
    let read_only = |report: &mut StatusReport| {
        used(98 << 20)(report);
        report.mounted_read_only = true;
    };
    assert_eq!(advice(read_only, &[], &[(2, 7)]), "nothing to do");
    let waiting = |report: &mut StatusReport| report.rebuild.bytes_waiting = 3 << 20;
    for row in [(2, 7), (1, 7)] {
        let said = advice(waiting, &[], &[row]);
        assert!(
            said.starts_with("there is no room to rebuild 3.0 MiB"),
            "{said}"
        );
        assert!(
            said.contains("`cauchyfs member add MOUNTPOINT DIR`"),
            "{said}"
        );
    }
}

/// Room does not help shards that need one more directory.
#[test]
fn shards_without_a_directory_of_their_own_get_one_more_and_not_room() {
    let waiting = |report: &mut StatusReport| {
        spare(report);
        report.rebuild.bytes_waiting = 3 << 20;
        report.rebuild.bytes_without_member = 3 << 20;
    };
    for away in [&[][..], &[3]] {
        let said = advice(waiting, away, &[(1, 7)]);
        assert!(
            said.contains("`cauchyfs member add MOUNTPOINT DIR`"),
            "{said}"
        );
        assert!(!said.contains("room"), "{said}");
        assert!(!said.contains("removing files"), "{said}");
    }
}

#[test]
fn a_draining_member_stays_in_place_until_it_is() {
    let leaving = |report: &mut StatusReport| report.members[3].state = MemberState::Removing;
    let said = advice(leaving, &[], &[(2, 7)]);
    assert!(
        said.starts_with("leave member 3 (/srv/d3) in place"),
        "{said}"
    );
    assert!(said.ends_with("`cauchyfs member add MOUNTPOINT DIR` keeps it after all"));
    let stuck = |report: &mut StatusReport| {
        leaving(report);
        report.rebuild.bytes_waiting = 1;
    };
    let said = advice(stuck, &[], &[(2, 7)]);
    assert!(
        said.contains("cauchyfs member add MOUNTPOINT DIR"),
        "{said}"
    );
}

#[test]
fn an_unidentifiable_member_is_replaced_and_kept_until_the_volume_is_whole() {
    let damaged = |report: &mut StatusReport| {
        report.members[2].reason = Some(damaged_superblock());
    };
    let said = advice(damaged, &[2], &[(1, 7)]);
    assert!(
        said.contains("`cauchyfs member replace MOUNTPOINT 2 NEW_DIR`"),
        "{said}"
    );
    assert!(said.contains("/srv/d2 is left as it is"), "{said}");
    let check = "`cauchyfs check --repair '/srv/d0' '/srv/d1' '/srv/d2' ";
    assert!(said.contains(check), "{said}");
}

#[test]
fn a_directory_locked_by_a_hanging_process_is_not_taken_back() {
    for mounted in [true, false] {
        let kept = |report: &mut StatusReport| {
            report.mounted = mounted;
            report.members[2].reason = Some(AbsenceReason::InUse {
                holder: Some(Holder {
                    pid: 9,
                    program: "cauchyfs".to_owned(),
                    is_held_up: false,
                }),
            });
        };
        let said = advice(kept, &[2], &[(1, 7)]);
        assert!(said.contains("process 9 (cauchyfs), which ends"), "{said}");
        assert!(!said.contains("bring back"), "{said}");
    }
}

#[test]
fn repaired_bytes_call_for_a_scrub() {
    let rotten = |report: &mut StatusReport| report.members[1].suspect = true;
    let said = advice(rotten, &[], &[(2, 7)]);
    assert!(
        said.starts_with("member 1 (/srv/d1) gave wrong bytes"),
        "{said}"
    );
    assert!(said.contains("`cauchyfs scrub MOUNTPOINT`"), "{said}");
    let under_way = |report: &mut StatusReport| {
        rotten(report);
        report.scrub.as_mut().unwrap().state = ScrubState::Running;
    };
    let said = advice(under_way, &[], &[(2, 7)]);
    assert!(
        said.starts_with("wait: everything is being verified"),
        "{said}"
    );
}

#[test]
fn a_volume_that_is_only_read_gets_no_advice_that_would_be_refused() {
    let read_only = |report: &mut StatusReport| report.mounted_read_only = true;
    assert_eq!(advice(read_only, &[], &[(2, 7)]), "nothing to do");
    for (away, rows) in [(&[][..], (1, 7)), (&[2], (1, 7)), (&[2], (2, 7))] {
        let said = advice(read_only, away, &[rows]);
        assert!(said.starts_with("unmount it"), "{said}");
        assert!(!said.contains("cauchyfs"), "{said}");
    }
    let rotten = |report: &mut StatusReport| {
        read_only(report);
        report.members[1].suspect = true;
    };
    let said = advice(rotten, &[], &[(2, 7)]);
    assert!(said.starts_with("unmount it"), "{said}");
}

#[test]
fn an_absent_member_is_not_reported_as_rebuilding_while_another_drains() {
    let drained = |report: &mut StatusReport| {
        spare(report);
        report.members[3].state = MemberState::Removing;
        report.rebuild.state = RebuildState::Running;
    };
    let said = advice(drained, &[2], &[(2, 7)]);
    assert!(
        said.starts_with("wait: member 3 (/srv/d3) is being drained"),
        "{said}"
    );
    let said = advice(drained, &[2], &[(1, 1), (2, 7)]);
    assert!(
        said.starts_with("wait: what member 2 (/srv/d2) held"),
        "{said}"
    );
}

#[test]
fn the_advice_for_an_unmounted_volume_is_to_mount_it() {
    let unmounted = |report: &mut StatusReport| report.mounted = false;
    let said = advice(unmounted, &[], &[(1, 7)]);
    assert!(said.starts_with("mount it"), "{said}");
}

#[test]
fn a_stale_copy_waits_for_the_scrub_that_begins_by_itself() {
    let said = advice(
        |report| report.members[1].reason = Some(AbsenceReason::Unverified),
        &[],
        &[(1, 7)],
    );
    assert!(
        said.starts_with("wait: everything is being verified"),
        "{said}"
    );
}

#[test]
fn current_directories_are_looked_for_before_a_backup_where_old_copies_are_in_their_places() {
    let said = advice(|_| {}, &[], &[(-1, 7)]);
    assert!(said.ends_with("from a backup"), "{said}");
    for mounted in [true, false] {
        let old = |report: &mut StatusReport| {
            report.mounted = mounted;
            report.members[1].reason = Some(AbsenceReason::Unverified);
        };
        let said = advice(old, &[], &[(-1, 7)]);
        let place = "what is in the place of member 1 (/srv/d1) is from an earlier time: look";
        assert!(said.starts_with(place), "{said}");
        assert_eq!(said.contains("unmount"), mounted, "{said}");
    }
}

#[test]
fn an_absent_member_may_return_or_be_replaced() {
    let said = advice(|_| {}, &[2, 4], &[(0, 7)]);
    assert!(
        said.starts_with("bring back member 2 (/srv/d2), member 4 (/srv/d4): they are"),
        "{said}"
    );
    assert!(
        said.ends_with("`cauchyfs member replace MOUNTPOINT 2 DIR` puts another in its place"),
        "{said}"
    );
    let said = advice(|report| report.mounted = false, &[2], &[(1, 7)]);
    assert!(said.contains("then mount with all directories"), "{said}");
    let damaged = |report: &mut StatusReport| {
        report.mounted = false;
        report.members[2].reason = Some(damaged_superblock());
    };
    for (away, losses) in [(&[2][..], 1), (&[2, 4], 0), (&[1, 2, 4], -1)] {
        let said = advice(damaged, away, &[(losses, 7)]);
        // Another directory may lie where an absent member was.
        let command = match away {
            [2] => "`cauchyfs check --repair '/srv/d0' ",
            _ => "`cauchyfs check --repair` with all directories",
        };
        assert!(said.starts_with(command), "{said}");
        assert!(said.ends_with("member 2 (/srv/d2)"), "{said}");
    }
    let said = advice(|_| {}, &[1, 2, 4], &[(-1, 7)]);
    assert!(said.ends_with("not enough to read everything"), "{said}");
}

#[test]
fn mounting_again_is_advised_only_where_no_member_is_taken_back() {
    let again = "unmount the volume and mount it";
    let said = advice(|_| {}, &[1, 2, 4], &[(-1, 7)]);
    assert!(!said.contains(again), "{said}");
    assert!(
        said.contains("then goes on by itself"),
        "three of 4+2 read nothing: {said}"
    );
    let more = |report: &mut StatusReport| report.geometry.data = 2;
    let said = advice(more, &[1, 2, 4], &[(-1, 7)]);
    assert!(!said.contains(again), "{said}");
    assert!(said.contains("taken in again within seconds"), "{said}");
    let left_out = |report: &mut StatusReport| {
        more(report);
        report.members[2].reason = Some(AbsenceReason::NotGiven);
    };
    assert!(advice(left_out, &[1, 2, 4], &[(-1, 7)]).contains(again));
    let unmounted = |report: &mut StatusReport| report.mounted = false;
    assert!(!advice(unmounted, &[1, 2, 4], &[(-1, 7)]).contains(again));
}

#[test]
fn a_refused_member_is_not_reported_as_taken_in() {
    let of = |data, refused: &'static [usize], reason: AbsenceReason| {
        move |report: &mut StatusReport| {
            report.geometry.data = data;
            for index in refused {
                report.members[*index].reason = Some(reason.clone());
            }
        }
    };
    let seconds = "taken in again within seconds";
    for reason in [
        AbsenceReason::Flapping,
        AbsenceReason::MountedApart,
        AbsenceReason::FormerMember,
        AbsenceReason::SuperblockGone,
    ] {
        let said = advice(of(2, &[2], reason.clone()), &[1, 2, 4], &[(-1, 7)]);
        let others = "bring back member 1 (/srv/d1), member 4 (/srv/d4) (taken in again";
        assert!(said.starts_with(others), "{said}");
        assert!(said.contains("everything; "), "{said}");
        assert!(said.contains("member replace MOUNTPOINT 2"), "{said}");
        let said = advice(of(2, &[1, 2, 4], reason), &[1, 2, 4], &[(-1, 7)]);
        assert!(!said.contains(seconds), "{said}");
        assert!(!said.contains("bring back"), "{said}");
        assert!(said.contains("member replace MOUNTPOINT 1"), "{said}");
    }
    // A volume that takes no member back takes no replacement either.
    let said = advice(of(4, &[2], AbsenceReason::Flapping), &[1, 2, 4], &[(-1, 7)]);
    assert!(said.contains("member 2 (/srv/d2), member 4"), "{said}");
    assert!(!said.contains("member replace"), "{said}");
}

#[test]
fn a_member_mounted_apart_is_emptied_first() {
    let apart = |report: &mut StatusReport| {
        report.members[4].reason = Some(AbsenceReason::MountedApart);
    };
    let said = advice(apart, &[2, 4], &[(0, 7)]);
    assert!(
        said.starts_with("member 4 (/srv/d4) was mounted apart"),
        "{said}"
    );
    assert!(
        said.ends_with(
            "empty /srv/d4, and `cauchyfs member replace MOUNTPOINT 4 '/srv/d4'` takes it in"
        ),
        "{said}"
    );
}

#[test]
fn a_removed_member_is_emptied_before_it_is_filled_again() {
    let former = |report: &mut StatusReport| {
        report.members[2].reason = Some(AbsenceReason::FormerMember);
    };
    let said = advice(former, &[2], &[(1, 7)]);
    assert!(
        said.ends_with(
            "empty /srv/d2, and `cauchyfs member replace MOUNTPOINT 2 '/srv/d2'` fills it again"
        ),
        "{said}"
    );
}

#[test]
fn a_member_left_out_returns_on_command() {
    let said = advice(
        |report| report.members[2].reason = Some(AbsenceReason::NotGiven),
        &[2],
        &[(1, 7)],
    );
    assert!(
        said.contains("`cauchyfs member replace MOUNTPOINT 2 '/srv/d2'`"),
        "{said}"
    );
}

#[test]
fn the_others_make_up_for_it_where_there_are_enough() {
    let said = advice(spare, &[2], &[(1, 7), (2, 1)]);
    assert!(
        said.contains("`cauchyfs rebuild MOUNTPOINT` makes up for it"),
        "{said}"
    );
    let running = |report: &mut StatusReport| {
        spare(report);
        report.rebuild.state = RebuildState::Running;
    };
    let said = advice(running, &[2], &[(1, 7)]);
    assert!(
        said.starts_with("wait: what member 2 (/srv/d2) held"),
        "{said}"
    );
    let rotting = |report: &mut StatusReport| {
        spare(report);
        report.members[4].suspect = true;
    };
    let said = advice(rotting, &[2], &[(1, 7)]);
    assert!(said.starts_with("bring back member 2"), "{said}");
    assert!(
        said.contains("member 4 (/srv/d4) gave wrong bytes"),
        "{said}"
    );
    let waiting = |report: &mut StatusReport| {
        spare(report);
        report.rebuild.bytes_waiting = 1;
    };
    let said = advice(waiting, &[2], &[(1, 7)]);
    assert!(said.starts_with("there is no room"), "{said}");
    let said = advice(spare, &[2], &[(2, 7)]);
    assert!(
        said.contains("`cauchyfs member remove MOUNTPOINT 2`"),
        "{said}"
    );
}

#[test]
fn missing_shards_and_copies_are_made_where_there_is_room() {
    let said = advice(|_| {}, &[], &[(1, 7)]);
    assert!(said.starts_with("`cauchyfs rebuild MOUNTPOINT`"), "{said}");
    let said = advice(
        |report| report.rebuild.state = RebuildState::Running,
        &[],
        &[(1, 7)],
    );
    assert!(said.starts_with("wait: what is missing"), "{said}");
    let said = advice(|report| report.rebuild.bytes_waiting = 1, &[], &[(1, 7)]);
    assert!(
        said.starts_with("there is no room to rebuild 1 B: `cauchyfs member add MOUNTPOINT DIR`"),
        "{said}"
    );
    let unreadable = |report: &mut StatusReport| report.rebuild.bytes_unreadable = 1;
    let said = advice(unreadable, &[], &[(1, 7)]);
    assert!(said.starts_with("`cauchyfs scrub MOUNTPOINT`"), "{said}");
    let short = |report: &mut StatusReport| report.index.as_mut().unwrap().members.truncate(1);
    let said = advice(
        |report| {
            short(report);
            report.state = VolumeState::Degraded;
        },
        &[],
        &[(2, 7)],
    );
    assert!(said.contains("copies its index"), "{said}");
}

#[test]
fn the_commands_of_an_advice_name_the_mountpoint_where_it_is_known() {
    let mountpoint = Path::new("/mnt/my photos");
    for (away, losses) in [(&[][..], 1), (&[2], 1), (&[2, 4], 0), (&[1, 2, 4], -1)] {
        let mut report = report(away, &[(losses, 7)], &[0, 1, 3]);
        for reason in [
            None,
            Some(AbsenceReason::Flapping),
            Some(AbsenceReason::NotGiven),
            Some(AbsenceReason::SuperblockGone),
        ] {
            for member in away {
                report.members[usize::from(*member)]
                    .reason
                    .clone_from(&reason);
            }
            let known = report.next_step(Some(mountpoint));
            assert!(!known.contains("MOUNTPOINT"), "{known}");
            let unknown = report.next_step(None);
            assert_eq!(known.replace("'/mnt/my photos'", "MOUNTPOINT"), unknown);
        }
    }
}

#[test]
fn a_volume_that_stopped_writing_is_to_be_mounted_again() {
    let stopped = |report: &mut StatusReport| {
        report.mounted = true;
        report.read_only = true;
    };
    for (away, state) in [
        (&[][..], VolumeState::Healthy),
        (&[2], VolumeState::Degraded),
    ] {
        let said = advice(
            |report| {
                stopped(report);
                report.state = state;
            },
            away,
            &[(2, 7)],
        );
        assert!(
            said.starts_with("unmount the volume, and mount it again"),
            "{said}"
        );
    }
}

#[test]
fn where_all_members_are_there_and_nothing_can_be_read_no_backup_is_advised() {
    let unreadable = |mounted| {
        move |report: &mut StatusReport| {
            report.mounted = mounted;
            report.redundancy = None;
            report.state = VolumeState::Failed;
        }
    };
    let said = advice(unreadable(true), &[], &[(2, 7)]);
    assert!(
        said.starts_with("wait: the volume goes on by itself"),
        "{said}"
    );
    let said = advice(unreadable(false), &[], &[(2, 7)]);
    assert!(
        said.contains("`cauchyfs check '/srv/d0' '/srv/d1'"),
        "{said}"
    );
}

/// The directory is there: it cannot be brought back.
#[test]
fn a_member_whose_journal_was_overwritten_is_not_to_be_brought_back() {
    let overwritten = |report: &mut StatusReport| {
        let source = std::io::Error::other("someone else wrote to its journal");
        let kind = StoreErrorKind::Overwritten;
        let error = StoreError::new(kind, "/srv/d2", "find", "records", source);
        report.members[2].state = MemberState::Faulted;
        report.members[2].reason = Some(AbsenceReason::of_failure(&error));
    };
    let spared = |report: &mut StatusReport| {
        spare(report);
        overwritten(report);
    };
    for said in [
        advice(overwritten, &[2], &[(1, 7)]),
        advice(spared, &[2], &[(1, 7)]),
    ] {
        assert!(!said.contains("bring back"), "{said}");
        assert!(
            said.starts_with(
                "member 2 (/srv/d2) is there, but another program wrote to its journal"
            ),
            "{said}"
        );
        for help in [
            "`cauchyfs member replace MOUNTPOINT 2 '/srv/d2'`",
            "`cauchyfs rebuild MOUNTPOINT`",
        ] {
            assert!(said.contains(help), "{said}");
        }
    }
}
