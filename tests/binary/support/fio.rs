//! fio at work on a mount while something happens to it: it writes, reads back, and compares.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::{drop_caches, eventually, text};

/// Directories that are written to in turn.
const DIRECTORIES: u64 = 3;

/// What every run does: it verifies all that it wrote, past the caches, before it ends.
const ALL: &[&str] = &[
    "--verify=crc32c",
    "--verify_fatal=1",
    "--verify_state_save=0",
    "--ioengine=psync",
    "--fallocate=none",
    "--minimal",
];

/// Small and large pieces in any order, and one after the other.
const JOBS: &[&str] = &[
    "--name=random",
    "--rw=randwrite",
    "--bsrange=4k-256k",
    "--size=8M",
    "--direct=1",
    "--name=stream",
    "--rw=write",
    "--bs=512k",
    "--size=16M",
    "--fsync=8",
];

/// Runs fio again and again until it is ended. What is not as it was written is a panic.
pub(crate) struct Fio {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
    directory: PathBuf,
}

/// What fio left.
#[derive(Debug)]
pub(crate) struct FioFiles {
    directory: PathBuf,
    rounds: u64,
}

impl Fio {
    /// Says whether there is one; `scripts/test.sh` installs it.
    pub(crate) fn is_installed() -> bool {
        let is_here = Command::new("fio").arg("--version").output().is_ok();
        if !is_here {
            eprintln!("skipped: no fio");
        }
        is_here
    }

    /// Starts it in a directory that it makes.
    pub(crate) fn start(directory: PathBuf) -> Self {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        for round in 0..DIRECTORIES {
            let place = place(&directory, round);
            std::fs::create_dir_all(place).expect("the mount is writable");
        }
        let thread = std::thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            let directory = directory.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Some is read back while the rest is still being written.
                    let options = ["--do_verify=1", "--verify_backlog=16"];
                    run_fio(&directory, rounds.load(Ordering::Relaxed), &options);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self {
            stop,
            rounds,
            thread,
            directory,
        }
    }

    /// Waits until a run that begins from now on has ended well.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        let wanted = self.rounds.load(Ordering::Relaxed) + 2;
        eventually("fio goes on", || {
            self.rounds.load(Ordering::Relaxed) >= wanted || self.thread.is_finished()
        });
        assert!(!self.thread.is_finished(), "fio failed");
    }

    /// Ends it, and fails if anything is not what it wrote last.
    #[track_caller]
    pub(crate) fn end(self) -> FioFiles {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("fio did not fail");
        let files = FioFiles {
            directory: self.directory,
            rounds: self.rounds.load(Ordering::Relaxed),
        };
        files.check();
        files
    }
}

impl FioFiles {
    /// Fails if anything is not what fio wrote last; the kernel's caches are not asked.
    #[track_caller]
    pub(crate) fn check(&self) {
        drop_caches();
        for round in self.rounds.saturating_sub(DIRECTORIES)..self.rounds {
            run_fio(&self.directory, round, &["--verify_only=1"]);
        }
    }
}

fn place(directory: &Path, round: u64) -> PathBuf {
    directory.join(format!("r{}", round % DIRECTORIES))
}

/// Runs it once; the number of the round is the seed of what is written.
#[track_caller]
fn run_fio(directory: &Path, round: u64, options: &[&str]) {
    let output = Command::new("fio")
        .arg(format!("--directory={}", text(&place(directory, round))))
        .arg(format!("--randseed={}", round + 1))
        .args(ALL)
        .args(options)
        .args(JOBS)
        .output()
        .expect("fio is installed");
    assert!(
        output.status.success(),
        "round {round}, {options:?}: {output:?}"
    );
}
