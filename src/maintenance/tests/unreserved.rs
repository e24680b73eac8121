//! Filesystems on which nothing can be reserved: what was accepted is flushed nevertheless.

use super::full::fill_up;
use super::*;

const SIZE: u64 = 12 << 20;

/// A volume on disks that take space only when bytes are written.
fn rig(data: usize, parity: usize, count: usize) -> Rig {
    let rig = Rig::with_disks(data, parity, &vec![SIZE; count]);
    rig.disks.iter().for_each(MemDisk::stop_reserving);
    rig
}

/// Others take everything that is free now, and all but `left` bytes of what comes free later.
fn others_fill(disk: &MemDisk, left: i64) {
    let space = disk.open().space().unwrap();
    let used = space.total_bytes - space.free_bytes;
    disk.set_capacity(used.saturating_add_signed(left));
}

/// Returns the bytes that a disk keeps back for stripes.
fn kept(disk: &MemDisk) -> u64 {
    disk.open().open_len(files::DATA_BALLAST).unwrap_or(0)
}

#[test]
fn a_volume_takes_and_keeps_the_bytes_that_it_promises_where_nothing_is_reserved() {
    for (data, parity, count) in [(1, 1, 2), (2, 1, 3), (2, 1, 5), (4, 2, 6)] {
        let context = format!("{data}+{parity} of {count}");
        let rig = rig(data, parity, count);
        let fs = rig.open(&[]);
        // The limits of the disks are not known until a file is made.
        fs.write(1 << 40, &pattern(1, 10)).unwrap();
        let promised = fs.transactions.space();
        let mut model = Model::new();
        let stored = fill_up(&fs, &mut model, 0, 50_000) * 50_000;
        assert!(
            stored * 100 >= promised.usable_free * 93,
            "{context}: {stored} bytes stored of {promised:?}"
        );
        fs.sync().unwrap();
        assert_holds(&fs, &model, &context);
        assert_eq!(fs.redundancy().len(), 1, "{context}: {:?}", fs.redundancy());
        let gone = model.len() as u64 / 2;
        for file in 0..gone {
            fs.remove(file).unwrap();
            model.insert(file, Vec::new());
        }
        let mut again = 0;
        while fs.maintenance.room.make_room(50_000, &NoLocks).unwrap() {
            again += fill_up(&fs, &mut model, (1 << 32) + again, 50_000);
        }
        assert!(again * 10 >= gone * 8, "{context}: {again} of {gone}");
        fs.close();
        for lost in subsets(count, 1) {
            let fs = rig.fork().open(&lost);
            assert_holds(&fs, &model, &format!("{context}, lost {lost:?}"));
        }
    }
}

/// Bytes in buffers have a place by the space kept back for them.
#[test]
fn writes_accepted_before_others_filled_the_disks_become_durable() {
    let rig = rig(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    let write = |model: &mut Model, file, len| {
        model.insert(file, pattern(file, len));
        fs.write(file, &model[&file])
    };
    write(&mut model, 1, 100_000).unwrap();
    fs.transactions.checkpoint().unwrap();
    assert!(rig.disks.iter().all(|disk| kept(disk) > 0));
    for file in 2..8 {
        // Too much for the journal, and not enough for all buffers: it is flushed by the next commit.
        write(&mut model, file, 30_000).unwrap();
    }
    rig.disks.iter().for_each(|disk| others_fill(disk, 0));
    fs.sync().unwrap();
    assert_holds(&fs, &model, "full");
    let mut refused = 0;
    for file in 100..140 {
        let bytes = pattern(file, 30_000);
        match fs.write(file, &bytes) {
            Ok(()) => model.insert(file, bytes),
            Err(CommitError::NoSpace) => {
                refused += 1;
                None
            }
            Err(error) => panic!("file {file}: {error}"),
        };
    }
    assert!(refused > 10, "{refused} of 40 were refused");
    fs.sync().unwrap();
    for file in [1, 2] {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    fs.sync().unwrap();
    assert_holds(&fs, &model, "some removed");
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for lost in subsets(3, 1) {
        assert_holds(&rig.fork().open(&lost), &model, &format!("lost {lost:?}"));
    }
    rig.disks.iter().for_each(|disk| disk.set_capacity(SIZE));
    let fs = rig.open(&[]);
    fs.write(200, &pattern(200, 100_000)).unwrap();
    assert!(rig.disks.iter().all(|disk| kept(disk) > 0));
    fs.close();
}

/// Fills the disks so that not even what is kept back is of use, with bytes of files 2 and 3 in memory
/// only.
fn stuck(rig: &Rig) -> (TestFs, Model) {
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for (file, len) in [(1, 100_000), (2, 150_000), (3, 50_000)] {
        model.insert(file, pattern(file, len));
        fs.write(file, &model[&file]).unwrap();
        if file == 1 {
            fs.transactions.checkpoint().unwrap();
        }
    }
    for disk in &rig.disks {
        others_fill(disk, -(kept(disk) as i64));
    }
    for _ in 0..3 {
        let synced = fs.sync();
        assert!(matches!(synced, Err(CommitError::NoSpace)), "{synced:?}");
    }
    assert_holds(&fs, &model, "stuck");
    let refused = fs.write(4, &pattern(4, 100_000));
    assert!(matches!(refused, Err(CommitError::NoSpace)), "{refused:?}");
    assert!(matches!(
        fs.transactions.growth().check_growth(),
        Err(CommitError::NoSpace)
    ));
    (fs, model)
}

/// Tries it with every single disk lost; if one is `lacking` something already, with that one.
fn assert_durable(rig: &Rig, fs: TestFs, model: &Model, lacking: &[usize]) {
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for lost in subsets(rig.disks.len(), 1) {
        if !lacking.is_empty() && lost != lacking {
            continue;
        }
        let fs = rig.fork().open(&lost);
        assert_holds(&fs, model, &format!("cut, lost {lost:?}"));
    }
}

#[test]
fn stripes_that_found_no_space_are_flushed_once_others_leave_some() {
    let rig = rig(2, 1, 3);
    let (fs, mut model) = stuck(&rig);
    rig.disks.iter().for_each(|disk| disk.set_capacity(SIZE));
    fs.sync().unwrap();
    model.insert(5, pattern(5, 100_000));
    fs.write(5, &model[&5]).unwrap();
    fs.sync().unwrap();
    assert_durable(&rig, fs, &model, &[]);
}

#[test]
fn removing_files_that_cannot_be_flushed_lets_all_others_become_durable() {
    let rig = rig(2, 1, 3);
    let (fs, mut model) = stuck(&rig);
    for file in [2, 3] {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    fs.sync().unwrap();
    fs.remove(1).unwrap();
    model.insert(1, Vec::new());
    fs.sync().unwrap();
    assert_durable(&rig, fs, &model, &[]);
}

/// A full member costs the stripe a shard, and no caller an error, while `data_shards` others take theirs.
#[test]
fn one_member_that_others_filled_keeps_no_stripe_from_being_flushed() {
    let rig = rig(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 1..4 {
        model.insert(file, pattern(file, 200_000));
        fs.write(file, &model[&file]).unwrap();
        let disk = &rig.disks[1];
        others_fill(disk, -(kept(disk) as i64));
        fs.sync().unwrap();
        disk.set_capacity(SIZE);
    }
    assert_durable(&rig, fs, &model, &[1]);
}
