//! The contract: every store keeps it, through every executor.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;

/// Long enough that no test of something working ever meets it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Roles of the files of these tests.
pub(crate) static ROLES: FileRoles = FileRoles {
    lock: "lock",
    owners: &["label", "lock"],
    subdirectory: "chunks",
    bypasses_cache: |name| name.starts_with("chunks/") || name.starts_with("log."),
    is_expendable: |name| name.starts_with("chunks/") || name == "label",
};

const KINDS: [ExecutorKind; 4] = [
    ExecutorKind::Auto,
    ExecutorKind::Uring,
    ExecutorKind::Threads,
    ExecutorKind::Inline,
];

/// Opens a directory of these tests.
pub(crate) fn open(path: impl Into<PathBuf>) -> Result<DirStore, StoreError> {
    DirStore::open(path, &ROLES, Trust::Anyone)
}

/// A store of each make, with whatever keeps it alive.
fn stores() -> Vec<(StoreRef, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let on_disk = open(dir.path()).expect("the directory that was just made");
    let in_memory = || Arc::new(MemStore::new("memory")) as StoreRef;
    let faultless = FaultStore::new(in_memory(), 0, &FaultPlan::new());
    vec![
        (Arc::new(on_disk), Some(dir)),
        (in_memory(), None),
        (Arc::new(faultless), None),
    ]
}

fn kind_of<T: Debug>(result: Result<T, StoreError>) -> StoreErrorKind {
    result.expect_err("this must fail").kind()
}

fn read(store: &dyn Store, name: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    store
        .read_at(name, offset, &mut bytes)
        .expect("a file that covers the range");
    bytes
}

#[test]
fn a_new_file_is_zeros_of_its_length_and_is_made_once() {
    for (store, _dir) in stores() {
        for name in ["index", "log.0", "chunks/01"] {
            assert_eq!(kind_of(store.open_len(name)), StoreErrorKind::NotFound);
            store.create(name, 10_000).expect("a new file");
            assert_eq!(store.open_len(name).expect("its length"), 10_000);
            assert_eq!(read(&*store, name, 0, 10_000), [0; 10_000]);
            assert_eq!(
                kind_of(store.create(name, 1)),
                StoreErrorKind::AlreadyExists
            );
        }
    }
}

#[test]
fn the_entries_of_a_directory_are_visited_until_the_visitor_stops() {
    use EntryKind::{Directory, File};
    let shown = |store: &StoreRef, dir: &str| {
        let mut shown = Vec::new();
        store
            .visit(dir, &mut |name, kind| {
                shown.push((name.to_owned(), kind));
                ControlFlow::Continue(())
            })
            .expect("nothing fails");
        shown.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        shown
    };
    for (store, _dir) in stores() {
        assert_eq!(shown(&store, ""), []);
        for name in ["index", "chunks/01", "chunks/02"] {
            assert_eq!(shown(&store, "none"), [], "{store:?}");
            store.create(name, 0).expect("a new file");
        }
        let owned = |(name, kind): (&str, EntryKind)| (name.to_owned(), kind);
        let at_top = [("chunks", Directory), ("index", File)].map(owned);
        assert_eq!(shown(&store, ""), at_top, "{store:?}");
        let below = [("01", File), ("02", File)].map(owned);
        assert_eq!(shown(&store, "chunks"), below, "{store:?}");
        let mut seen = 0;
        let first = &mut |_: &str, _| {
            seen += 1;
            ControlFlow::Break(())
        };
        store.visit("chunks", first).expect("nothing fails");
        assert_eq!(seen, 1, "{store:?}");
    }
}

#[test]
fn bytes_are_read_back_at_every_alignment() {
    let pool = Pool::new(1 << 20);
    for (store, _dir) in stores() {
        store.create("chunks/01", 64 << 10).expect("a new file");
        let mut model = vec![0_u8; 64 << 10];
        for (step, (offset, len)) in [
            (0, 4096),
            (4096, 8192),
            (1, 3),
            (4095, 2),
            (12_288, 4097),
            (511, 20_000),
            (0, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let mut data = pool.buffer(len);
            data.fill(u8::try_from(step + 1).expect("few steps"));
            store
                .write_at("chunks/01", offset as u64, &data)
                .expect("room");
            model[offset..offset + len].copy_from_slice(&data);
            for (offset, len) in [(0, 64 << 10), (4096, 4096), (4097, 4096), (0, 100)] {
                let mut seen = pool.buffer(len);
                store
                    .read_at("chunks/01", offset as u64, &mut seen)
                    .expect("bytes");
                assert_eq!(
                    seen[..],
                    model[offset..offset + len],
                    "{store:?} step {step}"
                );
            }
        }
    }
}

#[test]
fn bytes_written_durably_are_read_back_at_every_alignment() {
    let pool = Pool::new(1 << 20);
    for (store, _dir) in stores() {
        for name in ["log.0", "index"] {
            store.create(name, 64 << 10).expect("a new file");
            for (offset, len) in [
                (0, 4096),
                (4096, 8192),
                (1, 3),
                (12_288, 4097),
                (65_536, 4096),
            ] {
                let mut data = pool.buffer(len);
                data.fill(0x5a);
                store.write_durably(name, offset, &data).expect("room");
                assert_eq!(read(&*store, name, offset, len), data[..], "{store:?}");
            }
        }
        let absent = store.write_durably("log.1", 0, b"x");
        assert_eq!(kind_of(absent), StoreErrorKind::NotFound);
    }
}

/// A power cut keeps what was written durably, and may take what was only written.
#[test]
fn bytes_written_durably_survive_a_power_cut() {
    let disk = MemDisk::new("disk", 1 << 20);
    let store: StoreRef = Arc::new(disk.open());
    store.create("log.0", 8192).expect("a new file");
    let executor = Executor::new(ExecutorKind::Auto, PATIENCE);
    let write = |offset, byte| {
        let data = Bytes::from(vec![byte; 4096]);
        StoreRequest::write_durably(&store, "log.0", offset, data)
    };
    executor.run_one(write(0, 7)).expect("room");
    store.write_at("log.0", 4096, &[8; 4096]).expect("room");
    disk.cut(CutPolicy::Drop);
    let store = disk.open();
    assert_eq!(read(&store, "log.0", 0, 4096), [7; 4096]);
    assert_eq!(read(&store, "log.0", 4096, 4096), [0; 4096]);
}

/// A store that finds no space for bytes says so before it has all of them; later it has failed.
#[test]
fn no_space_is_the_answer_to_a_durable_write_only_if_not_all_bytes_were_written() {
    let failing = |kind| {
        let plan = FaultPlan::new();
        let inner: StoreRef = Arc::new(MemStore::new("memory"));
        inner.create("log.0", 4096).expect("a new file");
        plan.add(Fault::at(1, Effect::NoSpace).of(Scope::Kind(kind)));
        FaultStore::new(inner, 0, &plan)
    };
    let written = failing(CallKind::Write).write_durably("log.0", 0, b"x");
    assert_eq!(kind_of(written), StoreErrorKind::NoSpace);
    let synced = failing(CallKind::Sync).write_durably("log.0", 0, b"x");
    assert_eq!(kind_of(synced), StoreErrorKind::Io);
}

#[test]
fn a_read_past_the_end_is_short_and_a_write_past_it_grows_the_file() {
    let pool = Pool::new(1 << 20);
    for (store, _dir) in stores() {
        store.create("chunks/01", 5000).expect("a new file");
        for len in [5001, 8192] {
            let short = store.read_at("chunks/01", 0, &mut pool.buffer(len));
            assert_eq!(kind_of(short), StoreErrorKind::ShortRead, "{len}");
        }
        store
            .write_at("chunks/01", 8192, &pool.zeroed(4096))
            .expect("room");
        assert_eq!(store.open_len("chunks/01").expect("its length"), 12_288);
        store.sync("chunks/01").expect("durable");
        store.truncate("chunks/01", 100).expect("shorter");
        store.truncate("chunks/01", 200).expect("longer");
        assert_eq!(store.open_len("chunks/01").expect("its length"), 200);
        store.reserve("chunks/01", 100, 1000).expect("room");
        assert_eq!(store.open_len("chunks/01").expect("its length"), 1100);
        store
            .punch("chunks/01", 0, 4096)
            .expect("a hole or nothing");
        assert_eq!(store.open_len("chunks/01").expect("its length"), 1100);
    }
}

/// In whole MiB: a filesystem may add some blocks of its own.
#[test]
fn files_take_the_reserved_space_that_was_not_punched() {
    const MIB: u64 = 1 << 20;
    for (store, _dir) in stores() {
        assert_eq!(store.taken("chunks").expect("an absent directory"), 0);
        store.create("chunks/01", 4 * MIB).expect("a new file");
        store.create("top", MIB).expect("a new file");
        let taken = || store.taken("chunks").expect("the directory works") / MIB;
        assert_eq!(taken(), 4, "{}", store.label());
        store
            .punch("chunks/01", MIB, 2 * MIB)
            .expect("a hole or nothing");
        assert_eq!(taken(), 2, "{}", store.label());
        store.truncate("chunks/01", MIB).expect("shorter");
        assert_eq!(taken(), 1, "{}", store.label());
        assert_eq!(store.taken("").expect("the directory works") / MIB, 1);
    }
}

#[test]
fn names_are_listed_renamed_and_removed() {
    for (store, _dir) in stores() {
        assert_eq!(store.list("chunks").expect("an absent directory"), []);
        for (name, len) in [("chunks/02", 2), ("chunks/01", 1), ("b", 4), ("a", 3)] {
            store.create(name, len).expect("a new file");
        }
        let pairs = |names: &[(&str, u64)]| -> Vec<(String, u64)> {
            names
                .iter()
                .map(|&(name, len)| (name.to_owned(), len))
                .collect()
        };
        assert_eq!(store.list("").expect("names"), pairs(&[("a", 3), ("b", 4)]));
        let both = pairs(&[("chunks/01", 1), ("chunks/02", 2)]);
        assert_eq!(store.list("chunks").expect("names"), both);
        store.write_at("a", 0, b"new").expect("room");
        store.rename("a", "b").expect("a file to rename");
        assert_eq!(read(&*store, "b", 0, 3), b"new");
        assert_eq!(kind_of(store.rename("a", "b")), StoreErrorKind::NotFound);
        store.remove("b").expect("a file to remove");
        store.remove("b").expect("removing what is absent is fine");
        assert_eq!(store.list("").expect("names"), []);
        store.create("b", 1).expect("the name is free");
        assert_eq!(read(&*store, "b", 0, 1), [0]);
    }
}

#[test]
fn a_subdirectory_is_removed_once_it_is_empty_and_made_again_when_it_is_needed() {
    for (store, dir) in stores() {
        let is_there = || {
            dir.as_ref()
                .is_some_and(|dir| dir.path().join("chunks").exists())
        };
        store.remove_if_empty("chunks").expect("it is absent");
        store.create("chunks/01", 1).expect("a new file");
        store.remove_if_empty("chunks").expect("it is not empty");
        assert_eq!(store.open_len("chunks/01").expect("it is there"), 1);
        store.remove("chunks/01").expect("a file to remove");
        store.remove_if_empty("chunks").expect("it is empty");
        assert!(!is_there());
        store
            .probe()
            .expect("the directory is all right without it");
        store.create("chunks/02", 2).expect("a new file");
        let found = store.list("chunks").expect("names");
        assert_eq!(found, [("chunks/02".to_owned(), 2)]);
        for wrong in ["", "../x", "a/b"] {
            let refused = kind_of(store.remove_if_empty(wrong));
            assert_eq!(refused, StoreErrorKind::InvalidName, "{wrong:?}");
        }
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused_by_every_method() {
    for (store, _dir) in stores() {
        for name in ["../x", "/etc/passwd", "a/b/c", ""] {
            let kinds = [
                kind_of(store.create(name, 1)),
                kind_of(store.open_len(name)),
                kind_of(store.truncate(name, 1)),
                kind_of(store.reserve(name, 0, 1)),
                kind_of(store.remove(name)),
                kind_of(store.rename(name, "a")),
                kind_of(store.punch(name, 0, 1)),
                kind_of(store.read_at(name, 0, &mut [0])),
                kind_of(store.write_at(name, 0, &[0])),
                kind_of(store.write_durably(name, 0, &[0])),
                kind_of(store.sync(name)),
            ];
            assert_eq!(kinds, [StoreErrorKind::InvalidName; 11], "{name:?}");
        }
    }
}

#[test]
fn a_directory_is_locked_once_until_the_lock_is_dropped() {
    for (store, _dir) in stores() {
        let held = store.lock(Hold::Exclusive).expect("nobody has it");
        assert_eq!(kind_of(store.lock(Hold::Exclusive)), StoreErrorKind::InUse);
        assert_eq!(kind_of(store.lock(Hold::Shared)), StoreErrorKind::InUse);
        drop(held);
        drop(store.lock(Hold::Exclusive).expect("free again"));
    }
}

#[test]
fn readers_share_a_directory_and_keep_writers_out() {
    for (store, _dir) in stores() {
        let before = store.list("").expect("names");
        let first = store.lock(Hold::Shared).expect("nobody has it");
        let second = store.lock(Hold::Shared).expect("only readers have it");
        assert_eq!(store.list("").expect("names"), before);
        drop(first);
        assert_eq!(kind_of(store.lock(Hold::Exclusive)), StoreErrorKind::InUse);
        drop(second);
        drop(store.lock(Hold::Exclusive).expect("free again"));
    }
}

#[test]
fn space_and_probe_answer_for_a_healthy_directory() {
    for (store, _dir) in stores() {
        let space = store.space().expect("room");
        assert!(
            space.total_bytes >= space.free_bytes && space.free_bytes > 0,
            "{space:?}"
        );
        store.probe().expect("in place");
    }
}

/// Writes, syncs and reads back through batches longer than a ring, aligned and not.
#[test]
fn every_executor_does_every_request_of_a_batch_and_answers_in_order() {
    let pool = Pool::new(16 << 20);
    for kind in KINDS {
        let executor = Executor::new(kind, PATIENCE);
        let stores = stores();
        for (store, _) in &stores {
            store.create("chunks/01", 4 << 20).expect("a new file");
            store.create("index", 0).expect("a new file");
        }
        for round in 0..3_u8 {
            let mut writes = Vec::new();
            for at in 0..100_u64 {
                for (store, _) in &stores {
                    let mut data = pool.buffer(4096);
                    data.fill(round ^ u8::try_from(at).expect("small"));
                    let data = data.freeze();
                    writes.push(if at % 2 == 0 {
                        StoreRequest::write(store, "chunks/01", at * 4096, data)
                    } else {
                        StoreRequest::write_durably(store, "chunks/01", at * 4096, data)
                    });
                    let text = Bytes::from(format!("{round} {at:08}"));
                    writes.push(StoreRequest::write(store, "index", at * 10, text));
                }
            }
            assert!(
                executor
                    .run(writes)
                    .into_iter()
                    .all(|outcome| outcome.is_ok()),
                "{kind:?}"
            );
            let syncs = stores
                .iter()
                .map(|(store, _)| StoreRequest::sync(store, "chunks/01"));
            assert!(
                executor
                    .run(syncs.collect())
                    .into_iter()
                    .all(|outcome| outcome.is_ok())
            );
            let mut reads = Vec::new();
            for at in 0..100_u64 {
                for (store, _) in &stores {
                    reads.push(StoreRequest::read(
                        store,
                        "chunks/01",
                        at * 4096,
                        pool.buffer(4096),
                    ));
                    reads.push(StoreRequest::read(store, "index", at * 10, pool.buffer(10)));
                }
            }
            let seen = executor.run(reads);
            for (place, outcome) in seen.into_iter().enumerate() {
                let at = place / (2 * stores.len());
                let bytes = outcome.expect("bytes").expect("a read has a buffer");
                if place % 2 == 0 {
                    let fill = round ^ u8::try_from(at).expect("small");
                    assert!(bytes.iter().all(|&byte| byte == fill), "{kind:?} {at}");
                } else {
                    assert_eq!(
                        &bytes[..],
                        format!("{round} {at:08}").as_bytes(),
                        "{kind:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_executor_passes_errors_on_in_their_place() {
    let pool = Pool::new(1 << 20);
    for kind in KINDS {
        let executor = Executor::new(kind, PATIENCE);
        for (store, _dir) in stores() {
            store.create("chunks/01", 4096).expect("a new file");
            for _ in 0..2 {
                let outcomes = executor.run(vec![
                    StoreRequest::read(&store, "chunks/01", 0, pool.buffer(4096)),
                    StoreRequest::read(&store, "chunks/01", 0, pool.buffer(8192)),
                    StoreRequest::read(&store, "chunks/02", 0, pool.buffer(4096)),
                    StoreRequest::create(&store, "chunks/01", 1),
                    StoreRequest::remove(&store, "chunks/03"),
                    StoreRequest::punch(&store, "chunks/01", 0, 4096),
                    StoreRequest::probe(&store),
                    StoreRequest::read(&store, "chunks/01", 4096, pool.buffer(0)),
                ]);
                let kinds: Vec<_> = outcomes
                    .iter()
                    .map(|one| one.as_ref().err().map(StoreError::kind))
                    .collect();
                let [short, absent, there] = [
                    StoreErrorKind::ShortRead,
                    StoreErrorKind::NotFound,
                    StoreErrorKind::AlreadyExists,
                ]
                .map(Some);
                let expected = [None, short, absent, there, None, None, None, None];
                assert_eq!(kinds, expected, "{kind:?} {store:?}");
            }
            let listed = executor.call(&store, "list", |store| store.list("chunks"));
            assert_eq!(listed.expect("names").len(), 1);
        }
    }
}

#[test]
fn what_is_read_in_memory_is_what_was_written_or_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
    let on_tmpfs = open(dir.path()).expect("the directory that was just made");
    let mut all = stores();
    all.push((Arc::new(on_tmpfs), Some(dir)));
    for (at, (store, _dir)) in all.iter().enumerate() {
        for name in ["index", "chunks/01"] {
            let mut out = [0; 100];
            assert!(
                !store.read_in_memory(name, 0, &mut out),
                "absent: {store:?}"
            );
            store.create(name, 8192).expect("a new file");
            for byte in [1, 2] {
                store.write_at(name, 4000, &[byte; 4192]).expect("room");
                let is_read = store.read_in_memory(name, 3999, &mut out);
                if is_read {
                    assert_eq!((out[0], &out[1..]), (0, &[byte; 99][..]), "{store:?}");
                }
                // The memory disk and tmpfs have everything in memory; the store of faults tells nothing.
                match at {
                    1 | 3 => assert!(is_read, "{store:?}"),
                    2 => assert!(!is_read, "{store:?}"),
                    _ => {}
                }
            }
            assert!(
                !store.read_in_memory(name, 8100, &mut out),
                "too short: {store:?}"
            );
            store.remove(name).expect("a file");
            assert!(
                !store.read_in_memory(name, 0, &mut out),
                "removed: {store:?}"
            );
        }
    }
}
