//! fio at work on a mount while something happens to it: it writes, reads back, and compares.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::rounds::Rounds;
use super::{drop_caches, text};

/// Directories that are written to in turn.
const DIRECTORIES: u64 = 3;

/// The options of every run: it verifies all that it wrote, past the caches, before it ends.
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

/// Runs fio again and again until it is ended. Bytes that are not as they were written are a panic.
pub(crate) struct Fio {
    rounds: Rounds,
    directory: PathBuf,
}

/// The files that fio left.
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
        for round in 0..DIRECTORIES {
            let place = place(&directory, round);
            std::fs::create_dir_all(place).expect("the mount is writable");
        }
        let rounds = Rounds::start({
            let directory = directory.clone();
            // Some is read back while the rest is still being written.
            let options = ["--do_verify=1", "--verify_backlog=16"];
            move |round| run_fio(&directory, round, &options)
        });
        Self { rounds, directory }
    }

    /// Waits until a run that begins from now on has ended well.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        self.rounds.go_on(2);
    }

    /// Ends it, and fails if anything is not what it wrote last.
    #[track_caller]
    pub(crate) fn end(self) -> FioFiles {
        let files = FioFiles {
            directory: self.directory,
            rounds: self.rounds.end(),
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
