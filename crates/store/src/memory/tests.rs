use super::*;

fn read(store: &MemStore, name: &str) -> Vec<u8> {
    let len = store.open_len(name).expect("a file");
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    store.read_at(name, 0, &mut bytes).expect("all of it");
    bytes
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, StoreError>) -> StoreErrorKind {
    result.expect_err("this must fail").kind()
}

/// A disk with a file of two synced sectors of ones, then overwritten and grown with twos.
fn half_synced() -> MemDisk {
    let disk = MemDisk::new("disk", 1 << 20);
    let store = disk.open();
    store.create("f", 1024).expect("a new file");
    store.write_at("f", 0, &[1; 1024]).expect("room");
    store.sync("f").expect("durable");
    store.write_at("f", 0, &[2; 2048]).expect("room");
    disk
}

#[test]
fn a_cut_keeps_all_or_nothing_of_unsynced_bytes() {
    let disk = half_synced();
    assert!(disk.has_unsynced());
    disk.cut(CutPolicy::Keep);
    assert_eq!(read(&disk.open(), "f"), [2; 2048]);
    let disk = half_synced();
    disk.cut(CutPolicy::Drop);
    assert_eq!(read(&disk.open(), "f"), [1; 1024]);
    assert!(!disk.has_unsynced());
}

#[test]
fn reordering_leaves_each_sector_old_or_new_and_over_all_seeds_every_mix() {
    let mut mixes = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let outcome = |disk: MemDisk| {
            disk.cut(CutPolicy::Reorder(seed));
            read(&disk.open(), "f")
        };
        let bytes = outcome(half_synced());
        assert_eq!(
            bytes,
            outcome(half_synced()),
            "seed {seed} decides the same way twice"
        );
        let sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        for (sector, chunk) in bytes.chunks(512).enumerate() {
            let old = u8::from(sector < 2);
            assert!(chunk.len() == 512 && chunk.iter().all(|&byte| byte == chunk[0]));
            assert!([old, 2].contains(&chunk[0]), "seed {seed} sector {sector}");
        }
        mixes.insert(sectors);
    }
    for mix in [
        &[1, 2][..],
        &[2, 1],
        &[1, 1],
        &[2, 2, 0, 0],
        &[1, 1, 2, 2],
        &[1, 1, 0, 2],
    ] {
        assert!(mixes.contains(mix), "{mix:?} never came up");
    }
}

#[test]
fn synced_bytes_survive_every_cut() {
    for policy in (0..50)
        .map(CutPolicy::Reorder)
        .chain([CutPolicy::Keep, CutPolicy::Drop])
    {
        let disk = half_synced();
        disk.open().sync("f").expect("durable");
        disk.cut(policy);
        assert_eq!(read(&disk.open(), "f"), [2; 2048], "{policy:?}");
    }
}

#[test]
fn stores_opened_before_a_cut_have_no_power_and_hold_no_lock() {
    let disk = MemDisk::new("disk", 1 << 20);
    let store = disk.open();
    let held = store.lock(Hold::Exclusive).expect("nobody has it");
    disk.cut(CutPolicy::Keep);
    assert_eq!(kind_of(store.create("f", 1)), StoreErrorKind::PowerCut);
    assert_eq!(kind_of(store.probe()), StoreErrorKind::PowerCut);
    let again = disk.open();
    let held_again = again.lock(Hold::Exclusive).expect("the cut freed it");
    drop(held);
    assert_eq!(
        kind_of(again.lock(Hold::Exclusive)),
        StoreErrorKind::InUse,
        "the old lock frees nothing now"
    );
    drop(held_again);
}

#[test]
fn names_are_durable_but_removals_only_after_the_next_create_beside() {
    let after = |policy, then_create: bool| {
        let disk = MemDisk::new("disk", 1 << 20);
        let store = disk.open();
        store.create("chunks/old", 1).expect("a new file");
        store.remove("chunks/old").expect("a file to remove");
        store.create("elsewhere", 1).expect("a new file");
        if then_create {
            store.create("chunks/new", 1).expect("a new file");
        }
        disk.cut(policy);
        let names = disk.open().list("chunks").expect("names");
        names.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(after(CutPolicy::Drop, false), ["chunks/old"]);
    assert_eq!(after(CutPolicy::Keep, false), [""; 0]);
    assert_eq!(after(CutPolicy::Drop, true), ["chunks/new"]);
    let back = (0..64)
        .filter(|&seed| !after(CutPolicy::Reorder(seed), false).is_empty())
        .count();
    assert!((1..64).contains(&back), "{back} of 64 removals were undone");
}

#[test]
fn a_renamed_file_keeps_its_new_name_but_only_its_synced_bytes() {
    let disk = MemDisk::new("disk", 1 << 20);
    let store = disk.open();
    store.create("new", 4).expect("a new file");
    store.write_at("new", 0, b"sync").expect("room");
    store.sync("new").expect("durable");
    store.write_at("new", 0, b"lost").expect("room");
    store.create("f", 1).expect("a new file");
    store.rename("new", "f").expect("a file to rename");
    disk.cut(CutPolicy::Drop);
    assert_eq!(read(&disk.open(), "f"), b"sync");
    assert_eq!(disk.open().list("").expect("names").len(), 1);
}

#[test]
fn a_full_disk_refuses_without_a_trace_and_takes_bytes_again_after_space_came_free() {
    let disk = MemDisk::new("disk", 10 * 4096);
    let store = disk.open();
    assert_eq!(
        kind_of(store.create("big", 11 * 4096)),
        StoreErrorKind::NoSpace
    );
    assert_eq!(store.list("").expect("names"), []);
    store.create("f", 10 * 4096).expect("just fits");
    assert_eq!(store.space().expect("room").free_bytes, 0);
    store.write_at("f", 0, &[1; 4096]).expect("reserved");
    assert_eq!(kind_of(store.create("g", 1)), StoreErrorKind::NoSpace);
    store
        .punch("f", 4096, 2 * 4096 + 100)
        .expect("two whole blocks");
    assert_eq!(store.space().expect("room").free_bytes, 2 * 4096);
    store.truncate("f", 5 * 4096).expect("shorter");
    assert_eq!(store.space().expect("room").free_bytes, 7 * 4096);
    store.remove("f").expect("a file to remove");
    assert_eq!(store.space().expect("room").free_bytes, 10 * 4096);
    store.create("g", 0).expect("a new file");
    assert_eq!(
        kind_of(store.write_at("g", 0, &vec![1; 10 * 4096 + 1])),
        StoreErrorKind::NoSpace
    );
    assert_eq!(store.open_len("g").expect("its length"), 0);
}

#[test]
fn a_fork_goes_its_own_way() {
    let disk = half_synced();
    let fork = disk.fork();
    fork.open().write_at("f", 0, &[9; 10]).expect("room");
    disk.cut(CutPolicy::Drop);
    assert_eq!(read(&disk.open(), "f"), [1; 1024]);
    fork.cut(CutPolicy::Keep);
    assert_eq!(
        read(&fork.open(), "f")[..11],
        [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 2]
    );
}

#[test]
fn wiped_deleted_and_failing_disks_answer_as_such() {
    let disk = half_synced();
    let store = disk.open();
    disk.fail(Some(StoreErrorKind::Io));
    assert_eq!(kind_of(store.sync("f")), StoreErrorKind::Io);
    disk.fail(None);
    store.sync("f").expect("works again");
    disk.wipe();
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Gone);
    assert_eq!(disk.open().list("").expect("names"), []);
    disk.delete();
    assert_eq!(kind_of(disk.open().probe()), StoreErrorKind::Gone);
}

#[test]
fn corruption_outlives_syncs_and_cuts() {
    for policy in [CutPolicy::Keep, CutPolicy::Drop] {
        let disk = half_synced();
        assert!(disk.corrupt("f", 100, |bytes| bytes.fill(0xcc), 2));
        assert!(!disk.corrupt("f", 2047, |bytes| bytes.fill(0xcc), 2));
        assert!(!disk.corrupt("none", 0, |bytes| bytes.fill(0xcc), 1));
        assert_eq!(read(&disk.open(), "f")[99..103], [2, 0xcc, 0xcc, 2]);
        disk.cut(policy);
        assert_eq!(read(&disk.open(), "f")[100..102], [0xcc; 2], "{policy:?}");
    }
}

/// Random writes, holes and lengths against a plain vector, the durable state included.
#[test]
fn content_agrees_with_a_vector_of_bytes_under_random_changes() {
    use rand::{RngExt, SeedableRng};
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for round in 0..50 {
        let disk = MemDisk::new("disk", 1 << 30);
        let store = disk.open();
        store.create("f", 0).expect("a new file");
        let (mut now, mut synced) = (Vec::<u8>::new(), Vec::new());
        for step in 0..100_u8 {
            let (offset, len) = (random.random_range(0..20_000), random.random_range(0..9000));
            match random.random_range(0..5) {
                0 | 1 => {
                    store
                        .write_at("f", offset as u64, &vec![step; len])
                        .expect("room");
                    if len > 0 {
                        now.resize(now.len().max(offset + len), 0);
                        now[offset..offset + len].fill(step);
                    }
                }
                2 => {
                    store.punch("f", offset as u64, len as u64).expect("a hole");
                    let (from, to) = (offset.min(now.len()), (offset + len).min(now.len()));
                    now[from..to].fill(0);
                }
                3 => {
                    store.truncate("f", offset as u64).expect("a length");
                    now.resize(offset, 0);
                }
                _ => {
                    store.sync("f").expect("durable");
                    synced.clone_from(&now);
                }
            }
            assert_eq!(
                read(&store, "f"),
                now,
                "seed {seed} round {round} step {step}"
            );
        }
        disk.cut(CutPolicy::Drop);
        assert_eq!(read(&disk.open(), "f"), synced, "seed {seed} round {round}");
    }
}

#[test]
fn without_reservation_space_is_taken_by_writes() {
    let disk = MemDisk::new("disk", 16 << 10);
    let store = disk.open();
    assert!(store.space().expect("it answers").reserves);
    disk.stop_reserving();
    store.create("f", 64 << 10).expect("a sparse file");
    store.reserve("f", 0, 128 << 10).expect("nothing is taken");
    assert_eq!(store.open_len("f").expect("a file"), 128 << 10);
    let space = store.space().expect("it answers");
    assert_eq!((space.free_bytes, space.reserves), (16 << 10, false));
    store.write_at("f", 0, &[1; 16 << 10]).expect("room");
    let refused = store.write_at("f", 16 << 10, &[1]);
    assert_eq!(kind_of(refused), StoreErrorKind::NoSpace);
}
