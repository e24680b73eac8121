use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::lock::LOCK_PAUSE;
use super::*;
use crate::Pool;
use crate::tests::{ROLES, open};

mod foreign;
mod identity;
mod replaced;

fn temporary() -> (tempfile::TempDir, DirStore) {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let path = parent.path().join("backing");
    fs::create_dir(&path).expect("a new directory");
    let store = open(path).expect("it was just made");
    (parent, store)
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, StoreError>) -> StoreErrorKind {
    result.expect_err("this must fail").kind()
}

#[test]
fn a_deleted_directory_is_gone_though_its_open_files_still_answer() {
    let (_parent, store) = temporary();
    store.create("chunks/01", 4096).expect("a new file");
    store.probe().expect("in place");
    fs::remove_dir_all(store.path()).expect("removable");
    store
        .read_at("chunks/01", 0, &mut [0; 10])
        .expect("an open file answers");
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Gone);
    assert_eq!(kind_of(store.create("log.0", 1)), StoreErrorKind::Gone);
}

#[test]
fn a_directory_replaced_by_another_is_told_from_one_that_is_gone_and_the_other_untouched() {
    let (_parent, store) = temporary();
    store.create("index", 10).expect("a new file");
    fs::rename(store.path(), store.path().with_extension("old")).expect("renamable");
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Gone);
    fs::create_dir(store.path()).expect("the name is free");
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Displaced);
    store
        .write_at("index", 0, b"x")
        .expect("the old directory still works");
    assert_eq!(fs::read_dir(store.path()).expect("readable").count(), 0);
}

#[test]
fn a_replaced_subdirectory_or_a_file_deleted_by_others_is_noticed() {
    let (_parent, store) = temporary();
    store.create("chunks/01", 10).expect("a new file");
    fs::remove_dir_all(store.path().join("chunks")).expect("removable");
    let emptied = store.probe().expect_err("it has no chunks any more");
    assert_eq!(emptied.kind(), StoreErrorKind::Gone);
    let source = std::error::Error::source(&emptied).map(ToString::to_string);
    assert_eq!(
        source.as_deref(),
        Some("chunks was deleted by someone else")
    );
    fs::create_dir(store.path().join("chunks")).expect("the name is free");
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Displaced);

    let (_parent, store) = temporary();
    store.create("index", 10).expect("a new file");
    store.create("log.0", 10).expect("a new file");
    store.probe().expect("in place");
    fs::remove_file(store.path().join("index")).expect("removable");
    assert_eq!(kind_of(store.probe()), StoreErrorKind::Gone);
}

#[test]
fn a_file_that_others_replaced_or_moved_away_is_noticed_while_it_is_open() {
    for is_replaced in [true, false] {
        let (_parent, store) = temporary();
        store.create("log.0", 10).expect("a new file");
        store.probe().expect("in place");
        let path = store.path().join("log.0");
        fs::rename(&path, store.path().join("aside")).expect("renamable");
        if is_replaced {
            fs::copy(store.path().join("aside"), &path).expect("room");
        }
        store
            .read_at("log.0", 0, &mut [0; 10])
            .expect("an open file answers");
        assert_eq!(kind_of(store.probe()), StoreErrorKind::Gone);
    }
}

/// The first steps are what `cp -al` over the directories of members and a careless `chmod -R` do.
#[test]
fn a_file_with_another_link_mode_or_owner_is_the_same_while_it_is_open() {
    let (_parent, store) = temporary();
    store.create("log.0", 10).expect("a new file");
    let path = store.path().join("log.0");
    fs::hard_link(&path, store.path().join("aside")).expect("linkable");
    store.probe().expect("a link");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).expect("ours");
    store.probe().expect("a mode");
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(12345), Some(12345)).expect("allowed to root");
        store.probe().expect("an owner");
    }
    store
        .read_at("log.0", 0, &mut [0; 10])
        .expect("an open file answers");
}

#[test]
fn a_segment_file_deleted_by_others_is_absent_and_the_directory_still_there() {
    let (_parent, store) = temporary();
    store.create("chunks/01", 4096).expect("a new file");
    store.create("chunks/02", 4096).expect("a new file");
    fs::remove_file(store.path().join("chunks/01")).expect("removable");
    store
        .read_at("chunks/01", 0, &mut [0; 10])
        .expect("an open file answers");
    store.probe().expect("one file of many");
    let read = store.read_at("chunks/01", 0, &mut [0; 10]);
    assert_eq!(kind_of(read), StoreErrorKind::NotFound);
    let written = store.write_at("chunks/01", 0, &[1; 10]);
    assert_eq!(kind_of(written), StoreErrorKind::NotFound);
    assert_eq!(kind_of(store.sync("chunks/01")), StoreErrorKind::NotFound);
    store
        .read_at("chunks/02", 0, &mut [0; 10])
        .expect("the other file is untouched");
}

/// Writes go to the new file, by every way, and not to the old file that is still open.
#[test]
fn a_file_recreated_after_a_foreign_deletion_gets_the_writes() {
    let pool = Pool::new(1 << 20);
    for direct in [true, false] {
        let (_parent, store) = temporary();
        store.takes_direct.store(direct, Ordering::Relaxed);
        let mut data = pool.buffer(8192);
        store.create("chunks/01", 8192).expect("a new file");
        store.write_at("chunks/01", 0, &data).expect("room");
        store.read_at("chunks/01", 0, &mut data).expect("bytes");
        fs::remove_file(store.path().join("chunks/01")).expect("removable");
        store.create("chunks/01", 8192).expect("a new file");
        data.fill(2);
        store.write_at("chunks/01", 0, &data).expect("room");
        store.sync("chunks/01").expect("a sound disk");
        let lies_there = fs::read(store.path().join("chunks/01")).expect("it is there");
        assert!(lies_there == [2; 8192], "past the page cache: {direct}");
    }
}

#[test]
fn removals_and_renames_of_our_own_are_no_reason_to_call_a_directory_gone() {
    let (_parent, store) = temporary();
    for round in 0..10 {
        store.create("a", 10).expect("a new file");
        store.create("b", 10).expect("a new file");
        store.rename("a", "b").expect("a file to rename");
        store
            .probe()
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        store.remove("b").expect("a file to remove");
        store
            .probe()
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

#[test]
fn probing_while_files_come_and_go_never_cries_wolf() {
    let (_parent, store) = temporary();
    std::thread::scope(|scope| {
        let coming_and_going = scope.spawn(|| {
            for _ in 0..200 {
                store.create("chunks/01", 1).expect("a new file");
                store.remove("chunks/01").expect("a file to remove");
            }
        });
        let store = &store;
        let reading = scope.spawn(move || {
            while !coming_and_going.is_finished() {
                if let Err(error) = store.read_at("chunks/01", 0, &mut [0]) {
                    // Absent, or seen before it has its length.
                    let kinds = [StoreErrorKind::NotFound, StoreErrorKind::ShortRead];
                    assert!(kinds.contains(&error.kind()), "{error}");
                }
            }
        });
        while !reading.is_finished() {
            store.probe().expect("in place");
        }
    });
}

#[test]
fn symbolic_links_inside_are_never_followed() {
    let (parent, store) = temporary();
    let outside = parent.path().join("outside");
    fs::create_dir(&outside).expect("the name is free");
    fs::write(outside.join("secret"), b"secret").expect("writable");
    symlink(outside.join("secret"), store.path().join("index")).expect("the name is free");
    symlink(&outside, store.path().join("chunks")).expect("the name is free");
    assert!(store.read_at("index", 0, &mut [0; 6]).is_err());
    assert!(store.write_at("index", 0, b"x").is_err());
    assert!(store.read_at("chunks/secret", 0, &mut [0; 6]).is_err());
    assert!(store.create("chunks/new", 1).is_err());
    assert!(store.remove("chunks/secret").is_err());
    assert!(store.open_len("index").is_err());
    assert_eq!(store.list("").expect("names"), []);
    assert_eq!(
        fs::read(outside.join("secret")).expect("readable"),
        b"secret"
    );
    assert_eq!(fs::read_dir(outside).expect("readable").count(), 1);
}

#[test]
fn a_directory_is_in_use_for_every_other_opener() {
    let (_parent, store) = temporary();
    let other = open(store.path()).expect("the same directory");
    assert_eq!(store.identity(), other.identity());
    let held = store.lock(Hold::Exclusive).expect("nobody has it");
    assert_eq!(kind_of(other.lock(Hold::Exclusive)), StoreErrorKind::InUse);
    std::fs::remove_file(store.path().join(ROLES.lock)).expect("it can be deleted");
    assert_eq!(kind_of(other.lock(Hold::Exclusive)), StoreErrorKind::InUse);
    drop(held);
    drop(other.lock(Hold::Exclusive).expect("free again"));
}

#[test]
fn a_directory_counts_as_locked_only_while_its_lock_is_held() {
    for hold in [Hold::Shared, Hold::Exclusive] {
        let (_parent, store) = temporary();
        let other = open(store.path()).expect("it is there");
        assert!(!other.may_be_locked());
        let held = store.lock(hold).expect("nobody has it");
        assert!(other.may_be_locked(), "{hold:?}");
        let users = other.lock_users();
        let own = rustix::process::getuid().as_raw();
        assert!(users.contains(&own), "{hold:?}: {users:?}");
        assert!(users.iter().all(|user| *user == own), "{hold:?}: {users:?}");
        drop(held);
        assert!(!other.may_be_locked());
        assert!(other.lock_users().is_empty(), "{hold:?}");
    }
}

#[test]
fn a_lock_that_is_about_to_be_released_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path()).unwrap();
    let held = store.lock(Hold::Exclusive).expect("nobody has it");
    let release = std::thread::spawn(move || {
        std::thread::sleep(2 * LOCK_PAUSE);
        drop(held);
    });
    drop(
        store
            .lock(Hold::Exclusive)
            .expect("it is released while we wait"),
    );
    release.join().expect("nothing panics");
}

#[test]
fn a_path_that_is_no_directory_cannot_be_opened() {
    let (parent, store) = temporary();
    store.create("index", 1).expect("a new file");
    assert_eq!(
        kind_of(open(parent.path().join("none"))),
        StoreErrorKind::NotFound
    );
    assert_eq!(
        kind_of(open(store.path().join("index"))),
        StoreErrorKind::Gone
    );
}

/// Bytes written one way are read the other way, whatever the filesystem takes.
#[test]
fn ways_past_and_through_the_page_cache_see_the_same_bytes() {
    let pool = Pool::new(1 << 20);
    let (_parent, store) = temporary();
    store.create("chunks/01", 16_384 + 100).expect("a new file");
    for (round, direct) in [true, false, true].into_iter().enumerate() {
        store.takes_direct.store(direct, Ordering::Relaxed);
        let mut data = pool.buffer(8192);
        data.fill(u8::try_from(round + 1).expect("small"));
        store.write_at("chunks/01", 4096, &data).expect("room");
        store
            .write_at("chunks/01", 5000, b"unaligned")
            .expect("room");
        data[904..913].copy_from_slice(b"unaligned");
        for takes_direct in [true, false] {
            store.takes_direct.store(takes_direct, Ordering::Relaxed);
            let mut seen = pool.buffer(8192);
            store.read_at("chunks/01", 4096, &mut seen).expect("bytes");
            assert_eq!(seen[..], data[..], "round {round}");
            // The last 100 bytes cannot be had past the page cache.
            let short = store.read_at("chunks/01", 16_384, &mut seen[..4096]);
            assert_eq!(kind_of(short), StoreErrorKind::ShortRead);
            store
                .read_at("chunks/01", 16_384, &mut seen[..100])
                .expect("the tail");
        }
    }
}

#[test]
fn a_file_that_cannot_be_filled_is_removed() {
    let (_parent, store) = temporary();
    assert!(store.create("chunks/01", u64::MAX).is_err());
    assert_eq!(store.list("chunks").expect("names"), []);
}

#[test]
fn more_files_than_are_kept_open_stay_usable() {
    let (_parent, store) = temporary();
    let names: Vec<String> = (0..super::handles::MOST + 20)
        .map(|n| format!("chunks/{n:03}"))
        .collect();
    for name in &names {
        store.create(name, 0).expect("a new file");
        store.write_at(name, 0, name.as_bytes()).expect("room");
    }
    for name in &names {
        let mut seen = vec![0; name.len()];
        store.read_at(name, 0, &mut seen).expect("bytes");
        assert_eq!(seen, name.as_bytes());
        store.sync(name).expect("durable");
    }
    assert_eq!(store.handles.all().len(), super::handles::MOST);
}

/// A member on a filesystem that was mounted read-only can still give up its data.
#[test]
fn a_file_that_may_only_be_read_is_read_and_not_written() {
    let (_parent, store) = temporary();
    store.create("index", 4).expect("a new file");
    let file = store.tree.open_file(
        Name {
            dir: "",
            base: "index",
        },
        OFlags::RDONLY,
    );
    let file = Arc::new(file.expect("a file"));
    store.handles.forget("index");
    store
        .handles
        .insert_buffered("index", &file, store.handles.epoch());
    store.read_at("index", 0, &mut [0; 4]).expect("readable");
    assert_eq!(
        kind_of(store.write_at("index", 0, b"x")),
        StoreErrorKind::ReadOnly
    );
}

#[test]
fn a_filesystem_that_refuses_aligned_io_past_the_page_cache_is_not_asked_again() {
    let (_parent, store) = temporary();
    store.create("chunks/01", 8192).expect("a new file");
    let steps = |refuse: bool| {
        let mut first = refuse;
        store.transfer("chunks/01", "read", true, 2, |_, done| {
            if std::mem::take(&mut first) {
                Err(Errno::INVAL)
            } else {
                Ok(usize::from(done < 2))
            }
        })
    };
    if store.direct("chunks/01", "open").expect("a file").is_none() {
        return; // this filesystem takes no O_DIRECT at all
    }
    assert!(store.is_local, "few others take O_DIRECT");
    assert_eq!(steps(false).expect("steps"), 2);
    assert!(store.takes_direct.load(Ordering::Relaxed));
    assert_eq!(steps(true).expect("the other way"), 2);
    assert!(!store.takes_direct.load(Ordering::Relaxed));
    let aligned = store
        .raw("chunks/01", RawUse::Aligned)
        .expect("an open file");
    let buffered = store
        .handles
        .get("chunks/01")
        .buffered
        .expect("an open file");
    assert!(Arc::ptr_eq(&aligned, &buffered));
}

#[test]
fn operations_that_may_block_are_not_submitted_by_threads_that_must_not_wait() {
    let store = open("/proc/self").expect("it is mounted");
    assert!(!store.is_local);
    let (_parent, mut store) = temporary();
    store.create("index", 10).expect("a new file");
    store.is_local = true;
    assert!(store.raw("index", RawUse::Unaligned).is_some());
    store.is_local = false;
    for usage in [RawUse::Unaligned, RawUse::Aligned, RawUse::Sync] {
        assert!(store.raw("index", usage).is_none());
    }
    store
        .write_at("index", 0, b"x")
        .expect("it works in other ways");
}

#[test]
fn one_request_writes_durably_only_where_the_filesystem_is_known_to_obey() {
    let (_parent, mut store) = temporary();
    store.create("index", 8192).expect("a new file");
    let of = |store: &DirStore, aligned| store.raw("index", RawUse::Durable { aligned }).is_some();
    (store.is_local, store.is_in_memory) = (true, true);
    store.writes_durably = true;
    assert!(of(&store, false), "memory needs no alignment");
    store.is_in_memory = false;
    assert!(
        !of(&store, false),
        "a write through the page cache would be synced unwatched"
    );
    store.is_in_memory = true;
    store.writes_durably = false;
    for aligned in [false, true] {
        assert!(!of(&store, aligned));
    }
    store
        .write_durably("index", 0, b"x")
        .expect("a write and a sync do it");
}
