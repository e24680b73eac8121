//! Bytes that were written with the code of the volume, because members were too few for that of their files.

use std::cell::Cell;

use super::*;
use crate::maintenance::RewriteStatus;

/// A volume of 2+2 on seven members, with a directory of 6+1, without one member.
fn without_one(rig: &Rig) -> (TestFs, StripeClass) {
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    fs.lose(rig, 0);
    (fs, wide)
}

/// Returns whether all bytes of files of a class lie in segments of it.
fn is_in(fs: &TestFs, files: &Classed, class: StripeClass) -> bool {
    let all = files.classes.keys();
    all.into_iter()
        .all(|file| fs.segments_of(*file).iter().all(|it| it.class == class))
}

/// No order is needed: the bytes have the code of their directory once all members are back.
#[test]
fn bytes_written_while_members_were_too_few_get_the_code_of_their_file_by_themselves() {
    let rig = rig(2, 7);
    let (fs, wide) = without_one(&rig);
    let rebuild = fs.maintenance.rebuild();
    // Older than the code of its directory, and never asked to be rewritten.
    let mut old = Classed::default();
    old.fill(&fs, 500, &[volume()]);
    fs.flush();
    assert!(!rebuild.awaits_rewrite().unwrap(), "they have their code");
    let before: Vec<_> = old
        .model
        .keys()
        .map(|it| fs.extents(*it).unwrap())
        .collect();
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide]);
    fs.flush();
    assert!(is_in(&fs, &files, volume()));
    assert!(rebuild.awaits_rewrite().unwrap());
    let done = fs.rebuild().unwrap();
    assert!(rebuild.awaits_rewrite().unwrap(), "a member is away");
    assert_eq!(done.bytes_unreadable, 0);
    fs.take_back(&rig, 0);
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "rewritten");
    old.assert_in_place(&fs, "old");
    let after: Vec<_> = old
        .model
        .keys()
        .map(|it| fs.extents(*it).unwrap())
        .collect();
    assert_eq!(
        after, before,
        "files with their own code stay where they are"
    );
    assert!(!rebuild.awaits_rewrite().unwrap());
    fs.assert_shards_lie_on(&rig, &[], "rewritten");
    fs.close();
    files.assert_survives(&rig, wide, 1, "rewritten");
    old.assert_survives(&rig, volume(), 2, "rewritten");
}

/// The order lies with the record of the stripe: it is there after a power cut at any call, or no such stripe is.
#[test]
fn a_power_cut_at_any_call_leaves_no_misplaced_stripe_without_an_order() {
    let mut cuts = 0;
    let mut misplaced = 0;
    for (call, policy) in (1..).zip(ways_to_cut(11).into_iter().cycle()) {
        let context = format!("call {call}, {policy:?}");
        let rig = rig(2, 7);
        let wide = {
            let fs = rig.open(&[]);
            let wide = fs.class_for(6, 1);
            fs.close();
            wide
        };
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.stores(&[0]), &plan);
        let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
        plan.add(power_cut_at(call));
        let mut files = Classed::default();
        let written = write_some(&fs, wide, &mut files);
        let is_cut = plan.triggered() > 0;
        assert!(is_cut || written.is_ok(), "{context}: {written:?}");
        drop(fs);
        rig.cut(policy);
        let fs = rig.open_in(&[0], &context);
        assert_holds(&fs, &files.model, &context);
        let strays = !is_in(&fs, &files, wide);
        misplaced += u32::from(strays);
        let awaits = fs.maintenance.rebuild().awaits_rewrite().unwrap();
        assert!(awaits || !strays, "{context}: no order is left");
        fs.close();
        let fs = rig.open_in(&[], &context);
        fs.rebuild().unwrap();
        fs.flush();
        files.assert_in_place(&fs, &context);
        assert_holds(&fs, &files.model, &context);
        if !is_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 10 && misplaced > 5, "{cuts}, {misplaced}");
}

/// Writes files of a class, so that commits, flushes and stripes in the journal mix.
fn write_some(fs: &TestFs, class: StripeClass, files: &mut Classed) -> Result<(), CommitError> {
    for (file, len) in [(1, 9_000), (2, 300), (3, 70_000), (4, 5_000), (5, 40_000)] {
        let mut pending = files.clone();
        pending.write(fs, file, class, len)?;
        fs.sync()?;
        *files = pending;
    }
    fs.transactions.stripes.writer().retire_segments()?;
    fs.sync()
}

/// The rest has its code after any number of interruptions.
#[test]
fn the_return_to_the_code_of_a_directory_survives_kills() {
    let rig = rig(2, 7);
    let (fs, wide) = without_one(&rig);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide]);
    files.fill(&fs, 100, &[wide]);
    fs.flush();
    fs.take_back(&rig, 0);
    drop(fs);
    let mut rounds = 0;
    loop {
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[]);
        assert_holds(&fs, &files.model, "between two parts");
        if !fs.maintenance.rebuild().awaits_rewrite().unwrap() {
            files.assert_in_place(&fs, "rewritten");
            break;
        }
        fs.rebuild_a_part();
        fs.sync().unwrap();
        rounds += 1;
        assert!(rounds < 200);
    }
    assert!(rounds > 2, "{rounds}");
}

/// A member is dead, and nothing replaces it.
#[test]
fn an_order_goes_on_without_an_absent_member_as_far_as_the_others_suffice() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let (thin, wide) = (fs.class_for(5, 1), fs.class_for(6, 1));
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume()]);
    files.fill(&fs, 100, &[volume()]);
    fs.flush();
    let given = fs.transactions.ordering_rewrite(|| {
        for (file, class) in &mut files.classes {
            *class = if *file < 100 { thin } else { wide };
            fs.set_class(*file, *class)?;
        }
        Ok::<_, CommitError>(())
    });
    given.unwrap();
    fs.lose(&rig, 0);
    let rebuild = fs.maintenance.rebuild();
    let awaited = || rebuild.rewrite_status().unwrap().awaited;
    assert_eq!(awaited(), [MemberIndex(0)], "no rebuild has begun");
    fs.rebuild().unwrap();
    let mut fitting = files.clone();
    fitting.classes.retain(|_, class| *class == thin);
    fitting.model.retain(|file, _| *file < 100);
    fitting.assert_in_place(&fs, "a member is away");
    assert_holds(&fs, &files.model, "a member is away");
    let has_something_to_do = || rebuild.has_rewriting_to_do().unwrap();
    assert_eq!(awaited(), [MemberIndex(0)], "the others wait");
    assert!(!has_something_to_do());
    // New bytes wait as well, and cost no look.
    let before = fs.transactions.catalog.rewrite_order().unwrap();
    files.write(&fs, 200, wide, 50_000).unwrap();
    fs.flush();
    assert_ne!(fs.transactions.catalog.rewrite_order().unwrap(), before);
    assert_eq!(awaited(), [MemberIndex(0)]);
    assert!(!has_something_to_do());
    let rests = Cell::new(0);
    let counted = fs.rebuild_while(&|_| {
        rests.set(rests.get() + 1);
        true
    });
    counted.unwrap();
    assert_eq!(rests.get(), 0, "there was a look");
    fs.transactions.order_rewrite().unwrap();
    assert!(has_something_to_do(), "a command may be about other files");
    fs.rebuild().unwrap();
    fs.take_back(&rig, 0);
    assert!(has_something_to_do());
    fs.rebuild().unwrap();
    assert!(!rebuild.awaits_rewrite().unwrap());
    files.assert_in_place(&fs, "it is back");
    fs.close();
    files.assert_survives(&rig, thin, 1, "it is back");
    files.assert_survives(&rig, wide, 1, "it is back");
}

/// All stripes of directories have their code on six members once the seventh is gone for good.
#[test]
fn an_order_ends_without_an_absent_member_if_no_code_needs_it() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume()]);
    fs.flush();
    fs.lose(&rig, 0);
    let given = fs.transactions.ordering_rewrite(|| {
        for (file, class) in &mut files.classes {
            *class = thin;
            fs.set_class(*file, thin)?;
        }
        Ok::<_, CommitError>(())
    });
    given.unwrap();
    fs.rebuild().unwrap();
    let status = fs.maintenance.rebuild().rewrite_status().unwrap();
    assert_eq!(status, RewriteStatus::default());
    files.assert_in_place(&fs, "rewritten");
    fs.close();
    for also in 1..7 {
        let fs = TestFs::open(rig.fork().stores(&[0, also]), Access::ReadOnly).unwrap();
        assert_holds(&fs, &files.model, &format!("without 0 and {also}"));
    }
}

/// A volume of 2+2 on six members, that had seven. Files of 6+1 were written since then, and none waits for anything.
fn one_too_few(rig: &Rig) -> (TestFs, Classed) {
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    fs.maintenance.draining().drain(MemberIndex(6)).unwrap();
    fs.rebuild().unwrap();
    assert_eq!(fs.transactions.members().membership().count(), 6);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide]);
    fs.flush();
    assert!(is_in(&fs, &files, volume()));
    assert!(!fs.maintenance.rebuild().awaits_rewrite().unwrap());
    (fs, files)
}

fn join(fs: &TestFs, disk: &MemDisk, seat: JoinAs) -> MemberIndex {
    let store: StoreRef = Arc::new(disk.open());
    fs.maintenance.joining().join(seat, &store).unwrap()
}

#[test]
fn a_member_that_is_added_brings_bytes_back_that_members_were_too_few_for() {
    let rig = rig(2, 7);
    let (fs, files) = one_too_few(&rig);
    join(&fs, &rig.disks[6], JoinAs::New);
    assert!(fs.maintenance.rebuild().has_rewriting_to_do().unwrap());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    let rebuild = fs.maintenance.rebuild();
    assert!(rebuild.awaits_rewrite().unwrap(), "after a power cut");
    fs.rebuild().unwrap();
    assert!(!rebuild.awaits_rewrite().unwrap());
    files.assert_in_place(&fs, "the seventh is there");
    assert_holds(&fs, &files.model, "the seventh is there");
}

/// The other one makes seven of them for a while.
#[test]
fn a_member_that_is_added_while_another_is_replaced_brings_bytes_back_too() {
    let rig = rig(2, 7);
    let (fs, files) = one_too_few(&rig);
    let old = MemberIndex(2);
    let new = join(&fs, &MemDisk::new("new", DISK), JoinAs::HeirOf(old));
    join(&fs, &rig.disks[6], JoinAs::New);
    fs.maintenance.draining().drain_to(old, new).unwrap();
    for _ in 0..10 {
        fs.rebuild().unwrap();
    }
    assert_eq!(fs.transactions.members().membership().count(), 7);
    fs.rebuild().unwrap();
    assert!(!fs.maintenance.rebuild().awaits_rewrite().unwrap());
    files.assert_in_place(&fs, "the other has left");
    assert_holds(&fs, &files.model, "the other has left");
}

/// One that replaces another adds no member, unless the other is kept after all.
#[test]
fn a_member_that_is_kept_beside_the_one_that_came_to_replace_it_counts_as_added() {
    for is_kept in [false, true] {
        let rig = rig(2, 7);
        let (fs, files) = one_too_few(&rig);
        let (rebuild, draining) = (fs.maintenance.rebuild(), fs.maintenance.draining());
        let old = MemberIndex(2);
        let new = join(&fs, &rig.disks[6], JoinAs::HeirOf(old));
        draining.drain_to(old, new).unwrap();
        assert!(!rebuild.awaits_rewrite().unwrap());
        if is_kept {
            draining.keep(old).unwrap();
            assert!(rebuild.has_rewriting_to_do().unwrap());
        }
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[]);
        let rebuild = fs.maintenance.rebuild();
        assert_eq!(rebuild.awaits_rewrite().unwrap(), is_kept, "a power cut");
        fs.rebuild().unwrap();
        assert!(!rebuild.awaits_rewrite().unwrap());
        if is_kept {
            files.assert_in_place(&fs, "kept");
        } else {
            assert!(is_in(&fs, &files, volume()));
            assert_eq!(fs.transactions.members().membership().count(), 6);
        }
        assert_holds(&fs, &files.model, "replaced or kept");
    }
}

/// Eight members are there once both have come. A power cut after that must find the order.
#[test]
fn a_member_gives_the_order_for_those_as_well_that_are_added_at_the_same_time() {
    let rig = rig(2, 8);
    let fs = rig.open(&[]);
    let wide = fs.class_for(7, 1);
    for leaving in [7, 6] {
        fs.maintenance
            .draining()
            .drain(MemberIndex(leaving))
            .unwrap();
        fs.rebuild().unwrap();
    }
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide]);
    fs.flush();
    let rebuild = fs.maintenance.rebuild();
    assert!(!rebuild.awaits_rewrite().unwrap());
    let other = fs.maintenance.joining().count_adding();
    join(&fs, &rig.disks[6], JoinAs::New);
    drop(other);
    assert!(rebuild.awaits_rewrite().unwrap());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert!(fs.maintenance.rebuild().awaits_rewrite().unwrap());
}

/// A look that began before the member took part says nothing about the members after that.
#[test]
fn no_order_ends_while_a_member_is_being_added() {
    let rig = rig(2, 7);
    let (fs, files) = one_too_few(&rig);
    let catalog = &fs.transactions.catalog;
    let order = || catalog.rewrite_order().unwrap();
    std::thread::scope(|scope| {
        // It takes this before it takes part.
        let held = fs.maintenance.reaper.lock();
        let joined = scope.spawn(|| join(&fs, &rig.disks[6], JoinAs::New));
        cauchyfs_testkit::eventually("an order", Duration::from_secs(30), || order().is_some());
        let first = order().unwrap();
        let ended = catalog.finish_rewrite(first, 0).unwrap();
        drop(held);
        joined.join().unwrap();
        assert!(!ended, "the member is not there");
        assert!(
            !catalog.finish_rewrite(first, 0).unwrap(),
            "another is open"
        );
    });
    fs.rebuild().unwrap();
    assert_eq!(order(), None);
    files.assert_in_place(&fs, "the seventh is there");
}

/// Changes records until a sync finds no space for them.
fn fill_journal(fs: &TestFs) {
    for number in 0..100_000 {
        let mut batch = Batch::default();
        let record = key::xattr(Ino(1 << 40 | number), b"user.waits");
        batch.put(record, pattern(number, 3000));
        fs.transactions.apply(batch).unwrap();
        if number % 50 == 0
            && let Err(error) = fs.sync()
        {
            assert!(matches!(error, CommitError::NoSpace), "{error}");
            return;
        }
    }
    panic!("the journal takes everything");
}

/// A member that comes or stays brings the space without which its order is not durable.
#[test]
fn members_come_and_are_kept_although_the_order_for_them_finds_no_space() {
    for is_kept in [false, true] {
        let rig = rig(2, 7);
        let (fs, files) = one_too_few(&rig);
        let old = MemberIndex(2);
        if is_kept {
            let new = join(&fs, &rig.disks[6], JoinAs::HeirOf(old));
            fs.maintenance.draining().drain_to(old, new).unwrap();
        }
        let full = if is_kept { 7 } else { 6 };
        rig.disks[..full].iter().for_each(|it| it.set_capacity(0));
        fill_journal(&fs);
        if is_kept {
            fs.maintenance.draining().keep(old).unwrap();
        } else {
            join(&fs, &rig.disks[6], JoinAs::New);
        }
        let rebuild = fs.maintenance.rebuild();
        assert!(rebuild.awaits_rewrite().unwrap(), "{is_kept}");
        rig.disks.iter().for_each(|it| it.set_capacity(DISK));
        fs.sync().unwrap();
        fs.rebuild().unwrap();
        fs.rebuild().unwrap();
        files.assert_in_place(&fs, "seven are there");
    }
}

/// The member to be replaced has nothing that needs room. The sync after it is marked finds none.
#[test]
fn a_replacement_that_is_undone_can_be_repeated_or_ends_with_an_order() {
    for is_kept in [false, true] {
        let rig = rig(2, 7);
        let fs = rig.open(&[]);
        fs.class_for(6, 1);
        fs.maintenance.draining().drain(MemberIndex(6)).unwrap();
        fs.rebuild().unwrap();
        let old = MemberIndex(2);
        let new = join(&fs, &rig.disks[6], JoinAs::HeirOf(old));
        rig.disks.iter().for_each(|it| it.set_capacity(0));
        fill_journal(&fs);
        let draining = fs.maintenance.draining();
        let refused = draining.drain_to(old, new);
        assert!(matches!(refused, Err(CommitError::NoSpace)), "{refused:?}");
        let membership = fs.transactions.members().membership();
        assert_eq!(membership.draining(), []);
        assert_eq!(membership.heir_of(old), Some(new));
        rig.disks.iter().for_each(|it| it.set_capacity(DISK));
        let rebuild = fs.maintenance.rebuild();
        assert!(!rebuild.awaits_rewrite().unwrap());
        if is_kept {
            draining.keep(old).unwrap();
            assert!(rebuild.awaits_rewrite().unwrap());
        } else {
            draining.drain_to(old, new).unwrap();
            fs.rebuild().unwrap();
            assert_eq!(membership.count(), 6);
        }
    }
}
