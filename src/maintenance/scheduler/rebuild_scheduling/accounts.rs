//! Accounts of the orders. An order given during a rebuild waits for that, and may have nothing left to do.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::maintenance::{RebuildProgress, RebuildState};

/// Most orders that are remembered, because the client that gave one may be gone.
const MOST: usize = 64;

/// Accounts of the orders without balancing, by number.
#[derive(Debug, Default)]
pub(super) struct Accounts(BTreeMap<u64, Account>);

/// Account of one order.
#[derive(Debug, Default)]
struct Account {
    /// The rebuild that was done while it waited.
    waited: RebuildProgress,
    /// The rebuild that was done for it.
    done: Option<RebuildProgress>,
}

impl Account {
    fn with_waited(&self, progress: RebuildProgress) -> RebuildProgress {
        RebuildProgress {
            bytes_done: progress.bytes_done + self.waited.bytes_done,
            bytes_moved: progress.bytes_moved + self.waited.bytes_moved,
            elapsed: progress.elapsed + self.waited.elapsed,
            ..progress
        }
    }
}

impl Accounts {
    /// Opens the account of an order.
    pub(super) fn open(&mut self, order: u64) {
        self.0.insert(order, Account::default());
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }

    /// Adds a rebuild that was done for all orders up to `ordered`, and for which the later ones waited.
    pub(super) fn add(&mut self, ordered: u64, done: &RebuildProgress) {
        for (order, account) in &mut self.0 {
            if account.done.is_some() {
                continue;
            }
            let with_waited = account.with_waited(*done);
            if *order <= ordered {
                account.done = Some(with_waited);
            } else {
                account.waited = with_waited;
            }
        }
    }

    /// Returns the progress of an order, if that of the running rebuild is `now`. A rebuild that ended counts only once
    /// it was added, because it may have been for earlier orders.
    pub(super) fn progress_of(&self, order: u64, now: RebuildProgress) -> RebuildProgress {
        let Some(account) = self.0.get(&order) else {
            return now;
        };
        let is_added = now.state != RebuildState::Running;
        let now = RebuildProgress {
            bytes_done: if is_added { 0 } else { now.bytes_done },
            bytes_moved: if is_added { 0 } else { now.bytes_moved },
            elapsed: if is_added {
                Duration::ZERO
            } else {
                now.elapsed
            },
            ..now
        };
        account.done.unwrap_or_else(|| account.with_waited(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_an_order_is_the_rebuild_it_waited_for_and_its_own() {
        let rebuilt = |bytes_done| RebuildProgress {
            bytes_done,
            ..RebuildProgress::default()
        };
        let mut accounts = Accounts::default();
        let bytes_in = |accounts: &Accounts, order, state, now| {
            let now = RebuildProgress {
                state,
                ..rebuilt(now)
            };
            accounts.progress_of(order, now).bytes_done
        };
        let bytes =
            |accounts: &Accounts, order, now| bytes_in(accounts, order, RebuildState::Running, now);
        accounts.open(1);
        assert_eq!(bytes(&accounts, 1, 30), 30);
        accounts.open(2);
        assert_eq!(bytes(&accounts, 2, 99), 99);
        accounts.add(1, &rebuilt(100));
        // The added bytes stay on show until the second rebuild begins.
        assert_eq!(bytes_in(&accounts, 2, RebuildState::Finished, 100), 100);
        // The second rebuild has begun.
        assert_eq!((bytes(&accounts, 1, 5), bytes(&accounts, 2, 5)), (100, 105));
        accounts.add(2, &rebuilt(7));
        accounts.add(2, &rebuilt(1000));
        assert_eq!((bytes(&accounts, 1, 0), bytes(&accounts, 2, 0)), (100, 107));
        assert_eq!(bytes(&accounts, 3, 9), 9, "other orders have no account");
        for order in 3..3 + MOST as u64 {
            accounts.open(order);
        }
        assert_eq!(accounts.0.len(), MOST);
    }
}
