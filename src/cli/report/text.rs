//! The text of `status` for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use jiff::tz::TimeZone;

use super::super::size::{format_count, format_size};
use super::super::terminal::{Escaped, join_lines};
use super::codes::{code_and_unit, other_codes, rewriting};
use super::{LACKS_COPIES, LACKS_SHARDS};
use crate::cli::failure::Outcome;
use crate::cli::sentences::event::local_time;
use crate::cli::sentences::mountpoint_word;
use crate::control::report::{
    AlertsReport, AlertsState, CodedReport, CodingReport, IndexReport, InterlockReport,
    MemberState, PageCacheReport, RebuildReport, RedundancyReport, ScrubReport, StatusReport,
    SurvivalReport, UncountedReport, VolumeState,
};
use crate::fuse::Transport;
use crate::maintenance::{RebuildKind, RebuildState, ScrubState};

impl StatusReport {
    /// Returns how a command that shows this report ends. While too few directories are there to read anything, no data is
    /// lost: it is where the others are.
    pub(in crate::cli) fn outcome(&self) -> Outcome {
        match self.state {
            VolumeState::Healthy => Outcome::Done,
            VolumeState::Degraded => Outcome::Degraded,
            VolumeState::Failed if self.present().count() < self.geometry.data => Outcome::Degraded,
            VolumeState::Failed => Outcome::Lost,
        }
    }

    /// Writes it for people: state first, then members, then what to do next. `mountpoint` is where the volume is
    /// mounted.
    pub(in crate::cli) fn for_people(&self, mountpoint: Option<&Path>) -> String {
        let mut text = String::new();
        let name = if self.label.is_empty() {
            &self.volume
        } else {
            &self.label
        };
        push(&mut text, format_args!("{name}: {}", self.headline()));
        push(
            &mut text,
            format_args!(
                "volume {}, {}, engine {}, {}",
                self.volume,
                code_and_unit(&self.geometry),
                self.engine,
                match (self.mounted, self.transport) {
                    (false, _) => "not mounted",
                    (true, None) => "mounted",
                    (true, Some(Transport::Uring)) => "mounted over io_uring",
                    (true, Some(Transport::Classic)) => "mounted over /dev/fuse",
                },
            ),
        );
        if let Some(codes) = other_codes(self) {
            push(&mut text, format_args!("{codes}"));
        }
        for rewriting in rewriting(self) {
            push(&mut text, format_args!("{rewriting}"));
        }
        if let Some(survives) = self.geometry.survives {
            push(&mut text, format_args!("whole stripes survive {survives}"));
        }
        push(
            &mut text,
            format_args!(
                "{} of {} used",
                size_or_unknown(self.capacity.bytes_used),
                size_or_unknown(self.capacity.bytes_usable),
            ),
        );
        if let Some(words) = self.coding.as_ref().and_then(CodingReport::in_words) {
            for line in words.lines() {
                push(&mut text, format_args!("{line}"));
            }
        }
        if let Some(words) = self.elsewhere_in_words() {
            push(&mut text, format_args!("{words}"));
        }
        if self.paused {
            let place = mountpoint_word(mountpoint);
            push(
                &mut text,
                format_args!(
                    "background work is paused; `cauchyfs resume {place}` goes on with it"
                ),
            );
        }
        if let Some(words) = self.interlock_in_words(mountpoint) {
            push(&mut text, format_args!("{words}"));
        }
        if let Some(alerts) = &self.alerts {
            push_alerts(&mut text, alerts, mountpoint);
        }
        text.push('\n');
        self.push_members(&mut text);
        self.push_redundancy(&mut text);
        text.push('\n');
        push(
            &mut text,
            format_args!("next: {}", self.next_step(mountpoint)),
        );
        text
    }

    /// Says in one line how the volume is.
    pub(in crate::cli) fn headline(&self) -> String {
        let gone = self.absentees().count();
        let members = self.members.len();
        match self.state {
            VolumeState::Healthy => "healthy".to_owned(),
            VolumeState::Degraded if self.has_stopped() => {
                "degraded, and nothing can be written since a failure".to_owned()
            }
            VolumeState::Degraded if gone == 0 => format!("degraded, {}", self.shortage()),
            VolumeState::Degraded => format!("degraded, {gone} of {members} members are away"),
            VolumeState::Failed if gone == 0 && self.redundancy.is_none() => {
                "failed, its records cannot be read".to_owned()
            }
            VolumeState::Failed if gone == 0 => "failed, some data is lost".to_owned(),
            VolumeState::Failed => format!("failed, {gone} of {members} members are away"),
        }
    }

    /// Says what a volume lacks that is degraded although all members are there.
    fn shortage(&self) -> &'static str {
        if self.redundancy.is_none() {
            "its redundancy cannot be counted"
        } else if self.index.as_ref().is_some_and(IndexReport::is_short) {
            LACKS_COPIES
        } else {
            LACKS_SHARDS
        }
    }

    /// Says in words whether others have gone on; nothing if all is known to be well.
    fn elsewhere_in_words(&self) -> Option<String> {
        let elsewhere = self.elsewhere.as_ref()?;
        let paths = elsewhere.paths.join(", ");
        match elsewhere.went_on {
            Some(true) if self.is_parted() => Some(format!(
                "what is at {paths} was written to without these, and these without it: they were mounted apart"
            )),
            Some(true) => Some(format!(
                "these are stale: what is at {paths} was written to since, without them"
            )),
            Some(false) => None,
            None if paths.is_empty() => Some(
                "it is unknown whether members that are not here were written to since without these, and where they are"
                    .to_owned(),
            ),
            None => Some(format!(
                "it is unknown whether what was at {paths} was written to since without these: not all of it is there"
            )),
        }
    }

    fn push_members(&self, text: &mut String) {
        push(
            text,
            format_args!("member  state      used        free        errors  directory"),
        );
        for member in &self.members {
            let errors = member.errors.total();
            let reason = match &member.reason {
                Some(reason) => format!("  ({reason})"),
                None if member.full => "  (no room for new data)".to_owned(),
                None => String::new(),
            };
            push(
                text,
                format_args!(
                    "{:<7} {:<10} {:<11} {:<11} {errors:<7} {}{reason}",
                    member.index,
                    member.state.word(),
                    size_or_unknown(member.bytes_used),
                    size_or_unknown(member.bytes_free),
                    member.path.as_deref().unwrap_or("(unknown)"),
                ),
            );
        }
        for line in self.page_cache_in_words() {
            push(text, format_args!("{line}"));
        }
    }

    /// Says which way I/O on segments takes, in a line for each way.
    fn page_cache_in_words(&self) -> Vec<String> {
        let ways = [
            (PageCacheReport::Bypassed, "bypasses the page cache"),
            (
                PageCacheReport::Used,
                "goes through the page cache: the filesystem takes no O_DIRECT",
            ),
            (PageCacheReport::Whole, "goes to memory"),
        ];
        let known = self.members.iter().filter(|it| it.page_cache.is_some());
        let known = known.count();
        let in_words = |(way, words): (PageCacheReport, &str)| {
            let members = self.members.iter();
            let members = members.filter(|member| member.page_cache == Some(way));
            let members: Vec<String> = members.map(|member| member.index.to_string()).collect();
            match members.len() {
                0 => None,
                all if all == known => Some(format!("I/O on segments {words}")),
                _ => Some(format!(
                    "I/O on segments of members {} {words}",
                    members.join(", ")
                )),
            }
        };
        ways.into_iter().filter_map(in_words).collect()
    }

    /// Says that the interlock refuses to remove files, and what to do, if it does.
    fn interlock_in_words(&self, mountpoint: Option<&Path>) -> Option<String> {
        let interlock = self.interlock.as_ref().filter(|it| it.refuses)?;
        let InterlockReport {
            removed,
            files,
            percent,
            ..
        } = interlock;
        let place = mountpoint_word(mountpoint);
        Some(format!(
            "files are not removed any more: {removed} of {files} were within an hour, and the interlock lets {percent} % \
             go; if they were to go, `cauchyfs resume {place}`"
        ))
    }

    /// Says what survives what.
    pub(in crate::cli) fn redundancy_lines(&self) -> Vec<String> {
        let mut text = String::new();
        self.push_rows(&mut text);
        if self.index.as_ref().is_some_and(IndexReport::is_short) {
            self.push_index(&mut text);
        }
        text.lines().map(str::to_owned).collect()
    }

    /// Qualifies the redundancy: shared devices, values that were not counted, and copies of the index.
    pub(in crate::cli) fn redundancy_notes(&self) -> Vec<String> {
        let mut text = String::new();
        self.push_shared_devices(&mut text);
        self.push_uncounted(&mut text);
        self.push_index(&mut text);
        text.lines().map(str::to_owned).collect()
    }

    /// Says which background work is under way, or was last.
    pub(in crate::cli) fn work_lines(&self) -> [Vec<String>; 2] {
        let (mut rebuild, mut scrub) = (String::new(), String::new());
        self.push_rebuild(&mut rebuild);
        self.push_scrub(&mut scrub);
        [rebuild, scrub].map(|text| text.lines().map(str::to_owned).collect())
    }

    fn push_rebuild(&self, text: &mut String) {
        let RebuildReport {
            state,
            kind,
            progress,
            bytes_left,
            bytes_done,
            bytes_waiting,
            bytes_unreadable,
            bytes_per_second,
            awaits_balance,
            failure,
            ..
        } = &self.rebuild;
        if *state == RebuildState::Running {
            let (percent, left) = ((100.0 * progress).floor(), format_size(*bytes_left));
            let what = match kind {
                RebuildKind::Rebuild => "rebuilding",
                RebuildKind::Balance => "balancing",
            };
            // Each part of the work is counted when it begins.
            let done = format_size(*bytes_done);
            let limit = limit_in_words(*bytes_per_second);
            match bytes_left {
                0 => push(
                    text,
                    format_args!("{what}: {done} done, and what is left is being counted{limit}"),
                ),
                _ => push(
                    text,
                    format_args!("{what}: {percent:.0}% done, {left} left{limit}"),
                ),
            }
        }
        let is_balancing = *state == RebuildState::Running && *kind == RebuildKind::Balance;
        if *awaits_balance && !is_balancing {
            push(
                text,
                format_args!("data is yet to be moved to emptier members"),
            );
        }
        if let Some(failure) = failure {
            push(
                text,
                format_args!("a rebuild failed, and is tried again: {failure}"),
            );
        }
        if *bytes_waiting > 0 {
            let waiting = format_size(*bytes_waiting);
            push(
                text,
                format_args!("{waiting} of shards wait for another directory to go to"),
            );
        }
        if *bytes_unreadable > 0 {
            let unreadable = format_size(*bytes_unreadable);
            push(
                text,
                format_args!("{unreadable} of shards wait for others that cannot be read"),
            );
        }
    }

    fn push_redundancy(&self, text: &mut String) {
        text.push('\n');
        self.push_rows(text);
        self.push_shared_devices(text);
        match self.redundancy.as_deref() {
            Some([]) if self.mounted => push(
                text,
                format_args!(
                    "no stripes on the members: what is written gets there within five seconds"
                ),
            ),
            Some([]) => push(text, format_args!("no stripes")),
            Some(_) | None => {}
        }
        self.push_uncounted(text);
        self.push_rebuild(text);
        self.push_index(text);
        self.push_scrub(text);
        for line in self.lost.lines() {
            push(text, format_args!("{line}"));
        }
    }

    /// Says what was not counted, in a line for each reason. The rows of members have their own.
    fn push_uncounted(&self, text: &mut String) {
        let fields = self.uncounted.iter();
        let fields = fields.filter(|it| !it.field.starts_with("members."));
        let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for UncountedReport { field, reason } in fields {
            let field = field.replace('_', " ");
            by_reason.entry(reason).or_default().push(field);
        }
        for (reason, fields) in by_reason {
            let fields = fields.join(", ");
            push(text, format_args!("not counted: {fields}: {reason}"));
        }
    }

    fn push_index(&self, text: &mut String) {
        if let Some(index) = &self.index {
            let members: Vec<_> = index.members.iter().map(ToString::to_string).collect();
            let (count, wanted) = (members.len(), index.copies_wanted);
            let place = match count {
                0 => String::new(),
                1 => format!(", on member {}", members[0]),
                _ => format!(", on members {}", members.join(", ")),
            };
            push(
                text,
                format_args!("the index has {count} of {wanted} copies{place}"),
            );
        }
    }

    fn push_rows(&self, text: &mut String) {
        for row in self.rows() {
            push(text, format_args!("{row}"));
        }
    }

    /// Qualifies what the rows say: they count members, and a device may hold several.
    fn push_shared_devices(&self, text: &mut String) {
        if self.rows().iter().all(|row| row.losses_tolerated < 1) {
            return;
        }
        for members in &self.shared_devices {
            let numbers: Vec<String> = members.iter().map(ToString::to_string).collect();
            let (numbers, count) = (numbers.join(", "), members.len());
            push(
                text,
                format_args!(
                    "but members {numbers} share a device, whose failure is the loss of {count} members"
                ),
            );
        }
    }

    fn push_scrub(&self, text: &mut String) {
        let Some(ScrubReport {
            state,
            progress,
            repaired,
            stripes_waiting,
            bytes_per_second,
            finished_at,
        }) = &self.scrub
        else {
            return;
        };
        let percent = (progress * 100.0).floor();
        let repaired = format_count(*repaired, "piece");
        let limit = limit_in_words(*bytes_per_second);
        match state {
            ScrubState::Never => push(text, format_args!("never scrubbed")),
            ScrubState::Running => push(
                text,
                format_args!("a scrub is under way: {percent}%, {repaired} repaired{limit}"),
            ),
            ScrubState::Finished => push(
                text,
                format_args!(
                    "scrubbed, {repaired} repaired, at {}",
                    finished_at.as_deref().unwrap_or("an unknown time")
                ),
            ),
            ScrubState::Stopped => push(
                text,
                format_args!(
                    "a scrub stopped at {percent}%, {repaired} repaired; `cauchyfs scrub` goes on with it"
                ),
            ),
        }
        let wait = match stripes_waiting {
            0 => return,
            1 => "1 stripe waits".to_owned(),
            stripes => format!("{stripes} stripes wait"),
        };
        push(
            text,
            format_args!(
                "{wait} since the last scrub to be rewritten: `cauchyfs scrub` tries again, and says what helps"
            ),
        );
    }
}

impl CodingReport {
    /// Says it in words; nothing if there is nothing to say.
    pub(super) fn in_words(&self) -> Option<String> {
        let amount = |coded: CodedReport, place: &str| {
            let size = format_size(coded.bytes);
            (coded.bytes > 0).then(|| format!("{size} on {place} at {:.1} GB/s", coded.gb_per_s))
        };
        let gpus = if self.gpus.is_empty() {
            "GPUs that are not used any more".to_owned()
        } else {
            self.gpus.join(", ")
        };
        let parts = [amount(self.cpu, "the CPU"), amount(self.cuda, &gpus)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let coded = (!parts.is_empty()).then(|| format!("coded {}", parts.join(", ")));
        let hanging = self.gpus_hanging.iter().map(|gpu| {
            format!("{gpu} does not answer: stripes that are with it stay unwritten until it does")
        });
        let lines: Vec<String> = coded.into_iter().chain(hanging).collect();
        (!lines.is_empty()).then(|| join_lines(&lines))
    }
}

impl fmt::Display for SurvivalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            losses,
            sets_beyond_survived,
            sets_beyond,
        } = *self;
        let more = losses.saturating_add(1);
        let percent = u128::from(sets_beyond_survived) * 100 / u128::from(sets_beyond.max(1));
        let plural = if losses == 1 { "" } else { "es" };
        write!(
            f,
            "any {losses} loss{plural}, and {percent} % of the sets of {more}"
        )
    }
}

impl fmt::Display for RedundancyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = format_size(self.bytes);
        let stripes = format_count(self.stripes, "stripe");
        match self.losses_tolerated {
            ..0 => write!(f, "{amount} in {stripes} cannot be read in full"),
            0 => write!(f, "{amount} in {stripes} would not survive another loss"),
            1 => write!(f, "{amount} in {stripes} survive the loss of 1 more member"),
            losses => write!(
                f,
                "{amount} in {stripes} survive the loss of {losses} more members"
            ),
        }
    }
}

impl MemberState {
    pub(in crate::cli) fn word(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Missing => "missing",
            Self::Faulted => "faulted",
            Self::Rebuilding => "rebuilding",
            Self::Removing => "removing",
        }
    }
}

/// Says why no alerts are delivered, and what to do.
fn push_alerts(text: &mut String, alerts: &AlertsReport, mountpoint: Option<&Path>) {
    let since = local_time(&alerts.since, &TimeZone::system());
    let reason = alerts.reason.as_deref().unwrap_or("the reason is unknown");
    match alerts.state {
        AlertsState::Running => {}
        AlertsState::Restarting => {
            let seconds = alerts.seconds_to_next.unwrap_or_default();
            push(
                text,
                format_args!(
                    "no alerts are sent since {since}, and none is lost: {reason}; the next attempt is {seconds} s after \
                     that; if it lasts, `cauchyfs alerts check` finds errors of the receivers, and the log names others"
                ),
            );
        }
        AlertsState::Ended => {
            let place = mountpoint_word(mountpoint);
            push(
                text,
                format_args!(
                    "no alerts are sent since {since}: {reason}; `cauchyfs unmount {place}` and mount it again: the mount \
                     sends them"
                ),
            );
        }
    }
}

/// Says the limit of work in a second; nothing if it has none.
fn limit_in_words(bytes_per_second: Option<u64>) -> String {
    let limit = bytes_per_second.map(|bytes| format!(", at most {} a second", format_size(bytes)));
    limit.unwrap_or_default()
}

/// Writes a size, or `?` if it was not counted.
fn size_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), format_size)
}

/// Adds one line, which stays one whatever the names in it contain.
fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{}", Escaped(line)).expect("writing to a string cannot fail");
}
