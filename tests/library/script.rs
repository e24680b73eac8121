//! A script of every operation there is, and what can be seen of the tree after each.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::format::record::FileKind;
use cauchyfs::fs::{
    Allocation, Attr, Caller, Changes, Fs, FsError, FsOptions, Handle, OpenFlags, RenameMode,
    WriteFlags, XattrMode, check, tree,
};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::MemDisk;

use crate::volume::{self, TestClock};

const ROOT: &Caller = &Caller::ROOT;

/// A filesystem at work, and a file that is open for longer than a step.
pub(crate) struct Session {
    pub(crate) fs: Arc<Fs>,
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
        let written = self
            .writer()
            .write(self.kept().1, 3_000, &data, WriteFlags::default());
        written.map(drop)
    }
}

pub(crate) type Step = (&'static str, fn(&Session) -> Result<(), FsError>);

/// Returns whether the step makes everything before it durable.
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
    let handle = fs
        .open_files()
        .open(ROOT, ino(fs, path)?, OpenFlags::read_write())?;
    let done = work(handle);
    fs.open_files().release(handle)?;
    done
}

fn create(fs: &Fs, parent: &str, name: &str) -> Result<(), FsError> {
    let flags = OpenFlags::read_write();
    let parent = ino(fs, parent)?;
    let (attr, handle) = fs
        .names()
        .create(ROOT, parent, name.as_bytes(), 0o644, flags)?;
    fs.open_files().release(handle)?;
    fs.open_files().forget(attr.ino, 1);
    Ok(())
}

fn write(fs: &Fs, path: &str, offset: u64, len: usize, seed: u8) -> Result<(), FsError> {
    let data: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0] ^ seed).collect();
    with_file(fs, path, |handle| {
        fs.writer()
            .write(handle, offset, &data, WriteFlags::default())
    })
    .map(drop)
}

fn rename(fs: &Fs, from: (&str, &str), to: (&str, &str), mode: RenameMode) -> Result<(), FsError> {
    let (parent, new_parent) = (ino(fs, from.0)?, ino(fs, to.0)?);
    fs.names().rename(
        ROOT,
        parent,
        from.1.as_bytes(),
        new_parent,
        to.1.as_bytes(),
        mode,
    )
}

fn mkdir(fs: &Fs, parent: &str, name: &str) -> Result<(), FsError> {
    let attr = fs
        .names()
        .mkdir(ROOT, ino(fs, parent)?, name.as_bytes(), 0o755)?;
    fs.open_files().forget(attr.ino, 1);
    Ok(())
}

fn set_size(fs: &Fs, path: &str, size: u64) -> Result<(), FsError> {
    let changes = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino(fs, path)?, changes).map(drop)
}

fn allocate(fs: &Fs, path: &str, mode: Allocation, offset: u64, len: u64) -> Result<(), FsError> {
    with_file(fs, path, |handle| {
        fs.writer().fallocate(ROOT, handle, mode, offset, len)
    })
}

fn open_with(fs: &Fs, path: &str, flags: OpenFlags) -> Result<Handle, FsError> {
    fs.open_files().open(ROOT, ino(fs, path)?, flags)
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
            fs.writer()
                .write(handle, index * STRIDE, &data, WriteFlags::default())?;
        }
        Ok(())
    })
}

const SYNC: Step = ("sync", |fs| fs.syncfs());

/// Every operation, with and without a sync after it.
pub(crate) const SCRIPT: &[Step] = &[
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
        let linked = fs.names().link(ino(fs, "a/small")?, Ino::ROOT, b"linked")?;
        fs.open_files().forget(linked.ino, 1);
        Ok(())
    }),
    ("symlink", |fs| {
        let made = fs.names().symlink(ROOT, Ino::ROOT, b"to", b"where")?;
        fs.open_files().forget(made.ino, 1);
        Ok(())
    }),
    SYNC,
    ("copy", |fs| {
        create(fs, "", "copy")?;
        Ok(())
    }),
    ("share", |fs| {
        let source = fs
            .open_files()
            .open(ROOT, ino(fs, "a/b")?, OpenFlags::read_only())?;
        let copied = with_file(fs, "copy", |handle| {
            fs.writer().copy_range(ROOT, source, 0, handle, 0, 200_000)
        });
        fs.open_files().release(source)?;
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
        let made = fs
            .names()
            .mknod(ROOT, Ino::ROOT, b"node", libc::S_IFCHR | 0o600, 0x103)?;
        fs.open_files().forget(made.ino, 1);
        Ok(())
    }),
    ("rename to a free name", |fs| {
        rename(fs, ("", "node"), ("a", "node"), RenameMode::NoReplace)
    }),
    ("rename and leave a whiteout", |fs| {
        rename(fs, ("a", "node"), ("", "node"), RenameMode::Whiteout)
    }),
    ("rename the whiteout and leave another one", |fs| {
        let mode = RenameMode::WhiteoutNoReplace;
        rename(fs, ("a", "node"), ("a", "white"), mode)
    }),
    SYNC,
    ("create", |fs| create(fs, "", "replaced")),
    ("write", |fs| write(fs, "replaced", 0, 30_000, 10)),
    ("replace a file and leave a whiteout", |fs| {
        rename(fs, ("a", "white"), ("", "replaced"), RenameMode::Whiteout)
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
        fs.writer()
            .write(handle, 0, &[7; 5_000], WriteFlags::default())?;
        fs.open_files().release(handle)
    }),
    ("make without a name", |fs| {
        let flags = OpenFlags::read_write();
        let (attr, handle) = fs.names().tmpfile(ROOT, Ino::ROOT, 0o600, flags)?;
        fs.kept.set(Some((attr.ino, handle)));
        Ok(())
    }),
    ("write without a name", |fs| fs.write_kept(70_000)),
    SYNC,
    ("give it a name", |fs| {
        let linked = fs.names().link(fs.kept().0, ino(fs, "a")?, b"named")?;
        fs.open_files().forget(linked.ino, 2);
        fs.open_files().release(fs.kept().1)
    }),
    SYNC,
    ("empty", |fs| {
        let flags = OpenFlags {
            truncate: true,
            ..OpenFlags::read_write()
        };
        let handle = open_with(fs, "a/named", flags)?;
        fs.open_files().release(handle)
    }),
    SYNC,
    ("cut", |fs| set_size(fs, "a/b", 150_000)),
    ("grow", |fs| set_size(fs, "a/b", 1 << 40)),
    ("attributes", |fs| {
        let ino = ino(fs, "copy")?;
        fs.xattrs()
            .set(ROOT, ino, b"user.name", b"value", XattrMode::Set)?;
        Ok(())
    }),
    SYNC,
    ("chmod", |fs| {
        let changes = Changes {
            permissions: Some(0o4711),
            ..Changes::default()
        };
        fs.attributes()
            .set(ROOT, ino(fs, "copy")?, changes)
            .map(drop)
    }),
    ("take the attribute away", |fs| {
        fs.xattrs().remove(ino(fs, "copy")?, b"user.name")
    }),
    SYNC,
    ("unlink what is open", |fs| {
        let handle = open_with(fs, "copy", OpenFlags::read_write())?;
        fs.kept.set(Some((ino(fs, "copy")?, handle)));
        fs.names().unlink(Ino::ROOT, b"copy")
    }),
    ("write to what has no name any more", |fs| {
        fs.write_kept(90_000)
    }),
    SYNC,
    ("let go", |fs| fs.open_files().release(fs.kept().1)),
    ("checkpoint", |fs| Ok(fs.transactions().checkpoint()?)),
    ("unlink", |fs| fs.names().unlink(Ino::ROOT, b"linked")),
    ("rmdir", |fs| fs.names().rmdir(ino(fs, "a")?, b"big")),
    ("reap", |fs| Ok(fs.maintenance().reaper().reap()?)),
    SYNC,
    ("write after reaping", |fs| {
        write(fs, "a/small", 40_000, 120_000, 9)
    }),
    ("reap", |fs| Ok(fs.maintenance().reaper().reap()?)),
    SYNC,
    ("compact", |fs| {
        // More than there can be: everything that pays is moved.
        fs.maintenance()
            .room()
            .make_room(1 << 40, &*fs.inode_locks())
            .map(drop)?;
        Ok(())
    }),
    ("cut off many extents", |fs| set_size(fs, "many", 5_000)),
    ("remove many extents", |fs| {
        fs.names().unlink(Ino::ROOT, b"more")?;
        fs.wait_for_removal();
        Ok(())
    }),
    SYNC,
];

/// Bytes of a file that are looked at.
const CONTENT_MAX: u64 = 400_000;

/// Everything there is to see of a tree, but for times of access.
pub(crate) type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>)>;

/// Returns what there is to see of one path.
pub(crate) fn peek(fs: &Fs, path: &[u8]) -> Result<(Attr, Vec<u8>), FsError> {
    let mut attr = tree::resolve(fs, path)?;
    attr.atime = attr.btime;
    let mut bytes = fs.xattrs().list(ROOT, attr.ino)?;
    match attr.kind {
        FileKind::Regular => {
            let handle = fs
                .open_files()
                .open(ROOT, attr.ino, OpenFlags::read_only())?;
            let seen_bytes = attr.size.min(CONTENT_MAX);
            let mut content = vec![0; usize::try_from(seen_bytes).unwrap()];
            let read = fs.reader().read(handle, 0, &mut content);
            fs.open_files().release(handle)?;
            bytes.extend_from_slice(&content[..read?]);
        }
        FileKind::Symlink => bytes.extend(fs.attributes().read_link(attr.ino)?),
        _ => {}
    }
    Ok((attr, bytes))
}

/// Returns all that there is to see.
pub(crate) fn look(fs: &Fs) -> Tree {
    let see = |entry: Result<tree::TreeEntry, FsError>| {
        let path = entry.unwrap().path;
        let seen = peek(fs, &path).unwrap();
        (path, seen)
    };
    tree::walk(fs, b"").unwrap().map(see).collect()
}

/// Opens the filesystem on a volume.
pub(crate) fn open(maintenance: Arc<Maintenance>, clock: &TestClock) -> Result<Session, FsError> {
    let options = FsOptions {
        clock: clock.clock(),
        ..FsOptions::default()
    };
    Ok(Session {
        fs: Fs::open(maintenance, options)?,
        kept: Cell::new(None),
    })
}

/// The result of a run of the script.
#[derive(Default)]
pub(crate) struct Ran {
    /// Steps that were done.
    pub(crate) done: usize,
    /// Steps up to which all is durable.
    pub(crate) durable: usize,
    /// The error of the step after those.
    pub(crate) failed: Option<(&'static str, FsError)>,
}

/// Runs the script until a step fails; `after` sees the filesystem after each step.
pub(crate) fn run(session: &Session, clock: &TestClock, mut after: impl FnMut(&Fs)) -> Ran {
    let mut ran = Ran::default();
    after(session);
    for (index, step) in SCRIPT.iter().enumerate() {
        clock.set(i64::try_from(index).unwrap() + 1);
        if let Err(error) = step.1(session) {
            ran.failed = Some((step.0, error));
            return ran;
        }
        ran.done = index + 1;
        if is_sync(step) || step.0 == "checkpoint" {
            ran.durable = index + 1;
        }
        after(session);
    }
    ran
}

/// Returns the trees before the script and after each of its steps.
pub(crate) fn trees(disks: &[MemDisk]) -> Vec<Tree> {
    let clock = TestClock::default();
    let session = open(volume::open(disks, 0), &clock).unwrap();
    let mut trees = Vec::new();
    let ran = run(&session, &clock, |fs| trees.push(look(fs)));
    assert!(
        ran.failed.is_none(),
        "the script runs through: {:?}",
        ran.failed
    );
    trees
}

/// Fails unless a volume opens with a tree that existed after what was durable, is sound, and can be
/// changed and closed.
pub(crate) fn recovered(disks: &[MemDisk], trees: &[Tree], ran: &Ran, what: &str) {
    let maintenance = volume::try_open(volume::stores(disks), 0);
    let maintenance = maintenance.unwrap_or_else(|error| panic!("{what}: {error}"));
    let fs = open(maintenance, &TestClock::default());
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    fs.wait_for_removal();
    // A mount does that in the background.
    fs.transactions().commits().complete_index().unwrap();
    let report = check::check(fs.maintenance(), false).unwrap();
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
    let closed = fs.maintenance().close();
    closed.unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Makes a volume that already has what takes long to make.
pub(crate) fn fresh(count: usize, data: usize, parity: usize) -> Vec<MemDisk> {
    let disks = volume::disks(count, data, parity);
    let session = open(volume::open(&disks, 0), &TestClock::default()).unwrap();
    scatter(&session, "many").unwrap();
    scatter(&session, "more").unwrap();
    session.close().unwrap();
    session.maintenance().close().unwrap();
    drop(session);
    disks
}
