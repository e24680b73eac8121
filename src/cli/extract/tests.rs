//! Hostile volumes: whatever their records say, nothing outside OUT is made or changed.
//!
//! Each test works deep inside a temporary directory, so that `..` stays in it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use cauchyfs_testkit::{disks, executor, stores};
use tempfile::TempDir;

use super::target::tests::snapshot;
use super::*;
use crate::codec::Geometry;
use crate::format::record::{Dirent, Inode, Position, Xattr};
use crate::format::{Cookie, Record, key};
use crate::fs::{FsOptions, WriteFlags, XattrMode};
use crate::maintenance::Maintenance;
use crate::metadata::{Batch, Key, Value};
use crate::transaction::{CreateOptions, OpenOptions, Transactions};

const ROOT: &Caller = &Caller::ROOT;

/// A volume in memory, and an OUT with a file beside it that must stay as it is.
struct Hostile {
    fs: Arc<Fs>,
    home: TempDir,
    out: PathBuf,
    cookie: u64,
}

impl Hostile {
    fn new() -> Self {
        let disks = disks(2, 1 << 30);
        let executor = || executor(Duration::from_secs(30));
        let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
        options.segment_bytes = 16 << 20;
        Transactions::create(&stores(&disks), &options, executor()).unwrap();
        let options = OpenOptions {
            threads: 0,
            ..OpenOptions::default()
        };
        let maintenance = Maintenance::open(stores(&disks), &options, executor()).unwrap();
        let home = tempfile::tempdir().unwrap();
        let above = home.path().join("a/b/c");
        let out = above.join("out");
        fs::create_dir_all(&out).unwrap();
        fs::create_dir(above.join("beside")).unwrap();
        fs::write(above.join("beside/victim"), "untouched").unwrap();
        Self {
            fs: Fs::open(maintenance, FsOptions::default()).unwrap(),
            home,
            out,
            cookie: 1000,
        }
    }

    fn beside(&self) -> PathBuf {
        self.out.with_file_name("beside")
    }

    fn directory(&self, parent: Ino, name: &str) -> Ino {
        let made = self.fs.names().mkdir(ROOT, parent, name.as_bytes(), 0o777);
        made.unwrap().ino
    }

    fn file(&self, parent: Ino, name: &str, mode: u32) -> Ino {
        let flags = OpenFlags::read_write();
        let created = self
            .fs
            .names()
            .create(ROOT, parent, name.as_bytes(), mode, flags);
        let (attr, handle) = created.unwrap();
        let content = format!("content of {name}");
        let written = self
            .fs
            .writer()
            .write(handle, 0, content.as_bytes(), WriteFlags::default());
        written.unwrap();
        self.fs.open_files().release(handle).unwrap();
        attr.ino
    }

    fn put(&self, records: &[(Key, Value)]) {
        let mut batch = Batch::default();
        for (key, value) in records {
            batch.put(key.clone(), value.clone());
        }
        self.fs.transactions().apply(batch).unwrap();
    }

    /// Puts both records of an entry, whatever its name.
    fn entry(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        let kind = self.fs.attributes().get(ino).unwrap().kind;
        self.cookie += 1;
        let cookie = Cookie(self.cookie);
        let dirent = Dirent { ino, kind, cookie };
        self.put(&[(key::dirent(parent, name), dirent.encode())]);
        self.position(parent, name, ino);
        let mut inode = self.inode(parent);
        inode.next_cookie = Cookie(self.cookie + 1);
        self.put(&[(key::inode(parent), inode.encode())]);
    }

    /// Puts a position alone.
    fn position(&self, parent: Ino, name: &[u8], ino: Ino) {
        let kind = self.fs.attributes().get(ino).unwrap().kind;
        let name = name.to_vec();
        let position = Position { ino, kind, name };
        let key = key::position(parent, Cookie(self.cookie));
        self.put(&[(key, position.encode())]);
    }

    fn inode(&self, ino: Ino) -> Inode {
        let value = self.fs.transactions().get(&key::inode(ino)).unwrap();
        Inode::decode(&value.unwrap()).unwrap()
    }

    fn outside(&self) -> Vec<String> {
        snapshot(self.home.path(), &self.out)
    }

    /// Extracts, and asserts that all outside OUT stays as it is. Returns the summary.
    fn extract(&self, privileged: bool) -> Result<(String, Outcome), Failure> {
        self.extract_with(privileged, |_| ())
    }

    /// The same, after `change` of how it is done.
    fn extract_with(
        &self,
        privileged: bool,
        change: impl FnOnce(&mut Extraction<'_>),
    ) -> Result<(String, Outcome), Failure> {
        let before = self.outside();
        let extracted = open_target(&self.out, &[]).and_then(|target| {
            let mut extraction = Extraction::new(&self.fs, self.out.clone(), target, privileged);
            change(&mut extraction);
            extraction.copy_out(&[])?;
            Ok((extraction.summary(), extraction.outcome()))
        });
        assert_eq!(self.outside(), before, "outside OUT");
        extracted
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.out).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn names_that_lead_out_of_out_are_lost_and_all_others_copied() {
    for name in [
        &b".."[..],
        b".",
        b"",
        b"../beside",
        b"/",
        b"a/b",
        b"../beside/victim",
    ] {
        for privileged in [false, true] {
            let mut volume = Hostile::new();
            let inner = volume.directory(Ino::ROOT, "inner");
            let evil = volume.directory(Ino::ROOT, "evil");
            volume.file(evil, "planted", 0o4755);
            volume.entry(Ino::ROOT, name, evil);
            let planted = volume.file(inner, "setuid", 0o6755);
            volume.entry(inner, name, planted);
            volume.file(inner, "good", 0o644);
            let (summary, outcome) = volume.extract(privileged).unwrap();
            assert_eq!(outcome, Outcome::Lost, "{name:?}: {summary}");
            assert_eq!(volume.names(), ["evil", "inner"], "{name:?}");
            let good = fs::read(volume.out.join("inner/good")).unwrap();
            assert_eq!(good, b"content of good");
        }
    }
}

#[test]
fn a_name_that_comes_twice_is_served_once() {
    let volume = {
        let mut volume = Hostile::new();
        let outside = volume.beside().into_os_string().into_encoded_bytes();
        volume.directory(Ino::ROOT, "first");
        let real = volume.directory(Ino::ROOT, "twice");
        volume.fs.names().rmdir(Ino::ROOT, b"first").unwrap();
        volume.file(real, "victim", 0o4755);
        volume.file(real, "new", 0o644);
        let link = volume
            .fs
            .names()
            .symlink(ROOT, Ino::ROOT, b"link", &outside)
            .unwrap();
        // Behind the directory, and in front of it.
        volume.cookie = 5000;
        volume.position(Ino::ROOT, b"twice", link.ino);
        volume.cookie = 1;
        volume.position(Ino::ROOT, b"twice", link.ino);
        let mut root = volume.inode(Ino::ROOT);
        root.next_cookie = Cookie(6000);
        volume.put(&[(key::inode(Ino::ROOT), root.encode())]);
        volume
    };
    let (_, outcome) = volume.extract(true).unwrap();
    assert_eq!(outcome, Outcome::Lost);
    assert_eq!(volume.names(), ["link", "twice"]);
    assert!(
        volume
            .out
            .join("twice")
            .symlink_metadata()
            .unwrap()
            .is_dir()
    );
    assert!(volume.out.join("twice/new").exists());
    // The mounted path serves it once, too.
    let handle = volume.fs.directories().open(Ino::ROOT).unwrap();
    let mut listed = Vec::new();
    let read = volume.fs.directories().read(handle, 0, true, &mut |item| {
        listed.push((item.name.to_vec(), item.kind));
        true
    });
    read.unwrap();
    let twice = listed.iter().filter(|(name, _)| name == b"twice");
    assert_eq!(
        twice.collect::<Vec<_>>(),
        [&(b"twice".to_vec(), FileKind::Directory)]
    );
    volume.fs.open_files().release(handle).unwrap();
}

#[test]
fn links_that_lie_in_out_are_not_followed() {
    let volume = Hostile::new();
    let inner = volume.directory(Ino::ROOT, "inner");
    volume.file(inner, "victim", 0o644);
    symlink(volume.beside(), volume.out.join("inner")).unwrap();
    let failure = volume.extract(true).expect_err("a link is in the way");
    assert!(
        failure.message.contains("a link is in the way"),
        "{failure:?}"
    );
    assert!(failure.advice.is_some(), "{failure:?}");

    let volume = Hostile::new();
    volume.file(Ino::ROOT, "file", 0o644);
    symlink(volume.beside().join("victim"), volume.out.join("file")).unwrap();
    volume.extract(true).expect_err("nothing is overwritten");
}

#[test]
fn directories_that_existed_keep_their_attributes() {
    let volume = Hostile::new();
    let kept = volume.directory(Ino::ROOT, "kept");
    let made = volume.directory(kept, "made");
    volume.file(made, "file", 0o640);
    fs::create_dir(volume.out.join("kept")).unwrap();
    for (path, mode) in [("", 0o755), ("kept", 0o711)] {
        let path = volume.out.join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for (ino, permissions) in [(Ino::ROOT, 0o777), (kept, 0o777), (made, 0o751)] {
        let mut inode = volume.inode(ino);
        inode.permissions = permissions;
        (inode.uid, inode.gid) = (4321, 4321);
        inode.mtime = Timestamp {
            seconds: 1_000,
            nanos: 0,
        };
        volume.put(&[(key::inode(ino), inode.encode())]);
    }
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Done, "{summary}");
    assert_eq!(summary, "1 file, 15 B");
    let own = rustix::process::geteuid().as_raw();
    for (path, mode, owner) in [
        ("", 0o755, own),
        ("kept", 0o711, own),
        ("kept/made", 0o751, 4321),
    ] {
        let meta = volume.out.join(path).symlink_metadata().unwrap();
        assert_eq!(meta.mode() & 0o7777, mode, "{path}");
        assert_eq!(meta.mtime() == 1_000, path == "kept/made", "{path}");
        if own == 0 {
            assert_eq!(meta.uid(), owner, "{path}");
        }
    }
}

#[test]
fn a_new_out_gets_the_attributes_of_the_root() {
    let mut volume = Hostile::new();
    volume.out = volume.out.join("new");
    let mut root = volume.inode(Ino::ROOT);
    root.permissions = 0o751;
    volume.put(&[(key::inode(Ino::ROOT), root.encode())]);
    let target = open_target(&volume.out, &[]).unwrap();
    let mut extraction = Extraction::new(&volume.fs, volume.out.clone(), target, false);
    extraction.copy_out(&[]).unwrap();
    let meta = fs::metadata(&volume.out).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o751);
}

#[test]
fn privileges_of_files_are_restored_on_request_only() {
    let volume = Hostile::new();
    let setgid = volume.directory(Ino::ROOT, "setgid");
    let mut inode = volume.inode(setgid);
    inode.permissions = 0o2775;
    volume.put(&[(key::inode(setgid), inode.encode())]);
    let file = volume.file(setgid, "setuid", 0o4755);
    volume.file(setgid, "plain", 0o755);
    let device = volume
        .fs
        .names()
        .mknod(ROOT, Ino::ROOT, b"null", libc::S_IFCHR | 0o666, 0x103);
    device.unwrap();
    for name in [&b"security.test"[..], b"trusted.test", b"user.test"] {
        let key = key::xattr(file, name);
        volume.put(&[(key, Xattr(b"value".to_vec()).encode())]);
    }
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Degraded, "{summary}");
    assert_eq!(
        summary.lines().last(),
        Some(
            "left out without --privileged: 2 setuid or setgid modes, 1 device, 2 privileged attributes"
        )
    );
    let mode = |path: &str| fs::metadata(volume.out.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("setgid"), mode("setgid/setuid")), (0o775, 0o755));
    assert!(volume.out.join("null").symlink_metadata().is_err());
    let mut value = [0_u8; 16];
    for name in ["security.test", "trusted.test"] {
        let path = volume.out.join("setgid/setuid");
        let found = rustix::fs::getxattr(path, name, &mut value[..]);
        assert!(found.is_err(), "{name}");
    }

    fs::remove_dir_all(volume.out.join("setgid")).unwrap();
    let extracted = volume.extract(true);
    if rustix::process::geteuid().is_root() {
        let (summary, _) = extracted.unwrap();
        assert!(!summary.contains("left out"), "{summary}");
        assert_eq!((mode("setgid"), mode("setgid/setuid")), (0o2775, 0o4755));
        let null = volume.out.join("null").symlink_metadata().unwrap();
        assert_eq!(null.rdev(), 0x103);
    }
}

#[test]
fn a_file_whose_owner_cannot_be_set_loses_setuid() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let volume = Hostile::new();
    let file = volume.file(Ino::ROOT, "trap", 0o6755);
    let mut inode = volume.inode(file);
    // The number that `chown` takes for "as it is".
    inode.uid = u32::MAX;
    volume.put(&[(key::inode(file), inode.encode())]);
    let (_, outcome) = volume.extract(true).unwrap();
    assert_eq!(outcome, Outcome::Degraded);
    let meta = fs::metadata(volume.out.join("trap")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o755);
}

#[test]
fn directories_in_themselves_and_under_two_names_are_copied_once() {
    let mut volume = Hostile::new();
    let outer = volume.directory(Ino::ROOT, "outer");
    let inner = volume.directory(outer, "inner");
    volume.file(inner, "file", 0o644);
    volume.entry(inner, b"outer", outer);
    volume.entry(inner, b"inner", inner);
    volume.entry(inner, b"root", Ino::ROOT);
    // Each level under two names would make 2^40 paths.
    let mut at = volume.directory(Ino::ROOT, "d");
    for _ in 0..40 {
        let next = volume.directory(at, "a");
        volume.entry(at, b"b", next);
        at = next;
    }
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Lost, "{summary}");
    assert!(summary.starts_with("1 file, "), "{summary}");
    assert!(volume.out.join("outer/inner/file").exists());
    assert!(volume.out.join("d").join("a/".repeat(40)).exists());
}

#[test]
fn hard_links_and_attributes_come_along() {
    let volume = Hostile::new();
    let inner = volume.directory(Ino::ROOT, "inner");
    let file = volume.file(inner, "file", 0o640);
    volume.fs.names().link(file, Ino::ROOT, b"twin").unwrap();
    let link = volume
        .fs
        .names()
        .symlink(ROOT, inner, b"link", b"file")
        .unwrap()
        .ino;
    volume
        .fs
        .names()
        .link(link, Ino::ROOT, b"link twin")
        .unwrap();
    let set = volume
        .fs
        .xattrs()
        .set(ROOT, file, b"user.a", b"value", XattrMode::Set);
    set.unwrap();
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Done, "{summary}");
    let inode = |path: &str| volume.out.join(path).symlink_metadata().unwrap().ino();
    assert_eq!(inode("twin"), inode("inner/file"));
    assert_eq!(inode("link twin"), inode("inner/link"));
    let mut value = [0_u8; 16];
    let len = rustix::fs::getxattr(volume.out.join("twin"), "user.a", &mut value[..]);
    assert_eq!(len.map(|len| value[..len].to_vec()), Ok(b"value".to_vec()));
}

#[test]
fn a_file_is_copied_where_the_target_takes_no_hard_link() {
    for refusal in [rustix::io::Errno::XDEV, rustix::io::Errno::MLINK] {
        let volume = Hostile::new();
        let (inner, other) = (
            volume.directory(Ino::ROOT, "inner"),
            volume.directory(Ino::ROOT, "other"),
        );
        let file = volume.file(inner, "file", 0o640);
        for name in ["one", "two", "three"] {
            volume
                .fs
                .names()
                .link(file, other, name.as_bytes())
                .unwrap();
        }
        let (summary, outcome) = volume
            .extract_with(false, |extraction| {
                extraction.target.link_with(match refusal {
                    rustix::io::Errno::XDEV => |_, _, _, _| Err(rustix::io::Errno::XDEV),
                    _ => |_, _, _, _| Err(rustix::io::Errno::MLINK),
                });
            })
            .unwrap();
        assert_eq!(outcome, Outcome::Degraded, "{summary}");
        for name in ["inner/file", "other/one", "other/two", "other/three"] {
            let path = volume.out.join(name);
            assert_eq!(fs::read(&path).unwrap(), b"content of file", "{name}");
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o640, 1), "{name}");
        }
    }
}

#[test]
fn an_extraction_ends_where_a_hard_link_fails_for_another_reason() {
    let volume = Hostile::new();
    let file = volume.file(Ino::ROOT, "file", 0o640);
    volume.fs.names().link(file, Ino::ROOT, b"twin").unwrap();
    let extracted = volume.extract_with(false, |extraction| {
        extraction
            .target
            .link_with(|_, _, _, _| Err(rustix::io::Errno::IO));
    });
    assert!(extracted.is_err());
}

#[test]
fn attributes_that_only_root_can_set_are_counted_for_other_users() {
    let volume = Hostile::new();
    let file = volume.file(Ino::ROOT, "file", 0o755);
    for name in [&b"security.test"[..], b"trusted.test", b"user.test"] {
        let key = key::xattr(file, name);
        volume.put(&[(key, Xattr(b"value".to_vec()).encode())]);
    }
    let without = "left out without --privileged: 2 privileged attributes";
    let of_root = "left out because only root can set them: 2 privileged attributes";
    for (privileged, expected) in [(false, without), (true, of_root)] {
        let extracted = volume.extract_with(privileged, |extraction| extraction.superuser = false);
        let (summary, outcome) = extracted.unwrap();
        assert_eq!(outcome, Outcome::Degraded, "{summary}");
        assert_eq!(summary.lines().last(), Some(expected));
        let path = volume.out.join("file");
        let mut value = [0_u8; 16];
        let found = rustix::fs::getxattr(&path, "security.test", &mut value[..]);
        assert!(found.is_err());
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn access_lists_come_along_for_every_user() {
    let volume = Hostile::new();
    let file = volume.file(Ino::ROOT, "file", 0o640);
    // The owner, user 12345, the group, the mask, others: tag, permissions, number.
    let none = u32::MAX;
    let entries = [
        (0x01, 6, none),
        (0x02, 4, 12345),
        (0x04, 4, none),
        (0x10, 4, none),
        (0x20, 0, none),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(number));
    }
    let name = "system.posix_acl_access";
    let mode = XattrMode::Set;
    let set = volume
        .fs
        .xattrs()
        .set(ROOT, file, name.as_bytes(), &list, mode);
    set.unwrap();
    for superuser in [true, false] {
        let extracted = volume.extract_with(false, |extraction| extraction.superuser = superuser);
        let (summary, outcome) = extracted.unwrap();
        assert_eq!(outcome, Outcome::Done, "{summary}");
        let path = volume.out.join("file");
        let mut value = [0_u8; 64];
        let len = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
        assert_eq!(value[..len], list);
        let permissions = fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o7777, 0o640);
        fs::remove_file(path).unwrap();
    }
}

/// Extracts until the first hard link, and ends there as if it had been killed.
fn interrupt(volume: &Hostile) {
    let ended = volume.extract_with(false, |extraction| {
        extraction
            .target
            .link_with(|_, _, _, _| Err(rustix::io::Errno::IO));
    });
    assert!(ended.is_err());
}

#[test]
fn an_interrupted_extraction_goes_on_and_leaves_alone_what_is_complete() {
    let volume = Hostile::new();
    let inner = volume.directory(Ino::ROOT, "inner");
    let file = volume.file(inner, "file", 0o640);
    let names = volume.fs.names();
    names.symlink(ROOT, inner, b"link", b"file").unwrap();
    let fifo = libc::S_IFIFO | 0o600;
    names.mknod(ROOT, inner, b"fifo", fifo, 0).unwrap();
    names.link(file, inner, b"twin").unwrap();
    let last = volume.file(inner, "last", 0o644);
    interrupt(&volume);
    let mode = |path: &str| fs::metadata(volume.out.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("inner"), 0o700, "it is not full");
    let inode = |path: &str| volume.out.join(path).symlink_metadata().unwrap().ino();
    let before = ["inner/file", "inner/link", "inner/fifo"].map(inode);
    // Another run was killed in the middle of a file.
    let partial = volume.out.join(format!("inner/.cauchyfs-partial-{last}"));
    fs::write(&partial, "conte").unwrap();
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Done, "{summary}");
    assert!(
        summary.starts_with("1 file, 15 B\n3 files of an earlier run"),
        "{summary}"
    );
    assert_eq!(
        ["inner/file", "inner/link", "inner/fifo"].map(inode),
        before
    );
    assert_eq!(inode("inner/twin"), inode("inner/file"));
    assert_eq!(
        fs::read(volume.out.join("inner/last")).unwrap(),
        b"content of last"
    );
    assert_eq!(
        mode("inner"),
        0o777,
        "it is finished as if it had been made at once"
    );
    let left = fs::read_dir(volume.out.join("inner")).unwrap();
    assert_eq!(left.count(), 5, "nothing but what is in the volume");
    // Once more, with everything there.
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Done, "{summary}");
    assert!(
        summary.starts_with("0 files, 0 B\n5 files of an earlier run"),
        "{summary}"
    );
}

type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn what_is_not_of_an_earlier_run_is_never_taken_for_complete() {
    let changes: [(&str, Change<'_>); 4] = [
        ("another time", &|path| {
            fs::write(path, "content of file").unwrap();
        }),
        ("another size", &|path| {
            let time = fs::metadata(path).unwrap().modified().unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(3).unwrap();
            file.set_modified(time).unwrap();
        }),
        ("another kind", &|path| {
            fs::remove_file(path).unwrap();
            symlink("elsewhere", path).unwrap();
        }),
        ("a directory", &|path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (what, change) in changes {
        let volume = Hostile::new();
        volume.file(Ino::ROOT, "file", 0o640);
        volume.extract(false).unwrap();
        let path = volume.out.join("file");
        change(&path);
        let before = snapshot(&volume.out, Path::new(""));
        let failure = volume.extract(false).expect_err("nothing is overwritten");
        assert!(
            failure.message.contains("File exists"),
            "{what}: {failure:?}"
        );
        assert_eq!(snapshot(&volume.out, Path::new("")), before, "{what}");
    }
}

/// Someone else cannot have a directory finished that was there before.
#[test]
fn a_mark_counts_only_in_a_directory_that_this_user_alone_may_enter() {
    for (mode, is_finished) in [(0o700, true), (0o755, false), (0o770, false)] {
        let volume = Hostile::new();
        let inner = volume.directory(Ino::ROOT, "inner");
        let path = volume.out.join("inner");
        fs::create_dir(&path).unwrap();
        let mark = path.join(format!(".cauchyfs-unfinished-{inner}"));
        fs::write(&mark, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        volume.extract(false).unwrap();
        let after = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(after, if is_finished { 0o777 } else { mode });
        assert_eq!(mark.exists(), !is_finished, "{mode:o}");
    }
}

#[test]
fn files_of_the_volume_that_are_named_like_partial_ones_are_copied_as_well() {
    let volume = Hostile::new();
    let file = volume.file(Ino::ROOT, "file", 0o640);
    volume.fs.names().unlink(Ino::ROOT, b"file").unwrap();
    // The inode of the next file has the next number.
    let next = Ino(file.0 + 1 + 1);
    let names = [".cauchyfs-partial-", ".cauchyfs-unfinished-"];
    let names = names.map(|name| format!("{name}{next}"));
    volume.file(Ino::ROOT, &names[0], 0o640);
    assert_eq!(volume.file(Ino::ROOT, "after", 0o640), next);
    volume.file(Ino::ROOT, &names[1], 0o640);
    let (summary, outcome) = volume.extract(false).unwrap();
    assert_eq!(outcome, Outcome::Done, "{summary}");
    assert_eq!(volume.names(), [&names[0][..], &names[1], "after"]);
}

#[test]
fn nothing_is_made_unless_all_that_is_named_is_in_the_volume() {
    let volume = Hostile::new();
    volume.file(Ino::ROOT, "file", 0o640);
    let target = open_target(&volume.out, &[]).unwrap();
    let mut extraction = Extraction::new(&volume.fs, volume.out.clone(), target, false);
    let wanted = ["file", "none"].map(PathBuf::from);
    let failure = extraction.copy_out(&wanted).expect_err("one is missing");
    assert!(failure.message.contains("there is no none"), "{failure:?}");
    assert_eq!(volume.names(), [""; 0]);
}

#[test]
fn the_whole_that_progress_is_measured_by_counts_each_inode_once() {
    let volume = Hostile::new();
    let inner = volume.directory(Ino::ROOT, "inner");
    let file = volume.file(inner, "file", 0o640);
    volume.file(Ino::ROOT, "other", 0o640);
    volume.fs.names().link(file, inner, b"twin").unwrap();
    let target = open_target(&volume.out, &[]).unwrap();
    let extraction = Extraction::new(&volume.fs, volume.out.clone(), target, false);
    let of_file = volume.fs.attributes().get(file).unwrap().blocks_512 * 512;
    assert!(of_file > 0);
    assert_eq!(extraction.total(&[Vec::new()]), 2 * of_file);
    assert_eq!(extraction.total(&[b"inner".to_vec()]), of_file);
}
