//! Scrubbing volumes to which something was done behind their back.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::*;
use crate::format::record::Scrub;
use crate::maintenance::{RedundancyRow, ScrubState, ScrubStatus};

mod again;
mod concurrent;
mod followed;
mod harmless;
mod inconsistent;
mod replaced;
mod second_pass;

/// A kind of damage to one disk.
type Spoil = fn(&MemDisk);

/// A kind of damage to the segment files of one disk.
#[derive(Clone, Copy, Debug)]
enum Harm {
    FlipBits,
    ZeroRanges,
    Truncate,
    Delete,
    Swap,
    Stale,
}

const HARMS: [Harm; 6] = [
    Harm::FlipBits,
    Harm::ZeroRanges,
    Harm::Truncate,
    Harm::Delete,
    Harm::Swap,
    Harm::Stale,
];

fn segment_files(disk: &MemDisk) -> Vec<(String, u64)> {
    disk.open().list(files::SEGMENTS).unwrap()
}

fn content(disk: &MemDisk, name: &str, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    disk.open().read_at(name, 0, &mut bytes).unwrap();
    bytes
}

/// Puts other bytes into a file, as failing hardware would.
fn put(disk: &MemDisk, name: &str, bytes: &[u8]) {
    assert!(disk.corrupt(name, 0, |old| old.copy_from_slice(bytes), bytes.len()));
}

impl Harm {
    fn befall(self, disk: &MemDisk) {
        let found = segment_files(disk);
        let store = disk.open();
        for (name, len) in &found {
            match self {
                Self::FlipBits => {
                    for at in (17..*len).step_by(3 * BLOCK_SIZE) {
                        assert!(disk.corrupt(name, at, |b| b[0] ^= 4, 1));
                    }
                }
                Self::ZeroRanges => {
                    let at = len / 3 / 512 * 512;
                    assert!(disk.corrupt(name, at, |b| b.fill(0), (len / 2) as usize));
                }
                Self::Truncate => {
                    store.truncate(name, len / 2 + 100).unwrap();
                    store.sync(name).unwrap();
                }
                Self::Delete => store.remove(name).unwrap(),
                Self::Swap | Self::Stale => {}
            }
        }
        if matches!(self, Self::Swap) {
            for pair in found.chunks_exact(2) {
                let len = pair[0].1.min(pair[1].1);
                let (one, other) = (
                    content(disk, &pair[0].0, len),
                    content(disk, &pair[1].0, len),
                );
                put(disk, &pair[0].0, &other);
                put(disk, &pair[1].0, &one);
            }
        }
        if matches!(self, Self::Stale) {
            for (name, len) in &found {
                // The content from before the stripes.
                put(disk, name, &pattern(99, *len as usize));
            }
        }
    }
}

/// Scrubs to the end.
fn scrub(fs: &TestFs) -> ScrubStatus {
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap()
        .unwrap()
}

/// Returns the members of the pieces that the last scrub found wrong, and how many.
fn wrong_pieces(fs: &TestFs) -> Vec<(usize, u64)> {
    let wrong = fs.maintenance.scrubber.found_by_scrub().into_iter();
    let number = |(member, pieces): (crate::format::MemberIndex, u64)| (member.0.into(), pieces);
    wrong.map(number).collect()
}

fn fill(rig: &Rig) -> Model {
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for (file, len) in [(1, 150_000), (2, 5_000), (3, 70), (4, 300_000), (5, 33_000)] {
        let bytes = pattern(file, len);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        fs.sync().unwrap();
    }
    fs.close();
    model
}

fn shards_on(rig: &Rig, fs: &TestFs) -> Vec<(StripeId, ShardIndex, Vec<u8>)> {
    let shards = fs.written_shards();
    let bytes = |s: &WrittenShard| (s.stripe, s.shard, rig.bytes_of(s));
    shards.iter().map(bytes).collect()
}

#[test]
fn a_volume_without_a_fault_is_left_as_it_is_and_found_clean() {
    let rig = Rig::new(2, 1, 4);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    assert_eq!(
        fs.maintenance.scrubber.scrub_status().unwrap().state,
        ScrubState::Never
    );
    let before = shards_on(&rig, &fs);
    let done = scrub(&fs);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(done.record.repaired, 0);
    let bytes: usize = before.iter().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(done.record.bytes, bytes as u64, "every shard was read once");
    assert!(done.record.last_finished >= done.record.began);
    assert_eq!(shards_on(&rig, &fs), before);
    assert_holds(&fs, &model, "scrubbed");
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(
        fs.maintenance.scrubber.scrub_status().unwrap(),
        done,
        "remembered"
    );
}

#[test]
fn any_damage_to_as_many_members_as_there_is_parity_is_repaired_on_their_disks() {
    for (data, parity, count) in [(2, 1, 4), (2, 2, 5), (4, 2, 6)] {
        let base = Rig::new(data, parity, count);
        let model = fill(&base);
        let whole = shards_on(&base, &base.fork().open(&[]));
        for (turn, harm) in HARMS.into_iter().enumerate() {
            let rig = base.fork();
            let harmed: Vec<usize> = (0..parity).map(|hit| (turn + hit * 2) % count).collect();
            for (hit, disk) in harmed.iter().enumerate() {
                // Together with every other kind of harm.
                let harm = HARMS[(turn + hit) % HARMS.len()];
                harm.befall(&rig.disks[*disk]);
            }
            let context = format!("{data}+{parity} of {count}, {harm:?}");
            let fs = rig.open(&[]);
            let done = scrub(&fs);
            assert!(
                done.is_clean() && done.record.repaired > 0,
                "{context}: {done:?}"
            );
            assert!(shards_on(&rig, &fs) == whole, "{context}");
            let wrong = wrong_pieces(&fs);
            let pieces: u64 = wrong.iter().map(|(_, pieces)| pieces).sum();
            assert_eq!(pieces, done.record.repaired, "{context}");
            assert!(
                wrong.iter().all(|(disk, _)| harmed.contains(disk)),
                "{context}: {wrong:?}"
            );
            assert_holds(&fs, &model, &context);
            assert_eq!(fs.redundancy()[0].0, parity as i16, "{context}");
            assert!(
                !fs.maintenance.redundancy.may_lack_shards().unwrap(),
                "{context}"
            );
            drop(fs);
            rig.cut(CutPolicy::Drop);
            let fs = rig.open(&[]);
            assert!(shards_on(&rig, &fs) == whole, "{context}: not durable");
            let again = scrub(&fs);
            assert_eq!(again.record.repaired, 0, "{context}: {again:?}");
        }
    }
}

/// Returns the longest extent of file 4, and where it begins in the file.
fn longest(fs: &TestFs) -> (usize, Extent) {
    let extents = fs.extents(4).unwrap().into_iter();
    let (end, extent) = extents.max_by_key(|(_, extent)| extent.len).unwrap();
    ((end - extent.len) as usize, extent)
}

/// Spoils one block of so many shards of the stripe that has the longest extent of file 4; returns which
/// bytes of the extent are lost by that.
fn spoil_block(rig: &Rig, fs: &TestFs, count: usize, block: usize) -> (StripeId, BTreeSet<usize>) {
    let (_, longest) = longest(fs);
    let shards = fs.written_shards();
    let of_stripe = shards.iter().filter(|shard| shard.stripe == longest.stripe);
    let mut lost = BTreeSet::new();
    for shard in of_stripe.take(count) {
        let at = shard.offset + (block * BLOCK_SIZE) as u64;
        assert!(rig.disks[shard.disk].corrupt(&shard.name, at, |b| b.fill(0xee), 100));
        let in_payload = usize::from(shard.shard.0) * shard.height + block * BLOCK_SIZE;
        let start = longest.stripe_offset as usize;
        for byte in in_payload..in_payload + BLOCK_SIZE {
            if shard.shard.0 < 4 && (start..start + longest.len as usize).contains(&byte) {
                lost.insert(byte - start);
            }
        }
    }
    (longest.stripe, lost)
}

#[test]
fn bytes_that_parity_cannot_replace_are_named_and_only_they_cannot_be_read() {
    let rig = Rig::new(4, 2, 6);
    let mut model = fill(&rig);
    let fs = rig.open(&[]);
    let (stripe, lost) = spoil_block(&rig, &fs, 3, 1);
    assert_eq!(lost.len(), 3 * BLOCK_SIZE);
    let done = scrub(&fs);
    assert_eq!(done.record.lost, lost.len() as u64);
    assert_eq!((done.record.wrong, done.record.missing), (3, 0));
    assert!(!done.is_clean());
    let check = |fs: &TestFs| {
        let counted = fs.maintenance.redundancy.redundancy().unwrap();
        assert_eq!(counted.unrecoverable.len(), 1);
        assert_eq!(counted.unrecoverable[0].stripe, stripe);
        let inodes = fs
            .maintenance
            .redundancy
            .inodes_in(&counted.unrecoverable, 1000)
            .unwrap();
        assert_eq!(inodes, BTreeSet::from([Ino(4)]));
    };
    check(&fs);
    let (begin, extent) = longest(&fs);
    for start in (0..extent.len as usize).step_by(1024) {
        let len = 1024.min(extent.len as usize - start);
        let mut out = vec![0; len];
        let at = extent.stripe_offset + start as u32;
        let read = fs.transactions.read(stripe, at, &mut out);
        // A block is lost as a whole, so a read fails if it touches one.
        let block = |byte: usize| (extent.stripe_offset as usize + byte) / BLOCK_SIZE;
        let lost_blocks: BTreeSet<usize> = lost.iter().map(|byte| block(*byte)).collect();
        let touches = (block(start)..=block(start + len - 1)).any(|b| lost_blocks.contains(&b));
        assert_eq!(read.is_err(), touches, "byte {start}");
        assert!(
            touches || out == model[&4][begin + start..begin + start + len],
            "byte {start}"
        );
    }
    fs.close();
    // Known after a mount, before anyone reads; and forgotten with the file.
    let fs = rig.open(&[]);
    check(&fs);
    model.remove(&4);
    assert_holds(&fs, &model, "all other files");
    fs.remove(4).unwrap();
    fs.sync().unwrap();
    let done = scrub(&fs);
    assert!(done.is_clean(), "nobody misses it: {done:?}");
    for _ in 0..4 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    fs.close();
    let fs = rig.open(&[]);
    assert!(
        fs.maintenance
            .redundancy
            .redundancy()
            .unwrap()
            .unrecoverable
            .is_empty()
    );
    let (from, end) = key::all_lost();
    assert_eq!(fs.transactions.scan(&from, &end, 10).unwrap(), []);
    assert!(scrub(&fs).is_clean());
}

#[test]
fn reading_every_shard_counts_the_correct_ones_and_writes_nothing() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let (stripe, _) = spoil_block(&rig, &fs, 2, 1);
    let whole = fs.redundancy()[0].1;
    let shards = fs.written_shards();
    let hit: BTreeSet<(u16, String)> = shards
        .iter()
        .filter(|shard| shard.stripe == stripe)
        .take(2)
        .map(|shard| (shard.disk as u16, shard.name.clone()))
        .collect();
    fs.close();
    let before = shards_on(&rig, &rig.open(&[]));
    let plan = FaultPlan::new();
    plan.record();
    let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
    let fs = TestFs::open(stores, Access::ReadOnly).unwrap();
    let mut told = vec![(0, 0)];
    let on_progress = |passed, total| told.push((passed, total));
    let read = fs.maintenance.scrubber.read_all_shards(on_progress);
    let read = read.unwrap();
    assert!(told.is_sorted() && told.len() > 2, "{told:?}");
    assert!(told[2..].iter().all(|(_, total)| *total == told[1].1));
    assert_eq!(told[told.len() - 1].0, told[1].1, "all of it is passed");
    let found: BTreeSet<(u16, String)> = read
        .wrong
        .iter()
        .map(|wrong| (wrong.member.0, files::segment(wrong.segment)))
        .collect();
    assert_eq!(found, hit);
    assert!(read.wrong.iter().all(|wrong| wrong.shards == 1));
    let rows: Vec<(i16, u64)> = read
        .rows
        .iter()
        .map(|row| (row.losses_tolerated, row.stripes))
        .collect();
    assert_eq!(rows, [(0, 1), (2, whole - 1)]);
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    let bytes = |rows: &[RedundancyRow]| rows.iter().map(|row| row.bytes).sum::<u64>();
    assert_eq!(bytes(&read.rows), bytes(&counted.rows));
    assert_eq!(read.inconsistent, []);
    let changing = plan.take_log().into_iter().find(|call| call.kind.changes());
    assert_eq!(changing, None);
    assert!(shards_on(&rig, &fs) == before);
}

#[test]
fn data_lost_only_while_a_member_is_absent_is_whole_again_with_it() {
    let rig = Rig::new(4, 2, 6);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    let (stripe, _) = spoil_block(&rig, &fs, 2, 0);
    let shards = fs.written_shards();
    let last = shards.iter().rfind(|shard| shard.stripe == stripe).unwrap();
    fs.close();
    let fs = rig.open(&[last.disk]);
    let done = scrub(&fs);
    assert!(done.record.lost > 0 && done.record.missing > 0, "{done:?}");
    fs.close();
    let fs = rig.open(&[]);
    assert!(
        fs.maintenance
            .redundancy
            .redundancy()
            .unwrap()
            .unrecoverable
            .is_empty()
    );
    let done = scrub(&fs);
    assert_eq!((done.record.wrong, done.record.lost), (0, 0), "{done:?}");
    assert_holds(&fs, &model, "all members are back");
}

/// Begins to scrub, and stops once what was found says so.
fn scrub_until(fs: &TestFs, is_enough: impl Fn(&Scrub) -> bool) -> ScrubStatus {
    let stop = |status: &ScrubStatus| {
        if is_enough(&status.record) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let stopped = fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, None, stop)
        .unwrap()
        .unwrap();
    assert_eq!(stopped.state, ScrubState::Stopped);
    stopped
}

#[test]
fn a_continued_scrub_reports_the_shards_missing_and_wrong_at_its_end() {
    let rig = Rig::new(4, 2, 6);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    let whole = shards_on(&rig, &fs);
    let (stripe, _) = spoil_block(&rig, &fs, 2, 0);
    let shards = fs.written_shards();
    let last = shards.iter().rfind(|shard| shard.stripe == stripe).unwrap();
    fs.lose(&rig, last.disk);
    let stopped = scrub_until(&fs, |record| record.lost > 0).record;
    assert!(stopped.wrong == 2 && stopped.missing > 0, "{stopped:?}");
    fs.take_back(&rig, last.disk);
    let done = scrub(&fs);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert_eq!(done.record.repaired, 2);
    assert!(shards_on(&rig, &fs) == whole, "repaired on the disks");
    assert_holds(&fs, &model, "scrubbed");
    // Shards that go missing after they were passed are reported as well.
    let stop_late = |status: &ScrubStatus| {
        if status.progress > 0.99 && fs.transactions.members().membership().live().len() == 6 {
            fs.lose(&rig, 0);
        }
        ControlFlow::Continue(())
    };
    let done = fs.maintenance.scrubber.scrub(&NoLocks, None, stop_late);
    let done = done.unwrap().unwrap().record;
    let gone = fs.written_shards().iter().filter(|s| s.disk == 0).count();
    assert_eq!(done.missing, gone as u64, "{done:?}");
}

#[test]
fn a_file_that_vanishes_and_is_restored_after_it_was_passed_is_not_reported() {
    let rig = Rig::new(2, 1, 3);
    fill(&rig);
    let fs = rig.open(&[]);
    let space = rig.disks[1].open().space().unwrap();
    Harm::Delete.befall(&rig.disks[1]);
    rig.disks[1].set_capacity(1 << 10);
    let stopped = scrub_until(&fs, |record| record.missing > 0).record;
    assert_eq!(
        stopped.wrong, 0,
        "there is nothing that is wrong: {stopped:?}"
    );
    rig.disks[1].set_capacity(space.total_bytes);
    let rebuilt = fs.rebuild().unwrap();
    assert!(rebuilt.bytes_done > 0, "{rebuilt:?}");
    assert!(!segment_files(&rig.disks[1]).is_empty());
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert!(done.is_clean(), "{done:?}");
}

#[test]
fn a_scrub_goes_on_where_it_stopped_also_after_a_crash() {
    let rig = Rig::new(2, 1, 4);
    fill(&rig);
    Harm::FlipBits.befall(&rig.disks[1]);
    let fs = rig.open(&[]);
    let total = shards_on(&rig, &fs)
        .into_iter()
        .map(|(.., b)| b.len() as u64);
    let total: u64 = total.sum();
    let mut broke = false;
    let stop_soon = |status: &ScrubStatus| {
        assert_eq!(status.state, ScrubState::Running);
        assert!(!broke, "who broke is not asked again");
        broke = status.record.bytes > 0;
        if broke {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let stopped = fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, None, stop_soon)
        .unwrap()
        .unwrap();
    assert_eq!(stopped.state, ScrubState::Stopped);
    assert!(stopped.progress > 0.0 && stopped.progress < 1.0);
    assert!(stopped.record.bytes > 0 && stopped.record.bytes < total);
    assert_eq!(fs.maintenance.scrubber.scrub_status().unwrap(), stopped);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_eq!(fs.maintenance.scrubber.scrub_status().unwrap(), stopped);
    let done = scrub(&fs);
    assert!(done.is_clean());
    assert_eq!(done.record.bytes, total, "nothing was read twice");
    assert_eq!(done.record.began, stopped.record.began);
    assert!(done.record.repaired > stopped.record.repaired);
    // The next one begins again.
    assert_eq!(scrub(&fs).record.bytes, total);
}

#[test]
fn a_power_cut_after_any_call_of_a_scrub_loses_nothing_and_the_next_one_repairs_the_rest() {
    let base = Rig::new(2, 1, 3);
    let model = fill(&base);
    let whole = shards_on(&base, &base.fork().open(&[]));
    for harm in HARMS {
        let base = base.fork();
        harm.befall(&base.disks[1]);
        let mut cuts = 0;
        for call in (1..).step_by(3) {
            let rig = base.fork();
            let plan = FaultPlan::new();
            let fs = rig.open_with_faults(&plan).unwrap();
            plan.add(power_cut_at(call));
            let outcome = fs
                .maintenance
                .scrubber
                .scrub(&NoLocks, None, |_| ControlFlow::Continue(()));
            if plan.triggered() == 0 {
                assert!(outcome.unwrap().unwrap().is_clean());
                break;
            }
            drop(fs);
            cuts += 1;
            for policy in ways_to_cut(call) {
                let rig = rig.fork();
                rig.cut(policy);
                let context = format!("{harm:?}, cut {call}, {policy:?}");
                let fs = rig.open(&[]);
                assert_holds(&fs, &model, &context);
                // Shards that had to be rewritten are left to a rebuild.
                fs.rebuild().unwrap();
                let done = scrub(&fs);
                assert!(done.state == ScrubState::Finished, "{context}: {done:?}");
                assert_eq!((done.record.wrong, done.record.lost), (0, 0), "{context}");
                assert!(shards_on(&rig, &fs) == whole, "{context}");
            }
        }
        assert!(cuts > 3, "{harm:?}: only {cuts} cuts");
    }
}

#[test]
fn pages_that_are_damaged_on_one_copy_of_the_index_are_counted_by_reading_all() {
    let rig = Rig::new(2, 1, 3);
    fill(&rig);
    let read = || {
        let fs = TestFs::open(rig.stores(&[]), Access::ReadOnly).unwrap();
        fs.maintenance
            .scrubber
            .read_all_shards(|_, _| ())
            .unwrap()
            .index_pages
    };
    assert!(read().is_empty());
    let holder = rig.holders()[1];
    let disk = &rig.disks[holder];
    let end = disk.open().open_len(files::INDEX).unwrap() - 5000;
    // A different page each time, the first of which have been written.
    let hit = (8192..end)
        .step_by(9_000)
        .map(|at| disk.corrupt(files::INDEX, at, |b| b[0] ^= 1, 1));
    let hit = hit.filter(|hit| *hit).count() as u64;
    let found = read();
    let pages = found[&crate::format::MemberIndex(holder as u16)];
    assert!(
        found.len() == 1 && pages > 2 && pages <= hit,
        "{found:?} of {hit}"
    );
    // Nothing was written.
    assert_eq!(read(), found);
    let fs = rig.open(&[]);
    scrub(&fs);
    fs.close();
    assert!(read().is_empty());
}

#[test]
fn superblocks_journals_and_copies_of_the_index_are_repaired_from_others() {
    let base = Rig::new(2, 1, 3);
    let model = fill(&base);
    let spoil_index = |disk: &MemDisk| {
        let len = disk.open().open_len(files::INDEX);
        // Two of the three have one.
        for at in (8192..len.unwrap_or(0).saturating_sub(5000)).step_by(9_000) {
            assert!(disk.corrupt(files::INDEX, at, |b| b[0] ^= 1, 1));
        }
    };
    let harms: [(&str, Spoil); 6] = [
        ("slot 0", |disk| {
            assert!(disk.corrupt(files::SUPERBLOCK, 100, |b| b[0] ^= 1, 1));
        }),
        ("slot 1", |disk| {
            assert!(disk.corrupt(files::SUPERBLOCK, 65_636, |b| b[0] ^= 1, 1));
        }),
        ("index pages", spoil_index),
        ("index heads", |disk| {
            disk.corrupt(files::INDEX, 100, |b| b[0] ^= 1, 1);
            disk.corrupt(files::INDEX, 4196, |b| b[0] ^= 1, 1);
        }),
        ("index cut short", |disk| {
            let store = disk.open();
            if store.open_len(files::INDEX).is_ok() {
                store.truncate(files::INDEX, 20_000).unwrap();
                store.sync(files::INDEX).unwrap();
            }
        }),
        ("journal", |disk| {
            for journal in files::JOURNALS {
                assert!(disk.corrupt(journal, 50, |b| b[0] ^= 1, 1));
            }
        }),
    ];
    for (what, spoil) in harms {
        for hit in 0..3 {
            let rig = base.fork();
            let fs = rig.open(&[]);
            fs.write(9, &pattern(9, 100)).unwrap();
            fs.sync().unwrap();
            let has_index = rig.disks[hit].open().open_len(files::INDEX).is_ok();
            spoil(&rig.disks[hit]);
            let done = scrub(&fs);
            let context = format!("{what}, disk {hit}: {done:?}");
            assert!(done.is_clean(), "{context}");
            assert_eq!(
                done.record.repaired > 0,
                has_index || !what.contains("index"),
                "{context}"
            );
            assert_eq!(fs.transactions.index_copies().members.len(), 2, "{context}");
            assert_eq!(
                fs.transactions.members().membership().live().len(),
                3,
                "{context}"
            );
            // The scrub does not find out which journals are wrong.
            let wrong = (hit, done.record.repaired);
            let is_told = wrong.1 > 0 && what != "journal";
            let expected: Vec<_> = is_told.then_some(wrong).into_iter().collect();
            assert_eq!(wrong_pieces(&fs), expected, "{context}");
            let errors = fs.transactions.members().status()[hit].errors.checksum;
            assert_eq!(errors > 0, is_told, "{context}");
            fs.sync().unwrap();
            assert_eq!(scrub(&fs).record.repaired, 0, "{context}");
            assert_eq!(wrong_pieces(&fs), [], "{context}");
            drop(fs);
            rig.cut(CutPolicy::Drop);
            // It can stand in for any other.
            for lost in (0..3).filter(|lost| *lost != hit) {
                let fs = rig.fork().open(&[lost]);
                assert_holds(&fs, &model, &context);
                assert_eq!(fs.read(9).unwrap(), pattern(9, 100), "{context}");
            }
        }
    }
}
