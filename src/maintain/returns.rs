//! Taking back members whose directories were gone and are there again.
//!
//! One that comes and goes is not taken back endlessly: bringing it up to date costs more than it gives.
//! After some times it is left alone for so long that somebody will have looked at it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commit::{CommitError, Pipeline};
use crate::format::MemberIndex;
use crate::members::Seat;
use crate::store::{DirStore, StoreRef};

/// How often a member is taken back within [`SPAN`].
const MOST_RETURNS: usize = 3;

/// See [`MOST_RETURNS`].
const SPAN: Duration = Duration::from_secs(3600);

/// When which member was taken back.
#[derive(Debug, Default)]
pub(super) struct Returns(BTreeMap<MemberIndex, Vec<Instant>>);

impl Returns {
    /// Looks for the directories of members that are away, and takes back those that are there.
    pub(super) fn look(&mut self, pipeline: &Pipeline) -> Result<(), CommitError> {
        for (member, path) in pipeline.members().away() {
            if path.is_empty() || !Path::new(&path).is_dir() || !self.may_return(member) {
                continue;
            }
            let store: StoreRef = match DirStore::open(Path::new(&path)) {
                Ok(store) => Arc::new(store),
                Err(error) => {
                    log::debug!("member {member} is not back: {error}");
                    continue;
                }
            };
            match pipeline.join(Seat::Own, &store) {
                Ok(member) => {
                    log::info!("member {member} is back at {path}");
                    self.note(member, Instant::now());
                }
                // Something else is there by now.
                Err(CommitError::Members(error)) => {
                    log::debug!("member {member} is not back: {error}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn may_return(&mut self, member: MemberIndex) -> bool {
        self.count(member, Instant::now()) < MOST_RETURNS
    }

    /// Returns how often a member was taken back of late.
    fn count(&mut self, member: MemberIndex, now: Instant) -> usize {
        let times = self.0.entry(member).or_default();
        times.retain(|time| now.duration_since(*time) < SPAN);
        times.len()
    }

    fn note(&mut self, member: MemberIndex, now: Instant) {
        self.0.entry(member).or_default().push(now);
        if self.count(member, now) == MOST_RETURNS {
            log::warn!(
                "member {member} comes and goes; it is not taken back again by itself within an hour"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_and_goes_is_left_alone_for_an_hour() {
        let mut returns = Returns::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (flapping, steady) = (MemberIndex(3), MemberIndex(4));
        for second in [0, 10, 20] {
            assert!(returns.count(flapping, at(second)) < MOST_RETURNS);
            returns.note(flapping, at(second));
        }
        assert_eq!(returns.count(flapping, at(30)), MOST_RETURNS);
        assert_eq!(returns.count(steady, at(30)), 0);
        assert_eq!(returns.count(flapping, at(3599)), MOST_RETURNS);
        assert_eq!(returns.count(flapping, at(3605)), 2);
    }
}
