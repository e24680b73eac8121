//! Bytes that were written with the code of the volume, because members were too few for that of their files.

use super::*;

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
