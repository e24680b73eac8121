//! Quotas of directories: what they count, what they refuse, and that their account survives crashes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cauchyfs::format::Ino;
use cauchyfs::format::record::FileKind;
use cauchyfs::fs::{
    Allocation, Changes, Fs, FsError, FsOptions, Handle, LimitChange, OpenFlags, QuotaLimits,
    QuotaReport, RenameMode, WriteFlags, check, tree,
};
use cauchyfs::store::{CutPolicy, FaultPlan, FaultStore, MemDisk};
use cauchyfs_testkit::{changing_calls, power_cut_at};

use crate::calls::{ROOT, exclusive, fs, list, sound, write};
use crate::volume;

const KIB: u64 = 1 << 10;

/// A page cache's write.
const FROM_PAGE_CACHE: WriteFlags = WriteFlags {
    from_page_cache: true,
    is_direct: false,
    unprivileged: None,
    at_once: false,
    tries_again: false,
};

fn limits(bytes: u64, files: u64) -> QuotaLimits {
    QuotaLimits {
        bytes: LimitChange::Set(bytes),
        files: LimitChange::Set(files),
    }
}

fn set(fs: &Fs, directory: Ino, bytes: u64, files: u64) {
    fs.quotas().set(directory, limits(bytes, files)).unwrap();
    fs.quotas().wait();
}

fn mkdir(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let made = fs.names().mkdir(ROOT, parent, name.as_bytes(), 0o755);
    made.unwrap().ino
}

fn try_create(fs: &Fs, parent: Ino, name: &str) -> Result<(Ino, Handle), FsError> {
    let made = fs
        .names()
        .create(ROOT, parent, name.as_bytes(), 0o644, exclusive());
    made.map(|(attr, handle)| (attr.ino, handle))
}

fn create(fs: &Fs, parent: Ino, name: &str) -> (Ino, Handle) {
    try_create(fs, parent, name).unwrap()
}

/// Makes a file of `len` bytes that nothing refers to.
fn put(fs: &Fs, parent: Ino, name: &str, len: u64) -> Ino {
    let (ino, handle) = create(fs, parent, name);
    let data = vec![5; usize::try_from(len).unwrap()];
    write(fs, handle, 0, &data).unwrap();
    drop_file(fs, ino, handle);
    ino
}

fn drop_file(fs: &Fs, ino: Ino, handle: Handle) {
    fs.open_files().release(handle).unwrap();
    fs.open_files().forget(ino, 1);
}

fn rename(fs: &Fs, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
    let (from_name, to_name) = (from.1.as_bytes(), to.1.as_bytes());
    fs.names()
        .rename(ROOT, from.0, from_name, to.0, to_name, RenameMode::Replace)
}

fn set_size(fs: &Fs, ino: Ino, size: u64) {
    let changes = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, changes).unwrap();
}

fn report(fs: &Fs, directory: Ino) -> QuotaReport {
    let listed = fs.quotas().list(Some(directory)).unwrap();
    listed.into_iter().next().expect("it has a quota")
}

/// Returns the bytes and inodes that the innermost quota of a directory counts.
fn usage(fs: &Fs, directory: Ino) -> (u64, u64) {
    fs.wait_for_removal();
    let usage = report(fs, directory).usage;
    (usage.bytes, usage.files)
}

#[track_caller]
fn refused<T>(outcome: Result<T, FsError>) {
    assert!(matches!(outcome.err(), Some(FsError::QuotaExceeded)));
}

#[track_caller]
fn crosses<T>(outcome: Result<T, FsError>) {
    assert!(matches!(outcome.err(), Some(FsError::CrossesQuota)));
}

/// Adds up what lies below a directory, as `du` does.
fn walk(fs: &Fs, directory: Ino, seen: &mut BTreeSet<Ino>) -> (u64, u64) {
    seen.insert(directory);
    let (mut bytes, mut files) = (0, 1);
    let handle = fs.directories().open(directory).unwrap();
    let (names, _) = list(fs, handle, 0, usize::MAX);
    fs.directories().release(handle).unwrap();
    for name in names
        .iter()
        .filter(|name| !matches!(&name[..], b"." | b".."))
    {
        let attr = fs.names().lookup(directory, name).unwrap();
        fs.open_files().forget(attr.ino, 1);
        if attr.kind == FileKind::Directory {
            let (below, inside) = walk(fs, attr.ino, seen);
            (bytes, files) = (bytes + below, files + inside);
        } else if seen.insert(attr.ino) {
            (bytes, files) = (bytes + attr.blocks_512 * 512, files + 1);
        }
    }
    (bytes, files)
}

#[track_caller]
fn counts_what_is_there(fs: &Fs, directory: Ino) {
    let found = walk(fs, directory, &mut BTreeSet::new());
    assert_eq!(usage(fs, directory), found);
    sound(fs);
}

#[test]
fn a_quota_counts_every_change_of_what_lies_below() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 1 << 30, 1000);
    assert_eq!(usage(&fs, top), (0, 1));
    let (file, handle) = create(&fs, top, "file");
    write(&fs, handle, 0, &[1; 100]).unwrap();
    assert_eq!(usage(&fs, top), (512, 2), "in the record");
    write(&fs, handle, 0, &vec![2; 100_000]).unwrap();
    assert_eq!(usage(&fs, top), (100_352, 2));
    write(&fs, handle, 50_000, &[3; 1000]).unwrap();
    assert_eq!(usage(&fs, top), (100_352, 2), "overwritten");
    let punch = Allocation::PunchHole;
    fs.writer()
        .fallocate(ROOT, handle, punch, 4096, 8192)
        .unwrap();
    assert_eq!(usage(&fs, top), (92_160, 2), "a hole");
    set_size(&fs, file, 4096);
    assert_eq!(usage(&fs, top), (4096, 2), "cut");
    set_size(&fs, file, 1 << 40);
    assert_eq!(usage(&fs, top), (4096, 2), "a longer hole");
    let inner = mkdir(&fs, top, "inner");
    fs.names().symlink(ROOT, inner, b"link", b"target").unwrap();
    fs.names().link(file, inner, b"other").unwrap();
    assert_eq!(
        usage(&fs, top),
        (4096, 4),
        "a second name is no second file"
    );
    rename(&fs, (top, "file"), (inner, "moved")).unwrap();
    counts_what_is_there(&fs, top);
    fs.names().unlink(inner, b"other").unwrap();
    fs.names().unlink(inner, b"moved").unwrap();
    assert_eq!(usage(&fs, top), (4096, 4), "it is open");
    fs.open_files().release(handle).unwrap();
    fs.open_files().forget(file, 2);
    assert_eq!(usage(&fs, top), (0, 3));
    counts_what_is_there(&fs, top);
}

#[test]
fn nothing_grows_beyond_a_limit_and_overwriting_goes_on() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 256 * KIB, 4);
    let (file, handle) = create(&fs, top, "file");
    write(&fs, handle, 0, &vec![1; 200 << 10]).unwrap();
    refused(write(&fs, handle, 200 * KIB, &vec![1; 57 << 10]));
    refused(write(&fs, handle, 300 * KIB, &vec![1; 1 << 20]));
    write(&fs, handle, 0, &vec![2; 200 << 10]).unwrap();
    write(&fs, handle, 200 * KIB, &vec![2; 56 << 10]).unwrap();
    refused(write(&fs, handle, 256 * KIB, &[3; 1]));
    refused(write(&fs, handle, 256 * KIB, &[3; 3000]));
    let allocate = Allocation::Allocate;
    refused(fs.writer().fallocate(ROOT, handle, allocate, 0, 300 * KIB));
    fs.writer()
        .fallocate(ROOT, handle, allocate, 0, 256 * KIB)
        .unwrap();
    assert_eq!(usage(&fs, top), (256 * KIB, 2));
    // Refused changes left nothing behind.
    fs.syncfs().unwrap();
    sound(&fs);
    set_size(&fs, file, 0);
    write(&fs, handle, 0, &vec![4; 256 << 10]).unwrap();
    create(&fs, top, "third");
    mkdir(&fs, top, "fourth");
    refused(try_create(&fs, top, "fifth"));
    refused(fs.names().mkdir(ROOT, top, b"fifth", 0o755));
    refused(fs.names().symlink(ROOT, top, b"fifth", b"x"));
    refused(fs.names().tmpfile(ROOT, top, 0o600, exclusive()));
    let whiteout = RenameMode::Whiteout;
    refused(
        fs.names()
            .rename(ROOT, top, b"third", top, b"new", whiteout),
    );
    fs.names().link(file, top, b"second-name").unwrap();
    counts_what_is_there(&fs, top);
}

/// The removal of a large file goes on in the background. A write that needs its room waits for that.
#[test]
fn room_in_a_quota_is_there_as_soon_as_a_large_file_is_removed() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 8 << 20, 100);
    for round in 0..3 {
        let (ino, handle) = create(&fs, top, "large");
        // More extents than one batch removes.
        for piece in (0..2000).rev() {
            write(&fs, handle, piece * 8192, &[round; 4096]).unwrap();
        }
        drop_file(&fs, ino, handle);
        fs.names().unlink(top, b"large").unwrap();
    }
    counts_what_is_there(&fs, top);
}

/// A kernel forgets a file on another thread than that of the program that makes the next one.
#[test]
fn room_is_there_although_the_kernel_forgets_a_removed_file_a_moment_later() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 1 << 20, 2);
    let first = put(&fs, top, "first", 100);
    let again = fs.names().lookup(top, b"first").unwrap();
    assert_eq!(again.ino, first);
    fs.names().unlink(top, b"first").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| fs.open_files().forget(first, 1));
        create(&fs, top, "second");
    });
    counts_what_is_there(&fs, top);
}

#[test]
fn a_writeback_that_a_quota_refuses_is_no_hole_and_never_zeros() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 64 * KIB, 100);
    let (_, handle) = create(&fs, top, "file");
    let page_cache = |offset, len| {
        let data = vec![7; len];
        fs.writer().write(handle, offset, &data, FROM_PAGE_CACHE)
    };
    page_cache(0, 32 << 10).unwrap();
    refused(page_cache(64 * KIB, 64 << 10));
    // The lost bytes before it would count as well.
    refused(page_cache(128 * KIB, 4096));
    assert_eq!(usage(&fs, top), (32 * KIB, 2));
    set(&fs, top, 128 * KIB, 100);
    page_cache(128 * KIB, 4096).unwrap();
    let mut out = vec![0; 4096];
    let lost = fs.reader().read(handle, 64 * KIB, &mut out);
    assert!(matches!(lost, Err(FsError::FailedWriteback { .. })));
    let flags = WriteFlags {
        at_once: true,
        ..FROM_PAGE_CACHE
    };
    refused(fs.writer().write(handle, 1 << 20, &vec![1; 65536], flags));
    counts_what_is_there(&fs, top);
}

#[test]
fn names_do_not_cross_the_border_of_a_quota() {
    let fs = fs();
    let [top, other] = ["top", "other"].map(|name| mkdir(&fs, Ino::ROOT, name));
    let inner = mkdir(&fs, top, "inner");
    set(&fs, top, 1 << 30, 100);
    let inside = put(&fs, inner, "inside", 10);
    let outside = put(&fs, other, "outside", 10);
    crosses(rename(&fs, (inner, "inside"), (other, "x")));
    crosses(rename(&fs, (other, "outside"), (inner, "x")));
    crosses(rename(&fs, (top, "inner"), (other, "x")));
    let exchange = RenameMode::Exchange;
    crosses(
        fs.names()
            .rename(ROOT, inner, b"inside", other, b"outside", exchange),
    );
    crosses(fs.names().link(inside, other, b"x"));
    crosses(fs.names().link(outside, top, b"x"));
    rename(&fs, (inner, "inside"), (top, "x")).unwrap();
    // The directory itself lies in what is around it.
    rename(&fs, (Ino::ROOT, "top"), (other, "top")).unwrap();
    set(&fs, other, 1 << 30, 100);
    crosses(rename(&fs, (other, "top"), (Ino::ROOT, "top")));
    counts_what_is_there(&fs, top);
    counts_what_is_there(&fs, other);
    // A file without a name lies nowhere yet.
    let (made, handle) = fs
        .names()
        .tmpfile(ROOT, other, 0o600, OpenFlags::read_write())
        .unwrap();
    write(&fs, handle, 0, &[1; 5000]).unwrap();
    fs.names().link(made.ino, top, b"linked").unwrap();
    counts_what_is_there(&fs, top);
    fs.quotas().clear(top).unwrap();
    rename(&fs, (top, "x"), (other, "x")).unwrap();
    crosses(rename(&fs, (other, "x"), (Ino::ROOT, "x")));
    fs.quotas().clear(other).unwrap();
    rename(&fs, (other, "x"), (Ino::ROOT, "x")).unwrap();
    assert_eq!(fs.quotas().list(None).unwrap(), []);
    assert!(matches!(fs.quotas().clear(other), Err(FsError::NoQuota)));
    sound(&fs);
}

#[test]
fn nested_quotas_count_for_all_around_and_come_and_go_in_any_order() {
    let fs = fs();
    let outer = mkdir(&fs, Ino::ROOT, "outer");
    let middle = mkdir(&fs, outer, "middle");
    let inner = mkdir(&fs, middle, "inner");
    for (directory, len) in [(outer, 1000), (middle, 2000), (inner, 3000)] {
        put(&fs, directory, "file", len);
    }
    let all = [outer, middle, inner];
    let agree = |quotas: &[Ino]| {
        for directory in quotas {
            counts_what_is_there(&fs, *directory);
        }
    };
    set(&fs, inner, 1 << 20, 100);
    set(&fs, outer, 1 << 20, 100);
    agree(&[inner, outer]);
    set(&fs, middle, 1 << 20, 100);
    agree(&all);
    let chain = fs.quotas().list(Some(inner)).unwrap();
    assert_eq!(
        chain.iter().map(|it| it.root).collect::<Vec<_>>(),
        [inner, middle, outer]
    );
    let paths: Vec<_> = chain.iter().map(|it| it.path.clone().unwrap()).collect();
    assert_eq!(
        paths,
        [&b"outer/middle/inner"[..], b"outer/middle", b"outer"]
    );
    // The tightest decides, for writes and for `df`.
    set(&fs, outer, 10 * KIB, 100);
    let (_, handle) = create(&fs, inner, "more");
    refused(write(&fs, handle, 0, &[1; 8 << 10]));
    let below = fs.statfs_below(inner).unwrap();
    assert_eq!((below.blocks, below.files, below.files_free), (2, 100, 93));
    fs.quotas().clear(middle).unwrap();
    agree(&[inner, outer]);
    put(&fs, middle, "later", 700);
    agree(&[inner, outer]);
    set(&fs, middle, 1 << 20, 100);
    agree(&all);
    fs.quotas().clear(outer).unwrap();
    agree(&[inner, middle]);
    fs.quotas().clear(middle).unwrap();
    agree(&[inner]);
}

#[test]
fn a_quota_goes_with_its_directory() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 1 << 20, 100);
    fs.names().rmdir(Ino::ROOT, b"top").unwrap();
    assert_eq!(fs.quotas().list(None).unwrap(), [], "it is referred to");
    fs.open_files().forget(top, 1);
    fs.wait_for_removal();
    sound(&fs);
    let again = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, again, 1 << 20, 100);
    counts_what_is_there(&fs, again);
}

#[test]
fn df_below_a_directory_shows_its_quota() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    let whole = fs.statfs();
    set(&fs, top, 1 << 20, 10);
    let file = put(&fs, top, "file", 256 * KIB);
    for ino in [top, file] {
        let report = fs.statfs_below(ino).unwrap();
        assert_eq!((report.blocks, report.blocks_free), (256, 192));
        assert_eq!(report.blocks_available, 192);
        assert_eq!((report.files, report.files_free), (10, 8));
    }
    assert_eq!(fs.statfs_below(Ino::ROOT).unwrap().files, 0);
    set(&fs, top, 1 << 60, 10);
    let report = fs.statfs_below(top).unwrap();
    assert!(
        report.blocks_free <= whole.blocks_free,
        "the volume is smaller"
    );
    set(&fs, top, 100 * KIB, 10);
    let report = fs.statfs_below(top).unwrap();
    assert_eq!(
        (report.blocks, report.blocks_free),
        (25, 0),
        "beyond the limit"
    );
}

#[test]
fn limits_change_one_by_one() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    set(&fs, top, 1 << 20, 10);
    let change = |bytes, files| fs.quotas().set(top, QuotaLimits { bytes, files }).unwrap();
    change(LimitChange::Keep, LimitChange::Set(20));
    let now = report(&fs, top);
    assert_eq!((now.max_bytes, now.max_files), (Some(1 << 20), Some(20)));
    change(LimitChange::Remove, LimitChange::Keep);
    let now = report(&fs, top);
    assert_eq!((now.max_bytes, now.max_files), (None, Some(20)));
}

/// Programs rename, link, make and remove files and directories while their directory is counted.
#[test]
fn a_directory_is_counted_rightly_while_programs_change_it() {
    let fs = fs();
    let top = mkdir(&fs, Ino::ROOT, "top");
    let directories: Vec<Ino> = (0..40)
        .map(|number| {
            let directory = mkdir(&fs, top, &format!("d{number:02}"));
            for file in 0..20 {
                put(&fs, directory, &format!("f{file}"), 100 * file);
            }
            mkdir(&fs, directory, "deep");
            directory
        })
        .collect();
    for round in 0..4 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (fs, directories, is_over) = (&fs, &directories, &is_over);
            scope.spawn(move || churn(fs, directories, round, is_over));
            set(fs, top, 1 << 40, 1 << 40);
            is_over.store(true, Ordering::SeqCst);
        });
        counts_what_is_there(&fs, top);
        fs.quotas().clear(top).unwrap();
    }
}

fn churn(fs: &Fs, directories: &[Ino], round: u64, is_over: &AtomicBool) {
    let count = directories.len() as u64;
    let mut state = round + 1;
    let mut next = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    };
    let mut step = 0;
    while !is_over.load(Ordering::SeqCst) || step < 200 {
        step += 1;
        let mut any = || directories[usize::try_from(next(count)).unwrap()];
        let (from, to) = (any(), any());
        let name = format!("f{}", next(20));
        match next(4) {
            // Names that are gone, or taken, are fine.
            0 => drop(rename(fs, (from, &name), (to, &format!("m{step}")))),
            1 => drop(rename(fs, (from, "deep"), (to, &format!("deep{step}")))),
            2 => {
                if let Ok((ino, handle)) = try_create(fs, from, &format!("n{step}")) {
                    write(fs, handle, 0, &[1; 600]).unwrap();
                    drop_file(fs, ino, handle);
                }
            }
            _ => {
                if let Ok(attr) = fs.names().lookup(from, name.as_bytes()) {
                    let linked = fs.names().link(attr.ino, to, format!("l{step}").as_bytes());
                    fs.open_files()
                        .forget(attr.ino, 1 + u64::from(linked.is_ok()));
                    drop(fs.names().unlink(from, name.as_bytes()));
                }
            }
        }
    }
}

/// Sets a quota on a directory with contents, and changes these.
fn script(fs: &Fs) -> Result<(), FsError> {
    let top = tree::resolve(fs, b"top")?.ino;
    fs.quotas().set(top, limits(1 << 20, 100))?;
    fs.quotas().wait();
    let flags = exclusive();
    let (attr, handle) = fs.names().create(ROOT, top, b"new", 0o644, flags)?;
    write(fs, handle, 0, &vec![1; 300_000])?;
    fs.syncfs()?;
    write(fs, handle, 100_000, &vec![2; 300_000])?;
    rename(fs, (top, "new"), (top, "f1"))?;
    let inner = fs.names().mkdir(ROOT, top, b"inner", 0o755)?.ino;
    fs.quotas().set(inner, limits(1 << 20, 100))?;
    fs.names().link(attr.ino, top, b"linked")?;
    fs.syncfs()?;
    fs.quotas().clear(top)?;
    Ok(())
}

#[test]
fn the_account_is_right_after_a_power_cut_at_any_call() {
    let disks = volume::disks(2, 1, 1);
    let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
    let top = mkdir(&fs, Ino::ROOT, "top");
    for number in 0..20 {
        put(&fs, top, &format!("f{number}"), 500 * number);
    }
    fs.close().unwrap();
    fs.maintenance().close().unwrap();
    drop(fs);
    let run = |plan: &FaultPlan, disks: &[MemDisk]| {
        let stores = FaultStore::wrap_all(volume::stores(disks), plan);
        let Ok(maintenance) = volume::try_open(stores, 0) else {
            return;
        };
        if let Ok(fs) = Fs::open(maintenance, FsOptions::default()) {
            // A call fails once the power is cut.
            let _cut = script(&fs);
        }
    };
    let forked = || disks.iter().map(MemDisk::fork).collect::<Vec<_>>();
    let plan = FaultPlan::new();
    plan.record();
    run(&plan, &forked());
    let calls = changing_calls(&plan);
    assert!(calls > 40, "{calls}");
    for call in 1..=calls {
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(call)] {
            let disks = forked();
            let plan = FaultPlan::new();
            plan.add(power_cut_at(call));
            run(&plan, &disks);
            for disk in &disks {
                disk.cut(policy);
            }
            let left: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
            is_right(&left, &format!("cut at call {call} of {calls}, {policy:?}"));
        }
    }
}

fn is_right(disks: &[MemDisk], what: &str) {
    let maintenance = volume::open(disks, 0);
    let found = check::check(&maintenance, false).unwrap();
    assert_eq!(found.findings, [], "{what}");
    let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
    fs.quotas().wait();
    for quota in fs.quotas().list(None).unwrap() {
        assert!(!quota.is_counting, "{what}");
        let walked = walk(&fs, quota.root, &mut BTreeSet::new());
        assert_eq!(usage(&fs, quota.root), walked, "{what}");
    }
}

#[test]
fn a_volume_with_a_quota_needs_a_build_that_knows_quotas_and_one_without_does_not() {
    let features = |disks: &[MemDisk]| {
        let blocks = disks.iter().map(|disk| {
            use cauchyfs::format::superblock::{SLOT_BYTES, Superblock};
            use cauchyfs::store::Store;
            let mut slots = vec![0; 2 * SLOT_BYTES];
            disk.open().read_at("superblock", 0, &mut slots).unwrap();
            let slots = slots.chunks(SLOT_BYTES);
            let features = slots.map(|slot| Superblock::decode(slot).unwrap().features.incompat);
            features.collect::<Vec<_>>()
        });
        blocks.collect::<Vec<_>>()
    };
    let disks = volume::disks(3, 2, 1);
    let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
    let top = mkdir(&fs, Ino::ROOT, "top");
    assert_eq!(features(&disks), vec![vec![0, 0]; 3]);
    set(&fs, top, 1 << 20, 100);
    assert_eq!(features(&disks), vec![vec![4, 4]; 3]);
}
