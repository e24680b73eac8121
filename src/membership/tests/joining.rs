//! Directories that join a volume that is open.

use super::*;
use crate::format::journal::JournalGeneration;
use crate::format::superblock::SLOTS;
use crate::format::{Lsn, SegmentId};
use crate::membership::{AbsenceReason, Belongings, JoinAs, MemberState};
use crate::store::{CallKind, Effect, Fault, Scope};

/// Bytes of a journal file.
const JOURNAL: u64 = 1 << 20;

/// The work of the first attempt ends some time, and would take away the journals of the second.
#[test]
fn a_directory_is_not_taken_in_while_an_earlier_attempt_hangs() {
    let belongings = Belongings {
        journal_bytes: JOURNAL,
        ..Belongings::default()
    };
    for nth in [1, 2] {
        let disks = Disks::volume(2, 1, 3);
        let executor = Executor::new(ExecutorKind::Threads, Duration::from_secs(2));
        let stores = disks.stores(0..3);
        let members = Members::open(stores, Access::ReadWrite, Arc::new(executor))
            .expect("all members are there");
        members.epochs().begin().expect("all members are there");
        members.io().fail(MemberIndex(2), &io_error());
        let join = |store: &StoreRef| {
            members
                .changes()
                .join(JoinAs::Returning, store, &belongings, |_, _| {
                    Ok::<_, MembersError>(())
                })
        };
        let plan = FaultPlan::new();
        let hanging = disks.faulty([2], &plan).remove(0);
        plan.add(Fault::at(nth, Effect::Hang).of(Scope::Kind(CallKind::Create)));
        let refusal = join(&hanging).expect_err("it hangs");
        assert!(matches!(refusal, MembersError::Store(_)), "{refusal}");
        let again = || join(&disks.stores([2]).remove(0));
        assert!(matches!(again(), Err(MembersError::InUse { .. })));
        assert_eq!(members.membership().live(), indices([0, 1]));
        plan.release();
        // It answers in its own time.
        let index = loop {
            match again() {
                Err(MembersError::InUse { .. }) => std::thread::yield_now(),
                joined => break joined.expect("nothing hangs any more"),
            }
        };
        assert_eq!(members.epochs().stale(), [index]);
        for name in files::JOURNALS {
            let len = disks.directories[2].open().open_len(name);
            assert_eq!(len.expect("it has its journals"), JOURNAL);
        }
    }
}

/// The member acknowledged the record into the journal that it had before.
#[test]
fn a_member_that_returns_while_a_record_is_written_lacks_it_and_is_not_admitted() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    let (acknowledged, record) = (members.acknowledged(), Lsn(5));
    let live = acknowledged.begin(record, members.membership());
    assert_eq!(live, indices(0..4));
    members.io().fail(MemberIndex(2), &io_error());
    let belongings = Belongings {
        journal_bytes: JOURNAL,
        ..Belongings::default()
    };
    let store = disks.stores([2]).remove(0);
    let returned = members
        .changes()
        .join(JoinAs::Returning, &store, &belongings, |_, _| {
            Ok::<_, MembersError>(())
        })
        .expect("it is there again");
    acknowledged.note(&live, JournalGeneration::default(), record);
    assert!(acknowledged.has(MemberIndex(3), record));
    assert!(!acknowledged.has(returned, record));
    members.epochs().admit_stale().expect("nothing fails");
    assert_eq!(members.epochs().stale(), [returned]);
    assert!(members.epochs().is_checkpoint_awaited());
    acknowledged.need_from(None);
    assert!(!members.epochs().is_checkpoint_awaited());
    members.epochs().admit_stale().expect("nothing fails");
    assert_eq!(members.epochs().stale(), []);
}

#[test]
fn errors_of_a_member_do_not_survive_its_replacement() {
    let belongings = Belongings {
        journal_bytes: JOURNAL,
        ..Belongings::default()
    };
    for seat in [JoinAs::Returning, JoinAs::InPlaceOf(MemberIndex(1))] {
        let mut disks = Disks::volume(2, 1, 4);
        let members = disks.open(0..4).expect("all members are there");
        for class in [ErrorClass::Read, ErrorClass::Write, ErrorClass::Checksum] {
            members.io().count_error(MemberIndex(1), class);
        }
        members.io().fail(MemberIndex(1), &io_error());
        let of = |member: usize| members.status().remove(member);
        assert_eq!(of(1).errors.checksum, 1, "those of an absent member count");
        if seat != JoinAs::Returning {
            disks.directories[1] = MemDisk::new("/new", 1 << 30);
        }
        let store = disks.stores([1]).remove(0);
        let joined = members
            .changes()
            .join(seat, &store, &belongings, |_, _| Ok::<_, MembersError>(()))
            .expect("it fits");
        let joined = of(usize::from(joined.0));
        assert_eq!(joined.state, MemberState::Online, "{seat:?}");
        assert_eq!(joined.errors, ErrorCounts::default(), "{seat:?}");
        assert_eq!(joined.wrong_at, None, "{seat:?}");
    }
}

#[test]
fn the_refusal_of_a_directory_is_reported_until_another_is_known() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    let path = || "/d1".to_owned();
    let refusal = || members.status()[1].refusal.clone();
    members
        .changes()
        .note_refusal(MemberIndex(1), &MembersError::Diverged { path: path() });
    for passing in [
        MembersError::NotNow,
        MembersError::InUse {
            path: path(),
            holder: None,
        },
    ] {
        members.changes().note_refusal(MemberIndex(1), &passing);
        assert_eq!(refusal(), Some(AbsenceReason::MountedApart), "{passing}");
    }
    members
        .changes()
        .note_refusal(MemberIndex(1), &MembersError::Store(io_error()));
    let failing = Some(AbsenceReason::of_failure(&io_error()));
    assert_eq!(refusal(), failing, "it has another reason now");
}

#[test]
fn a_refused_directory_says_nothing_of_members_left_out_or_last_seen_elsewhere() {
    let disks = Disks::volume(2, 1, 4);
    let error = MembersError::Store(io_error());
    let noted = |members: &Members, brought: usize| {
        let store = disks.stores([brought]).remove(0);
        members
            .changes()
            .note_refused(MemberIndex(1), &store, &error);
        members.status().swap_remove(1).refusal
    };
    let without = disks.open([0, 2, 3]).expect("enough members");
    assert_eq!(noted(&without, 1), None);
    assert_eq!(without.status()[1].reason, Some(AbsenceReason::NotGiven));
    drop(without);
    let disks_of_all = Disks::volume(2, 1, 4);
    let members = disks_of_all.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    assert_eq!(noted(&members, 3), None, "it is another's directory");
    let failing = AbsenceReason::of_failure(&io_error());
    assert_eq!(noted(&members, 1), Some(failing));
}

#[test]
fn the_status_of_an_absent_member_names_what_lies_at_its_path_now() {
    let (disks, others) = (Disks::volume(2, 1, 4), Disks::volume(2, 1, 3));
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    let seen = |error: &MembersError| {
        members.changes().note_refusal(MemberIndex(1), error);
        let status = members.status().swap_remove(1);
        (status.state, status.refusal.expect("it was noted"))
    };
    assert_eq!(members.status()[1].state, MemberState::Faulted);
    let source = std::io::Error::from(std::io::ErrorKind::NotFound);
    let absent = StoreError::new(StoreErrorKind::NotFound, "/d1", "open", "", source);
    let (state, reason) = seen(&absent.into());
    assert_eq!(state, MemberState::Missing);
    assert_eq!(reason, AbsenceReason::NoDirectory);
    let refused = |store: StoreRef| {
        members
            .changes()
            .check(JoinAs::Returning, &store)
            .unwrap_err()
    };
    let empty = MemDisk::new("/d1", 1 << 30);
    let (_, reason) = seen(&refused(Arc::new(empty.open())));
    assert_eq!(reason, AbsenceReason::Empty);
    let (_, reason) = seen(&refused(others.stores([1]).remove(0)));
    let other = others
        .open(0..3)
        .expect("all are there")
        .shape()
        .volume_id();
    assert_eq!(reason, AbsenceReason::OtherVolume { volume: other.0 });
    empty.open().create("photo", 1).expect("there is room");
    let (_, reason) = seen(&refused(Arc::new(empty.open())));
    assert!(reason.to_string().ends_with("it has photo"), "{reason}");
    let (state, reason) = seen(&MembersError::Store(io_error()));
    assert_eq!(state, MemberState::Faulted);
    assert_eq!(reason, AbsenceReason::of_failure(&io_error()));
}

#[test]
fn the_status_of_an_unreadable_member_names_the_damage_of_its_superblock() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    let store = disks.stores([1]).remove(0);
    let zeroed = vec![0; SLOTS * SLOT_BYTES];
    store
        .write_at(files::SUPERBLOCK, 0, &zeroed)
        .expect("there is room");
    for seat in [JoinAs::Returning, JoinAs::InPlaceOf(MemberIndex(1))] {
        let refused = members.changes().check(seat, &store);
        let error = refused.expect_err("the member is unknown");
        assert!(
            matches!(error, MembersError::UnreadableMember { .. }),
            "{error}"
        );
        members.changes().note_refusal(MemberIndex(1), &error);
        let noted = members.status()[1].refusal.clone().expect("it was noted");
        assert!(noted.is_missing_superblock(), "{noted}");
        assert!(error.to_string().ends_with(&noted.to_string()), "{noted}");
    }
}

#[test]
fn a_path_means_the_online_member_before_a_dead_one() {
    let mut disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    disks.directories[1] = MemDisk::new("/d1", 1 << 30);
    let store = disks.stores([1]).remove(0);
    let belongings = Belongings {
        journal_bytes: JOURNAL,
        ..Belongings::default()
    };
    assert_eq!(
        members.membership().at(&["/d1".to_owned()]),
        Some(MemberIndex(1))
    );
    let joined = members
        .changes()
        .join(JoinAs::New, &store, &belongings, |_, _| {
            Ok::<_, MembersError>(())
        });
    assert_eq!(joined.expect("it is empty"), MemberIndex(4));
    assert_eq!(
        members.membership().at(&["/d1".to_owned()]),
        Some(MemberIndex(4))
    );
    assert_eq!(
        members.membership().at(&["/d2".to_owned()]),
        Some(MemberIndex(2))
    );
    assert_eq!(members.membership().at(&["/d9".to_owned()]), None);
}

/// The failed write may never have reached it, and is no reason to doubt its data.
#[test]
fn a_member_that_failed_while_its_superblock_was_written_is_no_stale_copy() {
    let kinds = [CallKind::Write, CallKind::Sync];
    for (kind, nth) in kinds.into_iter().flat_map(|kind| [(kind, 1), (kind, 2)]) {
        let disks = Disks::volume(2, 2, 4);
        let plan = FaultPlan::new();
        let members = open(disks.faulty(0..4, &plan)).expect("all members are there");
        plan.add(Fault::at(nth, Effect::Eio).of(Scope::MemberKind(2, kind)));
        members.io().fail(MemberIndex(1), &io_error());
        assert_eq!(plan.triggered(), 1, "{kind:?} {nth}");
        assert_eq!(
            members.membership().live(),
            indices([0, 3]),
            "{kind:?} {nth}"
        );
        for disk in [1, 2] {
            let store = disks.stores([disk]).remove(0);
            let belongings = Belongings::default();
            let joined = members
                .changes()
                .join(JoinAs::Returning, &store, &belongings, |_, _| {
                    Ok::<_, MembersError>(())
                });
            joined.expect("it is as it was left");
        }
        assert!(
            members.stale_copies().unverified().is_empty(),
            "{kind:?} {nth}"
        );
    }
}

#[test]
fn a_removed_member_is_told_from_a_member_of_another_volume() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    let segment = files::segment(SegmentId(3));
    let former = disks.directories[3].open();
    former.create(&segment, 4096).expect("there is room");
    members
        .changes()
        .set_draining(MemberIndex(3), true)
        .expect("three suffice");
    assert!(
        members
            .changes()
            .remove_drained(MemberIndex(3))
            .expect("it may go")
    );
    let store = disks.stores([3]).remove(0);
    let refused = members.changes().check(JoinAs::New, &store);
    let is_former = |error: &MembersError| matches!(error, MembersError::FormerMember { index, .. } if *index == MemberIndex(3));
    assert!(refused.as_ref().is_err_and(is_former), "{refused:?}");
    // It is back where it was, as from a copy: so it is not taken in there.
    let refused = members.changes().check(JoinAs::Returning, &store);
    assert!(refused.as_ref().is_err_and(is_former), "{refused:?}");
    // Without segments it may be left of an attempt that was cut off.
    former.remove(&segment).expect("it works");
    members
        .changes()
        .check(JoinAs::New, &store)
        .expect("it is as good as empty");
}

/// One of its entries is enough to know, and it may have millions.
#[test]
fn a_directory_that_holds_only_directories_is_not_taken_in_and_not_listed() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    let plan = FaultPlan::new();
    let photos = MemDisk::new("/photos", 1 << 30);
    let files = photos.open();
    files.create("2026/may", 1).expect("there is room");
    let store: StoreRef = Arc::new(FaultStore::new(Arc::new(files), 9, &plan));
    for (seat, said) in [
        (JoinAs::New, "/photos is not empty: it has 2026"),
        (
            JoinAs::InPlaceOf(MemberIndex(1)),
            "/photos is not empty: it has 2026",
        ),
        (
            JoinAs::Returning,
            "/photos is not a member of the volume: what is there is no member of the volume: it has 2026",
        ),
    ] {
        plan.record();
        let refused = members
            .changes()
            .join(seat, &store, &Belongings::default(), |_, _| {
                Ok::<_, MembersError>(())
            });
        let error = refused.expect_err("it is somebody's");
        assert_eq!(error.to_string(), said, "{seat:?}");
        let calls = plan.take_log();
        assert!(calls.iter().all(|call| !call.kind.changes()), "{calls:?}");
        assert!(
            calls.iter().all(|call| call.kind != CallKind::List),
            "{calls:?}"
        );
    }
}

#[test]
fn the_remains_of_a_member_are_not_taken_in_with_foreign_files() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    members
        .changes()
        .set_draining(MemberIndex(3), true)
        .expect("three suffice");
    assert!(
        members
            .changes()
            .remove_drained(MemberIndex(3))
            .expect("it may go")
    );
    let store = disks.stores([3]).remove(0);
    members
        .changes()
        .check(JoinAs::New, &store)
        .expect("nothing is on it");
    disks.directories[3]
        .open()
        .create("photos/may", 1)
        .expect("there is room");
    let refused = members.changes().check(JoinAs::New, &store);
    assert!(
        matches!(&refused, Err(MembersError::NotEmpty { found, .. }) if found == "photos"),
        "{refused:?}"
    );
}

#[test]
fn a_member_that_is_kept_after_all_is_not_removed() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    let set_draining = |draining| members.changes().set_draining(MemberIndex(3), draining);
    set_draining(true).expect("three suffice");
    set_draining(false).expect("it is there");
    assert!(
        !members
            .changes()
            .remove_drained(MemberIndex(3))
            .expect("nothing fails")
    );
    assert_eq!(members.membership().live(), indices([0, 1, 2, 3]));
    assert_eq!(members.membership().count(), 4);
}
