//! The differences between two looks at a volume, as events.
//!
//! Nothing here asks a member or a clock, so tests can have any state follow any other at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::seen::{CodeSeen, MemberSeen, RedundancySeen, Seen, SpaceSeen};
use crate::format::MemberIndex;
use crate::format::event::{Event, EventKind, EventMember, FirstNames};
use crate::fs::{InterlockChange, RefusedRemovals};
use crate::maintenance::{RebuildKind, RebuildProgress, RebuildState, ScrubState, ScrubStatus};
use crate::membership::{ErrorCounts, MemberState};

/// The least time between two events about errors of one member.
const ERROR_INTERVAL: Duration = Duration::from_secs(60);

/// The time for which a member has to be slow, or in time again, before an event tells so.
const SLOW_AFTER: Duration = Duration::from_secs(2);
const RESPONSIVE_AFTER: Duration = Duration::from_secs(30);

/// The time without progress after which a job is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The time after the loss of ranges in which further losses wait, so that those of one outage are told together. Losses in
/// more than twice as many files do not wait.
const LOSS_PAUSE: Duration = Duration::from_secs(60);

/// The part of the room, in percent, below which it is low, and above which it is not low any more.
const LOW_PERCENT: u64 = 5;
const RECOVERED_PERCENT: u64 = 7;

/// An event that is to be recorded.
pub(super) type Noted = (Option<EventMember>, EventKind);

/// Comparison of each look at a volume with the looks before.
#[derive(Debug, Default)]
pub(super) struct Changes {
    members: BTreeMap<MemberIndex, MemberKept>,
    has_failed: bool,
    rebuild: JobKept<RebuildProgress>,
    rebuild_failure: Option<String>,
    /// The bytes that a rebuild left because they have no room, or cannot be read.
    left_by_rebuild: (u64, u64),
    scrub: JobKept<Option<ScrubStatus>>,
    code: Option<CodeSeen>,
    is_code_changing: bool,
    code_progress: Option<Progress>,
    full: BTreeSet<MemberIndex>,
    is_space_low: bool,
    redundancy: Option<RedundancySeen>,
    named: BTreeSet<String>,
    lost_files: usize,
    /// When ranges were last told to be lost. None since all could be read.
    told_lost: Option<Instant>,
    /// The losses since that wait.
    untold_loss: Option<EventKind>,
    /// The conditions that the daemon before left.
    left: LeftBehind,
}

/// The conditions that the log of events tells of when a daemon starts, beyond those of [`Changes`].
#[derive(Debug, Default)]
struct LeftBehind {
    is_reduced: bool,
    /// The members that were away, and since when, in milliseconds since 1970.
    away: BTreeMap<MemberIndex, i64>,
}

/// A member, and what events told of it.
#[derive(Debug)]
struct MemberKept {
    seen: MemberSeen,
    away_since: Option<Instant>,
    /// The errors that events told of, and when the last one did.
    told: ErrorCounts,
    told_at: Option<Instant>,
    /// The time since which it is as it is.
    slowness_since: Instant,
    /// The time since which events call it slow.
    slow_since: Option<Instant>,
    /// When it was first seen.
    first_at: Instant,
}

/// The last position of a job, and since when it is there.
#[derive(Clone, Copy, Debug)]
struct Progress {
    position: u64,
    since: Instant,
    is_told: bool,
}

impl Progress {
    /// Notes a position. Returns for how long the job has been there, once that is too long.
    fn see(kept: &mut Option<Self>, position: u64, now: Instant) -> Option<Duration> {
        let progress = kept.get_or_insert(Self {
            position,
            since: now,
            is_told: false,
        });
        if progress.position != position {
            *progress = Self {
                position,
                since: now,
                is_told: false,
            };
        }
        let passed = now.saturating_duration_since(progress.since);
        if passed < STUCK_AFTER || progress.is_told {
            return None;
        }
        progress.is_told = true;
        Some(passed)
    }
}

/// A job as it was last.
#[derive(Debug, Default)]
struct JobKept<T> {
    /// Nothing before the first look.
    seen: Option<T>,
    /// True if an event told that it began, and none that it ended.
    is_told: bool,
    progress: Option<Progress>,
}

impl Changes {
    /// Returns the indexes of the members that were there at the last look.
    pub(super) fn known(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        self.members.keys().copied()
    }

    /// Returns whether the code of new stripes was another one at the last look.
    pub(super) fn is_other_code(&self, code: &CodeSeen) -> bool {
        self.code.as_ref() != Some(code)
    }

    /// Returns whether a count found less redundancy than promised, or lost ranges.
    pub(super) fn is_reduced(&self) -> bool {
        let counted = self.redundancy.as_ref();
        counted.is_some_and(|counted| counted.losses_tolerated < counted.losses_promised)
            || self.lost_files > 0
    }

    /// Takes over the conditions that events of earlier daemons told of, and none that ended. So the end of each is told, also
    /// if it came while there was no daemon.
    pub(super) fn remember(&mut self, events: &[Event]) {
        for event in events {
            let member = event.member.as_ref().map(|member| member.index);
            match (&event.kind, member) {
                (
                    EventKind::MemberMissing { .. } | EventKind::MemberFaulted { .. },
                    Some(member),
                ) => {
                    self.left.away.entry(member).or_insert(event.time_ms);
                }
                (EventKind::MemberBack { .. }, Some(member)) => {
                    self.left.away.remove(&member);
                }
                (
                    EventKind::MemberReplaced { .. } | EventKind::MemberRemoved { .. },
                    Some(member),
                ) => {
                    self.left.away.remove(&member);
                    self.full.remove(&member);
                }
                (EventKind::MemberFull { .. }, Some(member)) => {
                    self.full.insert(member);
                }
                (EventKind::MemberHasRoom { .. }, Some(member)) => {
                    self.full.remove(&member);
                }
                (EventKind::SpaceLow { .. }, _) => self.is_space_low = true,
                (EventKind::SpaceRecovered { .. }, _) => self.is_space_low = false,
                (EventKind::RedundancyReduced { .. }, _) => self.left.is_reduced = true,
                (EventKind::RedundancyRestored { .. }, _) => self.left.is_reduced = false,
                (EventKind::RangesLost { files, .. }, _) => {
                    self.lost_files = usize::try_from(*files).unwrap_or(usize::MAX);
                }
                (EventKind::RangesRecovered { .. }, _) => self.lost_files = 0,
                _ => {}
            }
        }
    }

    /// Returns the members that were away when the daemon before ended, and are online, with the time for which they were
    /// away. They are told of once.
    pub(super) fn returned(&mut self, seen: &Seen, now_ms: i64) -> Vec<Noted> {
        let away = std::mem::take(&mut self.left.away).into_iter();
        let returned = away.filter_map(|(index, since_ms)| {
            let member = seen.members.get(&index)?;
            let seconds_away = u64::try_from((now_ms - since_ms) / 1000).unwrap_or_default();
            let kind = EventKind::MemberBack { seconds_away };
            (member.state == MemberState::Online).then(|| (Some(member.subject(index)), kind))
        });
        returned.collect()
    }

    /// Compares a look with those before. Before the first one, all members count as online, and no job as running.
    pub(super) fn see(&mut self, seen: &Seen, now: Instant) -> Vec<Noted> {
        let mut noted = Vec::new();
        self.see_code(seen, now, &mut noted);
        self.see_members(seen, now, &mut noted);
        if seen.has_failed != self.has_failed {
            self.has_failed = seen.has_failed;
            let (online, needed) = (seen.online(), seen.code.data);
            noted.push((
                None,
                if seen.has_failed {
                    EventKind::ReadOnly { online, needed }
                } else {
                    EventKind::Writable { online }
                },
            ));
        }
        self.see_rebuild(&seen.rebuild, seen.is_paused, now, &mut noted);
        if self.rebuild_failure != seen.rebuild_failure {
            self.rebuild_failure.clone_from(&seen.rebuild_failure);
            let reason = seen.rebuild_failure.clone();
            let failed = reason.map(|reason| (None, EventKind::RebuildFailed { reason }));
            noted.extend(failed);
        }
        if let Some(scrub) = &seen.scrub {
            self.see_scrub(scrub, seen.is_paused, now, &mut noted);
        }
        self.see_space(seen, &mut noted);
        if let Some(counted) = &seen.redundancy {
            self.see_redundancy(counted, now, &mut noted);
        }
        noted
    }

    /// Returns the events about errors and losses that no event told of yet. The watch ends.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Noted> {
        let mut noted = Vec::new();
        for (index, kept) in &mut self.members {
            kept.tell_errors(*index, now, Duration::ZERO, &mut noted);
        }
        noted.extend(self.untold_loss.take().map(|lost| (None, lost)));
        noted
    }

    fn see_members(&mut self, seen: &Seen, now: Instant, noted: &mut Vec<Noted>) {
        let is_first = self.members.is_empty();
        let gone: Vec<MemberIndex> = self
            .known()
            .filter(|it| !seen.members.contains_key(it))
            .collect();
        for (&index, member) in &seen.members {
            let subject = || Some(member.subject(index));
            let members = seen.count();
            let Some(kept) = self.members.get_mut(&index) else {
                if !is_first {
                    noted.push((subject(), EventKind::MemberAdded { members }));
                }
                let mut kept = MemberKept::new(member, now);
                kept.see(index, member, members, now, noted);
                self.members.insert(index, kept);
                continue;
            };
            if kept.seen.id != member.id {
                let old = Some(kept.seen.subject(index));
                noted.push((old, EventKind::MemberReplaced { by: index.0 }));
                *kept = MemberKept::new(member, now);
            }
            kept.see(index, member, members, now, noted);
        }
        for index in gone {
            let Some(mut kept) = self.members.remove(&index) else {
                continue;
            };
            kept.tell_errors(index, now, Duration::ZERO, noted);
            self.full.remove(&index);
            let members = seen.count();
            let kind = match seen.heirs.get(&index) {
                Some(heir) if *heir != index => EventKind::MemberReplaced { by: heir.0 },
                _ => EventKind::MemberRemoved { members },
            };
            noted.push((Some(kept.seen.subject(index)), kind));
        }
    }

    fn see_space(&mut self, seen: &Seen, noted: &mut Vec<Noted>) {
        let Some(space) = &seen.space else {
            return;
        };
        let subject = |index: &MemberIndex| Some(seen.members.get(index)?.subject(*index));
        let full = u16::try_from(space.full.len()).unwrap_or(u16::MAX);
        for index in space.full.difference(&self.full) {
            noted.push((subject(index), EventKind::MemberFull { full }));
        }
        for index in self.full.difference(&space.full) {
            // A member that is away has no room either, and is no longer counted.
            let is_online = |member: &MemberSeen| member.state == MemberState::Online;
            if seen.members.get(index).is_some_and(is_online) {
                noted.push((subject(index), EventKind::MemberHasRoom { full }));
            }
        }
        self.full.clone_from(&space.full);
        let &SpaceSeen {
            bytes_free,
            bytes_usable,
            ..
        } = space;
        let is_below = |percent: u64| bytes_free < bytes_usable / 100 * percent;
        if bytes_usable == 0 {
            return;
        }
        if !self.is_space_low && is_below(LOW_PERCENT) {
            self.is_space_low = true;
            noted.push((
                None,
                EventKind::SpaceLow {
                    bytes_free,
                    bytes_usable,
                },
            ));
        } else if self.is_space_low && !is_below(RECOVERED_PERCENT) {
            self.is_space_low = false;
            noted.push((
                None,
                EventKind::SpaceRecovered {
                    bytes_free,
                    bytes_usable,
                },
            ));
        }
    }

    fn see_redundancy(&mut self, counted: &RedundancySeen, now: Instant, noted: &mut Vec<Noted>) {
        let &RedundancySeen {
            losses_tolerated,
            losses_promised,
            stripes,
            bytes,
            ..
        } = counted;
        let promised_before = |it: &RedundancySeen| it.losses_tolerated >= it.losses_promised;
        let before = self.redundancy.as_ref();
        let was_whole = before.map_or(!self.left.is_reduced, promised_before);
        let is_worse = before.is_some_and(|it| losses_tolerated < it.losses_tolerated);
        if losses_tolerated < losses_promised {
            if was_whole || is_worse || before.is_none() {
                noted.push((
                    None,
                    EventKind::RedundancyReduced {
                        losses_tolerated,
                        losses_promised,
                        stripes,
                        bytes,
                    },
                ));
            }
        } else if !was_whole {
            noted.push((None, EventKind::RedundancyRestored { losses_tolerated }));
        }
        self.see_lost(counted, now, noted);
        self.redundancy = Some(counted.clone());
    }

    /// Tells of ranges that are lost, in one event for all files. Further ones are told a while later, together, or when the
    /// watch ends.
    fn see_lost(&mut self, counted: &RedundancySeen, now: Instant, noted: &mut Vec<Noted>) {
        let files = counted.lost_files.len();
        let mut new = counted.lost_files.difference(&self.named).peekable();
        if new.peek().is_some() || files > self.lost_files {
            let first_files = new.take(FirstNames::MOST).cloned().collect();
            let lost = EventKind::RangesLost {
                files: files as u64,
                bytes: counted.lost_bytes,
                first_files: FirstNames(first_files),
            };
            let is_soon = self.told_lost.is_some_and(|told| now < told + LOSS_PAUSE);
            if is_soon && files <= self.lost_files.saturating_mul(2) {
                self.untold_loss = Some(lost);
                return;
            }
            self.told_lost = Some(now);
            noted.push((None, lost));
        } else if files == 0 && self.lost_files > 0 {
            let files = self.lost_files as u64;
            noted.push((None, EventKind::RangesRecovered { files }));
        }
        if files == 0 {
            self.told_lost = None;
        }
        self.untold_loss = None;
        self.lost_files = files;
        self.named.clone_from(&counted.lost_files);
    }

    fn see_rebuild(
        &mut self,
        progress: &RebuildProgress,
        is_paused: bool,
        now: Instant,
        noted: &mut Vec<Noted>,
    ) {
        let before = self.rebuild.seen.replace(*progress).unwrap_or_default();
        let is_running = progress.state == RebuildState::Running;
        let has_work = progress.bytes_done > 0 || progress.leaves_something();
        // A short one may begin and end between two looks.
        let has_ended = !is_running && *progress != before && progress.state != RebuildState::Idle;
        let is_new = before.state != RebuildState::Running && progress.bytes_done > 0;
        if has_work && !self.rebuild.is_told && (is_running || has_ended && is_new) {
            self.rebuild.is_told = true;
            let bytes_left = progress.bytes_left + progress.bytes_done;
            noted.push((
                None,
                match progress.kind {
                    RebuildKind::Rebuild => EventKind::RebuildStarted { bytes_left },
                    RebuildKind::Balance => EventKind::BalanceStarted { bytes_left },
                },
            ));
        }
        if has_ended && self.rebuild.is_told {
            self.rebuild.is_told = false;
            self.rebuild.progress = None;
            noted.push((None, end_of_rebuild(progress)));
        }
        if is_running && !is_paused {
            if let Some(passed) =
                Progress::see(&mut self.rebuild.progress, progress.bytes_done, now)
                && has_work
            {
                noted.push((None, stuck(progress, passed.as_secs())));
            }
        } else {
            self.rebuild.progress = None;
        }
        let left = (progress.bytes_waiting, progress.bytes_unreadable);
        if !is_running && left != self.left_by_rebuild {
            self.left_by_rebuild = left;
            if left != (0, 0) {
                noted.push((None, stuck(progress, 0)));
            }
        }
    }

    fn see_scrub(
        &mut self,
        status: &ScrubStatus,
        is_paused: bool,
        now: Instant,
        noted: &mut Vec<Noted>,
    ) {
        let before = self.scrub.seen.replace(Some(*status)).flatten();
        let is_running = status.state == ScrubState::Running;
        let percent = percent(status.progress);
        let was_running = self.scrub.is_told;
        let has_gone_through = before.is_some_and(|before| status.is_through_since(&before));
        if !was_running && (is_running || has_gone_through) {
            let percent = if is_running { percent } else { 0 };
            noted.push((None, EventKind::ScrubStarted { percent }));
        }
        if !is_running && (was_running || has_gone_through) {
            noted.push((
                None,
                if status.state == ScrubState::Finished {
                    let record = status.record;
                    EventKind::ScrubFinished {
                        bytes: record.bytes,
                        repaired: record.repaired,
                        wrong: record.wrong,
                        bytes_lost: record.lost,
                    }
                } else {
                    EventKind::ScrubStopped { percent }
                },
            ));
        }
        self.scrub.is_told = is_running;
        if !is_running || is_paused {
            self.scrub.progress = None;
        } else if let Some(passed) =
            Progress::see(&mut self.scrub.progress, status.record.bytes, now)
        {
            let seconds = passed.as_secs();
            noted.push((None, EventKind::ScrubStuck { percent, seconds }));
        }
    }

    fn see_code(&mut self, seen: &Seen, now: Instant, noted: &mut Vec<Noted>) {
        let CodeSeen {
            data, parity, code, ..
        } = seen.code.clone();
        let is_other = self.code.as_ref().is_some_and(|it| *it != seen.code);
        let is_first = self.code.is_none();
        if is_other || is_first && seen.has_other_codes == Some(true) {
            noted.push((
                None,
                EventKind::CodeChangeStarted {
                    data,
                    parity,
                    code: code.clone(),
                },
            ));
            self.is_code_changing = true;
            self.code_progress = None;
        }
        self.code = Some(seen.code.clone());
        if !self.is_code_changing {
            return;
        }
        if seen.has_other_codes == Some(false) {
            self.is_code_changing = false;
            noted.push((None, EventKind::CodeChangeFinished { data, parity, code }));
        } else if seen.is_paused {
            self.code_progress = None;
        } else {
            let position = seen.rebuild.bytes_done + seen.rebuild.bytes_before;
            if let Some(passed) = Progress::see(&mut self.code_progress, position, now) {
                let seconds = passed.as_secs();
                noted.push((None, EventKind::CodeChangeStuck { seconds }));
            }
        }
    }
}

impl MemberKept {
    fn new(member: &MemberSeen, now: Instant) -> Self {
        Self {
            seen: MemberSeen {
                state: MemberState::Online,
                is_draining: false,
                is_slow: false,
                errors: ErrorCounts::default(),
                ..member.clone()
            },
            away_since: None,
            told: ErrorCounts::default(),
            told_at: None,
            slowness_since: now,
            slow_since: None,
            first_at: now,
        }
    }

    fn see(
        &mut self,
        index: MemberIndex,
        member: &MemberSeen,
        members: u16,
        now: Instant,
        noted: &mut Vec<Noted>,
    ) {
        let before = std::mem::replace(&mut self.seen, member.clone());
        if fell(&before.errors, &member.errors) {
            // It came back, and is counted from nothing.
            self.told = ErrorCounts::default();
        }
        self.tell_errors(index, now, ERROR_INTERVAL, noted);
        let mut note = |kind| noted.push((Some(member.subject(index)), kind));
        if before.state != member.state {
            let reason = member.reason.clone();
            match member.state {
                MemberState::Missing => note(EventKind::MemberMissing { reason }),
                MemberState::Faulted => note(EventKind::MemberFaulted { reason }),
                MemberState::Online => {
                    let since = self.away_since.take().unwrap_or(now);
                    let seconds_away = now.saturating_duration_since(since).as_secs();
                    note(EventKind::MemberBack { seconds_away });
                }
            }
            if member.state != MemberState::Online {
                self.away_since.get_or_insert(now);
                self.slow_since = None;
            }
        }
        if member.is_draining && !before.is_draining {
            note(EventKind::MemberDraining { members });
        }
        if before.is_slow != member.is_slow {
            self.slowness_since = now;
        }
        let lasts = now.saturating_duration_since(self.slowness_since);
        match self.slow_since {
            None if member.is_slow && lasts >= SLOW_AFTER => {
                self.slow_since = Some(self.slowness_since);
                let seconds = lasts.as_secs();
                note(EventKind::MemberSlow { seconds });
            }
            Some(since) if !member.is_slow && lasts >= RESPONSIVE_AFTER => {
                self.slow_since = None;
                let slow = self.slowness_since.saturating_duration_since(since);
                let seconds = slow.as_secs();
                note(EventKind::MemberResponsive { seconds });
            }
            _ => {}
        }
    }

    /// Tells of new errors, unless the last event that did is younger than `interval`.
    fn tell_errors(
        &mut self,
        index: MemberIndex,
        now: Instant,
        interval: Duration,
        noted: &mut Vec<Noted>,
    ) {
        let errors = self.seen.errors;
        let passed = |at: Instant| now.saturating_duration_since(at);
        if errors == self.told || self.told_at.is_some_and(|at| passed(at) < interval) {
            return;
        }
        let seconds = passed(self.told_at.unwrap_or(self.first_at)).as_secs();
        let told = std::mem::replace(&mut self.told, errors);
        self.told_at = Some(now);
        let subject = self.seen.subject(index);
        let checksum = errors.checksum.saturating_sub(told.checksum);
        if checksum > 0 {
            let kind = EventKind::ChecksumErrors {
                errors: checksum,
                seconds,
            };
            noted.push((Some(subject.clone()), kind));
        }
        let read = errors.read.saturating_sub(told.read);
        let write = errors.write.saturating_sub(told.write);
        if read > 0 || write > 0 {
            let kind = EventKind::IoErrors {
                read,
                write,
                seconds,
            };
            noted.push((Some(subject), kind));
        }
    }
}

/// Returns the event that tells of a change of the interlock.
pub(super) fn told(change: InterlockChange) -> EventKind {
    match change {
        InterlockChange::Refused {
            removals: RefusedRemovals { removed, files },
            percent,
        } => EventKind::RemovalsRefused {
            removed,
            files,
            percent: percent.into(),
        },
        InterlockChange::Allowed { refused_for } => EventKind::RemovalsAllowed {
            seconds: refused_for.as_secs(),
        },
    }
}

/// Returns whether a count of errors began again.
fn fell(before: &ErrorCounts, now: &ErrorCounts) -> bool {
    now.read < before.read || now.write < before.write || now.checksum < before.checksum
}

fn end_of_rebuild(progress: &RebuildProgress) -> EventKind {
    let (bytes, bytes_left) = (progress.bytes_done, progress.bytes_left);
    let seconds = progress.elapsed.as_secs();
    match (progress.kind, progress.state) {
        (RebuildKind::Rebuild, RebuildState::Finished) => {
            EventKind::RebuildFinished { bytes, seconds }
        }
        (RebuildKind::Rebuild, _) => EventKind::RebuildStopped { bytes, bytes_left },
        (RebuildKind::Balance, RebuildState::Finished) => {
            EventKind::BalanceFinished { bytes, seconds }
        }
        (RebuildKind::Balance, _) => EventKind::BalanceStopped { bytes, bytes_left },
    }
}

fn stuck(progress: &RebuildProgress, seconds: u64) -> EventKind {
    EventKind::RebuildStuck {
        bytes_waiting: progress.bytes_waiting,
        bytes_unreadable: progress.bytes_unreadable,
        seconds,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of 1 is at most 100 percent"
)]
fn percent(part: f64) -> u16 {
    (part.clamp(0.0, 1.0) * 100.0) as u16
}

#[cfg(test)]
mod tests;
