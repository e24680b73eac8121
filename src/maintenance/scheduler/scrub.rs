//! Scheduling of scrubs without an order.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::stop::StopSignal;
use crate::maintenance::{InodeLocks, Maintenance, Scrubber, StaleCopies};
use crate::transaction::CommitError;

/// Scheduler of the scrubs of a volume.
pub(super) struct ScrubScheduler {
    scrubber: Arc<Scrubber>,
    stale_copies: Arc<StaleCopies>,
    locks: Arc<dyn InodeLocks>,
    /// The pause between a scrub and the next one; none is due if this is `None`.
    interval: Option<Duration>,
    bytes_per_second: Option<u64>,
    stop: Arc<StopSignal>,
}

impl ScrubScheduler {
    pub(super) fn new(
        maintenance: &Maintenance,
        locks: Arc<dyn InodeLocks>,
        interval: Option<Duration>,
        bytes_per_second: Option<u64>,
        stop: Arc<StopSignal>,
    ) -> Self {
        Self {
            scrubber: Arc::clone(maintenance.scrubber()),
            stale_copies: Arc::clone(maintenance.stale_copies()),
            locks,
            interval,
            bytes_per_second,
            stop,
        }
    }

    /// Scrubs if the last scrub is too long ago or was interrupted, or if an online member is an unverified stale copy.
    pub(super) fn run_if_due(&self) -> Result<(), CommitError> {
        if !self.is_due()? && !self.stale_copies.is_verification_due()? {
            return Ok(());
        }
        let scrubbed = self
            .scrubber
            .scrub(&*self.locks, self.bytes_per_second, |_| {
                // A caller that orders a scrub continues it, at its own rate.
                if self.scrubber.has_scrub_followers() || !self.stop.wait_out_pause() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        scrubbed.map(drop)
    }

    fn is_due(&self) -> Result<bool, CommitError> {
        let Some(interval) = self.interval else {
            return Ok(false);
        };
        let status = self.scrubber.scrub_status()?;
        let last = UNIX_EPOCH + Duration::from_secs(status.record.last_finished);
        // A clock that was set back does not delay the next scrub.
        Ok(last.elapsed().map_or(true, |passed| passed >= interval))
    }
}
