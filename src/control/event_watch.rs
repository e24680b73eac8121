//! The watch that looks at a mounted volume and records what changed.
//!
//! It looks twice a second at what the daemon knows anyway. It measures space every few seconds, and counts redundancy
//! when something happened that may have changed it. So a burst of errors becomes one event with a number.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use self::changes::{Changes, told};
use self::seen::{RedundancySeen, Seen, SpaceSeen};
use super::left_refusal::ended_by_mount;
use super::mounted::MountedVolume;
use super::summary::files_in;
use crate::events::{EventLog, MOST_REMEMBERED, now_ms};
use crate::format::event::EventKind;
use crate::format::{Epoch, MemberIndex};
use crate::fs::{Fs, InterlockChange};
use crate::maintenance::{Maintenance, RebuildState, ScrubState, ScrubStatus};
use crate::membership::Access;

use self::interlock::InterlockRecorder;
pub(crate) use self::interlock::record_changes;

mod changes;
mod interlock;
mod seen;

/// The interval of the looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The interval of the measurements of space, which ask every member.
const SPACE_INTERVAL: Duration = Duration::from_secs(5);

/// The time from the mount to the first count, which leaves the first moments to programs.
const FIRST_COUNT_AFTER: Duration = Duration::from_secs(3);

/// The least time from one count of the redundancy to the next.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The same while a rebuild runs or redundancy is reduced, without another reason to count.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(30);

/// The time for which the end of the watch is waited for. It may wait for a member that hangs.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that the last events may take.
pub(crate) const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(3);

/// The watch over a mounted volume, until it is ended or dropped.
pub(crate) struct EventWatch {
    end: Sender<()>,
    ended: Receiver<()>,
    _interlock: Option<InterlockRecorder>,
}

impl EventWatch {
    /// Records that the volume is mounted, and whether the daemon before crashed. Starts to watch.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn start(volume: &Arc<MountedVolume>) -> io::Result<Self> {
        let changes = record_start(volume)?;
        let interlock = InterlockRecorder::start(volume)?;
        let (end, wanted) = mpsc::channel();
        let (has_ended, ended) = mpsc::channel();
        let mut watch = Watch {
            volume: Arc::clone(volume),
            changes,
            began: Instant::now(),
            measured: None,
            scrub: None,
            counted: None,
        };
        thread::Builder::new()
            .name("event-watch".to_owned())
            .spawn(move || {
                watch.run(&wanted);
                drop(has_ended);
            })?;
        Ok(Self {
            end,
            ended,
            _interlock: interlock,
        })
    }

    /// Ends the watch, and waits a moment for that.
    pub(crate) fn end(self) {
        drop(self.end);
        // Nothing is ever sent.
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("the watch that records events still waits for a member");
        }
    }
}

/// Starts the log of a volume that was just mounted. Returns what later looks are compared with.
fn record_start(volume: &MountedVolume) -> io::Result<Changes> {
    let events = volume.events();
    let mut changes = Changes::default();
    let Some(open) = volume.now() else {
        return Ok(changes);
    };
    let members = open.fs.transactions().members();
    let access = members.access();
    let crashed_at = events.crashed_at();
    let remembered = events.newer_than(None, None, MOST_REMEMBERED).events;
    changes.remember(&remembered);
    events.start(access)?;
    // A reader of a volume has no part in its history.
    if access == Access::ReadWrite {
        let crashed = crashed_at.map(|last_seen_ms| EventKind::DaemonCrashed { last_seen_ms });
        let ended = ended_by_mount(volume.interlock(), &remembered);
        for kind in ended.into_iter().chain(crashed) {
            events.record(None, kind);
        }
    }
    let mut seen = Seen::of(&open.maintenance, std::iter::empty());
    seen.has_other_codes = Some(open.maintenance.rebuild().has_other_codes());
    seen.scrub = open.maintenance.scrubber().scrub_status().ok();
    let started = EventKind::DaemonStarted {
        members: seen.count(),
        online: seen.online(),
        read_only: access == Access::ReadOnly,
    };
    // The next daemon takes a refusal for one that is over if a crash leaves the start without it.
    let record = |changes: Vec<InterlockChange>| {
        let told = changes.into_iter().map(told);
        events.record_together(std::iter::once(started).chain(told));
    };
    match volume.interlock() {
        Some(interlock) => interlock.take_changes(record),
        None => record(Vec::new()),
    }
    let returned = changes.returned(&seen, now_ms());
    let found = changes.see(&seen, Instant::now());
    for (member, kind) in returned.into_iter().chain(found) {
        events.record(member, kind);
    }
    Ok(changes)
}

/// The state on which the redundancy depends.
#[derive(Debug, PartialEq, Eq)]
struct CountReasons {
    epoch: Epoch,
    live: Vec<MemberIndex>,
    unrecoverable: u64,
    rebuild: (bool, u64),
    scrub: Option<(bool, u64, u64)>,
}

impl CountReasons {
    fn of(maintenance: &Maintenance, seen: &Seen) -> Self {
        let membership = maintenance.transactions().members().membership();
        let is_rebuilding = seen.rebuild.state == RebuildState::Running;
        Self {
            epoch: membership.epoch(),
            live: membership.live(),
            unrecoverable: maintenance.redundancy().unrecoverable_changes(),
            rebuild: (
                is_rebuilding,
                if is_rebuilding {
                    0
                } else {
                    seen.rebuild.bytes_done
                },
            ),
            scrub: seen.scrub.as_ref().map(|scrub| {
                let record = scrub.record;
                let is_running = scrub.state == ScrubState::Running;
                (is_running, record.began, record.last_finished)
            }),
        }
    }
}

struct Watch {
    volume: Arc<MountedVolume>,
    changes: Changes,
    began: Instant,
    /// When the space was measured.
    measured: Option<Instant>,
    /// The scrub that runs, or ran last, as it was seen last.
    scrub: Option<ScrubStatus>,
    /// When the redundancy was counted, and in which state.
    counted: Option<(Instant, CountReasons)>,
}

impl Watch {
    fn run(&mut self, wanted: &Receiver<()>) {
        // Nothing is ever sent.
        while wanted.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
        let events: &EventLog = self.volume.events();
        for (member, kind) in self.changes.end(Instant::now()) {
            events.record(member, kind);
        }
    }

    /// Looks at the volume, unless it is being opened again just now.
    fn look(&mut self) {
        // The files are known for a moment only: an outage ends when they have no user.
        let Some(open) = self.volume.now() else {
            return;
        };
        let maintenance = Arc::clone(&open.maintenance);
        drop(open);
        let mut seen = Seen::of(&maintenance, self.changes.known());
        seen.is_paused = self.volume.is_paused();
        // The record of a scrub that ended is in the index.
        if maintenance.scrubber().is_running() || self.is_time_to_measure() {
            self.scrub = maintenance.scrubber().scrub_status().ok();
        }
        seen.scrub.clone_from(&self.scrub);
        let transactions = Arc::clone(maintenance.transactions());
        if !transactions.members().membership().is_failed() {
            seen.space = self.measure(&maintenance);
            seen.redundancy = self.count(&maintenance, &seen);
        }
        // This walks all segments.
        if seen.space.is_some() || self.changes.is_other_code(&seen.code) {
            seen.has_other_codes = Some(maintenance.rebuild().has_other_codes());
        }
        drop((maintenance, transactions));
        let events = self.volume.events();
        if let Some(space) = &seen.space {
            events.set_full(space.full.clone());
        }
        for (member, kind) in self.changes.see(&seen, Instant::now()) {
            events.record(member, kind);
        }
    }

    fn is_time_to_measure(&self) -> bool {
        self.measured
            .is_none_or(|at| at.elapsed() >= SPACE_INTERVAL)
    }

    /// Measures the space if it is time.
    fn measure(&mut self, maintenance: &Maintenance) -> Option<SpaceSeen> {
        if !self.is_time_to_measure() {
            return None;
        }
        self.measured = Some(Instant::now());
        let transactions = maintenance.transactions();
        let space = transactions.space();
        Some(SpaceSeen {
            bytes_free: space.usable_free,
            bytes_usable: space.usable_total,
            full: transactions.full_members(),
        })
    }

    /// Counts the redundancy if something happened that may have changed it.
    fn count(&mut self, maintenance: &Maintenance, seen: &Seen) -> Option<RedundancySeen> {
        let now = Instant::now();
        if now < self.began + FIRST_COUNT_AFTER {
            return None;
        }
        let reasons = CountReasons::of(maintenance, seen);
        if let Some((at, before)) = &self.counted {
            let is_expected =
                seen.rebuild.state == RebuildState::Running || self.changes.is_reduced();
            let pause = match (reasons != *before, is_expected) {
                (true, _) => COUNT_INTERVAL,
                (false, true) => RECOUNT_INTERVAL,
                (false, false) => return None,
            };
            if now < *at + pause {
                return None;
            }
        }
        self.counted = Some((now, reasons));
        let counted = maintenance.redundancy().redundancy();
        let counted = counted.map_err(|error| tracing::debug!("no count for events: {error}"));
        let counted = counted.ok()?;
        let promised = maintenance.transactions().members().shape().survival();
        let losses_promised = i64::try_from(promised.guaranteed()).unwrap_or(i64::MAX);
        let mut found = RedundancySeen {
            losses_tolerated: losses_promised,
            losses_promised,
            ..RedundancySeen::default()
        };
        for row in counted.rows.iter().filter(|row| row.stripes > 0) {
            let losses = i64::from(row.losses_tolerated);
            // Stripes that are brought to more parity have lost nothing.
            if row.reduced() > 0 {
                found.losses_tolerated = found.losses_tolerated.min(losses);
                found.stripes += row.reduced();
                found.bytes += row.bytes;
            }
        }
        if !counted.unrecoverable.is_empty() {
            let lost = maintenance.redundancy().lost_bytes_in(&counted);
            found.lost_bytes = lost.unwrap_or_default();
            let fs = self.volume.now()?.fs;
            found.lost_files = lost_files(&fs, maintenance, &counted)?;
        }
        Some(found)
    }
}

/// Returns the paths of files that hold lost ranges, or none if that cannot be found out now.
fn lost_files(
    fs: &Fs,
    maintenance: &Maintenance,
    counted: &crate::maintenance::Redundancy,
) -> Option<BTreeSet<String>> {
    // The next count tries again.
    let listed = files_in(fs, maintenance.redundancy(), counted).ok()?;
    Some(listed.paths?.into_iter().collect())
}
