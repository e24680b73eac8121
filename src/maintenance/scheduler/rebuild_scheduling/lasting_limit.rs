//! Limit of the work of orders. The index remembers it until the work is done, so that the next open of the volume goes on
//! with it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::RebuildOrders;
use crate::transaction::{CommitError, Transactions};

/// Limit of the work of orders, as the index remembers it.
pub(super) struct LastingLimit {
    transactions: Arc<Transactions>,
    orders: Arc<RebuildOrders>,
    /// Set while the index may have one that this opening of the volume noted or found; `None` until it was read.
    is_noted: Mutex<Option<bool>>,
}

impl LastingLimit {
    pub(super) fn new(transactions: Arc<Transactions>, orders: Arc<RebuildOrders>) -> Self {
        Self {
            transactions,
            orders,
            is_noted: Mutex::default(),
        }
    }

    /// Applies the remembered limit at the first call. Remembers that of open orders, durably unless there is no space. Those
    /// that were resumed have the remembered one.
    pub(super) fn look(&self) -> Result<(), CommitError> {
        let mut is_noted = self.is_noted.lock();
        if is_noted.is_none() {
            let limit = self.transactions.catalog.rebuild_limit()?;
            if let Some(limit) = limit {
                self.orders.resume_limit(limit);
            }
            *is_noted = Some(limit.is_some());
        }
        if self.orders.has_new() {
            let limit = self.orders.bytes_per_second();
            *is_noted = Some(limit.is_some());
            self.transactions.note_rebuild_limit(limit)?;
        }
        Ok(())
    }

    /// Applies the limit of orders that ended, or failed, to the work that they left.
    pub(super) fn keep(&self, limit: Option<u64>) {
        if let Some(limit) = limit
            && *self.is_noted.lock() == Some(true)
        {
            self.orders.resume_limit(limit);
        }
    }

    /// Forgets the limit, because nothing is left to do, unless orders are open.
    pub(super) fn end(&self) -> Result<(), CommitError> {
        let mut is_noted = self.is_noted.lock();
        if *is_noted == Some(true) && self.orders.end_limit()? {
            *is_noted = Some(false);
        }
        Ok(())
    }
}
