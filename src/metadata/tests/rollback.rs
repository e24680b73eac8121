//! A member that is a stale copy of the same epoch: from a backup, from a snapshot, or because its disk lost what it
//! had called durable. Its superblock says nothing of it.

use super::rig::{Progress, Rig, Script, newest_head, verify};
use crate::membership::Access;

const SEED: u64 = 77;
const UNITS: usize = 12;

/// Plays a script with a checkpoint after every second unit, so that each journal file begins again several times.
/// Mounts again half way. Returns the disks as they were before each unit.
fn play_with_backups(rig: &Rig, script: &Script) -> (Progress, Vec<Rig>) {
    let mut progress = Progress::default();
    let mut backups = Vec::new();
    let open = || rig.open(&[], None, Access::ReadWrite);
    let (mut meta, _, mut members) = open().expect("open");
    for (number, unit) in script.units.iter().enumerate() {
        backups.push(rig.fork());
        meta.apply(unit.applied.clone()).expect("apply");
        meta.apply_stripes(unit.stripes.clone()).expect("apply");
        meta.append(vec![meta.rotate(), meta.take_stripes()], &unit.data)
            .expect("append");
        progress.acknowledged = number + 1;
        progress.started = number + 1;
        if number % 2 == 1 {
            meta.checkpoint().expect("checkpoint");
            progress.checkpointed = number + 1;
        }
        if number == UNITS / 2 {
            meta.close().expect("close");
            progress.checkpointed = number + 1;
            drop((meta, members));
            backups.push(rig.fork());
            (meta, _, members) = open().expect("open again");
        }
    }
    (progress, backups)
}

fn assert_copies_agree(rig: &Rig, without: &[usize], copies: usize, case: &str) {
    let disks = rig.disks.iter().enumerate();
    let left = disks.filter(|(index, _)| !without.contains(index));
    let heads: Vec<_> = left.filter_map(|(_, disk)| newest_head(disk)).collect();
    assert_eq!(heads.len(), copies, "{case}: copies");
    for head in &heads {
        assert_eq!(head, &heads[0], "{case}: the copies differ");
    }
}

/// The stale copy counts as one of the m lost members. The data of the others counts, and the stale copy of the index
/// is made again, regardless of the copy's age.
#[test]
fn a_stale_copy_of_any_earlier_state_costs_nothing() {
    for (k, m, count) in [(2, 1, 3), (2, 2, 4), (4, 2, 6)] {
        let script = Script::new(SEED, UNITS);
        let rig = Rig::new(k, m, count);
        let (progress, backups) = play_with_backups(&rig, &script);
        for (age, backup) in backups.iter().rev().enumerate() {
            for back in 0..count {
                // With two parity shards, another member may be lost as well.
                let other = (back + 1 + age % (count - 1)) % count;
                for lost in [vec![], vec![other]].iter().take(m) {
                    let case =
                        format!("{k}+{m}: {back} put back by {age}, {lost:?} lost, seed {SEED}");
                    let mut rig = rig.fork();
                    rig.disks[back] = backup.disks[back].fork();
                    verify(&rig, lost, &script, progress, &case);
                    assert_copies_agree(&rig, lost, (m + 1).min(count - lost.len()), &case);
                }
            }
        }
    }
}
