//! Programs at work on a mount while something happens to it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::rounds::Rounds;
use super::{drop_caches, pattern};

/// Files that one load rewrites again and again.
const FILES: u64 = 50;

/// Writes small files, and has the daemon say what is in them at once and before they are written
/// again, until it is ended. Any error is a panic.
pub(crate) struct Load {
    rounds: Rounds,
    directory: PathBuf,
}

/// The files that a load left.
#[derive(Debug)]
pub(crate) struct Loaded {
    directory: PathBuf,
    rounds: u64,
}

impl Load {
    /// Starts one in a directory that it makes.
    pub(crate) fn start(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("the mount is writable");
        let rounds = Rounds::start({
            let directory = directory.clone();
            move |round| write_and_read(&directory, round)
        });
        Self { rounds, directory }
    }

    /// Waits until as many rounds as there are files went well from now on.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        self.rounds.go_on(FILES);
    }

    /// Ends it, and fails if any operation did or any file is not what was written last.
    #[track_caller]
    pub(crate) fn end(self) -> Loaded {
        let loaded = Loaded {
            directory: self.directory,
            rounds: self.rounds.end(),
        };
        loaded.check();
        loaded
    }
}

impl Loaded {
    /// Fails if any file is not what was written last; the kernel's caches are not asked.
    #[track_caller]
    pub(crate) fn check(&self) {
        drop_caches();
        for round in self.rounds.saturating_sub(FILES)..self.rounds {
            check(&self.directory, round);
        }
    }
}

fn write_and_read(directory: &Path, round: u64) {
    if let Some(before) = round.checked_sub(FILES) {
        check(directory, before);
    }
    fs::write(path(directory, round), content(round)).expect("writing goes on");
    check(directory, round);
}

fn path(directory: &Path, round: u64) -> PathBuf {
    directory.join(format!("f{}", round % FILES))
}

fn content(round: u64) -> Vec<u8> {
    let len = 1000 + 37 * usize::try_from(round % 900).expect("it is small");
    pattern(round, len)
}

/// Fails unless a round's file is as it was written then.
#[track_caller]
fn check(directory: &Path, round: u64) {
    let found = read_past_caches(&path(directory, round)).expect("reading goes on");
    assert!(found == content(round), "round {round}");
}

/// Reads a file from the daemon, as far as that has it.
pub(crate) fn read_past_caches(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
