//! POSIX access control lists under libFuzzer: an input is the value of the extended attribute, as a caller sets it.
//!
//! The lists are read by the file of the product itself. What it would store must be read again, and say the same.

#![no_main]

use cauchyfs::format;
use libfuzzer_sys::fuzz_target;

/// As much of the room as lists need.
#[path = "../../src/fs"]
mod fs {
    use std::collections::BTreeMap;

    use super::format::record::{FileKind, Inline, Inode, Timestamp};
    use super::format::{Cookie, Ino};

    use edit::Edit;
    use types::Caller;

    mod acl;
    #[allow(dead_code, reason = "lists need one of its bits")]
    mod mode;

    mod error {
        pub(super) use cauchyfs::fs::FsError;
    }

    mod edit {
        use std::collections::BTreeMap;

        use crate::format::Ino;

        /// Stands in for a change of the index: the attributes that it sets.
        #[derive(Debug, Default)]
        pub(super) struct Edit(pub(super) BTreeMap<Vec<u8>, Vec<u8>>);

        impl Edit {
            pub(super) fn put_xattr(&mut self, _: Ino, name: &[u8], value: Vec<u8>) {
                self.0.insert(name.to_vec(), value);
            }

            pub(super) fn delete_xattr(&mut self, _: Ino, name: &[u8]) {
                self.0.remove(name);
            }
        }
    }

    mod types {
        /// Stands in for a caller: one of another group.
        pub(super) struct Caller;

        impl Caller {
            pub(super) fn may_set_gid_of(&self, _: u32) -> bool {
                false
            }
        }
    }

    const INO: Ino = Ino(7);

    /// Permission bits that are asked for or set.
    const MODES: [u16; 4] = [0, 0o640, 0o2755, 0o777];

    fn inode(kind: FileKind) -> Inode {
        Inode {
            kind,
            permissions: 0o2644,
            uid: 1,
            gid: 1,
            links: 1,
            rdev: 0,
            size: 0,
            allocated_bytes: 0,
            unwritten_bytes: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            parent: Ino(0),
            next_cookie: Cookie(0),
            inline: Inline::None,
        }
    }

    /// Sets a list on a file, and returns the permission bits and attributes that it gets.
    fn set(value: &[u8]) -> Option<(u16, BTreeMap<Vec<u8>, Vec<u8>>)> {
        let mut inode = inode(FileKind::Regular);
        let mut edit = Edit::default();
        acl::set_access(&mut edit, &Caller, INO, &mut inode, value).ok()?;
        Some((inode.permissions, edit.0))
    }

    /// Uses a list in every way in which one is used.
    pub(crate) fn try_list(value: &[u8]) {
        let Some((permissions, stored)) = set(value) else {
            for mode in MODES {
                assert!(acl::follow_mode(value, mode).is_err());
                assert!(acl::inherit(&mut Edit::default(), INO, true, value, mode).is_err());
            }
            let directory = inode(FileKind::Directory);
            assert!(acl::set_default(&mut Edit::default(), INO, &directory, value).is_err());
            return;
        };
        assert_eq!(permissions & !0o7777, 0);
        for list in stored.values() {
            assert_eq!(set(list).as_ref(), Some(&(permissions, stored.clone())));
        }
        for mode in MODES {
            let followed = acl::follow_mode(value, mode).expect("the list is valid");
            assert_eq!(followed.len(), value.len());
            if let Some((permissions, _)) = set(&followed).filter(|_| !value[4..].is_empty()) {
                assert_eq!(permissions & 0o777, mode & 0o777);
            }
            let mut edit = Edit::default();
            let granted = acl::inherit(&mut edit, INO, true, value, mode);
            let granted = granted.expect("the list is valid");
            assert_eq!(granted & !mode, 0, "more than was asked for");
            assert!(edit.0.values().all(|list| set(list).is_some()));
        }
        for kind in [FileKind::Directory, FileKind::Regular] {
            let mut edit = Edit::default();
            if acl::set_default(&mut edit, INO, &inode(kind), value).is_ok() {
                assert!(edit.0.values().all(|list| set(list).is_some()));
            }
        }
    }
}

fuzz_target!(|input: &[u8]| fs::try_list(input));
