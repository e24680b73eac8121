//! `cauchyfs events`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::args::EventsArguments;
use super::client::LiveMount;
use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::{Failure, Outcome, warn};
use super::sandbox;
use super::shell::quoted_path;
use super::size::format_count;
use super::survey::{executor, usable_stores};
use super::terminal;
use crate::control::event_report::EventReport;
use crate::control::protocol::{Answer, Request};
use crate::events::{ReadEvents, merged, read_store};
use crate::format::event::Event;
use crate::format::files::{EVENTS, OLD_EVENTS};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::membership::chain;
use crate::store::{Executor, Store, StoreError, StoreRef};

/// The interval at which new events are asked for.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Most answers with events that are taken at once. A daemon remembers far fewer.
const MOST_ANSWERS: usize = 256;

/// Shows what happened to a volume, mounted or not.
///
/// # Errors
///
/// If there is no volume where it was looked for, or nothing of its log can be read.
pub(super) fn run(arguments: &EventsArguments) -> Result<Outcome, Failure> {
    // The sandbox hides the files of the time zone.
    let printer = Printer {
        zone: TimeZone::system(),
        json: arguments.json,
    };
    let mount = match arguments.paths.as_slice() {
        [path] if is_mount(path)? => Some(LiveMount::at(path)?),
        paths => {
            for path in paths {
                refuse_mount(path)?;
            }
            None
        }
    };
    match mount {
        Some(mount) => of_mount(arguments, &mount, &printer),
        None => of_directories(arguments, &printer),
    }
}

/// Prints events.
struct Printer {
    zone: TimeZone,
    json: bool,
}

impl Printer {
    fn print(&self, event: &EventReport) -> Result<(), Failure> {
        if self.json {
            terminal::json_line(event).map_err(Failure::environment)
        } else {
            terminal::line(event.for_people(&self.zone));
            Ok(())
        }
    }
}

fn is_mount(path: &Path) -> Result<bool, Failure> {
    let Ok(mountpoint) = mountinfo::locate(path) else {
        return Ok(false);
    };
    let entry = mountinfo::mount_at(&mountpoint)
        .map_err(|error| Failure::environment(format!("cannot read the mount table: {error}")))?;
    Ok(entry.is_some_and(|entry| MountEntry::is_ours(&entry)))
}

/// Refuses a mountpoint that is given with other paths.
fn refuse_mount(path: &Path) -> Result<(), Failure> {
    if !is_mount(path)? {
        return Ok(());
    }
    let shown = path.display();
    Err(Failure::usage(format!(
        "{shown} is where a volume is mounted, and is given with other paths"
    ))
    .advise(format!(
        "give it alone: `cauchyfs events {}`",
        quoted_path(path)
    )))
}

/// Shows the events that the daemon of a mount remembers.
fn of_mount(
    arguments: &EventsArguments,
    mount: &LiveMount,
    printer: &Printer,
) -> Result<Outcome, Failure> {
    let mut shown = Shown {
        after: None,
        newest: None,
        since_ms: arguments.since.map(|since| since.0),
    };
    shown.show_new(mount, printer)?;
    if !arguments.follow {
        return Ok(Outcome::Done);
    }
    let mountpoint = mount.mountpoint().to_owned();
    let mut is_gone = false;
    while terminal::waits_for_more() {
        std::thread::sleep(FOLLOW_INTERVAL);
        let asked = LiveMount::at(&mountpoint).and_then(|mount| shown.show_new(&mount, printer));
        match asked {
            Ok(()) if is_gone => {
                warn(format_args!("{} is mounted again", mountpoint.display()));
                is_gone = false;
            }
            Err(failure) if !is_gone => {
                let message = failure.message;
                warn(format_args!(
                    "{message}; new events are shown once it is mounted again"
                ));
                is_gone = true;
                shown.begin_again();
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(Outcome::Done)
}

/// The events of a mount that were shown.
struct Shown {
    /// The sequence number of the last event.
    after: Option<u64>,
    /// The time of the newest event.
    newest: Option<Timestamp>,
    since_ms: Option<i64>,
}

impl Shown {
    /// Shows events that are newer than those shown, whatever their numbers: another daemon may count differently.
    fn begin_again(&mut self) {
        self.after = None;
        let next = self.newest.map(|newest| newest.as_millisecond() + 1);
        self.since_ms = next.max(self.since_ms);
    }

    /// Shows the events after the last one.
    ///
    /// # Errors
    ///
    /// If the daemon does not answer, or has more to say than it can remember.
    fn show_new(&mut self, mount: &LiveMount, printer: &Printer) -> Result<(), Failure> {
        for _ in 0..MOST_ANSWERS {
            let (after, since_ms) = (self.after, self.since_ms);
            let answer = mount.ask(&Request::Events { after, since_ms })?;
            let Answer::Events { events, has_more } = answer else {
                return Err(mount.beside_the_point());
            };
            for event in events {
                if self.after.is_some_and(|after| event.sequence <= after) {
                    return Err(mount.beside_the_point());
                }
                self.after = Some(event.sequence);
                self.newest = event.time.parse().ok().max(self.newest);
                printer.print(&event)?;
            }
            if !has_more {
                return Ok(());
            }
        }
        Err(mount.beside_the_point())
    }
}

/// Shows the events that directories have, whether a daemon uses them or not.
fn of_directories(arguments: &EventsArguments, printer: &Printer) -> Result<Outcome, Failure> {
    let directories = Directories::find(&arguments.paths)?;
    sandbox::read(&arguments.sandbox, &directories)?;
    let (stores, notes) = usable_stores(&directories, MEMBER_TIMEOUT);
    notes.iter().for_each(warn);
    let executor = executor(MEMBER_TIMEOUT);
    let since_ms = arguments.since.map_or(i64::MIN, |since| since.0);
    let found = read_all(&stores, &executor, warn)?;
    refuse_several(&found)?;
    if found.iter().all(|(_, events)| events.is_empty()) {
        warn("these directories have no events; those of a volume get them when it is mounted");
    }
    let events = merged(found.into_iter().flat_map(|(_, events)| events).collect());
    let events = events.into_iter().filter(|event| event.time_ms >= since_ms);
    let mut shown = BTreeSet::new();
    print_new(events, &mut shown, printer)?;
    while arguments.follow && terminal::waits_for_more() {
        std::thread::sleep(FOLLOW_INTERVAL);
        // Directories may be away for some time.
        let Ok(found) = read_all(&stores, &executor, |_| ()) else {
            continue;
        };
        let events = merged(found.into_iter().flat_map(|(_, events)| events).collect());
        let events = events.into_iter().filter(|event| event.time_ms >= since_ms);
        print_new(events, &mut shown, printer)?;
    }
    Ok(Outcome::Done)
}

/// Reads the events of each directory. `tell` gets what is wrong with some.
fn read_all(
    stores: &[StoreRef],
    executor: &Arc<Executor>,
    tell: impl Fn(String),
) -> Result<Vec<(String, Vec<Event>)>, Failure> {
    let mut found = Vec::new();
    let mut last_error = None;
    for store in stores {
        match executor.call(store, "read events of", read_again) {
            Ok(ReadEvents { events, damaged }) => {
                if damaged > 0 {
                    let places = format_count(damaged as u64, "place");
                    tell(format!(
                        "the events of {} are damaged at {places}; other members may have what is lost there",
                        store.label()
                    ));
                }
                found.push((store.label(), events));
            }
            Err(error) => {
                let label = store.label();
                tell(format!(
                    "the events of {label} are left out: {}",
                    chain(&error)
                ));
                last_error = Some(error);
            }
        }
    }
    match last_error {
        Some(error) if found.is_empty() => Err(Failure::environment(chain(&error))),
        _ => Ok(found),
    }
}

/// Reads the event files that have their names by now: a daemon renames them.
fn read_again(store: &dyn Store) -> Result<ReadEvents, StoreError> {
    for name in [EVENTS, OLD_EVENTS] {
        store.refresh(name)?;
    }
    read_store(store)
}

/// Refuses directories of several volumes.
fn refuse_several(found: &[(String, Vec<Event>)]) -> Result<(), Failure> {
    let newest = |(path, events): &(String, Vec<Event>)| {
        let last = events.last()?;
        Some((last.volume, path.clone()))
    };
    let volumes: BTreeMap<_, _> = found.iter().filter_map(newest).collect();
    let paths: Vec<&str> = volumes.values().map(String::as_str).collect();
    match paths.as_slice() {
        [first, second, ..] => Err(Failure::usage(format!(
            "{first} and {second} have events of different volumes"
        ))
        .advise("give the directories of one volume")),
        _ => Ok(()),
    }
}

/// The events that were shown: their numbers and frames.
type ShownFrames = BTreeSet<(u64, Vec<u8>)>;

/// Prints the events that were not shown yet. Forgets shown ones that are older than all that are there.
fn print_new(
    events: impl Iterator<Item = Event>,
    shown: &mut ShownFrames,
    printer: &Printer,
) -> Result<(), Failure> {
    let mut oldest = None;
    for event in events {
        let number = event.sequence;
        oldest = Some(oldest.map_or(number, |oldest: u64| oldest.min(number)));
        if shown.insert((number, event.encode())) {
            printer.print(&EventReport::of(event))?;
        }
    }
    if let Some(oldest) = oldest {
        *shown = shown.split_off(&(oldest, Vec::new()));
    }
    Ok(())
}
