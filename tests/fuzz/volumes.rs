//! The volumes that cases begin with: small real ones, kept in the corpus, and how they were made.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::Duration;

use super::cage;
use super::image::Image;
use super::raw::{self, Copy};
use super::run::Arena;
use super::tree::{self, Tree};

/// The way in which a volume of the corpus was made, and its bytes.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    data: usize,
    parity: usize,
    /// True if the last member missed what was written last.
    is_degraded: bool,
    /// True if it was unmounted in order, so that nothing is in the journal only.
    is_clean: bool,
    packed: &'static [u8],
}

pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        name: "one-one-clean",
        data: 1,
        parity: 1,
        is_degraded: false,
        is_clean: true,
        packed: include_bytes!("corpus/one-one-clean"),
    },
    Kind {
        name: "two-one-crashed",
        data: 2,
        parity: 1,
        is_degraded: false,
        is_clean: false,
        packed: include_bytes!("corpus/two-one-crashed"),
    },
    Kind {
        name: "four-two-degraded",
        data: 4,
        parity: 2,
        is_degraded: true,
        is_clean: false,
        packed: include_bytes!("corpus/four-two-degraded"),
    },
];

/// A volume that cases begin with.
pub(crate) struct Base {
    pub(crate) name: &'static str,
    pub(crate) image: Image,
    /// Members that may still be damaged without loss.
    pub(crate) spare: usize,
    /// Held for writing while a case of it is mounted: beside that mount, other cases would pass for branches of one volume.
    pub(crate) mounted_once: RwLock<()>,
    /// The records of its metadata.
    pub(crate) entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Files that `extract` makes of it.
    pub(crate) extracted: Tree,
    /// Files that a mount shows of it.
    pub(crate) mounted: Tree,
}

impl Base {
    /// Unpacks a volume of the corpus, and sees what the binary makes of it while it is sound.
    pub(crate) fn load(kind: &Kind, home: &Path) -> Self {
        let image = Image::unpack(kind.packed);
        let mut base = Self {
            name: kind.name,
            spare: kind.parity - usize::from(kind.is_degraded),
            mounted_once: RwLock::new(()),
            entries: entries_of(&image),
            image,
            extracted: Tree::new(),
            mounted: Tree::new(),
        };
        let arena = Arena::new(&home.join(format!("base-{}", kind.name)), &base);
        (base.extracted, base.mounted) = arena.look(&base.image);
        assert!(
            base.extracted.len() > 100,
            "{}: {:?}",
            base.name,
            base.extracted
        );
        assert!(
            base.mounted.len() > 100,
            "{}: {:?}",
            base.name,
            base.mounted
        );
        base
    }

    pub(crate) fn members(&self) -> usize {
        self.image.0.len()
    }
}

/// Returns the records of the newest index, and those that journals add to it.
fn entries_of(image: &Image) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let newest = (0..image.0.len())
        .filter_map(|member| Copy::read(image.file(member, "index")?))
        .max_by_key(|copy| raw::u64_at(&copy.head, 32))
        .expect("a volume has an index");
    let mut entries = newest.entries().expect("the index can be read");
    let mut records: Vec<_> = ["journal.0", "journal.1"]
        .iter()
        .filter_map(|name| image.file(0, name))
        .flat_map(raw::records)
        .map(|(_, record)| record)
        .collect();
    records.sort_by_key(|record| (record.generation(), record.lsn()));
    let newest = records.last().map_or(0, raw::Record::generation);
    for record in records
        .iter()
        .filter(|record| record.generation() == newest)
    {
        for (key, value) in &record.entries {
            match value {
                Some(value) => entries.insert(key.clone(), value.clone()),
                None => entries.remove(key),
            };
        }
    }
    entries
}

/// Makes a volume of the corpus with the binary, and returns its packed bytes.
pub(crate) fn make(kind: &Kind, home: &Path) -> Vec<u8> {
    let total = kind.data + kind.parity;
    let directories: Vec<PathBuf> = (0..total)
        .map(|number| home.join(format!("d{number}")))
        .collect();
    let (mountpoint, logs) = (home.join("mnt"), home.join("logs"));
    fs::create_dir_all(&mountpoint).unwrap();
    let run = |words: &[&str], paths: &[&Path]| {
        let mut arguments: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
        arguments.extend(paths.iter().map(|path| path.to_path_buf()));
        let ended = cage::start(&cage::binary(), &arguments, &logs).wait();
        assert!(matches!(ended.code(), Some(0 | 3)), "{ended:?}");
    };
    let all: Vec<&Path> = directories.iter().map(PathBuf::as_path).collect();
    let (data, parity) = (kind.data.to_string(), kind.parity.to_string());
    run(
        &[
            "create",
            "--data",
            &data,
            "--parity",
            &parity,
            "--label",
            "fuzz",
            "--segment-size",
            "256KiB",
            "--stripe-unit",
            "4KiB",
        ],
        &all,
    );
    let mount = |members: &[&Path]| run(&["mount"], &[members, &[&mountpoint]].concat());
    mount(&all);
    write_first(&mountpoint);
    // Stripes reach the members within five seconds.
    std::thread::sleep(Duration::from_secs(7));
    if kind.is_degraded {
        run(&["unmount"], &[&mountpoint]);
        mount(&all[..total - 1]);
    }
    write_last(&mountpoint);
    if kind.is_clean {
        run(&["unmount"], &[&mountpoint]);
    }
    // The daemon still runs otherwise: what was acknowledged is on the members, as after a crash.
    let image = Image::read(&directories, false).unwrap();
    if !kind.is_clean {
        run(&["unmount"], &[&mountpoint]);
    }
    let packed = image.pack();
    assert_eq!(Image::unpack(&packed).pack(), packed);
    packed
}

/// Bytes that tell file and block, and are mostly zeros.
fn content(file: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        let mark = format!("file {file} block {number}.");
        let len = mark.len().min(block.len());
        block[..len].copy_from_slice(&mark.as_bytes()[..len]);
    }
    bytes
}

/// Writes files of every kind.
fn write_first(root: &Path) {
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..120u8 {
        fs::write(
            many.join(format!("entry-{number:03}")),
            content(number, usize::from(number)),
        )
        .unwrap();
    }
    let deep = root.join("a/b/c/d");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("stripes"), content(200, 300_000)).unwrap();
    fs::hard_link(deep.join("stripes"), root.join("linked")).unwrap();
    symlink("a/b/c/d/stripes", root.join("symbolic")).unwrap();
    symlink("../..", root.join("a/b/up")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&content(201, 20_000), 1 << 30).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let odd = root.join(std::ffi::OsStr::from_bytes(b"odd \xff\x1b[2J\n"));
    fs::write(odd, content(202, 9_000)).unwrap();
    fs::write(root.join("setuid"), content(203, 5_000)).unwrap();
    fs::set_permissions(root.join("setuid"), Permissions::from_mode(0o6755)).unwrap();
    let attributed = root.join("attributed");
    fs::write(&attributed, content(204, 100)).unwrap();
    for (name, len) in [("user.short", 5), ("user.long", 3_000)] {
        rustix::fs::setxattr(
            &attributed,
            name,
            &content(205, len),
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), 0o600.into()).unwrap();
    sync(root);
}

/// Writes more, some of it over what is there, and makes it durable.
fn write_last(root: &Path) {
    let mut stripes = OpenOptions::new()
        .append(true)
        .open(root.join("linked"))
        .unwrap();
    stripes.write_all(&content(206, 50_000)).unwrap();
    fs::remove_file(root.join("many/entry-007")).unwrap();
    fs::rename(root.join("many/entry-008"), root.join("renamed")).unwrap();
    fs::write(root.join("journaled"), content(207, 30_000)).unwrap();
    sync(root);
}

fn sync(root: &Path) {
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            File::open(entry.path()).unwrap().sync_all().unwrap();
        }
    }
    File::open(root.join("a/b/c/d/stripes"))
        .unwrap()
        .sync_all()
        .unwrap();
    File::open(root.join("many")).unwrap().sync_all().unwrap();
}

/// Returns the tree of a directory without the directories that a mount has of its own.
pub(crate) fn tree_of(root: &Path) -> Tree {
    tree::list(root, &[])
}
