//! Counting the files of a volume for the interlock, in the background: at the mount, and every hour unless background
//! work is paused.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::error::FsError;
use super::interlock::Interlock;
use crate::format::record::{FileKind, Inode};
use crate::format::{Record, key};
use crate::transaction::Transactions;
use crate::workers::Threads;

/// Records that are read at once.
const PAGE: usize = 512;

/// The time from one count to the next.
const INTERVAL: Duration = Duration::from_secs(3600);

/// The pause between two looks whether a count may go on that pauses.
const PAUSE_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which an end waits for the records that are being read. A member that hangs may hold them up for longer. A
/// thread that ends later leaves the number of files as it is. Other readers repair damaged
/// pages; after the index is closed, this thread does not.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread that counts the files of a volume, until it is stopped or dropped.
#[derive(Default)]
pub(super) struct FileCount {
    stop: Arc<Stop>,
    threads: Threads,
}

#[derive(Default)]
struct Stop {
    is_wanted: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn is_wanted(&self) -> bool {
        *self.is_wanted.lock()
    }

    /// Waits, and returns whether the thread is to stop.
    fn wait(&self, pause: Duration) -> bool {
        let mut is_wanted = self.is_wanted.lock();
        let goes_on = |is_wanted: &mut bool| !*is_wanted;
        self.changed.wait_while_for(&mut is_wanted, goes_on, pause);
        *is_wanted
    }
}

impl FileCount {
    /// Starts to count for an interlock.
    pub(super) fn start(&self, interlock: &Arc<Interlock>, transactions: &Arc<Transactions>) {
        let (interlock, transactions) = (Arc::clone(interlock), Arc::clone(transactions));
        let stop = Arc::clone(&self.stop);
        let started = self.threads.start("file-count", move || {
            loop {
                let counted = count(&transactions, &interlock, &stop);
                // It may have read on after the end of the volume, and a count that began later may have its number already.
                if stop.is_wanted() {
                    return;
                }
                match counted {
                    Ok(Some(files)) => {
                        interlock.set_files(files);
                        tracing::info!("the interlock counted {files} files");
                    }
                    Ok(None) => return,
                    // The number before serves on.
                    Err(error) => tracing::warn!("the files cannot be counted: {error}"),
                }
                if stop.wait(INTERVAL) {
                    return;
                }
            }
        });
        if let Err(error) = started {
            tracing::warn!("the files are not counted, so the interlock refuses nothing: {error}");
        }
    }

    /// Stops counting. Waits for the end of that, but not for a member that hangs.
    pub(super) fn stop(&self) {
        let was_wanted = std::mem::replace(&mut *self.stop.is_wanted.lock(), true);
        self.stop.changed.notify_all();
        if !was_wanted && !self.threads.wait_for(STOP_TIMEOUT) {
            tracing::info!("the count of files ends when a member answers");
        }
    }
}

impl Drop for FileCount {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Counts all inodes but directories. Returns none once it is to stop.
fn count(
    transactions: &Transactions,
    interlock: &Interlock,
    stop: &Stop,
) -> Result<Option<u64>, FsError> {
    let (mut from, end) = key::inodes();
    let mut files = 0;
    let mut pause = Duration::ZERO;
    loop {
        if stop.wait(pause) {
            return Ok(None);
        }
        if interlock.is_count_paused() {
            pause = PAUSE_INTERVAL;
            continue;
        }
        pause = Duration::ZERO;
        let page = transactions.scan(&from, &end, PAGE)?;
        let Some((last, _)) = page.last() else {
            return Ok(Some(files));
        };
        from = [&last[..], &[0]].concat().into();
        for (_, value) in &page {
            // A damaged record belongs to something that is there.
            let is_directory =
                Inode::decode(value).is_ok_and(|inode| inode.kind == FileKind::Directory);
            files += u64::from(!is_directory);
        }
    }
}
