//! Orders to rebuild, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::accounts::Accounts;
use super::lasting::LastingOrders;
use super::limit::Limit;
use crate::format::MemberIndex;
use crate::maintenance::scheduler::stop::StopSignal;
use crate::maintenance::{Maintenance, RebuildProgress, RebuildState};
use crate::transaction::CommitError;

/// An order to rebuild, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderNumber(pub u64);

/// Orders to rebuild: callers give them and wait for their outcomes, and one thread carries them out.
pub struct RebuildOrders {
    lasting: LastingOrders,
    limit: Limit,
    book: Mutex<Book>,
    /// Notified when an order was carried out.
    done: Condvar,
    stop: Arc<StopSignal>,
}

/// Orders that are open at some moment.
#[derive(Clone, Debug)]
pub(super) struct OpenOrders {
    /// The number of the last order.
    pub(super) newest: u64,
    /// Set if missing shards have to be rebuilt for an order.
    pub(super) rebuild: bool,
    /// Set if one of these orders is for the shards of absent members too.
    pub(super) everything: bool,
    /// The members that these orders give up: all were absent when an order was given.
    pub(super) gives_up: BTreeSet<MemberIndex>,
    /// The last order for which shards have to be moved to members that have fewer.
    pub(super) balance: Option<u64>,
}

#[derive(Debug, Default)]
struct Book {
    ordered: u64,
    /// The last order that is for the shards of absent members too.
    everything: u64,
    /// The members that open orders give up.
    giving_up: BTreeMap<u64, BTreeSet<MemberIndex>>,
    /// The last order for which missing shards were rebuilt.
    done: u64,
    /// The orders for which shards are still to be moved to members that have fewer.
    balance: BTreeSet<u64>,
    /// The number among these that stands for orders that were interrupted.
    resumed: Option<u64>,
    /// The progress of these moves so far.
    moved: RebuildProgress,
    failure: Option<CommitError>,
    accounts: Accounts,
}

impl Book {
    /// Enters an order that is for the shards of absent members too if it says which of them it gives up. Returns its number.
    fn enter(&mut self, balance: bool, gives_up: Option<BTreeSet<MemberIndex>>) -> u64 {
        self.ordered += 1;
        let order = self.ordered;
        if let Some(absent) = gives_up {
            self.everything = order;
            self.giving_up.insert(order, absent);
        }
        if balance {
            self.balance.insert(order);
        } else {
            self.accounts.open(order);
        }
        order
    }

    /// Returns whether there is something to do for an order.
    fn has_open(&self) -> bool {
        self.awaits_rebuild() || !self.balance.is_empty()
    }

    /// Returns whether an order is open that was not interrupted before. Its limit counts.
    fn has_new(&self) -> bool {
        let mut balance = self.balance.iter();
        self.awaits_rebuild() || balance.any(|order| Some(*order) != self.resumed)
    }

    /// Returns whether missing shards have to be rebuilt for an order.
    fn awaits_rebuild(&self) -> bool {
        self.ordered > self.done
    }

    fn is_open(&self, order: OrderNumber) -> bool {
        let is_own = |order: u64| self.resumed != Some(order);
        self.done < order.0 || self.balance.contains(&order.0) && is_own(order.0)
    }

    /// Ends the moves of shards for orders up to this one.
    fn end_balance(&mut self, order: u64) {
        self.balance.retain(|later| *later > order);
        if self.balance.is_empty() {
            (self.moved, self.resumed) = (RebuildProgress::default(), None);
        }
    }

    /// Adds to the progress of the orders that wait for moves.
    fn add_moved(&mut self, done: &RebuildProgress) {
        if !self.balance.is_empty() {
            self.moved.bytes_done += done.bytes_done;
            self.moved.bytes_moved += done.bytes_moved;
            self.moved.elapsed += done.elapsed;
        }
    }

    /// Notes the outcome of a rebuild. Gives up the moves for all orders up to this one if it failed.
    fn note_outcome(&mut self, order: u64, failure: Option<CommitError>) {
        if failure.is_some() {
            self.end_balance(order);
        }
        self.failure = failure;
    }
}

impl RebuildOrders {
    /// Returns an empty book of orders, of which the first follows `last_order`. Rebuilds without an order write at most
    /// `bytes_per_second`.
    pub(in crate::maintenance::scheduler) fn new(
        maintenance: &Maintenance,
        bytes_per_second: Option<u64>,
        last_order: u64,
        stop: Arc<StopSignal>,
    ) -> Self {
        Self {
            lasting: LastingOrders::of(maintenance),
            limit: Limit::new(bytes_per_second),
            book: Mutex::new(Book {
                ordered: last_order,
                done: last_order,
                ..Book::default()
            }),
            done: Condvar::new(),
            stop,
        }
    }

    /// Orders a rebuild, with a limit to the bytes written in a second. Shards of absent members are rebuilt on others, where
    /// there is a place for them. Yet no absent member is given up: until it is back, or others have all its shards, bytes are
    /// moved only to where they survive as many losses as with its shards. With `balance`, also moves shards afterwards to
    /// members that have fewer. The limit applies at once to a running rebuild, and to orders without one, until all
    /// orders are done or another limit is given. Without any limit the rebuild is unlimited, even if rebuilds without
    /// an order have one.
    ///
    /// Shards lost before the rebuild begins are rebuilt with it. Shards lost during the moves are rebuilt when they
    /// would be without an order, and before any more moves; so are those of orders given meanwhile.
    ///
    /// The order is durable on return, unless the members have no space for that: the next open of the volume goes on with it.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`](crate::transaction::Commits::sync), but for a lack of space.
    pub fn order(
        &self,
        bytes_per_second: Option<u64>,
        balance: bool,
    ) -> Result<OrderNumber, CommitError> {
        self.note(bytes_per_second, balance, Some(BTreeSet::new()))
    }

    /// Orders a rebuild like [`Self::order`], which gives up members that are absent now: their shards do not count any more. The
    /// caller has made durable that they are given up.
    ///
    /// # Errors
    ///
    /// As for [`Self::order`].
    pub fn order_giving_up(
        &self,
        bytes_per_second: Option<u64>,
        absent: BTreeSet<MemberIndex>,
    ) -> Result<OrderNumber, CommitError> {
        self.note(bytes_per_second, false, Some(absent))
    }

    /// Orders a rebuild like [`Self::order`] for members that are online, and those given up before: the shards of other
    /// absent ones stay theirs.
    ///
    /// # Errors
    ///
    /// As for [`Self::order`].
    pub fn order_for_online(
        &self,
        bytes_per_second: Option<u64>,
        balance: bool,
    ) -> Result<OrderNumber, CommitError> {
        self.note(bytes_per_second, balance, None)
    }

    /// Notes an order that is for the shards of absent members too if it says which of them it gives up.
    fn note(
        &self,
        bytes_per_second: Option<u64>,
        balance: bool,
        gives_up: Option<BTreeSet<MemberIndex>>,
    ) -> Result<OrderNumber, CommitError> {
        let (given, lasting) = (gives_up.clone(), (bytes_per_second, balance));
        let order = self.lasting.note(given.as_ref(), lasting, move || {
            let mut book = self.book.lock();
            self.limit.ask(bytes_per_second, !book.has_new());
            book.enter(balance, gives_up)
        })?;
        self.stop.wake();
        Ok(OrderNumber(order))
    }

    /// Opens the moves of shards again for orders that were interrupted. They have the remembered limit of these orders, or
    /// that of rebuilds without an order.
    pub(super) fn resume_balance(&self) {
        let mut book = self.book.lock();
        if book.balance.is_empty() {
            let order = book.ordered;
            book.balance.insert(order);
            book.resumed = Some(order);
        }
    }

    /// Returns the parts of orders that outlast the daemon.
    pub(super) fn lasting(&self) -> &LastingOrders {
        &self.lasting
    }

    /// Lifts the limit of an order, because the slow work was given up.
    ///
    /// # Errors
    ///
    /// If the index cannot be changed, which remembers the limit.
    pub fn lift_limit(&self) -> Result<(), CommitError> {
        self.lasting.end_limit(|| true)?;
        self.limit.lift(self.book.lock().has_new());
        Ok(())
    }

    /// Applies the limit of earlier orders to the work that they left, until another order comes.
    pub(super) fn resume_limit(&self, limit: u64) {
        let book = self.book.lock();
        if !book.has_new() {
            self.limit.resume(limit);
        }
    }

    /// Lifts the limit of earlier orders, because what they left is done, unless orders are open. Returns whether it did.
    pub(super) fn end_limit(&self) -> Result<bool, CommitError> {
        let has_ended = self.lasting.end_limit(|| !self.has_open())?;
        let book = self.book.lock();
        if has_ended && !book.has_open() {
            self.limit.reset();
        }
        Ok(has_ended)
    }

    /// Returns the limit in force, in bytes per second, if there is one.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<u64> {
        let limit = self.limit.in_force().load(Ordering::Relaxed);
        (limit > 0).then_some(limit)
    }

    /// Waits until an order has been carried out, as far as that is possible, but no longer than `patience`. Returns
    /// `None` if it has not been then.
    ///
    /// # Errors
    ///
    /// The failure of the last rebuild.
    pub fn outcome(
        &self,
        order: OrderNumber,
        patience: Duration,
    ) -> Option<Result<(), CommitError>> {
        let mut book = self.book.lock();
        let is_open = |book: &mut Book| book.is_open(order);
        if self
            .done
            .wait_while_for(&mut book, is_open, patience)
            .timed_out()
        {
            return None;
        }
        Some(book.failure.clone().map_or(Ok(()), Err))
    }

    /// Returns the progress or the outcome of an order, with the rebuild done while it waited for its turn. `now` is
    /// the progress of the running rebuild, or of the last one.
    pub fn progress_of(&self, order: OrderNumber, now: RebuildProgress) -> RebuildProgress {
        self.book.lock().accounts.progress_of(order.0, now)
    }

    /// Returns whether there is something to do for an order.
    pub(in crate::maintenance::scheduler) fn has_open(&self) -> bool {
        self.book.lock().has_open()
    }

    /// Returns whether an order is open that was not interrupted before.
    pub(super) fn has_new(&self) -> bool {
        self.book.lock().has_new()
    }

    /// Returns the orders that are open now.
    pub(super) fn open(&self) -> OpenOrders {
        let book = self.book.lock();
        OpenOrders {
            newest: book.ordered,
            rebuild: book.awaits_rebuild(),
            everything: book.everything > book.done,
            gives_up: book.giving_up.values().flatten().copied().collect(),
            balance: book.balance.last().copied(),
        }
    }

    /// Returns the number of the last order.
    #[must_use]
    pub fn newest(&self) -> OrderNumber {
        OrderNumber(self.book.lock().ordered)
    }

    /// Returns whether shards are yet to be moved for an order, perhaps one that was interrupted or failed.
    #[must_use]
    pub fn awaits_balance(&self) -> bool {
        !self.book.lock().balance.is_empty() || self.lasting.awaits_balance()
    }

    /// Returns the members that orders after `order` give up.
    pub(super) fn given_up_after(&self, order: u64) -> BTreeSet<MemberIndex> {
        let book = self.book.lock();
        let later = book.giving_up.range(order.saturating_add(1)..);
        later
            .flat_map(|(_, members)| members.iter().copied())
            .collect()
    }

    /// Returns whether an order came after `order`.
    pub(super) fn has_later_than(&self, order: u64) -> bool {
        self.book.lock().ordered > order
    }

    /// Returns the limit in force, in bytes per second, as it changes; 0 is none.
    pub(super) fn limit(&self) -> &AtomicU64 {
        self.limit.in_force()
    }

    /// Returns the progress of the moves for open orders.
    pub(super) fn moved(&self) -> RebuildProgress {
        self.book.lock().moved
    }

    /// Adds a rebuild to the accounts of all orders up to this one, and of those that waited for it.
    pub(super) fn add_rebuilt(&self, order: u64, done: &RebuildProgress) {
        let mut book = self.book.lock();
        book.add_moved(done);
        book.accounts.add(order, done);
    }

    /// Notes that all orders up to this one were carried out, except for the moves of shards, or the failure that
    /// prevented it.
    pub(super) fn finish_rebuild(&self, order: u64, outcome: Result<(), CommitError>) {
        let mut book = self.book.lock();
        book.done = book.done.max(order);
        book.giving_up.retain(|later, _| *later > order);
        book.note_outcome(order, outcome.err());
        self.announce(&book);
    }

    /// Notes the outcome of moving shards, for all orders up to this one. Interrupted moves go on once the work that
    /// interrupted them is done.
    pub(super) fn finish_balance(
        &self,
        order: u64,
        outcome: &Result<RebuildProgress, CommitError>,
    ) {
        let mut book = self.book.lock();
        match outcome {
            Ok(progress) if progress.state == RebuildState::Finished => book.end_balance(order),
            Ok(progress) => book.add_moved(progress),
            Err(error) => book.note_outcome(order, Some(error.clone())),
        }
        self.announce(&book);
    }

    fn announce(&self, book: &Book) {
        self.done.notify_all();
        if !book.has_new() {
            self.limit.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::scheduler::tests::two_members;

    fn orders(bytes_per_second: Option<u64>) -> RebuildOrders {
        RebuildOrders::new(&two_members(), bytes_per_second, 0, Arc::default())
    }

    #[test]
    fn an_order_without_a_limit_keeps_the_limit_of_an_earlier_order() {
        let orders = orders(None);
        let limit = || orders.limit().load(Ordering::Relaxed);
        for (asked, counts) in [(None, 0), (Some(5), 5), (None, 5), (Some(9), 9), (None, 9)] {
            orders.order(asked, false).unwrap();
            assert_eq!(limit(), counts, "asked for {asked:?}");
        }
        orders.finish_rebuild(4, Ok(()));
        assert_eq!(limit(), 9, "the last is yet to be done");
        orders.finish_rebuild(5, Ok(()));
        assert_eq!(limit(), 0);
        orders.order(Some(5), false).unwrap();
        orders.lift_limit().unwrap();
        assert_eq!(limit(), 0);
    }

    /// Its caller waits for its own work alone.
    #[test]
    fn an_order_does_not_wait_for_moves_that_were_interrupted() {
        let orders = orders(None);
        let order = orders.order(None, false).unwrap();
        orders.resume_balance();
        assert!(orders.outcome(order, Duration::ZERO).is_none());
        orders.finish_rebuild(1, Ok(()));
        assert!(matches!(
            orders.outcome(order, Duration::ZERO),
            Some(Ok(()))
        ));
        assert!(orders.has_open());
    }

    #[test]
    fn rebuilds_without_an_order_have_a_limit_of_their_own() {
        let orders = orders(Some(7));
        let limit = || orders.limit().load(Ordering::Relaxed);
        assert_eq!(limit(), 7);
        orders.order(None, false).unwrap();
        assert_eq!(limit(), 0, "the caller waits for it");
        orders.order(Some(5), false).unwrap();
        orders.lift_limit().unwrap();
        assert_eq!(limit(), 0);
        orders.finish_rebuild(2, Ok(()));
        assert_eq!(limit(), 7);
        orders.lift_limit().unwrap();
        assert_eq!(limit(), 7);
    }

    #[test]
    fn moves_that_were_interrupted_have_the_limit_of_rebuilds_without_an_order_unless_one_is_given()
    {
        let orders = orders(Some(7));
        let limit = || orders.limit().load(Ordering::Relaxed);
        orders.resume_balance();
        assert!(orders.has_open() && orders.awaits_balance());
        assert_eq!(limit(), 7);
        orders.order(None, false).unwrap();
        assert_eq!(limit(), 0, "the caller waits for it");
        orders.finish_rebuild(1, Ok(()));
        assert_eq!(limit(), 7);
        orders.lift_limit().unwrap();
        assert_eq!(limit(), 7);
        orders.order(Some(5), true).unwrap();
        orders.finish_rebuild(2, Ok(()));
        assert_eq!(limit(), 5);
        let done = RebuildProgress {
            state: RebuildState::Finished,
            ..RebuildProgress::default()
        };
        orders.finish_balance(2, &Ok(done));
        assert!(!orders.has_open());
        assert_eq!(limit(), 7);
    }
}
