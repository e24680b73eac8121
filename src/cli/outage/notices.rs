//! Notices to the kernel about changes that were lost with a volume.
//!
//! The kernel takes a notice about a page or a name once no request holds it any more. If the volume fails again, requests
//! that wait for it may hold some. So the notices have a thread of their own, and the volume is opened again meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::format::Ino;
use crate::fs::{LostChanges, ServedFs};
use crate::fuse::KernelCache;

/// The things that the kernel is to forget.
pub(super) struct Notice {
    /// The changes that were lost.
    pub(super) lost: LostChanges,
    /// The inodes of which pages could not be written.
    pub(super) failed: BTreeSet<Ino>,
}

/// The queue of notices to the kernel.
pub(super) struct Notices(Sender<Notice>);

impl Notices {
    /// Starts the thread that gives them, and takes the sizes of files from `served`. It ends after the queue, and is not
    /// waited for: it may wait for requests that only the end of the mount ends.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(kernel_cache: KernelCache, served: Arc<ServedFs>) -> io::Result<Self> {
        let (queue, queued) = mpsc::channel();
        let thread = thread::Builder::new().name("notices".to_owned());
        thread.spawn(move || give(&queued, &kernel_cache, &served))?;
        Ok(Self(queue))
    }

    /// Queues a notice.
    pub(super) fn add(&self, notice: Notice) {
        if self.0.send(notice).is_err() {
            tracing::error!("the kernel may show changes that were lost: no thread tells it");
        }
    }
}

fn give(queued: &Receiver<Notice>, kernel_cache: &KernelCache, served: &ServedFs) {
    // The volume may fail again before the kernel knows a size. Its return brings the next notice.
    let mut later = BTreeSet::new();
    for notice in queued {
        later = kernel_cache.restore(&later, served);
        later.extend(kernel_cache.distrust(&notice.lost, served));
        kernel_cache.drop_pages(&notice.failed);
    }
}
