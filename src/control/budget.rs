//! A limit on the bytes that the answers of many daemons take at once in one process.
//!
//! A daemon of another user may send as much as a daemon of ours does in its worst case. Many of them may do so at the
//! same moment. Each connection has an [`Account`]. It takes bytes from the [`Budget`] as they arrive, so a daemon that is
//! silent takes none. A brief answer takes none either: the first bytes of a connection are free, so no other daemon can
//! keep them out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The bytes that each connection may hold without a budget.
const FREE_BYTES: usize = 64 << 10;

/// The bytes that may arrive on all connections of one kind together.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Mutex<usize>,
    given_back: Condvar,
}

impl Budget {
    /// Returns a budget of which nothing is taken.
    pub(crate) fn of(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            left: Mutex::new(bytes),
            given_back: Condvar::new(),
        })
    }

    /// Takes bytes. Returns false if there are not as many.
    fn take(&self, bytes: usize) -> bool {
        let mut left = self.left.lock();
        let rest = left.checked_sub(bytes);
        rest.map(|rest| *left = rest).is_some()
    }

    /// Takes bytes once there are as many. Returns false if it is too late then.
    fn take_until(&self, bytes: usize, until: Instant) -> bool {
        let mut left = self.left.lock();
        while *left < bytes {
            if self.given_back.wait_until(&mut left, until).timed_out() && *left < bytes {
                return false;
            }
        }
        *left -= bytes;
        true
    }

    fn give_back(&self, bytes: usize) {
        *self.left.lock() += bytes;
        self.given_back.notify_all();
    }
}

/// The bytes that one connection takes from a budget. Its drop gives them back.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    taken: usize,
    /// True if it waited for bytes.
    has_waited: bool,
    /// The number of answers that were too long, alone or together with those of others.
    refused: Arc<AtomicU64>,
}

impl Account {
    /// Returns an account that has taken nothing. It counts in `refused` what it refuses.
    pub(crate) fn new(budget: &Arc<Budget>, refused: &Arc<AtomicU64>) -> Self {
        Self {
            budget: Arc::clone(budget),
            taken: 0,
            has_waited: false,
            refused: Arc::clone(refused),
        }
    }

    /// Notes that the connection holds so many bytes now. Waits until `until` for others to give back theirs.
    ///
    /// # Errors
    ///
    /// If the budget has not as many by then.
    pub(crate) fn hold(&mut self, bytes: usize, until: Instant) -> io::Result<()> {
        let bytes = bytes.saturating_sub(FREE_BYTES);
        if bytes <= self.taken {
            self.budget.give_back(self.taken - bytes);
        } else if !self.budget.take(bytes - self.taken) {
            self.has_waited = true;
            if !self.budget.take_until(bytes - self.taken, until) {
                return Err(self.late());
            }
        }
        self.taken = bytes;
        Ok(())
    }

    /// Returns the error of an answer that was not complete in time, and counts it if it waited for others.
    pub(crate) fn late(&self) -> io::Error {
        if !self.has_waited {
            return io::ErrorKind::TimedOut.into();
        }
        self.refuse();
        let what = "its answer takes too much memory beside those of other daemons";
        io::Error::new(io::ErrorKind::OutOfMemory, what)
    }

    /// Counts an answer that was refused.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn accounts_take_no_more_than_the_budget_together_and_give_it_back() {
        let budget = Budget::of(100);
        let refused = Arc::default();
        let [mut first, mut second] = [(); 2].map(|()| Account::new(&budget, &refused));
        let mut hold = |is_first: bool, bytes: usize| {
            let account = if is_first { &mut first } else { &mut second };
            account.hold(FREE_BYTES + bytes, Instant::now()).is_ok()
        };
        assert!(hold(true, 60) && hold(false, 40));
        assert!(!hold(false, 41));
        assert!(hold(true, 30) && hold(false, 70));
        assert!(!hold(true, 31));
        drop(second);
        first.hold(FREE_BYTES + 100, Instant::now()).unwrap();
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        drop(first);
        assert_eq!(*budget.left.lock(), 100);
    }

    #[test]
    fn a_brief_answer_is_held_beside_any_others() {
        let budget = Budget::of(0);
        let mut account = Account::new(&budget, &Arc::default());
        account.hold(FREE_BYTES, Instant::now()).unwrap();
        assert!(account.hold(FREE_BYTES + 1, Instant::now()).is_err());
    }

    #[test]
    fn an_account_waits_for_what_others_give_back() {
        let budget = Budget::of(100);
        let refused = Arc::default();
        let [mut first, mut second] = [(); 2].map(|()| Account::new(&budget, &refused));
        first.hold(FREE_BYTES + 100, Instant::now()).unwrap();
        std::thread::scope(|scope| {
            let late = Instant::now() + Duration::from_secs(60);
            let waiting = scope.spawn(move || {
                second
                    .hold(FREE_BYTES + 1, late)
                    .map(|()| second.late().kind())
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(first);
            // The budget is the reason if it does not come in time after all.
            let kind = waiting.join().unwrap().unwrap();
            assert_eq!(kind, io::ErrorKind::OutOfMemory);
        });
        let third = Account::new(&budget, &refused);
        assert_eq!(third.late().kind(), io::ErrorKind::TimedOut);
        assert_eq!(refused.load(Ordering::Relaxed), 1);
    }
}
