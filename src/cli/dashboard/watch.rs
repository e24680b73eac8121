//! The volumes that are mounted, as their daemons answer.
//!
//! A thread looks for mounts once a second. Each volume has two threads. One asks what costs a daemon nothing, once a
//! second: events, and counts of bytes. The other asks for the state when there is a new event. Otherwise
//! it asks at intervals that grow with the time that an answer takes. A daemon that hangs keeps its own two threads alone.
//! Answers are charged to an `AnswerRoom`, which bounds what the daemons of the users that share it send together.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use rustix::process::geteuid;

use super::document::{EventDocument, StateDocument};
use super::history::Bytes;
use super::known::{Known, Silence, State};
use super::room::{AnswerRoom, Rooms};
use crate::cli::client::{self, Connection, Peer, SoughtMount};
use crate::cli::failure::Failure;
use crate::control::event_report::EventReport;
use crate::control::exchange::Limits;
use crate::control::metrics::families::{Bounded, Family, VolumeFamilies, merged};
use crate::control::places::{Places, SocketKind};
use crate::control::protocol::{Answer, Request};
use crate::control::report::StatusReport;
use crate::control::server::GROUP;
use crate::fuse::mountinfo::{self, MountEntry};
use crate::maintenance::RebuildState;

/// The volumes that are shown at most.
pub(super) const MOST_VOLUMES: usize = 64;

/// Those of them that root shows of other users, who must not crowd out the volumes of root.
const MOST_OF_OTHERS: usize = 32;

/// The longest answer that is taken. A report is cut to less.
pub(super) const LONGEST_ANSWER: usize = 8 << 20;

/// Most answers with events that are taken at once.
const MOST_ANSWERS: usize = 64;

/// The interval of the questions that cost nothing.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time that a daemon may take to answer these.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time after which a question that has not ended is shown as a silence.
pub(super) const OVERDUE: Duration = Duration::from_secs(6);

/// The time that a daemon may take for its state, as long as it gives signs of life.
const STATUS_PATIENCE: Duration = Duration::from_secs(120);

/// The state is asked for no more often than its answer takes, times this.
const LEAST_SHARE: u32 = 20;

/// The longest interval at which the state is asked for, and the interval while no page is open.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest time between an answer and the next question for the state.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(300);

/// The longest of these times: an answer that took longer is not waited for as long again.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The time after which a page that was not asked for counts as closed.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for which a volume is shown that is mounted no more.
const SHOWN_AFTER: Duration = Duration::from_secs(600);

/// The time that a scrape waits for new metrics.
pub(super) const METRICS_PATIENCE: Duration = Duration::from_secs(4);

/// A mounted volume.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) mountpoint: PathBuf,
    device: String,
    user: u32,
    /// The memory that its answers share with those of other daemons.
    room: Arc<AnswerRoom>,
    /// The number of its answers that were refused.
    refused: Arc<AtomicU64>,
    known: Mutex<Known>,
    /// Wakes the thread that asks for what costs nothing.
    wanted: Condvar,
    /// Wakes the thread that asks for the state.
    state_wanted: Condvar,
    /// Wakes scrapes.
    metrics_came: Condvar,
    is_over: AtomicBool,
}

/// All volumes.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) began: SystemTime,
    volumes: Mutex<Volumes>,
    /// When mounts were listed last.
    listed: Mutex<(Instant, SystemTime)>,
    /// When a page was asked for last.
    viewed: Mutex<Option<Instant>>,
    /// One scrape at a time asks the daemons.
    scraping: Mutex<()>,
    rooms: Rooms,
}

#[derive(Debug, Default)]
struct Volumes {
    shown: BTreeMap<(PathBuf, String), Arc<Watched>>,
    /// Mounted volumes beyond those.
    left_out: usize,
    /// The reason why there may be others.
    failure: Option<String>,
    /// True if mounts could not be listed.
    is_old: bool,
}

/// The list of volumes, as a page shows it.
#[derive(Debug)]
pub(super) struct View {
    pub(super) shown: Vec<Arc<Watched>>,
    /// The number of volumes that are left out.
    pub(super) left_out: usize,
    /// When the list was made, if it is old.
    pub(super) listed: Option<SystemTime>,
    /// The reason why there may be others.
    pub(super) failure: Option<String>,
}

impl Volumes {
    /// Returns the reason why there may be other volumes, and whether the list of this age is old.
    fn failure(&self, age: Duration) -> (Option<String>, bool) {
        let is_late = age >= OVERDUE;
        let late = is_late.then(|| "a search for mounts has not ended".to_owned());
        (self.failure.clone().or(late), self.is_old || is_late)
    }
}

impl Board {
    /// Begins to look at volumes.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let board = Arc::new(Self {
            began: SystemTime::now(),
            volumes: Mutex::default(),
            listed: Mutex::new((Instant::now(), SystemTime::now())),
            viewed: Mutex::default(),
            scraping: Mutex::default(),
            rooms: Rooms::default(),
        });
        board.look();
        let looking = Arc::clone(&board);
        std::thread::Builder::new()
            .name("look".to_owned())
            .spawn(move || {
                loop {
                    std::thread::sleep(INTERVAL);
                    looking.look();
                }
            })?;
        Ok(board)
    }

    /// Returns the list of volumes. Notes that a page is open.
    pub(super) fn view(&self) -> View {
        let before = self.viewed.lock().replace(Instant::now());
        let (at, listed) = *self.listed.lock();
        let volumes = self.volumes.lock();
        let shown: Vec<_> = volumes.shown.values().cloned().collect();
        if before.is_none_or(|before| before.elapsed() >= PAGE_TIMEOUT) {
            for volume in &shown {
                volume.want_state();
            }
        }
        let (failure, is_old) = volumes.failure(at.elapsed());
        View {
            shown,
            left_out: volumes.left_out,
            listed: is_old.then_some(listed),
            failure,
        }
    }

    fn has_viewers(&self) -> bool {
        let viewed = self.viewed.lock();
        viewed.is_some_and(|viewed| viewed.elapsed() < PAGE_TIMEOUT)
    }

    /// Compares the mount table with the volumes that are known.
    fn look(self: &Arc<Self>) {
        let entries = match mountinfo::mounts() {
            Ok(entries) => entries,
            Err(error) => {
                let failure = format!("cannot read the mount table: {error}");
                let mut volumes = self.volumes.lock();
                (volumes.failure, volumes.is_old) = (Some(failure), true);
                return;
            }
        };
        let own = geteuid();
        let sees_root = own.is_root() || Places::of(0).existing().any(|it| it.is_reachable());
        let mut mounted: Vec<MountEntry> = Vec::new();
        for entry in entries {
            let user = entry.user();
            let is_own = own.is_root() || user == Some(own.as_raw());
            let is_visible = is_own || user == Some(0) && sees_root;
            // The first mount of a filesystem is the daemon's own. Later ones are bound to other places.
            let is_first = mounted.iter().all(|it| it.device != entry.device);
            if entry.is_ours() && is_visible && is_first {
                mounted.push(entry);
            }
        }
        *self.listed.lock() = (Instant::now(), SystemTime::now());
        let mut volumes = self.volumes.lock();
        (volumes.failure, volumes.is_old) = (None, false);
        for (key, volume) in &volumes.shown {
            let is_there = mounted
                .iter()
                .any(|it| it.mountpoint == key.0 && it.device == key.1);
            volume.note_mounted(is_there);
        }
        volumes.shown.retain(|key, volume| {
            let is_replaced = mounted
                .iter()
                .any(|it| it.mountpoint == key.0 && it.device != key.1);
            let is_kept = !volume.is_forgotten(is_replaced);
            if !is_kept {
                volume.end();
            }
            is_kept
        });
        volumes.left_out = 0;
        for entry in mounted {
            let key = (entry.mountpoint.clone(), entry.device.clone());
            if volumes.shown.contains_key(&key) {
                continue;
            }
            let others = volumes.shown.values().filter(|it| it.user != 0).count();
            let is_of_other = own.is_root() && entry.user() != Some(0);
            let is_beyond = is_of_other && others >= MOST_OF_OTHERS;
            if is_beyond || volumes.shown.len() >= MOST_VOLUMES {
                volumes.left_out += 1;
                continue;
            }
            match Watched::start(&entry, self) {
                Ok(volume) => drop(volumes.shown.insert(key, volume)),
                Err(error) => volumes.failure = Some(format!("cannot look at a volume: {error}")),
            }
        }
        self.rooms.share(volumes.shown.values().map(|it| it.user));
        // The thread of a volume may wait for its daemon meanwhile.
        for volume in volumes.shown.values() {
            let share = volume.room.metrics_share();
            volume.with(|known| known.drop_metrics_beyond(share));
        }
    }

    /// Returns the metrics of all volumes, as new as daemons give them soon. Those of root come first: they get their
    /// room on the page, whatever daemons of others send.
    pub(super) fn metrics(&self) -> Vec<Family> {
        let _one_at_a_time = self.scraping.lock();
        let mut shown: Vec<_> = self.volumes.lock().shown.values().cloned().collect();
        shown.sort_by_key(|volume| volume.user != 0);
        let until = Instant::now() + METRICS_PATIENCE;
        for volume in &shown {
            volume.want_metrics();
        }
        let volumes = shown.into_iter().map(|volume| volume.metrics(until));
        merged(volumes.collect())
    }
}

impl Watched {
    fn start(entry: &MountEntry, board: &Arc<Board>) -> io::Result<Arc<Self>> {
        let user = entry.user().unwrap_or(0);
        let watched = Arc::new(Self {
            mountpoint: entry.mountpoint.clone(),
            device: entry.device.clone(),
            user,
            room: board.rooms.of(user),
            refused: Arc::default(),
            known: Mutex::new(Known::nothing()),
            wanted: Condvar::new(),
            state_wanted: Condvar::new(),
            metrics_came: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let spawn = |name: &str, work: fn(&Self, &Board)| {
            let (watched, board) = (Arc::clone(&watched), Arc::clone(board));
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || work(&watched, &board)).map(drop)
        };
        spawn("ask-state", Self::ask_states)?;
        spawn("ask", Self::ask_often).inspect_err(|_| watched.end())?;
        Ok(watched)
    }

    /// Calls `view` with what is known.
    pub(super) fn with<T>(&self, view: impl FnOnce(&mut Known) -> T) -> T {
        view(&mut self.known.lock())
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        let known = self.known.lock();
        self.wanted.notify_all();
        self.state_wanted.notify_all();
        drop(known);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn note_mounted(&self, is_mounted: bool) {
        let mut known = self.known.lock();
        if is_mounted {
            known.unmounted = None;
        } else if known.unmounted.is_none() {
            known.unmounted = Some((Instant::now(), SystemTime::now()));
        }
    }

    /// Returns whether it is unmounted, and shown no more.
    fn is_forgotten(&self, is_replaced: bool) -> bool {
        let known = self.known.lock();
        let is_old = |(at, _): (Instant, SystemTime)| at.elapsed() >= SHOWN_AFTER;
        known.unmounted.is_some_and(is_old) || is_replaced && known.unmounted.is_some()
    }

    fn want_state(&self) {
        self.known.lock().wants_state = true;
        self.state_wanted.notify_all();
    }

    fn want_metrics(&self) {
        let mut known = self.known.lock();
        if known.unmounted.is_none() && !known.has_good_metrics() {
            known.wants_metrics = true;
            self.wanted.notify_all();
        }
    }

    /// Returns the metrics of the volume, once they are new or it is too late.
    fn metrics(&self, until: Instant) -> VolumeFamilies {
        let mut known = self.known.lock();
        let is_pending = |known: &mut Known| {
            known.wants_metrics && known.silence.is_none() && known.overdue().is_none()
        };
        while is_pending(&mut known) && !self.metrics_came.wait_until(&mut known, until).timed_out()
        {
        }
        // Numbers of a daemon that is silent would look as if they were of now.
        let is_silent =
            known.silence.is_some() || known.overdue().is_some() || known.unmounted.is_some();
        let is_late = is_silent || known.wants_metrics;
        let families = known.metrics.as_ref().filter(|_| !is_late);
        let families = families.map(|(_, families)| Arc::clone(families));
        let place = self.mountpoint.display().to_string();
        let id = known.volume.clone().unwrap_or_default();
        VolumeFamilies {
            own: vec![("volume", id), ("mountpoint", place)],
            // It may answer all questions but that for metrics. One that was never reached answers none.
            is_up: !is_silent && known.volume.is_some(),
            refused: self.refused.load(Ordering::Relaxed),
            families: families.unwrap_or_default(),
        }
    }

    /// Connects to the daemon. This may wait for the directories of its user, which can be of another machine.
    fn connect(&self) -> Result<Connection, (Failure, bool)> {
        let target = SoughtMount {
            mountpoint: self.mountpoint.clone(),
            device: Some(self.device.clone()),
            user: self.user,
        };
        let limits = Limits::of_identity(PATIENCE);
        let peer = client::search(&Places::of(self.user), &target, &limits);
        let peer = peer.map_err(|failure| (failure, false))?;
        let is_gone = matches!(peer, Peer::None | Peer::Remains(_));
        let is_doubtful = matches!(peer, Peer::None)
            && SocketKind::towards(self.user) == SocketKind::Questions
            && !client::all_refuse(&Places::of(self.user), &target, &limits);
        if is_doubtful {
            let failure = Failure::environment(format!(
                "the daemon is gone, or it was started before there was a group {GROUP}"
            ))
            .advise("if it is there, mount the volume again, or run the dashboard as root");
            return Err((failure, false));
        }
        client::connected(peer, &self.mountpoint).map_err(|failure| (failure, is_gone))
    }

    /// Asks, and calls `take` with the answer. Meanwhile no other answer of the same room is read.
    fn ask<T>(
        &self,
        request: &Request,
        patience: Duration,
        take: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T, (Failure, bool)> {
        let connection = self.connect()?;
        self.known.lock().note_volume(&connection.identity().volume);
        let limits = Limits::of(request, false);
        let limits = Limits {
            line: limits.line.map(|limit| limit.min(patience)),
            answer: Some(patience),
            bytes: limits.bytes.min(LONGEST_ANSWER),
            ..limits
        };
        let account = self.room.account(&self.refused);
        let turn = || self.room.turn();
        let take = |answer| {
            take(answer).ok_or_else(|| {
                self.refused.fetch_add(1, Ordering::Relaxed);
                client::beside_the_point(&self.mountpoint)
            })
        };
        let taken = client::ask_charged(connection, request, &limits, account, turn, take);
        taken.map_err(|failure| (failure, false))
    }

    /// Asks what costs little. While this takes long, the volume is shown as silent.
    fn ask_briefly<T>(
        &self,
        request: &Request,
        most: Duration,
        take: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T, (Failure, bool)> {
        self.known.lock().note_question(true);
        let taken = self.ask(request, most, take);
        self.known.lock().note_question(false);
        taken
    }

    /// Asks once a second for what costs nothing, and for metrics if they are wanted.
    fn ask_often(&self, _: &Board) {
        while !self.is_over() {
            let asked = self.ask_events().and_then(|()| self.ask_activity());
            self.note_asked(asked.err());
            if self.known.lock().wants_metrics {
                self.ask_metrics();
            }
            let mut known = self.known.lock();
            if !known.wants_metrics && !self.is_over() {
                self.wanted.wait_for(&mut known, INTERVAL);
            }
        }
    }

    fn note_asked(&self, failed: Option<(Failure, bool)>) {
        let mut known = self.known.lock();
        let Some((failure, is_gone)) = failed else {
            if known.silence.take().is_some() {
                known.wants_state = true;
                self.state_wanted.notify_all();
            }
            return;
        };
        let before = known.silence.take();
        known.silence = Some(Silence::of(failure, is_gone, before.as_ref()));
        known.activity.end();
        // Another daemon may count from the beginning.
        known.after = None;
        self.metrics_came.notify_all();
    }

    fn ask_events(&self) -> Result<(), (Failure, bool)> {
        let mut has_new = false;
        for _ in 0..MOST_ANSWERS {
            let after = self.known.lock().after;
            let request = Request::Events {
                after,
                since_ms: None,
            };
            let taken = self.ask_briefly(&request, PATIENCE, |answer| match answer {
                Answer::Events { events, has_more } => Some((self.note_events(&events)?, has_more)),
                _ => None,
            });
            let (is_new, has_more) = taken?;
            has_new |= is_new;
            if !has_more {
                break;
            }
        }
        if has_new {
            self.want_state();
        }
        Ok(())
    }

    /// Notes events. Returns whether one is new. None if they are not those that were asked for.
    fn note_events(&self, events: &[EventReport]) -> Option<bool> {
        let mut has_new = false;
        let mut known = self.known.lock();
        for event in events {
            if known.after.is_some_and(|after| event.sequence <= after) {
                return None;
            }
            known.after = Some(event.sequence);
            has_new |= known.note_event(EventDocument::of(event));
        }
        Some(has_new)
    }

    fn ask_activity(&self) -> Result<(), (Failure, bool)> {
        self.ask_briefly(&Request::Activity, PATIENCE, |answer| match answer {
            Answer::Activity(activity) => {
                let bytes = Bytes {
                    read: activity.bytes_read,
                    written: activity.bytes_written,
                };
                let now = Instant::now();
                let mut known = self.known.lock();
                known.history.note(now, bytes);
                known.activity.note(now, &activity.members);
                Some(())
            }
            _ => None,
        })
    }

    fn ask_metrics(&self) {
        let share = self.room.metrics_share();
        let asked = self.ask_briefly(&Request::Metrics, METRICS_PATIENCE, |answer| match answer {
            Answer::Metrics(families) => Some(Bounded::of(families, share)),
            _ => None,
        });
        let mut known = self.known.lock();
        known.wants_metrics = false;
        known.note_metrics(asked.map_err(|(failure, _)| failure));
        self.metrics_came.notify_all();
    }

    /// Asks for the state again and again.
    fn ask_states(&self, board: &Board) {
        while !self.is_over() {
            self.known.lock().wants_state = false;
            let began = Instant::now();
            let asked = self.ask(&Request::Status, STATUS_PATIENCE, |answer| match answer {
                Answer::Status(report) => {
                    self.note_state(&report);
                    Some(())
                }
                _ => None,
            });
            let (took, answered) = (began.elapsed(), Instant::now());
            if let Err((failure, _)) = asked {
                self.note_no_state(failure);
            }
            let interval = took.saturating_mul(LEAST_SHARE);
            let mut interval = interval.clamp(INTERVAL, LONGEST_INTERVAL);
            if !board.has_viewers() {
                interval = LONGEST_INTERVAL;
            }
            let until = Instant::now() + interval;
            let mut known = self.known.lock();
            while !known.wants_state
                && !self.is_over()
                && !self.state_wanted.wait_until(&mut known, until).timed_out()
            {}
            drop(known);
            // Many events must not keep the daemon busy with its state.
            let pause = took.clamp(SHORTEST_INTERVAL, LONGEST_PAUSE);
            std::thread::sleep(pause.saturating_sub(answered.elapsed()));
        }
    }

    fn note_state(&self, report: &StatusReport) {
        let told = Arc::new(StateDocument::of(report, &self.mountpoint));
        let now = Instant::now();
        let mut known = self.known.lock();
        if report.rebuild.state == RebuildState::Running {
            let done = as_number(report.rebuild.bytes_done);
            known.rebuild.note(now, done);
        } else {
            known.rebuild.end();
        }
        match report.scrub.as_ref().filter(|_| report.is_scrubbing()) {
            Some(scrub) => known.scrub.note(now, scrub.progress),
            None => known.scrub.end(),
        }
        known.no_state = None;
        known.state = Some(State {
            told,
            taken_at: SystemTime::now(),
        });
    }

    fn note_no_state(&self, failure: Failure) {
        let mut known = self.known.lock();
        let before = known.no_state.take();
        known.no_state = Some(Silence::of(failure, false, before.as_ref()));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
pub(super) fn as_number(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests;
