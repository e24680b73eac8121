//! Members that were away, and now stand in for others that are.

use super::*;
use crate::membership::MembersError;
use crate::stripes::StripeError;

/// Writes some files from number `first` on, of every kind of length.
fn fill(fs: &TestFs, first: u64, model: &mut Model) {
    for (file, len) in (first..).zip([50_000, 63, 5_000, 70_000, 120_001]) {
        let bytes = pattern(file, len);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.sync().unwrap();
}

#[test]
fn a_volume_goes_on_with_stale_members_and_reports_the_bytes_lost_without_the_others() {
    let rig = Rig::new(4, 2, 6);
    let (mut old, mut meanwhile, mut new) = (Model::new(), Model::new(), Model::new());
    let fs = rig.open(&[]);
    fill(&fs, 0, &mut old);
    fs.close();
    let fs = rig.open(&[0, 1]);
    fill(&fs, 10, &mut meanwhile);
    fs.transactions.checkpoint().unwrap();
    let damaged: Vec<StripeId> = fs
        .written_shards()
        .iter()
        .filter(|shard| shard.disk == 2)
        .map(|shard| shard.stripe)
        .collect();
    fs.close();

    // Half of those that were there last: the others may go on elsewhere.
    let refused = TestFs::open(rig.stores(&[2, 3]), Access::ReadWrite).err();
    let too_few = |error: &CommitError| matches!(error, CommitError::Members(error) if matches!(**error, MembersError::TooFew { .. }));
    assert!(refused.as_ref().is_some_and(too_few), "{refused:?}");

    let fs = rig.open(&[2]);
    assert!(
        fs.transactions.members().epochs().stale().is_empty(),
        "they were admitted"
    );
    assert_holds(&fs, &old, "written before");
    let mut lost = 0;
    for (&file, expected) in &meanwhile {
        match fs.read(file) {
            Ok(bytes) => assert!(bytes == *expected, "file {file} has other bytes"),
            Err(CommitError::Stripes(StripeError::TooFewShards { stripe, .. })) => {
                assert!(damaged.contains(&stripe), "{stripe}");
                lost += 1;
            }
            Err(error) => panic!("file {file}: {error}"),
        }
    }
    assert!(lost > 0, "no stripe was made without the stale members");
    assert!(fs.redundancy()[0].0 < 0, "{:?}", fs.redundancy());
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    let mut lost = counted.unrecoverable.iter();
    assert!(lost.all(|lost| damaged.contains(&lost.stripe)));

    fill(&fs, 20, &mut new);
    let removed = meanwhile.pop_first().unwrap().0;
    fs.remove(removed).unwrap();
    fs.sync().unwrap();
    fs.close();
    let fs = rig.open(&[2]);
    assert_holds(&fs, &old, "written before, opened again");
    assert_holds(&fs, &new, "written since");
    fs.assert_shards_lie_on(&rig, &[2], "written since");
    fs.close();

    // The lost member comes back, and with it what it alone has.
    let fs = rig.open(&[]);
    for (model, when) in [(&old, "before"), (&meanwhile, "meanwhile"), (&new, "since")] {
        assert_holds(&fs, model, &format!("written {when}, all members there"));
    }
    assert!(fs.read(removed).unwrap().is_empty());
    assert!(fs.redundancy()[0].0 >= 0, "{:?}", fs.redundancy());
}
