//! Hostile volumes against the real binary: no crash, no hang, no memory without bound, and no write beside what it was
//! told to write. The bytes are right as long as the volume can bear the damage.
//!
//! `CAUCHYFS_SEED` sets the seed, which a run prints; `CAUCHYFS_FUZZ_CASE` runs one case of it alone, and
//! `CAUCHYFS_FUZZ_CASES` that many. This program needs nothing of the source tree: `scripts/fuzz.sh` shows how
//! it runs for longer, against the binary that `CAUCHYFS_FUZZ_BINARY` names.

#![expect(clippy::unwrap_used, reason = "a test")]

mod cage;
mod control;
mod entries;
mod image;
mod mutate;
mod raw;
mod run;
mod tree;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mutate::{Case, victims_in};
use run::Arena;
use volumes::{Base, KINDS};

use cauchyfs_testkit::number;

/// Cases of the short run, beside those of [`FOUND`].
const FEW_CASES: u64 = 20;

/// Seed of the short run, the same each time: it is for regressions, and finds nothing new. Long runs draw theirs.
const SEED_OF_THE_TESTS: u64 = 1;

/// A case: the seed of its run, and its number there.
type Number = (u64, u64);

/// Cases that each showed a defect once.
const FOUND: [Number; 16] = [
    (7, 7),                             // one name twice, a symlink first: files outside OUT
    (7, 31),                            // control characters in a member's path
    (7, 44),   // `index` is a hard link: a repair overwrites the other file
    (7, 63),   // the same, truncated
    (7, 75),   // extents overlap: a panic of the reader
    (7, 107),  // `..` with a setuid file
    (11, 40),  // the root's mode is given to an OUT that was there
    (11, 64),  // the database panics while it unwinds
    (11, 65),  // a journal is a hard link: a mount overwrites the other file
    (11, 89),  // stripe data at an offset of 4 GiB
    (11, 113), // an extent that begins before the last one
    (11, 232), // directories within themselves: endless extraction
    (11, 267), // `..` that is a directory of the volume
    (21, 181), // the database panics while it unwinds, at a page with a forged count
    (17_383_970_860_801_437_325, 829), // stripe data without bytes: a panic of the thread that flushes
    (16_082_961_911_406_025_964, 1801), // the database panics while a table is open (release builds)
];

/// Rounds of lies that one daemon is there for.
const ROUNDS_OF_A_DAEMON: u64 = 2;

/// Findings of a run so far: each failure once, with the first case that shows it.
#[derive(Default)]
struct Findings(Mutex<BTreeMap<String, (Number, u64)>>);

impl Findings {
    fn add(&self, base: &Base, case: &Case, number: Number, offences: &[String]) {
        for offence in offences {
            let alike: String = offence
                .chars()
                .filter(|c| !c.is_ascii_digit())
                .take(160)
                .collect();
            let mut found = self.0.lock().unwrap();
            let (_, count) = found.entry(alike).or_insert((number, 0));
            *count += 1;
            if *count == 1 {
                println!(
                    "seed {} case {} ({}): {offence}\n    {}",
                    number.0,
                    number.1,
                    base.name,
                    case.notes.join("\n    ")
                );
            }
        }
    }
}

/// Returns the seed of a run: the one that is given, or else one that the caller has.
fn seed(otherwise: impl FnOnce() -> u64) -> u64 {
    let seed = number("CAUCHYFS_SEED").unwrap_or_else(otherwise);
    println!("CAUCHYFS_SEED={seed}");
    seed
}

/// Runs cases, each a seed and a number, until there are no more or the time is up.
fn fuzz(home: &Path, cases: impl Iterator<Item = Number> + Send, time: Option<Duration>) {
    let bases: Vec<Base> = KINDS.iter().map(|kind| Base::load(kind, home)).collect();
    let (cases, done) = (Mutex::new(cases), AtomicU64::new(0));
    let findings = Findings::default();
    let start = Instant::now();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (bases, cases, done, findings) = (&bases, &cases, &done, &findings);
            scope.spawn(move || {
                let home = home.join(format!("worker-{worker}"));
                let home_of = |base: &Base| home.join(base.name);
                let arenas: Vec<Arena> = bases
                    .iter()
                    .map(|base| Arena::new(&home_of(base), base))
                    .collect();
                while time.is_none_or(|time| start.elapsed() < time) {
                    let Some((seed, number)) = cases.lock().unwrap().next() else {
                        break;
                    };
                    let which = usize::try_from(number % 3).unwrap();
                    let (base, arena) = (&bases[which], &arenas[which]);
                    let victims = victims_in(&home_of(base).join("outer"));
                    let case = Case::new(base, seed, number, &victims);
                    let offences = arena.judge(base, &case);
                    findings.add(base, &case, (seed, number), &offences);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let found = findings.0.into_inner().unwrap();
    println!(
        "{} hostile volumes in {} s: {} kinds of failure; no process used more than {} MiB",
        done.into_inner(),
        start.elapsed().as_secs(),
        found.len(),
        cage::peak_mib()
    );
    for (alike, ((seed, number), count)) in &found {
        println!("{count} times, first in seed {seed} case {number}: {alike}");
    }
    assert!(found.is_empty(), "{} kinds of failure", found.len());
}

#[test]
fn no_hostile_volume_makes_a_command_crash_hang_or_write_elsewhere() {
    if let Some(home) =
        cage::enter("no_hostile_volume_makes_a_command_crash_hang_or_write_elsewhere")
    {
        let seed = seed(|| SEED_OF_THE_TESTS);
        if let Some(number) = number("CAUCHYFS_FUZZ_CASE") {
            fuzz(&home, std::iter::once((seed, number)), None);
            return;
        }
        let count = number("CAUCHYFS_FUZZ_CASES").unwrap_or(FEW_CASES);
        let cases = (0..count).map(|number| (seed, number));
        fuzz(&home, FOUND.into_iter().chain(cases), None);
    }
}

/// Has commands and daemons meet liars, for some rounds or until the time is up; each daemon lives for two rounds.
fn fuzz_control(home: &Path, rounds: u64, time: Option<Duration>) {
    let seed = seed(|| {
        if time.is_some() {
            rand::random()
        } else {
            SEED_OF_THE_TESTS
        }
    });
    let base = Base::load(&KINDS[1], home);
    let arena = Arena::new(&home.join("control"), &base);
    let (start, mut done, mut offences) = (Instant::now(), 0, BTreeSet::new());
    while done < rounds && time.is_none_or(|time| start.elapsed() < time) {
        let found = control::judge(&arena, &base, seed ^ done, ROUNDS_OF_A_DAEMON);
        offences.extend(found);
        done += ROUNDS_OF_A_DAEMON;
    }
    println!(
        "{done} rounds of lies in {} s, seed {seed}: {} failures; no process used more than {} MiB",
        start.elapsed().as_secs(),
        offences.len(),
        cage::peak_mib()
    );
    let lines: Vec<String> = offences.into_iter().collect();
    assert!(lines.is_empty(), "seed {seed}:\n{}", lines.join("\n"));
}

#[test]
fn no_lie_over_the_control_socket_harms_a_command_or_a_daemon() {
    if let Some(home) = cage::enter("no_lie_over_the_control_socket_harms_a_command_or_a_daemon") {
        let rounds = number("CAUCHYFS_FUZZ_ROUNDS").unwrap_or(ROUNDS_OF_A_DAEMON);
        fuzz_control(&home, rounds, None);
    }
}

/// Returns for how long those tests run that do so for long.
fn long() -> Duration {
    Duration::from_secs(number("CAUCHYFS_FUZZ_SECONDS").unwrap_or(3600))
}

#[test]
#[ignore = "runs for CAUCHYFS_FUZZ_SECONDS, an hour unless given"]
fn lies_for_long() {
    if let Some(home) = cage::enter("lies_for_long") {
        fuzz_control(&home, u64::MAX, Some(long()));
    }
}

#[test]
#[ignore = "runs for CAUCHYFS_FUZZ_SECONDS, an hour unless given"]
fn hostile_volumes_for_long() {
    if let Some(home) = cage::enter("hostile_volumes_for_long") {
        let seed = seed(rand::random);
        fuzz(&home, (0..).map(|number| (seed, number)), Some(long()));
    }
}

#[test]
#[ignore = "the part of the others that is a process of its own"]
fn a_walk_over_a_mount() {
    if let Some(mountpoint) = std::env::var_os(run::WALK) {
        run::walk(Path::new(&mountpoint));
    }
}

#[test]
#[ignore = "writes the corpus again, in /dev/shm"]
fn make_the_corpus() {
    if let Some(home) = cage::enter("make_the_corpus") {
        for kind in &KINDS {
            let home = home.join(kind.name);
            std::fs::create_dir(&home).unwrap();
            let packed = volumes::make(kind, &home);
            println!("{}: {} bytes", kind.name, packed.len());
            let to = PathBuf::from("/dev/shm").join(format!("corpus-{}", kind.name));
            std::fs::write(to, packed).unwrap();
        }
    }
}
