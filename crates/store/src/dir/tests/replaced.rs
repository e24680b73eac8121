//! Files that another program replaces while they are open.

use super::*;
use crate::{Executor, ExecutorKind, Op, StoreRef, StoreRequest};

const NAME: &str = "chunks/01";

const LEN: usize = 8192;

/// Makes two directories on one filesystem, each with a file that is open in every way.
fn two_with_open_files(direct: bool) -> (tempfile::TempDir, [Arc<DirStore>; 2]) {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let store = |fill: u8| {
        let path = parent.path().join(fill.to_string());
        fs::create_dir(&path).expect("a new directory");
        let store = open(path).expect("it was just made");
        store.takes_direct.store(direct, Ordering::Relaxed);
        store.create(NAME, LEN as u64).expect("a new file");
        let mut data = Pool::new(1 << 20).buffer(LEN);
        data.fill(fill);
        store.write_at(NAME, 0, &data).expect("room");
        store.write_at(NAME, 1, &data[1..9]).expect("room");
        store.sync(NAME).expect("a sound disk");
        Arc::new(store)
    };
    let stores = [store(1), store(2)];
    (parent, stores)
}

fn path_of(store: &DirStore) -> PathBuf {
    store.path().join(NAME)
}

/// Exchanges the files, as three calls of `mv` do.
fn exchange(stores: &[Arc<DirStore>; 2]) {
    let [one, other] = [path_of(&stores[0]), path_of(&stores[1])];
    let aside = stores[0].path().join("aside");
    fs::rename(&one, &aside).expect("renamable");
    fs::rename(&other, &one).expect("renamable");
    fs::rename(&aside, &other).expect("renamable");
}

/// Returns the first byte of a file, read in each way that there is.
fn first_bytes(store: &DirStore) -> Vec<u8> {
    let mut aligned = Pool::new(1 << 20).buffer(LEN);
    store.read_at(NAME, 0, &mut aligned).expect("bytes");
    let mut unaligned = [0; 9];
    store.read_at(NAME, 0, &mut unaligned).expect("bytes");
    let mut seen = vec![aligned[0], unaligned[0]];
    let mut in_memory = [0; 9];
    if store.read_in_memory(NAME, 0, &mut in_memory) {
        seen.push(in_memory[0]);
    }
    for usage in [RawUse::Aligned, RawUse::Unaligned, RawUse::Sync] {
        if let Some(file) = store.raw(NAME, usage) {
            let mut raw = Pool::new(1 << 20).buffer(LEN);
            rustix::io::pread(&*file, &mut raw[..], 0).expect("bytes");
            seen.push(raw[0]);
        }
    }
    seen
}

/// Without the look, all of these would go to the files that were opened first.
#[test]
fn exchanged_files_are_read_and_written_by_their_names_after_a_look_at_both() {
    for direct in [true, false] {
        let (_parent, stores) = two_with_open_files(direct);
        exchange(&stores);
        assert!(first_bytes(&stores[0]).iter().all(|byte| *byte == 1));
        for store in &stores {
            assert!(store.refresh(NAME).expect("a sound disk"));
            assert!(!store.refresh(NAME).expect("a sound disk"), "once");
        }
        for (store, now) in stores.iter().zip([2, 1]) {
            let seen = first_bytes(store);
            assert!(seen.iter().all(|byte| *byte == now), "{seen:?}");
            let mut data = Pool::new(1 << 20).buffer(LEN);
            data.fill(now + 2);
            store.write_at(NAME, 0, &data).expect("room");
            store.sync(NAME).expect("a sound disk");
            let lies_there = fs::read(path_of(store)).expect("it is there");
            assert!(lies_there == vec![now + 2; LEN]);
        }
    }
}

/// The kernel does these operations itself where it can, with descriptors from the cache.
#[test]
fn every_executor_reaches_the_new_file_after_a_look() {
    for kind in [
        ExecutorKind::Auto,
        ExecutorKind::Uring,
        ExecutorKind::Threads,
        ExecutorKind::Inline,
    ] {
        let (_parent, stores) = two_with_open_files(true);
        let executor = Executor::new(kind, std::time::Duration::from_secs(120));
        let store: StoreRef = Arc::clone(&stores[0]) as _;
        let read = || {
            let buf = Pool::new(1 << 20).buffer(LEN);
            let op = Op::Read {
                name: NAME.into(),
                offset: 0,
                buf,
            };
            let store = Arc::clone(&store);
            let read = executor.run_one(StoreRequest { store, op });
            read.expect("bytes").expect("a buffer")[0]
        };
        assert_eq!(read(), 1, "{kind:?}");
        exchange(&stores);
        assert!(store.refresh(NAME).expect("a sound disk"), "{kind:?}");
        assert_eq!(read(), 2, "{kind:?}");
    }
}

#[test]
fn a_file_that_is_replaced_by_a_copy_recreated_or_moved_away_is_noticed_by_a_look() {
    let replace: [fn(&Path); 3] = [
        |path| {
            fs::copy(path, path.with_extension("copy")).expect("room");
            fs::rename(path.with_extension("copy"), path).expect("renamable");
        },
        |path| {
            fs::remove_file(path).expect("removable");
            fs::write(path, [9; LEN]).expect("room");
        },
        |path| fs::rename(path, path.with_extension("old")).expect("renamable"),
    ];
    for (way, replace) in replace.into_iter().enumerate() {
        let (_parent, [store, _]) = two_with_open_files(true);
        replace(&path_of(&store));
        assert!(store.refresh(NAME).expect("a sound disk"), "way {way}");
        let read = store.read_at(NAME, 0, &mut [0; 9]);
        match fs::read(path_of(&store)) {
            Ok(bytes) => assert!(first_bytes(&store).iter().all(|byte| *byte == bytes[0])),
            Err(_) => assert_eq!(kind_of(read), StoreErrorKind::NotFound),
        }
    }
}

/// One descriptor was opened before the exchange, and the other one after it.
#[test]
fn a_look_notices_that_one_of_two_descriptors_is_of_another_file() {
    let (_parent, stores) = two_with_open_files(true);
    let [store, _] = &stores;
    if store.handles.get(NAME).direct.is_none() {
        return; // this filesystem takes no O_DIRECT at all
    }
    let old = store.handles.get(NAME);
    exchange(&stores);
    for is_direct_old in [true, false] {
        store.handles.forget(NAME);
        assert!(first_bytes(store).iter().all(|byte| *byte == 2));
        let epoch = store.handles.epoch();
        if is_direct_old {
            let file = old.direct.as_ref().expect("an open file");
            store.handles.insert_direct(NAME, file, epoch);
        } else {
            let file = old.buffered.as_ref().expect("an open file");
            store.handles.insert_buffered(NAME, file, epoch);
        }
        assert!(store.refresh(NAME).expect("a sound disk"));
        assert!(first_bytes(store).iter().all(|byte| *byte == 2));
    }
}

#[test]
fn a_descriptor_that_was_being_opened_during_the_exchange_is_not_kept() {
    let (_parent, stores) = two_with_open_files(false);
    let [store, _] = &stores;
    let old = store.handles.get(NAME).buffered.expect("an open file");
    store.handles.forget(NAME);
    let epoch = store.handles.epoch();
    exchange(&stores);
    assert!(
        !store.refresh(NAME).expect("a sound disk"),
        "nothing is open"
    );
    store.handles.insert_buffered(NAME, &old, epoch);
    assert!(first_bytes(store).iter().all(|byte| *byte == 2));
}

#[test]
fn a_look_at_a_file_that_is_the_same_keeps_it_open() {
    let (_parent, [store, _]) = two_with_open_files(true);
    fs::hard_link(path_of(&store), store.path().join("aside")).expect("linkable");
    let before = store.handles.get(NAME).any().expect("an open file");
    assert!(!store.refresh(NAME).expect("a sound disk"));
    assert!(store.handles.holds(NAME, &before));
    assert!(!store.refresh("chunks/02").expect("no file is no error"));
    store.remove(NAME).expect("removable");
    assert!(!store.refresh(NAME).expect("no file is no error"));
}

/// Numbers of files prove nothing there. Closing a file costs little.
#[test]
fn a_look_on_a_network_filesystem_closes_the_file() {
    let (_parent, stores) = two_with_open_files(false);
    let path = stores[0].path().to_owned();
    let mut store = open(path).expect("it is there");
    store.is_local = false;
    store.read_at(NAME, 0, &mut [0; 9]).expect("bytes");
    exchange(&stores);
    assert!(!store.refresh(NAME).expect("a sound disk"));
    let mut seen = [0; 9];
    store.read_at(NAME, 0, &mut seen).expect("bytes");
    assert_eq!(seen[0], 2);
}
