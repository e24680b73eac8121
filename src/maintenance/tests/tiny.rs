//! Volumes on disks so small that metadata is much of what they hold.

use super::*;

/// Writes files of a block, each with a record as an inode has one, until there is no room.
fn fill_with_blocks(fs: &TestFs, model: &mut Model, first: u64) -> u64 {
    for file in first.. {
        let bytes = pattern(file, BLOCK_SIZE);
        let write = || -> Result<(), CommitError> {
            fs.transactions.growth().check_growth()?;
            fs.write(file, &bytes)?;
            let mut batch = Batch::default();
            batch.put(key::xattr(Ino(file), b"user.record"), pattern(file, 200));
            fs.transactions.apply(batch)
        };
        let mut written = write();
        if matches!(written, Err(CommitError::NoSpace))
            && matches!(fs.maintenance.room.make_room(4096, &NoLocks), Ok(true))
        {
            written = write();
        }
        match written {
            Ok(()) => model.insert(file, bytes),
            Err(CommitError::NoSpace) => return file - first,
            Err(error) => panic!("file {file}: {error}"),
        };
        if file % 32 == 0 {
            match fs.sync() {
                Ok(()) | Err(CommitError::NoSpace) => {}
                Err(error) => panic!("file {file}: {error}"),
            }
        }
    }
    unreachable!("no volume takes that many files");
}

/// Fills a volume, ends its use in one way or another, opens it, deletes some, and again.
fn assert_it_opens_however_full(size: u64, unit: usize, reserves: bool) {
    for closes in [true, false] {
        let context = format!("{size} bytes, unit {unit}, reserves: {reserves}, closes: {closes}");
        let rig = Rig::with_unit(2, 1, &[size; 3], unit);
        if !reserves {
            rig.disks.iter().for_each(MemDisk::stop_reserving);
        }
        let mut model = Model::new();
        for round in 0..2_u64 {
            let fs = rig.open(&[]);
            assert_holds(&fs, &model, &context);
            let fitted = fill_with_blocks(&fs, &mut model, round << 32);
            assert!(fitted > 10, "{context}, round {round}: {fitted}");
            fs.sync()
                .unwrap_or_else(|error| panic!("{context}, round {round}: {error}"));
            let gone: Vec<u64> = model.keys().copied().step_by(3).collect();
            if round == 1 {
                for file in &gone {
                    fs.remove(*file).unwrap();
                    model.insert(*file, Vec::new());
                }
                fs.sync().unwrap();
            }
            if closes {
                fs.close();
            } else {
                drop(fs);
                rig.cut(CutPolicy::Reorder(round));
            }
            let fs = rig.open(&[]);
            assert_eq!(
                fs.transactions.members().membership().live().len(),
                3,
                "{context}"
            );
            assert_holds(&fs, &model, &context);
            for file in gone {
                fs.remove(file).unwrap();
                model.insert(file, Vec::new());
            }
            fs.sync()
                .unwrap_or_else(|error| panic!("{context}, round {round}: {error}"));
            if closes {
                fs.close();
            } else {
                drop(fs);
                rig.cut(CutPolicy::Drop);
            }
        }
    }
}

#[test]
fn a_tiny_volume_full_of_small_files_is_opened_again() {
    for size in [8, 12] {
        assert_it_opens_however_full(size << 20, UNIT, true);
    }
}

#[test]
fn a_tiny_volume_full_of_small_files_is_opened_again_with_full_sized_stripes() {
    for size in [16, 20] {
        assert_it_opens_however_full(size << 20, 1 << 20, true);
    }
}

#[test]
fn a_tiny_volume_full_of_small_files_is_opened_again_where_nothing_is_reserved() {
    for (size, unit) in [(8, UNIT), (20, 1 << 20)] {
        assert_it_opens_however_full(size << 20, unit, false);
    }
}
