//! Shards that move to a new member until all are equally full.

use super::*;

#[test]
fn balancing_fills_a_new_member_like_the_others_and_loses_nothing() {
    let mut rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for round in 0..4 {
        fill(&fs, 1000 * round, &mut model);
    }
    rig.disks.push(new_disk());
    join(&fs, JoinAs::New, &rig.disks[3]).unwrap();
    let taken = |rig: &Rig| -> Vec<u64> {
        let taken = |disk: &MemDisk| disk.open().taken(files::SEGMENTS).unwrap();
        rig.disks.iter().map(taken).collect()
    };
    let whole: u64 = taken(&rig).iter().sum();
    for _ in 0..3 {
        fs.maintenance
            .rebuild()
            .balance(&at_once(), &|| false, &RebuildProgress::default())
            .unwrap();
        let volume = &fs.transactions.stripes;
        let segments = volume.segments().records();
        assert!(
            segments
                .iter()
                .all(|(segment, _)| !volume.segments().is_writing(*segment))
        );
        for _ in 0..4 {
            fs.sync().unwrap();
            fs.maintenance.reaper.reap().unwrap();
        }
    }
    let after = taken(&rig);
    assert!(after.iter().sum::<u64>() <= whole, "{after:?} of {whole}");
    // In millionths of their room, of which those with a copy of the index have less: two segments are 5,000.
    let free = |disk: &MemDisk| disk.open().space().unwrap().free_bytes;
    let shares = rig.disks.iter().zip(&after);
    let shares: Vec<u64> = shares
        .map(|(disk, taken)| taken * 1_000_000 / (taken + free(disk)))
        .collect();
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most - least <= 5_000, "{shares:?} of {after:?}");
    fs.assert_shards_lie_on(&rig, &[], "balanced");
    assert_eq!(fs.redundancy()[0].0, 1);
    assert_holds(&fs, &model, "balanced");
    fs.close();
    assert_bears(&rig, 1, &model, "balanced");
}
