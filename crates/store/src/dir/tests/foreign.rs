//! Files and subdirectories that are not the directory's own, and users who may not use it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::*;
use crate::EntryKind;

/// A user who has nothing to do with the directories of these tests.
const STRANGER: u32 = 65534;

const CHUNK: &str = "chunks/0000000000000001";

/// A file outside, and how it has to stay.
struct Victim(PathBuf);

impl Victim {
    const BYTES: &[u8] = b"a file of another user, longer than nothing";

    fn new(parent: &Path) -> Self {
        let path = parent.join("victim");
        fs::write(&path, Self::BYTES).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
        Self(path)
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(fs::read(&self.0).expect("readable"), Self::BYTES);
        let meta = fs::metadata(&self.0).expect("it is there");
        assert_eq!(meta.mode() & 0o7777, 0o640);
    }
}

fn mode_of(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

/// Every operation that could read or change a file.
#[track_caller]
fn assert_foreign(store: &DirStore, name: &str) {
    let kinds = [
        ("open_len", store.open_len(name).map(drop)),
        ("read", store.read_at(name, 0, &mut [0; 4])),
        ("write", store.write_at(name, 0, b"x")),
        ("truncate", store.truncate(name, 0)),
        ("reserve", store.reserve(name, 0, 1 << 20)),
        ("punch", store.punch(name, 0, 4096)),
        ("sync", store.sync(name)),
        ("touch", store.touch(name)),
    ];
    for (operation, outcome) in kinds {
        assert_eq!(
            kind_of(outcome),
            StoreErrorKind::Foreign,
            "{operation} {name}"
        );
    }
    let pool = Pool::new(1 << 20);
    let mut aligned = pool.buffer(4096);
    let read = store.read_at(name, 0, &mut aligned);
    assert_eq!(kind_of(read), StoreErrorKind::Foreign, "aligned {name}");
    let dir = name.split_once('/').map_or("", |(dir, _)| dir);
    let listed = store.list(dir).expect("names");
    assert!(listed.iter().all(|(listed, _)| listed != name), "{name}");
    assert_eq!(store.taken(dir).expect("bytes"), 0, "{name}");
}

#[test]
fn a_hard_link_is_neither_read_nor_changed_and_gives_its_name_to_a_new_file() {
    for name in ["label", "log.0", "index", CHUNK] {
        let (parent, store) = temporary();
        let victim = Victim::new(parent.path());
        store.create(name, 0).expect("a new file");
        store.remove(name).expect("removable");
        fs::hard_link(&victim.0, store.path().join(name)).expect("one filesystem");
        assert_foreign(&store, name);
        victim.assert_untouched();
        assert_eq!(fs::metadata(&victim.0).expect("it is there").nlink(), 2);

        store.create(name, 10).expect("the name is taken from it");
        store.write_at(name, 0, b"our bytes").expect("room");
        assert_eq!(store.open_len(name).expect("a file"), 10);
        let exists = store.create(name, 10);
        assert_eq!(kind_of(exists), StoreErrorKind::AlreadyExists);
        victim.assert_untouched();
    }
}

#[test]
fn links_fifos_and_devices_do_not_block_and_are_not_opened() {
    let (parent, store) = temporary();
    let victim = Victim::new(parent.path());
    symlink(&victim.0, store.path().join("link")).expect("the name is free");
    let node = |name: &str, kind, device| {
        let bits = sys::Mode::from_raw_mode(0o600);
        let made = sys::mknodat(sys::CWD, store.path().join(name), kind, bits, device);
        made.expect("root may make nodes");
    };
    node("fifo", sys::FileType::Fifo, 0);
    assert_foreign(&store, "link");
    assert_foreign(&store, "fifo");
    if rustix::process::geteuid().is_root() {
        node("device", sys::FileType::CharacterDevice, sys::makedev(1, 3));
        assert_foreign(&store, "device");
    }
    fs::create_dir(store.path().join("index")).expect("the name is free");
    assert_foreign(&store, "index");
    assert!(store.create("index", 1).is_err());
    victim.assert_untouched();
    store.create("fifo", 1).expect("a new file in its place");
    store.create("link", 1).expect("a new file in its place");
    victim.assert_untouched();
}

#[test]
fn files_and_subdirectories_of_other_users_are_not_used() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_parent, store) = temporary();
    store.create("log.0", 10).expect("a new file");
    store.create(CHUNK, 10).expect("a new file");
    drop(store.lock(Hold::Exclusive).expect("free"));
    let path = store.path().to_owned();
    chown(path.join("log.0"), Some(STRANGER), None).expect("root may");
    let store = open(&path).expect("it is there");
    assert_eq!(kind_of(store.open_len("log.0")), StoreErrorKind::Foreign);
    chown(path.join("chunks"), Some(STRANGER), None).expect("root may");
    let store = open(&path).expect("it is there");
    assert_eq!(kind_of(store.open_len(CHUNK)), StoreErrorKind::Gone);
    assert_eq!(kind_of(store.create("chunks/2", 1)), StoreErrorKind::Gone);
    // A member that belongs to a user as a whole is in order, and so is what root's daemon adds to it.
    for inside in ["", "log.0", "lock", "chunks", CHUNK] {
        chown(path.join(inside), Some(STRANGER), None).expect("root may");
    }
    let store = open(&path).expect("it is there");
    assert_eq!(store.open_len(CHUNK).expect("a file"), 10);
    store.create("log.1", 10).expect("a new file");
    assert_eq!(store.open_len("log.1").expect("a file"), 10);
}

/// A mount shows in what the kernel says of a file, whatever device numbers the filesystem gives.
#[test]
fn a_file_that_was_mounted_over_is_not_used() {
    let (_parent, store) = temporary();
    let rule = store.tree.rule();
    let Ok(elsewhere) = Seen::of(&fs::File::open("/proc/self/stat").expect("it is mounted")) else {
        return;
    };
    let refused = rule.check_file(&Seen {
        owner: rule.top().owner,
        ..elsewhere
    });
    assert_eq!(refused, Err(own::Oddity::Mounted));
}

/// Kernels before 5.8 do not tell mounts, and overlayfs gives files other device numbers than their directory.
#[test]
fn a_file_is_used_where_the_kernel_does_not_tell_its_mount() {
    let (_parent, store) = temporary();
    store.create("index", 10).expect("a new file");
    let file = fs::File::open(store.path().join("index")).expect("it is there");
    let seen = Seen::of(&file).expect("it is open");
    let (device, inode) = seen.identity;
    let seen = Seen {
        identity: (device + 1, inode),
        mount: None,
        ..seen
    };
    assert_eq!(store.tree.rule().check_file(&seen), Ok(()));
}

/// A server may give every file to one user (`all_squash`), who is another than the owner of the exported directory.
#[test]
fn a_member_is_usable_if_its_server_gives_all_files_to_its_own_user() {
    const OTHER: u32 = 1024;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (parent, store) = temporary();
    let victim = Victim::new(parent.path());
    for name in ["label", "index", "log.0", CHUNK] {
        store.create(name, 10).expect("a new file");
    }
    drop(store.lock(Hold::Exclusive).expect("free"));
    let path = store.path().to_owned();
    let give = |name: &str, owner| chown(path.join(name), Some(owner), None).expect("root may");
    for inside in ["label", "index", "lock", "chunks", CHUNK] {
        give(inside, STRANGER);
    }
    give("", OTHER);
    give("log.0", 4711);
    fs::remove_file(path.join("index")).expect("it is there");
    fs::hard_link(&victim.0, path.join("index")).expect("one filesystem");
    chown(&victim.0, Some(STRANGER), None).expect("root may");
    let inode = |name: &str| fs::metadata(path.join(name)).expect("it is there").ino();
    let lock = inode("lock");
    for without in ["", "label"] {
        if !without.is_empty() {
            fs::remove_file(path.join(without)).expect("it is there");
        }
        let store = open(&path).expect("it is there");
        assert_eq!(store.open_len(CHUNK).expect("a file"), 10);
        drop(store.lock(Hold::Exclusive).expect("free"));
        assert_eq!(inode("lock"), lock, "the lock file is not replaced");
        // Neither a third user nor another name is accepted with it.
        for name in ["log.0", "index"] {
            assert_eq!(kind_of(store.open_len(name)), StoreErrorKind::Foreign);
            assert_eq!(kind_of(store.truncate(name, 0)), StoreErrorKind::Foreign);
        }
        victim.assert_untouched();
    }
    assert!(untrusted(&path).is_some(), "root's daemon refuses it");
}

#[test]
fn files_are_usable_if_the_server_chose_their_owner() {
    use rustix::thread::set_thread_res_uid;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (parent, store) = temporary();
    for path in [parent.path(), store.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("ours");
    }
    // The rule was made for root. This thread makes files of another user, as a server does.
    let made = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(STRANGER);
        set_thread_res_uid(None, user, None).expect("root may");
        drop(store.lock(Hold::Exclusive).expect("free"));
        store.create(CHUNK, 10).expect("a new file");
        let owner = fs::metadata(store.path().join("chunks")).expect("it is there");
        assert_eq!(owner.uid(), STRANGER);
        store.open_len(CHUNK).expect("a file")
    });
    assert_eq!(made.join().expect("no panic"), 10);
}

#[test]
fn a_lock_is_ignored_only_if_all_its_holders_are_known_to_be_strangers() {
    let (_parent, store) = temporary();
    let own = store.tree.rule().top().owner;
    let user_of = |pid: u32| match pid {
        1 => Some(STRANGER),
        2 => Some(own),
        3 => Some(0),
        _ => None,
    };
    for (holders, expected) in [
        (&[1][..], true),
        (&[1, 1], true),
        (&[2], false),
        (&[3], false),
        // Another process may be hidden from this one, and so may all of them.
        (&[4], false),
        (&[1, 4], false),
        (&[], false),
    ] {
        assert_eq!(
            store.are_strangers(holders, user_of),
            expected,
            "{holders:?}"
        );
    }
}

#[test]
fn new_files_and_directories_are_for_their_user_alone() {
    let (_parent, store) = temporary();
    let top = store.path();
    // A default list by which all users may do anything, as bytes: owner, group, mask, others.
    let list: Vec<u8> = [(1u16, 7u16), (4, 7), (0x10, 7), (0x20, 7)]
        .iter()
        .flat_map(|(tag, bits)| {
            let ends = [tag.to_le_bytes(), bits.to_le_bytes()].concat();
            [ends, u32::MAX.to_le_bytes().to_vec()].concat()
        })
        .collect();
    let value = [2u32.to_le_bytes().to_vec(), list].concat();
    let flags = sys::XattrFlags::empty();
    let is_set = sys::setxattr(top, "system.posix_acl_default", &value, flags);
    for name in ["label", CHUNK] {
        store.create(name, 10).expect("a new file");
        assert_eq!(mode_of(top.join(name)), 0o600, "{name}, list: {is_set:?}");
    }
    assert_eq!(mode_of(top.join("chunks")), 0o700, "list: {is_set:?}");
    drop(store.lock(Hold::Exclusive).expect("free"));
    assert_eq!(mode_of(top.join(ROLES.lock)), 0o600);
}

#[test]
fn a_directory_that_others_may_open_is_closed_to_them_in_order_to_write_and_not_in_order_to_read() {
    let (_parent, store) = temporary();
    let set = |mode| fs::set_permissions(store.path(), fs::Permissions::from_mode(mode));
    set(0o775).expect("ours");
    drop(store.lock(Hold::Shared).expect("free"));
    assert_eq!(mode_of(store.path()), 0o775);
    assert!(!store.path().join(ROLES.lock).exists());
    drop(store.lock(Hold::Exclusive).expect("free"));
    assert_eq!(mode_of(store.path()), 0o700);
}

/// Earlier versions lock the directory and then the file to write, and the directory alone to read.
#[test]
fn earlier_versions_and_this_one_keep_each_other_out() {
    use sys::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    let (_parent, store) = temporary();
    drop(store.lock(Hold::Exclusive).expect("free"));
    let directory = || fs::File::open(store.path()).expect("it is there");
    let file = || fs::File::open(store.path().join(ROLES.lock)).expect("it is there");
    let reader = directory();
    sys::flock(&reader, NonBlockingLockShared).expect("free");
    assert_eq!(kind_of(store.lock(Hold::Exclusive)), StoreErrorKind::InUse);
    drop(store.lock(Hold::Shared).expect("readers go together"));
    drop(reader);

    let held = store.lock(Hold::Exclusive).expect("free");
    for lock in [NonBlockingLockShared, NonBlockingLockExclusive] {
        assert!(sys::flock(directory(), lock).is_err());
        assert!(sys::flock(file(), lock).is_err());
    }
    drop(held);
    let held = store.lock(Hold::Shared).expect("free");
    assert!(sys::flock(directory(), NonBlockingLockExclusive).is_err());
    assert!(sys::flock(file(), NonBlockingLockExclusive).is_err());
    drop(held);
}

#[test]
fn a_lock_file_that_is_a_link_is_replaced_and_its_other_name_stays_as_it_is() {
    let (parent, store) = temporary();
    let victim = Victim::new(parent.path());
    fs::hard_link(&victim.0, store.path().join(ROLES.lock)).expect("one filesystem");
    drop(store.lock(Hold::Shared).expect("free"));
    assert_eq!(fs::metadata(&victim.0).expect("it is there").nlink(), 2);
    drop(store.lock(Hold::Exclusive).expect("free"));
    assert_eq!(fs::metadata(&victim.0).expect("it is there").nlink(), 1);
    victim.assert_untouched();
}

/// Opens a directory with the demands of root's daemon.
fn untrusted(path: &Path) -> Option<StoreError> {
    let error = DirStore::open(path, &ROLES, Trust::OwnUser).err()?;
    assert_eq!(error.kind(), StoreErrorKind::Untrusted, "{error}");
    Some(error)
}

#[test]
fn a_directory_that_others_may_write_to_is_refused_wherever_they_may() {
    let (_parent, store) = temporary();
    store.create("index", 10).expect("a new file");
    store.create(CHUNK, 10).expect("a new file");
    let path = store.path();
    symlink("nowhere", path.join("link")).expect("the name is free");
    let set = |name: &str, mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(path.join(name), permissions).expect("ours");
    };
    for (name, sound) in [
        ("", 0o755),
        ("index", 0o644),
        ("chunks", 0o755),
        (CHUNK, 0o644),
    ] {
        for added in [0o020, 0o002] {
            set(name, sound);
            assert!(untrusted(path).is_none());
            set(name, sound | added);
            let error = untrusted(path).expect("it is refused");
            let expected = if name.is_empty() { "directory" } else { name };
            assert_eq!(error.name(), expected);
            // A caller that is not asked to refuse it takes it.
            open(path).expect("it is there");
        }
        set(name, sound);
    }
}

#[test]
fn a_directory_with_a_file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_parent, store) = temporary();
    store.create("index", 10).expect("a new file");
    store.create(CHUNK, 10).expect("a new file");
    let path = store.path();
    for name in ["", "index", "chunks", CHUNK] {
        chown(path.join(name), Some(STRANGER), None).expect("root may");
        let error = untrusted(path).expect("it is refused");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let source = source.unwrap_or_default();
        assert!(
            source.contains("it belongs to uid 65534 (mode 0"),
            "{source}"
        );
        chown(path.join(name), Some(0), None).expect("root may");
        assert!(untrusted(path).is_none());
    }
    // One that is changed later counts as damaged.
    let store = DirStore::open(path, &ROLES, Trust::OwnUser).expect("it is ours");
    chown(path.join(CHUNK), Some(STRANGER), None).expect("root may");
    assert_eq!(kind_of(store.open_len(CHUNK)), StoreErrorKind::Foreign);
    let mut kinds = Vec::new();
    let look = &mut |name: &str, kind| {
        kinds.push((name.to_owned(), kind));
        std::ops::ControlFlow::Continue(())
    };
    store.visit("chunks", look).expect("names");
    assert_eq!(kinds.len(), 1);
    assert_eq!(kinds[0].1, EntryKind::File);
}
