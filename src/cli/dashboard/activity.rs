//! The activity of members at this moment: their throughput, and the time in which they answer.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::cli::size::format_size;
use crate::control::activity::{MemberActivity, OperationsReport};

/// The time over which members are looked at.
const WINDOW: Duration = Duration::from_secs(5);

/// The members of a volume at most.
const MOST_MEMBERS: usize = 256;

/// The samples that are remembered at most.
const MOST: usize = 8;

type Sample = BTreeMap<u16, (OperationsReport, OperationsReport)>;

/// The counts of all members in the last seconds.
#[derive(Debug, Default)]
pub(super) struct Activity(VecDeque<(Instant, Sample)>);

impl Activity {
    /// Notes the counts at a moment.
    pub(super) fn note(&mut self, now: Instant, members: &[MemberActivity]) {
        let members = members.iter().take(MOST_MEMBERS);
        let sample = members.map(|it| (it.index, (it.reads, it.writes)));
        self.0.push_back((now, sample.collect()));
        let is_old = |(at, _): &(Instant, Sample)| now.saturating_duration_since(*at) > WINDOW;
        while self.0.len() > MOST || self.0.len() > 2 && self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// Forgets all: the daemon does not answer.
    pub(super) fn end(&mut self) {
        self.0.clear();
    }

    /// Says what a member does, in a line for each direction, if that is known.
    pub(super) fn of(&self, member: u16) -> Option<Vec<String>> {
        let (first, before) = self.0.front()?;
        let (last, after) = self.0.back()?;
        let time = last.saturating_duration_since(*first);
        let (before, after) = (before.get(&member)?, after.get(&member)?);
        if time.is_zero() {
            return None;
        }
        let directions = [("read", before.0, after.0), ("written", before.1, after.1)];
        let parts = directions.into_iter().map(|(word, before, after)| {
            let added = since(after, before)?;
            Some((added.count > 0).then(|| in_words(added, time, word)))
        });
        let parts: Vec<Option<String>> = parts.collect::<Option<_>>()?;
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return Some(vec!["idle".to_owned()]);
        }
        Some(parts)
    }
}

/// Returns what was added. None if a count fell: the directory was opened again.
fn since(after: OperationsReport, before: OperationsReport) -> Option<OperationsReport> {
    Some(OperationsReport {
        count: after.count.checked_sub(before.count)?,
        bytes: after.bytes.checked_sub(before.bytes)?,
        microseconds: after.microseconds.checked_sub(before.microseconds)?,
    })
}

fn in_words(added: OperationsReport, time: Duration, word: &str) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = u128::from(added.bytes) * 1000 / u128::from(millis);
    let rate = format_size(u64::try_from(rate).unwrap_or(u64::MAX));
    let mean = added.microseconds / added.count.max(1);
    if mean < 100 {
        return format!("{rate}/s {word}, {mean} µs each");
    }
    let (whole, tenth) = (mean / 1000, mean % 1000 / 100);
    format!("{rate}/s {word}, {whole}.{tenth} ms each")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reads: (u64, u64, u64), writes: (u64, u64, u64)) -> Vec<MemberActivity> {
        let of = |(count, bytes, microseconds)| OperationsReport {
            count,
            bytes,
            microseconds,
        };
        vec![MemberActivity {
            index: 3,
            reads: of(reads),
            writes: of(writes),
        }]
    }

    #[test]
    fn a_member_is_idle_or_moves_bytes_in_some_time() {
        let start = Instant::now();
        let mut activity = Activity::default();
        activity.note(start, &sample((5, 500, 50), (0, 0, 0)));
        assert_eq!(activity.of(3), None, "one sample tells nothing");
        let later = start + Duration::from_secs(2);
        activity.note(later, &sample((5, 500, 50), (0, 0, 0)));
        assert_eq!(activity.of(3), Some(vec!["idle".to_owned()]));
        assert_eq!(activity.of(4), None);
        let later = start + Duration::from_secs(4);
        activity.note(
            later,
            &sample((15, 500 + (8 << 20), 50 + 12_340), (4, 0, 8000)),
        );
        let said = ["2.0 MiB/s read, 1.2 ms each", "0 B/s written, 2.0 ms each"];
        assert_eq!(activity.of(3), Some(said.map(str::to_owned).to_vec()));
        activity.note(later, &sample((0, 0, 0), (0, 0, 0)));
        assert_eq!(activity.of(3), None, "it was opened again");
    }

    #[test]
    fn numbers_of_any_size_are_put_into_words() {
        let start = Instant::now();
        let mut activity = Activity::default();
        let most = (u64::MAX, u64::MAX, u64::MAX);
        activity.note(start, &sample((0, 0, 0), (0, 0, 0)));
        activity.note(
            start + Duration::from_nanos(1),
            &sample(most, (u64::MAX, 0, 0)),
        );
        assert!(activity.of(3).is_some_and(|said| said.len() == 2));
    }
}
