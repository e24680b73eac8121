//! Second looks at unrecoverable ranges, after a member joined that may bring their shards back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::format::StripeId;
use crate::stripes::{Remedy, Stripes};
use crate::transaction::CommitError;

/// Search for unrecoverable ranges that can be read again.
pub struct Recheck {
    stripes: Arc<Stripes>,
    /// Set if a member joined since the last search began.
    is_due: AtomicBool,
    /// Stripes that the search has yet to read. A work lock: its holder reads them.
    waiting: Mutex<Vec<StripeId>>,
}

impl Recheck {
    pub(super) fn new(stripes: Arc<Stripes>) -> Self {
        Self {
            stripes,
            is_due: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Makes a search due, because a member joined.
    pub(super) fn make_due(&self) {
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Reads the unrecoverable ranges again if a member joined since the last search. The search reads all of them and
    /// can take long, so a joining member does not wait for it. Returns early once `goes_on` returns false, and
    /// continues from there the next time.
    ///
    /// # Errors
    ///
    /// If a stripe cannot be inspected. The next call continues with the rest.
    pub fn run(&self, goes_on: &dyn Fn() -> bool) -> Result<(), CommitError> {
        let mut left = self.waiting.lock();
        while goes_on() {
            if self.is_due.swap(false, Ordering::SeqCst) {
                *left = self
                    .stripes
                    .damage()
                    .unrecoverable()
                    .all()
                    .into_keys()
                    .rev()
                    .collect();
            }
            let Some(stripe) = left.pop() else {
                break;
            };
            let _pin = self.stripes.pins().pin();
            self.stripes
                .inspector()
                .inspect(&[stripe], Remedy::Report)?;
        }
        Ok(())
    }
}
