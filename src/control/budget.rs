//! A limit on the bytes that the answers of many daemons take at once in one process.
//!
//! A daemon of another user may send as much as a daemon of ours does in its worst case, and many of them may do so at the
//! same moment. Each connection has an [`Account`]. It takes bytes from the [`Budget`] as they arrive, so a daemon that is
//! silent takes none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The bytes that may arrive on all connections of one kind together.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    /// Returns a budget of which nothing is taken.
    pub(crate) fn of(bytes: usize) -> Arc<Self> {
        let left = AtomicUsize::new(bytes);
        Arc::new(Self { left })
    }

    fn take(&self, bytes: usize) -> bool {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            })
            .is_ok()
    }
}

/// The bytes that one connection takes from a budget. Its drop gives them back.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    taken: usize,
    /// The number of answers that were too long, alone or together with those of others.
    refused: Arc<AtomicU64>,
}

impl Account {
    /// Returns an account that has taken nothing. It counts in `refused` what it refuses.
    pub(crate) fn new(budget: &Arc<Budget>, refused: &Arc<AtomicU64>) -> Self {
        Self {
            budget: Arc::clone(budget),
            taken: 0,
            refused: Arc::clone(refused),
        }
    }

    /// Notes that the connection holds so many bytes now.
    ///
    /// # Errors
    ///
    /// If the budget has not as many.
    pub(crate) fn hold(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > self.taken {
            if !self.budget.take(bytes - self.taken) {
                self.refuse();
                let what = "its answer takes too much memory beside those of other daemons";
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
            }
        } else {
            let back = self.taken - bytes;
            self.budget.left.fetch_add(back, Ordering::Relaxed);
        }
        self.taken = bytes;
        Ok(())
    }

    /// Counts an answer that was refused.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_take_no_more_than_the_budget_together_and_give_it_back() {
        let budget = Budget::of(100);
        let refused = Arc::default();
        let [mut first, mut second] = [(); 2].map(|()| Account::new(&budget, &refused));
        first.hold(60).unwrap();
        second.hold(40).unwrap();
        assert!(second.hold(41).is_err());
        first.hold(30).unwrap();
        second.hold(70).unwrap();
        assert!(first.hold(31).is_err());
        drop(second);
        first.hold(100).unwrap();
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        drop(first);
        assert_eq!(budget.left.load(Ordering::Relaxed), 100);
    }
}
