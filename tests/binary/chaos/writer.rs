//! A thread that changes files in a directory of its own, and knows what must be in them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, RngExt};
use rustix::fs::{FallocateFlags, XattrFlags};

use super::tree::{MARK, NodeId, Tree};
use crate::support::read_past_caches;

/// Files that a writer keeps at most.
const FILES: usize = 24;

/// No file grows beyond this.
const FILE_BYTES: usize = 3 << 20;

/// Files that a writer keeps open.
const OPEN_FILES: usize = 4;

/// Names that a writer uses, few enough to be used again and again.
const NAMES: u32 = 40;

/// The state that writers and the threads that disturb them share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Operations that were done.
    pub(super) done: AtomicU64,
    /// True if the daemon is about to be killed, or was, or its volume is about to fail: what is not durable may be lost.
    pub(super) dying: AtomicBool,
}

impl Shared {
    /// Returns whether what a sync has just made durable covers all that came before it. A sync that waited for an outage
    /// covers what the outage left.
    fn is_sure(&self) -> bool {
        !self.dying.load(Ordering::SeqCst)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    tree: Tree,
    open: BTreeMap<NodeId, File>,
}

impl Writer {
    /// Begins in a directory that it makes.
    pub(super) fn new(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("the mount is writable");
        File::open(&directory)
            .and_then(|opened| opened.sync_all())
            .expect("it can be synced");
        Self {
            directory,
            tree: Tree::new(),
            open: BTreeMap::new(),
        }
    }

    /// Does so many operations, or as many as it can until the daemon is killed or its volume fails.
    pub(super) fn work(
        &mut self,
        rng: &mut StdRng,
        operations: u64,
        shared: &Shared,
    ) -> Result<(), String> {
        for number in 0..operations {
            if shared.dying.load(Ordering::SeqCst) {
                return Ok(());
            }
            let mut what = String::new();
            self.tree.begin();
            match self.operate(rng, &mut what, shared) {
                Ok(()) => shared.done.fetch_add(1, Ordering::Relaxed),
                Err(_) if shared.dying.load(Ordering::SeqCst) => return Ok(()),
                Err(error) => {
                    let directory = self.directory.display();
                    return Err(format!("{directory}: operation {number}: {what}: {error}"));
                }
            };
        }
        Ok(())
    }

    /// Says what is not as it must be.
    pub(super) fn compare(&self) -> Result<(), String> {
        let compared = self.tree.compare(&self.directory);
        compared.map_err(|reason| format!("{}: {reason}", self.directory.display()))
    }

    /// Lets go of all files, as unmounting asks for.
    pub(super) fn close(&mut self) {
        self.open.clear();
    }

    /// Takes note that the volume was unmounted in good order.
    pub(super) fn settle(&mut self) {
        self.tree.settle();
    }

    /// Says what is not as it may be after a crash; what is, is what there is from now on.
    pub(super) fn recover(&mut self) -> Result<(), String> {
        let recovered = self.tree.recover(&self.directory);
        let directory = self.directory.display();
        recovered.map_err(|reason| format!("{directory}: {reason}"))?;
        let names = &self.tree.now().names;
        self.open
            .retain(|id, _| names.values().any(|named| named == id));
        for file in self.open.values() {
            report_losses(file).map_err(|error| format!("{directory}: an open file: {error}"))?;
        }
        Ok(())
    }

    fn operate(&mut self, rng: &mut StdRng, what: &mut String, shared: &Shared) -> io::Result<()> {
        let names = &self.tree.now().names;
        let picked = names.iter().choose(rng);
        let Some((name, id)) = picked.map(|(name, id)| (name.clone(), *id)) else {
            return self.create(rng, what);
        };
        let is_full = names.len() >= FILES;
        let choice = rng.random_range(0..100);
        *what = format!("{choice} on {name}");
        match choice {
            0..14 if is_full => self.unlink(&name, what),
            0..14 => self.create(rng, what),
            14..32 => self.overwrite(rng, &name, id, what),
            32..40 => self.append(rng, &name, id, what),
            40..45 => self.resize(rng, &name, id, what),
            45..49 => self.punch(rng, &name, id, what),
            49..55 => self.rename(rng, &name, what),
            55..63 => self.replace(rng, &name, what, shared),
            63..66 => self.link(rng, &name, id, what),
            66..73 => self.unlink(&name, what),
            73..82 => self.sync_file(rng, &name, id, what, shared),
            82..85 => self.sync_names(what, shared),
            85..88 => self.mark(rng, &name, id, what),
            _ => self.read(&name, id, what),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn new_name(rng: &mut StdRng) -> String {
        format!("f{}", rng.random_range(0..NAMES))
    }

    /// Opens a file for writing, or takes one that is open.
    fn handle(&mut self, name: &str, id: NodeId) -> io::Result<&File> {
        let path = self.path(name);
        if !self.open.contains_key(&id) {
            if self.open.len() >= OPEN_FILES {
                self.open.pop_first();
            }
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            self.open.insert(id, file);
        }
        Ok(&self.open[&id])
    }

    fn create(&mut self, rng: &mut StdRng, what: &mut String) -> io::Result<()> {
        let name = Self::new_name(rng);
        let bytes = bytes(rng);
        *what = format!("create {name} of {} bytes", bytes.len());
        let path = self.path(&name);
        let existing = self.tree.now().names.get(&name).copied();
        let id = existing.unwrap_or_else(|| {
            let id = self.tree.new_node();
            self.tree.change(|version| {
                version.names.insert(name.clone(), id);
            });
            id
        });
        let node = self.tree.node_mut(id);
        if existing.is_some() {
            node.resize(0);
        }
        node.write(0, bytes.clone());
        fs::write(path, bytes)
    }

    fn overwrite(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let offset = rng.random_range(0..=self.tree.node(id).content().len() + 10_000);
        self.write(name, id, offset, bytes(rng), what)
    }

    fn append(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let offset = self.tree.node(id).content().len();
        self.write(name, id, offset, bytes(rng), what)
    }

    fn write(
        &mut self,
        name: &str,
        id: NodeId,
        offset: usize,
        mut bytes: Vec<u8>,
        what: &mut String,
    ) -> io::Result<()> {
        bytes.truncate(FILE_BYTES.saturating_sub(offset));
        *what = format!("write {} bytes at {offset} of {name}", bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        self.handle(name, id)?;
        self.tree.node_mut(id).write(offset, bytes.clone());
        self.open[&id].write_all_at(&bytes, offset as u64)
    }

    fn resize(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let most = (self.tree.node(id).content().len() * 5 / 4 + 1).min(FILE_BYTES);
        let len = rng.random_range(0..=most);
        *what = format!("truncate {name} to {len}");
        self.handle(name, id)?;
        self.tree.node_mut(id).resize(len);
        self.open[&id].set_len(len as u64)
    }

    fn punch(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let size = self.tree.node(id).content().len();
        let offset = rng.random_range(0..=size);
        let len = rng.random_range(1..=size / 2 + 1);
        *what = format!("punch {len} bytes at {offset} of {name}");
        self.handle(name, id)?;
        self.tree.node_mut(id).zero(offset, len);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(
            &self.open[&id],
            flags,
            offset as u64,
            len as u64,
        )?)
    }

    fn rename(&mut self, rng: &mut StdRng, from: &str, what: &mut String) -> io::Result<()> {
        let to = Self::new_name(rng);
        *what = format!("rename {from} to {to}");
        let names = &self.tree.now().names;
        if names.contains_key(&to) {
            // Over a file only by `replace`, which has written all of it.
            return Ok(());
        }
        self.tree.change(|version| {
            let id = version.names.remove(from).expect("it was picked");
            version.names.insert(to.clone(), id);
        });
        fs::rename(self.path(from), self.path(&to))
    }

    /// Writes a new file and renames it over another, as editors do; half of them do not sync it.
    fn replace(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        what: &mut String,
        shared: &Shared,
    ) -> io::Result<()> {
        let bytes = bytes(rng);
        let synced = rng.random();
        *what = format!("replace {name} with {} bytes", bytes.len());
        let id = self.tree.new_node();
        let draft = format!("draft{id}");
        self.tree.change(|version| {
            version.names.insert(draft.clone(), id);
        });
        self.tree.node_mut(id).write(0, bytes.clone());
        let file = File::create(self.path(&draft))?;
        file.write_all_at(&bytes, 0)?;
        if synced {
            file.sync_all()?;
            if shared.is_sure() {
                self.tree.settle_file(id);
            }
        }
        drop(file);
        self.tree.change(|version| {
            version.names.remove(&draft);
            version.names.insert(name.to_owned(), id);
        });
        self.tree.bind(id);
        fs::rename(self.path(&draft), self.path(name))
    }

    fn link(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let new = Self::new_name(rng);
        *what = format!("link {name} to {new}");
        if self.tree.now().names.contains_key(&new) {
            return Ok(());
        }
        self.tree.change(|version| {
            version.names.insert(new.clone(), id);
        });
        fs::hard_link(self.path(name), self.path(&new))
    }

    fn unlink(&mut self, name: &str, what: &mut String) -> io::Result<()> {
        *what = format!("unlink {name}");
        self.tree.change(|version| {
            version.names.remove(name);
        });
        fs::remove_file(self.path(name))?;
        let names = &self.tree.now().names;
        self.open
            .retain(|id, _| names.values().any(|named| named == id));
        Ok(())
    }

    fn sync_file(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
        shared: &Shared,
    ) -> io::Result<()> {
        *what = format!("sync {name}");
        let all = rng.random();
        let file = self.handle(name, id)?;
        if all {
            file.sync_all()?;
        } else {
            file.sync_data()?;
        }
        if shared.is_sure() {
            self.tree.settle_file(id);
        }
        Ok(())
    }

    fn sync_names(&mut self, what: &mut String, shared: &Shared) -> io::Result<()> {
        "sync the directory".clone_into(what);
        File::open(&self.directory)?.sync_all()?;
        if shared.is_sure() {
            self.tree.settle_names();
        }
        Ok(())
    }

    fn mark(
        &mut self,
        rng: &mut StdRng,
        name: &str,
        id: NodeId,
        what: &mut String,
    ) -> io::Result<()> {
        let mark = rng.next_u64();
        *what = format!("mark {name}");
        self.tree.change(|version| {
            version.marks.insert(id, mark);
        });
        let path = self.path(name);
        Ok(rustix::fs::setxattr(
            &path,
            MARK,
            &mark.to_le_bytes(),
            XattrFlags::empty(),
        )?)
    }

    fn read(&mut self, name: &str, id: NodeId, what: &mut String) -> io::Result<()> {
        *what = format!("read {name}");
        let bytes = read_past_caches(&self.path(name))?;
        match super::node::difference(self.tree.node(id).content(), &bytes) {
            None => Ok(()),
            Some(difference) => Err(io::Error::other(difference)),
        }
    }
}

/// Syncs a file or directory. The kernel may report once that it could not write pages, and the daemon that it lost some.
pub(super) fn report_losses(file: &File) -> io::Result<()> {
    for _ in 0..2 {
        match file.sync_all() {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
            synced => return synced,
        }
    }
    file.sync_all()
}

/// Bytes of a file or a part of one: most are small.
fn bytes(rng: &mut StdRng) -> Vec<u8> {
    let most = match rng.random_range(0..10) {
        0..3 => 2000,
        3..7 => 60_000,
        7..9 => 500_000,
        _ => FILE_BYTES,
    };
    let mut bytes = vec![0; rng.random_range(1..=most)];
    rng.fill_bytes(&mut bytes);
    bytes
}
