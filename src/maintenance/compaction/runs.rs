//! The runs of live bytes of a stripe.

use super::moves::LiveRun;
use super::{BACKREFS_AT_ONCE, Compaction, InodeLocks};
use crate::format::record::{Backref, Extent, MAX_STRIPE_BYTES};
use crate::format::{BLOCK_SIZE, Record, StripeId, key};
use crate::metadata::Batch;
use crate::transaction::CommitError;
use crate::transaction::catalog::successor;

impl Compaction {
    pub(super) fn live_runs(&self, stripe: StripeId) -> Result<Vec<LiveRun>, CommitError> {
        let (mut from, end) = key::backrefs(stripe);
        let mut runs = Vec::new();
        loop {
            let found = self.meta.scan(&from, &end, BACKREFS_AT_ONCE)?;
            for (key, value) in &found {
                let (_, ino, end) = key::parse_backref(key)?;
                let Backref { len, stripe_offset } = Backref::decode(value)?;
                runs.push(LiveRun {
                    ino,
                    end,
                    extent: Extent {
                        len,
                        stripe,
                        stripe_offset,
                    },
                });
            }
            match found.last() {
                Some((last, _)) if found.len() == BACKREFS_AT_ONCE => from = successor(last),
                _ => return Ok(runs),
            }
        }
    }

    /// Splits the extents of a stripe that are longer than a new stripe: its code may have had more data shards.
    pub(super) fn split_long_runs(
        &self,
        stripe: StripeId,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        let mut long = self.live_runs(stripe)?;
        let least = self.stripes.classes().least_capacity() as u64;
        let most = u64::from(MAX_STRIPE_BYTES);
        let makes_sense = |run: &LiveRun| {
            let end = u64::from(run.extent.stripe_offset).saturating_add(run.extent.len);
            run.extent.len <= run.end && end <= most
        };
        long.retain(|run| run.extent.len > least && makes_sense(run));
        for run in long {
            let code = self.catalog.code_of(self.stripes.classes(), run.ino)?;
            let capacity = (code.capacity() / BLOCK_SIZE * BLOCK_SIZE) as u64;
            if run.extent.len <= capacity {
                continue;
            }
            let mut outcome = Ok(());
            locks.with_locked(run.ino, &mut || outcome = self.split(&run, capacity));
            outcome?;
        }
        Ok(())
    }

    /// Splits an extent into parts of so many bytes at most, unless it has changed.
    fn split(&self, run: &LiveRun, most: u64) -> Result<(), CommitError> {
        let current = self.meta.get(&key::extent(run.ino, run.end))?;
        if current.map(|value| Extent::decode(&value)).transpose()? != Some(run.extent) {
            return Ok(());
        }
        let Extent { stripe, len, .. } = run.extent;
        let mut batch = Batch::default();
        for start in (0..len).step_by(usize::try_from(most).unwrap_or(usize::MAX)) {
            let part_len = most.min(len - start);
            let end = run.end - len + start + part_len;
            // No stripe has 4 GiB, so neither has a part of one.
            let offset = u32::try_from(start).expect("a stripe is smaller than 4 GiB");
            let stripe_offset = run.extent.stripe_offset + offset;
            let part = Extent {
                len: part_len,
                stripe,
                stripe_offset,
            };
            let backref = Backref {
                len: part_len,
                stripe_offset,
            };
            batch.put(key::extent(run.ino, end), part.encode());
            batch.put(key::backref(stripe, run.ino, end), backref.encode());
        }
        let applied = self.meta.apply(batch);
        self.extents.forget(run.ino, &(run.end - len..run.end));
        Ok(applied?)
    }
}
