//! Outages: more directories go away than the volume can lose, and come back.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use super::members::{Condition, Seat};
use super::run::{Chaos, wait_until};
use super::writer::Shared;
use crate::support::eventually;

impl Chaos {
    /// Moves so many directories away that the volume fails, and brings them back. The daemon goes on with them by
    /// itself, and everything is whole then. All are sound before.
    pub(super) fn outage(&mut self, rng: &mut StdRng, idle: &dyn Fn() -> bool, shared: &Shared) {
        let daemon = self.volume.daemon();
        let count = self.seats.len();
        let most_left = self.shape.data - 1;
        let left = rng.random_range(0..=most_left);
        let away: Vec<usize> = (0..count).sample(rng, count - left);
        let is_long = rng.random_bool(0.7);
        eprintln!(
            "  {} of {count}, {}",
            away.len(),
            if is_long { "noticed" } else { "for a moment" }
        );
        let failures = || self.volume.log().matches("the volume has failed").count();
        let before = failures();
        shared.dying.store(true, Ordering::SeqCst);
        let moved: Vec<(&Seat, PathBuf)> = away
            .iter()
            .map(|index| &self.seats[*index])
            .map(|seat| (seat, seat.path.with_extension("aside")))
            .collect();
        for (seat, aside) in &moved {
            fs::rename(&seat.path, aside).expect("it is there");
        }
        if is_long {
            // No command is started: it would close its copies of the writers' files, and wait for their pages.
            eventually("the volume has failed", || failures() > before);
        }
        for (seat, aside) in &moved {
            seat.put_back(aside);
        }
        wait_until("all writers end", shared, idle);
        let probe = self.volume.path("probe");
        eventually("the volume goes on", || {
            File::create(&probe).is_ok_and(|file| file.sync_all().is_ok())
        });
        assert_eq!(
            self.volume.daemon(),
            daemon,
            "the same daemon serves the mount"
        );
        for index in away {
            self.seats[index].condition = Condition::Stale;
        }
        self.heal(rng);
    }
}
