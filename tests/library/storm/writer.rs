//! One of the threads that change a volume in a storm: it has a directory of its own, knows what is
//! in it, and appends to a log that all share.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{
    Allocation, Caller, Changes, Fs, FsError, Handle, OpenFlags, RenameMode, WriteFlags, tree,
};
use cauchyfs::store::FaultPlan;
use cauchyfs_testkit::pattern;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::history::{Clock, Done, Log, WriterState};

const ROOT: &Caller = &Caller::ROOT;

/// Names that a writer uses, few enough to meet again and again.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// No file grows beyond this many bytes.
const FILE_MAX: usize = 200_000;

/// Operations of one writer in one storm at most.
const OPERATIONS: usize = 400;

const LOG: &str = "log";

/// Bytes of a record in the log: some do not fit into a block, and some lie across two stripes.
const RECORD: usize = 1000;

type Bytes = Arc<Vec<u8>>;

/// Files by name, and their bytes by inode: a file may have several names, or none.
#[derive(Clone, Default)]
struct Model {
    names: BTreeMap<String, Ino>,
    content: BTreeMap<Ino, Bytes>,
    logged: u64,
}

impl Model {
    fn state(&self) -> WriterState {
        let file = |(name, ino): (&String, &Ino)| (name.clone(), Arc::clone(&self.content[ino]));
        WriterState {
            files: self.names.iter().map(file).collect(),
            logged: self.logged,
        }
    }
}

pub(crate) struct Writer {
    number: usize,
    directory: Ino,
    log_file: Ino,
    model: Model,
    history: Arc<Log>,
}

fn record(writer: usize, number: u64) -> Vec<u8> {
    let mut record = pattern(number << 8 | writer as u64, RECORD);
    record[0] = u8::try_from(writer).unwrap();
    record[1..9].copy_from_slice(&number.to_le_bytes());
    record
}

fn read_all(fs: &Fs, handle: Handle) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0xee; FILE_MAX + 1];
    let len = fs.reader().read(handle, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn with_file<T>(
    fs: &Fs,
    ino: Ino,
    flags: OpenFlags,
    work: impl FnOnce(Handle) -> Result<T, FsError>,
) -> Result<T, FsError> {
    let handle = fs.open_files().open(ROOT, ino, flags)?;
    let done = work(handle);
    fs.open_files().release(handle)?;
    done
}

/// Returns how many records of a writer the log holds; they are whole and in order.
fn count_logged(fs: &Fs, log_file: Ino, writer: usize) -> u64 {
    let size = usize::try_from(fs.attributes().get(log_file).unwrap().size).unwrap();
    let mut bytes = vec![0; size];
    let flags = OpenFlags::read_only();
    let read = with_file(fs, log_file, flags, |handle| {
        fs.reader().read(handle, 0, &mut bytes)
    });
    assert_eq!(read.unwrap(), size);
    assert!(
        size.is_multiple_of(RECORD),
        "a record of the log is cut off: {size}"
    );
    let mut count = 0;
    for found in bytes.chunks(RECORD) {
        if usize::from(found[0]) == writer {
            assert!(
                found == record(writer, count),
                "record {count} of writer {writer}"
            );
            count += 1;
        }
    }
    count
}

impl Writer {
    /// Makes the directory of a writer, or looks at what is in it.
    pub(crate) fn load(fs: &Fs, number: usize) -> Self {
        let name = format!("writer{number}");
        let log_file = find_or(fs, LOG, |fs| {
            let flags = OpenFlags::read_write();
            let (attr, handle) =
                fs.names()
                    .create(ROOT, Ino::ROOT, LOG.as_bytes(), 0o644, flags)?;
            fs.open_files().release(handle)?;
            Ok(attr.ino)
        });
        let directory = find_or(fs, &name, |fs| {
            Ok(fs
                .names()
                .mkdir(ROOT, Ino::ROOT, name.as_bytes(), 0o755)?
                .ino)
        });
        let mut model = Model {
            logged: count_logged(fs, log_file, number),
            ..Model::default()
        };
        for entry in tree::walk(fs, name.as_bytes()).unwrap().skip(1) {
            let tree::TreeEntry { path, attr } = entry.unwrap();
            let file = String::from_utf8(path[name.len() + 1..].to_vec()).unwrap();
            let bytes = with_file(fs, attr.ino, OpenFlags::read_only(), |handle| {
                read_all(fs, handle)
            });
            model.names.insert(file, attr.ino);
            model.content.insert(attr.ino, Arc::new(bytes.unwrap()));
        }
        let history = Arc::new(Log::new(model.state()));
        Self {
            number,
            directory,
            log_file,
            model,
            history,
        }
    }

    pub(crate) fn state(&self) -> WriterState {
        self.model.state()
    }

    pub(crate) fn history(&self) -> Arc<Log> {
        Arc::clone(&self.history)
    }

    /// Works until the power goes, or enough is done.
    pub(crate) fn work(mut self, fs: &Fs, plan: &FaultPlan, clock: &Clock, mut rng: StdRng) {
        let mut held: Vec<(Handle, Ino)> = Vec::new();
        for _ in 0..OPERATIONS {
            let started = clock.tick();
            let mut next = self.model.clone();
            let step = Step {
                writer: &self,
                fs,
                model: &mut next,
                rng: &mut rng,
            };
            let (what, outcome) = step.run(&mut held);
            let ended = Some(clock.tick());
            match outcome {
                Ok(synced) => {
                    self.model = next;
                    let state = self.model.state();
                    self.history.push(Done {
                        what,
                        started,
                        ended,
                        state,
                    });
                    if synced {
                        self.history.acknowledge(self.history.len());
                    }
                }
                Err(FsError::NoSpace) => {}
                Err(error) => {
                    assert!(plan.is_power_off(), "{what}: {error}");
                    let state = next.state();
                    self.history.push(Done {
                        what,
                        started,
                        ended: None,
                        state,
                    });
                    return;
                }
            }
        }
    }
}

fn find_or(fs: &Fs, name: &str, make: impl FnOnce(&Fs) -> Result<Ino, FsError>) -> Ino {
    let ino = match tree::resolve(fs, name.as_bytes()) {
        Ok(attr) => return attr.ino,
        Err(FsError::NotFound) => make(fs).unwrap(),
        Err(error) => panic!("{name}: {error}"),
    };
    fs.open_files().forget(ino, 1);
    // All that is there before a storm is durable.
    fs.syncfs().unwrap();
    ino
}

/// One operation: the call, and the same in the model.
struct Step<'a> {
    writer: &'a Writer,
    fs: &'a Fs,
    model: &'a mut Model,
    rng: &'a mut StdRng,
}

/// True if everything up to and with the operation is durable.
type Synced = bool;

impl Step<'_> {
    fn run(mut self, held: &mut Vec<(Handle, Ino)>) -> (String, Result<Synced, FsError>) {
        let name = self.any_name();
        let Some(&ino) = self.model.names.get(name) else {
            return self.bring_into_being(name);
        };
        match self.rng.random_range(0..24) {
            0..5 => self.write(name, ino, OpenFlags::read_write()),
            5 => self.append(name, ino),
            6 => self.truncate(name, ino),
            7 => self.allocate(name, ino),
            8..10 => self.copy(name, ino),
            10..13 => self.rename(name, ino),
            13..15 => self.unlink(name),
            15 => self.hold(ino, held),
            16..18 => self.look(name, ino, held),
            18..20 => self.log(),
            20 => {
                let flags = OpenFlags {
                    sync: true,
                    ..OpenFlags::read_write()
                };
                self.write(name, ino, flags)
            }
            _ => (format!("fsync {name}"), self.fs.syncfs().map(|()| true)),
        }
    }

    fn any_name(&mut self) -> &'static str {
        NAMES.choose(self.rng).unwrap()
    }

    fn set(&mut self, ino: Ino, bytes: Vec<u8>) {
        self.model.content.insert(ino, Arc::new(bytes));
    }

    fn bytes(&self, ino: Ino) -> Vec<u8> {
        self.model.content[&ino].to_vec()
    }

    fn fresh_bytes(&mut self) -> Vec<u8> {
        let len = *[7, 500, 2000, 4096, 5000, 20_000, 70_000]
            .choose(self.rng)
            .unwrap();
        pattern(self.rng.random(), len)
    }

    /// Creates a file, or links another one.
    fn bring_into_being(&mut self, name: &'static str) -> (String, Result<Synced, FsError>) {
        let parent = self.writer.directory;
        let other = self.any_name();
        if let Some(&ino) = self.model.names.get(other)
            && self.rng.random_ratio(1, 3)
        {
            self.model.names.insert(name.to_owned(), ino);
            let linked = self.fs.names().link(ino, parent, name.as_bytes());
            let linked = linked.map(|attr| self.fs.open_files().forget(attr.ino, 1));
            return (format!("link {other} {name}"), linked.map(|()| false));
        }
        let flags = OpenFlags::read_write();
        let made = self
            .fs
            .names()
            .create(ROOT, parent, name.as_bytes(), 0o644, flags);
        let made = made.and_then(|(attr, handle)| {
            self.fs.open_files().release(handle)?;
            self.fs.open_files().forget(attr.ino, 1);
            Ok(attr.ino)
        });
        // An inode of a failed call has a number that is not used for another one.
        let ino = *made.as_ref().unwrap_or(&Ino(u64::MAX));
        self.model.names.insert(name.to_owned(), ino);
        self.set(ino, Vec::new());
        (format!("create {name}"), made.map(|_| false))
    }

    fn write(
        &mut self,
        name: &str,
        ino: Ino,
        flags: OpenFlags,
    ) -> (String, Result<Synced, FsError>) {
        let fresh = self.fresh_bytes();
        let mut bytes = self.bytes(ino);
        let most = (bytes.len() + 3000).min(FILE_MAX - fresh.len());
        let offset = self.rng.random_range(0..=most);
        bytes.resize(bytes.len().max(offset + fresh.len()), 0);
        bytes[offset..offset + fresh.len()].copy_from_slice(&fresh);
        self.set(ino, bytes);
        let what = format!(
            "write {name}, {offset}+{}, sync {}",
            fresh.len(),
            flags.sync
        );
        let at = offset as u64;
        let written = with_file(self.fs, ino, flags, |handle| {
            self.fs
                .writer()
                .write(handle, at, &fresh, WriteFlags::default())
        });
        (what, written.map(|_| flags.sync))
    }

    fn append(&mut self, name: &str, ino: Ino) -> (String, Result<Synced, FsError>) {
        let fresh = self.fresh_bytes();
        let mut bytes = self.bytes(ino);
        if bytes.len() + fresh.len() > FILE_MAX {
            return self.truncate(name, ino);
        }
        bytes.extend_from_slice(&fresh);
        self.set(ino, bytes);
        let flags = OpenFlags {
            append: true,
            ..OpenFlags::read_write()
        };
        let written = with_file(self.fs, ino, flags, |handle| {
            self.fs
                .writer()
                .write(handle, 0, &fresh, WriteFlags::default())
        });
        (
            format!("append {} to {name}", fresh.len()),
            written.map(|_| false),
        )
    }

    fn truncate(&mut self, name: &str, ino: Ino) -> (String, Result<Synced, FsError>) {
        let mut bytes = self.bytes(ino);
        let to_zero = self.rng.random_ratio(1, 3);
        let len = if to_zero {
            0
        } else {
            self.rng.random_range(0..FILE_MAX)
        };
        bytes.resize(len, 0);
        self.set(ino, bytes);
        if to_zero {
            let flags = OpenFlags {
                truncate: true,
                ..OpenFlags::read_write()
            };
            let opened = with_file(self.fs, ino, flags, |_| Ok(()));
            return (format!("open {name} with O_TRUNC"), opened.map(|()| false));
        }
        let changes = Changes {
            size: Some(len as u64),
            ..Changes::default()
        };
        let cut = self.fs.attributes().set(ROOT, ino, changes);
        (format!("cut {name} to {len}"), cut.map(|_| false))
    }

    fn allocate(&mut self, name: &str, ino: Ino) -> (String, Result<Synced, FsError>) {
        let modes = [
            Allocation::PunchHole,
            Allocation::ZeroRange,
            Allocation::Allocate,
        ];
        let mode = *modes.choose(self.rng).unwrap();
        let start = self.rng.random_range(0..FILE_MAX / 2);
        let len = self.rng.random_range(1..FILE_MAX / 2);
        let mut bytes = self.bytes(ino);
        if mode != Allocation::PunchHole {
            bytes.resize(bytes.len().max(start + len), 0);
        }
        if mode != Allocation::Allocate {
            let end = bytes.len().min(start + len);
            bytes[start.min(end)..end].fill(0);
        }
        self.set(ino, bytes);
        let done = with_file(self.fs, ino, OpenFlags::read_write(), |handle| {
            self.fs
                .writer()
                .fallocate(ROOT, handle, mode, start as u64, len as u64)
        });
        (
            format!("{mode:?} {name}, {start}+{len}"),
            done.map(|()| false),
        )
    }

    fn copy(&mut self, name: &str, ino: Ino) -> (String, Result<Synced, FsError>) {
        let from = self.any_name();
        let Some(&source) = self.model.names.get(from).filter(|source| **source != ino) else {
            return self.write(name, ino, OpenFlags::read_write());
        };
        let start = self.rng.random_range(0..FILE_MAX / 2);
        let len = self.rng.random_range(1..FILE_MAX / 2);
        let target = self.rng.random_range(0..FILE_MAX / 2);
        let done = with_file(self.fs, source, OpenFlags::read_only(), |source| {
            with_file(self.fs, ino, OpenFlags::read_write(), |handle| {
                let (start, target) = (start as u64, target as u64);
                self.fs
                    .writer()
                    .copy_range(ROOT, source, start, handle, target, len as u64)
            })
        });
        let what = format!("copy {from}, {start}+{len}, to {name} at {target}: {done:?}");
        let done = done.map(|copied| self.copied(source, start..start + len, ino, target, copied));
        (what, done.map(|()| false))
    }

    /// Does in the model what a call did that says it copied so many bytes: as few as it likes, but
    /// some if there are any.
    fn copied(&mut self, source: Ino, range: Range<usize>, ino: Ino, target: usize, copied: u64) {
        let (source, mut bytes) = (self.bytes(source), self.bytes(ino));
        let end = source.len().min(range.end);
        let there = &source[range.start.min(end)..end];
        let copied = usize::try_from(copied).unwrap();
        assert!(copied <= there.len() && (copied > 0 || there.is_empty()));
        if copied > 0 {
            bytes.resize(bytes.len().max(target + copied), 0);
            bytes[target..target + copied].copy_from_slice(&there[..copied]);
        }
        self.set(ino, bytes);
    }

    fn rename(&mut self, name: &str, ino: Ino) -> (String, Result<Synced, FsError>) {
        let to = self.any_name();
        let there = self.model.names.get(to).copied();
        let modes = [
            RenameMode::Replace,
            RenameMode::Exchange,
            RenameMode::NoReplace,
        ];
        let mut mode = *modes.choose(self.rng).unwrap();
        mode = match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => RenameMode::Replace,
            (RenameMode::Exchange, None) => RenameMode::NoReplace,
            (mode, _) => mode,
        };
        // Two names of one file, or one name twice, are left alone.
        if there != Some(ino) {
            self.model.names.insert(to.to_owned(), ino);
            match (mode, there) {
                (RenameMode::Exchange, Some(there)) => {
                    self.model.names.insert(name.to_owned(), there)
                }
                _ => self.model.names.remove(name),
            };
        }
        let parent = self.writer.directory;
        let done =
            self.fs
                .names()
                .rename(ROOT, parent, name.as_bytes(), parent, to.as_bytes(), mode);
        (format!("{mode:?} {to} by {name}"), done.map(|()| false))
    }

    fn unlink(&mut self, name: &str) -> (String, Result<Synced, FsError>) {
        self.model.names.remove(name);
        let done = self
            .fs
            .names()
            .unlink(self.writer.directory, name.as_bytes());
        (format!("unlink {name}"), done.map(|()| false))
    }

    /// Keeps a file open, whatever becomes of its names.
    fn hold(
        &mut self,
        ino: Ino,
        held: &mut Vec<(Handle, Ino)>,
    ) -> (String, Result<Synced, FsError>) {
        let opened = self.fs.open_files().open(ROOT, ino, OpenFlags::read_only());
        let opened = opened.and_then(|handle| {
            held.push((handle, ino));
            if held.len() > 3 {
                self.fs.open_files().release(held.remove(0).0)?;
            }
            Ok(false)
        });
        (format!("hold {ino}"), opened)
    }

    /// Reads a file, or one that is held open.
    fn look(
        &mut self,
        name: &str,
        ino: Ino,
        held: &[(Handle, Ino)],
    ) -> (String, Result<Synced, FsError>) {
        let (what, found, ino) = if let Some((handle, ino)) = held.choose(self.rng) {
            (format!("read {ino}"), read_all(self.fs, *handle), *ino)
        } else {
            let flags = OpenFlags::read_only();
            let found = with_file(self.fs, ino, flags, |handle| read_all(self.fs, handle));
            (format!("read {name}"), found, ino)
        };
        let expected = &self.model.content[&ino];
        if let Ok(found) = &found {
            assert!(
                found == &**expected,
                "{what}: {} bytes, not those written",
                found.len()
            );
        }
        (what, found.map(|_| false))
    }

    /// Appends a record to the log of all writers.
    fn log(&mut self) -> (String, Result<Synced, FsError>) {
        let number = self.model.logged;
        self.model.logged += 1;
        let record = record(self.writer.number, number);
        let flags = OpenFlags {
            append: true,
            ..OpenFlags::read_write()
        };
        let written = with_file(self.fs, self.writer.log_file, flags, |handle| {
            self.fs
                .writer()
                .write(handle, 0, &record, WriteFlags::default())
        });
        (format!("log record {number}"), written.map(|_| false))
    }
}
