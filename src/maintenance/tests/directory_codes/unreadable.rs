//! Orders to rewrite files of which some bytes cannot be read.

use super::*;

/// Turns the bits of all shards of the stripes of a file on three disks, or turns them back.
fn toggle(rig: &Rig, shards: &[WrittenShard]) {
    for shard in shards {
        let turn = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
        let disk = &rig.disks[shard.disk];
        assert!(disk.corrupt(&shard.name, shard.offset, turn, shard.height));
    }
}

/// Returns three shards of each stripe in which a file has bytes.
fn shards_of(fs: &TestFs, file: u64) -> Vec<WrittenShard> {
    let extents = fs.extents(file).unwrap();
    let stripes: BTreeSet<_> = extents.iter().map(|(_, it)| it.stripe).collect();
    let mut taken = BTreeMap::new();
    let mut shards = fs.written_shards();
    shards.retain(|shard| {
        let count = taken.entry(shard.stripe).or_insert(0);
        *count += 1;
        stripes.contains(&shard.stripe) && *count <= 3
    });
    shards
}

/// A volume whose files are all given another code, and one of them cannot be read. Each lies in stripes of its own.
fn ordered(rig: &Rig) -> (TestFs, Classed, StripeClass, Vec<WrittenShard>) {
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let mut files = Classed::default();
    for file in 0..8 {
        files.write(&fs, file, volume(), 50_000).unwrap();
        fs.flush();
    }
    let spoilt = shards_of(&fs, 3);
    toggle(rig, &spoilt);
    give_all(&fs, &mut files, thin);
    (fs, files, thin, spoilt)
}

fn give_all(fs: &TestFs, files: &mut Classed, class: StripeClass) {
    let all: Vec<u64> = files.classes.keys().copied().collect();
    let given = fs
        .transactions
        .ordering_rewrite(|| all.iter().try_for_each(|file| fs.set_class(*file, class)));
    given.unwrap();
    files.classes = all.into_iter().map(|file| (file, class)).collect();
}

fn left(fs: &TestFs) -> (bool, u64) {
    let status = fs.maintenance.rebuild().rewrite_status().unwrap();
    (status.is_ordered, status.stripes_left)
}

#[test]
fn an_order_ends_with_what_was_possible_and_tells_how_many_stripes_are_left() {
    let rig = rig(2, 6);
    let (fs, files, thin, spoilt) = ordered(&rig);
    let done = fs.rebuild().unwrap();
    assert!(done.bytes_done > 0);
    let stripes: BTreeSet<_> = spoilt.iter().map(|shard| shard.stripe).collect();
    let expected = (false, stripes.len() as u64);
    assert_eq!(left(&fs), expected);
    let mut moved = files.clone();
    moved.model.remove(&3);
    moved.classes.remove(&3);
    moved.assert_in_place(&fs, "what can be read");
    assert_holds(&fs, &moved.model, "what can be read");
    assert!(fs.read(3).is_err());
    // The same members cannot read it either, and nothing looks for it.
    let rebuild = fs.maintenance.rebuild();
    assert!(!rebuild.has_rewriting_to_do().unwrap());
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), expected);
    fs.sync().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_eq!(left(&fs), expected, "after a power cut");
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), expected, "other members may have been there");
    // It can be read again, and nothing tells so but a member that comes back.
    toggle(&rig, &spoilt);
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), expected, "the same members are there");
    fs.lose(&rig, 0);
    let has_something_to_do = || fs.maintenance.rebuild().has_rewriting_to_do().unwrap();
    assert!(!has_something_to_do(), "fewer members can read no more");
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), expected, "a member went");
    fs.take_back(&rig, 0);
    assert!(fs.maintenance.rebuild().has_rewriting_to_do().unwrap());
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), (false, 0));
    files.assert_in_place(&fs, "a member came back");
    fs.close();
    files.assert_survives(&rig, thin, 1, "a member came back");
}

#[test]
fn the_next_order_tries_stripes_again_that_could_not_be_read() {
    let rig = rig(2, 6);
    let (fs, mut files, _, spoilt) = ordered(&rig);
    fs.rebuild().unwrap();
    assert!(left(&fs).1 > 0);
    let equal = fs.class_for(4, 2);
    give_all(&fs, &mut files, equal);
    assert!(left(&fs).0);
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), (false, spoilt.len() as u64 / 3));
    toggle(&rig, &spoilt);
    fs.transactions.order_rewrite().unwrap();
    fs.rebuild().unwrap();
    assert_eq!(left(&fs), (false, 0));
    files.assert_in_place(&fs, "rewritten");
    fs.close();
    files.assert_survives(&rig, equal, 2, "rewritten");
}
