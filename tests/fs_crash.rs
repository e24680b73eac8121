//! The power is cut at every call that changes a disk, disks are lost, and what is left is one of the
//! trees that existed, not older than what was made durable.
//!
//! A volume of 1+1 is tried with every cut, every policy and every set of lost disks. For larger ones
//! policies and sets take turns; `CAUCHYFS_EVERY=1` tries them all.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "fs_model/volume.rs"]
#[expect(dead_code, reason = "these tests need a part of it")]
mod volume;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{
    Allocation, Attr, Caller, Changes, Fs, FsError, FsOptions, Handle, OpenFlags, RenameMode,
    WriteFlags, XattrMode, check, tree,
};
use cauchyfs::store::{CutPolicy, Effect, Fault, FaultPlan, FaultStore, MemDisk, Scope, StoreRef};

use volume::TestClock;

const ROOT: &Caller = &Caller::ROOT;

/// A filesystem at work, and a file that is open for longer than a step.
struct Session {
    fs: Arc<Fs>,
    kept: Cell<Option<(Ino, Handle)>>,
}

impl Deref for Session {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

impl Session {
    fn kept(&self) -> (Ino, Handle) {
        self.kept.get().expect("a step before opened it")
    }

    fn write_kept(&self, len: usize) -> Result<(), FsError> {
        let data = vec![8; len];
        let written = self.write(ROOT, self.kept().1, 3_000, &data, WriteFlags::default());
        written.map(drop)
    }
}

type Step = (&'static str, fn(&Session) -> Result<(), FsError>);

/// Whether the step makes everything before it durable.
fn is_sync(step: &Step) -> bool {
    step.0 == "sync"
}

fn ino(fs: &Fs, path: &str) -> Result<Ino, FsError> {
    Ok(tree::resolve(fs, path.as_bytes())?.ino)
}

fn with_file<T>(
    fs: &Fs,
    path: &str,
    work: impl FnOnce(Handle) -> Result<T, FsError>,
) -> Result<T, FsError> {
    let handle = fs.open_file(ROOT, ino(fs, path)?, OpenFlags::read_write())?;
    let done = work(handle);
    fs.release(handle)?;
    done
}

fn create(fs: &Fs, parent: &str, name: &str) -> Result<(), FsError> {
    let flags = OpenFlags::read_write();
    let parent = ino(fs, parent)?;
    let (attr, handle) = fs.create(ROOT, parent, name.as_bytes(), 0o644, flags)?;
    fs.release(handle)?;
    fs.forget(attr.ino, 1);
    Ok(())
}

fn write(fs: &Fs, path: &str, offset: u64, len: usize, seed: u8) -> Result<(), FsError> {
    let data: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0] ^ seed).collect();
    with_file(fs, path, |handle| {
        fs.write(ROOT, handle, offset, &data, WriteFlags::default())
    })
    .map(drop)
}

fn rename(fs: &Fs, from: (&str, &str), to: (&str, &str), mode: RenameMode) -> Result<(), FsError> {
    let (parent, new_parent) = (ino(fs, from.0)?, ino(fs, to.0)?);
    fs.rename(parent, from.1.as_bytes(), new_parent, to.1.as_bytes(), mode)
}

fn mkdir(fs: &Fs, parent: &str, name: &str) -> Result<(), FsError> {
    let attr = fs.mkdir(ROOT, ino(fs, parent)?, name.as_bytes(), 0o755)?;
    fs.forget(attr.ino, 1);
    Ok(())
}

fn set_size(fs: &Fs, path: &str, size: u64) -> Result<(), FsError> {
    let changes = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.setattr(ROOT, ino(fs, path)?, changes).map(drop)
}

fn allocate(fs: &Fs, path: &str, mode: Allocation, offset: u64, len: u64) -> Result<(), FsError> {
    with_file(fs, path, |handle| {
        fs.fallocate(ROOT, handle, mode, offset, len)
    })
}

fn open_with(fs: &Fs, path: &str, flags: OpenFlags) -> Result<Handle, FsError> {
    fs.open_file(ROOT, ino(fs, path)?, flags)
}

/// Extents of the files that take more than one batch to cut off or to remove.
const MANY: u64 = 600;

/// From one extent of such a file to the next, in bytes.
const STRIDE: u64 = 512;

fn scatter(fs: &Fs, name: &str) -> Result<(), FsError> {
    create(fs, "", name)?;
    with_file(fs, name, |handle| {
        // The first of them lies too far behind to go into the record.
        for index in (0..MANY).rev() {
            let data = [index.to_le_bytes()[0]; 50];
            fs.write(ROOT, handle, index * STRIDE, &data, WriteFlags::default())?;
        }
        Ok(())
    })
}

const SYNC: Step = ("sync", |fs| fs.syncfs());

/// Every operation, with and without a sync after it.
const SCRIPT: &[Step] = &[
    ("mkdir", |fs| mkdir(fs, "", "a")),
    ("create", |fs| create(fs, "a", "small")),
    ("write into the record", |fs| {
        write(fs, "a/small", 0, 100, 1)
    }),
    SYNC,
    ("create", |fs| create(fs, "a", "big")),
    ("write stripes", |fs| write(fs, "a/big", 0, 300_000, 2)),
    ("overwrite", |fs| write(fs, "a/big", 5_000, 50_000, 3)),
    SYNC,
    ("spill", |fs| write(fs, "a/small", 1_000, 3_000, 4)),
    ("append", |fs| write(fs, "a/big", 300_000, 777, 5)),
    SYNC,
    ("mkdir", |fs| mkdir(fs, "a", "b")),
    ("rename over a file", |fs| {
        create(fs, "a/b", "new")?;
        Ok(())
    }),
    ("write", |fs| write(fs, "a/b/new", 0, 20_000, 6)),
    ("rename", |fs| {
        rename(fs, ("a/b", "new"), ("a", "small"), RenameMode::Replace)
    }),
    SYNC,
    ("exchange", |fs| {
        rename(fs, ("a", "b"), ("a", "big"), RenameMode::Exchange)
    }),
    ("link", |fs| {
        let linked = fs.link(ino(fs, "a/small")?, Ino::ROOT, b"linked")?;
        fs.forget(linked.ino, 1);
        Ok(())
    }),
    ("symlink", |fs| {
        let made = fs.symlink(ROOT, Ino::ROOT, b"to", b"where")?;
        fs.forget(made.ino, 1);
        Ok(())
    }),
    SYNC,
    ("copy", |fs| {
        create(fs, "", "copy")?;
        Ok(())
    }),
    ("share", |fs| {
        let source = fs.open_file(ROOT, ino(fs, "a/b")?, OpenFlags::read_only())?;
        let copied = with_file(fs, "copy", |handle| {
            fs.copy_range(ROOT, source, 0, handle, 0, 200_000)
        });
        fs.release(source)?;
        copied.map(drop)
    }),
    ("punch", |fs| {
        allocate(fs, "a/b", Allocation::PunchHole, 10_000, 100_000)
    }),
    SYNC,
    ("zero", |fs| {
        allocate(fs, "copy", Allocation::ZeroRange, 150_000, 100_000)
    }),
    ("allocate", |fs| {
        allocate(fs, "copy", Allocation::Allocate, 200_000, 100_000)
    }),
    SYNC,
    ("mknod", |fs| {
        let made = fs.mknod(ROOT, Ino::ROOT, b"node", libc::S_IFCHR | 0o600, 0x103)?;
        fs.forget(made.ino, 1);
        Ok(())
    }),
    ("rename to a free name", |fs| {
        rename(fs, ("", "node"), ("a", "node"), RenameMode::NoReplace)
    }),
    ("rename to a name that is taken", |fs| {
        let refused = rename(fs, ("a", "node"), ("", "copy"), RenameMode::NoReplace);
        assert!(!matches!(refused, Ok(())));
        match refused {
            Err(FsError::Exists) => Ok(()),
            other => other,
        }
    }),
    SYNC,
    ("append without looking", |fs| {
        let flags = OpenFlags {
            append: true,
            ..OpenFlags::read_write()
        };
        let handle = open_with(fs, "a/small", flags)?;
        fs.write(ROOT, handle, 0, &[7; 5_000], WriteFlags::default())?;
        fs.release(handle)
    }),
    ("make without a name", |fs| {
        let flags = OpenFlags::read_write();
        let (attr, handle) = fs.tmpfile(ROOT, Ino::ROOT, 0o600, flags)?;
        fs.kept.set(Some((attr.ino, handle)));
        Ok(())
    }),
    ("write without a name", |fs| fs.write_kept(70_000)),
    SYNC,
    ("give it a name", |fs| {
        let linked = fs.link(fs.kept().0, ino(fs, "a")?, b"named")?;
        fs.forget(linked.ino, 2);
        fs.release(fs.kept().1)
    }),
    SYNC,
    ("empty", |fs| {
        let flags = OpenFlags {
            truncate: true,
            ..OpenFlags::read_write()
        };
        let handle = open_with(fs, "a/named", flags)?;
        fs.release(handle)
    }),
    SYNC,
    ("cut", |fs| set_size(fs, "a/b", 150_000)),
    ("grow", |fs| set_size(fs, "a/b", 1 << 40)),
    ("attributes", |fs| {
        let ino = ino(fs, "copy")?;
        fs.setxattr(ROOT, ino, b"user.name", b"value", XattrMode::Set)?;
        Ok(())
    }),
    SYNC,
    ("chmod", |fs| {
        let changes = Changes {
            permissions: Some(0o4711),
            ..Changes::default()
        };
        fs.setattr(ROOT, ino(fs, "copy")?, changes).map(drop)
    }),
    ("take the attribute away", |fs| {
        fs.removexattr(ROOT, ino(fs, "copy")?, b"user.name")
    }),
    SYNC,
    ("unlink what is open", |fs| {
        let handle = open_with(fs, "copy", OpenFlags::read_write())?;
        fs.kept.set(Some((ino(fs, "copy")?, handle)));
        fs.unlink(Ino::ROOT, b"copy")
    }),
    ("write to what has no name any more", |fs| {
        fs.write_kept(90_000)
    }),
    SYNC,
    ("let go", |fs| fs.release(fs.kept().1)),
    ("checkpoint", |fs| Ok(fs.pipeline().checkpoint()?)),
    ("unlink", |fs| fs.unlink(Ino::ROOT, b"linked")),
    ("rmdir", |fs| fs.rmdir(ino(fs, "a")?, b"big")),
    ("reap", |fs| Ok(fs.pipeline().reap()?)),
    SYNC,
    ("write after reaping", |fs| {
        write(fs, "a/small", 40_000, 120_000, 9)
    }),
    ("reap", |fs| Ok(fs.pipeline().reap()?)),
    SYNC,
    ("compact", |fs| {
        // More than there can be: everything that pays is moved.
        fs.pipeline().make_room(1 << 40, &**fs).map(drop)?;
        Ok(())
    }),
    ("cut off many extents", |fs| set_size(fs, "many", 5_000)),
    ("remove many extents", |fs| {
        fs.unlink(Ino::ROOT, b"more")?;
        fs.settle();
        Ok(())
    }),
    SYNC,
];

/// Bytes of a file that are looked at.
const CONTENT_MAX: u64 = 400_000;

/// Everything there is to see of a tree, but for times of access.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>)>;

fn look(fs: &Fs) -> Tree {
    let mut seen = Tree::new();
    for entry in tree::walk(fs, b"").unwrap() {
        let tree::Entry { path, mut attr } = entry.unwrap();
        attr.atime = attr.btime;
        let mut bytes = fs.listxattr(ROOT, attr.ino).unwrap();
        if let Ok(handle) = fs.open_file(ROOT, attr.ino, OpenFlags::read_only()) {
            let seen_bytes = attr.size.min(CONTENT_MAX);
            let mut content = vec![0; usize::try_from(seen_bytes).unwrap()];
            let len = fs.read(handle, 0, &mut content).unwrap();
            bytes.extend_from_slice(&content[..len]);
            fs.release(handle).unwrap();
        } else if let Ok(target) = fs.readlink(attr.ino) {
            bytes.extend(target);
        }
        seen.insert(path, (attr, bytes));
    }
    seen
}

fn open(disks: Vec<StoreRef>, clock: &TestClock) -> Result<Session, FsError> {
    let pipeline = volume::try_open(disks, 0)?;
    let options = FsOptions {
        clock: clock.clock(),
        ..FsOptions::default()
    };
    Ok(Session {
        fs: Fs::open(pipeline, options)?,
        kept: Cell::new(None),
    })
}

/// What a run of the script came to: how many steps were done, and up to which all is durable.
struct Ran {
    done: usize,
    durable: usize,
}

/// Runs the script on disks that follow a plan; `after` sees the filesystem after each step.
fn run(disks: &[MemDisk], plan: &FaultPlan, mut after: impl FnMut(&Fs)) -> Ran {
    let clock = TestClock::default();
    let mut ran = Ran {
        done: 0,
        durable: 0,
    };
    let stores = FaultStore::wrap_all(volume::stores(disks), plan);
    let Ok(session) = open(stores, &clock) else {
        return ran;
    };
    after(&session);
    for (index, step) in SCRIPT.iter().enumerate() {
        clock.set(i64::try_from(index).unwrap() + 1);
        if step.1(&session).is_err() {
            return ran;
        }
        ran.done = index + 1;
        if is_sync(step) || step.0 == "checkpoint" {
            ran.durable = index + 1;
        }
        after(&session);
    }
    ran
}

/// Makes a volume that already has what takes long to make.
fn fresh(count: usize, data: usize, parity: usize) -> Vec<MemDisk> {
    let disks = volume::disks(count, data, parity);
    let session = open(volume::stores(&disks), &TestClock::default()).unwrap();
    scatter(&session, "many").unwrap();
    scatter(&session, "more").unwrap();
    session.close().unwrap();
    session.pipeline().close().unwrap();
    drop(session);
    disks
}

fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    let picked = |bits: u32| (0..count).filter(|i| bits >> i & 1 == 1).collect();
    let sets: Vec<Vec<usize>> = (0..1 << count).map(picked).collect();
    sets.into_iter().filter(|set| set.len() <= most).collect()
}

/// Cuts the power at every call, and looks at what is left in every way, or in one of them
/// in turn.
fn cut_everywhere(count: usize, data: usize, parity: usize, in_turn: bool) {
    let fresh = fresh(count, data, parity);
    let forked = || fresh.iter().map(MemDisk::fork).collect::<Vec<_>>();
    let mut trees = Vec::new();
    let plan = FaultPlan::new();
    let ran = run(&forked(), &plan, |fs| trees.push(look(fs)));
    let stopped_at = SCRIPT.get(ran.done).map(|step| step.0);
    assert_eq!(stopped_at, None, "the script runs through");
    // Counted again without looking, which reads.
    let plan = FaultPlan::new();
    plan.record();
    run(&forked(), &plan, |_| {});
    let log = plan.take_log();
    let calls = log.iter().filter(|call| call.kind.changes()).count() as u64;
    println!("{data}+{parity}: {calls} calls that change a disk");
    assert!(calls > 100);
    let in_turn = in_turn && std::env::var_os("CAUCHYFS_EVERY").is_none();
    for call in 1..=calls {
        let disks = forked();
        let plan = FaultPlan::new();
        plan.add(Fault::at(call, Effect::PowerCut).of(Scope::Changing));
        let ran = run(&disks, &plan, |_| {});
        let mut choices = Vec::new();
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(call)] {
            for lost in subsets(count, parity) {
                choices.push((policy, lost));
            }
        }
        if in_turn {
            let turn = usize::try_from(call * 5).unwrap() % choices.len();
            choices = vec![choices.swap_remove(turn)];
        }
        for (policy, lost) in choices {
            let what = format!(
                "{data}+{parity}, cut at call {call}, {policy:?}, lost {lost:?}, after {}",
                ran.done
            );
            let mut left = Vec::new();
            for (index, disk) in disks.iter().enumerate() {
                let disk = disk.fork();
                disk.cut(policy);
                if !lost.contains(&index) {
                    left.push(disk);
                }
            }
            recovered(&left, &trees, &ran, &what);
        }
    }
}

fn recovered(disks: &[MemDisk], trees: &[Tree], ran: &Ran, what: &str) {
    let fs = open(volume::stores(disks), &TestClock::default());
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    fs.settle();
    let report = check::check(fs.pipeline(), false).unwrap();
    assert_eq!(report.findings, [], "{what}");
    let found = look(&fs);
    let allowed = ran.durable..=(ran.done + 1).min(trees.len() - 1);
    let matched = allowed.clone().find(|index| trees[*index] == found);
    assert!(
        matched.is_some(),
        "{what}: none of the trees {allowed:?}, it is {:?}",
        trees.iter().position(|tree| *tree == found)
    );
    mkdir(&fs, "", "afterwards").unwrap_or_else(|error| panic!("{what}: {error}"));
    fs.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let closed = fs.pipeline().close();
    closed.unwrap_or_else(|error| panic!("{what}: {error}"));
}

// After a cut at any call the tree is one that existed and not older than the last sync.

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_1_plus_1() {
    cut_everywhere(2, 1, 1, false);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_2_plus_1() {
    cut_everywhere(3, 2, 1, true);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_2_plus_2_over_5() {
    cut_everywhere(5, 2, 2, true);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_4_plus_2() {
    cut_everywhere(6, 4, 2, true);
}
