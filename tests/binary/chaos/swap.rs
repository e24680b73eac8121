//! Old copies that take the places of directories while the volume is mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rand::RngExt;
use rand::rngs::StdRng;

use super::members::{Condition, draw};
use super::run::{Chaos, wait_until};
use super::writer::Shared;
use crate::support::{must, run, text};

/// Room that stays on a disk beside a copy, in bytes.
const RESERVE: u64 = 64 << 20;

/// The sentence of a daemon that takes an old copy for what it is.
const DOUBT: &str = "is from an earlier time";

impl Chaos {
    /// Copies a directory while writers are at work, and puts the copy in its place a while later.
    pub(super) fn swap(&mut self, rng: &mut StdRng, idle: &dyn Fn() -> bool, shared: &Shared) {
        let Some(index) = draw(&self.seats, rng, |seat| has_room(&seat.path)) else {
            return;
        };
        let member = self.seats[index].path.clone();
        eprintln!("  {}", member.display());
        let (copy, gone) = (beside(&member, "copy"), beside(&member, "gone"));
        // Files may go while they are copied.
        run("cp", &["-a", text(&member), text(&copy)]);
        let more = shared.done.load(Ordering::Relaxed) + rng.random_range(0..200);
        wait_until("more operations are done", shared, || {
            idle() || shared.done.load(Ordering::Relaxed) >= more
        });
        let doubts = || self.volume.log().matches(DOUBT).count();
        let before = doubts();
        fs::rename(&member, &gone).expect("it is there");
        fs::rename(&copy, &member).expect("the name is free");
        wait_until("the daemon sees another directory", shared, || {
            doubts() > before || !self.is_online(&member)
        });
        must("rm", &["-rf", text(&gone)]);
        self.seats[index].condition = Condition::Stale;
    }
}

fn beside(member: &Path, name: &str) -> PathBuf {
    member.with_file_name(name)
}

/// Returns whether a copy of a directory fits beside it, and leaves enough.
fn has_room(member: &Path) -> bool {
    let space = rustix::fs::statvfs(member).expect("the disk is mounted");
    let used = must("du", &["-s", "--block-size=1", text(member)]);
    let used = used.split_whitespace().next().map(str::parse::<u64>);
    let used = used.expect("a number comes first").expect("it is a number");
    space.f_bavail * space.f_frsize >= used + RESERVE
}
