//! Files that another program replaces while the volume has them open, in directories of the running system.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::format::SegmentId;
use crate::membership::directory;

/// The directories of a 4+2 volume.
struct Directories {
    home: tempfile::TempDir,
}

impl Directories {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let directories = Self { home };
        for index in 0..6 {
            fs::create_dir(directories.path(index)).unwrap();
        }
        let mut options = CreateOptions::new(Geometry::new(4, 2).unwrap());
        options.unit_bytes = UNIT as u32;
        options.segment_bytes = 8 * UNIT as u64;
        Transactions::create(&directories.stores(), &options, executor()).unwrap();
        directories
    }

    fn path(&self, index: usize) -> PathBuf {
        self.home.path().join(index.to_string())
    }

    fn stores(&self) -> Vec<StoreRef> {
        let open = |index| Arc::new(directory::open(self.path(index)).unwrap()) as StoreRef;
        (0..6).map(open).collect()
    }

    fn open(&self, access: Access) -> TestFs {
        TestFs::open(self.stores(), access).unwrap()
    }

    /// Returns what the directories hold under the names of all written shards.
    fn shards(&self, fs: &TestFs) -> Vec<(StripeId, ShardIndex, Vec<u8>)> {
        let bytes = |written: &WrittenShard| {
            let file = fs::read(self.path(written.disk).join(&written.name)).unwrap_or_default();
            let from = (written.offset as usize).min(file.len());
            let end = (from + written.height).min(file.len());
            (written.stripe, written.shard, file[from..end].to_vec())
        };
        fs.written_shards().iter().map(bytes).collect()
    }

    /// Returns the names of the segment files that two members have.
    fn common(&self, one: usize, other: usize) -> Vec<String> {
        let names = |index| -> BTreeSet<String> {
            let entries = fs::read_dir(self.path(index).join(files::SEGMENTS)).unwrap();
            let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let name = |entry| name(entry).into_string().unwrap();
            entries.map(name).collect()
        };
        let (one, other) = (names(one), names(other));
        let common = one.intersection(&other);
        common
            .map(|name| format!("{}/{name}", files::SEGMENTS))
            .collect()
    }
}

/// Exchanges two files.
fn exchange(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(aside, other).unwrap();
}

/// Puts a changed copy of a file in its place.
fn put_copy(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    let copy = path.with_extension("copy");
    fs::write(&copy, bytes).unwrap();
    fs::rename(copy, path).unwrap();
}

/// A way to replace files of the members 0 and 3.
#[derive(Clone, Copy, Debug)]
enum Way {
    Exchange,
    OlderCopy,
    ShorterCopy,
    Recreation,
    Move,
    Superblocks,
}

impl Way {
    fn replace(self, directories: &Directories) {
        let (one, other) = (directories.path(0), directories.path(3));
        if matches!(self, Self::Superblocks) {
            exchange(&one.join(files::SUPERBLOCK), &other.join(files::SUPERBLOCK));
            return;
        }
        for name in directories.common(0, 3) {
            let paths = [one.join(&name), other.join(&name)];
            match self {
                Self::Exchange => exchange(&paths[0], &paths[1]),
                Self::OlderCopy => paths.iter().for_each(|path| {
                    put_copy(path, |bytes| {
                        let half = bytes.len() / 2;
                        bytes[half..].fill(0);
                    });
                }),
                Self::ShorterCopy => paths.iter().for_each(|path| {
                    put_copy(path, |bytes| bytes.truncate(bytes.len() / 2));
                }),
                Self::Recreation => paths.iter().for_each(|path| {
                    let len = fs::metadata(path).unwrap().len() as usize;
                    fs::remove_file(path).unwrap();
                    fs::write(path, vec![0; len]).unwrap();
                }),
                Self::Move => paths.iter().for_each(|path| {
                    fs::rename(path, path.with_extension("aside")).unwrap();
                }),
                Self::Superblocks => unreachable!("done above"),
            }
        }
    }
}

/// Every file is open before, and would answer as if nothing had happened.
#[test]
fn files_that_were_replaced_while_open_are_repaired_under_their_names() {
    for way in [
        Way::Exchange,
        Way::OlderCopy,
        Way::ShorterCopy,
        Way::Recreation,
        Way::Move,
        Way::Superblocks,
    ] {
        let directories = Directories::new();
        let fs = directories.open(Access::ReadWrite);
        let mut model = Model::new();
        for (file, len) in [(1, 150_000), (2, 5_000), (3, 300_000)] {
            let bytes = pattern(file, len);
            fs.write(file, &bytes).unwrap();
            model.insert(file, bytes);
        }
        fs.close();
        let fs = directories.open(Access::ReadWrite);
        let first = scrub(&fs);
        assert!(first.is_clean(), "{way:?}: {first:?}");
        let whole = directories.shards(&fs);
        way.replace(&directories);
        let done = scrub(&fs);
        assert!(
            done.is_clean() && done.record.repaired > 0,
            "{way:?}: {done:?}"
        );
        assert!(directories.shards(&fs) == whole, "{way:?}");
        assert_holds(&fs, &model, &format!("{way:?}"));
        let again = scrub(&fs);
        assert_eq!(again.record.repaired, 0, "{way:?}: {again:?}");
        fs.close();
        let fs = directories.open(Access::ReadOnly);
        let read = fs.maintenance.scrubber.read_all_shards(|_, _| ()).unwrap();
        assert_eq!(read.wrong, [], "{way:?}");
        assert_eq!(fs.redundancy()[0].0, 2, "{way:?}");
    }
}

/// A sync by name would make the wrong files durable.
#[test]
fn shards_that_were_not_synced_into_a_replaced_file_count_as_lost_until_they_are_rebuilt() {
    let directories = Directories::new();
    let fs = directories.open(Access::ReadWrite);
    let bytes = pattern(1, 3 * 4 * UNIT);
    fs.write(1, &bytes).unwrap();
    let writer = fs.transactions.stripes.writer();
    writer.wait_flushed().unwrap();
    let written = fs.written_shards();
    let newest = newest_segment(&fs);
    let name = files::segment(newest);
    exchange(
        &directories.path(0).join(&name),
        &directories.path(3).join(&name),
    );
    writer.close_replaced_files(newest);
    let lost = writer.sync().unwrap();
    let is_lost = |written: &&WrittenShard| [0, 3].contains(&written.disk);
    let expected: BTreeSet<_> = written
        .iter()
        .filter(is_lost)
        .map(|written| (written.stripe, written.shard))
        .collect();
    let found: BTreeSet<_> = lost.iter().map(|lost| (lost.stripe, lost.shard)).collect();
    assert!(!expected.is_empty());
    assert_eq!(found, expected);

    writer.close_replaced_files(newest);
    assert_eq!(writer.sync().unwrap(), [], "they are reported once");
    fs.write(2, &pattern(2, 4 * UNIT)).unwrap();
    writer.wait_flushed().unwrap();
    assert!(newest_segment(&fs) > newest, "no stripe follows there");
}

/// The same through the whole way: a scrub finds the replacement, a commit takes the shards out of their records.
#[test]
fn files_that_were_exchanged_while_they_were_written_hold_every_shard_in_the_end() {
    let directories = Directories::new();
    let fs = directories.open(Access::ReadWrite);
    let mut model = Model::new();
    let mut write = |fs: &TestFs, file: u64| {
        let bytes = pattern(file, 3 * 4 * UNIT + 100);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    };
    write(&fs, 1);
    fs.sync().unwrap();
    write(&fs, 2);
    fs.transactions.stripes.writer().wait_flushed().unwrap();
    Way::Exchange.replace(&directories);
    scrub(&fs);
    write(&fs, 3);
    fs.sync().unwrap();
    fs.rebuild().unwrap();
    let done = scrub(&fs);
    assert!(done.is_clean(), "{done:?}");
    assert_holds(&fs, &model, "exchanged");
    assert_eq!(fs.redundancy()[0].0, 2);
    fs.close();
    let fs = directories.open(Access::ReadOnly);
    let read = fs.maintenance.scrubber.read_all_shards(|_, _| ()).unwrap();
    assert_eq!(read.wrong, []);
    assert_holds(&fs, &model, "opened again");
}

fn newest_segment(fs: &TestFs) -> SegmentId {
    let records = fs.transactions.stripes.segments().records().into_iter();
    records.map(|(id, _)| id).max().unwrap()
}
