//! The power is cut at every call that changes a disk, disks are lost, and what is left is one of the
//! trees that existed, not older than what was made durable.
//!
//! `CAUCHYFS_EVERY=1` tries every cut with every policy and every lost disk; by default they take
//! turns.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "fs_model/volume.rs"]
#[expect(dead_code, reason = "these tests need a part of it")]
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{
    Allocation, Attr, Caller, Changes, Fs, FsError, FsOptions, Handle, OpenFlags, RenameMode,
    WriteFlags, XattrMode, check, tree,
};
use cauchyfs::store::{CutPolicy, Effect, Fault, FaultPlan, FaultStore, MemDisk, Scope};

use volume::TestClock;

const ROOT: &Caller = &Caller::ROOT;

type Step = (&'static str, fn(&Fs) -> Result<(), FsError>);

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
        with_file(fs, "a/b", |handle| {
            fs.fallocate(ROOT, handle, Allocation::PunchHole, 10_000, 100_000)
        })
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
    ("unlink", |fs| fs.unlink(Ino::ROOT, b"copy")),
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
];

/// Everything there is to see of a tree, but for times of access.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>)>;

fn look(fs: &Fs) -> Tree {
    let mut seen = Tree::new();
    for entry in tree::walk(fs, b"").unwrap() {
        let tree::Entry { path, mut attr } = entry.unwrap();
        attr.atime = attr.btime;
        let mut bytes = fs.listxattr(ROOT, attr.ino).unwrap();
        if let Ok(handle) = fs.open_file(ROOT, attr.ino, OpenFlags::read_only()) {
            let mut content = vec![0; 400_000];
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

fn open(pipeline: Arc<cauchyfs::commit::Pipeline>, clock: &TestClock) -> Result<Arc<Fs>, FsError> {
    let options = FsOptions {
        clock: clock.clock(),
        ..FsOptions::default()
    };
    Fs::open(pipeline, options)
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
    let Ok(pipeline) = volume::try_open(stores, 0) else {
        return ran;
    };
    let Ok(fs) = open(pipeline, &clock) else {
        return ran;
    };
    after(&fs);
    for (index, step) in SCRIPT.iter().enumerate() {
        clock.set(i64::try_from(index).unwrap() + 1);
        if step.1(&fs).is_err() {
            return ran;
        }
        ran.done = index + 1;
        if is_sync(step) || step.0 == "checkpoint" {
            ran.durable = index + 1;
        }
        after(&fs);
    }
    ran
}

#[test]
fn after_a_cut_at_any_call_the_tree_is_one_that_existed_and_not_older_than_the_last_sync() {
    let fresh = volume::disks(3, 2, 1);
    let forked = || fresh.iter().map(MemDisk::fork).collect::<Vec<_>>();
    let mut trees = Vec::new();
    let plan = FaultPlan::new();
    let ran = run(&forked(), &plan, |fs| trees.push(look(fs)));
    assert_eq!(ran.done, SCRIPT.len(), "the script runs through");
    // Counted again without looking, which reads.
    let plan = FaultPlan::new();
    plan.record();
    run(&forked(), &plan, |_| {});
    let log = plan.take_log();
    let calls = log.iter().filter(|call| call.kind.changes()).count() as u64;
    println!("{calls} calls that change a disk");
    assert!(calls > 100);
    let every = std::env::var_os("CAUCHYFS_EVERY").is_some();
    for call in 1..=calls {
        let mut choices = Vec::new();
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(call)] {
            for lost in [None, Some(0), Some(1), Some(2)] {
                choices.push((policy, lost));
            }
        }
        if !every {
            let turn = usize::try_from(call * 5).unwrap() % choices.len();
            choices = vec![choices[turn]];
        }
        for (policy, lost) in choices {
            let disks = forked();
            let plan = FaultPlan::new();
            plan.add(Fault::at(call, Effect::PowerCut).of(Scope::Changing));
            let ran = run(&disks, &plan, |_| {});
            let mut left = Vec::new();
            for (index, disk) in disks.iter().enumerate() {
                disk.cut(policy);
                if lost != Some(index) {
                    left.push(disk.clone());
                }
            }
            let what = format!(
                "cut at call {call}, {policy:?}, lost {lost:?}, after {}",
                ran.done
            );
            recovered(&left, &trees, &ran, &what);
        }
    }
}

fn recovered(disks: &[MemDisk], trees: &[Tree], ran: &Ran, what: &str) {
    let pipeline = volume::try_open(volume::stores(disks), 0);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{what}: {error}"));
    let clock = TestClock::default();
    let fs = open(Arc::clone(&pipeline), &clock).unwrap_or_else(|error| panic!("{what}: {error}"));
    fs.settle();
    let report = check::check(&pipeline, false).unwrap();
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
    pipeline
        .close()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}
