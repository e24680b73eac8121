//! Stripes that a scrub did not rewrite, because their bytes would have been less protected afterwards.

use super::Scrubber;
use crate::format::record::Counter;
use crate::format::{Record, key};
use crate::metadata::Batch;
use crate::transaction::CommitError;

impl Scrubber {
    /// Returns how many stripes the last scrub did not rewrite, because their bytes would have been less protected
    /// afterwards. A later rebuild may have made that possible.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn stripes_waiting(&self) -> Result<u64, CommitError> {
        let before = self.waiting_before()?;
        let state = self.passed.0.lock();
        let since = state.passed.values().map(|passed| passed.waiting);
        Ok(before + since.sum::<u64>())
    }

    /// Returns whether the volume or its index had no space to rewrite some of them, if a scrub began since it was opened.
    #[must_use]
    pub fn lacks_space(&self) -> bool {
        let state = self.passed.0.lock();
        state.passed.values().any(|passed| passed.lacks_space)
    }

    /// Notes the number for the time after the volume was closed. The next commit makes it durable.
    pub(super) fn note_waiting(&self) -> Result<(), CommitError> {
        let waiting = self.stripes_waiting()?;
        let key = key::counter(key::SCRUB_WAITING);
        let mut batch = Batch::default();
        if waiting > 0 {
            batch.put(key, Counter(waiting).encode());
        } else if self.meta.get(&key)?.is_some() {
            batch.delete(key);
        } else {
            return Ok(());
        }
        Ok(self.meta.apply_stripes(batch)?)
    }

    /// Returns how many stripes the last scrub left before the volume was opened, unless another one began since.
    fn waiting_before(&self) -> Result<u64, CommitError> {
        if let Some(before) = *self.waiting_before.lock() {
            return Ok(before);
        }
        let stored = self.meta.get(&key::counter(key::SCRUB_WAITING))?;
        let stored = stored.map(|value| Counter::decode(&value)).transpose()?;
        let before = stored.map_or(0, |Counter(waiting)| waiting);
        Ok(*self.waiting_before.lock().get_or_insert(before))
    }
}
