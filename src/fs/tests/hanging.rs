//! The end of a filesystem while a member hangs.

use std::sync::mpsc;
use std::time::Instant;

use cauchyfs_testkit::eventually;

use super::*;
use crate::format::Ino;
use crate::fs::{FsError, Interlock, RenameMode};
use crate::store::{CallKind, Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore, Scope};

/// The timeout of members that are never marked faulted.
const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn a_count_of_files_that_hangs_holds_up_no_unmount() {
    let disks = create(64 << 20, None);
    let fs = open(&disks);
    let regular = libc::S_IFREG | 0o644;
    for number in 0..300 {
        let name = format!("{number}");
        let made = fs
            .names()
            .mknod(ROOT, Ino::ROOT, name.as_bytes(), regular, 0);
        made.unwrap();
    }
    let maintenance = Arc::clone(&fs.maintenance);
    fs.close().unwrap();
    maintenance.close().unwrap();
    drop((fs, maintenance));

    let plan = FaultPlan::new();
    let options = OpenOptions {
        threads: 0,
        // Each page is read from the members.
        index_cache_bytes: 0,
        ..OpenOptions::default()
    };
    let executor = Arc::new(Executor::new(ExecutorKind::Threads, NEVER));
    let stores = FaultStore::wrap_all(stores(&disks), &plan);
    let maintenance = Maintenance::open(stores, &options, executor).unwrap();
    let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
    let interlock = Arc::new(Interlock::new(25));
    // All members hang, so that no other one takes the place of the first.
    plan.add(
        Fault::at(1, Effect::Hang)
            .of(Scope::Kind(CallKind::Read))
            .lasting(),
    );
    fs.file_count.start(&interlock, maintenance.transactions());
    // Both copies are slow at first. Then it waits for one of them.
    eventually("it hangs", HANG, || plan.triggered() >= 3);
    // Only what reads already hangs on.
    plan.clear();
    let (ended, end) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs.close().unwrap();
            maintenance.close().unwrap();
            ended.send(Instant::now()).unwrap();
        });
        let waited = end.recv_timeout(HANG);
        plan.release();
        assert!(waited.is_ok(), "it waits for the member");
    });
    eventually("the count ends", HANG, || {
        fs.file_count.stop();
        Arc::strong_count(&interlock) == 1
    });
}

#[test]
fn a_refusal_that_waits_for_the_log_holds_up_nothing_else_in_its_directory() {
    let disks = create(64 << 20, None);
    let fs = open(&disks);
    let regular = libc::S_IFREG | 0o644;
    let make = |fs: &Fs, name: &[u8]| fs.names().mknod(ROOT, Ino::ROOT, name, regular, 0);
    let name = |number: u64| format!("{number}").into_bytes();
    for number in 0..13 {
        make(&fs, &name(number)).unwrap();
    }
    let maintenance = Arc::clone(&fs.maintenance);
    fs.close().unwrap();
    maintenance.close().unwrap();
    drop((fs, maintenance));

    let interlock = Arc::new(Interlock::with_record_timeout(25, NEVER));
    let executor = Arc::new(Executor::new(ExecutorKind::Threads, NEVER));
    let maintenance = Maintenance::open(stores(&disks), &OpenOptions::default(), executor).unwrap();
    let options = FsOptions {
        interlock: Some(Arc::clone(&interlock)),
        ..FsOptions::default()
    };
    let fs = Fs::open(Arc::clone(&maintenance), options).unwrap();
    eventually("the files are counted", HANG, || {
        interlock.pause_counting(true);
        interlock.is_count_paused()
    });
    for number in 0..10 {
        fs.names().unlink(Ino::ROOT, &name(number)).unwrap();
    }
    let (told, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        let fs = &fs;
        let unlink = scope.spawn(|| fs.names().unlink(Ino::ROOT, &name(10)));
        eventually("it refuses", HANG, || interlock.refused().is_some());
        let rename = || {
            let (from, to) = (name(11), name(12));
            let mode = RenameMode::Replace;
            fs.names()
                .rename(ROOT, Ino::ROOT, &from, Ino::ROOT, &to, mode)
        };
        let rename = scope.spawn(rename);
        // Both have to wait by now, or hold it up a little later.
        std::thread::sleep(Duration::from_millis(200));
        scope.spawn(move || told.send(make(fs, b"new").map(drop)));
        let answer = answers.recv_timeout(HANG);
        let waits = !unlink.is_finished() && !rename.is_finished();
        interlock.record_changes(|_| {}, || true);
        answer.expect("it waits for the log").unwrap();
        assert!(waits, "a refusal came before the log had it");
        for refused in [unlink, rename] {
            let refused = refused.join().unwrap();
            assert!(matches!(refused, Err(FsError::Interlocked)), "{refused:?}");
        }
    });
    fs.close().unwrap();
    maintenance.close().unwrap();
}
