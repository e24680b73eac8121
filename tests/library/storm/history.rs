//! The operations of a storm's writers, their times, and which were acknowledged; and whether they can have led to the
//! state found afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::writer::Writer;

/// Counts the beginnings and ends of operations of all writers.
#[derive(Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// The content of a writer's directory, and the number of the writer's records in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriterState {
    pub(crate) files: BTreeMap<String, Arc<Vec<u8>>>,
    pub(crate) logged: u64,
}

impl WriterState {
    fn describe(&self) -> String {
        let file = |(name, bytes): (&String, &Arc<Vec<u8>>)| {
            format!("{name}: {} bytes, {:08x}", bytes.len(), sum(bytes))
        };
        let files: Vec<String> = self.files.iter().map(file).collect();
        format!("{} logged; {}", self.logged, files.join("; "))
    }
}

fn sum(bytes: &[u8]) -> u32 {
    let step =
        |sum: u32, byte: &u8| sum.rotate_left(5) ^ u32::from(*byte).wrapping_mul(0x9e37_79b1);
    bytes.iter().fold(0, step)
}

/// One operation, and what the state is if it took effect.
pub(crate) struct Done {
    pub(crate) what: String,
    pub(crate) started: u64,
    /// `None` if it failed, and may or may not have taken effect.
    pub(crate) ended: Option<u64>,
    pub(crate) state: WriterState,
}

/// The operations of a writer, in their order, while they are made.
pub(crate) struct Log {
    first: WriterState,
    done: Mutex<Vec<Done>>,
    acknowledged: AtomicUsize,
}

impl Log {
    pub(crate) fn new(first: WriterState) -> Self {
        Self {
            first,
            done: Mutex::default(),
            acknowledged: AtomicUsize::new(0),
        }
    }

    pub(crate) fn push(&self, done: Done) {
        self.done.lock().push(done);
    }

    /// Returns how many operations have ended well.
    pub(crate) fn len(&self) -> usize {
        let done = self.done.lock();
        done.iter().filter(|done| done.ended.is_some()).count()
    }

    /// Takes note that the first `count` operations are durable.
    pub(crate) fn acknowledge(&self, count: usize) {
        self.acknowledged.fetch_max(count, Ordering::SeqCst);
    }

    pub(crate) fn close(self) -> History {
        History {
            first: self.first,
            done: self.done.into_inner(),
            acknowledged: self.acknowledged.into_inner(),
        }
    }
}

/// All that a writer did in one storm.
pub(crate) struct History {
    first: WriterState,
    done: Vec<Done>,
    acknowledged: usize,
}

impl History {
    /// The state after so many operations.
    fn state(&self, count: usize) -> &WriterState {
        match count {
            0 => &self.first,
            count => &self.done[count - 1].state,
        }
    }

    /// Returns the fewest and the most operations that leave `found`, of those that are allowed.
    fn place(&self, found: &WriterState) -> Option<(usize, usize)> {
        let mut allowed = self.acknowledged..=self.done.len();
        let least = allowed.find(|count| self.state(*count) == found)?;
        let mut rest = (least..=self.done.len()).rev();
        let most = rest.find(|count| self.state(*count) == found)?;
        Some((least, most))
    }

    fn describe(&self) -> String {
        let mut lines = vec![format!("  0: {}", self.first.describe())];
        for (index, done) in self.done.iter().enumerate() {
            let Done {
                what,
                started,
                ended,
                state,
            } = done;
            let count = index + 1;
            let mark = if count == self.acknowledged {
                "  <= acknowledged"
            } else {
                ""
            };
            let state = state.describe();
            lines.push(format!(
                "  {count}: {started}..{ended:?} {what} -> {state}{mark}"
            ));
        }
        lines.join("\n")
    }
}

/// Fails unless every writer's state is one that it made, not older than what was acknowledged, and
/// all of them are of one moment: nothing is there that began after something ended that is not.
pub(crate) fn judge(histories: &[History], found: &[Writer], what: &str) {
    let mut places = Vec::new();
    for (number, (history, writer)) in histories.iter().zip(found).enumerate() {
        let state = writer.state();
        let Some(place) = history.place(&state) else {
            let elsewhere = (0..=history.done.len()).find(|count| *history.state(*count) == state);
            panic!(
                "{what}\nwriter {number}: {} were acknowledged; found {} ({elsewhere:?}) after\n{}",
                history.acknowledged,
                state.describe(),
                history.describe()
            );
        };
        places.push(place);
    }
    for (here, (_, most)) in histories.iter().zip(&places) {
        let Some(Done {
            ended: Some(missing_ended),
            what: missing,
            ..
        }) = here.done.get(*most)
        else {
            continue;
        };
        for (there, (least, _)) in histories.iter().zip(&places) {
            let Some(last) = least.checked_sub(1).and_then(|last| there.done.get(last)) else {
                continue;
            };
            assert!(
                last.started <= *missing_ended,
                "{what}: {} began at {} and is there, {missing} ended at {missing_ended} and is not",
                last.what,
                last.started
            );
        }
    }
}
