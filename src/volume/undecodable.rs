//! Stripes that turned out to be lost when they were read, whatever their files look like.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::VolumeError;
use crate::format::StripeId;

/// The most that are remembered: a megabyte or so.
const MOST: usize = 1 << 15;

/// Stripes of which something could not be decoded, because too few of their shards were right. They
/// are remembered until the volume is closed: no read can bring back what parity could not.
#[derive(Debug, Default)]
pub(super) struct Undecodable(Mutex<BTreeSet<StripeId>>);

impl Undecodable {
    /// Takes note of why a read failed.
    pub(super) fn note(&self, error: &VolumeError) {
        if let VolumeError::TooFewShards { stripe, .. } = error {
            let mut stripes = self.0.lock();
            if stripes.len() < MOST {
                stripes.insert(*stripe);
            }
        }
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns them all.
    pub(super) fn all(&self) -> BTreeSet<StripeId> {
        self.0.lock().clone()
    }
}
