//! Directories that come into a volume while it is open.
//!
//! A directory that joins takes part at once, but is stale: earlier changes are only in the journals of the others. It
//! is taken into the epoch after a checkpoint that began later than its arrival, once the index has all its copies.
//! From then on the index needs nothing of the journal that the new member lacks.

use std::collections::BTreeMap;

use super::{CommitError, MAX_MENDED_AT_CLOSE, Pipeline};
use crate::format::MemberIndex;
use crate::members::{Belongings, MembersError, Seat};
use crate::store::StoreRef;

impl Pipeline {
    /// Takes a directory into the volume. It has no shards yet, or lacks some: [`Pipeline::rebuild`]
    /// brings them. One that is to have its own place, and came back to it by itself meanwhile, is there.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if the directory is not suitable, or the place is not free; [`CommitError::NoSpace`]
    /// while the index has no room for its own needs; else as for [`Pipeline::sync`].
    pub fn join(&self, seat: Seat, store: &StoreRef) -> Result<MemberIndex, CommitError> {
        let joined = self.take_in(seat, store);
        if let Err(CommitError::Members(error)) = &joined
            && let MembersError::OwnMember { index, .. } = **error
            && seat == Seat::Of(index)
        {
            return Ok(index);
        }
        joined
    }

    fn take_in(&self, seat: Seat, store: &StoreRef) -> Result<MemberIndex, CommitError> {
        self.commits.check_writable()?;
        // A refused directory costs nothing, because it may come again and again.
        self.members.check_seat(seat, store)?;
        self.forget_gone_copies()?;
        let mut segments: BTreeMap<MemberIndex, BTreeMap<_, _>> = BTreeMap::new();
        for (id, segment) in self.volume.segments() {
            for member in segment.slots.iter().flatten() {
                segments.entry(*member).or_default().insert(id, segment.len);
            }
        }
        let belongings = Belongings {
            journal_bytes: self.meta.journal_file_bytes()?,
            segments,
        };
        if seat == Seat::Own {
            // Changes it has not made durable count as lost, and nothing tells so once it is back.
            self.sync()?;
        }
        if self.members.note_stale_copy(seat, store)? {
            // Before its journal, which proves this, is created again.
            self.stale_copies.note()?;
            self.sync()?;
        }
        let index = self
            .members
            .join(seat, store, &belongings, |index, strays| {
                if self.members.put_back().contains_key(&index) {
                    // Before its contents count for anything.
                    self.stale_copies.note()?;
                    self.sync()?;
                }
                // Held until it takes part: a segment may move there from then on.
                let mut reaper = self.reaper.lock();
                for segment in strays {
                    reaper.abandon_file(self.commits.group.next(), segment, index);
                }
                // Before it takes part: from then on another thread may take it into the epoch. And not for a refused
                // one, because a rebuild starts over when this number changes.
                self.commits.arrivals.note();
                Ok::<_, CommitError>(reaper)
            })?;
        self.volume.forget_member(index);
        self.stale_copies.may_verify_more();
        self.recheck.make_due();
        // Stripes that died while it was away still take space there.
        self.reaper.lock().audit_again();
        // One that came in its place has nothing that is from an earlier time.
        self.stale_copies.note()?;
        // It takes part by now: if there is no space for a checkpoint, it is admitted once there is.
        match self.checkpoint() {
            Ok(()) => drop(self.commits.mend_index(MAX_MENDED_AT_CLOSE)?),
            Err(CommitError::NoSpace) => log::warn!("member {index} waits for space in the index"),
            Err(error) => return Err(error),
        }
        Ok(index)
    }

    /// Sees to it that no member that is away counts for one with a copy of the index: it must not be looked for on
    /// another in its place.
    fn forget_gone_copies(&self) -> Result<(), CommitError> {
        let is_gone = |live: &[MemberIndex]| {
            let holders = self.replicas.holders();
            holders.iter().any(|holder| !live.contains(holder))
        };
        self.replicas.refill()?;
        if is_gone(&self.members.live()) {
            // The member went during a write to the index: only a commit decides which state the others have.
            self.checkpoint()?;
            self.replicas.refill()?;
        }
        if is_gone(&self.members.live()) {
            return Err(CommitError::NoSpace);
        }
        Ok(())
    }
}
