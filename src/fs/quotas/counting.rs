//! Counting what a directory holds before it gets a quota.
//!
//! A thread walks through the directories below it, and makes every inode name the quota. A directory names it before it
//! is listed, so inodes that are made meanwhile inherit it. Inodes that are renamed or linked meanwhile could escape the
//! walk, so they are noted, and visited as well. A crash ends the walk anywhere: the next mount walks again, and finds
//! inodes that name the quota already.
//!
//! The walk leaves damaged records out, which name no inode that could be charged. Where the index has no space, the thread
//! waits and walks again.

mod walk;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::format::record::{Dirent, FileKind, QuotaState};
use crate::format::{Ino, QuotaId, Record, key};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::inodes::{Inodes, read_inode};
use crate::transaction::Transactions;
use crate::workers::Threads;

use super::{MovedNotes, Position, Quotas};
use walk::Walk;

/// Names that are read at once.
const PAGE: usize = 512;

/// The time until a count that found no space is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Counts for all quotas that are to count what their directories held before.
pub(super) struct Counting {
    counter: Arc<Counter>,
    threads: Threads,
}

/// The work itself, done by one thread at a time.
struct Counter {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    work: Mutex<Work>,
    /// Notified when `work` changes, and when the work is to stop.
    changed: Condvar,
    is_stopped: AtomicBool,
}

/// The state of the thread that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// There is no thread.
    None,
    /// It counts.
    Counting,
    /// It waits until the index may have space.
    AwaitingSpace,
}

impl Counting {
    /// Returns a part without a thread, which starts when it is first needed.
    pub(super) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            counter: Arc::new(Counter {
                inodes: Arc::clone(inodes),
                transactions: Arc::clone(transactions),
                work: Mutex::new(Work::None),
                changed: Condvar::new(),
                is_stopped: AtomicBool::new(false),
            }),
            threads: Threads::default(),
        }
    }

    /// Starts to count in the background, if anything is to be counted and no thread does it already. A thread that waits
    /// for space tries again at once.
    pub(super) fn start(&self) {
        let mut work = self.counter.work.lock();
        match *work {
            Work::Counting => return,
            Work::AwaitingSpace => {
                *work = Work::Counting;
                self.counter.changed.notify_all();
                return;
            }
            Work::None => {}
        }
        if self.counter.next().is_none() {
            return;
        }
        let counter = Arc::clone(&self.counter);
        let started = self.threads.start("quota", move || counter.run());
        match started {
            Ok(()) => *work = Work::Counting,
            Err(error) => tracing::warn!("quotas are counted at the next mount: {error}"),
        }
    }

    /// Returns whether a thread counts. One that waits for space does not.
    pub(super) fn is_running(&self) -> bool {
        *self.counter.work.lock() == Work::Counting
    }

    /// Stops counting. The next mount begins again.
    ///
    /// Waits for the page of names that the thread has begun, with no bound of its own: the thread changes inodes, and
    /// must not do so beside the end of the filesystem. The wait ends, because each request to a member does. A member that
    /// does not answer in time is given up, and no request after that waits for it.
    pub(super) fn stop(&self) {
        {
            let _work = self.counter.work.lock();
            self.counter.is_stopped.store(true, Ordering::Release);
            self.counter.changed.notify_all();
        }
        self.threads.wait();
    }

    /// Waits until all is counted, or cannot be for now.
    pub(super) fn wait(&self) {
        let mut work = self.counter.work.lock();
        while *work == Work::Counting {
            self.counter.changed.wait(&mut work);
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread that counts. If it panics, nothing waits for it any more.
struct AtWork<'a>(&'a Counter);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_work(Work::None);
        }
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
        let _at_work = AtWork(self);
        let mut is_told = false;
        while let Some((id, root)) = self.take_work() {
            match self.count(id, root) {
                Ok(()) => is_told = false,
                Err(FsError::NoSpace) => {
                    if !is_told {
                        tracing::warn!(
                            "the quota of inode {root} does not count everything until there is space again"
                        );
                    }
                    is_told = true;
                    self.await_space();
                }
                Err(error) => {
                    tracing::warn!(
                        "the quota of inode {root} does not count everything before the next mount: {error}"
                    );
                    self.set_work(Work::None);
                    return;
                }
            }
        }
    }

    /// Returns the next quota that is to count, or ends the work.
    fn take_work(&self) -> Option<(QuotaId, Ino)> {
        let mut work = self.work.lock();
        let next = self.next().filter(|_| !self.is_stopped());
        if next.is_none() {
            *work = Work::None;
            self.changed.notify_all();
        }
        next
    }

    fn set_work(&self, work: Work) {
        *self.work.lock() = work;
        self.changed.notify_all();
    }

    /// Waits for a while, or until another call is to try at once.
    fn await_space(&self) {
        let until = Instant::now() + RETRY_INTERVAL;
        let mut work = self.work.lock();
        *work = Work::AwaitingSpace;
        self.changed.notify_all();
        while *work == Work::AwaitingSpace && !self.is_stopped() {
            if self.changed.wait_until(&mut work, until).timed_out() {
                break;
            }
        }
        *work = Work::Counting;
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Makes everything below `root` name the quota, and then brings the quota into force.
    fn count(&self, id: QuotaId, root: Ino) -> Result<(), FsError> {
        let notes = self.quotas().note_moves(id);
        let mut walk = Walk::new(id, root);
        loop {
            while let Some(directory) = walk.next() {
                if !self.list(directory, &mut walk)? {
                    return Ok(());
                }
            }
            let Some(moved) = self.finish(id, &notes)? else {
                walk.report();
                return Ok(());
            };
            for ino in moved {
                if self.is_stopped() {
                    return Ok(());
                }
                self.visit(ino, &mut walk)?;
            }
        }
    }

    /// Visits all that a directory names. Returns `false` if the count is to end here.
    fn list(&self, directory: Ino, walk: &mut Walk) -> Result<bool, FsError> {
        let (mut from, end) = key::dirents(directory);
        loop {
            if self.is_stopped() || !self.quotas().counts(walk.id()) {
                return Ok(false);
            }
            // Records that become longer are an addition to the index.
            let growth = self.transactions.growth();
            self.inodes.with_room(0, || Ok(growth.check_growth()?))?;
            let page = self.transactions.scan(&from, &end, PAGE)?;
            for (_, value) in &page {
                match Dirent::decode(value) {
                    Ok(entry) => self.visit(entry.ino, walk)?,
                    Err(error) => walk.leave_out(directory, &error.into()),
                }
            }
            match page.last() {
                // The next key after this one is this one with a zero behind it.
                Some((last, _)) if page.len() == PAGE => from = [last, &[0][..]].concat().into(),
                _ => return Ok(true),
            }
        }
    }

    /// Makes an inode name the quota, unless it lies in another one or is damaged. Adds it to the walk if it is to be listed.
    fn visit(&self, ino: Ino, walk: &mut Walk) -> Result<(), FsError> {
        match self.name_quota(ino, walk.id()) {
            Ok(Some(FileKind::Directory)) => walk.add(ino),
            Ok(_) => {}
            Err(error @ (FsError::Format(_) | FsError::Corrupt { .. })) => {
                walk.leave_out(ino, &error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes an inode name a quota. Returns its kind, unless it lies in another quota.
    fn name_quota(&self, ino: Ino, id: QuotaId) -> Result<Option<FileKind>, FsError> {
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let Some(mut inode) = read_inode(&self.transactions, ino)? else {
            return Ok(None);
        };
        match self.quotas().position(&inode, id) {
            Position::Elsewhere => return Ok(None),
            Position::Counted => {}
            Position::Uncounted => {
                inode.quota = id;
                let mut edit = Edit::default();
                edit.put_recharged(ino, &inode);
                self.inodes.apply_in_any_case(edit)?;
            }
        }
        Ok(Some(inode.kind))
    }

    /// Brings a quota into force, unless inodes were moved that may not be counted: returns these.
    fn finish(
        &self,
        id: QuotaId,
        notes: &MovedNotes<'_>,
    ) -> Result<Option<BTreeSet<Ino>>, FsError> {
        // Nothing is renamed or linked meanwhile.
        let _rename = self.inodes.locks().rename();
        let moved = notes.take();
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

#[cfg(test)]
mod tests;
