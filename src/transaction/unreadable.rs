//! Stripes of directories that were lost before they were durable.
//!
//! A directory may have less parity than the volume. Members that fail before a sync may then take its unsynced stripes
//! with them, while all other bytes are safe. The volume goes on, and a sync of a file with such bytes fails.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::CommitError;
use super::catalog::Catalog;
use crate::format::record::Extent;
use crate::format::{Ino, Record, StripeId, key};
use crate::stripes::StripeError;

/// The stripes that were lost before they were durable since the volume was opened.
#[derive(Debug, Default)]
pub(super) struct UnreadableStripes {
    stripes: Mutex<BTreeSet<StripeId>>,
    /// True once there is one. Syncs of files look no further before that.
    has_any: AtomicBool,
    /// One of them that no sync of the whole volume reported.
    unreported: Mutex<Option<StripeId>>,
}

impl UnreadableStripes {
    /// Notes stripes that a commit could not make durable, before its callers hear of it.
    pub(super) fn note(&self, stripes: &[StripeId]) {
        let Some(&first) = stripes.first() else {
            return;
        };
        tracing::error!(
            "{} stripes of directories with less parity were lost before they were durable: syncs of their files fail",
            stripes.len()
        );
        self.stripes.lock().extend(stripes);
        self.unreported.lock().get_or_insert(first);
        self.has_any.store(true, Ordering::Release);
    }

    /// Fails if a file has bytes in one of them.
    pub(super) fn check(&self, catalog: &Catalog, ino: Ino) -> Result<(), CommitError> {
        if !self.has_any.load(Ordering::Acquire) {
            return Ok(());
        }
        let stripes = self.stripes.lock().clone();
        let mut lost = None;
        let (from, end) = key::extents_from(ino, 0);
        catalog.visit(&from, &end, |_, value| {
            let stripe = Extent::decode(value).map_err(CommitError::from)?.stripe;
            lost = stripes.contains(&stripe).then_some(stripe);
            Ok::<_, CommitError>(match lost {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            })
        })?;
        lost.map_or(Ok(()), |stripe| Err(failure(stripe)))
    }

    /// Fails if one of them was not reported by this call yet.
    pub(super) fn check_all(&self) -> Result<(), CommitError> {
        if !self.has_any.load(Ordering::Acquire) {
            return Ok(());
        }
        let unreported = self.unreported.lock().take();
        unreported.map_or(Ok(()), |stripe| Err(failure(stripe)))
    }
}

fn failure(stripe: StripeId) -> CommitError {
    CommitError::Stripes(StripeError::LostUnsynced { stripe })
}
