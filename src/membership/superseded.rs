//! Detects absent members that have gone on without those that are here, which are superseded then.
//!
//! With no more data shards than parity shards, a volume can be mounted as two branches. Mounting the
//! branch that was left out parts the volume for good: each has writes that the other lacks from then on. Superblocks say
//! where the others were, so that this can be seen before.

use super::epochs::Epochs;
use super::error::{Branch, MembersError};
use super::quorum::needed_to_write;
use super::slots::{Look, look};
use crate::format::MemberIndex;
use crate::format::superblock::Superblock;
use crate::store::StoreRef;

impl Epochs {
    /// Returns the paths of members that may have gone on without those that are here. A path is empty where it is not
    /// known. Returns none if the absent members were too few to be written to alone.
    #[must_use]
    pub fn may_have_gone_on(&self) -> Vec<String> {
        let state = self.lock();
        let entries = (0..).map(MemberIndex).zip(state.table());
        let in_epoch = entries.filter(|(_, entry)| entry.current);
        let (here, away): (Vec<_>, Vec<_>) =
            in_epoch.partition(|(index, _)| state.admitted.contains(index));
        let data = self.shape.geometry().data_shards();
        let parity = self.shape.geometry().parity_shards();
        if away.len() < needed_to_write(here.len() + away.len(), data, parity) {
            return Vec::new();
        }
        let paths = away.into_iter().map(|(_, entry)| &entry.path);
        paths
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect()
    }

    /// Returns whether a directory is a member of this volume that has not gone on without those that are here: they
    /// know the last epoch it was in. The answer is no for an unreadable directory.
    #[must_use]
    pub fn is_known(&self, other: &StoreRef) -> bool {
        let Some(block) = self.block_of(other) else {
            return false;
        };
        let (state, head) = (self.lock(), block.head());
        block.volume == self.shape.volume_id() && (state.knows(head) || state.has_proposed(head))
    }

    fn block_of(&self, other: &StoreRef) -> Option<Box<Superblock>> {
        let looks = look(std::slice::from_ref(other), &self.executor).ok()?;
        looks.into_iter().find_map(|look| match look {
            Look::Member(block) => Some(block),
            Look::Unusable(_) => None,
        })
    }

    /// Checks that none of `others` is a member that has gone on from the state of those that are here. Members that
    /// have gone on elsewhere since both knew of each other are no concern: the volume is parted already.
    ///
    /// # Errors
    ///
    /// [`MembersError::Superseded`], which names them.
    pub fn check_not_superseded(&self, others: &[StoreRef]) -> Result<(), MembersError> {
        let mut ahead: Vec<(StoreRef, Superblock)> = Vec::new();
        for other in others {
            // A directory that is unreadable, or not of this volume, is not ahead of any member.
            if let Some(block) = self.block_of(other)
                && self.is_behind(&block)
            {
                ahead.push((other.clone(), *block));
            }
        }
        let Some(epoch) = ahead.iter().map(|(_, block)| block.head().epoch).max() else {
            return Ok(());
        };
        let paths = ahead.iter().map(|(store, _)| store.label()).collect();
        Err(MembersError::Superseded {
            branch: Branch { epoch, paths },
        })
    }

    /// Returns whether a superblock is of this volume, and begins where the members that are here end, or may do so:
    /// its history knows the last epochs alone.
    fn is_behind(&self, other: &Superblock) -> bool {
        let state = self.lock();
        let head = other.head();
        let is_known = state.knows(head) || state.has_proposed(head);
        let is_ahead = state
            .head()
            .is_some_and(|ours| other.history.contains(&ours) || other.has_forgotten(ours.epoch));
        other.volume == self.shape.volume_id() && !is_known && is_ahead
    }
}
