//! Files in the kernel's page cache, and the notices that the kernel needs about them.
//!
//! A write(2) into the page cache succeeds before its bytes are here. A lack of room for them shows only when they are
//! written back, and only fsync and close report it. A program that does neither would fill a full volume for ever. But
//! before it takes a write, the kernel asks for the attributes of the file, unless it holds some to trust. So they are
//! taken away from it when pages find no room. When it then asks on behalf of a handle that is there for writing only,
//! the answer is `ENOSPC`.

use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

/// The time for which writers are refused after pages found no room. A writer that goes on meets it, and room that was
/// made since does not stay unused for long.
const REFUSAL: Duration = Duration::from_secs(5);

/// Most files that are remembered for it. Writers of others learn of it from fsync and close.
const MOST_STARVED: usize = 1024;

/// The kernel's page cache of one mount.
#[derive(Default)]
pub(super) struct PageCache {
    /// There once the session is.
    notifier: OnceLock<Notifier>,
    /// The time when pages of an inode last found no room.
    starved: Mutex<HashMap<u64, Instant>>,
}

impl PageCache {
    /// Sets the connection over which the kernel is notified.
    ///
    /// # Panics
    ///
    /// If it is set already.
    pub(super) fn connect(&self, notifier: Notifier) {
        assert!(self.notifier.set(notifier).is_ok(), "a session starts once");
    }

    fn notifier(&self) -> &Notifier {
        self.notifier
            .get()
            .expect("a request comes after the start")
    }

    /// Makes the kernel write back and drop what it caches of an inode. Waits for the writes, so it must
    /// not be called on a thread that serves them.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told.
    pub(super) fn write_back(&self, number: INodeNo) -> io::Result<()> {
        known(self.notifier().inval_inode(number, 0, 0))
    }

    /// Makes the kernel ask for an inode's attributes before it uses them again. It may wait for the
    /// inode's pages to be written, so it must not be called on a thread that serves them.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told.
    pub(super) fn distrust_attributes(&self, number: INodeNo) -> io::Result<()> {
        known(self.notifier().inval_inode(number, -1, 0))
    }

    /// Notes that pages of an inode found no room just now.
    pub(super) fn note_starved(&self, number: INodeNo) {
        let mut starved = self.starved.lock();
        if starved.len() >= MOST_STARVED {
            starved.retain(|_, since| since.elapsed() < REFUSAL);
        }
        if starved.len() < MOST_STARVED {
            starved.insert(number.0, Instant::now());
        }
    }

    /// Returns whether pages of an inode found no room lately.
    pub(super) fn is_starved(&self, number: INodeNo) -> bool {
        let starved = self.starved.lock();
        let since = starved.get(&number.0);
        since.is_some_and(|since| since.elapsed() < REFUSAL)
    }
}

/// Returns the outcome of a notice. An inode that the kernel has forgotten needs none.
fn known(told: io::Result<()>) -> io::Result<()> {
    match told {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        told => told,
    }
}
