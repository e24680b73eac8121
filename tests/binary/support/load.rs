//! Programs at work on a mount while something happens to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::{eventually, pattern};

/// Files that one load rewrites again and again.
const FILES: u64 = 50;

/// Writes and reads back small files until it is ended. Any error is a panic.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Starts one in a directory that it makes.
    pub(crate) fn start(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("the mount is writable");
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = std::thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    write_and_read(&directory, rounds.load(Ordering::Relaxed));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self {
            stop,
            rounds,
            thread,
        }
    }

    /// Waits until as many rounds as there are files went well from now on.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        let wanted = self.rounds.load(Ordering::Relaxed) + FILES;
        eventually("the load goes on", || {
            self.rounds.load(Ordering::Relaxed) >= wanted || self.thread.is_finished()
        });
        assert!(!self.thread.is_finished(), "an operation failed");
    }

    /// Ends it, and fails if any operation did.
    #[track_caller]
    pub(crate) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no operation failed");
    }
}

fn write_and_read(directory: &Path, round: u64) {
    let path = directory.join(format!("f{}", round % FILES));
    let len = 1000 + 37 * usize::try_from(round % 900).expect("it is small");
    let bytes = pattern(round, len);
    fs::write(&path, &bytes).expect("writing goes on");
    let found = fs::read(&path).expect("reading goes on");
    assert!(found == bytes, "round {round}");
}
