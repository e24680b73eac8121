//! The report of a thread that serves requests: how it ended.

use std::io;
use std::sync::mpsc::Sender;

/// The report of a thread that serves. A thread that panics reports that.
pub(super) struct Report(Sender<io::Result<()>>);

impl Report {
    /// Prepares the report of one thread.
    pub(super) fn new(to: &Sender<io::Result<()>>) -> Self {
        Self(to.clone())
    }

    /// Reports how serving ended.
    pub(super) fn send(self, outcome: io::Result<()>) {
        // The thread `session` receives until all others are done, unless the mount failed to start.
        let _ = self.0.send(outcome);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let panicked = io::Error::other("a thread that serves requests panicked");
            let _ = self.0.send(Err(panicked));
        }
    }
}
