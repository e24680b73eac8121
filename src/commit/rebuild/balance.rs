//! Shards that move so that all members are as full as each other.

use super::super::{CommitError, Pipeline};
use super::{Pace, Passage, RebuildProgress, RebuildState, Round, Which, plan};

impl Pipeline {
    /// Moves shards from the members that are fullest to those that are emptiest. Stops once a member is lost
    /// or comes, which may lack what is more urgent, and once `gives_way` says so; it can be called again then.
    /// `before` is what was rebuilt for whoever ordered it, and counts with it.
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
        self.check_writable()?;
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
        // Whoever counts next knows where the files are now, also of members that are slow to answer.
        self.look_for_files();
        let mut progress = self.rebuilding.progress.lock();
        progress.set_stuck(&stuck);
        progress.elapsed = round.elapsed();
        progress.state = match outcome {
            Ok(Passage::Through { .. }) => RebuildState::Finished,
            Ok(Passage::Overtaken | Passage::Stopped) | Err(_) => RebuildState::Stopped,
        };
        outcome.map(|_| *progress)
    }

    /// Moves shards from the members that are fullest to those that are emptiest.
    pub(super) fn spread(&self, round: &mut Round<'_>) -> Result<Passage, CommitError> {
        // What is being written to cannot move.
        self.volume.retire_segments()?;
        self.sync()?;
        // What was moved away, or removed, counts for nobody.
        self.free_dead()?;
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
