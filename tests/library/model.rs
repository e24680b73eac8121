//! Random operations on the filesystem and on a reference, compared after every one of them.
//!
//! `CAUCHYFS_SEED` replays one run, `CAUCHYFS_STEPS` sets its length.

mod reference;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::format::record::FileKind;
use cauchyfs::fs::{
    Allocation, Attr, Caller, Changes, Fs, FsError, FsOptions, Handle, OpenFlags, RenameMode,
    TimeOrNow, Whence, WriteFlags, XattrMode, check,
};
use cauchyfs::maintenance::Maintenance;
use cauchyfs_testkit::number;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::volume::{self, TestClock, at};
use reference::{Id, ROOT, Reference, Refused, regular};

const FILE_MAX: usize = 200_000;
const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"d", b"e", b"\xff\x01 \n", b"0"];

struct Open {
    handle: Handle,
    id: Id,
    flags: OpenFlags,
}

struct ModelRun {
    rng: StdRng,
    clock: TestClock,
    maintenance: Arc<Maintenance>,
    fs: Arc<Fs>,
    view: Arc<Fs>,
    reference: Reference,
    inos: BTreeMap<Id, Ino>,
    open: Vec<Open>,
    looked_up: Vec<Id>,
}

fn name_of(error: &FsError) -> String {
    let text = format!("{error:?}");
    text.split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap()
        .to_string()
}

/// Compares what came of a call with what should have, and returns it if it succeeded.
fn same<T: Debug, U>(got: Result<T, FsError>, expected: Result<U, Refused>) -> Option<(T, U)> {
    match (got, expected) {
        (Ok(got), Ok(expected)) => Some((got, expected)),
        (Err(error), Err(refused)) => {
            assert_eq!(name_of(&error), refused);
            None
        }
        (Ok(got), Err(refused)) => panic!("returned {got:?}, should fail with {refused}"),
        (Err(error), Ok(_)) => panic!("failed with {error:?}, should succeed"),
    }
}

impl ModelRun {
    fn new(seed: u64) -> Self {
        let clock = TestClock::default();
        let maintenance = volume::maintenance();
        let (fs, view) = open(&maintenance, &clock);
        Self {
            rng: StdRng::seed_from_u64(seed),
            clock,
            maintenance,
            fs,
            view,
            reference: Reference::new(),
            inos: BTreeMap::from([(ROOT, Ino::ROOT)]),
            open: Vec::new(),
            looked_up: Vec::new(),
        }
    }

    fn any(&mut self, wanted: impl Fn(&reference::Node) -> bool) -> Option<Id> {
        let nodes = &self.reference.nodes;
        let ids: Vec<Id> = nodes
            .iter()
            .filter(|(_, node)| wanted(node))
            .map(|(id, _)| *id)
            .collect();
        (!ids.is_empty()).then(|| ids[self.rng.random_range(0..ids.len())])
    }

    fn any_place(&mut self) -> (Id, &'static [u8]) {
        let wild = self.rng.random_ratio(1, 20);
        let parent = self
            .any(|node| wild || node.kind == FileKind::Directory)
            .unwrap();
        (parent, NAMES[self.rng.random_range(0..NAMES.len())])
    }

    /// A place that has a name, most of the time.
    fn any_entry(&mut self) -> (Id, Vec<u8>) {
        let parent = self.any(|node| !node.entries.is_empty());
        match parent {
            Some(parent) if self.rng.random_ratio(9, 10) => {
                let entries = &self.reference.nodes[&parent].entries;
                (
                    parent,
                    entries[self.rng.random_range(0..entries.len())].0.clone(),
                )
            }
            _ => {
                let (parent, name) = self.any_place();
                (parent, name.to_vec())
            }
        }
    }

    fn caller(&mut self) -> Caller {
        let id = [0, 1000][self.rng.random_range(0..2)];
        Caller {
            uid: id,
            gid: id,
            umask: 0o022,
            ..Caller::ROOT
        }
    }

    /// Keeps the look-up that a call counted, or gives it back at once.
    fn counted(&mut self, id: Id) {
        self.reference.at(id).held += 1;
        self.looked_up.push(id);
        if self.rng.random_ratio(9, 10) {
            self.forget(self.looked_up.len() - 1);
        }
    }

    fn forget(&mut self, index: usize) {
        let id = self.looked_up.swap_remove(index);
        self.fs.open_files().forget(self.inos[&id], 1);
        self.reference.at(id).held -= 1;
        self.reference.reap(id);
    }

    fn made(&mut self, made: Option<(Attr, Id)>) {
        if let Some((attr, id)) = made {
            self.inos.insert(id, attr.ino);
            self.counted(id);
        }
    }

    fn make(&mut self) {
        let caller = self.caller();
        let (parent, name) = self.any_place();
        let asked: u16 = self.rng.random_range(0..0o7777);
        let permissions = asked & !0o022;
        let owner = (caller.uid, caller.gid);
        let dir = self.inos[&parent];
        let bits = u32::from(asked);
        match self.rng.random_range(0..8) {
            0..3 => {
                let expected =
                    self.reference
                        .make(owner, parent, name, FileKind::Directory, permissions);
                let got = self.fs.names().mkdir(&caller, dir, name, bits);
                let made = same(got, expected);
                self.made(made);
            }
            3 => {
                let expected = self
                    .reference
                    .make(owner, parent, name, FileKind::Symlink, 0o777);
                let got = self.fs.names().symlink(&caller, dir, name, b"to/where");
                if let Ok(id) = expected {
                    self.reference.at(id).target = b"to/where".to_vec();
                }
                let made = same(got, expected);
                self.made(made);
            }
            4 => {
                let expected =
                    self.reference
                        .make(owner, parent, name, FileKind::BlockDevice, permissions);
                let got = self
                    .fs
                    .names()
                    .mknod(&caller, dir, name, bits | libc::S_IFBLK, 0x801);
                if let Ok(id) = expected {
                    self.reference.at(id).rdev = 0x801;
                }
                let made = same(got, expected);
                self.made(made);
            }
            _ => {
                let expected =
                    self.reference
                        .make(owner, parent, name, FileKind::Regular, permissions);
                let flags = OpenFlags {
                    exclusive: true,
                    ..OpenFlags::read_write()
                };
                let got = self.fs.names().create(&caller, dir, name, bits, flags);
                if let Some(((attr, handle), id)) = same(got, expected) {
                    self.made(Some((attr, id)));
                    self.opened(handle, id, flags);
                }
            }
        }
    }

    fn opened(&mut self, handle: Handle, id: Id, flags: OpenFlags) {
        self.reference.at(id).held += 1;
        self.open.push(Open { handle, id, flags });
        if self.open.len() > 12 {
            self.close(0);
        }
    }

    fn close(&mut self, index: usize) {
        let open = self.open.remove(index);
        self.fs.open_files().release(open.handle).unwrap();
        self.reference.at(open.id).held -= 1;
        self.reference.reap(open.id);
    }

    fn make_nameless(&mut self) {
        let caller = self.caller();
        let (parent, _) = self.any_place();
        let flags = OpenFlags {
            exclusive: self.rng.random(),
            ..OpenFlags::read_write()
        };
        let owner = (caller.uid, caller.gid);
        let expected = self
            .reference
            .make_nameless(owner, parent, !flags.exclusive);
        let got = self
            .fs
            .names()
            .tmpfile(&caller, self.inos[&parent], 0o600, flags);
        if let Some(((attr, handle), id)) = same(got, expected) {
            self.inos.insert(id, attr.ino);
            self.reference.at(id).held += 1;
            self.looked_up.push(id);
            self.opened(handle, id, flags);
        }
    }

    fn link(&mut self) {
        let id = self.any(|_| true).unwrap();
        let (parent, name) = self.any_place();
        let expected = self.reference.link(id, parent, name);
        let got = self
            .fs
            .names()
            .link(self.inos[&id], self.inos[&parent], name);
        if same(got, expected).is_some() {
            self.counted(id);
        }
    }

    fn remove(&mut self) {
        let (parent, name) = self.any_entry();
        let dir = self.inos[&parent];
        if self.rng.random() {
            same(
                self.fs.names().unlink(dir, &name),
                self.reference.unlink(parent, &name),
            );
        } else {
            same(
                self.fs.names().rmdir(dir, &name),
                self.reference.rmdir(parent, &name),
            );
        }
    }

    fn rename(&mut self) {
        let (parent, name) = self.any_entry();
        let (new_parent, new_name) = if self.rng.random() {
            let (parent, name) = self.any_place();
            (parent, name.to_vec())
        } else {
            self.any_entry()
        };
        let modes = [
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
            RenameMode::WhiteoutNoReplace,
        ];
        let mode = modes[self.rng.random_range(0..modes.len())];
        let (from, to) = (self.inos[&parent], self.inos[&new_parent]);
        let caller = self.caller();
        let names = self.fs.names();
        let got = names.rename(&caller, from, &name, to, &new_name, mode);
        let owner = (caller.uid, caller.gid);
        let expected = self
            .reference
            .rename(owner, (parent, &name), (new_parent, &new_name), mode);
        if let Some(((), Some(whiteout))) = same(got, expected) {
            let attr = names.lookup(from, &name).expect("a whiteout is left");
            self.made(Some((attr, whiteout)));
        }
    }

    fn open_some(&mut self) {
        let Some(id) = self.any(|_| true) else { return };
        let caller = self.caller();
        let flags = OpenFlags {
            append: self.rng.random_ratio(1, 5),
            truncate: self.rng.random_ratio(1, 8),
            no_atime: self.rng.random_ratio(1, 4),
            ..OpenFlags::read_write()
        };
        let mut expected = regular(&self.reference.nodes[&id]);
        if flags.truncate && expected.is_ok() {
            let changes = Changes {
                size: Some(0),
                ..Changes::default()
            };
            expected = self.reference.setattr(id, &caller, &changes);
        }
        let got = self.fs.open_files().open(&caller, self.inos[&id], flags);
        if let Some((handle, ())) = same(got, expected) {
            self.opened(handle, id, flags);
        }
    }

    fn setattr(&mut self) {
        let id = self.any(|_| true).unwrap();
        let caller = self.caller();
        let mut changes = Changes::default();
        match self.rng.random_range(0..6) {
            0 => changes.permissions = Some(self.rng.random_range(0..0o7777)),
            1 => changes.uid = Some(self.rng.random_range(0..3)),
            2 => {
                changes.gid = Some(self.rng.random_range(0..3));
                changes.mtime = Some(TimeOrNow::Now);
            }
            3 => {
                changes.atime = Some(TimeOrNow::At(at(self.rng.random_range(0..1000))));
                changes.ctime = Some(at(self.rng.random_range(0..1000)));
            }
            4 => changes.kill_suid_sgid = true,
            _ => changes.size = Some(self.size() as u64),
        }
        let expected = self.reference.setattr(id, &caller, &changes);
        let got = self.fs.attributes().set(&caller, self.inos[&id], changes);
        same(got, expected);
    }

    fn size(&mut self) -> usize {
        match self.rng.random_range(0..3) {
            0 => self.rng.random_range(0..4_000),
            1 => self.rng.random_range(0..40) * 4096,
            _ => self.rng.random_range(0..FILE_MAX),
        }
    }

    fn any_open(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.random_range(0..self.open.len()))
    }

    fn use_file(&mut self) {
        let Some(index) = self.any_open() else { return };
        let Open {
            handle, id, flags, ..
        } = self.open[index];
        let caller = self.caller();
        let offset = self.size();
        let len = self.size().min(FILE_MAX - offset).min(70_000);
        match self.rng.random_range(0..9) {
            0..3 => {
                let cached = self.rng.random_ratio(1, 3);
                let append = flags.append && !cached;
                if append && self.reference.nodes[&id].bytes.len() + len > FILE_MAX {
                    return;
                }
                let data: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
                let to = (!append).then_some(offset);
                let written = self.reference.write(id, to, &data, cached);
                let how = WriteFlags {
                    at_once: false,
                    tries_again: false,
                    from_page_cache: cached,
                    is_direct: false,
                    unprivileged: None,
                };
                let got = self.fs.writer().write(handle, offset as u64, &data, how);
                assert_eq!(got.unwrap(), written);
            }
            3 => {
                let mut out = vec![0xaa; len];
                let got = self
                    .fs
                    .reader()
                    .read(handle, offset as u64, &mut out)
                    .unwrap();
                let atime = self.reference.nodes[&id].atime;
                let expected = self.reference.read(id, offset, len);
                if flags.no_atime {
                    self.reference.at(id).atime = atime;
                }
                assert!(out[..got] == expected[..], "read {len} at {offset}");
            }
            4 => self.allocate(index, offset, len),
            5 => {
                let changes = Changes {
                    size: Some(offset as u64),
                    handle: Some(handle),
                    ..Changes::default()
                };
                let expected = self.reference.setattr(id, &caller, &changes);
                same(
                    self.fs.attributes().set(&caller, self.inos[&id], changes),
                    expected,
                );
            }
            6 | 7 => self.copy(index),
            _ => {
                for whence in [Whence::Data, Whence::Hole] {
                    let expected = self.reference.seek(id, offset, whence);
                    let found = same(
                        self.fs.reader().seek(handle, offset as u64, whence),
                        expected,
                    );
                    assert!(found.is_none_or(|(got, expected)| got == expected));
                }
            }
        }
    }

    fn allocate(&mut self, index: usize, offset: usize, len: usize) {
        let Open { handle, id, .. } = self.open[index];
        let modes = [
            Allocation::Allocate,
            Allocation::AllocateKeepSize,
            Allocation::PunchHole,
            Allocation::ZeroRange,
            Allocation::ZeroRangeKeepSize,
        ];
        let mode = modes[self.rng.random_range(0..modes.len())];
        let got =
            self.fs
                .writer()
                .fallocate(&Caller::ROOT, handle, mode, offset as u64, len as u64);
        if len == 0 {
            assert_eq!(name_of(&got.unwrap_err()), "Invalid");
            return;
        }
        got.unwrap();
        let end = offset + len;
        match mode {
            Allocation::Allocate => self.reference.allocate(id, offset, end, false),
            Allocation::AllocateKeepSize => self.reference.allocate(id, offset, end, true),
            Allocation::ZeroRange => self.reference.zero(id, offset, end, false),
            _ => self.reference.zero(id, offset, end, true),
        }
    }

    fn copy(&mut self, source: usize) {
        let target = self.any_open().unwrap();
        if self.open[target].flags.append {
            return;
        }
        let (from, to) = (self.size(), self.size());
        let len = self.size().min(FILE_MAX - to).min(70_000);
        let (source, target) = (&self.open[source], &self.open[target]);
        let expected = self.reference.copy((source.id, from), (target.id, to), len);
        let got = self.fs.writer().copy_range(
            &Caller::ROOT,
            source.handle,
            from as u64,
            target.handle,
            to as u64,
            len as u64,
        );
        if let Some((got, expected)) = same(got, expected) {
            assert_eq!(got, expected, "copied {from}+{len} to {to}");
        }
    }

    fn xattr(&mut self) {
        let id = self.any(|_| true).unwrap();
        let caller = self.caller();
        let names: [&[u8]; 3] = [b"user.a", b"user.b", b"trusted.c"];
        let name = names[self.rng.random_range(0..names.len())];
        let ino = self.inos[&id];
        if self.rng.random_ratio(1, 3) {
            let expected = self.reference.removexattr(id, name);
            same(self.fs.xattrs().remove(ino, name), expected);
            return;
        }
        let modes = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let mode = modes[self.rng.random_range(0..modes.len())];
        let value: Vec<u8> = (0..self.rng.random_range(0..300))
            .map(|_| self.rng.random())
            .collect();
        let expected = self.reference.setxattr(id, name, &value, mode);
        same(
            self.fs.xattrs().set(&caller, ino, name, &value, mode),
            expected,
        );
    }

    fn list(&mut self) {
        let id = self.any(|node| node.kind == FileKind::Directory).unwrap();
        let handle = self.fs.directories().open(self.inos[&id]).unwrap();
        self.fs
            .directories()
            .read(handle, 0, false, &mut |_| true)
            .unwrap();
        self.fs.directories().release(handle).unwrap();
        self.reference.accessed(id);
        if let Some(id) = self.any(|node| node.kind == FileKind::Symlink) {
            assert_eq!(
                self.fs.attributes().read_link(self.inos[&id]).unwrap(),
                b"to/where"
            );
            self.reference.accessed(id);
        }
    }

    fn look_up(&mut self) {
        let (parent, name) = self.any_entry();
        let expected = match self.reference.nodes[&parent].kind {
            FileKind::Directory => self.reference.find(parent, &name).ok_or("NotFound"),
            _ => Err("NotDirectory"),
        };
        if let Some((attr, id)) = same(self.fs.names().lookup(self.inos[&parent], &name), expected)
        {
            assert_eq!(attr.ino, self.inos[&id]);
            self.counted(id);
        }
    }

    /// Unmounts and mounts again; what had no name is gone.
    fn remount(&mut self) {
        if self.rng.random() {
            self.fs.close().unwrap();
        }
        self.looked_up.clear();
        self.open.clear();
        let ids: Vec<Id> = self.reference.nodes.keys().copied().collect();
        for id in ids {
            self.reference.at(id).held = 0;
            self.reference.reap(id);
        }
        (self.fs, self.view) = open(&self.maintenance, &self.clock);
        self.fs.wait_for_removal();
    }

    fn step(&mut self) {
        match self.rng.random_range(0..40) {
            0..6 => self.make(),
            6 => self.make_nameless(),
            7..9 => self.link(),
            9..12 => self.remove(),
            12..16 => self.rename(),
            16..18 => self.open_some(),
            18..21 => self.setattr(),
            21..32 => self.use_file(),
            32..34 => self.xattr(),
            34 => self.list(),
            35..37 => self.look_up(),
            37 => {
                if let Some(index) = self.any_open() {
                    self.close(index);
                }
            }
            38 if !self.looked_up.is_empty() => self.forget(0),
            39 if self.rng.random_ratio(1, 10) => self.remount(),
            _ => {}
        }
    }

    fn compare(&self) {
        for (id, node) in &self.reference.nodes {
            let ino = self.inos[id];
            let attr = self.view.attributes().get(ino).unwrap();
            assert_eq!(attr.kind, node.kind);
            assert_eq!(
                (
                    attr.permissions,
                    attr.uid,
                    attr.gid,
                    attr.links,
                    attr.rdev,
                    attr.size
                ),
                (
                    node.permissions,
                    node.uid,
                    node.gid,
                    node.links,
                    node.rdev,
                    node.size()
                ),
                "permissions, uid, gid, links, rdev or size of {ino}"
            );
            let times = [attr.atime, attr.mtime, attr.ctime, attr.btime].map(|time| time.seconds);
            assert_eq!(
                times,
                [node.atime, node.mtime, node.ctime, node.btime],
                "times of {ino}"
            );
            assert_eq!(
                attr.blocks_512,
                node.stored_bytes().div_ceil(512),
                "blocks of {ino}"
            );
            self.compare_xattrs(ino, node);
            match node.kind {
                FileKind::Directory => self.compare_entries(ino, node),
                FileKind::Regular => self.compare_bytes(ino, node),
                _ => {}
            }
        }
        for (id, ino) in &self.inos {
            if !self.reference.nodes.contains_key(id) {
                assert_eq!(
                    name_of(&self.view.attributes().get(*ino).unwrap_err()),
                    "NotFound"
                );
            }
        }
    }

    fn compare_xattrs(&self, ino: Ino, node: &reference::Node) {
        let list = self.view.xattrs().list(&Caller::ROOT, ino).unwrap();
        let names: Vec<&[u8]> = list.split_terminator_nul();
        assert!(
            names
                .iter()
                .copied()
                .eq(node.xattrs.keys().map(Vec::as_slice))
        );
        for (name, value) in &node.xattrs {
            assert_eq!(self.view.xattrs().get(ino, name).unwrap(), *value);
        }
    }

    fn compare_entries(&self, ino: Ino, node: &reference::Node) {
        let handle = self.view.directories().open(ino).unwrap();
        let mut listed = Vec::new();
        let mut emit = |item: cauchyfs::fs::DirItem<'_>| {
            listed.push((item.name.to_vec(), item.ino));
            true
        };
        self.view
            .directories()
            .read(handle, 0, false, &mut emit)
            .unwrap();
        self.view.directories().release(handle).unwrap();
        let dots = [
            (b".".to_vec(), ino),
            (b"..".to_vec(), self.inos[&node.parent]),
        ];
        let entries = node
            .entries
            .iter()
            .map(|(name, id)| (name.clone(), self.inos[id]));
        let expected: Vec<_> = dots.into_iter().chain(entries).collect();
        if self.reference.nodes.contains_key(&node.parent) {
            assert_eq!(listed, expected);
        }
    }

    fn compare_bytes(&self, ino: Ino, node: &reference::Node) {
        let handle = self
            .view
            .open_files()
            .open(&Caller::ROOT, ino, OpenFlags::read_only())
            .unwrap();
        let mut out = vec![0xaa; node.bytes.len() + 1];
        let len = self.view.reader().read(handle, 0, &mut out).unwrap();
        assert_eq!(len, node.bytes.len());
        assert!(out[..len] == node.bytes[..], "bytes of {ino}");
        self.view.open_files().release(handle).unwrap();
    }

    fn check(&self) {
        self.fs.wait_for_removal();
        let report = check::check(&self.maintenance, false).unwrap();
        assert_eq!(report.findings, [], "check finds nothing");
        assert_eq!(report.unclaimed, 0, "nothing leaks");
        assert_eq!(report.inodes, self.reference.nodes.len() as u64);
    }
}

fn open(maintenance: &Arc<Maintenance>, clock: &TestClock) -> (Arc<Fs>, Arc<Fs>) {
    let options = FsOptions {
        clock: clock.clock(),
        ..FsOptions::default()
    };
    let view = FsOptions {
        read_only: true,
        ..options.clone()
    };
    let fs = Fs::open(Arc::clone(maintenance), options).unwrap();
    (fs, Fs::open(Arc::clone(maintenance), view).unwrap())
}

trait SplitNul {
    fn split_terminator_nul(&self) -> Vec<&[u8]>;
}

impl SplitNul for Vec<u8> {
    fn split_terminator_nul(&self) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> = self.split(|byte| *byte == 0).collect();
        assert_eq!(names.pop(), Some(&b""[..]), "every name ends with a NUL");
        names
    }
}

#[test]
fn every_operation_leaves_the_filesystem_like_the_reference() {
    let seeds = match number("CAUCHYFS_SEED") {
        Some(seed) => vec![seed],
        None => (0..4).map(|_| rand::rng().random()).collect(),
    };
    let steps = number("CAUCHYFS_STEPS").unwrap_or(1_200);
    for seed in seeds {
        println!("CAUCHYFS_SEED={seed}");
        let mut run = ModelRun::new(seed);
        for step in 1..=steps {
            let now = i64::try_from(step).unwrap() * 600;
            run.clock.set(now);
            run.reference.now = now;
            run.step();
            run.compare();
            if step % 20 == 0 {
                run.check();
            }
        }
        run.fs.close().unwrap();
    }
}
