//! Power cuts at random calls of changes of code. After each, as many members are lost as every code of the volume bears.

use std::collections::BTreeMap;

use cauchyfs_testkit::{number, seed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::super::rebuild::{assert_whole, fill};
use super::super::{CutPolicy, Model, Rig, TestFs, UNIT, assert_holds, power_cut_at};
use super::wanted;
use crate::codec::CodeId;
use crate::membership::StripeCode;
use crate::store::FaultPlan;

/// The cuts of a usual run. The variable `CAUCHYFS_CUTS` asks for more.
const CUTS: u64 = 12;

/// The most cuts of one volume, before it is left to finish.
const CUTS_OF_VOLUME: usize = 6;

/// The codes that a volume gets, as numbers of data and parity shards.
const SHAPES: [(usize, usize); 8] = [
    (1, 1),
    (2, 1),
    (3, 1),
    (1, 2),
    (2, 2),
    (3, 2),
    (4, 2),
    (2, 3),
];

/// The stripe units that a volume gets.
const UNITS: [u32; 3] = [4096, UNIT as u32, 2 * UNIT as u32];

/// A volume whose code changes again and again, and what it acknowledged.
struct Changed {
    rig: Rig,
    model: Model,
    /// The next file to be written.
    next: u64,
    /// The losses that every code bears of which stripes may be left.
    bears: usize,
}

#[test]
fn no_power_cut_during_a_change_costs_a_byte_or_more_redundancy_than_the_change_takes() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let cuts = number("CAUCHYFS_CUTS").unwrap_or(CUTS);
    // By the number of members that were lost after it.
    let mut done: BTreeMap<usize, u64> = BTreeMap::new();
    for volume in 0.. {
        if done.values().sum::<u64>() >= cuts {
            break;
        }
        let context = format!("CAUCHYFS_SEED={seed}, volume {volume}");
        let mut changed = Changed::new(&mut random);
        for lost in changed.change_with_cuts(&mut random, &context) {
            *done.entry(lost).or_default() += 1;
        }
    }
    println!("cuts by the number of members lost: {done:?}");
}

impl Changed {
    fn new(random: &mut StdRng) -> Self {
        let (data, parity) = *SHAPES.choose(random).unwrap();
        let rig = Rig::new(data, parity, random.random_range(6..=7));
        let (fs, mut model) = (rig.open(&[]), Model::new());
        fill(&fs, 0, &mut model);
        fs.close();
        Self {
            rig,
            model,
            next: 100,
            bears: parity,
        }
    }

    /// Changes the code to some others, with a cut now and then, and then finishes. Returns how many members were lost
    /// after each cut.
    fn change_with_cuts(&mut self, random: &mut StdRng, context: &str) -> Vec<usize> {
        let mut lost = Vec::new();
        for cut in 0..CUTS_OF_VOLUME {
            let (data, parity) = *SHAPES.choose(random).unwrap();
            let to = StripeCode {
                unit_bytes: *UNITS.choose(random).unwrap(),
                ..wanted(data, parity, CodeId::RS_CAUCHY)
            };
            let policy = match random.random_range(0..3) {
                0 => CutPolicy::Drop,
                1 => CutPolicy::Keep,
                _ => CutPolicy::Reorder(random.random()),
            };
            let context = format!("{context}, cut {cut} on the way to {to:?}, {policy:?}");
            self.bears = self.bears.min(parity);
            if !self.change_until_cut(random, to, &context) {
                // It came to its end before the cut, and all stripes have this code.
                self.bears = parity;
                continue;
            }
            self.rig.cut(policy);
            lost.push(self.assert_bears_losses(random, &context));
        }
        self.finish(context);
        lost
    }

    /// Changes the code, writes, and moves old stripes to it, until the power goes. Returns false if that never happened.
    fn change_until_cut(&mut self, random: &mut StdRng, to: StripeCode, context: &str) -> bool {
        let plan = FaultPlan::new();
        let opened = self.rig.open_with_faults(&plan);
        let fs = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
        let while_changing = random.random_range(0..4) == 0;
        if while_changing {
            plan.add(power_cut_at(random.random_range(1..40)));
        }
        let outcome = fs.change_code(to);
        if plan.triggered() > 0 {
            return true;
        }
        outcome.unwrap_or_else(|error| panic!("{context}: {error}"));
        if while_changing {
            plan.clear();
        }
        // The code counts from the next opening on.
        fs.close();
        let opened = self.rig.open_with_faults(&plan);
        let fs = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(fs.code(), to, "{context}");
        fill(&fs, self.next, &mut self.model);
        self.next += 100;
        plan.add(power_cut_at(random.random_range(1..600)));
        let outcome = fs.rebuild();
        if plan.triggered() > 0 {
            return true;
        }
        outcome.unwrap_or_else(|error| panic!("{context}: {error}"));
        plan.clear();
        assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
        fs.close();
        false
    }

    /// Asserts that all is there without members that are lost. Returns how many those were.
    fn assert_bears_losses(&self, random: &mut StdRng, context: &str) -> usize {
        let count = self.rig.disks.len();
        let mut lost = Vec::new();
        while lost.len() < self.bears {
            let member = random.random_range(0..count);
            if !lost.contains(&member) {
                lost.push(member);
            }
        }
        let context = format!("{context}, without {lost:?}");
        let fs = self.rig.fork().open_in(&lost, &context);
        assert_holds(&fs, &self.model, &context);
        drop(fs);
        let rig = self.rig.fork();
        let fs = rig.open_in(&[], &context);
        fs.assert_shards_lie_on(&rig, &[], &context);
        let worst = fs.redundancy().iter().map(|row| row.0).min();
        let bears = i16::try_from(self.bears).unwrap();
        assert!(worst >= Some(bears), "{context}: {worst:?}, not {bears}");
        lost.len()
    }

    /// Goes on with the change of code after the last cut, and asserts that all stripes have that code then.
    fn finish(&mut self, context: &str) {
        let fs: TestFs = self.rig.open_in(&[], context);
        fs.rebuild()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
        assert!(fs.greatest_height() <= fs.code().unit_bytes, "{context}");
        let parity = fs.code().geometry.parity_shards();
        assert_whole(fs, &self.rig, &[], parity, &self.model, context);
    }
}
