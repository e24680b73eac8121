//! The thread that commits for callers who do not wait on threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::CommitError;
use super::commits::Commits;
use crate::workers::Threads;

/// Commits for callers that leave an answer; dropping it waits until all have theirs.
pub(crate) struct Committer {
    commits: Arc<Commits>,
    /// Whether the thread runs; most volumes that are opened for a while need none.
    is_started: AtomicBool,
    /// Held while the thread is started.
    starting: Mutex<()>,
    threads: Threads,
}

impl Committer {
    /// Returns a part without a thread, which starts when it is first needed.
    pub(crate) fn new(commits: Arc<Commits>) -> Self {
        Self {
            commits,
            is_started: AtomicBool::new(false),
            starting: Mutex::default(),
            threads: Threads::default(),
        }
    }

    /// Makes everything that was done before this call durable, like [`Commits::sync`], and then calls `answer`, on this
    /// thread or another. It is not to wait. A caller that is alone commits by itself if it `may_commit`.
    pub(crate) fn sync_for(
        &self,
        may_commit: bool,
        answer: impl FnOnce(Result<(), CommitError>) + Send + 'static,
    ) {
        if !self.commits.is_read_only() && self.is_started() {
            self.commits.commit_for(may_commit, Box::new(answer));
        } else {
            answer(self.commits.sync());
        }
    }

    /// Returns whether the thread runs. Starts it if it does not, and tries again at the next call if that fails.
    fn is_started(&self) -> bool {
        if self.is_started.load(Ordering::Acquire) {
            return true;
        }
        let _starting = self.starting.lock();
        if self.is_started.load(Ordering::Acquire) {
            return true;
        }
        let commits = Arc::clone(&self.commits);
        let started = self
            .threads
            .start("commit", move || commits.commit_for_callers());
        if let Err(error) = &started {
            tracing::warn!("this caller commits by itself: {error}");
        }
        self.is_started.store(started.is_ok(), Ordering::Release);
        started.is_ok()
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.commits.group.close();
        self.threads.wait();
    }
}
