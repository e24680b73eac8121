//! Sending: a thread for each receiver, which tries until a notice is accepted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::config::Receiver;
use super::delivery::deliver;
use super::notice::{Notice, NoticeVolume, Wording};
use super::protocol::FromProcess;
use super::state::{AlertState, StateDirectory};

/// The first and the longest pause after a failure. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

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
        }
    }

    pub(super) fn about(&self) -> &NoticeVolume {
        &self.about
    }

    /// Passes a text on to the log of the daemon.
    pub(super) fn log(&self, is_warning: bool, text: String) {
        (self.tell)(FromProcess::Log { is_warning, text });
    }

    /// Changes the state, and makes that durable. Returns whether it is; senders go on in any case.
    pub(super) fn change(&self, change: impl FnOnce(&mut AlertState)) -> bool {
        let mut inner = self.inner.lock();
        change(&mut inner.state);
        let saved = self.directory.save(&self.about.volume, &inner.state);
        let was_saved = std::mem::replace(&mut inner.is_saved, saved.is_ok());
        drop(inner);
        self.changed.notify_all();
        match saved {
            Ok(()) => true,
            Err(error) => {
                if was_saved {
                    let text = format!("the state of alerts cannot be saved: {error}");
                    self.log(true, text);
                }
                false
            }
        }
    }

    /// Returns whether no notice waits for any of these receivers.
    pub(super) fn is_done(&self, receivers: &[Receiver]) -> bool {
        let inner = self.inner.lock();
        let mailboxes = &inner.state.mailboxes;
        let mut boxes = receivers.iter().filter_map(|it| mailboxes.get(&it.name));
        boxes.all(|mailbox| mailbox.first().is_none())
    }

    /// Starts the thread of a receiver.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(self: &Arc<Self>, receiver: Receiver) -> std::io::Result<()> {
        let post = Arc::clone(self);
        std::thread::Builder::new()
            .name(format!("to-{}", receiver.name))
            .spawn(move || post.serve(&receiver))
            .map(drop)
    }

    /// Waits for a notice for a receiver, which takes none before `due`.
    fn next(&self, receiver: &Receiver, due: Instant) -> Notice {
        let mut inner = self.inner.lock();
        loop {
            let mailbox = inner.state.mailboxes.get(&receiver.name);
            let first = mailbox.and_then(|mailbox| mailbox.first().cloned());
            let now = Instant::now();
            let until = match first {
                Some(notice) if due <= now => return notice,
                Some(_) => due,
                None => now + LOOK,
            };
            self.changed.wait_until(&mut inner, until);
        }
    }

    fn serve(&self, receiver: &Receiver) {
        let mut attempts = 0_u32;
        let mut due = Instant::now();
        loop {
            let notice = self.next(receiver, due);
            match deliver(receiver, &notice, &(self.wording)(&notice)) {
                Ok(()) => {
                    self.change(|state| {
                        if let Some(mailbox) = state.mailboxes.get_mut(&receiver.name) {
                            mailbox.remove(&notice);
                        }
                    });
                    let name = &receiver.name;
                    let text = format!("alert {} was delivered to {name}", notice.id);
                    self.log(false, text);
                    attempts = 0;
                    due = Instant::now();
                }
                Err(failure) => {
                    let pause = pause_after(attempts);
                    let seconds = pause.as_secs();
                    let name = &receiver.name;
                    self.log(
                        true,
                        format!("an alert is not delivered to {name} yet: {failure}; next attempt in {seconds} s"),
                    );
                    attempts += 1;
                    due = Instant::now() + pause;
                }
            }
        }
    }
}

/// Returns the pause after so many failures in a row, and one more.
fn pause_after(failures: u32) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
    pause.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pauses: Vec<u64> = (0..12).map(|it| pause_after(it).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    }
}
