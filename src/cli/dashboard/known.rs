//! The knowledge of one volume: what its daemon told, and since when it has not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::activity::Activity;
use super::document::{EventDocument, StateDocument};
use super::history::History;
use super::progress::Progress;
use super::watch::OVERDUE;
use crate::cli::failure::Failure;
use crate::control::metrics::families::Bounded;

/// The events of a volume that are remembered.
pub(super) const MOST_EVENTS: usize = 60;

/// The longest identity of a volume that is remembered, in characters.
const LONGEST_IDENTITY: usize = 64;

/// The time after which a silence is shown.
const LONG_SILENCE: Duration = Duration::from_secs(3);

/// The time for which metrics serve.
const METRICS_GOOD_FOR: Duration = Duration::from_secs(2);

/// The time for which they are kept: a scrape that found them good may wait for those of others meanwhile.
const METRICS_KEPT_FOR: Duration = Duration::from_secs(10);

/// The time for which it is told that metrics were missing: longer than most intervals of scrapes. A page would tell of an
/// old one for ever.
const MISSING_TOLD_FOR: Duration = Duration::from_secs(300);

/// The reason why a daemon has not answered.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    pub(super) failure: Failure,
    pub(super) since: SystemTime,
    /// True if there is no daemon.
    pub(super) is_gone: bool,
}

impl Silence {
    /// Returns a silence that began now, or with the one before.
    pub(super) fn of(failure: Failure, is_gone: bool, before: Option<&Self>) -> Self {
        Self {
            failure,
            since: before.map_or_else(SystemTime::now, |it| it.since),
            is_gone,
        }
    }

    /// Returns whether it is worth a word. A daemon on a busy machine may answer late once.
    pub(super) fn is_long(&self) -> bool {
        let passed = self.since.elapsed().unwrap_or_default();
        self.is_gone || passed >= LONG_SILENCE
    }
}

/// The state of a volume.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) told: Arc<StateDocument>,
    pub(super) taken_at: SystemTime,
}

/// The knowledge of a volume.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) state: Option<State>,
    pub(super) events: VecDeque<Arc<EventDocument>>,
    pub(super) after: Option<u64>,
    /// When the question began that is under way and costs nothing.
    pub(super) asked_at: Option<(Instant, SystemTime)>,
    pub(super) history: History,
    pub(super) activity: Activity,
    pub(super) rebuild: Progress,
    pub(super) scrub: Progress,
    pub(super) silence: Option<Silence>,
    /// The reason why the state was not told, while the daemon answers otherwise.
    pub(super) no_state: Option<Silence>,
    pub(super) unmounted: Option<(Instant, SystemTime)>,
    pub(super) volume: Option<String>,
    pub(super) metrics: Option<(Instant, Arc<Bounded>)>,
    /// The reason why not all of its metrics are on the page of metrics.
    pub(super) no_metrics: Option<(Instant, String)>,
    pub(super) wants_metrics: bool,
    pub(super) wants_state: bool,
}

impl Known {
    pub(super) fn nothing() -> Self {
        Self {
            state: None,
            events: VecDeque::new(),
            after: None,
            asked_at: None,
            history: History::new(Instant::now(), SystemTime::now()),
            activity: Activity::default(),
            rebuild: Progress::default(),
            scrub: Progress::default(),
            silence: None,
            no_state: None,
            unmounted: None,
            volume: None,
            metrics: None,
            no_metrics: None,
            wants_metrics: false,
            wants_state: true,
        }
    }

    /// Notes that a question is under way that costs nothing, or that it has ended.
    pub(super) fn note_question(&mut self, is_under_way: bool) {
        self.asked_at = is_under_way.then(|| (Instant::now(), SystemTime::now()));
    }

    /// Returns the silence of a question that is under way for longer than a daemon may take. The directory with its socket
    /// may hang.
    pub(super) fn overdue(&self) -> Option<Silence> {
        let (_, since) = self.asked_at.filter(|(at, _)| at.elapsed() >= OVERDUE)?;
        let message = "the daemon does not answer, or the directory with its socket does not";
        Some(Silence {
            failure: Failure::environment(message)
                .advise("look at the log of the daemon, and at the disk with the home of its user"),
            since,
            is_gone: false,
        })
    }

    /// Notes an event. Returns whether it is new. After a silence a daemon tells all events again.
    pub(super) fn note_event(&mut self, event: EventDocument) -> bool {
        if self.events.iter().any(|it| **it == event) {
            return false;
        }
        self.events.push_back(Arc::new(event));
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
        true
    }

    /// Notes the metrics of the volume, or why there are none.
    pub(super) fn note_metrics(&mut self, asked: Result<Bounded, Failure>) {
        self.no_metrics = match &asked {
            Err(failure) => Some(failure.message.clone()),
            Ok(families) => match families.left_out() {
                0 => None,
                count => Some(format!("{count} of its series are left out")),
            },
        }
        .map(|reason| (Instant::now(), reason));
        self.metrics = asked.ok().map(|it| (Instant::now(), Arc::new(it)));
    }

    /// Returns whether the metrics serve another scrape.
    pub(super) fn has_good_metrics(&self) -> bool {
        self.metrics
            .as_ref()
            .is_some_and(|(at, _)| at.elapsed() < METRICS_GOOD_FOR)
    }

    /// Drops metrics that are old, which would take memory until the next scrape, and those that take more than `share`:
    /// there are more volumes than there were.
    pub(super) fn drop_metrics_beyond(&mut self, share: usize) {
        self.metrics
            .take_if(|(at, it)| at.elapsed() >= METRICS_KEPT_FOR || it.bytes() > share);
        self.no_metrics
            .take_if(|(at, _)| at.elapsed() >= MISSING_TOLD_FOR);
    }

    /// Notes which volume a daemon serves. Of another than before nothing is known.
    pub(super) fn note_volume(&mut self, volume: &str) {
        let volume: String = volume.chars().take(LONGEST_IDENTITY).collect();
        if self
            .volume
            .as_deref()
            .is_some_and(|before| before != volume)
        {
            *self = Self {
                wants_metrics: self.wants_metrics,
                asked_at: self.asked_at,
                ..Self::nothing()
            };
        }
        self.volume = Some(volume);
    }
}
