//! Wrong bytes on members: detected, reconstructed, repaired.

use super::*;
#[test]
fn every_wrong_block_is_reconstructed_and_a_data_block_repaired_on_its_member() {
    let base = Rig::new(2, 2, 4);
    let fs = base.open(&[]);
    let mut model = Model::new();
    for (file, len) in [(1, 30_000), (2, 5_000), (3, 70)] {
        let bytes = pattern(file, len);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        fs.sync().unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    let shards = fs.written_shards();
    fs.close();
    let mut repaired = 0;
    for shard in &shards {
        let WrittenShard {
            disk,
            ref name,
            offset,
            height,
            ..
        } = *shard;
        for block in 0..height / BLOCK_SIZE {
            let at = offset + (block * BLOCK_SIZE + 17 * block + 5) as u64;
            let rig = base.fork();
            let before = rig.bytes_of(shard);
            assert!(rig.disks[disk].corrupt(name, at, |b| b[0] ^= 0x40, 1));
            let fs = rig.open(&[]);
            let context = format!("disk {disk}, {name}, byte {at}");
            assert_holds(&fs, &model, &context);
            if fs.transactions.repaired_ranges() > 0 {
                repaired += 1;
                let after = rig.bytes_of(shard);
                assert!(after == before, "{context}: not what was there before");
                let errors: Vec<u64> = fs
                    .transactions
                    .members()
                    .status()
                    .iter()
                    .map(|m| m.errors.checksum)
                    .collect();
                assert_eq!(errors.iter().sum::<u64>(), errors[disk], "{context}");
                assert!(errors[disk] > 0, "{context}");
                // Found right from now on, and durably so.
                fs.close();
                let fs = rig.open(&[]);
                assert_holds(&fs, &model, &context);
                assert_eq!(fs.transactions.repaired_ranges(), 0, "{context}");
            }
        }
    }
    assert!(repaired >= 9, "only {repaired} data blocks were repaired");
}

#[test]
fn different_blocks_wrong_on_every_member_are_still_all_reconstructed() {
    let rig = Rig::new(2, 2, 4);
    let fs = rig.open(&[]);
    let bytes = pattern(1, 2 * UNIT);
    fs.write(1, &bytes).unwrap();
    fs.transactions.checkpoint().unwrap();
    // Two of four shards are wrong in the first block, the other two in the second.
    for (index, shard) in fs.written_shards().iter().enumerate() {
        let at = shard.offset + if index < 2 { 0 } else { BLOCK_SIZE as u64 };
        assert!(rig.disks[shard.disk].corrupt(&shard.name, at, |b| b.fill(0xee), 64));
    }
    assert!(fs.read(1).unwrap() == bytes);
}

#[test]
fn read_ahead_fills_the_cache_with_correct_bytes_even_with_a_member_missing() {
    let rig = Rig::new(3, 2, 5);
    let fs = rig.open(&[]);
    let bytes = pattern(1, 9 * UNIT);
    fs.write(1, &bytes).unwrap();
    fs.transactions.checkpoint().unwrap();
    fs.close();
    for lost in subsets(5, 2) {
        let options = OpenOptions {
            threads: 1,
            cache_bytes: 1 << 20,
            ..OpenOptions::default()
        };
        let executor = Arc::new(Executor::new(ExecutorKind::Threads, Duration::from_secs(5)));
        let volume = Maintenance::open(rig.fork().stores(&lost), &options, executor).unwrap();
        let fs = TestFs::over(volume);
        for stripe in fs.stripes() {
            fs.transactions.prefetch(stripe);
        }
        assert!(fs.read(1).unwrap() == bytes, "lost {lost:?}");
        assert!(fs.read(1).unwrap() == bytes, "lost {lost:?}, again");
        fs.close();
    }
}
