//! The directories of a volume, on a disk of its own each, and an account of which of them are sound.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use super::plan;
use crate::support::Disk;

/// Room on each disk: the least that all kinds of filesystems can do with.
const MEBIBYTES: u64 = 320;

/// The state of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It has all that it should have.
    Sound,
    /// It is deleted.
    Deleted,
    /// It lies in another place.
    Away(PathBuf),
    /// Its disk has no power.
    Cut,
    /// Its disk has no room, but for what was reserved.
    Full,
    /// Some of its files are damaged.
    Spoiled,
    /// It is there, but missed something.
    Stale,
}

/// One directory.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) path: PathBuf,
    pub(super) disk: Disk,
    pub(super) condition: Condition,
    /// The number of times that the daemon took it back by itself since the volume was mounted.
    pub(super) returns: u32,
}

impl Seat {
    /// Returns an empty place on a new disk.
    pub(super) fn new(number: usize) -> Self {
        let disk = Disk::new(plan::kind(number), MEBIBYTES);
        Self {
            path: disk.path().join(format!("d{number}")),
            disk,
            condition: Condition::Sound,
            returns: 0,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.condition == Condition::Sound
    }

    /// Says whether a mount finds anything there.
    pub(super) fn is_there(&self) -> bool {
        !matches!(
            self.condition,
            Condition::Deleted | Condition::Away(_) | Condition::Cut
        )
    }

    pub(super) fn is_full(&self) -> bool {
        self.condition == Condition::Full
    }

    /// Moves the directory back from `aside`. A cut of its power does not undo that.
    pub(super) fn put_back(&self, aside: &Path) {
        fs::rename(aside, &self.path).expect("it lies there");
        let parent = self.path.parent().expect("it lies on its disk");
        let synced = File::open(parent).and_then(|opened| opened.sync_all());
        synced.expect("its disk has power");
    }

    /// Leaves no room on the disk.
    pub(super) fn fill(&mut self) {
        self.disk.fill();
        self.condition = Condition::Full;
    }

    /// Gives back what [`Seat::fill`] took.
    pub(super) fn empty(&mut self) {
        self.disk.empty();
    }
}

/// Draws one of the sound directories that `fits`.
pub(super) fn draw(
    seats: &[Seat],
    rng: &mut StdRng,
    fits: impl Fn(&Seat) -> bool,
) -> Option<usize> {
    let sound = seats.iter().enumerate().filter(|(_, seat)| seat.is_sound());
    sound
        .filter(|(_, seat)| fits(seat))
        .map(|(index, _)| index)
        .choose(rng)
}
