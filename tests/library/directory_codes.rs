//! Codes of directories: what inherits them, and that every write of a file goes to stripes of its code.

use std::collections::BTreeSet;
use std::sync::Arc;

use cauchyfs::codec::{CodeId, Geometry};
use cauchyfs::format::record::{Extent, Inode, Segment};
use cauchyfs::format::{Ino, Record, StripeClass, key};
use cauchyfs::fs::{Fs, FsError, FsOptions, OpenFlags, OwnCode, RenameMode};
use cauchyfs::maintenance::{Maintenance, Pace, RebuildScope};
use cauchyfs::metadata::{Batch, Key, Value};
use cauchyfs::store::MemDisk;
use cauchyfs_testkit::pattern;

use crate::calls::{ROOT, exclusive, read, sound, write};
use crate::volume;

fn class_for(fs: &Fs, data: usize, parity: usize) -> StripeClass {
    let geometry = Geometry::new(data, parity).unwrap();
    let class = fs.transactions().class_for(geometry, CodeId::RS_CAUCHY);
    class.unwrap()
}

fn mkdir(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let made = fs.names().mkdir(ROOT, parent, name.as_bytes(), 0o755);
    made.unwrap().ino
}

fn class_of(fs: &Fs, ino: Ino) -> StripeClass {
    let value = fs.transactions().get(&key::inode(ino)).unwrap().unwrap();
    Inode::decode(&value).unwrap().class
}

/// Makes a file with these bytes.
fn put(fs: &Fs, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
    let made = fs
        .names()
        .create(ROOT, parent, name.as_bytes(), 0o644, exclusive());
    let (attr, handle) = made.unwrap();
    write(fs, handle, 0, bytes).unwrap();
    fs.open_files().release(handle).unwrap();
    attr.ino
}

/// Returns the bytes of files that lie in stripes of a class, once all are on members.
fn bytes_by_class(maintenance: &Maintenance, fs: &Fs, class: StripeClass) -> u64 {
    fs.transactions().checkpoint().unwrap();
    let counted = maintenance.redundancy().redundancy().unwrap();
    let segments = fs.transactions().segments().into_iter();
    let of_class = segments.filter(|(_, record)| record.class == class);
    of_class
        .filter_map(|(segment, _)| counted.live.get(&segment))
        .sum()
}

fn rebuild(maintenance: &Maintenance, fs: &Fs) {
    let rate = std::sync::atomic::AtomicU64::new(0);
    let pace = Pace {
        bytes_per_second: &rate,
        wait: &|_| true,
    };
    let rebuild = maintenance.rebuild();
    rebuild
        .run(RebuildScope::Everything, &*fs.inode_locks(), &pace)
        .unwrap();
}

fn opened(disks: &[MemDisk]) -> (Arc<Maintenance>, Arc<Fs>) {
    let maintenance = volume::open(disks, 0);
    let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
    (maintenance, fs)
}

#[test]
fn what_is_made_below_a_directory_inherits_its_code_and_what_was_there_keeps_its_own() {
    let disks = volume::disks(6, 2, 2);
    let (maintenance, fs) = opened(&disks);
    let (thin, wide) = (class_for(&fs, 5, 1), class_for(&fs, 3, 2));
    let top = mkdir(&fs, Ino::ROOT, "top");
    let inner = mkdir(&fs, top, "inner");
    let other = mkdir(&fs, top, "other");
    let below_other = mkdir(&fs, other, "below");
    let before = put(&fs, inner, "before", b"before");
    fs.directory_codes().set(other, wide, false).unwrap();
    fs.directory_codes().set(top, thin, false).unwrap();
    let classes =
        |inos: &[Ino]| -> Vec<StripeClass> { inos.iter().map(|ino| class_of(&fs, *ino)).collect() };
    assert_eq!(
        classes(&[top, inner, before]),
        [thin, thin, StripeClass::VOLUME]
    );
    assert_eq!(
        classes(&[other, below_other]),
        [wide, wide],
        "it was set apart"
    );
    let made = [
        put(&fs, inner, "made", b"made"),
        mkdir(&fs, inner, "made too"),
    ];
    assert_eq!(classes(&made), [thin, thin]);
    // A file keeps its code where it goes.
    let moved = fs
        .names()
        .rename(ROOT, inner, b"made", other, b"made", RenameMode::Replace);
    moved.unwrap();
    assert_eq!(classes(&made[..1]), [thin]);
    assert_eq!(class_of(&fs, Ino::ROOT), StripeClass::VOLUME);
    fs.directory_codes()
        .set(top, StripeClass::VOLUME, false)
        .unwrap();
    assert_eq!(classes(&[top, inner]), [StripeClass::VOLUME; 2]);
    drop(fs);
    maintenance.close().unwrap();
    drop(maintenance);
    let (_maintenance, fs) = opened(&disks);
    assert_eq!(class_of(&fs, below_other), wide, "after another opening");
    assert_eq!(fs.directory_codes().get(below_other).unwrap(), wide);
}

/// Returns the classes of the stripes in which the bytes of a file lie.
fn classes_of_stripes(fs: &Fs, ino: Ino) -> BTreeSet<StripeClass> {
    let (from, end) = key::extents_from(ino, 0);
    let extents = fs.transactions().scan(&from, &end, usize::MAX).unwrap();
    let class = |(_, value): (Key, Value)| {
        let extent = Extent::decode(&value).unwrap();
        let stripe = fs.transactions().stripe(extent.stripe).unwrap().unwrap();
        let record = fs.transactions().get(&key::segment(stripe.segment));
        Segment::decode(&record.unwrap().unwrap()).unwrap().class
    };
    extents.into_iter().map(class).collect()
}

#[test]
fn everything_that_is_made_in_a_directory_has_its_code_and_a_link_keeps_that_of_its_file() {
    let disks = volume::disks(6, 2, 2);
    let (_maintenance, fs) = opened(&disks);
    let thin = class_for(&fs, 5, 1);
    let (plain, special) = (
        mkdir(&fs, Ino::ROOT, "plain"),
        mkdir(&fs, Ino::ROOT, "special"),
    );
    fs.directory_codes().set(special, thin, false).unwrap();
    let names = fs.names();
    let node = |mode: u32, name: &[u8]| names.mknod(ROOT, special, name, mode | 0o600, 0);
    let made = [
        node(libc::S_IFREG, b"file"),
        node(libc::S_IFIFO, b"fifo"),
        node(libc::S_IFSOCK, b"socket"),
        names.symlink(ROOT, special, b"symbolic", &[b'x'; 3000]),
    ];
    for made in made {
        let ino = made.unwrap().ino;
        assert_eq!(class_of(&fs, ino), thin, "inode {ino}");
    }
    // A file without a name has the code of its directory, also once it gets a name elsewhere.
    let bytes = pattern(1, 100_000);
    let (attr, handle) = names
        .tmpfile(ROOT, special, 0o600, OpenFlags::read_write())
        .unwrap();
    write(&fs, handle, 0, &bytes).unwrap();
    names.link(attr.ino, plain, b"linked").unwrap();
    write(&fs, handle, 100_000, &bytes).unwrap();
    assert_eq!(class_of(&fs, attr.ino), thin);
    let (other, other_handle) = names
        .tmpfile(ROOT, plain, 0o600, OpenFlags::read_write())
        .unwrap();
    names.link(other.ino, special, b"linked").unwrap();
    write(&fs, other_handle, 0, &bytes).unwrap();
    // A further name changes nothing for a file that has one.
    let old = put(&fs, plain, "old", &bytes);
    names.link(old, special, b"old too").unwrap();
    let opened = fs.open_files().open(ROOT, old, OpenFlags::read_write());
    write(&fs, opened.unwrap(), 100_000, &bytes).unwrap();
    fs.transactions().checkpoint().unwrap();
    assert_eq!(classes_of_stripes(&fs, attr.ino), BTreeSet::from([thin]));
    let of_volume = BTreeSet::from([StripeClass::VOLUME]);
    for ino in [other.ino, old] {
        assert_eq!(class_of(&fs, ino), StripeClass::VOLUME);
        assert_eq!(classes_of_stripes(&fs, ino), of_volume);
    }
    assert_eq!(read(&fs, handle, 100_000, bytes.len()), bytes);
    sound(&fs);
}

#[test]
fn what_is_renamed_into_a_directory_or_out_of_it_keeps_its_code() {
    let disks = volume::disks(6, 2, 2);
    let (_maintenance, fs) = opened(&disks);
    let thin = class_for(&fs, 5, 1);
    let (plain, special) = (
        mkdir(&fs, Ino::ROOT, "plain"),
        mkdir(&fs, Ino::ROOT, "special"),
    );
    fs.directory_codes().set(special, thin, false).unwrap();
    let bytes = pattern(1, 100_000);
    let (into, out) = (mkdir(&fs, plain, "into"), mkdir(&fs, special, "out"));
    let (file_into, file_out) = (
        put(&fs, plain, "file into", &bytes),
        put(&fs, special, "file out", &bytes),
    );
    let (one, other) = (
        put(&fs, plain, "exchanged", &bytes),
        put(&fs, special, "exchanged", &bytes),
    );
    let rename = |from, to, name: &[u8], mode| {
        let renamed = fs.names().rename(ROOT, from, name, to, name, mode);
        renamed.unwrap();
    };
    rename(plain, special, b"into", RenameMode::Replace);
    rename(special, plain, b"out", RenameMode::NoReplace);
    rename(plain, special, b"file into", RenameMode::Replace);
    rename(special, plain, b"file out", RenameMode::Whiteout);
    rename(plain, special, b"exchanged", RenameMode::Exchange);
    // New files in a directory that was moved have the code of that directory.
    let (below_into, below_out) = (
        put(&fs, into, "below", &bytes),
        put(&fs, out, "below", &bytes),
    );
    let whiteout = fs.names().lookup(special, b"file out").unwrap().ino;
    for ino in [into, file_into, one, below_into] {
        assert_eq!(class_of(&fs, ino), StripeClass::VOLUME, "inode {ino}");
    }
    for ino in [out, file_out, other, below_out, whiteout] {
        assert_eq!(class_of(&fs, ino), thin, "inode {ino}");
    }
    // Bytes that are added go where the others are.
    for ino in [file_into, file_out] {
        let opened = fs.open_files().open(ROOT, ino, OpenFlags::read_write());
        write(&fs, opened.unwrap(), 100_000, &bytes).unwrap();
    }
    fs.transactions().checkpoint().unwrap();
    for ino in [file_into, one, below_into, file_out, other, below_out] {
        let class = class_of(&fs, ino);
        let found = classes_of_stripes(&fs, ino);
        assert_eq!(found, BTreeSet::from([class]), "inode {ino}");
    }
    // Those that were moved are the ones with codes that others about them do not have.
    let path = |path: &str| Some(path.as_bytes().to_vec());
    let own = |directory, at, class| OwnCode {
        directory,
        path: path(at),
        class,
    };
    let mut listed = fs.directory_codes().list(9).unwrap();
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(
        listed,
        [
            own(out, "plain/out", thin),
            own(special, "special", thin),
            own(into, "special/into", StripeClass::VOLUME),
        ]
    );
    fs.directory_codes().set(Ino::ROOT, thin, false).unwrap();
    fs.names().rmdir(special, b"into").unwrap_err();
    fs.names().unlink(into, b"below").unwrap();
    fs.names().rmdir(special, b"into").unwrap();
    let listed = fs.directory_codes().list(9).unwrap();
    assert_eq!(listed, [own(Ino::ROOT, "", thin)], "all have it now");
    sound(&fs);
}

#[test]
fn bytes_of_every_kind_of_write_go_to_stripes_of_the_code_of_their_file() {
    let disks = volume::disks(6, 2, 2);
    let (maintenance, fs) = opened(&disks);
    let thin = class_for(&fs, 5, 1);
    let (plain, special) = (
        mkdir(&fs, Ino::ROOT, "plain"),
        mkdir(&fs, Ino::ROOT, "special"),
    );
    fs.directory_codes().set(special, thin, false).unwrap();
    // Large, small beyond the record, and out of the record into a stripe.
    let large = pattern(1, 700_000);
    put(&fs, special, "large", &large);
    let file = put(&fs, special, "small", &[7; 2000]);
    let handle = fs
        .open_files()
        .open(ROOT, file, OpenFlags::read_write())
        .unwrap();
    write(&fs, handle, 2000, &[8; 2000]).unwrap();
    fs.open_files().release(handle).unwrap();
    assert!(bytes_by_class(&maintenance, &fs, thin) >= 704_000);
    assert_eq!(bytes_by_class(&maintenance, &fs, StripeClass::VOLUME), 0);
    // A copy does not share stripes of another code.
    let from = fs.names().lookup(special, b"large").unwrap().ino;
    let source = fs
        .open_files()
        .open(ROOT, from, OpenFlags::read_write())
        .unwrap();
    let (attr, target) = fs
        .names()
        .create(ROOT, plain, b"copy", 0o644, exclusive())
        .unwrap();
    let shared = fs
        .writer()
        .copy_range(ROOT, source, 0, target, 0, large.len() as u64);
    assert!(matches!(shared, Err(FsError::Unsupported)), "{shared:?}");
    let little = fs.writer().copy_range(ROOT, source, 0, target, 0, 1000);
    assert_eq!(little.unwrap(), 1000);
    assert_eq!(read(&fs, target, 0, 2000), &large[..1000]);
    write(&fs, target, 0, &large).unwrap();
    assert!(
        read(&fs, target, 0, large.len()) == large,
        "the copy differs"
    );
    assert_eq!(class_of(&fs, attr.ino), StripeClass::VOLUME);
    assert!(bytes_by_class(&maintenance, &fs, StripeClass::VOLUME) >= large.len() as u64);
}

/// Where the record of a class is lost, writes of its files fail. They wait for nothing.
#[test]
fn files_of_a_class_that_is_not_known_refuse_bytes() {
    let disks = volume::disks(6, 2, 2);
    let (_maintenance, fs) = opened(&disks);
    let file = put(&fs, Ino::ROOT, "file", &pattern(3, 10_000));
    let other = put(&fs, Ino::ROOT, "other", b"other");
    for ino in [file, other] {
        let key = key::inode(ino);
        let value = fs.transactions().get(&key).unwrap().unwrap();
        let mut inode = Inode::decode(&value).unwrap();
        inode.class = StripeClass(9);
        let mut batch = Batch::default();
        batch.put(key, inode.encode());
        fs.transactions().apply(batch).unwrap();
    }
    let open = |ino| {
        let files = fs.open_files();
        files.open(ROOT, ino, OpenFlags::read_write()).unwrap()
    };
    let (file, other) = (open(file), open(other));
    for len in [1, 3_000, 100_000] {
        let written = write(&fs, file, 20_000, &pattern(4, len));
        assert!(matches!(written, Err(FsError::Storage(_))), "{len}");
    }
    let written = write(&fs, other, 0, &[1; 3_000]);
    assert!(matches!(written, Err(FsError::Storage(_))), "{written:?}");
    assert_eq!(read(&fs, file, 0, 20_000), pattern(3, 10_000));
    assert_eq!(read(&fs, other, 0, 100), b"other");
}

#[test]
fn files_are_rewritten_on_request() {
    let disks = volume::disks(6, 2, 2);
    let (maintenance, fs) = opened(&disks);
    let thin = class_for(&fs, 5, 1);
    let top = mkdir(&fs, Ino::ROOT, "top");
    let inner = mkdir(&fs, top, "inner");
    let bytes = pattern(2, 900_000);
    let files = [put(&fs, top, "one", &bytes), put(&fs, inner, "two", &bytes)];
    put(&fs, Ino::ROOT, "other", &bytes);
    // A second name of a file counts no more.
    let linked = fs.names().link(files[0], inner, b"linked");
    linked.unwrap();
    let to_rewrite = |class| {
        let files = fs.directory_codes().files_to_rewrite(top, class).unwrap();
        files.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(to_rewrite(None), files);
    fs.directory_codes().set(top, thin, true).unwrap();
    assert_eq!(to_rewrite(Some(thin)), files);
    assert!(maintenance.rebuild().awaits_rewrite().unwrap());
    assert_eq!(files.map(|ino| class_of(&fs, ino)), [thin; 2]);
    rebuild(&maintenance, &fs);
    assert!(!maintenance.rebuild().awaits_rewrite().unwrap());
    let moved = bytes_by_class(&maintenance, &fs, thin);
    assert!((1_800_000..2_100_000).contains(&moved), "{moved}");
    let stays = bytes_by_class(&maintenance, &fs, StripeClass::VOLUME);
    assert!((900_000..1_200_000).contains(&stays), "{stays}");
    for file in files {
        let handle = fs
            .open_files()
            .open(ROOT, file, OpenFlags::read_write())
            .unwrap();
        assert!(
            read(&fs, handle, 0, bytes.len()) == bytes,
            "inode {file} differs"
        );
    }
    // Back to the code of the volume.
    fs.directory_codes()
        .set(top, StripeClass::VOLUME, true)
        .unwrap();
    rebuild(&maintenance, &fs);
    assert_eq!(bytes_by_class(&maintenance, &fs, thin), 0);
}
