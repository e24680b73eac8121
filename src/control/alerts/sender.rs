//! Sending: a thread for each receiver, which tries until a notice is accepted.
//!
//! Notices go in order while the receiver takes them. One that fails again and again lets others go first.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use super::config::Receiver;
use super::delivery::deliver;
use super::notice::{Notice, NoticeVolume, Wording};
use super::outbox::{KEPT_FOR, Mailbox};
use super::protocol::FromProcess;
use super::state::{AlertState, StateDirectory};
use crate::format::event::Severity;

/// The first and the longest pause after a failure. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The attempts at a notice after which another that waits has its turn.
const TIMES_IN_A_ROW: u32 = 4;

/// The time for which attempts at an old notice fail before it is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);

/// The interval at which a receiver without notices looks for one.
const LOOK: Duration = Duration::from_secs(30);

/// Passes a text on to the log of the daemon.
pub(super) type Tell = Box<dyn Fn(FromProcess) + Send + Sync>;

/// The state, and all that is done with it.
pub(super) struct Post {
    directory: StateDirectory,
    about: NoticeVolume,
    wording: Wording,
    tell: Tell,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// The deliveries that are under way.
    delivering: AtomicUsize,
}

struct Inner {
    state: AlertState,
    /// False while the state is not in the file as it is here.
    is_saved: bool,
}

impl Post {
    pub(super) fn new(
        directory: StateDirectory,
        about: NoticeVolume,
        state: AlertState,
        wording: Wording,
        tell: Tell,
    ) -> Self {
        Self {
            directory,
            about,
            wording,
            tell,
            inner: Mutex::new(Inner {
                state,
                is_saved: true,
            }),
            changed: Condvar::new(),
            delivering: AtomicUsize::new(0),
        }
    }

    /// Returns whether a notice is being delivered.
    pub(super) fn is_delivering(&self) -> bool {
        self.delivering.load(Ordering::Acquire) > 0
    }

    pub(super) fn about(&self) -> &NoticeVolume {
        &self.about
    }

    /// Passes a text on to the log of the daemon.
    pub(super) fn log(&self, is_warning: bool, text: &str) {
        (self.tell)(FromProcess::log(is_warning, text));
    }

    /// Changes the state, and makes that durable. Senders go on even if it cannot be saved; the next change tries again.
    pub(super) fn change(&self, change: impl FnOnce(&mut AlertState)) {
        let mut inner = self.inner.lock();
        let before = inner.state.clone();
        change(&mut inner.state);
        if inner.is_saved && inner.state == before {
            return;
        }
        let saved = self.directory.save(&self.about.volume, &inner.state);
        let was_saved = std::mem::replace(&mut inner.is_saved, saved.is_ok());
        drop(inner);
        self.changed.notify_all();
        if let Err(error) = saved
            && was_saved
        {
            let text = format!("the state of alerts cannot be saved: {error}");
            self.log(true, &text);
        }
    }

    /// Returns whether the state is in its file.
    pub(super) fn is_saved(&self) -> bool {
        self.inner.lock().is_saved
    }

    /// Returns whether no notice waits for any of these receivers.
    pub(super) fn is_done(&self, receivers: &[Receiver]) -> bool {
        let inner = self.inner.lock();
        let mailboxes = &inner.state.mailboxes;
        let mut boxes = receivers.iter().filter_map(|it| mailboxes.get(&it.name));
        boxes.all(|mailbox| mailbox.waiting().next().is_none())
    }

    /// Starts the thread of a receiver.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(self: &Arc<Self>, receiver: Receiver) -> std::io::Result<()> {
        let post = Arc::clone(self);
        let serve = move || loop {
            let served = catch_unwind(AssertUnwindSafe(|| post.serve(&receiver)));
            if served.is_err() {
                let name = &receiver.name;
                let text = format!("the sender of alerts to {name} failed, and starts again");
                post.log(true, &text);
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new()
            .name("alert-sender".to_owned())
            .spawn(serve)
            .map(drop)
    }

    /// Waits for a notice for a receiver until it is due.
    fn next(&self, receiver: &Receiver, attempts: &Attempts) -> Notice {
        let mut inner = self.inner.lock();
        loop {
            let mailbox = inner.state.mailboxes.get(&receiver.name);
            let waiting = mailbox.into_iter().flat_map(Mailbox::waiting);
            let now = Instant::now();
            let until = match attempts.choose(waiting) {
                Some((notice, due)) if due <= now => return notice.clone(),
                Some((_, due)) => due,
                None => now + LOOK,
            };
            self.changed.wait_until(&mut inner, until);
        }
    }

    fn serve(&self, receiver: &Receiver) {
        let name = &receiver.name;
        let change = |change: &dyn Fn(&mut Mailbox)| {
            self.change(|state| {
                state.mailboxes.get_mut(name).into_iter().for_each(change);
            });
        };
        let mut attempts = Attempts::new();
        loop {
            let notice = self.next(receiver, &attempts);
            self.delivering.fetch_add(1, Ordering::AcqRel);
            let delivered = deliver(receiver, &notice, &(self.wording)(&notice));
            if delivered.is_ok() {
                change(&|mailbox| mailbox.remove(&notice));
            }
            self.delivering.fetch_sub(1, Ordering::AcqRel);
            let Err(failure) = delivered else {
                attempts.succeeded(&notice);
                self.log(
                    false,
                    &format!("alert {} was delivered to {name}", notice.id),
                );
                continue;
            };
            if attempts.are_over(&notice) {
                change(&|mailbox| mailbox.give_up(&notice));
                let id = notice.id;
                let text = format!(
                    "alert {id} is not delivered to {name} and is given up after a week: {failure}"
                );
                self.log(true, &text);
            }
            let waiting: Vec<Notice> = {
                let inner = self.inner.lock();
                let mailbox = inner.state.mailboxes.get(name);
                let waiting = mailbox.into_iter().flat_map(Mailbox::waiting);
                waiting.cloned().collect()
            };
            let pause = attempts.failed(&notice, failure.is_for_good, &waiting);
            let seconds = pause.as_secs();
            let text = if failure.is_for_good {
                format!(
                    "{name} refuses alert {}, and others go first: {failure}; next attempt in {seconds} s",
                    notice.id
                )
            } else {
                format!(
                    "an alert is not delivered to {name} yet: {failure}; next attempt in {seconds} s"
                )
            };
            self.log(true, &text);
        }
    }
}

/// The failed attempts to deliver to one receiver.
struct Attempts {
    /// The outcomes for the notices that wait and were tried.
    tried: BTreeMap<Uuid, Tried>,
    /// The notices that waited at the last failure.
    known: BTreeSet<Uuid>,
    /// The failures in a row.
    failures: u32,
    last: Instant,
    due: Instant,
    /// When the thread began, by both clocks. A clock that is set meanwhile makes no notice older.
    began: (Instant, Timestamp),
}

/// The failed attempts to deliver one notice.
#[derive(Clone, Copy)]
struct Tried {
    times: u32,
    is_refused: bool,
    first: Instant,
}

impl Tried {
    /// Returns how often other notices have gone first.
    fn rounds(self) -> u32 {
        self.times / TIMES_IN_A_ROW + u32::from(self.is_refused) * self.times
    }
}

impl Attempts {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            tried: BTreeMap::new(),
            known: BTreeSet::new(),
            failures: 0,
            last: now,
            due: now,
            began: (now, Timestamp::now()),
        }
    }

    /// Chooses a notice, and when to try it: a critical one that is new since the last failure, else the oldest of those
    /// that were tried for the fewest rounds. So none blocks the others.
    fn choose<'a>(
        &self,
        waiting: impl Iterator<Item = &'a Notice>,
    ) -> Option<(&'a Notice, Instant)> {
        let rounds = |notice: &Notice| self.tried.get(&notice.id).map_or(0, |it| it.rounds());
        let is_new = |notice: &Notice| {
            notice.severity == Severity::Critical && !self.known.contains(&notice.id)
        };
        let waiting: Vec<&Notice> = waiting.collect();
        let urgent = waiting.iter().find(|it| self.failures > 0 && is_new(it));
        if let Some(urgent) = urgent {
            return Some((urgent, self.due.min(self.last + FIRST_PAUSE)));
        }
        let notice = waiting.into_iter().min_by_key(|notice| rounds(notice))?;
        Some((notice, self.due))
    }

    fn succeeded(&mut self, notice: &Notice) {
        self.tried.remove(&notice.id);
        // The receiver is there, so those that it did not refuse have their turn again.
        self.tried.retain(|_, tried| tried.is_refused);
        self.failures = 0;
        self.due = Instant::now();
    }

    /// Notes a failure while some notices wait. Returns the pause before the next attempt.
    fn failed(&mut self, notice: &Notice, is_for_good: bool, waiting: &[Notice]) -> Duration {
        let now = Instant::now();
        let tried = self.tried.entry(notice.id).or_insert(Tried {
            times: 0,
            is_refused: false,
            first: now,
        });
        tried.times = tried.times.saturating_add(1).min(1 << 16);
        tried.is_refused = is_for_good;
        self.known = waiting.iter().map(|notice| notice.id).collect();
        let known = &self.known;
        self.tried.retain(|id, _| known.contains(id));
        let others_may_go = is_for_good && self.tried.len() < waiting.len();
        let pause = pause_after(if others_may_go { 0 } else { self.failures });
        self.failures = self.failures.saturating_add(1);
        self.last = now;
        self.due = now + pause;
        pause
    }

    /// Returns whether a notice that fails has been kept for long enough. The clock may have been wrong when it was made,
    /// so it also demands failures for [`GIVE_UP_AFTER`].
    fn are_over(&self, notice: &Notice) -> bool {
        let (began, at) = self.began;
        let Ok(made) = notice.time.parse::<Timestamp>() else {
            return true;
        };
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let age = at.as_second() - made.as_second() + seconds(began.elapsed());
        let tried = self.tried.get(&notice.id);
        let failed_for = tried.map_or(Duration::ZERO, |tried| tried.first.elapsed());
        age >= seconds(KEPT_FOR) && failed_for >= GIVE_UP_AFTER
    }
}

/// Returns the pause after so many failures in a row, and one more.
fn pause_after(failures: u32) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
    pause.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::super::notice::NoticeKind;
    use super::*;

    fn notice(severity: Severity) -> Notice {
        let about = NoticeVolume::default();
        let mut notice = Notice::new(NoticeKind::Problem, about, Vec::new());
        notice.severity = severity;
        notice
    }

    #[test]
    fn a_notice_that_is_refused_goes_last_and_one_that_fails_after_four_attempts() {
        let waiting = [notice(Severity::Critical), notice(Severity::Critical)];
        let mut attempts = Attempts::new();
        let chosen = |attempts: &Attempts| attempts.choose(waiting.iter()).unwrap().0.id;
        for failure in 0..4 {
            assert_eq!(chosen(&attempts), waiting[0].id, "{failure}");
            attempts.failed(&waiting[0], false, &waiting);
        }
        assert_eq!(chosen(&attempts), waiting[1].id);
        attempts.succeeded(&notice(Severity::Info));
        assert_eq!(chosen(&attempts), waiting[0].id);
        let pause = attempts.failed(&waiting[0], true, &waiting);
        assert_eq!((chosen(&attempts), pause), (waiting[1].id, FIRST_PAUSE));
        attempts.succeeded(&notice(Severity::Info));
        assert_eq!(chosen(&attempts), waiting[1].id, "it is still refused");
    }

    #[test]
    fn a_new_critical_notice_shortens_the_pause() {
        let mut waiting = vec![notice(Severity::Critical)];
        let mut attempts = Attempts::new();
        for _ in 0..8 {
            attempts.failed(&waiting[0], false, &waiting);
        }
        let due = |waiting: &[Notice], attempts: &Attempts| {
            let (notice, due) = attempts.choose(waiting.iter()).unwrap();
            (notice.id, due - attempts.last)
        };
        let long = (waiting[0].id, pause_after(7));
        assert_eq!(due(&waiting, &attempts), long);
        waiting.push(notice(Severity::Warning));
        assert_eq!(due(&waiting, &attempts).1, pause_after(7));
        waiting.push(notice(Severity::Critical));
        assert_eq!(due(&waiting, &attempts), (waiting[2].id, FIRST_PAUSE));
        attempts.failed(&waiting[2], false, &waiting);
        assert_eq!(due(&waiting, &attempts).1, pause_after(8));
    }

    #[test]
    fn an_old_notice_is_given_up_only_after_attempts_of_an_hour() {
        let mut old = notice(Severity::Critical);
        old.time = "1970-01-01T00:00:00Z".to_owned();
        let mut attempts = Attempts::new();
        assert!(!attempts.are_over(&old), "nothing was tried");
        attempts.failed(&old, false, std::slice::from_ref(&old));
        assert!(!attempts.are_over(&old));
        let hour_ago = Instant::now().checked_sub(GIVE_UP_AFTER);
        let tried = attempts.tried.get_mut(&old.id).unwrap();
        // A machine that has just started knows no such time.
        let Some(hour_ago) = hour_ago else { return };
        tried.first = hour_ago;
        assert!(attempts.are_over(&old));
        old.time = Timestamp::now().to_string();
        assert!(!attempts.are_over(&old));
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pauses: Vec<u64> = (0..12).map(|it| pause_after(it).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    }
}
