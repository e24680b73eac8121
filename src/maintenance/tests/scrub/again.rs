//! Shards that could not be read or repaired when they were passed are passed once more.

use super::*;
use crate::format::{MemberIndex, SegmentId};
use crate::membership::AbsenceReason;

/// A scrub that began without disk 3, and passed some of what is on it.
fn begun_without_disk_3(rig: &Rig, fs: &TestFs) -> Scrub {
    fs.lose(rig, 3);
    let stopped = scrub_until(fs, |record| record.missing > 0 && record.segment.0 > 1);
    stopped.record
}

#[test]
fn rot_on_a_member_absent_when_it_was_passed_is_repaired_before_a_scrub_is_through() {
    let rig = Rig::new(4, 2, 6);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    let whole = shards_on(&rig, &fs);
    let stopped = begun_without_disk_3(&rig, &fs);
    let mut spoilt = 0;
    for shard in fs.written_shards().iter().filter(|s| s.disk == 3) {
        if shard.name < files::segment(stopped.segment) {
            assert!(rig.disks[3].corrupt(&shard.name, shard.offset, |b| b[0] ^= 4, 1));
            spoilt += 1;
        }
    }
    assert!(spoilt > 0);
    fs.take_back(&rig, 3);
    // It can be stopped there as well, and then it is not through.
    let last_finished = fs
        .maintenance
        .scrubber
        .scrub_status()
        .unwrap()
        .record
        .last_finished;
    let halfway = scrub_until(&fs, |record| record.segment >= record.end);
    assert_eq!(halfway.record.began, stopped.began, "it went on");
    assert_eq!(halfway.record.last_finished, last_finished);
    assert!(shards_on(&rig, &fs) != whole, "that is still to come");
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert_eq!(done.record.repaired, spoilt);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(wrong_pieces(&fs), [(3, spoilt)]);
    assert!(shards_on(&rig, &fs) == whole, "repaired on the disk");
    assert_holds(&fs, &model, "scrubbed");
}

#[test]
fn the_second_pass_can_be_stopped_between_segments_and_goes_on_there() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let mut of_disk_3 = BTreeMap::new();
    for shard in fs.written_shards().iter().filter(|s| s.disk == 3) {
        assert!(rig.disks[3].corrupt(&shard.name, shard.offset, |b| b[0] ^= 4, 1));
        *of_disk_3.entry(shard.name.clone()).or_insert(0) += 1;
    }
    let shards: Vec<u64> = of_disk_3.into_values().collect();
    let all: u64 = shards.iter().sum();
    fs.lose(&rig, 3);
    scrub_until(&fs, |record| record.segment >= record.end);
    fs.take_back(&rig, 3);
    for passed in 1..shards.len() {
        let repaired = shards[..passed].iter().sum();
        let stopped = scrub_until(&fs, |record| record.repaired >= repaired).record;
        assert_eq!(stopped.repaired, repaired);
        assert!(!stopped.is_finished && stopped.missing == all - repaired);
    }
    let done = scrub(&fs);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(done.record.repaired, all);
    assert!(
        fs.maintenance.scrubber.scrub_status().unwrap().is_clean(),
        "noted"
    );
}

#[test]
fn a_scrub_continued_after_a_mount_reports_that_it_did_not_verify_members_absent_before() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let stopped = begun_without_disk_3(&rig, &fs);
    fs.close();
    rig.disks[3].fail(None);
    let fs = rig.open(&[]);
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert_eq!(done.state, ScrubState::Finished);
    assert!(!done.is_clean(), "{done:?}");
    assert_eq!(done.record.missing, stopped.missing);
    assert_eq!(
        fs.maintenance.scrubber.unverified_by_scrub(),
        stopped.missing
    );
    assert!(scrub(&fs).is_clean());
    assert_eq!(fs.maintenance.scrubber.unverified_by_scrub(), 0);
}

/// The shards missing now are others than those missing then: none of these were read.
#[test]
fn a_scrub_continued_without_another_member_reports_that_it_did_not_verify_members_absent_before() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let stopped = begun_without_disk_3(&rig, &fs);
    let passed = fs.written_shards();
    let passed = passed.iter().find(|shard| shard.disk == 3).unwrap();
    assert!(passed.name < files::segment(stopped.segment));
    fs.close();
    rig.disks[3].fail(None);
    let whole = rig.bytes_of(passed);
    assert!(rig.disks[3].corrupt(&passed.name, passed.offset, |b| b[0] ^= 4, 1));
    let fs = rig.open(&[4]);
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    let missing = fs
        .maintenance
        .redundancy
        .redundancy()
        .unwrap()
        .missing_shards();
    assert!(missing >= stopped.missing, "as much as was not verified");
    assert_eq!(
        fs.maintenance.scrubber.unverified_by_scrub(),
        stopped.missing
    );
    assert_eq!(done.record.missing, missing + stopped.missing);
    assert!(rig.bytes_of(passed) != whole, "the rot is there still");
    assert_eq!(scrub(&fs).record.repaired, 1, "the next one finds it");
    assert!(rig.bytes_of(passed) == whole, "repaired on the disk");
    assert_eq!(fs.maintenance.scrubber.unverified_by_scrub(), 0);
}

#[test]
fn online_shards_that_cannot_be_verified_are_not_reported_as_verified() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let of_disk_3 = shards.iter().find(|shard| shard.disk == 3).unwrap();
    let mut batch = Batch::default();
    batch.delete(key::sums(of_disk_3.stripe, of_disk_3.shard));
    fs.transactions.apply(batch).unwrap();
    for _ in 0..2 {
        let done = scrub(&fs);
        assert_eq!(
            done.state,
            ScrubState::Finished,
            "it does not go round for ever"
        );
        assert!(!done.is_clean(), "{done:?}");
        assert_eq!((done.record.missing, done.record.wrong), (1, 0));
        assert_eq!(fs.maintenance.scrubber.unverified_by_scrub(), 1);
    }
}

/// Its shards count for nothing as long as some of them are not known to be right.
#[test]
fn a_stale_copy_is_not_verified_by_a_scrub_that_could_not_read_all_of_it() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let (back, other) = (MemberIndex(3), MemberIndex(4));
    let shards = fs.written_shards();
    let of_disk_3 = shards.iter().find(|shard| shard.disk == 3).unwrap();
    let sums = key::sums(of_disk_3.stripe, of_disk_3.shard);
    let known = fs.transactions.meta.get(&sums).unwrap().unwrap();
    let mut batch = Batch::default();
    batch.delete(sums.clone());
    fs.transactions.apply(batch).unwrap();
    let members = fs.transactions.members();
    members.stale_copies().note(back);
    members.stale_copies().note(other);
    let unverified = || -> Vec<_> { members.stale_copies().unverified().into_keys().collect() };
    assert!(fs.maintenance.stale_copies.is_verification_due().unwrap());
    assert!(!scrub(&fs).is_clean());
    assert_eq!(unverified(), [back], "the other is verified");
    let due = fs.maintenance.stale_copies.is_verification_due().unwrap();
    assert!(!due, "the next would come to the same");
    fs.lose(&rig, 5);
    fs.take_back(&rig, 5);
    let due = fs.maintenance.stale_copies.is_verification_due().unwrap();
    assert!(due, "somebody is back who may have what it takes");
    assert!(!scrub(&fs).is_clean());
    assert!(!fs.maintenance.stale_copies.is_verification_due().unwrap());
    let reason = members.status().remove(3).reason;
    assert_eq!(reason, Some(AbsenceReason::Unverified));
    let not_sure = fs.redundancy();
    assert!(not_sure.iter().any(|row| row.0 < 2), "{not_sure:?}");
    fs.close();

    let fs = rig.fork().open(&[]);
    let members = fs.transactions.members();
    assert_eq!(
        members
            .stale_copies()
            .unverified()
            .into_keys()
            .collect::<Vec<_>>(),
        [back]
    );
    let due = fs.maintenance.stale_copies.is_verification_due().unwrap();
    assert!(due, "it may come to something else");
    let mut batch = Batch::default();
    batch.put(sums, known);
    fs.transactions.apply(batch).unwrap();
    assert!(scrub(&fs).is_clean());
    assert!(members.stale_copies().unverified().is_empty());
    assert_eq!(fs.redundancy(), [(2, fs.stripes().len() as u64)]);
}

#[test]
fn a_stale_copy_is_not_verified_if_the_member_of_an_unread_shard_is_not_known() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let back = MemberIndex(4);
    fs.transactions.members().stale_copies().note(back);
    let stopped = begun_without_disk_3(&rig, &fs);
    fs.close();
    rig.disks[3].fail(None);
    let fs = rig.open(&[]);
    let members = fs.transactions.members();
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert!(members.stale_copies().unverified().contains_key(&back));
    let due = fs.maintenance.stale_copies.is_verification_due().unwrap();
    assert!(due, "the next one will know");
    assert!(scrub(&fs).is_clean());
    assert!(members.stale_copies().unverified().is_empty());
}

#[test]
fn defects_of_a_file_that_is_gone_by_the_end_are_not_reported() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    spoil_block(&rig, &fs, 3, 1);
    let stopped = scrub_until(&fs, |record| record.lost > 0).record;
    assert_eq!(stopped.wrong, 3);
    fs.remove(4).unwrap();
    fs.sync().unwrap();
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(
        wrong_pieces(&fs)
            .iter()
            .map(|(_, pieces)| pieces)
            .sum::<u64>(),
        3
    );
}

#[test]
fn a_scrub_continued_after_a_mount_keeps_the_losses_that_it_found_before() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    let (stripe, _) = spoil_block(&rig, &fs, 2, 0);
    let shards = fs.written_shards();
    let last = shards.iter().rfind(|shard| shard.stripe == stripe).unwrap();
    fs.lose(&rig, last.disk);
    let stopped = scrub_until(&fs, |record| record.lost > 0).record;
    fs.close();
    rig.disks[last.disk].fail(None);
    let fs = rig.open(&[]);
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.began, "it went on");
    assert_eq!(done.record.lost, stopped.lost);
    assert!(scrub(&fs).record.repaired == 2, "the next one looks at it");
    assert!(scrub(&fs).is_clean());
}

#[test]
fn bytes_lost_with_vanished_files_count_as_lost_bytes_too() {
    let rig = Rig::new(4, 2, 6);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    let mut is_spoilt = false;
    let spoil_late = |status: &ScrubStatus| {
        if status.progress > 0.99 && !is_spoilt {
            (0..6).for_each(|disk| Harm::Delete.befall(&rig.disks[disk]));
            is_spoilt = true;
        }
        ControlFlow::Continue(())
    };
    let done = fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, None, spoil_late)
        .unwrap();
    let held: usize = model.values().map(Vec::len).sum();
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    assert!(!counted.unrecoverable.is_empty());
    assert_eq!(done.unwrap().record.lost, held as u64);
}

#[test]
fn nothing_counts_twice_after_a_scrub_that_ended_with_an_error() {
    let rig = Rig::new(4, 2, 6);
    fill(&rig);
    let fs = rig.open(&[]);
    fs.write(6, &pattern(6, 600_000)).unwrap();
    fs.sync().unwrap();
    let mut of_disk_1 = 0;
    for shard in fs.written_shards().iter().filter(|s| s.disk == 1) {
        assert!(rig.disks[1].corrupt(&shard.name, shard.offset, |b| b[0] ^= 4, 1));
        of_disk_1 += 1;
    }
    let segments: BTreeSet<SegmentId> = fs
        .transactions
        .stripes
        .segments()
        .records()
        .iter()
        .map(|s| s.0)
        .collect();
    let (first, last) = (*segments.first().unwrap(), *segments.last().unwrap());
    assert!(segments.len() > 2, "one is passed between them");
    let stopped = scrub_until(&fs, |record| record.segment > first);
    assert!(stopped.record.repaired < of_disk_1);
    let (from, end) = key::segment_stripes(last);
    let found = fs.transactions.scan(&from, &end, 1).unwrap();
    let (place, value) = found.first().unwrap();
    let mut batch = Batch::default();
    batch.put(place.clone(), bytes::Bytes::from_static(b"no record"));
    fs.transactions.apply(batch).unwrap();
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap_err();
    assert!(
        wrong_pieces(&fs)[0].1 > stopped.record.repaired,
        "it passed more"
    );
    let mut batch = Batch::default();
    batch.put(place.clone(), value.clone());
    fs.transactions.apply(batch).unwrap();
    let done = scrub(&fs);
    assert_eq!(done.record.began, stopped.record.began, "it went on");
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(done.record.repaired, of_disk_1);
    assert_eq!(wrong_pieces(&fs), [(1, of_disk_1)]);
}
