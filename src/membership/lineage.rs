//! Decides from superblocks alone which members belong together, and which of them are up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::access::Access;
use super::error::{Absent, Branch, MembersError};
use super::quorum::needed_to_write;
use super::reason::{AbsenceReason, Unusable};
use crate::format::superblock::{EpochMark, Superblock};
use crate::format::{MemberId, MemberIndex};
use crate::store::StoreRef;

/// The origin of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From its directory.
    Read,
    /// It was lost, and is made from the others.
    Recovered(Standing),
}

/// The state of a directory whose superblock is created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Up to date.
    Level,
    /// Without the last record. After a crash that is up to date; a copy from just before may look the same, so its
    /// contents have to be verified.
    Short,
    /// Not known to be up to date.
    Doubtful,
}

/// A directory and the superblock in it.
#[derive(Clone, Debug)]
pub(super) struct FoundMember {
    pub(super) store: StoreRef,
    pub(super) block: Superblock,
    pub(super) origin: Origin,
}

impl FoundMember {
    pub(super) fn read(store: StoreRef, block: Superblock) -> Self {
        let origin = Origin::Read;
        Self {
            store,
            block,
            origin,
        }
    }
}

/// The members found from a set of superblocks.
#[derive(Clone, Debug)]
pub(super) struct Lineage {
    /// The newest of them.
    pub(super) tip: Superblock,
    /// The members that were found, by index.
    pub(super) present: BTreeMap<MemberIndex, FoundMember>,
    /// Those that belong to the newest epoch.
    pub(super) current: BTreeSet<MemberIndex>,
    /// Marks that were proposed and are in no history.
    pub(super) proposed: Vec<EpochMark>,
}

/// Sorts members by how new they are; directories that do not fit in go to `unusable`.
///
/// # Errors
///
/// [`MembersError::MixedVolumes`], [`MembersError::SameMember`], [`MembersError::SplitBrain`], and
/// [`MembersError::NoMember`] if none is left.
pub(super) fn trace(
    found: Vec<FoundMember>,
    unusable: &mut Vec<Unusable>,
) -> Result<Lineage, MembersError> {
    check_one_volume(&found)?;
    check_distinct(&found)?;
    let Some(tip) = found.iter().max_by_key(|found| found.block.head().epoch) else {
        let unusable = unusable.clone();
        return Err(MembersError::NoMember { unusable });
    };
    let tip = tip.block.clone();
    let forgotten = |block: &Superblock| tip.has_forgotten(block.head().epoch);
    let listed = |block: &Superblock| {
        let entry = tip.members.get(usize::from(block.index.0));
        entry.is_some_and(|entry| entry.id == block.member)
    };
    let mut present = BTreeMap::new();
    for found in found {
        let reason = if forgotten(&found.block) {
            AbsenceReason::AwayTooLong
        } else if !listed(&found.block) {
            AbsenceReason::FormerMember
        } else {
            present.insert(found.block.index, found);
            continue;
        };
        let path = found.store.label();
        unusable.push(Unusable { path, reason });
    }
    check_one_line(&present)?;
    let current = present
        .values()
        .filter(|found| found.origin != Origin::Recovered(Standing::Doubtful))
        .map(|found| &found.block)
        .filter(|block| belongs(block, &tip))
        .map(|block| block.index)
        .collect();
    let mut proposed: Vec<_> = present
        .values()
        .filter_map(|found| found.block.proposed)
        .filter(|mark| !tip.history.contains(mark))
        .collect();
    proposed.sort_unstable();
    proposed.dedup();
    Ok(Lineage {
        tip,
        present,
        current,
        proposed,
    })
}

/// Returns whether a member belongs to the newest epoch. One that knows of it from the proposal does. If any data had
/// been written in it since, the member would have begun it too, or a further epoch would have left it out.
fn belongs(block: &Superblock, tip: &Superblock) -> bool {
    let entry = &tip.members[usize::from(block.index.0)];
    let head = tip.head();
    entry.current && (block.head() == head || block.proposed == Some(head))
}

fn check_one_volume(found: &[FoundMember]) -> Result<(), MembersError> {
    let Some(first) = found.first() else {
        return Ok(());
    };
    match found
        .iter()
        .find(|other| other.block.volume != first.block.volume)
    {
        None => Ok(()),
        Some(other) => Err(MembersError::MixedVolumes {
            path: first.store.label(),
            volume: first.block.volume,
            other_path: other.store.label(),
            other_volume: other.block.volume,
        }),
    }
}

fn check_distinct(found: &[FoundMember]) -> Result<(), MembersError> {
    let mut seen: BTreeMap<MemberId, &FoundMember> = BTreeMap::new();
    for other in found {
        if let Some(first) = seen.insert(other.block.member, other) {
            return Err(MembersError::SameMember {
                index: other.block.index,
                path: first.store.label(),
                other_path: other.store.label(),
            });
        }
    }
    Ok(())
}

/// Checks that one history has the epochs of all members in it.
fn check_one_line(present: &BTreeMap<MemberIndex, FoundMember>) -> Result<(), MembersError> {
    let blocks = || present.values().map(|found| &found.block);
    let is_superseded = |mark: EpochMark| {
        blocks().any(|block| block.head() != mark && block.history.contains(&mark))
    };
    let ends: BTreeSet<_> = blocks()
        .map(Superblock::head)
        .filter(|mark| !is_superseded(*mark))
        .collect();
    if ends.len() <= 1 {
        return Ok(());
    }
    let branches = ends.into_iter().map(|end| {
        let of_branch = present.values().filter(|found| found.block.head() == end);
        Branch {
            epoch: end.epoch,
            paths: of_branch.map(|found| found.store.label()).collect(),
        }
    });
    Err(MembersError::SplitBrain {
        branches: branches.collect(),
    })
}

impl Lineage {
    /// Checks that enough members were found to go on.
    ///
    /// To be written to, `data_shards` of any age must be here, and of the newest epoch's members
    ///
    /// - all but `parity_shards`: then index and journal have a copy among them, and
    /// - more than half, or `data_shards` if that is fewer: then, with more data than parity shards, no others can
    ///   begin an epoch without one of these, no matter which were away before (P7).
    ///
    /// A volume that is open goes on by the same rule: see `needed_to_go_on`.
    ///
    /// The stale ones are brought up to date. Stripes made while they were away can lack more shards than parity makes
    /// up for. Those are lost, which is no reason to stop writing. To save the readable rest, one of the newest epoch
    /// and `data_shards` of any age are enough.
    ///
    /// `is_unfinished` is asked, where they are not enough, whether the volume looks as if nothing was ever
    /// written to it.
    pub(super) fn check_sufficient(
        &self,
        access: Access,
        unusable: &[Unusable],
        is_unfinished: impl FnOnce() -> bool,
    ) -> Result<(), MembersError> {
        let data = usize::from(self.tip.data_shards);
        let parity = usize::from(self.tip.parity_shards);
        let members = self.tip.members.iter();
        let in_epoch = members.filter(|entry| entry.current).count();
        let to_write = needed_to_write(in_epoch, data, parity);
        let needed = match access {
            Access::ReadWrite => to_write,
            Access::ReadOnly => 1,
        };
        let (current, present) = (self.current.len(), self.present.len());
        if current >= needed && present >= data {
            return Ok(());
        }
        let (found, kind, needed, to_read) = if current < needed && current < present {
            (current, "up to date", needed, needed)
        } else {
            // The same for either access.
            (present, "found", to_write.max(data), data)
        };
        Err(MembersError::TooFew {
            found,
            kind,
            needed,
            to_read,
            missing: self.missing(unusable),
            without_superblock: unusable
                .iter()
                .filter(|unusable| unusable.reason.is_missing_superblock())
                .map(|unusable| unusable.path.clone())
                .collect(),
            readable: current >= 1 && present >= data,
            unfinished: is_unfinished(),
        })
    }

    /// Checks that this build may open the volume with this access.
    ///
    /// # Errors
    ///
    /// [`MembersError::ReadOnlyFeatures`].
    pub(super) fn check_features(&self, access: Access) -> Result<(), MembersError> {
        match (access, self.tip.read_only_features()) {
            (Access::ReadOnly, _) | (_, 0) => Ok(()),
            (Access::ReadWrite, unknown) => Err(MembersError::ReadOnlyFeatures { unknown }),
        }
    }

    /// Returns the lineage with only the members in these directories. The newest superblock stays the same as long as
    /// one member is up to date.
    pub(super) fn with_only(&self, stores: &[StoreRef]) -> Self {
        let is_one =
            |found: &FoundMember| stores.iter().any(|store| Arc::ptr_eq(store, &found.store));
        let mut rest = self.clone();
        rest.present.retain(|_, found| is_one(found));
        rest.current
            .retain(|index| rest.present.contains_key(index));
        rest
    }

    fn missing(&self, unusable: &[Unusable]) -> Vec<Absent> {
        let entries = (0..).map(MemberIndex).zip(&self.tip.members);
        entries
            .filter(|(index, entry)| !entry.is_vacant() && !self.present.contains_key(index))
            .map(|(index, entry)| {
                let path = String::from_utf8_lossy(&entry.path).into_owned();
                let seen = unusable.iter().find(|unusable| unusable.path == path);
                Absent {
                    index,
                    reason: seen.map(|unusable| unusable.reason.clone()),
                    path,
                }
            })
            .collect()
    }
}
