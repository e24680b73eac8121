//! Volumes of `random-gf2`, with more members lost than every stripe survives.

use std::collections::BTreeSet;

use super::*;
use crate::stripes::{member_of, survival};

/// Losses that any stripe of 4+4 survives.
const SURVIVED: usize = 3;

/// A file for each of some stripes, so that shards lie on members in every way.
fn fill(fs: &TestFs) -> Model {
    let mut model = Model::new();
    for file in 0..20 {
        let data = pattern(file, 4 * UNIT);
        fs.write(file, &data).unwrap();
        model.insert(file, data);
    }
    // Most of its data shards are implied.
    let short = pattern(20, 5_000);
    fs.write(20, &short).unwrap();
    model.insert(20, short);
    fs.sync().unwrap();
    fs.transactions.checkpoint().unwrap();
    model
}

/// Returns the stripes that the rank of what is left does not suffice for.
fn undecodable(fs: &TestFs, lost: &[usize]) -> BTreeSet<StripeId> {
    let is_lost = |stripe: &StripeId| {
        let record = fs.transactions.stripe(*stripe).unwrap().unwrap();
        let segments = fs.transactions.stripes.segments();
        let segment = segments.record(record.segment).unwrap();
        let is_left = |index: usize| {
            let shard = ShardIndex(index as u8);
            let member = member_of(&segment, &record, shard);
            record.is_implied(shard, 4)
                || record.written.contains(shard)
                    && member.is_some_and(|member| !lost.contains(&usize::from(member.0)))
        };
        !survival(&segment).is_decodable(is_left)
    };
    fs.stripes().into_iter().filter(is_lost).collect()
}

#[test]
fn losses_beyond_those_survived_for_sure_are_read_where_the_rank_suffices_and_refused_elsewhere() {
    let rig = Rig::random(8);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    assert_eq!(fs.redundancy()[0].0, SURVIVED as i16);
    fs.close();
    let (mut whole, mut torn) = (0, 0);
    let sets = subsets(8, SURVIVED + 1).into_iter();
    for lost in sets.filter(|lost| lost.len() > SURVIVED) {
        let fs = rig.fork().open(&lost);
        let gone = undecodable(&fs, &lost);
        let mut files_lost = BTreeSet::new();
        for (&file, expected) in &model {
            let extents = fs.extents(file).unwrap();
            let is_gone = extents
                .iter()
                .any(|(_, extent)| gone.contains(&extent.stripe));
            match fs.read(file) {
                Ok(bytes) => assert!(bytes == *expected, "lost {lost:?}: file {file}"),
                Err(error) => {
                    assert!(is_gone, "lost {lost:?}: file {file}: {error}");
                    files_lost.insert(Ino(file));
                }
            }
            // A short one may lie in a data shard that is left.
            assert!(!is_gone || expected.len() < 4 * UNIT || files_lost.contains(&Ino(file)));
        }
        let counted = fs.maintenance.redundancy.redundancy().unwrap();
        let lost_stripes = counted.rows.iter().filter(|row| row.losses_tolerated < 0);
        let lost_stripes: u64 = lost_stripes.map(|row| row.stripes).sum();
        let listed = fs
            .maintenance
            .redundancy
            .inodes_in(&counted.unrecoverable, 1000);
        assert_eq!(listed.unwrap(), files_lost, "lost {lost:?}");
        assert!(lost_stripes <= gone.len() as u64, "lost {lost:?}");
        // More members are absent than every stripe survives.
        assert!(fs.maintenance.redundancy.may_have_lost_data().unwrap());
        (whole, torn) = (
            whole + usize::from(gone.is_empty()),
            torn + usize::from(!gone.is_empty()),
        );
        // Four members are left, and new stripes are written to them such that they can be read.
        let new = pattern(100, 10 * UNIT);
        fs.write(100, &new).unwrap();
        fs.sync().unwrap();
        fs.transactions.checkpoint().unwrap();
        assert!(fs.read(100).unwrap() == new, "lost {lost:?}");
        let gone_now = undecodable(&fs, &lost);
        assert_eq!(
            gone_now, gone,
            "lost {lost:?}: a new stripe cannot be decoded"
        );
        fs.close();
    }
    assert!(
        torn > 0,
        "no set of losses was fatal to any stripe: {whole}"
    );
}

#[test]
fn lost_shards_are_rebuilt_on_what_is_left_until_all_stripes_survive_as_much_again() {
    let rig = Rig::random(11);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    for (first, second) in [([0, 1, 2], [3, 4, 5]), ([4, 7, 9], [0, 6, 10])] {
        let rig = {
            fs.sync().unwrap();
            rig.fork()
        };
        let fs = rig.open(&first);
        assert!(fs.redundancy()[0].0 < SURVIVED as i16, "{first:?}");
        fs.rebuild().unwrap();
        assert_eq!(fs.redundancy()[0].0, SURVIVED as i16, "{first:?}");
        assert_eq!(fs.redundancy().len(), 1, "{first:?}");
        fs.transactions.checkpoint().unwrap();
        fs.assert_shards_lie_on(&rig, &first, "rebuilt");
        for disk in second {
            fs.lose(&rig, disk);
        }
        assert_holds(&fs, &model, "three more are lost");
    }
}

#[test]
fn stripes_that_the_rank_still_suffices_for_are_rebuilt_after_one_loss_more() {
    let rig = Rig::random(12);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    fs.close();
    let mut rebuilt = 0;
    for lost in [[0, 1, 2, 3], [0, 2, 5, 7], [8, 9, 10, 11], [1, 4, 6, 11]] {
        let rig = rig.fork();
        let fs = rig.open(&lost);
        let gone = undecodable(&fs, &lost);
        fs.rebuild().unwrap();
        assert_eq!(undecodable(&fs, &lost), gone, "{lost:?}");
        let rows = fs.redundancy();
        for (tolerated, stripes) in rows {
            if tolerated < 0 {
                assert!(stripes <= gone.len() as u64, "{lost:?}");
            } else {
                assert_eq!(tolerated, SURVIVED as i16, "{lost:?}");
                rebuilt += stripes;
            }
        }
        for (&file, expected) in &model {
            let extents = fs.extents(file).unwrap();
            if !extents
                .iter()
                .any(|(_, extent)| gone.contains(&extent.stripe))
            {
                assert!(fs.read(file).unwrap() == *expected, "{lost:?}: file {file}");
            }
        }
    }
    assert!(rebuilt > 0);
}
