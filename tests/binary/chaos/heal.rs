//! Making a volume whole again, in one of the ways there are, and seeing that it is.

use std::fs;
use std::path::PathBuf;

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;

use super::members::{Condition, Seat, draw};
use super::run::Chaos;
use crate::support::eventually;

/// The number of times that a daemon takes a directory back by itself.
pub(super) const RETURNS: u32 = 3;

impl Chaos {
    /// Brings back, replaces or does without every directory that is not sound, and fails unless the
    /// volume says, and has counted, that nothing is missing.
    pub(super) fn heal(&mut self, rng: &mut StdRng) {
        let mut spoiled = rng.random_bool(0.1);
        let mut lost = Vec::new();
        for index in 0..self.seats.len() {
            let condition = self.seats[index].condition.clone();
            match condition {
                Condition::Sound => {}
                Condition::Spoiled => {
                    spoiled = true;
                    // A direct write that meets the damage in the page cache below fails at the next sync of its file.
                    if self.state_of(&self.seats[index].path) == "faulted" {
                        self.take_back(index);
                    }
                }
                Condition::Full => self.seats[index].empty(),
                Condition::Stale => self.take_back(index),
                Condition::Away(aside) => {
                    self.await_loss(index);
                    self.seats[index].put_back(&aside);
                    self.take_back(index);
                }
                Condition::Cut => {
                    self.await_loss(index);
                    if rng.random_bool(0.7) {
                        self.seats[index].disk.restart();
                        self.take_back(index);
                    } else {
                        self.replace(index);
                    }
                }
                Condition::Deleted => {
                    self.await_loss(index);
                    let left = self.seats.len() - lost.len() - 1;
                    if left >= self.shape.data + self.shape.parity && rng.random_bool(0.4) {
                        lost.push(index);
                    } else {
                        self.replace(index);
                    }
                }
            }
        }
        self.rebuild();
        for index in lost.into_iter().rev() {
            let seat = self.seats.remove(index);
            self.let_go(&seat);
        }
        if spoiled {
            // The first may go on where one was stopped that had passed what was damaged since.
            for _ in 0..2 {
                let (said, code) = self.scrub();
                assert_eq!(code, Some(0), "{said}\n{}", self.volume.log());
            }
        }
        self.assert_whole();
        for seat in &mut self.seats {
            seat.condition = Condition::Sound;
        }
    }

    /// One more directory comes in; it holds its share of old data too, or of new data only.
    pub(super) fn add(&mut self, rng: &mut StdRng) {
        if self.seats.len() >= self.shape.members + 2 {
            return;
        }
        let seat = Seat::new(self.seated);
        self.seated += 1;
        let words: &[&str] = if rng.random() {
            &["member", "add", "--balance"]
        } else {
            &["member", "add"]
        };
        let output = self.order(words, &[&seat.path]);
        // Parts of others that were missing may be missing still.
        let code = output.status.code();
        let expected = if self.is_sound() { &[0][..] } else { &[0, 3] };
        assert!(
            code.is_some_and(|code| expected.contains(&code)),
            "{output:?}\n{}",
            self.volume.log()
        );
        self.seats.push(seat);
    }

    /// A directory is emptied and removed, if the others suffice.
    pub(super) fn remove(&mut self, rng: &mut StdRng) {
        if self.seats.len() <= self.shape.data + self.shape.parity || !self.is_sound() {
            return;
        }
        let index = draw(&self.seats, rng, |_| true).expect("all are sound");
        let seat = self.seats.remove(index);
        eprintln!("  {}", seat.path.display());
        self.let_go(&seat);
        let left = fs::read_dir(&seat.path).expect("it is there").count();
        let superblock = seat.path.join("superblock");
        assert!(!superblock.exists(), "{left} files are left");
    }

    /// Reads and verifies everything; returns what was found.
    pub(super) fn scrub(&self) -> (Value, Option<i32>) {
        let output = self.order(&["scrub", "--json"], &[]);
        let said = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}\n{}", self.volume.log()));
        (said, output.status.code())
    }

    fn is_sound(&self) -> bool {
        self.seats.iter().all(Seat::is_sound)
    }

    /// Waits until the daemon knows that a directory is not there.
    fn await_loss(&self, index: usize) {
        let path = self.seats[index].path.clone();
        eventually("the loss is seen", || !self.is_online(&path));
    }

    /// Has the daemon take a directory back that is there again.
    fn take_back(&mut self, index: usize) {
        let path = self.seats[index].path.clone();
        let state = self.state_of(&path);
        // One that failed is not trusted again without a command.
        if state == "faulted" || (state != "online" && self.seats[index].returns >= RETURNS) {
            let output = self.order(&["member", "replace"], &[&path, &path]);
            let code = output.status.code();
            assert!(
                matches!(code, Some(0 | 3)),
                "{output:?}\n{}",
                self.volume.log()
            );
        }
        self.seats[index].returns += 1;
        eventually("it is back", || self.is_online(&path));
    }

    /// Puts an empty directory on a new disk in the place of one that is lost.
    fn replace(&mut self, index: usize) {
        let new = Seat::new(self.seated);
        self.seated += 1;
        let old: PathBuf = self.seats[index].path.clone();
        let output = self.order(&["member", "replace"], &[&old, &new.path]);
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{output:?}\n{}",
            self.volume.log()
        );
        self.seats[index] = new;
    }

    fn rebuild(&self) {
        // Until then it counts for nothing, and a rebuild says so.
        eventually("what was put back from an old copy is verified", || {
            let (status, _) = self.volume.status();
            !status.to_string().contains("is from an earlier time")
        });
        let output = self.order(&["rebuild"], &[]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{output:?}\n{}",
            self.volume.status().0
        );
    }

    fn let_go(&self, seat: &Seat) {
        let output = self.order(&["member", "remove"], &[&seat.path]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{output:?}\n{}",
            self.volume.status().0
        );
    }

    fn assert_whole(&self) {
        let (status, code) = self.volume.status();
        let rows = status["redundancy"].as_array().expect("rows are listed");
        let is_whole = rows
            .iter()
            .all(|row| row["losses_tolerated"] == self.shape.losses());
        assert!(is_whole && code == 0, "{status}\n{}", self.volume.log());
    }
}
