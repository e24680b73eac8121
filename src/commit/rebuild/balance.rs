//! Shards that move so that all members are as full as each other.

use super::super::{CommitError, Pace, Pipeline};
use super::{Passage, RebuildProgress, RebuildState, Round, Which, plan};

impl Pipeline {
    /// Moves shards from the fullest members to the emptiest. Stops once a member is lost or comes, which may lack more
    /// urgent shards, and once `gives_way` says so; the caller can call it again then. `before` is the rebuild of the
    /// same order, which counts with it.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::rebuild`].
    pub fn balance(
        &self,
        pace: &Pace<'_>,
        gives_way: &dyn Fn() -> bool,
        before: &RebuildProgress,
    ) -> Result<RebuildProgress, CommitError> {
        self.commits.check_writable()?;
        let _baton = self.rebuilding.baton.lock();
        let mut round = Round {
            gives_way,
            elapsed_before: before.elapsed,
            ..Round::new(Which::All, pace, None)
        };
        let stuck = self.rebuild_progress();
        *self.rebuilding.progress.lock() = RebuildProgress {
            state: RebuildState::Running,
            bytes_before: before.bytes_done,
            ..RebuildProgress::default()
        };
        let outcome = self.spread(&mut round);
        // The next count knows where the files are now, also of members that are slow to answer.
        self.redundancy.look_for_files();
        let mut progress = self.rebuilding.progress.lock();
        progress.set_stuck(&stuck);
        progress.elapsed = round.elapsed();
        progress.state = match outcome {
            Ok(Passage::Through { .. }) => RebuildState::Finished,
            Ok(Passage::Overtaken | Passage::Stopped) | Err(_) => RebuildState::Stopped,
        };
        outcome.map(|_| *progress)
    }

    /// Moves shards from the fullest members to the emptiest.
    pub(super) fn spread(&self, round: &mut Round<'_>) -> Result<Passage, CommitError> {
        // A segment that is being written to cannot move.
        self.volume.retire_segments()?;
        self.sync()?;
        // Bytes that were moved away or removed count for no member.
        self.reaper.free_dead()?;
        round.live = self.members.live();
        let segments = self.volume.segments().into_iter();
        let segments = segments
            .filter(|(segment, _)| !self.volume.is_writing(*segment))
            .collect();
        let (loads, leaving) = (self.volume.loads(), self.members.leaving());
        let needs = plan::balance(&segments, &loads, &leaving);
        self.go_over(&needs, round)
    }
}
