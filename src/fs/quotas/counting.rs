//! Counting what a directory holds before it gets a quota.
//!
//! A thread walks through the directories below it, and makes every inode name the quota. A directory names it before it
//! is listed, so inodes that are made meanwhile inherit it. Inodes that are renamed or linked meanwhile could escape the
//! walk, so they are noted, and visited as well. A crash ends the walk anywhere: the next mount walks again, and finds
//! inodes that name the quota already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::format::record::{Dirent, FileKind, QuotaState};
use crate::format::{Ino, QuotaId, Record, key};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::inodes::{Inodes, read_inode};
use crate::transaction::Transactions;
use crate::workers::Threads;

use super::{Position, Quotas};

/// Names that are read at once.
const PAGE: usize = 512;

/// Counts for all quotas that are to count what their directories held before.
pub(super) struct Counting {
    counter: Arc<Counter>,
    threads: Threads,
}

/// The work itself, done by one thread at a time.
struct Counter {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    is_running: Mutex<bool>,
    is_stopped: AtomicBool,
}

impl Counting {
    /// Returns a part without a thread, which starts when it is first needed.
    pub(super) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            counter: Arc::new(Counter {
                inodes: Arc::clone(inodes),
                transactions: Arc::clone(transactions),
                is_running: Mutex::new(false),
                is_stopped: AtomicBool::new(false),
            }),
            threads: Threads::default(),
        }
    }

    /// Starts to count in the background, if anything is to be counted and no thread does it already.
    pub(super) fn start(&self) {
        let mut is_running = self.counter.is_running.lock();
        if *is_running || self.counter.next().is_none() {
            return;
        }
        let counter = Arc::clone(&self.counter);
        let started = self.threads.start("quota", move || counter.run());
        match started {
            Ok(()) => *is_running = true,
            Err(error) => tracing::warn!("quotas are counted at the next mount: {error}"),
        }
    }

    /// Returns whether a thread counts.
    pub(super) fn is_running(&self) -> bool {
        *self.counter.is_running.lock()
    }

    /// Stops counting. The next mount begins again.
    pub(super) fn stop(&self) {
        self.counter.is_stopped.store(true, Ordering::Release);
        self.threads.wait();
    }

    /// Waits until all is counted, or cannot be.
    pub(super) fn wait(&self) {
        self.threads.wait();
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Counter {
    fn quotas(&self) -> &Quotas {
        self.inodes.quotas()
    }

    /// Returns a quota that is to count.
    fn next(&self) -> Option<(QuotaId, Ino)> {
        let book = self.quotas().book();
        let mut quotas = book.iter();
        let next = quotas.find(|(_, quota)| quota.state == QuotaState::Counting);
        next.map(|(id, quota)| (id, quota.root))
    }

    fn run(&self) {
        loop {
            let next = {
                let mut is_running = self.is_running.lock();
                let next = self.next().filter(|_| !self.is_stopped());
                *is_running = next.is_some();
                next
            };
            let Some((id, root)) = next else { return };
            if let Err(error) = self.count(id, root) {
                tracing::warn!(
                    "the quota of inode {root} does not count everything before the next mount: {error}"
                );
                *self.is_running.lock() = false;
                return;
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Makes everything below `root` name the quota, and then brings the quota into force.
    fn count(&self, id: QuotaId, root: Ino) -> Result<(), FsError> {
        let mut directories = vec![root];
        loop {
            while let Some(directory) = directories.pop() {
                if !self.list(id, directory, &mut directories)? {
                    return Ok(());
                }
            }
            let Some(moved) = self.finish(id)? else {
                return Ok(());
            };
            for ino in moved {
                self.visit(id, ino, &mut directories)?;
            }
        }
    }

    /// Visits all that a directory names. Returns `false` if the count is to end here.
    fn list(
        &self,
        id: QuotaId,
        directory: Ino,
        directories: &mut Vec<Ino>,
    ) -> Result<bool, FsError> {
        let (mut from, end) = key::dirents(directory);
        loop {
            if self.is_stopped() || !self.quotas().counts(id) {
                return Ok(false);
            }
            // Records that become longer are an addition to the index.
            self.transactions.growth().check_growth()?;
            let page = self.transactions.scan(&from, &end, PAGE)?;
            for (_, value) in &page {
                self.visit(id, Dirent::decode(value)?.ino, directories)?;
            }
            match page.last() {
                // The next key after this one is this one with a zero behind it.
                Some((last, _)) if page.len() == PAGE => from = [last, &[0][..]].concat().into(),
                _ => return Ok(true),
            }
        }
    }

    /// Makes an inode name the quota, unless it lies in another one. Adds it to `directories` if it is to be listed.
    fn visit(&self, id: QuotaId, ino: Ino, directories: &mut Vec<Ino>) -> Result<(), FsError> {
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let Some(mut inode) = read_inode(&self.transactions, ino)? else {
            return Ok(());
        };
        match self.quotas().position(&inode, id) {
            Position::Elsewhere => return Ok(()),
            Position::Counted => {}
            Position::Uncounted => {
                inode.quota = id;
                let mut edit = Edit::default();
                edit.put_recharged(ino, &inode);
                self.inodes.apply_in_any_case(edit)?;
            }
        }
        if inode.kind == FileKind::Directory {
            directories.push(ino);
        }
        Ok(())
    }

    /// Brings a quota into force, unless inodes were moved that may not be counted: returns these.
    fn finish(&self, id: QuotaId) -> Result<Option<Vec<Ino>>, FsError> {
        // Nothing is renamed or linked meanwhile.
        let _rename = self.inodes.locks().rename();
        let moved = self.quotas().take_moved(id);
        if !moved.is_empty() {
            return Ok(Some(moved));
        }
        self.inodes.change_quotas(Edit::default(), |book| {
            if let Some(quota) = book.get_mut(id)
                && quota.state == QuotaState::Counting
            {
                quota.state = QuotaState::InForce;
            }
        })?;
        Ok(None)
    }
}
