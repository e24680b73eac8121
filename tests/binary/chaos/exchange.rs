//! Segment files that take each other's places while the daemon has them open.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use super::members::{Condition, draw};
use super::run::Chaos;
use crate::support::must;
use crate::support::text;

/// Most files that are exchanged at a time.
const MOST: usize = 3;

impl Chaos {
    /// Exchanges segment files of two sound directories, as `mv` would. The names stay, and what they name is other files.
    pub(super) fn exchange(&mut self, rng: &mut StdRng) {
        let one = draw(&self.seats, rng, |_| true).expect("there is a budget for two");
        self.seats[one].condition = Condition::Spoiled;
        let other = draw(&self.seats, rng, |_| true).expect("there is a budget for two");
        self.seats[other].condition = Condition::Spoiled;
        let (one, other) = (&self.seats[one].path, &self.seats[other].path);
        let in_both: BTreeSet<OsString> = &names(one) & &names(other);
        for name in in_both.iter().sample(rng, MOST) {
            eprintln!("  {}: {} and {}", name.display(), text(one), text(other));
            swap(
                &one.join("segments").join(name),
                &other.join("segments").join(name),
            );
        }
    }
}

fn names(member: &Path) -> BTreeSet<OsString> {
    let Ok(entries) = fs::read_dir(member.join("segments")) else {
        return BTreeSet::new();
    };
    entries
        .map(|entry| entry.expect("the member is there").file_name())
        .collect()
}

/// Exchanges two files that may lie on different disks. Its owner may remove one meanwhile.
fn swap(one: &Path, other: &Path) {
    let draft = |path: &Path| {
        let disk = path.ancestors().nth(3).expect("a member lies on a disk");
        disk.join("draft")
    };
    let (first, second) = (draft(one), draft(other));
    if fs::copy(other, &first).is_ok() && fs::copy(one, &second).is_ok() {
        for (draft, path) in [(&first, one), (&second, other)] {
            fs::rename(draft, path).expect("both are there");
        }
    }
    must("rm", &["-f", text(&first), text(&second)]);
}
