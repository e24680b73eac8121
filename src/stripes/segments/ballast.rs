//! Space that is kept back on members that cannot reserve any.
//!
//! A stripe is accepted when there is room for it. Where a filesystem reserves nothing, others may take
//! that room before the stripe is written. So such a member keeps a file of bytes that were really
//! written, as many as all stripes in memory can bring to it: when one of them finds no space, the file
//! is removed, and the stripe takes its place. No further stripe is accepted for the member before the
//! file is there again.

use std::sync::Arc;

use super::{Frontier, Segments};
use crate::format::{MemberIndex, files};
use crate::store::{Op, Space};
use crate::stripes::segment_handle::SegmentHandle;
use crate::stripes::segments::{Need, kept_back};

/// At most this part of a member is kept back.
const LARGEST_PART: u64 = 8;

impl Frontier {
    /// Returns whether a member has given up what it kept back for stripes that are accepted.
    pub(super) fn is_bare(&self, member: MemberIndex) -> bool {
        self.ballast.get(&member) == Some(&false)
    }
}

impl Segments {
    /// Keeps space back on members that need to. Returns those of them that cannot, and whether any free
    /// space was taken for that.
    pub(super) fn keep_ballast(&self, spaces: &[(MemberIndex, Space)]) -> (Vec<MemberIndex>, bool) {
        let mut without = Vec::new();
        let mut taken = false;
        for &(member, space) in spaces {
            let known = self.frontier.lock().ballast.get(&member).copied();
            if space.reserves {
                self.note_ballast(member, None);
            } else if known != Some(true) {
                match self.make_ballast(member) {
                    Some(fresh) => taken |= fresh,
                    None => without.push(member),
                }
            }
        }
        (without, taken)
    }

    /// Returns the members of a new segment that turned out to reserve nothing, and have no space to keep
    /// back for it.
    pub(super) fn lacks_ballast(&self, handle: &SegmentHandle) -> bool {
        let mut spaces = self.members.io().spaces();
        spaces.retain(|(member, _)| handle.record.slots.contains(&Some(*member)));
        let (without, _) = self.keep_ballast(&spaces);
        !without.is_empty()
    }

    /// Returns whether the file was made just now, or `None` if there is no space for it.
    fn make_ballast(&self, member: MemberIndex) -> Option<bool> {
        let name = || Arc::<str>::from(files::DATA_BALLAST);
        let measured = self.members.io().call(member, "measure", |store| {
            let len = match store.open_len(files::DATA_BALLAST) {
                Err(error) if error.kind().lacks_file() => 0,
                len => len?,
            };
            Ok((store.space()?, len))
        });
        // A member that fails is out by now.
        let (space, len) = measured.ok()?;
        let bytes = self.ballast_bytes(space);
        let made = if len == bytes {
            Ok(())
        } else {
            self.note_ballast(member, Some(false));
            let free =
                (space.free_bytes + len).saturating_sub(kept_back(space, self.step, Need::New));
            if free < bytes {
                return None;
            }
            self.members.io().fill(member, &name(), bytes)
        };
        match made {
            Ok(()) => {
                self.note_ballast(member, Some(true));
                // There is space again.
                self.frontier.lock().full.retain(|full| *full != member);
                Some(len != bytes)
            }
            Err(error) => {
                tracing::debug!("member {member} keeps no space back: {error}");
                None
            }
        }
    }

    /// Returns how much a member keeps back: a shard of every stripe that can be in memory.
    fn ballast_bytes(&self, space: Space) -> u64 {
        let part = space.total_bytes / LARGEST_PART;
        self.in_memory_bytes
            .min(part.next_multiple_of(self.step))
            .max(self.step)
    }

    fn note_ballast(&self, member: MemberIndex, kept: Option<bool>) {
        let mut frontier = self.frontier.lock();
        match kept {
            Some(kept) => frontier.ballast.insert(member, kept),
            None => frontier.ballast.remove(&member),
        };
    }

    /// Lets a stripe that was accepted have what its member kept back. Returns whether that may have been
    /// something.
    pub(crate) fn give_ballast(&self, member: MemberIndex) -> bool {
        if self.frontier.lock().ballast.insert(member, false) == Some(false) {
            return false;
        }
        let remove = Op::Remove {
            name: files::DATA_BALLAST.into(),
        };
        let removed = self.members.io().run(vec![(member, remove)]);
        removed.iter().all(Result::is_ok)
    }

    /// Like [`Self::give_ballast`], for all members.
    pub(super) fn give_all_ballast(&self) -> bool {
        let live = self.members.membership().live().into_iter();
        live.filter(|member| self.give_ballast(*member)).count() > 0
    }
}
