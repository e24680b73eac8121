//! Stripes whose parity is not what the code makes of their data, although all checksums match.

use super::*;
use crate::format::record::ShardSums;

/// The length of a file that fills a stripe of 4+2.
const LEN: usize = 4 * UNIT;

/// Changes a shard and its checksums, as an engine would that computes something else than the code.
fn falsify(rig: &Rig, fs: &TestFs, shard: &WrittenShard) {
    assert!(rig.disks[shard.disk].corrupt(&shard.name, shard.offset + 9, |b| b[0] ^= 1, 1));
    let bytes = rig.bytes_of(shard);
    let sums = bytes.chunks(BLOCK_SIZE).map(crc32c::crc32c).collect();
    let mut batch = Batch::default();
    let key = key::sums(shard.stripe, shard.shard);
    batch.put(key, ShardSums(sums).encode());
    fs.transactions.apply(batch).unwrap();
}

#[test]
fn parity_that_does_not_belong_to_its_data_is_found_though_its_checksums_match() {
    let rig = Rig::new(2, 2, 4);
    let model = fill(&rig);
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let parity = shards.iter().find(|shard| shard.shard.0 >= 2).unwrap();
    falsify(&rig, &fs, parity);
    let done = scrub(&fs);
    assert_eq!((done.record.repaired, done.record.wrong), (1, 0));
    assert!(
        !fs.transactions.catalog.has_backref(parity.stripe).unwrap(),
        "its bytes were moved"
    );
    assert_holds(&fs, &model, "written restarted");
    fs.maintenance.reaper.reap_now().unwrap();
    assert_eq!(scrub(&fs).record.repaired, 0);
}

/// Returns a volume of a file in one stripe, the last parity of which is not right, with its shards in their order.
fn with_a_false_parity() -> (Rig, Vec<WrittenShard>) {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    fs.write(1, &pattern(1, LEN)).unwrap();
    fs.sync().unwrap();
    let shards = fs.written_shards();
    assert_eq!(shards.len(), 6, "one stripe");
    falsify(&rig, &fs, &shards[5]);
    fs.sync().unwrap();
    fs.close();
    (rig, shards)
}

/// None of the other shards is suspected wrongly: the file stays right.
#[test]
fn a_stripe_with_several_false_parities_is_rewritten_with_its_right_bytes() {
    let (rig, shards) = with_a_false_parity();
    let fs = rig.open(&[]);
    falsify(&rig, &fs, &shards[4]);
    fs.sync().unwrap();
    let before = fs.extents(1).unwrap();
    let scrubbed = scrub(&fs);
    assert!(scrubbed.is_clean(), "{scrubbed:?}");
    assert_eq!(fs.maintenance.scrubber.stripes_waiting().unwrap(), 0);
    assert_ne!(fs.extents(1).unwrap(), before);
    fs.sync().unwrap();
    assert_survives(&rig, 2, "several false parities");
    assert_eq!(scrub(&fs).record.repaired, 0);
}

/// Asserts that the file can be read without any `losses` of the disks.
fn assert_survives(rig: &Rig, losses: usize, context: &str) {
    for lost in subsets(6, losses) {
        let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadOnly).unwrap();
        let read = fs.read(1);
        let read = read.unwrap_or_else(|error| panic!("{context}, without {lost:?}: {error}"));
        assert!(read == pattern(1, LEN), "{context}, without {lost:?}");
    }
}

/// Five shards can be trusted, those of absent members included. A new stripe has four while two members are away.
#[test]
fn a_stripe_with_a_false_parity_is_not_rewritten_into_one_that_survives_fewer_losses() {
    let (rig, shards) = with_a_false_parity();
    for away in subsets(6, 2).into_iter().filter(|away| away.len() == 2) {
        let rig = rig.fork();
        let context = format!("without shards {away:?}");
        let fs = rig.open_in(&[], &context);
        let before = fs.extents(1).unwrap();
        for &shard in &away {
            fs.lose(&rig, shards[shard].disk);
        }
        let scrubbed = scrub(&fs);
        assert_eq!(scrubbed.state, ScrubState::Finished, "{context}");
        assert_eq!(fs.extents(1).unwrap(), before, "{context}");
        let waiting = fs.maintenance.scrubber.stripes_waiting().unwrap();
        assert_eq!(waiting, 1, "{context}: {scrubbed:?}");
        assert!(scrubbed.record.wrong > 0, "{context}: {scrubbed:?}");
        for &shard in &away {
            fs.take_back(&rig, shards[shard].disk);
        }
        fs.sync().unwrap();
        assert_survives(&rig, 1, &context);
        let scrubbed = scrub(&fs);
        assert!(scrubbed.is_clean(), "{context}: {scrubbed:?}");
        assert_eq!(
            fs.maintenance.scrubber.stripes_waiting().unwrap(),
            0,
            "{context}"
        );
        assert_ne!(fs.extents(1).unwrap(), before, "{context}");
        fs.sync().unwrap();
        assert_survives(&rig, 2, &context);
    }
}

/// A new stripe has five shards then, all of them right.
#[test]
fn a_stripe_with_a_false_parity_is_rewritten_although_one_member_is_away() {
    let (rig, shards) = with_a_false_parity();
    for (away, shard) in shards.iter().enumerate() {
        let rig = rig.fork();
        let context = format!("without shard {away}");
        let fs = rig.open_in(&[], &context);
        let before = fs.extents(1).unwrap();
        fs.lose(&rig, shard.disk);
        scrub(&fs);
        assert_eq!(
            fs.maintenance.scrubber.stripes_waiting().unwrap(),
            0,
            "{context}"
        );
        assert_ne!(fs.extents(1).unwrap(), before, "{context}");
        fs.take_back(&rig, shard.disk);
        fs.rebuild().unwrap();
        fs.sync().unwrap();
        assert_survives(&rig, 2, &context);
    }
}

/// Nothing but the last scrub knows of such stripes.
#[test]
fn stripes_that_a_scrub_left_are_remembered_when_the_volume_is_opened_again() {
    for is_closed in [true, false] {
        let (rig, shards) = with_a_false_parity();
        let fs = rig.open(&[]);
        let waiting = |fs: &TestFs| fs.maintenance.scrubber.stripes_waiting().unwrap();
        for shard in &shards[..2] {
            fs.lose(&rig, shard.disk);
        }
        scrub(&fs);
        assert_eq!(waiting(&fs), 1);
        assert!(!fs.maintenance.scrubber.lacks_space(), "members are away");
        if is_closed {
            fs.close();
        }
        for disk in &rig.disks {
            disk.cut(CutPolicy::Drop);
        }
        let fs = rig.open(&[]);
        assert_eq!(waiting(&fs), 1, "closed: {is_closed}");
        scrub(&fs);
        assert_eq!(waiting(&fs), 0);
        fs.close();
        assert_eq!(waiting(&rig.open(&[])), 0);
    }
}
