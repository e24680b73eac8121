//! Segments with unreadable stripes: the readable ones are copied out, and no shard of the others is given up. Asserted
//! on the bytes on the disks.

use std::collections::BTreeSet;

use super::*;
use crate::maintenance::RebuildState;

/// A volume with a segment of which some stripes need a disk that is away.
struct Damaged {
    rig: Rig,
    away: Vec<usize>,
    model: Model,
    /// The name of the segment's files.
    name: String,
    /// The disk on which the segment's file ends half way, and where.
    cut: (usize, u64),
}

impl Damaged {
    /// Makes one of 2+1 on so many disks; the last one is away then.
    fn new(count: usize) -> Self {
        Self::with_parity(1, count)
    }

    /// Makes one with two data shards; as many of the last disks are away then as there are parity shards.
    fn with_parity(parity: usize, count: usize) -> Self {
        let rig = Rig::new(2, parity, count);
        let away: Vec<usize> = (count - parity..count).collect();
        let fs = rig.open(&[]);
        let mut model = Model::new();
        for file in 0..60 {
            let data = pattern(file, 1000 * file as usize % 17_000 + 1);
            fs.write(file, &data).unwrap();
            model.insert(file, data);
            if file % 3 == 2 {
                fs.sync().unwrap();
            }
        }
        fs.close();
        let fs = rig.open(&away);
        let shards = fs.written_shards();
        let lies_on =
            |name: &String, disk| shards.iter().any(|s| s.name == *name && s.disk == disk);
        let names = shards.iter().map(|s| &s.name);
        let names = names.filter(|name| away.iter().all(|disk| lies_on(name, *disk)));
        // The shard of a segment with as many stripes as any.
        let stripes_of = |name: &String| shards.iter().filter(|s| s.name == *name).count();
        let name = names.max_by_key(|name| stripes_of(name)).unwrap().clone();
        let is_here = |s: &&WrittenShard| s.name == name && !away.contains(&s.disk);
        let mut others = shards.iter().filter(is_here);
        let disk = others.next().unwrap().disk;
        let mut ends: Vec<u64> = shards
            .iter()
            .filter(|s| s.name == name)
            .map(|s| s.offset + s.height as u64)
            .collect();
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 3, "{ends:?}");
        let end = ends[ends.len() / 2 - 1];
        let store = rig.disks[disk].open();
        store.truncate(&name, end).unwrap();
        store.sync(&name).unwrap();
        fs.close();
        Self {
            rig,
            away,
            model,
            name,
            cut: (disk, end),
        }
    }

    /// Returns the stripes of the segment that cannot be read while a disk is away.
    fn unreadable(&self, fs: &TestFs) -> BTreeSet<StripeId> {
        let shards = fs.written_shards().into_iter();
        let behind = shards.filter(|s| s.name == self.name && s.offset >= self.cut.1);
        behind.map(|shard| shard.stripe).collect()
    }

    /// Asserts that the files readable without the absent members are right, and that no other file is unreadable.
    fn assert_readable_is_right(&self, fs: &TestFs, context: &str) {
        let unreadable = self.unreadable(fs);
        let mut unread = 0;
        for (&file, expected) in &self.model {
            let mut extents = fs.extents(file).unwrap().into_iter();
            match fs.read(file) {
                Ok(read) => assert!(read == *expected, "{context}: file {file} is wrong"),
                Err(error) => {
                    unread += 1;
                    let is_known = extents.any(|(_, extent)| unreadable.contains(&extent.stripe));
                    assert!(is_known, "{context}: file {file}: {error}");
                }
            }
        }
        assert!(unread > 0, "{context}");
    }
}

#[test]
fn readable_stripes_are_repaired_beside_stripes_that_wait_for_an_absent_member() {
    let damaged = Damaged::new(5);
    let Damaged {
        rig, away, model, ..
    } = &damaged;
    let fs = rig.open(away);
    let waiting = damaged.unreadable(&fs);
    assert!(!waiting.is_empty());
    let segment = files::parse_segment(&damaged.name).unwrap();
    let slots = fs
        .transactions
        .stripes
        .segments()
        .record(segment)
        .unwrap()
        .slots;
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.state, RebuildState::Finished);
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    assert_eq!((progress.bytes_waiting, progress.bytes_left), (0, 0));
    // Only the unreadable stripes of the segment are left, unchanged.
    let rows = fs.redundancy();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((rows[0], rows[1].0), ((-1, waiting.len() as u64), 1));
    assert_eq!(damaged.unreadable(&fs), waiting);
    let left = fs
        .transactions
        .catalog
        .stripes_in(segment)
        .unwrap()
        .unwrap();
    assert!(left.iter().all(|(stripe, _)| waiting.contains(stripe)));
    assert_eq!(
        fs.transactions
            .stripes
            .segments()
            .record(segment)
            .unwrap()
            .slots,
        slots
    );
    let found = rig.disks[damaged.cut.0].open().open_len(&damaged.name);
    assert_eq!(found.unwrap(), damaged.cut.1);
    damaged.assert_readable_is_right(&fs, "rebuilt");
    let again = fs.rebuild().unwrap();
    assert_eq!(again.bytes_done, 0, "nothing is copied twice");
    fs.close();
    // The readable stripes are there, no matter which other shards are lost.
    for lost in 0..away[0] {
        let fs = TestFs::open(rig.fork().stores(&[away[0], lost]), Access::ReadOnly).unwrap();
        damaged.assert_readable_is_right(&fs, &format!("lost {lost}"));
    }
    let fs = rig.open(&[]);
    assert_holds(&fs, model, "back");
    fs.rebuild().unwrap();
    fs.assert_shards_lie_on(rig, &[], "back and rebuilt");
    let rows = fs.redundancy();
    assert_eq!((rows.len(), rows[0].0), (1, 1), "{rows:?}");
    assert_holds(&fs, model, "back and rebuilt");
}

#[test]
fn an_unrecoverable_block_stops_only_the_rebuild_of_its_own_stripe() {
    let Damaged { rig, away, .. } = Damaged::new(5);
    let fs = rig.open(&[]);
    fs.rebuild().unwrap();
    fs.close();
    let fs = rig.open(&away);
    let away = away[0];
    let shards = fs.written_shards();
    let of_who_is_away: BTreeSet<StripeId> = shards
        .iter()
        .filter(|s| s.disk == away)
        .map(|s| s.stripe)
        .collect();
    let is_spoilt = |s: &&WrittenShard| s.disk != away && of_who_is_away.contains(&s.stripe);
    let spoilt = shards.iter().rfind(is_spoilt).unwrap();
    assert!(rig.disks[spoilt.disk].corrupt(&spoilt.name, spoilt.offset, |b| b.fill(0xee), 64));
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    let rows = fs.redundancy();
    assert_eq!((rows[0], rows[1].0), ((-1, 1), 1), "{rows:?}");
    let left = fs.written_shards();
    let left: Vec<_> = left.iter().filter(|s| s.disk == away).collect();
    assert!(
        left.iter().all(|s| s.stripe == spoilt.stripe),
        "{}",
        left.len()
    );
    assert!(!left.is_empty(), "what only it can give was given up");
}

#[test]
fn no_stripe_is_copied_if_the_copy_would_have_no_more_redundancy() {
    let damaged = Damaged::new(3);
    let fs = damaged.rig.open(&damaged.away);
    let stripes = fs.stripes();
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.bytes_done, 0);
    assert_eq!(fs.stripes(), stripes);
    damaged.assert_readable_is_right(&fs, "rebuilt");
}

/// New stripes on the three others would survive one loss more for now, and one less once the two are back.
#[test]
fn no_stripe_is_copied_if_it_would_survive_fewer_losses_once_absent_members_are_back() {
    let Damaged {
        rig, away, model, ..
    } = Damaged::with_parity(2, 5);
    let back = |rig: &Rig| {
        let fs = rig.open(&[]);
        assert_holds(&fs, &model, "back");
        fs.redundancy()
    };
    let before = back(&rig.fork());
    assert!(before.iter().any(|row| row.0 == 2), "{before:?}");
    let fs = rig.open(&away);
    let rows = fs.redundancy();
    assert!(rows.iter().any(|row| row.0 == 0), "{rows:?}");
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    fs.close();
    assert_eq!(back(&rig), before);
}

#[test]
fn a_power_cut_at_any_call_loses_no_stripe_that_is_copied_or_waits() {
    let damaged = Damaged::new(5);
    for call in 1.. {
        let rig = damaged.rig.fork();
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.stores(&damaged.away), &plan);
        let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
        plan.add(power_cut_at(call));
        let outcome = fs.rebuild();
        if plan.triggered() == 0 {
            outcome.unwrap();
            assert!(call > 20, "only {call} calls");
            break;
        }
        drop(fs);
        let policies = ways_to_cut(call);
        let policy = policies[call as usize % 3];
        rig.cut(policy);
        let context = format!("cut {call}, {policy:?}");
        let fs = rig.open(&damaged.away);
        damaged.assert_readable_is_right(&fs, &context);
        fs.rebuild()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        damaged.assert_readable_is_right(&fs, &context);
        let rows = fs.redundancy();
        assert!(rows.len() == 2 && rows[1].0 == 1, "{context}: {rows:?}");
        fs.close();
        let fs = rig.open(&[]);
        assert_holds(&fs, &damaged.model, &context);
    }
}
