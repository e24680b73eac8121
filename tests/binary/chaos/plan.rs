//! The events, as a function of a seed.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::support::{DiskKind, Shape};

/// One thing that happens while writers are at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A directory is deleted.
    Delete,
    /// A directory is moved away.
    MoveAway,
    /// A disk has no power any more.
    Cut,
    /// A disk answers nothing for a while.
    Hang,
    /// A disk has no room any more.
    Fill,
    /// Files of a directory are damaged.
    Spoil,
    /// The daemon is killed, and the volume is mounted again.
    Kill,
    /// The volume is unmounted and mounted again.
    Remount,
    /// While the volume is not mounted, an old copy of a directory takes its place.
    OldCopy,
    /// While the volume is mounted, an old copy of a directory takes its place.
    Swap,
    /// Segment files of two directories take each other's places.
    Exchange,
    /// More directories than the volume can lose go away, and come back.
    Outage,
    /// The volume is unmounted while another mount namespace holds the mount, and mounted again.
    Hold,
    /// One more directory comes in.
    Add,
    /// A directory that is sound is removed.
    Remove,
    /// Everything is verified.
    Scrub,
    /// Everything is repaired, and verified.
    Heal,
}

/// The frequency of each event, in parts of the whole.
const WEIGHTS: [(Event, u32); 17] = [
    (Event::Delete, 10),
    (Event::MoveAway, 10),
    (Event::Cut, 10),
    (Event::Hang, 3),
    (Event::Fill, 6),
    (Event::Spoil, 14),
    (Event::Kill, 18),
    (Event::Remount, 8),
    (Event::OldCopy, 5),
    (Event::Swap, 10),
    (Event::Exchange, 8),
    (Event::Outage, 14),
    (Event::Hold, 6),
    (Event::Add, 4),
    (Event::Remove, 4),
    (Event::Scrub, 4),
    (Event::Heal, 12),
];

/// Streams of random numbers that know nothing of each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(pub(super) u64);

impl Seed {
    /// Returns the stream of one writer, or of the threads that disturb it, in one step.
    pub(super) fn stream(self, step: u64, actor: u64) -> StdRng {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step << 8 | actor);
        StdRng::seed_from_u64(mixed)
    }

    /// Returns whether programs wait for directories that are away, rather than fail.
    pub(super) fn waits(self) -> bool {
        self.stream(0, 1).random()
    }

    /// Returns the volume to try it with.
    pub(super) fn shape(self) -> Shape {
        let geometries = [
            (4, 2, 8, "rs-cauchy"),
            (3, 2, 8, "rs-cauchy"),
            (4, 2, 6, "rs-cauchy"),
            (2, 1, 5, "rs-cauchy"),
            (3, 3, 8, "rs-cauchy"),
            (1, 1, 3, "rs-cauchy"),
            (4, 4, 9, "random-gf2"),
        ];
        let (data, parity, members, code) = *geometries
            .choose(&mut self.stream(0, 0))
            .expect("there are some");
        Shape {
            data,
            parity,
            members,
            segment: "4MiB",
            unit: "128KiB",
            code,
        }
    }
}

/// Draws what happens next, unless only one event is to happen.
pub(super) fn draw(rng: &mut StdRng, only: Option<Event>) -> Event {
    if let Some(event) = only {
        return event;
    }
    WEIGHTS
        .choose_weighted(rng, |(_, weight)| *weight)
        .expect("there are some")
        .0
}

/// Returns the event with a name.
pub(super) fn named(name: &str) -> Option<Event> {
    let mut events = WEIGHTS.iter().map(|(event, _)| *event);
    events.find(|event| format!("{event:?}") == name)
}

/// Returns the filesystem that a disk gets.
pub(super) fn kind(number: usize) -> DiskKind {
    [DiskKind::Tmpfs, DiskKind::Ext4, DiskKind::Xfs][number % 3]
}
