//! Refuses additions to a volume without room for them, before anything accepted is at risk.
//!
//! Changes wait in memory until a checkpoint brings them into the index. So every member that holds a copy of the index
//! must have room for them. A caller that adds to the volume asks first, and gets "no space" while the waiting changes
//! might not fit. Removing never asks, because the index's reserve and the room for compaction are kept back for it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::allowance::Allowance;
use super::commits::Commits;
use super::{CommitError, MAX_REFILLED_AT_CLOSE};
use crate::format::MemberIndex;
use crate::membership::Members;
use crate::metadata::{IndexReplicas, Meta};
use crate::rate_limit::RateLimit;
use crate::store::Space;
use crate::stripes::Stripes;

/// Bytes of the index's file that a byte of waiting changes may take: pages are copied when they
/// change, and are free again only two commits later.
const ROOM_PER_BYTE: u64 = 3;

/// The part of the reserve that changes may wait for, without as much room.
const TRIED_PART: u64 = 16;

/// The part of the journal whose use leaves no room for additions.
const FULL_JOURNAL: f32 = 0.95;

/// Fewer bytes of waiting changes are no reason for a checkpoint.
const WORTH_A_CHECKPOINT: u64 = 64 << 10;

/// A reason for which nothing may be added to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
enum GrowthRefusal {
    #[error("accepted data found no space on the members, and waits for some")]
    StripeWithoutSpace,
    #[error("the last commit found no space on the members")]
    CommitWithoutSpace,
    #[error("the journal is full, and the index cannot take it in")]
    JournalFull,
    #[error("a member has no room for the space that its copy of the index keeps in reserve")]
    NoReserve,
    #[error("a member has no room for its copy of the index to grow")]
    IndexWithoutSpace,
}

/// The room of the index for changes that add to the volume.
pub struct Growth {
    members: Arc<Members>,
    meta: Arc<Meta>,
    replicas: Arc<IndexReplicas>,
    stripes: Arc<Stripes>,
    commits: Arc<Commits>,
    allowance: Arc<Allowance>,
    /// Held while the allowance is measured, and while room is made.
    measuring: Mutex<()>,
    refusals: RateLimit<GrowthRefusal>,
}

impl Growth {
    pub(crate) fn new(
        members: Arc<Members>,
        meta: Arc<Meta>,
        replicas: Arc<IndexReplicas>,
        stripes: Arc<Stripes>,
        commits: Arc<Commits>,
        allowance: Arc<Allowance>,
    ) -> Self {
        Self {
            members,
            meta,
            replicas,
            stripes,
            commits,
            allowance,
            measuring: Mutex::default(),
            refusals: RateLimit::once_a_minute(),
        }
    }

    /// Returns whether changes that take room may be applied. Call it before every change that neither replaces nor
    /// removes a record. Where room is short, brings waiting changes into the index.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] while there is no room, and making room may help; and
    /// as for [`Commits::sync`].
    pub fn check_growth(&self) -> Result<(), CommitError> {
        if self.may_grow() {
            return Ok(());
        }
        let _one_at_a_time = self.measuring.lock();
        if self.may_grow() {
            return Ok(());
        }
        let mut allowed = self.measure_growth();
        if self.may_grow_by(allowed) {
            return Ok(());
        }
        let full = self.has_no_commits() || self.meta.journal_fill() >= FULL_JOURNAL;
        if full || allowed > 0 || self.waiting() >= WORTH_A_CHECKPOINT {
            self.checkpoint_if_possible()?;
            allowed = self.measure_growth();
        }
        if self.may_grow_by(allowed) {
            Ok(())
        } else {
            self.log_refusal();
            Err(CommitError::NoSpace)
        }
    }

    /// Logs the reason for which nothing may be added, and not too often.
    fn log_refusal(&self) {
        let refusal = self.refusal();
        if self.refusals.admit(refusal, Instant::now()).is_some() {
            tracing::warn!("nothing can be added to the volume: {refusal}");
        }
    }

    fn refusal(&self) -> GrowthRefusal {
        if self.stripes.writer().is_stuck() {
            GrowthRefusal::StripeWithoutSpace
        } else if self.meta.is_full() {
            GrowthRefusal::CommitWithoutSpace
        } else if self.meta.journal_fill() >= FULL_JOURNAL {
            GrowthRefusal::JournalFull
        } else if !self.replicas.keep_reserve() {
            GrowthRefusal::NoReserve
        } else {
            GrowthRefusal::IndexWithoutSpace
        }
    }

    /// Like [`Self::check_growth`], for bytes of stripes. Their part of the index is kept back from their segments,
    /// so nothing is refused unless a commit has found no space already.
    pub(crate) fn check_commits(&self) -> Result<(), CommitError> {
        if self.has_no_commits() {
            self.commits.checkpoint()?;
        }
        Ok(())
    }

    /// Returns whether the last commit found no space, and the index is not about to have some.
    pub(crate) fn has_no_commits(&self) -> bool {
        let is_moving = self.allowance.while_moving() > 0;
        let is_full = if is_moving {
            self.meta.is_journal_full()
        } else {
            self.meta.is_full()
        };
        is_full || self.stripes.writer().is_stuck()
    }

    fn waiting(&self) -> u64 {
        self.meta.overlay_bytes() as u64
    }

    fn may_grow(&self) -> bool {
        self.may_grow_by(self.allowance.measured())
    }

    /// Returns whether one more change may wait, if `measured` bytes of changes may. Callers hand in what they have just
    /// measured, because a checkpoint on another thread may forget it at any time.
    fn may_grow_by(&self, measured: u64) -> bool {
        let allowed = measured.max(self.allowance.while_moving());
        !self.has_no_commits()
            && self.meta.journal_fill() < FULL_JOURNAL
            && self.meta.waits_below(allowed)
    }

    /// Measures how many bytes of changes may wait, and returns them. Finds copies of the index without room. Call it
    /// from time to time, because other programs use the same filesystems.
    pub(crate) fn measure_growth(&self) -> u64 {
        let began = self.allowance.begin_measuring();
        let spaces = self.members.io().spaces();
        // Room that came free goes to the reserve first.
        let room = if self.replicas.keep_reserve() {
            self.room_for_index(&spaces)
        } else {
            Some(0)
        };
        self.replicas.move_off(&self.full_holders(&spaces));
        // The index may have room in its file: little is tried, since there is the reserve.
        let tried = self.replicas.reserve_bytes() / TRIED_PART;
        let allowed = match room {
            Some(0) => 0,
            Some(room) => (room / ROOM_PER_BYTE).max(tried),
            // They are away, which is no lack of space. The commit tells of it.
            None => tried,
        };
        self.allowance.set_measured(allowed, began);
        allowed
    }

    /// Returns the number of bytes that each copy of the index may grow by. None if no member with a copy answers.
    fn room_for_index(&self, spaces: &[(MemberIndex, Space)]) -> Option<u64> {
        let holders = self.replicas.holders();
        let of_holders = spaces.iter().filter(|(member, _)| holders.contains(member));
        let room = |(_, space): &(_, Space)| {
            let sharing = of_holders
                .clone()
                .filter(|(_, other)| other.filesystem == space.filesystem);
            self.free_for_index(*space, spaces) / sharing.count() as u64
        };
        of_holders.clone().map(room).min()
    }

    /// Returns the bytes of a filesystem that the index may take; the room for compaction and for unwritten extents is
    /// kept.
    fn free_for_index(&self, space: Space, all: &[(MemberIndex, Space)]) -> u64 {
        let sharing = all
            .iter()
            .filter(|(_, other)| other.filesystem == space.filesystem);
        let members = (sharing.count(), all.len());
        let kept = self.stripes.space().kept_from_index(space, members);
        space.free_bytes.saturating_sub(kept)
    }

    /// Returns the members with next to no room that have copies of the index, if others have room for one. One full
    /// disk must not keep all others from being used. A full filesystem may still report some free blocks.
    fn full_holders(&self, spaces: &[(MemberIndex, Space)]) -> Vec<MemberIndex> {
        let holders = self.replicas.holders();
        let needed = self.replicas.room_for_a_copy();
        let (held, others): (Vec<_>, Vec<_>) = spaces
            .iter()
            .partition(|(member, _)| holders.contains(member));
        let has_room = |(_, space): &(_, Space)| self.free_for_index(*space, spaces) >= needed;
        if !others.into_iter().any(has_room) {
            return Vec::new();
        }
        let least = self.replicas.reserve_bytes();
        let is_full = |(_, space): &&(_, Space)| self.free_for_index(*space, spaces) < least;
        let full = held.into_iter().filter(is_full);
        full.map(|(member, _)| *member).collect()
    }

    /// Returns how many bytes of changes may wait while the index leaves the full members. The limit is the room on its
    /// next members, and at most the room in memory and journal.
    fn room_once_moved(&self) -> u64 {
        let spaces = self.members.io().spaces();
        let full = self.full_holders(&spaces);
        let holders = self.replicas.holders();
        let needed = self.replicas.room_for_a_copy();
        let share = |space: &Space| {
            let sharing = |(_, other): &&(MemberIndex, Space)| other.filesystem == space.filesystem;
            self.free_for_index(*space, &spaces)
                / spaces.iter().filter(sharing).count().max(1) as u64
        };
        let (held, others): (Vec<_>, Vec<_>) = spaces
            .iter()
            .partition(|(member, _)| holders.contains(member));
        let draining = self.members.membership().draining();
        let staying = held.iter().filter(|(member, _)| !full.contains(member));
        let others = others
            .iter()
            .filter(|(member, _)| !draining.contains(member));
        let mut new: Vec<u64> = others
            .map(|(_, space)| share(space).saturating_sub(needed))
            .collect();
        new.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&least) = full.len().checked_sub(1).and_then(|last| new.get(last)) else {
            return 0;
        };
        let room = staying.map(|(_, space)| share(space)).min();
        let room = room.map_or(least, |room| room.min(least));
        (room / ROOM_PER_BYTE).min(self.meta.most_waiting())
    }

    /// Moves copies of the index away from members that have no room, as long as others have some. Changes added
    /// meanwhile need not wait for that.
    fn spread_index(&self) -> Result<(), CommitError> {
        self.allowance.set_while_moving(self.room_once_moved());
        let spread = self.move_full_copies();
        self.allowance.set_while_moving(0);
        spread
    }

    fn move_full_copies(&self) -> Result<(), CommitError> {
        for _ in 0..=self.members.shape().geometry().parity_shards() {
            let holders = self.replicas.holders();
            self.replicas.refill_pieces(MAX_REFILLED_AT_CLOSE)?;
            self.measure_growth();
            let moved = self.replicas.holders();
            if moved == holders {
                break;
            }
            tracing::info!("the index is on members {moved:?} now: {holders:?} had no room for it");
        }
        Ok(())
    }

    /// Makes room for the index, if that is short: brings in waiting changes, and compacts the index. Says whether
    /// there is room then and was none before.
    pub(crate) fn make_room_for_index(&self) -> Result<bool, CommitError> {
        let _one_at_a_time = self.measuring.lock();
        let mut allowed = self.measure_growth();
        if self.may_grow_by(allowed) {
            return Ok(false);
        }
        self.spread_index()?;
        self.checkpoint_if_possible()?;
        allowed = self.measure_growth();
        if self.has_no_commits() {
            // The checkpoint has shown by now which members had no space.
            self.spread_index()?;
            self.checkpoint_if_possible()?;
            allowed = self.measure_growth();
        }
        if !self.may_grow_by(allowed) && self.replicas.compact()? {
            self.checkpoint_if_possible()?;
            allowed = self.measure_growth();
        }
        Ok(self.may_grow_by(allowed))
    }

    /// Gives space that came free within the index to data. Returns whether there was any.
    pub(crate) fn shrink_index(&self) -> Result<bool, CommitError> {
        let _one_at_a_time = self.measuring.lock();
        if self.waiting() >= WORTH_A_CHECKPOINT {
            self.checkpoint_if_possible()?;
        }
        let shrunk = self.replicas.compact()?;
        self.measure_growth();
        Ok(shrunk)
    }

    fn checkpoint_if_possible(&self) -> Result<(), CommitError> {
        match self.commits.checkpoint() {
            Err(CommitError::NoSpace) => Ok(()),
            done => done,
        }
    }

    /// Keeps space back again that a commit had to take, if need be by compacting the index.
    pub(crate) fn restore_reserve(&self) -> Result<(), CommitError> {
        let is_kept = || self.replicas.keep_reserve();
        if !is_kept() && self.replicas.compact()? && !is_kept() {
            tracing::debug!("the index lacks a part of its reserve");
        }
        Ok(())
    }
}
