//! Removing inodes that have lost their last name.
//!
//! A small inode is removed by whoever lets go of it last, a big one piece by piece in the background:
//! each batch takes a bounded number of records, and the orphan record goes with the last of them, so
//! that a crash at any point leaves what the next mount can go on with.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use crate::commit::Pipeline;
use crate::format::{Ino, key};
use crate::workers::Threads;

use super::edit::Edit;
use super::extents::{self, PAGE};
use super::locks::Locks;
use super::truncate;
use super::{Fs, FsError, SIZE_MAX, read_inode};

/// Inodes that wait to be removed; whoever finds the queue full removes his own.
const QUEUE: usize = 1024;

enum Job {
    Remove(Ino),
    Answer(SyncSender<()>),
}

/// Removes inodes, with a thread for the big ones.
pub(super) struct Removal {
    remover: Arc<Remover>,
    queue: Mutex<Option<SyncSender<Job>>>,
    threads: Threads,
}

struct Remover {
    pipeline: Arc<Pipeline>,
    locks: Arc<Locks>,
}

impl Removal {
    pub(super) fn start(pipeline: Arc<Pipeline>, locks: Arc<Locks>) -> Self {
        let remover = Arc::new(Remover { pipeline, locks });
        Self {
            remover,
            queue: Mutex::new(None),
            threads: Threads::default(),
        }
    }

    /// Removes an inode without a name, now or soon. Does nothing if it has a name again.
    pub(super) fn remove(&self, ino: Ino) -> Result<(), FsError> {
        if self.remover.step(ino)? {
            return Ok(());
        }
        if self.send(Job::Remove(ino)) {
            return Ok(());
        }
        self.remover.remove(ino)
    }

    /// Hands an inode to the background without beginning with it, if there is a place in the queue.
    pub(super) fn remove_later(&self, ino: Ino) -> Result<(), FsError> {
        if self.send(Job::Remove(ino)) {
            return Ok(());
        }
        self.remover.remove(ino)
    }

    /// Waits until all that was handed to the background so far is done.
    pub(super) fn settle(&self) {
        let sender = self.queue.lock().clone();
        let Some(sender) = sender else { return };
        let (done, wait) = sync_channel(1);
        if sender.send(Job::Answer(done)).is_ok() {
            // An error says that the thread is gone, and with it whatever it had to do.
            let _gone = wait.recv();
        }
    }

    /// Says whether the job found a place in the queue.
    fn send(&self, job: Job) -> bool {
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

    /// Starts the thread; most volumes never need it. Without one, everybody removes his own.
    fn spawn(&self) -> Option<SyncSender<Job>> {
        let (sender, jobs) = sync_channel(QUEUE);
        let remover = Arc::clone(&self.remover);
        let started = self
            .threads
            .start("cauchyfs-remove", move || remover.work(&jobs));
        match started {
            Ok(()) => Some(sender),
            Err(error) => {
                log::warn!("big files are removed in the foreground: {error}");
                None
            }
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // The thread ends when nobody can send any more.
        self.queue.lock().take();
        self.threads.wait();
    }
}

impl Remover {
    fn work(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Remove(ino) => {
                    if let Err(error) = self.remove(ino) {
                        log::warn!("inode {ino} is to be removed at the next mount: {error}");
                    }
                }
                Job::Answer(done) => {
                    // Whoever asked may have stopped waiting.
                    let _nobody = done.send(());
                }
            }
        }
    }

    fn remove(&self, ino: Ino) -> Result<(), FsError> {
        while !self.step(ino)? {}
        Ok(())
    }

    /// Removes a bounded part of an inode; says whether nothing is left of it.
    fn step(&self, ino: Ino) -> Result<bool, FsError> {
        let _lock = self.locks.exclusive(&[ino]);
        let Some(mut inode) = read_inode(&self.pipeline, ino)? else {
            return Ok(true);
        };
        if inode.links > 0 {
            return Ok(true);
        }
        let mut edit = Edit::default();
        let runs = extents::page(&self.pipeline, ino, &(0..SIZE_MAX))?;
        let shrunk = extents::replace(&mut edit, ino, &runs, &[]);
        inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(shrunk);
        let (from, end) = key::xattrs(ino);
        let xattrs = self.pipeline.scan(&from, &end, PAGE)?;
        for (key, _) in &xattrs {
            edit.delete_xattr(ino, key::parse_xattr(key)?.1);
        }
        let finished = runs.len() < PAGE && xattrs.len() < PAGE;
        if finished {
            edit.delete_inode(ino);
            edit.delete_orphan(ino);
        } else {
            edit.put_inode(ino, &inode);
        }
        self.pipeline.apply(edit.into_batch())?;
        Ok(finished)
    }
}

impl Fs {
    /// Goes on with what a crash cut off: files with a mark are cut off where they end, inodes
    /// without a name are removed.
    pub(super) fn take_up_orphans(&self) -> Result<(), FsError> {
        let (mut from, end) = key::orphans();
        loop {
            let found = self.pipeline.scan(&from, &end, PAGE)?;
            let Some((last, _)) = found.last() else {
                return Ok(());
            };
            from = key::orphan(Ino(key::parse_orphan(last)?.0 + 1));
            for (key, _) in &found {
                self.take_up(key::parse_orphan(key)?)?;
            }
        }
    }

    fn take_up(&self, ino: Ino) -> Result<(), FsError> {
        match read_inode(&self.pipeline, ino)? {
            Some(inode) if inode.links == 0 => self.removal.remove_later(ino),
            // Before anybody makes the file longer and sees again what was cut off.
            Some(inode) => {
                let lock = self.locks.exclusive(&[ino]);
                truncate::finish(&self.pipeline, &lock, ino, inode).map(drop)
            }
            None => {
                let mut edit = Edit::default();
                edit.delete_orphan(ino);
                self.apply(edit)
            }
        }
    }
}
