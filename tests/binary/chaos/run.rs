//! Writers at work, and what happens to the volume meanwhile.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::damage;
use super::heal::RETURNS;
use super::members::{Condition, Seat, draw};
use super::plan::{self, Event, Seed};
use super::writer::{Shared, Writer};
use crate::namespaces::Holder;
use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, must, run as command, text};

/// Writers.
const WRITERS: u64 = 4;

/// Operations of each writer in a step.
const OPERATIONS: u64 = 120;

/// The time after which a wait without any progress of a writer counts as endless.
const STUCK: Duration = Duration::from_secs(240);

/// A volume, its directories and its writers.
pub(super) struct Chaos {
    pub(super) volume: TestVolume,
    pub(super) shape: Shape,
    pub(super) seats: Vec<Seat>,
    writers: Vec<Writer>,
    shared: Shared,
    /// Programs wait for directories that are away.
    waits: bool,
    /// The number of directories that there have been.
    pub(super) seated: usize,
}

/// Does `steps` steps of the events that a seed stands for, or of one event only, and looks at everything in the end.
pub(super) fn run(seed: Seed, steps: u64, only: Option<Event>) {
    let shape = seed.shape();
    let waits = seed.waits();
    eprintln!("seed {}: {shape:?}, {steps} steps, waits: {waits}", seed.0);
    let mut chaos = Chaos::new(shape, waits);
    for step in 1..=steps {
        let mut rng = seed.stream(step, 0);
        let event = chaos.affordable(plan::draw(&mut rng, only));
        eprintln!("seed {} step {step}: {event:?}", seed.0);
        chaos.step(event, seed, step, &mut rng);
    }
    chaos.end(&mut seed.stream(steps + 1, 0));
}

impl Chaos {
    fn new(shape: Shape, waits: bool) -> Self {
        let seats: Vec<Seat> = (0..shape.members).map(Seat::new).collect();
        let paths = seats.iter().map(|seat| seat.path.clone()).collect();
        let volume = TestVolume::create_in(shape, paths, Vec::new());
        let all: Vec<usize> = (0..shape.members).collect();
        let output = volume.try_mount(&all, &["-o", on_failure(waits)]);
        assert!(output.status.success(), "{output:?}");
        let directory = |number| volume.path(&format!("w{number}"));
        let writers = (0..WRITERS)
            .map(|number| Writer::new(directory(number)))
            .collect();
        Self {
            seated: seats.len(),
            volume,
            shape,
            seats,
            writers,
            shared: Shared::default(),
            waits,
        }
    }

    fn sound(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is_sound()).count()
    }

    /// Returns how many more directories may go wrong.
    fn budget(&self) -> usize {
        self.shape.losses() - (self.seats.len() - self.sound())
    }

    /// Returns what happens instead of what was drawn, if that would be too much: more than stripes can do
    /// without, or a disk that is full where the others are too few for new ones.
    fn affordable(&self, event: Event) -> Event {
        let needs = match event {
            Event::Delete
            | Event::MoveAway
            | Event::Cut
            | Event::Hang
            | Event::Fill
            | Event::Spoil
            | Event::Swap
            | Event::OldCopy => 1,
            Event::Exchange => 2,
            // Beyond any budget, and whole again at the end of its step.
            Event::Outage => self.shape.losses(),
            Event::Kill
            | Event::Remount
            | Event::Hold
            | Event::Add
            | Event::Remove
            | Event::Scrub
            | Event::Heal => 0,
        };
        let total = self.shape.data + self.shape.parity;
        let takes_room = needs > 0 || matches!(event, Event::Remove);
        let is_short = event == Event::Fill || self.seats.iter().any(Seat::is_full);
        if self.budget() < needs || (takes_room && is_short && self.sound() <= total) {
            Event::Heal
        } else {
            event
        }
    }

    fn step(&mut self, event: Event, seed: Seed, step: u64, rng: &mut StdRng) {
        let old = (event == Event::OldCopy).then(|| self.copy_one(rng));
        let target = self.shared.done.load(Ordering::Relaxed)
            + rng.random_range(0..WRITERS * OPERATIONS * 9 / 10);
        let mut writers = std::mem::take(&mut self.writers);
        let dies = match event {
            Event::Kill => true,
            Event::OldCopy => rng.random(),
            _ => false,
        };
        let loses = dies || event == Event::Outage;
        // Writers and the threads that disturb them know of this; writers end when they are done.
        let shared = std::mem::take(&mut self.shared);
        let failures: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = (1..)
                .zip(&mut writers)
                .map(|(actor, writer)| {
                    let (shared, mut rng) = (&shared, seed.stream(step, actor));
                    scope.spawn(move || writer.work(&mut rng, OPERATIONS, shared))
                })
                .collect();
            let idle = || threads.iter().all(thread::ScopedJoinHandle::is_finished);
            let disturbed = catch_unwind(AssertUnwindSafe(|| {
                wait_until("some operations are done", &shared, || {
                    idle() || shared.done.load(Ordering::Relaxed) >= target
                });
                if dies {
                    let busy = self.keep_busy(rng);
                    let more = shared.done.load(Ordering::Relaxed) + rng.random_range(0..50);
                    wait_until("some more operations are done", &shared, || {
                        idle() || shared.done.load(Ordering::Relaxed) >= more
                    });
                    shared.dying.store(true, Ordering::SeqCst);
                    self.kill();
                    if let Some(mut busy) = busy {
                        busy.wait().expect("it ends with its daemon");
                    }
                } else {
                    self.disturb(event, rng, &idle, &shared);
                }
                wait_until("all operations are done", &shared, idle);
            }));
            if let Err(panic) = disturbed {
                // It is not waited for any more.
                shared.dying.store(true, Ordering::SeqCst);
                self.kill();
                resume_unwind(panic);
            }
            let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
            ended
                .filter_map(|ended| ended.expect("writers do not panic").err())
                .collect()
        });
        self.shared = shared;
        self.writers = writers;
        assert!(failures.is_empty(), "{event:?}: {failures:#?}");
        if dies {
            self.writers.iter_mut().for_each(Writer::close);
            self.unmount();
        } else if matches!(event, Event::Remount | Event::OldCopy) {
            self.put_away();
        } else if event == Event::Hold {
            self.put_away_held();
        }
        self.shared.dying.store(false, Ordering::SeqCst);
        if let Some((index, copy)) = old {
            self.swap_in(index, &copy);
        }
        if dies || matches!(event, Event::Remount | Event::OldCopy | Event::Hold) {
            self.mount(rng, event != Event::OldCopy);
        }
        for writer in &mut self.writers {
            let judged = if loses {
                writer.recover()
            } else {
                writer.compare()
            };
            if let Err(reason) = judged {
                panic!("after {event:?}: {reason}");
            }
        }
        assert!(
            self.volume.daemon().is_some(),
            "{event:?}: the daemon is gone"
        );
        assert!(!self.volume.log().contains("panicked"), "{event:?}");
    }

    /// Does to the mounted volume what an event stands for.
    fn disturb(
        &mut self,
        event: Event,
        rng: &mut StdRng,
        idle: &dyn Fn() -> bool,
        shared: &Shared,
    ) {
        let any = |_: &Seat| true;
        let real = |seat: &Seat| seat.disk.is_real();
        match event {
            Event::Delete => {
                let Some(index) = draw(&self.seats, rng, any) else {
                    return;
                };
                eprintln!("  {}", self.seats[index].path.display());
                let path = self.seats[index].path.clone();
                eventually("the directory is deleted", || {
                    fs::remove_dir_all(&path).is_ok() || !path.exists()
                });
                self.seats[index].condition = Condition::Deleted;
            }
            Event::MoveAway => {
                let Some(index) = draw(&self.seats, rng, any) else {
                    return;
                };
                let seat = &mut self.seats[index];
                eprintln!("  {}", seat.path.display());
                let aside = seat.path.with_file_name("aside");
                fs::rename(&seat.path, &aside).expect("it is there");
                seat.condition = Condition::Away(aside);
            }
            Event::Cut => {
                let Some(index) = draw(&self.seats, rng, real) else {
                    return;
                };
                let seat = &mut self.seats[index];
                eprintln!("  {}", seat.path.display());
                seat.disk.cut();
                seat.condition = Condition::Cut;
            }
            Event::Hang => {
                let Some(index) = draw(&self.seats, rng, real) else {
                    return;
                };
                eprintln!("  {}", self.seats[index].path.display());
                self.seats[index].disk.freeze();
                self.seats[index].condition = Condition::Stale;
                wait_until("the member is marked missing or faulted", shared, || {
                    idle() || !self.is_online(&self.seats[index].path)
                });
                self.seats[index].disk.thaw();
            }
            Event::Fill => {
                let Some(index) = draw(&self.seats, rng, any) else {
                    return;
                };
                eprintln!("  {}", self.seats[index].path.display());
                self.seats[index].fill();
            }
            Event::Spoil => {
                let Some(index) = draw(&self.seats, rng, any) else {
                    return;
                };
                let seat = &mut self.seats[index];
                seat.condition = Condition::Spoiled;
                let how = damage::spoil(&seat.path, rng);
                eprintln!("  {}: {how}", seat.path.display());
            }
            Event::Swap => self.swap(rng, idle, shared),
            Event::Exchange => self.exchange(rng),
            Event::Outage => self.outage(rng, idle, shared),
            Event::Add => self.add(rng),
            Event::Remove => self.remove(rng),
            Event::Scrub => drop(self.scrub()),
            Event::Heal => self.heal(rng),
            // With no writer at work.
            Event::Kill | Event::Remount | Event::OldCopy | Event::Hold => {}
        }
    }

    fn kill(&self) {
        if let Some(daemon) = self.volume.daemon() {
            must("kill", &["-KILL", &daemon.to_string()]);
            eventually("the daemon is dead", || self.volume.daemon().is_none());
        }
    }

    /// Orders the daemon to do something that takes its time, or nothing.
    fn keep_busy(&self, rng: &mut StdRng) -> Option<Child> {
        let order = *[None, None, Some("scrub"), Some("rebuild")]
            .choose(rng)
            .expect("there are some");
        let order = order?;
        eprintln!("  during a {order}");
        let child = Command::new(CAUCHYFS)
            .arg(order)
            .arg(&self.volume.mountpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(child.expect("the binary runs"))
    }

    fn unmount(&self) {
        let output = self.volume.try_unmount();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("without its last changes"), "{output:?}");
    }

    /// Unmounts in good order.
    fn put_away(&mut self) {
        for writer in &mut self.writers {
            writer.close();
            writer.settle();
        }
        self.unmount();
    }

    /// Unmounts while a process in another mount namespace holds the mount: everything is durable, and the daemon ends when
    /// the process does.
    fn put_away_held(&mut self) {
        for writer in &mut self.writers {
            writer.close();
            writer.settle();
        }
        let holder = Holder::of(&self.volume, None);
        let output = self.volume.try_unmount();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(said.contains(&holder.name()), "{output:?}");
        assert!(!said.contains("without its last changes"), "{output:?}");
        assert!(self.volume.daemon().is_some(), "it serves the holder");
        drop(holder);
        eventually("the daemon ends", || self.volume.daemon().is_none());
    }

    /// Mounts the directories that are there, in any order; some may be left out if that can be
    /// afforded, and some that are not there named.
    fn mount(&mut self, rng: &mut StdRng, may_leave_out: bool) {
        let total = self.shape.data + self.shape.parity;
        let has_room = self.sound() > total || !self.seats.iter().any(Seat::is_full);
        let leaves_out = rng.random_bool(0.3) && may_leave_out && self.budget() > 0 && has_room;
        let left = draw(&self.seats, rng, |_| leaves_out);
        if let Some(index) = left {
            eprintln!("  without {}", self.seats[index].path.display());
            self.seats[index].condition = Condition::Stale;
        }
        let names_all = rng.random_bool(0.3);
        let mut paths: Vec<PathBuf> = (0..)
            .zip(&self.seats)
            .filter(|(index, seat)| Some(*index) != left && (names_all || seat.is_there()))
            .map(|(_, seat)| seat.path.clone())
            .collect();
        paths.shuffle(rng);
        self.volume.members = paths;
        let all: Vec<usize> = (0..self.volume.members.len()).collect();
        let options = ["-o", on_failure(self.waits)];
        let output = self.volume.try_mount(&all, &options);
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{output:?}\n{:#?}",
            self.seats
        );
        for seat in &mut self.seats {
            // One that was not named is not taken back by itself.
            let is_named = self.volume.members.contains(&seat.path);
            seat.returns = if is_named { 0 } else { RETURNS };
        }
    }

    /// Takes a copy of a sound directory, as a backup would.
    fn copy_one(&mut self, rng: &mut StdRng) -> (usize, PathBuf) {
        self.put_away();
        let index = draw(&self.seats, rng, |_| true).expect("most are sound");
        let copy = self.volume.home.join("copy");
        must("cp", &["-a", text(&self.seats[index].path), text(&copy)]);
        self.mount(rng, false);
        (index, copy)
    }

    /// Puts a copy into the place of a directory.
    fn swap_in(&mut self, index: usize, copy: &Path) {
        let seat = &mut self.seats[index];
        eprintln!("  {}", seat.path.display());
        fs::remove_dir_all(&seat.path).expect("it is there");
        must("cp", &["-a", text(copy), text(&seat.path)]);
        // It is unknown which of it is only in memory yet, and goes with the next power cut.
        must("sync", &["-f", text(&seat.path)]);
        fs::remove_dir_all(copy).expect("it is there");
        seat.condition = Condition::Stale;
    }

    /// Returns what the daemon says of a directory.
    pub(super) fn state_of(&self, path: &Path) -> String {
        let (status, _) = self.volume.status();
        let members = status["members"].as_array().expect("members are listed");
        let member = members.iter().find(|member| member["path"] == text(path));
        let state = member.and_then(|member| member["state"].as_str());
        state
            .unwrap_or_else(|| panic!("no member is at {}: {status}", path.display()))
            .to_owned()
    }

    /// Says whether the daemon has a directory among those that take part.
    pub(super) fn is_online(&self, path: &Path) -> bool {
        self.state_of(path) == "online"
    }

    /// Runs a command on the mount.
    pub(super) fn order(&self, words: &[&str], arguments: &[&Path]) -> Output {
        let mut all = words.to_vec();
        all.push(text(&self.volume.mountpoint));
        all.extend(arguments.iter().map(|path| text(path)));
        command(CAUCHYFS, &all)
    }

    /// Looks at everything: with all directories, with any that a stripe can do without left out, and at
    /// what lies in them.
    fn end(&mut self, rng: &mut StdRng) {
        self.heal(rng);
        self.compare("healed");
        self.put_away();
        self.check_deep();
        for _ in 0..3 {
            let all: Vec<usize> = (0..self.seats.len()).collect();
            let lost: Vec<usize> = all.sample(rng, self.shape.losses()).copied().collect();
            self.volume.members = self.seats.iter().map(|seat| seat.path.clone()).collect();
            let left: Vec<usize> = all.into_iter().filter(|at| !lost.contains(at)).collect();
            let output = self.volume.try_mount(&left, &["-o", "ro"]);
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            self.compare(&format!("without {lost:?}"));
            self.unmount();
        }
    }

    fn compare(&self, when: &str) {
        for writer in &self.writers {
            if let Err(reason) = writer.compare() {
                panic!("{when}: {reason}");
            }
        }
    }

    fn check_deep(&self) {
        let mut arguments = vec!["check", "--deep"];
        arguments.extend(self.seats.iter().map(|seat| text(&seat.path)));
        let output = command(CAUCHYFS, &arguments);
        assert_eq!(output.status.code(), Some(0), "{output:#?}");
    }
}

/// Returns the option for programs that wait for directories, or for others.
fn on_failure(waits: bool) -> &'static str {
    if waits {
        "on-failure=wait"
    } else {
        "on-failure=error"
    }
}

/// Waits for something that must come to be, however slow this machine is, as long as writers get on.
pub(super) fn wait_until(what: &str, shared: &Shared, mut is_true: impl FnMut() -> bool) {
    let mut last = (0, Instant::now());
    while !is_true() {
        let done = shared.done.load(Ordering::Relaxed);
        if done != last.0 {
            last = (done, Instant::now());
        }
        assert!(last.1.elapsed() < STUCK, "stuck: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
