//! Hostile volumes on real directories, and what the real binary copies out of them. No test here mounts.
//!
//! Each works deep inside a temporary directory, so that `..` stays in it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cauchyfs::format::record::{Dirent, FileKind, Inode, Position};
use cauchyfs::format::{Cookie, Ino, Record, key};
use cauchyfs::fs::{Caller, Fs, FsOptions, OpenFlags, WriteFlags};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::membership::directory;
use cauchyfs::metadata::Batch;
use cauchyfs::store::{Executor, ExecutorKind, StoreRef};
use cauchyfs::transaction::OpenOptions;

use crate::support::{CAUCHYFS, eventually, must, pattern, run, said, text};

const ROOT: &Caller = &Caller::ROOT;

/// Members, and an OUT far below them, with a directory beside it.
struct Hostile {
    home: tempfile::TempDir,
    members: [PathBuf; 2],
    out: PathBuf,
    beside: PathBuf,
}

impl Hostile {
    /// Makes a volume, and has `fill` write to it.
    fn new(fill: impl FnOnce(&Fs, &Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let members = ["d0", "d1"].map(|name| home.path().join(name));
        let above = home.path().join("a/b/c");
        let (out, beside) = (above.join("out"), above.join("beside"));
        fs::create_dir_all(&out).unwrap();
        fs::create_dir(&beside).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(beside.join("victim"), "untouched").unwrap();
        let create = [
            "create",
            "--data",
            "1",
            "--parity",
            "1",
            "--segment-size",
            "16MiB",
        ];
        let directories = [text(&members[0]), text(&members[1])];
        must(CAUCHYFS, &[&create[..], &directories].concat());
        let open = |path: &PathBuf| Arc::new(directory::open(path).unwrap()) as StoreRef;
        let stores = members.iter().map(open).collect();
        let executor = Executor::new(ExecutorKind::Auto, Duration::from_secs(60));
        let maintenance = Maintenance::open(stores, &OpenOptions::default(), Arc::new(executor));
        let volume = Fs::open(maintenance.unwrap(), FsOptions::default()).unwrap();
        fill(&volume, &beside);
        volume.close().unwrap();
        Self {
            home,
            members,
            out,
            beside,
        }
    }

    /// Returns name, mode, owner, time and content of all that is outside OUT and the members.
    fn outside(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![self.home.path().join("a")];
        while let Some(path) = left.pop() {
            let meta = path.symlink_metadata().unwrap();
            let content = if meta.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            // A file made in a directory changes the directory's time.
            let time = (path != self.out).then(|| (meta.mtime(), meta.mtime_nsec()));
            found.push(format!(
                "{} {:o} {}:{} {time:?} {content:?}",
                path.display(),
                meta.mode(),
                meta.uid(),
                meta.gid(),
            ));
            if meta.is_dir() && path != self.out {
                let entries = fs::read_dir(&path).unwrap();
                left.extend(entries.map(|entry| entry.unwrap().path()));
            }
        }
        found.sort();
        found
    }

    /// Extracts, and asserts that nothing else changes.
    fn extract(&self, options: &[&str]) -> Output {
        let before = self.outside();
        let members = [text(&self.members[0]), text(&self.members[1])];
        let to = ["--to", text(&self.out)];
        let output = run(CAUCHYFS, &[&["extract"], options, &members, &to].concat());
        assert_eq!(self.outside(), before, "{}", said(&output));
        output
    }
}

fn file(fs: &Fs, parent: Ino, name: &[u8], mode: u32) -> Ino {
    let flags = OpenFlags::read_write();
    let (attr, handle) = fs.names().create(ROOT, parent, name, mode, flags).unwrap();
    let written = fs
        .writer()
        .write(handle, 0, b"#!/bin/sh\n", WriteFlags::default());
    written.unwrap();
    fs.open_files().release(handle).unwrap();
    attr.ino
}

/// Puts both records of an entry, or the position alone.
fn entry(fs: &Fs, parent: Ino, name: &[u8], ino: Ino, (cookie, by_name): (u64, bool)) {
    let kind = fs.attributes().get(ino).unwrap().kind;
    let cookie = Cookie(cookie);
    let mut batch = Batch::default();
    if by_name {
        let dirent = Dirent { ino, kind, cookie };
        batch.put(key::dirent(parent, name), dirent.encode());
    }
    let name = name.to_vec();
    let position = Position { ino, kind, name };
    batch.put(key::position(parent, cookie), position.encode());
    let key = key::inode(parent);
    let inode = fs.transactions().get(&key).unwrap().unwrap();
    let mut inode = Inode::decode(&inode).unwrap();
    inode.next_cookie = inode.next_cookie.max(Cookie(cookie.0 + 1));
    batch.put(key, inode.encode());
    fs.transactions().apply(batch).unwrap();
}

#[test]
fn a_volume_with_names_above_its_root_extracts_nothing_outside_the_target() {
    let volume = Hostile::new(|fs, _| {
        let evil = fs
            .names()
            .mkdir(ROOT, Ino::ROOT, b"evil", 0o777)
            .unwrap()
            .ino;
        let setuid = file(fs, evil, b"setuid", 0o6755);
        file(fs, evil, b"beside", 0o4755);
        entry(fs, Ino::ROOT, b"..", evil, (100, true));
        entry(fs, evil, b"..", evil, (100, true));
        entry(fs, evil, b"../setuid", setuid, (101, true));
        entry(fs, evil, b".", setuid, (102, true));
        entry(fs, evil, b"", setuid, (103, true));
    });
    let members = [text(&volume.members[0]), text(&volume.members[1])];
    let output = volume.extract(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let summary = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        summary.contains("left out without --privileged: 2 setuid"),
        "{summary}"
    );
    let setuid = fs::metadata(volume.out.join("evil/setuid")).unwrap();
    assert_eq!(setuid.mode() & 0o7777, 0o755);

    let output = run(CAUCHYFS, &[&["check"][..], &members].concat());
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let found = said(&output);
    for fault in [
        "`.` or `..` for a name",
        "a name with a slash",
        "an empty name",
    ] {
        assert!(found.contains(fault), "{found}");
    }
    let output = run(CAUCHYFS, &[&["check", "--repair"][..], &members].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    fs::remove_dir_all(volume.out.join("evil")).unwrap();
    let output = volume.extract(&["--privileged"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let setuid = fs::metadata(volume.out.join("evil/setuid")).unwrap();
    assert_eq!(setuid.mode() & 0o7777, 0o6755);
}

#[test]
fn a_link_is_followed_neither_from_the_volume_nor_from_out() {
    let volume = Hostile::new(|fs, beside| {
        fs.names().mkdir(ROOT, Ino::ROOT, b"first", 0o777).unwrap();
        let twice = fs
            .names()
            .mkdir(ROOT, Ino::ROOT, b"twice", 0o777)
            .unwrap()
            .ino;
        file(fs, twice, b"victim", 0o4755);
        let leads_to = text(beside).as_bytes();
        let link = fs
            .names()
            .symlink(ROOT, Ino::ROOT, b"link", leads_to)
            .unwrap()
            .ino;
        assert_eq!(fs.attributes().get(link).unwrap().kind, FileKind::Symlink);
        // In front of the directory of that name, and behind it.
        fs.names().rmdir(Ino::ROOT, b"first").unwrap();
        entry(fs, Ino::ROOT, b"twice", link, (1, false));
        entry(fs, Ino::ROOT, b"twice", link, (100, false));
    });
    let output = volume.extract(&["--privileged"]);
    assert!(
        volume.out.join("twice/victim").exists(),
        "{}",
        said(&output)
    );
    assert!(volume.out.join("link").is_symlink());

    // An earlier extraction, or another user, has left a link.
    fs::remove_dir_all(volume.out.join("twice")).unwrap();
    fs::remove_file(volume.out.join("link")).unwrap();
    symlink(&volume.beside, volume.out.join("twice")).unwrap();
    let output = volume.extract(&["--privileged"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("a link is in the way"), "{errors}");
}

#[test]
fn control_characters_of_names_do_not_reach_the_terminal() {
    let volume = Hostile::new(|fs, _| {
        let name = b"\x1b]0;title\x07\n";
        let inner = fs.names().mkdir(ROOT, Ino::ROOT, name, 0o755).unwrap().ino;
        file(fs, inner, b"a", 0o644);
    });
    fs::create_dir(volume.out.join("\x1b]0;title\x07\n")).unwrap();
    fs::write(volume.out.join("\x1b]0;title\x07\n/a"), "").unwrap();
    let output = volume.extract(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("\\u{1b}]0;title\\u{7}\\n/a: File exists"),
        "{errors:?}"
    );
    assert!(!errors.contains('\x1b'), "{errors:?}");
}

/// Whenever it is killed, the same command goes on to the same result.
#[test]
fn an_extraction_that_was_killed_is_completed_by_the_same_command() {
    const FILES: usize = 40;
    const LEN: usize = 512 << 10;
    let content = |number: usize| pattern(number as u64, LEN);
    let volume = Hostile::new(|fs, _| {
        let names = fs.names();
        let inner = names.mkdir(ROOT, Ino::ROOT, b"inner", 0o751).unwrap().ino;
        for number in 0..FILES {
            let name = format!("f{number:02}");
            let flags = OpenFlags::read_write();
            let made = names.create(ROOT, inner, name.as_bytes(), 0o640, flags);
            let (_, handle) = made.unwrap();
            let writer = fs.writer();
            let written = writer.write(handle, 0, &content(number), WriteFlags::default());
            assert_eq!(written.unwrap(), LEN);
            fs.open_files().release(handle).unwrap();
        }
    });
    let inner = volume.out.join("inner");
    let complete = || {
        let names = fs::read_dir(&inner).into_iter().flatten();
        let names = names.map(|entry| entry.unwrap().file_name());
        let is_complete = |name: &OsString| name.as_encoded_bytes().starts_with(b"f");
        names.filter(is_complete).count()
    };
    for wanted in [1, FILES / 2] {
        let mut command = Command::new(CAUCHYFS);
        command.arg("extract").args(&volume.members);
        command.arg("--to").arg(&volume.out).stdout(Stdio::null());
        let mut extraction = command.spawn().unwrap();
        eventually("some files are complete", || {
            complete() >= wanted || extraction.try_wait().unwrap().is_some()
        });
        // It may have ended already.
        let _ended = extraction.kill();
        extraction.wait().unwrap();
        assert!(complete() >= wanted);
    }
    let output = volume.extract(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains(" of an earlier run"),
        "{}",
        said(&output)
    );
    for number in 0..FILES {
        let path = inner.join(format!("f{number:02}"));
        assert!(fs::read(&path).unwrap() == content(number), "{number}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    }
    assert_eq!(fs::metadata(&inner).unwrap().mode() & 0o7777, 0o751);
    let all = fs::read_dir(&inner).unwrap().count();
    assert_eq!(all, FILES, "nothing else is left there");
}
