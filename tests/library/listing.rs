//! Listings of directories that are opened under a number, or by the caller itself.

use std::collections::BTreeMap;

use cauchyfs::format::Ino;
use cauchyfs::fs::{Fs, FsError, Handle, RenameMode};

use crate::calls::{BY_CALLER, OPENERS, Opener, ROOT, create, fs, list, sound};

#[test]
fn a_listing_has_every_entry_that_stays_exactly_once_while_others_come_and_go() {
    for open in OPENERS {
        list_while_others_come_and_go(open);
    }
}

fn list_while_others_come_and_go(open: Opener) {
    let fs = fs();
    for index in 0..1_000 {
        create(&fs, &format!("f{index}"));
    }
    let dir = open(&fs, Ino::ROOT);
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut offset, mut round) = (0, 0);
    loop {
        let (names, next) = list(&fs, dir, offset, 7);
        if names.is_empty() {
            break;
        }
        for name in names {
            *seen.entry(name).or_default() += 1;
        }
        offset = next;
        // One goes that was listed, one that was not, perhaps; one comes.
        for gone in [round * 10, 999 - round * 10] {
            if gone % 10 != 5 {
                let _gone_before = fs.names().unlink(Ino::ROOT, format!("f{gone}").as_bytes());
            }
        }
        create(&fs, &format!("new{round}"));
        round += 1;
    }
    for index in (5..1_000).step_by(10) {
        assert_eq!(
            seen.get(format!("f{index}").as_bytes()),
            Some(&1),
            "f{index}"
        );
    }
    assert!(seen.values().all(|times| *times == 1));
    sound(&fs);
}

#[test]
fn a_program_that_adds_or_renames_an_entry_for_each_it_lists_comes_to_an_end() {
    for open in OPENERS {
        add_or_rename_an_entry_for_each(open);
    }
}

fn add_or_rename_an_entry_for_each(open: Opener) {
    for (mode, rewound) in [(RenameMode::Replace, 102), (RenameMode::Whiteout, 152)] {
        let fs = fs();
        for index in 0..50 {
            create(&fs, &format!("f{index}"));
        }
        let dir = open(&fs, Ino::ROOT);
        let (mut offset, mut listed) = (0, 0);
        loop {
            let (names, next) = list(&fs, dir, offset, 1);
            let Some(name) = names.first() else { break };
            offset = next;
            listed += 1;
            assert!(listed <= 200, "the listing does not end");
            if name.starts_with(b".") {
                continue;
            }
            create(&fs, &format!("new{listed}"));
            let renamed = [name, &b".bak"[..]].concat();
            fs.names()
                .rename(ROOT, Ino::ROOT, name, Ino::ROOT, &renamed, mode)
                .unwrap();
        }
        assert_eq!(listed, 52, "{mode:?}");
        let all = list(&fs, dir, 0, 1_000).0.len();
        assert_eq!(all, rewound, "rewound, it has all: {mode:?}");
        sound(&fs);
    }
}

#[test]
fn a_caller_that_opens_by_itself_lists_nothing_but_directories() {
    let fs = fs();
    let (file, _handle) = create(&fs, "file");
    for (ino, expected) in [(file, "NotDirectory"), (Ino(1 << 40), "NotFound")] {
        let handle = BY_CALLER(&fs, ino);
        let refused = fs.directories().read(handle, 0, false, &mut |_| true);
        assert_eq!(format!("{:?}", refused.unwrap_err()), expected);
    }
    sound(&fs);
}

/// Returns the names of a directory in pieces of three, and calls `between` after each.
fn list_in_pieces(fs: &Fs, dir: Handle, mut between: impl FnMut(u64)) -> Vec<String> {
    let (mut offset, mut names) = (0, Vec::new());
    loop {
        let (more, next) = list(fs, dir, offset, 3);
        if more.is_empty() {
            return names;
        }
        names.extend(
            more.into_iter()
                .map(|name| String::from_utf8(name).unwrap()),
        );
        assert!(names.len() <= 100, "the listing does not end");
        between(next);
        offset = next;
    }
}

#[test]
fn a_listing_among_many_others_leaves_out_what_is_made_meanwhile() {
    let fs = fs();
    let home = fs.names().mkdir(ROOT, Ino::ROOT, b"others", 0o755);
    let home = home.unwrap().ino;
    let others: Vec<Ino> = (0..2000)
        .map(|index| {
            let name = format!("d{index}");
            let made = fs.names().mkdir(ROOT, home, name.as_bytes(), 0o755);
            made.unwrap().ino
        })
        .collect();
    let files = (0..10).map(|index| format!("f{index}"));
    let files: Vec<String> = files.collect();
    for name in &files {
        create(&fs, name);
    }
    let names = list_in_pieces(&fs, BY_CALLER(&fs, Ino::ROOT), |offset| {
        create(&fs, &format!("new{offset}"));
        for other in &others {
            list(&fs, BY_CALLER(&fs, *other), 0, 1);
        }
    });
    let dots_and_others = [".", "..", "others"].map(str::to_owned);
    assert_eq!(names, [&dots_and_others[..], &files].concat());
    sound(&fs);
}

#[test]
fn a_reader_that_rewinds_shows_another_what_is_new_and_repeats_nothing() {
    let fs = fs();
    for index in 0..10 {
        create(&fs, &format!("f{index}"));
    }
    let mut has_rewound = false;
    let mut names = list_in_pieces(&fs, BY_CALLER(&fs, Ino::ROOT), |_| {
        if !has_rewound {
            create(&fs, "new");
            assert_eq!(list(&fs, BY_CALLER(&fs, Ino::ROOT), 0, 3).0.len(), 3);
            has_rewound = true;
        }
    });
    assert_eq!(names.pop().as_deref(), Some("new"));
    let files = (0..10).map(|index| format!("f{index}"));
    let expected = [".", "..", "f0"].map(str::to_owned).into_iter();
    let expected: Vec<String> = expected.chain(files.skip(1)).collect();
    assert_eq!(names, expected);
    sound(&fs);
}

#[test]
fn a_listing_ends_with_its_last_entry_or_once_the_directory_is_forgotten() {
    let fs = fs();
    let dir = fs.names().mkdir(ROOT, Ino::ROOT, b"dir", 0o755);
    let dir = dir.unwrap().ino;
    let make = |name: &str| fs.names().mkdir(ROOT, dir, name.as_bytes(), 0o755).unwrap();
    make("first");
    let handle = BY_CALLER(&fs, dir);
    let (_, next) = list(&fs, handle, 0, 10);
    make("second");
    assert!(list(&fs, handle, next, 10).0.is_empty(), "it is the end");
    let (found, next) = list(&fs, handle, next, 10);
    assert_eq!(found, [b"second".to_vec()], "this one began after it");
    make("third");
    // The look-up that made it is the only one.
    fs.open_files().forget(dir, 1);
    assert_eq!(fs.names().lookup(Ino::ROOT, b"dir").unwrap().ino, dir);
    assert_eq!(list(&fs, handle, next, 10).0, [b"third".to_vec()]);
    sound(&fs);
}

#[test]
fn a_removed_directory_that_is_open_lists_nothing_and_takes_nothing() {
    let fs = fs();
    let dir = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    let handle = fs.directories().open(dir).unwrap();
    fs.names().rmdir(Ino::ROOT, b"dir").unwrap();
    assert_eq!(list(&fs, handle, 0, 10).0, [b".".to_vec(), b"..".to_vec()]);
    let by_caller = BY_CALLER(&fs, dir);
    assert_eq!(list(&fs, by_caller, 0, 10).0.len(), 2);
    let refused = fs.names().mkdir(ROOT, dir, b"below", 0o755);
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    fs.directories().release(handle).unwrap();
    assert_eq!(list(&fs, by_caller, 0, 10).0.len(), 2);
    fs.open_files().forget(dir, 1);
    assert!(matches!(fs.attributes().get(dir), Err(FsError::NotFound)));
    sound(&fs);
}
