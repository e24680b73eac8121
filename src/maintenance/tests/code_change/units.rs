//! Changes of the stripe unit: stripes of another unit are rewritten, also those of directories, and no others are.

use super::super::rebuild::{assert_whole, fill};
use super::*;
use crate::format::record::Counter;
use crate::store::{Effect, Fault, Scope};

/// The unit to which most volumes here change. Theirs is [`UNIT`] before.
const SMALL: u32 = 4096;

impl TestFs {
    fn of_unit(&self, unit_bytes: u32) -> StripeCode {
        StripeCode {
            unit_bytes,
            ..self.code()
        }
    }

    /// Returns the greatest height of all stripes with records.
    pub(super) fn greatest_height(&self) -> u32 {
        let stripes = self.stripes().into_iter();
        let records = stripes.map(|stripe| self.transactions.stripe(stripe).unwrap().unwrap());
        records.map(|record| record.height).max().unwrap()
    }

    fn awaits_other_codes(&self) -> bool {
        self.maintenance.rebuild().has_other_codes()
    }

    /// Returns the notes on earlier units.
    fn noted_units(&self) -> Vec<(Key, Value)> {
        let (from, end) = key::stripe_units();
        self.transactions.scan(&from, &end, usize::MAX).unwrap()
    }

    /// Returns the extents of some files.
    fn extents_of(&self, files: std::ops::Range<u64>) -> Vec<Vec<(u64, Extent)>> {
        files.map(|file| self.extents(file).unwrap()).collect()
    }
}

fn of_unit(unit_bytes: u32) -> StripeCode {
    StripeCode {
        unit_bytes,
        ..wanted(2, 1, CodeId::RS_CAUCHY)
    }
}

/// Returns a volume of 2+1 that was given a smaller unit, and more parity with that.
fn of_small_unit_and_more_parity() -> (Rig, Model, TestFs) {
    let (rig, mut model) = filled(2, 1, 5);
    let to = StripeCode {
        unit_bytes: SMALL,
        ..wanted(2, 2, CodeId::RS_CAUCHY)
    };
    let fs = changed(&rig, to, &mut model);
    (rig, model, fs)
}

/// Brings all stripes to the code in force.
#[track_caller]
fn finish(fs: &TestFs, context: &str) -> RebuildProgress {
    let done = fs.rebuild().unwrap();
    assert_eq!(done.state, RebuildState::Finished, "{context}");
    assert!(!done.leaves_something(), "{context}: {done:?}");
    assert!(!fs.awaits_other_codes(), "{context}");
    let again = fs.rebuild().unwrap();
    assert_eq!(again.bytes_done, 0, "{context}: nothing is left");
    done
}

#[test]
fn all_data_is_rewritten_with_the_stripe_unit_that_a_volume_is_given() {
    for (from, to, parity) in [
        (1 << 20, 64 << 10, 1),
        (64 << 10, 512 << 10, 2),
        (UNIT as u32, SMALL, 2),
    ] {
        let context = format!("from {from} to {to}");
        let rig = Rig::with_unit(2, parity, &[DISK; 5], from as usize);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        fill(&fs, 0, &mut model);
        let large = pattern(50, 2_500_000);
        fs.write(50, &large).unwrap();
        model.insert(50, large);
        fs.sync().unwrap();
        assert_eq!(fs.noted_units(), [], "{context}: nothing was changed");
        fs.close();
        let to_code = StripeCode {
            unit_bytes: to,
            ..wanted(2, parity, CodeId::RS_CAUCHY)
        };
        let fs = changed(&rig, to_code, &mut model);
        assert_eq!(fs.greatest_height(), from, "{context}");
        assert!(fs.awaits_other_codes(), "{context}");
        assert_eq!(fs.noted_units().len(), 1, "{context}");
        fill(&fs, 1000, &mut model);
        let before = fs.extents_of(1000..1009);
        let old: u64 = model
            .range(..1000)
            .map(|(_, bytes)| bytes.len() as u64)
            .sum();
        let done = finish(&fs, &context);
        assert!(done.bytes_done > old, "{context}: {done:?}");
        let height = fs.greatest_height();
        // Whole runs do not fill stripes to the end.
        assert!(
            height <= to && height > from.min(to / 2),
            "{context}: {height}"
        );
        assert_eq!(fs.extents_of(1000..1009), before, "{context}: they are new");
        assert_eq!(fs.noted_units(), [], "{context}: nothing is left of it");
        fs.close();
        let fs = rig.open(&[]);
        assert_whole(fs, &rig, &[], parity, &model, &context);
    }
}

#[test]
fn a_unit_that_is_changed_there_and_back_has_only_that_rewritten_which_was_written_in_between() {
    let (rig, mut model) = filled(2, 1, 5);
    let fs = changed(&rig, of_unit(SMALL), &mut model);
    fill(&fs, 1000, &mut model);
    fs.close();
    let fs = changed(&rig, of_unit(UNIT as u32), &mut model);
    fill(&fs, 2000, &mut model);
    let [first, between, last] = [0, 1000, 2000].map(|file| fs.extents_of(file..file + 9));
    let done = finish(&fs, "there and back");
    let since: u64 = model
        .range(1000..2000)
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    assert!(
        done.bytes_done > since && done.bytes_done < 2 * since,
        "{done:?}"
    );
    assert_eq!(fs.extents_of(0..9), first);
    assert_eq!(fs.extents_of(2000..2009), last);
    let mut moved = fs.extents_of(1000..1009).into_iter().zip(between);
    assert!(moved.all(|(now, before)| now != before));
    fs.close();
    // One note tells the unit of all others.
    let fs = changed(&rig, of_unit(SMALL), &mut model);
    assert_eq!(fs.noted_units().len(), 1);
    finish(&fs, "there again");
    assert_eq!(fs.greatest_height(), SMALL);
    assert_whole(fs, &rig, &[], 1, &model, "there again");
}

/// The rewritten stripes get the shards with which the others are widened.
#[test]
fn a_unit_that_changes_with_the_parity_has_each_stripe_written_once() {
    let (rig, model, fs) = of_small_unit_and_more_parity();
    let live = fs.stripes().into_iter();
    let live = live.filter(|stripe| fs.transactions.catalog.has_backref(*stripe).unwrap());
    let records = live.map(|stripe| fs.transactions.stripe(stripe).unwrap().unwrap());
    let expected: u64 = records
        .map(|record| 4 * u64::from(record.payload_len).div_ceil(2))
        .sum();
    let done = finish(&fs, "both");
    assert_eq!(done.bytes_done, expected);
    assert_eq!(fs.greatest_height(), SMALL);
    assert_whole(fs, &rig, &[], 2, &model, "both");
}

/// Stripes that were written for one unit get the next. A change during the work counts for all of them, moved or not.
#[test]
fn a_unit_that_changes_again_during_the_work_counts_for_all() {
    let (rig, mut model) = filled(2, 1, 5);
    let fs = changed(&rig, of_unit(SMALL), &mut model);
    let progress = || fs.maintenance.rebuild().status().progress();
    let stopped = fs.rebuild_while(&|_| progress().bytes_done == 0).unwrap();
    assert_eq!(stopped.state, RebuildState::Stopped);
    assert!(stopped.bytes_done > 0 && fs.awaits_other_codes());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = changed(&rig, of_unit(4 * UNIT as u32), &mut model);
    assert_eq!(fs.noted_units().len(), 2);
    finish(&fs, "redirected");
    assert!(fs.greatest_height() > UNIT as u32);
    let segments = fs.segments();
    let mut units = segments.keys().map(|it| fs.transactions.past_unit_of(*it));
    assert!(units.all(|unit| unit.is_none()));
    assert_whole(fs, &rig, &[], 1, &model, "redirected");
}

#[test]
fn a_power_cut_at_any_call_of_a_change_leaves_the_unit_of_each_stripe_known() {
    let (base, model) = filled_with(2, 1, 4, 1);
    let mut units = BTreeMap::new();
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        plan.add(power_cut_at(call));
        let outcome = fs.change_code(of_unit(SMALL));
        if plan.triggered() == 0 {
            outcome.unwrap();
            break;
        }
        drop(fs);
        for policy in ways_to_cut(call) {
            let (rig, mut model) = (rig.fork(), model.clone());
            rig.cut(policy);
            let context = format!("cut {call}, {policy:?}");
            let fs = rig.open_in(&[], &context);
            let unit = fs.code().unit_bytes;
            *units.entry(unit).or_insert(0) += 1;
            let is_changed = unit == SMALL;
            assert_eq!(fs.awaits_other_codes(), is_changed, "{context}");
            fill(&fs, 1000, &mut model);
            let done = finish(&fs, &context);
            assert_eq!(done.bytes_done > 0, is_changed, "{context}");
            fs.close();
            // A change that did not come about does not hide what was written before and after it.
            let fs = changed(&rig, of_unit(SMALL), &mut model);
            finish(&fs, &context);
            assert_eq!(fs.greatest_height(), SMALL, "{context}");
            assert_whole(fs, &rig, &[], 1, &model, &context);
        }
    }
    assert_eq!(units.len(), 2, "{units:?}");
}

/// The note stays, and is true of all that is written until the next change. A single failure sets one member aside. A
/// lasting one ends the volume.
#[test]
fn a_change_that_fails_after_its_note_changes_no_unit_and_can_be_ordered_again() {
    let (base, model) = filled_with(2, 1, 4, 1);
    for is_lasting in [false, true] {
        // The last state that a failed change left: nothing, a note, or the new unit.
        let (mut reached, mut noted) = (0, 0);
        for call in 1.. {
            let context = format!("call {call}, lasting {is_lasting}");
            let (rig, mut model) = (base.fork(), model.clone());
            let plan = FaultPlan::new();
            let fs = rig.open_with_faults(&plan).unwrap();
            let fault = Fault::at(call, Effect::Eio).of(Scope::Changing);
            plan.add(if is_lasting { fault.lasting() } else { fault });
            let outcome = fs.change_code(of_unit(SMALL));
            if plan.triggered() == 0 {
                outcome.unwrap();
                break;
            }
            if outcome.is_ok() {
                continue;
            }
            if !is_lasting {
                fill(&fs, 1000, &mut model);
                assert_holds(&fs, &model, &context);
            }
            drop(fs);
            rig.cut(CutPolicy::Drop);
            let fs = rig.open_in(&[], &context);
            assert_holds(&fs, &model, &context);
            let state = match (fs.noted_units().is_empty(), fs.code().unit_bytes) {
                (true, unit) => {
                    assert_eq!(unit, UNIT as u32, "{context}: nothing tells of the old one");
                    0
                }
                (false, SMALL) => 2,
                (false, _) => 1,
            };
            assert!(state >= reached, "{context}: {state} after {reached}");
            reached = state;
            match state {
                0 => {}
                1 => {
                    noted += 1;
                    assert_ordered_again(fs, &rig, model, &context);
                }
                _ => {
                    finish(&fs, &context);
                    assert_eq!(fs.greatest_height(), SMALL, "{context}");
                }
            }
        }
        assert!(noted > 0, "lasting {is_lasting}");
    }
}

/// Asserts that a volume has the unit from before a change that failed, and that all of it gets the new one in the end.
fn assert_ordered_again(fs: TestFs, rig: &Rig, mut model: Model, context: &str) {
    assert_eq!(fs.code().unit_bytes, UNIT as u32, "{context}");
    fill(&fs, 2000, &mut model);
    let before = fs.extents_of(0..9);
    assert!(!fs.awaits_other_codes(), "{context}");
    finish(&fs, context);
    assert_eq!(fs.extents_of(0..9), before, "{context}: they moved");
    assert_eq!(fs.greatest_height(), UNIT as u32, "{context}");
    fs.close();
    let fs = changed(rig, of_unit(SMALL), &mut model);
    assert!(fs.awaits_other_codes(), "{context}");
    finish(&fs, context);
    assert_eq!(fs.greatest_height(), SMALL, "{context}");
    assert_whole(fs, rig, &[], 1, &model, context);
}

#[test]
fn a_power_cut_at_any_call_of_the_rewriting_costs_no_redundancy_and_it_goes_on() {
    let (base, model) = filled_with(2, 1, 4, 1);
    let fs = base.open(&[]);
    fs.change_code(of_unit(SMALL)).unwrap();
    fs.close();
    base.open(&[]).close();
    let after = |rig: &Rig, fs: TestFs, context: &str| {
        finish(&fs, context);
        assert_eq!(fs.greatest_height(), SMALL, "{context}");
        assert_whole(fs, rig, &[], 1, &model, context);
    };
    let (.., calls) = cut_at_each_call(&base, &model, "a unit", &rebuild_until, &after);
    assert!(calls > 20, "only {calls} calls");
}

#[test]
fn a_refused_change_of_the_unit_notes_nothing() {
    let (rig, _) = filled(2, 1, 5);
    let fs = rig.open(&[]);
    assert!(fs.change_code(fs.of_unit(5000)).is_err());
    fs.lose(&rig, 2);
    assert!(fs.change_code(fs.of_unit(SMALL)).is_err());
    assert_eq!(fs.noted_units(), []);
    assert!(!fs.awaits_other_codes());
}

/// The stripes count as if they had the unit in force. Nothing tells which have another.
#[test]
fn a_damaged_note_on_a_unit_counts_as_none_and_a_rebuild_forgets_it() {
    for (name, value) in [
        ("stripe-unit-below-7", Value::from(b"\x01")),
        ("stripe-unit-below-7", Counter(5000).encode()),
        ("stripe-unit-below-x", Counter(8192).encode()),
    ] {
        let (rig, mut model) = filled(2, 1, 5);
        let fs = changed(&rig, of_unit(SMALL), &mut model);
        let mut batch = Batch::default();
        batch.put(key::counter(name), value);
        fs.transactions.apply(batch).unwrap();
        fs.close();
        let fs = rig.open(&[]);
        assert!(!fs.awaits_other_codes(), "{name}");
        assert_eq!(fs.rebuild().unwrap().bytes_done, 0, "{name}");
        assert_eq!(fs.greatest_height(), UNIT as u32, "{name}");
        assert_eq!(fs.noted_units(), [], "{name}");
        fs.close();
        let fs = changed(&rig, of_unit(4 * UNIT as u32), &mut model);
        finish(&fs, name);
        let fs = {
            fs.close();
            changed(&rig, of_unit(SMALL), &mut model)
        };
        finish(&fs, name);
        assert_eq!(fs.greatest_height(), SMALL, "{name}");
        assert_whole(fs, &rig, &[], 1, &model, name);
    }
}

/// A member that was given up keeps stripes from being rewritten. Parity that is added does not wait for that.
#[test]
fn stripes_of_another_unit_get_added_parity_in_place_without_a_member_that_was_given_up() {
    let (rig, model, fs) = of_small_unit_and_more_parity();
    fs.lose(&rig, 4);
    fs.rebuild().unwrap();
    assert_eq!(fs.greatest_height(), UNIT as u32);
    assert!(fs.awaits_other_codes());
    let rows = fs.redundancy();
    assert!(rows.iter().all(|row| row.0 >= 2), "{rows:?}");
    for lost in subsets(4, 2) {
        let lost = [&lost[..], &[4]].concat();
        assert_holds(
            &rig.fork().open(&lost),
            &model,
            &format!("without {lost:?}"),
        );
    }
    fs.take_back(&rig, 4);
    finish(&fs, "it is back");
    assert_eq!(fs.greatest_height(), SMALL);
    assert_whole(fs, &rig, &[], 2, &model, "it is back");
}

/// Each stripe has records in all copies of the index.
#[test]
fn a_shorter_unit_is_counted_with_the_room_for_the_records_of_more_stripes() {
    let rig = Rig::with_disks(2, 1, &[8 << 20; 3]);
    let fs = rig.open(&[]);
    fill_up(&fs, &mut Model::new(), 0, 4_096);
    fs.sync().unwrap();
    let lacking = |unit_bytes| {
        let rebuild = fs.maintenance.rebuild();
        rebuild.lacking_room_for(of_unit(unit_bytes))
    };
    assert_eq!(lacking(UNIT as u32), 0);
    assert_eq!(lacking(4 * UNIT as u32), 0);
    assert!(lacking(UNIT as u32 / 2) > 100_000);
}

#[test]
fn stripes_of_another_unit_wait_for_absent_members() {
    let (rig, mut model) = filled(2, 1, 4);
    let fs = changed(&rig, of_unit(SMALL), &mut model);
    fs.lose(&rig, 3);
    fs.rebuild().unwrap();
    assert_eq!(fs.greatest_height(), UNIT as u32);
    assert!(fs.awaits_other_codes());
    fs.take_back(&rig, 3);
    finish(&fs, "it is back");
    assert_eq!(fs.greatest_height(), SMALL);
    assert_whole(fs, &rig, &[], 1, &model, "it is back");
}

/// The work ends, and is reported, although it can never be complete.
#[test]
fn a_stripe_that_cannot_be_read_keeps_its_unit_and_the_others_are_rewritten() {
    let (rig, mut model) = filled(2, 1, 5);
    let fs = changed(&rig, of_unit(SMALL), &mut model);
    let (_, broken) = fs.extents(5).unwrap()[0];
    for written in fs.written_shards() {
        if written.stripe == broken.stripe {
            let disk = rig.disks[written.disk].open();
            let zeros = vec![0x5a; written.height];
            disk.write_at(&written.name, written.offset, &zeros)
                .unwrap();
        }
    }
    let done = fs.rebuild().unwrap();
    assert_eq!(done.state, RebuildState::Finished);
    assert!(done.bytes_unreadable > 0, "{done:?}");
    assert!(fs.awaits_other_codes());
    let (_, still) = fs.extents(5).unwrap()[0];
    assert_eq!(still.stripe, broken.stripe, "it stays where it is");
    let hurt = |file: &u64| fs.read(*file).is_err();
    let left: Vec<u64> = model.keys().copied().filter(hurt).collect();
    assert!(left.contains(&5), "{left:?}");
    model.retain(|file, _| !left.contains(file));
    assert_holds(&fs, &model, "the others");
    for file in left {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    // The stripe is dead once a commit covers that.
    fs.rebuild().unwrap();
    fs.sync().unwrap();
    finish(&fs, "without it");
    assert_eq!(fs.greatest_height(), SMALL);
    assert_holds(&fs, &model, "without it");
}
