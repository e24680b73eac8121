//! Hostile volumes against the real binary: no crash, no hang, no memory without bound, no write beside what it was
//! told to write, and the right bytes as long as the volume can bear the damage.
//!
//! A run prints its seed. `CAUCHYFS_SEED` replays it, `CAUCHYFS_FUZZ_CASE` one case of it alone. This program needs
//! nothing of the source tree: `scripts/fuzz.sh` shows how it runs for longer, against the binary that
//! `CAUCHYFS_FUZZ_BINARY` names.

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

use cage::variable;
use mutate::{Case, victims_in};
use run::Arena;
use volumes::{Base, KINDS};

/// Cases of the short run.
const FEW_CASES: u64 = 24;

/// Rounds of lies that one daemon is there for.
const ROUNDS_OF_A_DAEMON: u64 = 2;

/// What a run has found so far: each failure once, with the first case that shows it.
#[derive(Default)]
struct Findings(Mutex<BTreeMap<String, (u64, u64)>>);

impl Findings {
    fn add(&self, base: &Base, case: &Case, number: u64, offences: &[String]) {
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
                    "case {number} ({}): {offence}\n    {}",
                    base.name,
                    case.notes.join("\n    ")
                );
            }
        }
    }
}

/// Runs cases until there are enough, or the time is up.
fn fuzz(home: &Path, cases: u64, time: Option<Duration>) {
    let seed = variable("CAUCHYFS_SEED").unwrap_or_else(rand::random);
    println!("CAUCHYFS_SEED={seed}");
    let bases: Vec<Base> = KINDS.iter().map(|kind| Base::load(kind, home)).collect();
    let only = variable("CAUCHYFS_FUZZ_CASE");
    let (next, done) = (AtomicU64::new(only.unwrap_or(0)), AtomicU64::new(0));
    let end = only.map_or(cases, |only| only + 1);
    let findings = Findings::default();
    let start = Instant::now();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (bases, next, done, findings) = (&bases, &next, &done, &findings);
            scope.spawn(move || {
                let home = home.join(format!("worker-{worker}"));
                let arenas: Vec<Arena> = bases
                    .iter()
                    .map(|base| Arena::new(&home.join(base.name), base))
                    .collect();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end || time.is_some_and(|time| start.elapsed() > time) {
                        break;
                    }
                    let which = usize::try_from(number % 3).unwrap();
                    let (base, arena) = (&bases[which], &arenas[which]);
                    let case = Case::new(
                        base,
                        seed,
                        number,
                        &victims_in(&home.join(base.name).join("outer")),
                    );
                    let offences = arena.judge(base, &case);
                    findings.add(base, &case, number, &offences);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let found = findings.0.into_inner().unwrap();
    let done = done.into_inner();
    println!(
        "{done} hostile volumes in {} s, seed {seed}: {} kinds of failure; no process used more than {} MiB",
        start.elapsed().as_secs(),
        found.len(),
        cage::peak_mib()
    );
    for (alike, (case, count)) in &found {
        println!("{count} times, first in case {case}: {alike}");
    }
    assert!(found.is_empty(), "seed {seed}");
}

#[test]
fn no_hostile_volume_makes_a_command_crash_hang_or_write_elsewhere() {
    if let Some(home) =
        cage::enter("no_hostile_volume_makes_a_command_crash_hang_or_write_elsewhere")
    {
        fuzz(
            &home,
            variable("CAUCHYFS_FUZZ_CASES").unwrap_or(FEW_CASES),
            None,
        );
    }
}

/// Has commands and daemons meet liars, for some rounds or until the time is up; each daemon lives for two rounds.
fn fuzz_control(home: &Path, rounds: u64, time: Option<Duration>) {
    let seed = variable("CAUCHYFS_SEED").unwrap_or_else(rand::random);
    println!("CAUCHYFS_SEED={seed}");
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
        let rounds = variable("CAUCHYFS_FUZZ_ROUNDS").unwrap_or(ROUNDS_OF_A_DAEMON);
        fuzz_control(&home, rounds, None);
    }
}

/// Returns for how long those tests run that do so for long.
fn long() -> Duration {
    Duration::from_secs(variable("CAUCHYFS_FUZZ_SECONDS").unwrap_or(3600))
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
        fuzz(&home, u64::MAX, Some(long()));
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
#[ignore = "makes the corpus anew, in /dev/shm"]
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
