//! Work of others on the volume while a scrub goes on.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::*;
use crate::maintenance::ScrubStatus;

#[test]
fn files_are_written_deleted_and_moved_while_a_scrub_goes_on() {
    let rig = Rig::new(2, 2, 5);
    let mut model = fill(&rig);
    Harm::ZeroRanges.befall(&rig.disks[0]);
    Harm::FlipBits.befall(&rig.disks[3]);
    let fs = rig.open(&[]);
    let mut turn = 0;
    let meanwhile = |_: &ScrubStatus| {
        turn += 1;
        let bytes = pattern(turn, 40_000);
        fs.write(10 + turn % 4, &bytes).unwrap();
        model.insert(10 + turn % 4, bytes);
        if turn == 2 {
            fs.remove(1).unwrap();
            model.insert(1, Vec::new());
        }
        fs.maintenance.reaper.reap_now().unwrap();
        fs.maintenance
            .room
            .make_room(u64::MAX / 2, &NoLocks)
            .unwrap();
        ControlFlow::Continue(())
    };
    let done = fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, None, meanwhile)
        .unwrap()
        .unwrap();
    assert!(turn > 4, "only {turn} turns");
    assert!(done.is_clean() && done.record.repaired > 0, "{done:?}");
    fs.sync().unwrap();
    fs.assert_shards_lie_on(&rig, &[], "scrubbed");
    assert_holds(&fs, &model, "scrubbed");
    fs.maintenance.reaper.reap_now().unwrap();
    fs.close();
    let fs = rig.open(&[]);
    assert_holds(&fs, &model, "opened again");
    let known: BTreeSet<String> = fs
        .transactions
        .stripes
        .segments()
        .records()
        .iter()
        .map(|(id, _)| files::segment(*id))
        .collect();
    for disk in &rig.disks {
        for (name, _) in segment_files(disk) {
            assert!(known.contains(&name), "{name} belongs to no segment");
        }
    }
}
