use super::*;
use crate::format::superblock::Features;
use crate::format::{Epoch, Generation};
use crate::store::{Effect, Fault};

fn refused(result: Result<impl std::fmt::Debug, MembersError>) -> MembersError {
    let error = result.expect_err("it must be refused");
    assert!(!error.to_string().contains('\n'), "one line: {error}");
    error
}

#[test]
fn create_refuses_too_few_and_too_many_directories() {
    let error = refused(Disks::blank(4, 2, 0).create());
    assert!(matches!(error, MembersError::NoDirectory), "{error}");
    for count in 1..6 {
        let error = refused(Disks::blank(4, 2, count).create());
        assert_eq!(
            error.to_string(),
            format!("{count} directories given, 6 needed for 4+2")
        );
        let missing = 6 - count;
        let more = DirectoryChoice::More { shards: 6, missing };
        assert_eq!(error.remedy(), Some(more.into()));
    }
    let error = refused(Disks::blank(1, 1, 257).create());
    assert!(
        matches!(
            error,
            MembersError::TooManyDirectories {
                given: 257,
                most: 256
            }
        ),
        "{error}"
    );
}

#[test]
fn create_refuses_sizes_and_labels_that_a_volume_cannot_have() {
    let disks = Disks::blank(4, 2, 6);
    let good = disks.options();
    let bad = [
        CreateOptions {
            unit_bytes: 0,
            ..good.clone()
        },
        CreateOptions {
            unit_bytes: 1000,
            ..good.clone()
        },
        CreateOptions {
            unit_bytes: 1 << 30,
            segment_bytes: 1 << 30,
            ..good.clone()
        },
        CreateOptions {
            segment_bytes: 0,
            ..good.clone()
        },
        CreateOptions {
            segment_bytes: (1 << 20) + 4096,
            ..good.clone()
        },
        CreateOptions {
            label: "l".repeat(256),
            ..good.clone()
        },
        CreateOptions {
            label: "a\nb".into(),
            ..good.clone()
        },
    ];
    for options in bad {
        let error = refused(Members::create(&disks.stores(0..6), &options));
        assert!(
            matches!(error, MembersError::Option { .. }),
            "{options:?}: {error}"
        );
    }
    let options = CreateOptions {
        code: CodeId(999),
        ..good
    };
    let error = refused(Members::create(&disks.stores(0..6), &options));
    assert!(matches!(error, MembersError::Codec(_)), "{error}");
    disks.create().expect("nothing was left behind");
}

#[test]
fn create_refuses_directories_that_are_not_empty() {
    for index in 0..3 {
        for (name, found) in [
            ("notes.txt", "notes.txt"),
            ("photos/may", "photos"),
            ("segments/0000000000000000", "segments/0000000000000000"),
        ] {
            let disks = Disks::blank(2, 1, 3);
            disks.directories[index]
                .open()
                .create(name, 1)
                .expect("a blank disk");
            let error = refused(disks.create());
            assert_eq!(
                error.to_string(),
                format!("/d{index} is not empty: it has {found}")
            );
            let others = disks.all().into_iter().filter(|other| *other != index);
            for store in disks.stores(others) {
                assert_eq!(store.list("").expect("it works"), [], "untouched");
            }
        }
    }
    let disks = Disks::volume(2, 1, 3);
    let error = refused(disks.create());
    assert!(
        matches!(error, MembersError::AlreadyMember { .. }),
        "{error}"
    );
    disks.open(0..3).expect("the volume is unharmed");
}

#[test]
fn create_refuses_a_directory_given_twice() {
    let disks = Disks::blank(2, 1, 3);
    let error = refused(Members::create(&disks.stores([0, 1, 0]), &disks.options()));
    assert!(
        matches!(&error, MembersError::InUse { path, .. } if path == "/d0"),
        "{error}"
    );
    let find = Remedy::directory("/d0", DirectoryStep::FindOtherUse);
    assert_eq!(error.remedy(), Some(find));
    disks.create().expect("nothing was left behind");
}

#[test]
fn create_leaves_directories_empty_if_any_call_fails() {
    for nth in 1.. {
        let disks = Disks::blank(2, 1, 3);
        let plan = FaultPlan::new();
        plan.add(Fault::at(nth, Effect::Eio));
        let created = Members::create(&disks.faulty(0..3, &plan), &disks.options());
        if plan.triggered() == 0 {
            created.expect("nothing failed");
            return;
        }
        refused(created);
        for store in disks.stores(0..3) {
            assert_eq!(store.list("").expect("it works"), [], "call {nth}");
        }
        disks
            .create()
            .unwrap_or_else(|error| panic!("call {nth}: {error}"));
    }
}

#[test]
fn open_refuses_no_directory_and_directories_without_any_member() {
    let error = refused(open(Vec::new()));
    assert!(matches!(error, MembersError::NoDirectory), "{error}");
    let error = refused(Disks::blank(1, 1, 2).open(0..2));
    let MembersError::NoMember { unusable } = &error else {
        panic!("{error}");
    };
    let first = unusable[0].to_string();
    assert_eq!(first, "/d0: it is empty; is its disk mounted?");
    assert_eq!(unusable.len(), 2);
    assert!(error.remedy().is_some());
}

#[test]
fn open_refuses_a_directory_of_something_else() {
    let disks = Disks::volume(1, 1, 2);
    let foreign = Disks::blank(1, 1, 1);
    foreign.directories[0]
        .open()
        .create("notes.txt", 1)
        .expect("a blank disk");
    let error = refused(open([disks.stores(0..2), foreign.stores([0])].concat()));
    assert_eq!(
        error.to_string(),
        "/d0 is not a member of a volume: it has notes.txt, but no superblock"
    );
    assert!(error.remedy().is_some());
    assert_eq!(
        foreign.directories[0]
            .open()
            .list("")
            .expect("it works")
            .len(),
        1,
        "untouched"
    );
}

#[test]
fn open_refuses_members_of_two_volumes() {
    let (one, other) = (Disks::volume(1, 1, 2), Disks::volume(1, 1, 2));
    let error = refused(open([one.stores([0]), other.stores([1])].concat()));
    assert!(
        matches!(error, MembersError::MixedVolumes { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("/d0") && error.to_string().contains("/d1"));
    let Some(Remedy::Choice(DirectoryChoice::OneVolume { volume, .. })) = error.remedy() else {
        panic!("{error:?}");
    };
    assert_eq!(volume, one.block(0).volume.0);
}

#[test]
fn open_refuses_a_member_given_twice_or_copied() {
    let disks = Disks::volume(2, 1, 3);
    let error = refused(disks.open([0, 1, 0]));
    assert_eq!(error.to_string(), "/d0 and /d0 are both member 0");
    let copy = disks.fork();
    let error = refused(open([disks.stores(0..3), copy.stores([1])].concat()));
    assert_eq!(error.to_string(), "/d1 and /d1 are both member 1");
    assert!(error.remedy().is_some());
    disks.open(0..3).expect("nothing is locked");
}

#[test]
fn open_refuses_members_in_use_until_they_are_free() {
    let disks = Disks::volume(1, 1, 3);
    let first = disks.open(0..2).expect("enough members");
    let error = refused(disks.open(1..3));
    assert!(
        matches!(&error, MembersError::InUse { path, .. } if path == "/d1"),
        "{error}"
    );
    drop(first);
    disks.open(1..3).expect("the first is gone");
}

#[test]
fn open_refuses_volumes_of_newer_builds_by_version_and_by_feature() {
    for (offset, value) in [(8, 2_u8), (24, 1 << 7)] {
        let disks = Disks::volume(1, 1, 2);
        let len = disks.block(0).encode().len();
        let changed = disks.directories[0].corrupt(
            files::SUPERBLOCK,
            0,
            |slot| {
                slot[offset] = value;
                let checksum = crc32c::crc32c(&slot[..len - 4]);
                slot[len - 4..].copy_from_slice(&checksum.to_le_bytes());
            },
            len,
        );
        assert!(changed);
        let error = refused(disks.open(0..2));
        assert!(
            matches!(&error, MembersError::Newer { path, .. } if path == "/d0"),
            "{error}"
        );
        assert!(error.remedy().is_some());
    }
}

#[test]
fn open_names_what_is_missing_and_how_many_are_needed() {
    let disks = Disks::volume(4, 2, 6);
    let error = refused(disks.open([1, 3, 4]));
    assert_eq!(
        error.to_string(),
        "3 members found, 4 needed to mount or read; missing: member 0 (last seen at /d0); \
         member 2 (last seen at /d2); member 5 (last seen at /d5)"
    );
    assert!(error.remedy().is_some());
    let disks = Disks::volume(4, 2, 7);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let opened = Members::open(disks.stores([1, 3, 4]), access, inline());
        let said = refused(opened).to_string();
        let needed = "3 members found, 5 needed to mount (4 to read only); missing: member 0";
        assert!(said.starts_with(needed), "{access:?}: {said}");
    }
    let disks = Disks::volume(1, 1, 2);
    let members = disks.open(0..2).expect("all members are there");
    let error = refused(members.changes().set_draining(MemberIndex(0), true));
    assert_eq!(
        error.to_string(),
        "without member 0, 1 member is left, and a stripe needs 2"
    );
}

#[test]
fn a_volume_counts_as_unfinished_only_if_nothing_was_ever_written() {
    let disks = Disks::volume(4, 2, 6);
    let is_unfinished = |disks: &Disks| match refused(disks.open([1, 3, 4])).remedy() {
        Some(Remedy::Choice(DirectoryChoice::All { unfinished, .. })) => unfinished,
        other => panic!("{other:?}"),
    };
    assert!(is_unfinished(&disks));
    let written = disks.fork();
    let made = written.directories[3]
        .open()
        .create(files::JOURNALS[0], 4096);
    made.expect("there is room");
    assert!(!is_unfinished(&written));
    drop(disks.open(0..5).expect("enough members"));
    assert!(!is_unfinished(&disks), "a later epoch");
}

#[test]
fn open_does_not_take_stale_members_for_the_newest() {
    // Epoch 2 is without member 5 of 6, so that of its five members three must be there.
    let disks = Disks::volume(2, 2, 6);
    drop(disks.open(0..5).expect("enough members"));
    let error = refused(disks.open([0, 1, 5]));
    assert_eq!(
        error.to_string(),
        "2 members up to date, 3 needed to mount; missing: member 2 (last seen at /d2); \
         member 3 (last seen at /d3); member 4 (last seen at /d4)"
    );
    disks.open([0, 1, 2]).expect("three of five");
}

/// Gives members of a volume a superblock that a newer build could have written.
fn write_newer(disks: &Disks, which: impl IntoIterator<Item = usize>, features: Features) {
    for index in which {
        let block = disks.block(index);
        let newer = Superblock {
            generation: Generation(block.generation.0 + 1),
            features,
            extension: b"\x07\0\x03\0new".to_vec(),
            ..block
        };
        let store = disks.directories[index].open();
        store
            .write_at(files::SUPERBLOCK, newer.slot_offset(), &newer.encode())
            .expect("write");
    }
}

#[test]
fn fields_of_a_newer_build_that_may_be_ignored_are_kept() {
    let disks = Disks::volume(2, 1, 3);
    let features = Features {
        compat: 6,
        ..Features::default()
    };
    drop(disks.open(0..2).expect("enough members"));
    write_newer(&disks, 0..2, features);
    let members = disks.open(0..3).expect("enough members");
    members.epochs().admit_stale().expect("a member returns");
    for index in 0..3 {
        let block = disks.block(index);
        assert_eq!(block.head().epoch, Epoch(3));
        assert_eq!(block.features, features);
        assert_eq!(block.extension, b"\x07\0\x03\0new");
    }
}

#[test]
fn a_volume_that_a_newer_build_must_write_to_is_only_read() {
    let disks = Disks::volume(2, 1, 3);
    let features = Features {
        read_only: 8,
        ..Features::default()
    };
    write_newer(&disks, 0..3, features);
    let before = disks.fork();
    let error = refused(disks.open(0..2));
    assert!(
        matches!(error, MembersError::ReadOnlyFeatures { unknown: 8 }),
        "{error}"
    );
    let read_only = VolumeStep::ReadOnlyOrNewerVersion;
    assert_eq!(error.remedy(), Some(read_only.into()));
    Members::open(disks.stores(0..2), Access::ReadOnly, inline()).expect("to be read");
    for index in disks.all() {
        assert_eq!(disks.block(index), before.block(index));
    }
}

/// A daemon that cannot end keeps the directories that hang. A daemon that serves the volume keeps at least as many as
/// there are data shards.
#[test]
fn a_volume_opens_without_members_in_use_only_if_these_cannot_serve_it() {
    use crate::store::Hold;
    let cases = [
        // Data, parity, members; held, given: whether the rest will do.
        (4, 2, 6, 0..1, 0..6, true),
        (4, 2, 6, 0..2, 0..6, true),
        (4, 2, 6, 0..3, 0..6, false),
        (4, 2, 6, 0..6, 0..6, false),
        (4, 2, 6, 0..1, 0..5, true),
        (4, 2, 6, 0..1, 0..4, false),
        (2, 1, 4, 0..1, 0..4, true),
        (2, 2, 4, 0..1, 0..4, true),
        (2, 2, 4, 0..1, 0..3, false),
        (1, 1, 2, 0..1, 0..2, false),
        (1, 2, 3, 0..1, 0..3, false),
    ];
    for (data, parity, count, held, given, is_enough) in cases {
        let text = format!("{data}+{parity} of {count}, {held:?} held, {given:?} given");
        let disks = Disks::volume(data, parity, count);
        let others = disks.stores(held.clone());
        let locks: Vec<_> = others
            .iter()
            .map(|store| {
                store
                    .lock(Hold::Exclusive)
                    .expect("no other process has it")
            })
            .collect();
        match (refused(disks.open(given.clone())), is_enough) {
            (MembersError::PartlyInUse { held: found }, true) => {
                let paths: Vec<_> = held.clone().map(|index| format!("/d{index}")).collect();
                let found: Vec<_> = found.into_iter().map(|held| held.path).collect();
                assert_eq!(found, paths, "{text}");
                let rest = given.filter(|index| !held.contains(index));
                disks.open(rest).expect("they are free again");
            }
            (MembersError::InUse { path, .. }, false) => assert_eq!(path, "/d0", "{text}"),
            (error, _) => panic!("{text}: {error}"),
        }
        drop(locks);
    }
}

/// A daemon may keep one that was removed long ago: one that serves the volume has others.
#[test]
fn a_former_member_in_use_does_not_count_as_able_to_serve_the_volume() {
    use crate::store::Hold;
    for (data, parity, count) in [(2, 1, 5), (2, 2, 6)] {
        let disks = Disks::volume(data, parity, count);
        let members = disks.open(0..count).expect("all members are there");
        let former = MemberIndex(0);
        members
            .changes()
            .set_draining(former, true)
            .expect("enough are left");
        assert!(
            members
                .changes()
                .remove_drained(former)
                .expect("nothing fails")
        );
        members.release();
        drop(members);
        for held in [0..1, 0..2, 0..3] {
            let text = format!("{data}+{parity}, {held:?} held");
            let others = disks.stores(held.clone());
            let locks: Vec<_> = others
                .iter()
                .map(|store| {
                    store
                        .lock(Hold::Exclusive)
                        .expect("no other process has it")
                })
                .collect();
            // By those that are members.
            let can_be_served = held.len() > data;
            match refused(disks.open(0..count)) {
                MembersError::PartlyInUse { held: found } if !can_be_served => {
                    assert_eq!(found.len(), held.len(), "{text}");
                }
                MembersError::InUse { .. } if can_be_served => {}
                error => panic!("{text}: {error}"),
            }
            drop(locks);
        }
    }
}

/// On another machine: there may be no locks at all on the directories that seem to be free.
#[test]
fn members_locked_by_an_invisible_process_are_not_left_out() {
    use crate::store::Hold;
    let disks = Disks::volume(4, 2, 6);
    let holder = &disks.stores([0])[0];
    let lock = holder
        .lock(Hold::Exclusive)
        .expect("no other process has it");
    let mut stores = disks.stores(1..6);
    stores.push(Arc::new(disks.directories[0].clone().from_afar().open()));
    let error = refused(Members::open(stores, Access::ReadWrite, inline()));
    assert!(
        matches!(&error, MembersError::InUse { holder: None, .. }),
        "{error}"
    );
    drop(lock);
}

/// The free ones were removed by the others long ago.
#[test]
fn members_in_use_that_are_newer_than_all_others_are_not_left_out() {
    let disks = Disks::volume(4, 2, 6);
    drop(disks.open(0..5).expect("enough members"));
    let first = disks.open(0..4).expect("enough members");
    let error = refused(disks.open(3..6));
    assert!(matches!(error, MembersError::InUse { .. }), "{error}");
    drop(first);
}
