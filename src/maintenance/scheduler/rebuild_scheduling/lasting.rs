//! The parts of orders that outlast the daemon. The index has them from before the answer to an order until they are carried
//! out. So the next open of the volume goes on with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::MemberIndex;
use crate::maintenance::Maintenance;
use crate::membership::Members;
use crate::transaction::catalog::Catalog;
use crate::transaction::{CommitError, Commits};

/// The parts of orders that outlast the daemon.
pub(in crate::maintenance::scheduler) struct LastingOrders {
    members: Arc<Members>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    /// Held while the index is read and changed. So an order that comes meanwhile counts as a later one.
    noted: Mutex<Noted>,
}

/// The parts that the index has, each with the last order that asked for it. Those of orders before the volume was opened
/// have the number 0.
#[derive(Debug, Default)]
struct Noted {
    /// Set once those were read that the index had when the volume was opened.
    is_read: bool,
    /// The absent members whose shards are rebuilt on others. They are not given up.
    elsewhere: BTreeMap<MemberIndex, u64>,
    /// Present if shards are to be moved to members that have fewer.
    balance: Option<u64>,
}

/// Work for orders that was interrupted when the volume was closed, or its daemon died.
#[derive(Debug, Default)]
pub(super) struct Interrupted {
    /// The absent members whose shards are rebuilt on others.
    pub(super) elsewhere: BTreeSet<MemberIndex>,
    /// Set if shards are to be moved to members that have fewer.
    pub(super) balance: bool,
    /// Set once the index was read.
    pub(super) is_known: bool,
}

impl LastingOrders {
    pub(super) fn of(maintenance: &Maintenance) -> Self {
        let transactions = maintenance.transactions();
        Self {
            members: Arc::clone(transactions.members()),
            catalog: Arc::clone(&transactions.catalog),
            commits: Arc::clone(transactions.commits()),
            noted: Mutex::default(),
        }
    }

    /// Notes the lasting parts of an order, which `enter` puts into the book: its limit in bytes per second, if it has one, and
    /// whether it moves shards to members that have fewer. An order that says which absent members it `gives_up` is for the
    /// shards of the others. Its parts are durable on return, unless the members have no space for that. Returns the number of
    /// the order.
    pub(super) fn note(
        &self,
        gives_up: Option<&BTreeSet<MemberIndex>>,
        (limit, balance): (Option<u64>, bool),
        enter: impl FnOnce() -> u64,
    ) -> Result<u64, CommitError> {
        self.commits.check_writable()?;
        let (order, is_lasting) = {
            let mut noted = self.noted.lock();
            let elsewhere = gives_up.map_or_else(BTreeSet::new, |gives_up| {
                let away = self.away().into_iter();
                away.filter(|member| !gives_up.contains(member)).collect()
            });
            self.catalog.note_orders(&elsewhere, balance)?;
            let has_other_limit = limit.is_some() && self.catalog.note_rebuild_limit(limit)?;
            let order = enter();
            let is_lasting = balance || has_other_limit || !elsewhere.is_empty();
            noted
                .elsewhere
                .extend(elsewhere.into_iter().map(|it| (it, order)));
            if balance {
                noted.balance = Some(order);
            }
            (order, is_lasting)
        };
        if is_lasting {
            self.commits.sync_if_there_is_space()?;
        }
        Ok(order)
    }

    /// Notes that shards of some absent members are rebuilt on others from now on for an order. Those that went away after it
    /// was given are among them.
    pub(super) fn begin(
        &self,
        order: u64,
        members: BTreeSet<MemberIndex>,
    ) -> Result<(), CommitError> {
        {
            let mut noted = self.noted.lock();
            if members.iter().all(|it| noted.elsewhere.contains_key(it)) {
                return Ok(());
            }
            self.catalog.note_orders(&members, false)?;
            noted
                .elsewhere
                .extend(members.into_iter().map(|it| (it, order)));
        }
        self.commits.sync_if_there_is_space()
    }

    /// Forgets the members that are not absent any more: they keep their shards the next time. Returns the work of orders
    /// before the volume was opened, once, at the first call that `may_read` them.
    pub(super) fn look(&self, may_read: bool) -> Result<Interrupted, CommitError> {
        let mut noted = self.noted.lock();
        let mut interrupted = Interrupted::default();
        if !noted.is_read && may_read {
            let elsewhere = self.catalog.rebuilt_elsewhere()?;
            let balance = self.catalog.awaits_balance()?;
            noted.is_read = true;
            for member in elsewhere {
                noted.elsewhere.entry(member).or_insert_with(|| {
                    interrupted.elsewhere.insert(member);
                    0
                });
            }
            interrupted.balance = balance && noted.balance.is_none();
            if interrupted.balance {
                noted.balance = Some(0);
            }
        }
        let away = self.away();
        let members = noted.elsewhere.keys().copied();
        let returned: BTreeSet<_> = members.filter(|it| !away.contains(it)).collect();
        interrupted.elsewhere.retain(|it| away.contains(it));
        self.catalog.forget_orders(&returned, false)?;
        noted.elsewhere.retain(|it, _| !returned.contains(it));
        interrupted.is_known = noted.is_read;
        Ok(interrupted)
    }

    /// Forgets the members whose shards orders up to this one had rebuilt on others, because that is complete.
    pub(super) fn end(&self, order: u64) -> Result<(), CommitError> {
        let mut noted = self.noted.lock();
        let done = noted.elsewhere.iter().filter(|(_, last)| **last <= order);
        let done: BTreeSet<MemberIndex> = done.map(|(member, _)| *member).collect();
        self.catalog.forget_orders(&done, false)?;
        noted.elsewhere.retain(|_, last| *last > order);
        Ok(())
    }

    /// Forgets that shards are to be moved for orders up to this one, because that is complete.
    pub(super) fn end_balance(&self, order: u64) -> Result<(), CommitError> {
        let mut noted = self.noted.lock();
        if noted.balance.is_some_and(|last| last <= order) {
            self.catalog.forget_orders(&BTreeSet::new(), true)?;
            noted.balance = None;
        }
        Ok(())
    }

    /// Forgets the limit of orders if `is_idle` says that it ended. No order comes meanwhile. Returns whether it did.
    pub(super) fn end_limit(&self, is_idle: impl FnOnce() -> bool) -> Result<bool, CommitError> {
        let _noted = self.noted.lock();
        let ends = is_idle();
        if ends {
            self.catalog.note_rebuild_limit(None)?;
        }
        Ok(ends)
    }

    /// Returns whether the index has work of orders.
    pub(super) fn awaits_work(&self) -> bool {
        let noted = self.noted.lock();
        noted.balance.is_some() || !noted.elsewhere.is_empty()
    }

    /// Returns whether shards are yet to be moved for an order.
    pub(super) fn awaits_balance(&self) -> bool {
        self.noted.lock().balance.is_some()
    }

    fn away(&self) -> BTreeSet<MemberIndex> {
        let away = self.members.membership().away().into_iter();
        away.map(|(member, _)| member).collect()
    }
}
