//! Removing inodes that have lost their last name, and the data behind the ends of files.
//!
//! The thread that releases a small inode last removes it. A big one is removed part by part in the background. Each
//! batch takes a bounded number of records, and the orphan record goes with the last of them. So after a crash at any
//! point, the next mount can go on. The rest of a long file that was cut goes in the same way.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use crate::format::record::Inode;
use crate::format::{Ino, key};
use crate::transaction::{CommitError, Transactions};
use crate::workers::Threads;

use super::cut::{self, Rest, Sweep};
use super::edit::Edit;
use super::error::FsError;
use super::extents::{self, PAGE};
use super::inodes::{Inodes, read_inode};
use super::limits::SIZE_MAX;
use super::locks::ExclusiveLock;

/// Inodes that wait to be removed; a thread that finds the queue full removes its inode itself.
const QUEUE: usize = 1024;

/// The work of the thread.
enum RemovalJob {
    /// Remove an inode without a name.
    Remove(Ino),
    /// Remove what lies behind the end of a file.
    Cut(Ino),
    /// Go on with what a crash left.
    Resume(Vec<Ino>),
    /// Tell that all earlier jobs are done.
    Barrier(SyncSender<()>),
}

/// Removes inodes, with a thread for the big ones.
pub(super) struct Removal {
    remover: Arc<Remover>,
    queue: Mutex<Option<SyncSender<RemovalJob>>>,
    threads: Threads,
}

/// The work itself, shared by the thread and by callers that find its queue full.
struct Remover {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    /// Files behind whose ends something may be left, and whether there is a job for each. Changed under
    /// the file's lock.
    cutting: Mutex<HashMap<Ino, bool>>,
}

impl Removal {
    /// Returns a part without a thread, which starts when it is first needed.
    pub(super) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        let remover = Arc::new(Remover {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            cutting: Mutex::default(),
        });
        Self {
            remover,
            queue: Mutex::new(None),
            threads: Threads::default(),
        }
    }

    /// Removes an inode without a name, now or soon. Does nothing if it has a name again.
    pub(super) fn remove(&self, ino: Ino) -> Result<(), FsError> {
        if self.remover.remove_part(ino, &mut Sweep::default())? {
            return Ok(());
        }
        if self.send(RemovalJob::Remove(ino)) {
            return Ok(());
        }
        self.remover.remove(ino)
    }

    /// Removes what lies behind the end of a file with a mark, soon.
    pub(super) fn cut_later(&self, lock: &ExclusiveLock<'_>, ino: Ino) -> Result<(), FsError> {
        debug_assert!(lock.covers(ino));
        let had_job = self.remover.cutting.lock().insert(ino, true) == Some(true);
        if had_job || self.send(RemovalJob::Cut(ino)) {
            return Ok(());
        }
        let mut sweep = Sweep::default();
        while !self.remover.cut_part(lock, ino, &mut sweep)? {}
        Ok(())
    }

    /// Marks a file as one that waits to be cut.
    #[cfg(test)]
    pub(super) fn mark_cutting(&self, ino: Ino) {
        self.remover.cutting.lock().insert(ino, true);
    }

    /// Returns whether data may remain behind the end of a file.
    pub(super) fn is_cutting(&self, ino: Ino) -> bool {
        self.remover.cutting.lock().contains_key(&ino)
    }

    /// Takes out what is left of a file that was longer, from its end to `end`, to where it is about to
    /// grow.
    pub(super) fn clear_behind(
        &self,
        lock: &ExclusiveLock<'_>,
        ino: Ino,
        inode: &mut Inode,
        end: u64,
    ) -> Result<(), FsError> {
        if end <= inode.size || !self.is_cutting(ino) {
            return Ok(());
        }
        let (inodes, transactions) = (&self.remover.inodes, &self.remover.transactions);
        // Without what the caller has changed already.
        let mut stored = read_inode(transactions, ino)?.ok_or(FsError::NotFound)?;
        let (range, mut sweep) = (stored.size..end, Sweep::default());
        let rest = Rest::of(&stored);
        while !cut::cut_part(
            inodes,
            transactions,
            lock,
            (ino, &mut stored),
            (&range, rest),
            &mut sweep,
        )? {}
        inode.allocated_bytes = stored.allocated_bytes;
        inode.unwritten_bytes = stored.unwritten_bytes;
        Ok(())
    }

    /// Takes out all that is left of a file that was longer, in batches. The caller holds no lock.
    pub(super) fn finish_cut(&self, ino: Ino) -> Result<(), FsError> {
        if self.is_cutting(ino) {
            self.remover.cut(ino)?;
        }
        Ok(())
    }

    /// Goes on, in the background, with what a crash cut off: files with a mark are cut where they
    /// end, inodes without a name are removed. Those that are `referenced` stay: their last reference removes them.
    pub(super) fn resume(&self, referenced: impl Fn(Ino) -> bool) -> Result<(), FsError> {
        let (from, end) = key::orphans();
        let mut inos = Vec::new();
        self.remover.transactions.visit(&from, &end, |key, _| {
            inos.push(key::parse_orphan(key)?);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        let mut due = Vec::new();
        for ino in inos {
            let inode = read_inode(&self.remover.transactions, ino)?;
            let is_nameless = inode.is_none_or(|inode| inode.links == 0);
            if is_nameless && referenced(ino) {
                // It may have been cut as well.
                self.remover.cutting.lock().insert(ino, true);
                if !self.send(RemovalJob::Cut(ino)) {
                    self.remover.cutting.lock().insert(ino, false);
                }
            } else {
                due.push(ino);
            }
        }
        let inos = due;
        if inos.is_empty() {
            return Ok(());
        }
        let all = |has_job| inos.iter().map(move |ino| (*ino, has_job));
        self.remover.cutting.lock().extend(all(true));
        if !self.send(RemovalJob::Resume(inos.clone())) {
            tracing::warn!("what a crash cut off is to be finished at the next mount");
            self.remover.cutting.lock().extend(all(false));
        }
        Ok(())
    }

    /// Returns whether an inode is there, as far as that can be read.
    pub(super) fn is_left(&self, ino: Ino) -> bool {
        let inode = read_inode(&self.remover.transactions, ino);
        inode.is_ok_and(|inode| inode.is_some())
    }

    /// Waits until all that was handed to the background so far is done.
    pub(super) fn wait(&self) {
        let sender = self.queue.lock().clone();
        let Some(sender) = sender else { return };
        let (done, wait) = sync_channel(1);
        if sender.send(RemovalJob::Barrier(done)).is_ok() {
            // An error says that the thread is gone, and with it whatever it had to do.
            let _gone = wait.recv();
        }
    }

    /// Returns whether the job found a place in the queue.
    fn send(&self, job: RemovalJob) -> bool {
        let mut queue = self.queue.lock();
        let sender = match &*queue {
            Some(sender) => sender,
            None => match self.spawn() {
                Some(sender) => queue.insert(sender),
                None => return false,
            },
        };
        sender.try_send(job).is_ok()
    }

    /// Starts the thread; most volumes never need it. Without one, each thread removes its inodes itself.
    fn spawn(&self) -> Option<SyncSender<RemovalJob>> {
        let (sender, jobs) = sync_channel(QUEUE);
        let remover = Arc::clone(&self.remover);
        let started = self
            .threads
            .start("cauchyfs-remove", move || remover.work(&jobs));
        match started {
            Ok(()) => Some(sender),
            Err(error) => {
                tracing::warn!("big files are removed in the foreground: {error}");
                None
            }
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // The thread ends when all senders are gone.
        self.queue.lock().take();
        self.threads.wait();
    }
}

impl Remover {
    fn work(&self, jobs: &Receiver<RemovalJob>) {
        for job in jobs {
            match job {
                RemovalJob::Remove(ino) => log_failure(ino, self.remove(ino)),
                RemovalJob::Cut(ino) => log_failure(ino, self.cut(ino)),
                RemovalJob::Resume(inos) => {
                    for ino in inos {
                        log_failure(ino, self.resume(ino));
                    }
                }
                RemovalJob::Barrier(done) => {
                    // The caller may have stopped waiting.
                    let _unread = done.send(());
                }
            }
        }
    }

    fn remove(&self, ino: Ino) -> Result<(), FsError> {
        let mut sweep = Sweep::default();
        while !self.remove_part(ino, &mut sweep)? {}
        Ok(())
    }

    fn cut(&self, ino: Ino) -> Result<(), FsError> {
        let mut sweep = Sweep::default();
        loop {
            let lock = self.inodes.locks().exclusive(&[ino]);
            if self.cut_part(&lock, ino, &mut sweep)? {
                return Ok(());
            }
        }
    }

    /// Removes a bounded part of what lies behind the end of a file that is being cut. Returns whether nothing is left of
    /// that. If that fails, the file must not grow over what is left.
    fn cut_part(
        &self,
        lock: &ExclusiveLock<'_>,
        ino: Ino,
        sweep: &mut Sweep,
    ) -> Result<bool, FsError> {
        if !self.cutting.lock().contains_key(&ino) {
            return Ok(true);
        }
        let outcome = match read_inode(&self.transactions, ino) {
            Ok(Some(inode)) => {
                cut::cut_behind_end(&self.inodes, &self.transactions, lock, (ino, inode), sweep)
            }
            Ok(None) => Ok(true),
            Err(error) => Err(error),
        };
        let mut cutting = self.cutting.lock();
        match outcome {
            Ok(true) => drop(cutting.remove(&ino)),
            Ok(false) => {}
            Err(_) => drop(cutting.insert(ino, false)),
        }
        outcome
    }

    /// Goes on with an inode that a crash left with a mark.
    fn resume(&self, ino: Ino) -> Result<(), FsError> {
        match read_inode(&self.transactions, ino)? {
            Some(inode) if inode.links > 0 => return self.cut(ino),
            Some(_) => self.remove(ino)?,
            None => {
                let mut edit = Edit::default();
                edit.delete_orphan(ino);
                self.inodes.apply(edit)?;
            }
        }
        self.cutting.lock().remove(&ino);
        Ok(())
    }

    /// Removes a bounded part of an inode. Returns whether nothing is left of it.
    fn remove_part(&self, ino: Ino, sweep: &mut Sweep) -> Result<bool, FsError> {
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let Some(mut inode) = read_inode(&self.transactions, ino)? else {
            return Ok(true);
        };
        if inode.links > 0 {
            return Ok(true);
        }
        let had_unwritten = inode.unwritten_bytes > 0;
        let mut edit = Edit::default();
        let whole = 0..SIZE_MAX;
        let runs = extents::page(&self.transactions, ino, &sweep.rest_of(&whole))?;
        let shrunk = extents::replace(&mut edit, ino, &runs, &[]);
        shrunk.count_in(&mut inode);
        let (from, end) = key::xattrs(ino);
        let xattrs = self.transactions.scan(&from, &end, PAGE)?;
        for (key, _) in &xattrs {
            edit.delete_xattr(ino, key::parse_xattr(key)?.1);
        }
        let finished = sweep.note(&whole, &runs) && xattrs.len() < PAGE;
        if finished {
            edit.delete_inode(ino, &inode);
            edit.delete_orphan(ino);
            if had_unwritten {
                edit.mark_unwritten(ino, false);
            }
            self.cutting.lock().remove(&ino);
        } else {
            edit.put_inode(ino, &inode);
        }
        self.inodes.apply(edit)?;
        Ok(finished)
    }
}

/// Logs the failure of a job. The mark of the inode stays.
fn log_failure(ino: Ino, done: Result<(), FsError>) {
    if let Err(error) = done {
        tracing::warn!("what is left of inode {ino} is to be removed at the next mount: {error}");
    }
}
