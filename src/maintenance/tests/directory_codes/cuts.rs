//! Power cuts at random calls while files of several codes are written and rewritten at once. After each, as many members
//! are lost as the code of the files bears.

use std::collections::BTreeMap;

use cauchyfs_testkit::{number, seed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;

/// The cuts of a usual run. The variable `CAUCHYFS_CUTS` asks for more.
const CUTS: u64 = 16;

/// The cuts of one volume.
const CUTS_OF_VOLUME: u64 = 4;

/// The codes of directories, as numbers of data and parity shards.
const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 1), (5, 1), (4, 2), (1, 2)];

/// A volume that is written to, and what it acknowledged.
struct Written {
    rig: Rig,
    files: Classed,
    /// The classes, and the losses that each survives.
    classes: Vec<(StripeClass, usize)>,
    next: u64,
}

#[test]
fn no_power_cut_costs_a_byte_of_any_code() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let cuts = number("CAUCHYFS_CUTS").unwrap_or(CUTS);
    let mut done = 0;
    for volume in 0.. {
        if done >= cuts {
            break;
        }
        let context = format!("CAUCHYFS_SEED={seed}, volume {volume}");
        let mut written = Written::new(&mut random);
        for cut in 0..CUTS_OF_VOLUME {
            let context = format!("{context}, cut {cut}");
            if written.write_until_cut(&mut random, &context) {
                done += 1;
            }
            written.assert_bears_losses(&mut random, &context);
        }
        written.finish(&context);
    }
}

/// Asserts that an order asks for the rewriting of all bytes that lie in stripes of other classes than their files.
fn assert_orders_cover(fs: &TestFs, files: &Classed, context: &str) {
    if fs.maintenance.rebuild().awaits_rewrite().unwrap() {
        return;
    }
    for file in files.model.keys() {
        let inode = fs.transactions.get(&key::inode(Ino(*file))).unwrap();
        let class = Inode::decode(&inode.unwrap()).unwrap().class;
        for segment in fs.segments_of(*file) {
            assert_eq!(segment.class, class, "{context}: no order for file {file}");
        }
    }
}

impl Written {
    fn new(random: &mut StdRng) -> Self {
        let rig = rig(2, 6);
        let fs = rig.open(&[]);
        let mut classes = vec![(StripeClass::VOLUME, 2)];
        for (data, parity) in SHAPES.sample(random, 2) {
            classes.push((fs.class_for(*data, *parity), *parity));
        }
        fs.close();
        Self {
            rig,
            files: Classed::default(),
            classes,
            next: 1,
        }
    }

    /// Writes files of all classes, and gives some another class, until the power goes. Returns false if it never did.
    fn write_until_cut(&mut self, random: &mut StdRng, context: &str) -> bool {
        let plan = FaultPlan::new();
        // Without one of six, members are too few for some codes.
        let lost = random.random_range(0..2 * self.rig.disks.len());
        let stores = FaultStore::wrap_all(self.rig.stores(&[lost]), &plan);
        let opened = TestFs::open(stores, Access::ReadWrite);
        let fs = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
        plan.add(power_cut_at(random.random_range(1..400)));
        let outcome = self.work(&fs, random);
        let is_cut = plan.triggered() > 0;
        if !is_cut {
            outcome.unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        drop(fs);
        let policy = match random.random_range(0..3) {
            0 => CutPolicy::Drop,
            1 => CutPolicy::Keep,
            _ => CutPolicy::Reorder(random.random()),
        };
        self.rig.cut(policy);
        is_cut
    }

    /// Writes files. Those since the last commit may be lost or not, so none of them is written twice.
    fn work(&mut self, fs: &TestFs, random: &mut StdRng) -> Result<(), CommitError> {
        for _ in 0..6 {
            let mut pending = self.files.clone();
            for _ in 0..random.random_range(1..6) {
                let (class, _) = *self.classes.choose(random).unwrap();
                let len = match random.random_range(0..3) {
                    0 => random.random_range(1..900),
                    1 => random.random_range(900..20_000),
                    _ => random.random_range(20_000..90_000),
                };
                pending.write(fs, self.next, class, len)?;
                self.next += 1;
            }
            fs.sync()?;
            self.files = pending;
            if random.random_range(0..3) == 0 {
                self.give_another_class(fs, random)?;
            }
        }
        Ok(())
    }

    /// Gives some files another class, and has them rewritten.
    fn give_another_class(&mut self, fs: &TestFs, random: &mut StdRng) -> Result<(), CommitError> {
        fs.transactions.order_rewrite()?;
        fs.sync()?;
        let files: Vec<u64> = self.files.model.keys().copied().collect();
        for file in files {
            if random.random_range(0..3) == 0 {
                let (class, _) = *self.classes.choose(random).unwrap();
                fs.set_class(file, class)?;
                // Until the commit it may have either, and until it is rewritten its stripes are of the other.
                self.files.classes.insert(file, class);
            }
        }
        fs.sync()?;
        fs.rebuild().map(drop)
    }

    /// Asserts that all is there without one member, which every code bears.
    fn assert_bears_losses(&self, random: &mut StdRng, context: &str) {
        let lost = random.random_range(0..self.rig.disks.len());
        let context = format!("{context}, without {lost}");
        let fs = self.rig.fork().open_in(&[lost], &context);
        assert_holds(&fs, &self.files.model, &context);
        drop(fs);
        let rig = self.rig.fork();
        let fs = rig.open_in(&[], &context);
        assert_orders_cover(&fs, &self.files, &context);
        fs.assert_shards_lie_on(&rig, &[], &context);
        assert_holds(&fs, &self.files.model, &context);
    }

    /// Has everything rewritten, and asserts that each class bears what it promises.
    fn finish(&mut self, context: &str) {
        let fs = self.rig.open_in(&[], context);
        let files: Vec<u64> = self.files.model.keys().copied().collect();
        // A cut may have ended a rewrite before all files had their codes.
        fs.transactions.order_rewrite().unwrap();
        for file in files {
            fs.set_class(file, self.files.classes[&file]).unwrap();
        }
        fs.sync().unwrap();
        fs.rebuild()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        fs.flush();
        assert!(
            !fs.maintenance.rebuild().awaits_rewrite().unwrap(),
            "{context}"
        );
        self.files.assert_in_place(&fs, context);
        fs.close();
        let losses: BTreeMap<StripeClass, usize> = self.classes.iter().copied().collect();
        for (class, losses) in losses {
            self.files
                .assert_survives(&self.rig, class, losses, context);
        }
    }
}
