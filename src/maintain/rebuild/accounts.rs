//! What each order came to: one that is given while a rebuild is under way waits for that, and what is left for it
//! may be nothing.

use std::collections::BTreeMap;

use crate::commit::RebuildProgress;

/// Orders that are remembered: who ordered may not be there any more to ask.
const MOST: usize = 64;

/// The orders to rebuild, and nothing else, by number.
#[derive(Debug, Default)]
pub(super) struct Accounts(BTreeMap<u64, Account>);

#[derive(Debug, Default)]
struct Account {
    /// What was rebuilt while it waited.
    waited: RebuildProgress,
    /// What the rebuild came to that was done for it.
    done: Option<RebuildProgress>,
}

impl Account {
    fn with_waited(&self, progress: RebuildProgress) -> RebuildProgress {
        RebuildProgress {
            bytes_done: progress.bytes_done + self.waited.bytes_done,
            elapsed: progress.elapsed + self.waited.elapsed,
            ..progress
        }
    }
}

impl Accounts {
    pub(super) fn open(&mut self, order: u64) {
        self.0.insert(order, Account::default());
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }

    /// A rebuild was done for all orders up to `ordered`, and others waited for it.
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

    /// Returns how far an order is, if the rebuild that is being done is as far as `now`.
    pub(super) fn progress_of(&self, order: u64, now: RebuildProgress) -> RebuildProgress {
        self.0.get(&order).map_or(now, |account| {
            account.done.unwrap_or_else(|| account.with_waited(now))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_comes_to_what_it_waited_for_and_what_was_done_for_it() {
        let rebuilt = |bytes_done| RebuildProgress {
            bytes_done,
            ..RebuildProgress::default()
        };
        let mut accounts = Accounts::default();
        let bytes =
            |accounts: &Accounts, order, now| accounts.progress_of(order, rebuilt(now)).bytes_done;
        accounts.open(1);
        assert_eq!(bytes(&accounts, 1, 30), 30);
        accounts.open(2);
        accounts.add(1, &rebuilt(100));
        // The second rebuild has begun.
        assert_eq!((bytes(&accounts, 1, 5), bytes(&accounts, 2, 5)), (100, 105));
        accounts.add(2, &rebuilt(7));
        accounts.add(2, &rebuilt(1000));
        assert_eq!((bytes(&accounts, 1, 0), bytes(&accounts, 2, 0)), (100, 107));
        assert_eq!(bytes(&accounts, 3, 9), 9, "of others nothing is known");
        for order in 3..3 + MOST as u64 {
            accounts.open(order);
        }
        assert_eq!(accounts.0.len(), MOST);
    }
}
