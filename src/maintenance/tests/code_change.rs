//! Volumes whose code is changed: what was written before gets the new code, and is never less protected meanwhile.

use std::collections::BTreeMap;

use super::full::fill_up;
use super::rebuild::{assert_whole, fill};
use super::*;
use crate::codec::CodeId;
use crate::format::SegmentId;
use crate::format::record::Segment;
use crate::maintenance::{RebuildState, RedundancyRow};
use crate::membership::{MembersError, StripeCode};

mod cuts;
mod full_index;
mod lowered;
mod packs;
mod units;

impl TestFs {
    fn code(&self) -> StripeCode {
        self.transactions.members().shape().stripe_code()
    }

    /// Changes the code; it counts from the next opening on.
    fn change_code(&self, wanted: StripeCode) -> Result<(), CommitError> {
        self.transactions.change_code(wanted)
    }

    fn segments(&self) -> BTreeMap<SegmentId, Segment> {
        let records = self.transactions.stripes.segments().records();
        records.into_iter().collect()
    }
}

fn wanted(data: usize, parity: usize, code: CodeId) -> StripeCode {
    StripeCode {
        geometry: Geometry::new(data, parity).unwrap(),
        code,
        unit_bytes: UNIT as u32,
    }
}

/// Returns a volume with files, and what they hold.
fn filled(data: usize, parity: usize, count: usize) -> (Rig, Model) {
    filled_with(data, parity, count, 3)
}

fn filled_with(data: usize, parity: usize, count: usize, rounds: u64) -> (Rig, Model) {
    let rig = Rig::new(data, parity, count);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    (0..rounds).for_each(|round| fill(&fs, 100 * round, &mut model));
    fs.close();
    (rig, model)
}

/// Changes the code of a volume and opens it again as after a crash. Bytes that only the journal had are among its files.
fn changed(rig: &Rig, to: StripeCode, model: &mut Model) -> TestFs {
    let fs = rig.open(&[]);
    for file in 0..9 {
        let bytes = pattern(1 << 20 | file, 3000 + file as usize);
        fs.write(1 << 20 | file, &bytes).unwrap();
        model.insert(1 << 20 | file, bytes);
        fs.sync().unwrap();
    }
    fs.change_code(to).unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_eq!(fs.code(), to);
    fs
}

#[test]
fn more_parity_is_added_to_all_stripes_and_their_shards_stay_where_they_are() {
    for (data, parity, more, count) in [(4, 2, 1, 7), (2, 1, 2, 6), (1, 1, 1, 3)] {
        let context = format!("{data}+{parity} and {more} over {count}");
        let (rig, mut model) = filled(data, parity, count);
        let fs = changed(
            &rig,
            wanted(data, parity + more, CodeId::RS_CAUCHY),
            &mut model,
        );
        fill(&fs, 1000, &mut model);
        let before: Vec<(WrittenShard, Vec<u8>)> = fs
            .written_shards()
            .into_iter()
            .map(|shard| (rig.bytes_of(&shard), shard))
            .map(|(bytes, shard)| (shard, bytes))
            .collect();
        let old = fs.redundancy();
        assert_eq!(old[0].0, parity as i16, "{context}: {old:?}");
        let done = fs.rebuild().unwrap();
        assert_eq!(done.state, RebuildState::Finished, "{context}");
        assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
        for (written, bytes) in &before {
            assert!(rig.bytes_of(written) == *bytes, "{context}: it moved");
        }
        // One shard of each old stripe for each parity.
        let old_heights: u64 = before
            .iter()
            .filter(|(written, _)| written.shard == ShardIndex(data as u8))
            .filter(|(written, _)| fs.segment_of(written.stripe).rotating == (data + parity) as u8)
            .map(|(written, _)| written.height as u64)
            .sum();
        assert_eq!(done.bytes_done, old_heights * more as u64, "{context}");
        assert_eq!(fs.rebuild().unwrap().bytes_done, 0, "{context}");
        assert_whole(fs, &rig, &[], parity + more, &model, &context);
    }
}

impl TestFs {
    fn segment_of(&self, stripe: StripeId) -> Segment {
        let record = self.transactions.stripe(stripe).unwrap().unwrap();
        self.segments()[&record.segment].clone()
    }
}

#[test]
fn stripes_are_rewritten_where_their_shards_cannot_stay() {
    let (cauchy, fft) = (CodeId::RS_CAUCHY, CodeId::RS_FFT);
    for (from, to) in [
        ((4, 2), wanted(2, 1, cauchy)),
        ((2, 1), wanted(4, 2, cauchy)),
        ((2, 1), wanted(2, 1, fft)),
        ((2, 1), wanted(3, 3, fft)),
    ] {
        let context = format!("{from:?} to {to:?}");
        let (rig, mut model) = filled(from.0, from.1, 6);
        let fs = changed(&rig, to, &mut model);
        fill(&fs, 1000, &mut model);
        let done = fs.rebuild().unwrap();
        assert_eq!(done.state, RebuildState::Finished, "{context}");
        assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
        for segment in fs.segments().values() {
            let geometry = (
                usize::from(segment.data_shards),
                usize::from(segment.parity_shards),
            );
            let wanted = (to.geometry.data_shards(), to.geometry.parity_shards());
            assert_eq!((geometry, segment.code), (wanted, to.code.0), "{context}");
        }
        assert_whole(fs, &rig, &[], to.geometry.parity_shards(), &model, &context);
    }
}

#[test]
fn parity_that_is_too_much_is_dropped_and_may_be_added_again() {
    for (first, changes) in [(1, &[3, 1, 2, 1, 4][..]), (3, &[1, 2, 4, 2])] {
        let (rig, mut model) = filled(2, first, 6);
        for (round, &parity) in changes.iter().enumerate() {
            let context = format!("{first}, then {parity} in round {round}");
            let fs = changed(&rig, wanted(2, parity, CodeId::RS_CAUCHY), &mut model);
            let (stay, go): (Vec<_>, Vec<_>) = fs
                .written_shards()
                .into_iter()
                .partition(|written| usize::from(written.shard.0) < 2 + parity);
            let before: Vec<Vec<u8>> = stay.iter().map(|shard| rig.bytes_of(shard)).collect();
            let done = fs.rebuild().unwrap();
            assert_eq!(done.state, RebuildState::Finished, "{context}");
            assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
            for (written, before) in stay.iter().zip(before) {
                assert!(rig.bytes_of(written) == before, "{context}: it moved");
            }
            for stripe in fs.stripes() {
                let next = ShardIndex(2 + parity as u8);
                let sums = fs.transactions.records.sums(stripe, next);
                assert_eq!(sums.unwrap(), None, "{context}");
            }
            fs.sync().unwrap();
            fs.maintenance.reaper.free_dead().unwrap();
            for written in go {
                assert!(rig.is_freed(&written), "{context}: {} stays", written.name);
            }
            fill(&fs, 1000 * (1 + round as u64), &mut model);
            assert_whole(fs, &rig, &[], parity, &model, &context);
        }
    }
}

/// A stripe may lack shards that stay, and be readable by those that are to go.
#[test]
fn parity_is_not_dropped_from_stripes_that_need_it() {
    let (rig, model) = filled(4, 2, 6);
    let mut changed_model = model.clone();
    let fs = changed(&rig, wanted(4, 1, CodeId::RS_CAUCHY), &mut changed_model);
    for disk in [0, 3] {
        fs.lose(&rig, disk);
    }
    fs.rebuild().unwrap();
    assert_holds(&fs, &changed_model, "two of six are lost");
    for disk in [0, 3] {
        fs.take_back(&rig, disk);
    }
    fs.rebuild().unwrap();
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_whole(fs, &rig, &[], 1, &changed_model, "they are back");
}

/// A new stripe is a fraction of an old one.
#[test]
fn stripes_of_many_new_ones_are_rewritten_in_full() {
    let rig = Rig::with_unit(8, 1, &[DISK; 9], 4 * UNIT);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..4 {
        let bytes = pattern(file, 700_001);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.sync().unwrap();
    fs.close();
    let to = StripeCode {
        unit_bytes: 4096,
        ..wanted(1, 2, CodeId::RS_CAUCHY)
    };
    let fs = changed(&rig, to, &mut model);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_whole(fs, &rig, &[], 2, &model, "8+1 to 1+2");
}

#[test]
fn a_code_is_refused_that_cannot_be_or_has_too_few_members() {
    let (rig, model) = filled(4, 2, 7);
    let fs = rig.open(&[]);
    let code = fs.code();
    let change_code = |wanted| fs.transactions.members().changes().change_code(wanted);
    let too_wide = change_code(wanted(4, 4, CodeId::RS_CAUCHY));
    assert!(
        matches!(too_wide, Err(MembersError::TooFewStay { staying: 7, .. })),
        "{too_wide:?}"
    );
    let odd = StripeCode {
        unit_bytes: 5000,
        ..code
    };
    let odd = change_code(odd);
    assert!(
        matches!(
            odd,
            Err(MembersError::Option {
                option: "stripe unit",
                ..
            })
        ),
        "{odd:?}"
    );
    let unknown = change_code(wanted(4, 3, CodeId(999)));
    assert!(
        matches!(unknown, Err(MembersError::Codec(_))),
        "{unknown:?}"
    );
    fs.lose(&rig, 3);
    let absent = change_code(wanted(4, 1, CodeId::RS_CAUCHY));
    assert!(
        matches!(&absent, Err(MembersError::NotAllHere { absent }) if absent.len() == 1),
        "{absent:?}"
    );
    fs.take_back(&rig, 3);
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(fs.code(), code, "nothing was changed");
    assert_holds(&fs, &model, "after refusals");
}

#[test]
fn shards_that_find_no_room_are_counted_before_the_code_is_changed() {
    let rig = Rig::with_disks(2, 1, &[DISK, DISK, DISK, 8 << 20]);
    let fs = rig.open(&[]);
    for file in 0..150 {
        fs.write(file, &pattern(file, 120_001)).unwrap();
    }
    fs.sync().unwrap();
    let lacking = |code| fs.maintenance.rebuild().lacking_room_for(code);
    assert!(lacking(wanted(2, 2, CodeId::RS_CAUCHY)) > 0);
    assert_eq!(lacking(fs.code()), 0);
    assert_eq!(lacking(wanted(1, 1, CodeId::RS_CAUCHY)), 0);
}

/// Returns a full volume of 2+1 that has another code now, with only each `kept`-th file.
fn full_with_other_code(kept: u64, to: StripeCode) -> (Rig, Model, TestFs) {
    let rig = Rig::with_disks(2, 1, &[8 << 20; 4]);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    let count = fill_up(&fs, &mut model, 0, 4_096);
    fs.sync().unwrap();
    for file in (0..count).filter(|file| file % kept != 0) {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    fs.sync().unwrap();
    fs.change_code(to).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(fs.code(), to);
    (rig, model, fs)
}

/// Each stripe has some live bytes, so that none comes free by itself.
#[test]
fn dead_bytes_beside_live_ones_are_reclaimed_before_a_change_of_the_code_lacks_room() {
    let to = wanted(2, 2, CodeId::RS_FFT);
    let (rig, model, fs) = full_with_other_code(4, to);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_whole(fs, &rig, &[], 2, &model, "2+1 to 2+2");
}

#[test]
fn a_change_of_the_code_without_room_waits_for_a_shard_of_one_stripe() {
    let other_unit = StripeCode {
        unit_bytes: 2 * UNIT as u32,
        ..wanted(2, 1, CodeId::RS_CAUCHY)
    };
    for to in [wanted(2, 1, CodeId::RS_FFT), other_unit] {
        let context = format!("to {to:?}");
        let (_rig, model, fs) = full_with_other_code(1, to);
        let done = fs.rebuild().unwrap();
        let step = fs.transactions.stripes.classes().volume().step();
        assert!(done.bytes_waiting > step, "{context}: {done:?}");
        // A segment may have less than a longer stripe.
        let least = step.min(UNIT as u64);
        assert_eq!(done.least_waiting, least, "{context}");
        assert_holds(&fs, &model, &context);
        // The stripes lack no shard, and they are yet to be rewritten.
        fs.maintenance.redundancy.redundancy().unwrap();
        let status = fs.maintenance.rebuild().status().progress();
        assert_eq!(status.bytes_waiting, done.bytes_waiting, "{context}");
    }
}

#[test]
fn stripes_that_are_to_get_more_parity_count_as_reduced_only_once_a_member_goes() {
    let (rig, mut model) = filled(4, 2, 7);
    let fs = changed(&rig, wanted(4, 3, CodeId::RS_CAUCHY), &mut model);
    let counted = |context: &str| {
        let counted = fs.maintenance.redundancy.redundancy_now().unwrap();
        let live: u64 = counted.live.values().sum();
        let bytes: u64 = counted.rows.iter().map(|row| row.bytes).sum();
        assert_eq!(live, bytes, "{context}");
        let older: u64 = counted.rows.iter().map(|row| row.of_older_code).sum();
        let reduced: u64 = counted.rows.iter().map(RedundancyRow::reduced).sum();
        (live, older, reduced)
    };
    let (live, older, reduced) = counted("before");
    assert!(live > 0 && older > 0);
    assert_eq!(reduced, 0, "nothing is lost");
    fs.remove(7).unwrap();
    fs.sync().unwrap();
    let (less, ..) = counted("without a file");
    assert_eq!(less, live - 16_384, "dead bytes do not count");
    fs.lose(&rig, 3);
    let (_, _, reduced) = counted("without a member");
    assert!(reduced > 0);
    fs.take_back(&rig, 3);
    fs.rebuild().unwrap();
    let (_, older, reduced) = counted("after the change");
    assert_eq!((older, reduced), (0, 0));
}

#[test]
fn a_power_cut_at_any_call_of_a_change_leaves_one_code_or_the_other_on_all_members() {
    let (base, model) = filled_with(2, 1, 4, 1);
    let to = wanted(2, 2, CodeId::RS_CAUCHY);
    let mut codes = BTreeMap::new();
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        let from = fs.code();
        plan.add(power_cut_at(call));
        let outcome = fs.change_code(to);
        if plan.triggered() == 0 {
            outcome.unwrap();
            break;
        }
        drop(fs);
        for policy in ways_to_cut(call) {
            let rig = rig.fork();
            rig.cut(policy);
            let context = format!("cut {call}, {policy:?}");
            let fs = rig.open_in(&[], &context);
            let code = fs.code();
            assert!([from, to].contains(&code), "{context}: {code:?}");
            *codes.entry(code.geometry.parity_shards()).or_insert(0) += 1;
            fs.rebuild().unwrap();
            assert_holds(&fs, &model, &context);
            let parity = code.geometry.parity_shards();
            fs.close();
            for lost in 0..4 {
                let fs = rig.fork().open_in(&[lost], &context);
                assert_eq!(fs.code(), code, "{context}, without {lost}");
            }
            assert_whole(rig.open(&[]), &rig, &[], parity, &model, &context);
        }
    }
    assert_eq!(codes.len(), 2, "{codes:?}");
}

#[test]
fn a_power_cut_at_any_call_costs_no_redundancy_and_the_work_goes_on() {
    let cauchy = CodeId::RS_CAUCHY;
    for (parity, to) in [
        (1, wanted(2, 2, cauchy)),
        (1, wanted(1, 1, cauchy)),
        (2, wanted(2, 1, cauchy)),
    ] {
        let (base, model) = filled_with(2, parity, 4, 1);
        let fs = base.open(&[]);
        fs.change_code(to).unwrap();
        fs.close();
        base.open(&[]).close();
        let after = |rig: &Rig, fs: TestFs, context: &str| {
            fs.rebuild().unwrap();
            assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
            assert_whole(fs, rig, &[], to.geometry.parity_shards(), &model, context);
        };
        let context = format!("to {to:?}");
        let (.., calls) = cut_at_each_call(&base, &model, &context, &rebuild_until, &after);
        assert!(calls > 20, "only {calls} calls");
    }
}

/// Does some work on a fork of a volume with a power cut at each of its calls. After each, asserts that files can be read
/// without any of four members and that all shards are there, and goes on with `after`. Returns the fork without a cut, and
/// the number of calls.
fn cut_at_each_call(
    base: &Rig,
    model: &Model,
    context: &str,
    work: &dyn Fn(&Rig, &FaultPlan, Fault) -> Result<TestFs, CommitError>,
    after: &dyn Fn(&Rig, TestFs, &str),
) -> (Rig, TestFs, u64) {
    for call in 1.. {
        let (rig, plan) = (base.fork(), FaultPlan::new());
        let outcome = work(&rig, &plan, power_cut_at(call));
        if plan.triggered() == 0 {
            return (rig, outcome.unwrap(), call);
        }
        drop(outcome);
        let policy = ways_to_cut(call)[call as usize % 3];
        rig.cut(policy);
        let context = format!("{context}, cut {call}, {policy:?}");
        for lost in 0..4 {
            let fs = rig.fork().open_in(&[lost], &context);
            assert_holds(&fs, model, &format!("{context}, without {lost}"));
        }
        let fs = rig.open_in(&[], &context);
        fs.assert_shards_lie_on(&rig, &[], &context);
        after(&rig, fs, &context);
    }
    unreachable!("no work has that many calls");
}

/// Rebuilds a volume until a fault.
fn rebuild_until(rig: &Rig, plan: &FaultPlan, fault: Fault) -> Result<TestFs, CommitError> {
    let fs = rig.open_with_faults(plan)?;
    plan.add(fault);
    fs.rebuild()?;
    Ok(fs)
}
