//! Opening a volume: looking, locking and deciding. Nothing is written yet but the lock.

use std::collections::BTreeMap;

use super::access::Access;
use super::directory_locks::DirectoryLocks;
use super::error::MembersError;
use super::lineage::{FoundMember, Lineage, Origin, Standing, trace};
use super::lock;
use super::member::Member;
use super::reason::{AbsenceReason, Unusable};
use super::slots::{Look, look};
use super::superblock_recovery::{self, RecoveredMembers};
use crate::format::superblock::MemberEntry;
use crate::format::{MemberId, MemberIndex, files};
use crate::store::{Executor, StoreRef};

/// The findings with which a volume is opened.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) lineage: Lineage,
    /// The directories that were given, but are left out.
    pub(super) unusable: Vec<Unusable>,
    /// The directories that are locked.
    pub(super) locks: DirectoryLocks,
}

/// Prepares the opening of a volume.
///
/// 1. Look into all directories. Set aside or refuse those that are no members.
/// 2. Lock the members, and look again: another process may have changed them until then.
/// 3. Trace the epochs; refuse members that do not belong together or are too few.
pub(super) fn open(
    stores: Vec<StoreRef>,
    recovered: &RecoveredMembers,
    access: Access,
    executor: &Executor,
) -> Result<Opening, MembersError> {
    if stores.is_empty() {
        return Err(MembersError::NoDirectory);
    }
    let mut unusable = Vec::new();
    let given = stores.clone();
    let mut found = find(stores, recovered, executor, &mut unusable)?;
    let locks = DirectoryLocks::default();
    // Before locking: one directory given twice would be locked out by itself.
    let lineage = trace(found.clone(), &mut unusable.clone())?;
    let stores = lock::lock(found, &lineage, access, executor, &locks, &mut unusable)?;
    found = find(stores, recovered, executor, &mut unusable)?;
    let lineage = trace(found, &mut unusable)?;
    lineage.check_features(access)?;
    if access == Access::ReadWrite {
        let lost = without_superblock(&given, &unusable);
        superblock_recovery::check_not_behind(&lineage, &lost, executor)?;
    }
    lineage.check_sufficient(access, &unusable, || is_unfinished(&lineage, executor))?;
    Ok(Opening {
        lineage,
        unusable,
        locks,
    })
}

/// Returns the directories that have lost their superblocks, and are not claimed to be members.
fn without_superblock(given: &[StoreRef], unusable: &[Unusable]) -> Vec<StoreRef> {
    let is_lost = |store: &&StoreRef| {
        let path = store.label();
        let mut seen = unusable.iter();
        seen.any(|seen| seen.path == path && seen.reason.is_missing_superblock())
    };
    given.iter().filter(is_lost).cloned().collect()
}

/// Prepares a look at the members, even if they are few.
pub(super) fn survey(stores: Vec<StoreRef>, executor: &Executor) -> Result<Opening, MembersError> {
    let mut unusable = Vec::new();
    let found = find(stores, &RecoveredMembers::new(), executor, &mut unusable)?;
    let lineage = trace(found, &mut unusable)?;
    Ok(Opening {
        lineage,
        unusable,
        locks: DirectoryLocks::default(),
    })
}

fn find(
    stores: Vec<StoreRef>,
    recovered: &RecoveredMembers,
    executor: &Executor,
    unusable: &mut Vec<Unusable>,
) -> Result<Vec<FoundMember>, MembersError> {
    let looks = look(&stores, executor)?;
    let mut found = Vec::with_capacity(stores.len());
    let mut claimed = Vec::new();
    for (store, look) in stores.into_iter().zip(looks) {
        let path = store.label();
        match (look, recovered.get(&path)) {
            (Look::Member(block), _) => found.push(FoundMember::read(store, *block)),
            (Look::Unusable(reason), Some(member)) if reason.is_missing_superblock() => {
                claimed.push((store, *member));
            }
            (Look::Unusable(reason), _) => unusable.push(Unusable { path, reason }),
        }
    }
    found.extend(superblock_recovery::recover(&found, claimed, executor)?);
    Ok(found)
}

impl Opening {
    /// Returns all members by index: those that were found, absent ones and vacant places.
    pub(super) fn members(&self) -> Vec<Member> {
        let entries = (0..).map(MemberIndex).zip(&self.lineage.tip.members);
        let member =
            |(index, entry): (MemberIndex, &MemberEntry)| match self.lineage.present.get(&index) {
                Some(found) => Member::present(entry.id, found.store.clone()),
                None if entry.is_vacant() => Member::vacant(),
                None => absent(entry.id, &entry.path, &self.unusable),
            };
        entries.map(member).collect()
    }

    /// Returns the members whose superblocks were recovered, and whether each is known to be up to date.
    pub(super) fn recovered(&self) -> BTreeMap<MemberIndex, bool> {
        let present = self.lineage.present.iter();
        let recovered = present.filter_map(|(index, found)| {
            if let Origin::Recovered(standing) = found.origin {
                let is_level = standing == Standing::Level;
                Some((*index, is_level && self.lineage.current.contains(index)))
            } else {
                None
            }
        });
        recovered.collect()
    }
}

/// Returns whether no member that is here has more than the superblock with which it began: a volume that was
/// finished has journals on all of them.
fn is_unfinished(lineage: &Lineage, executor: &Executor) -> bool {
    let names = |store: &StoreRef| executor.call(store, "list", |store| store.list(""));
    let is_bare = |found: &FoundMember| {
        let is_first = |name: &str| [files::SUPERBLOCK, files::LOCK].contains(&name);
        names(&found.store).is_ok_and(|names| names.iter().all(|(name, _)| is_first(name)))
    };
    lineage.tip.history.len() == 1 && lineage.present.values().all(is_bare)
}

/// Returns a member that was not found; the reason is the thing seen at its old place, if that was looked into.
fn absent(id: MemberId, path: &[u8], unusable: &[Unusable]) -> Member {
    let path = String::from_utf8_lossy(path).into_owned();
    let reasons: BTreeMap<_, _> = unusable
        .iter()
        .map(|unusable| (&unusable.path, &unusable.reason))
        .collect();
    let reason = match reasons.get(&path) {
        Some(reason) => (*reason).clone(),
        None => AbsenceReason::NotGiven,
    };
    Member::missing(id, path, reason)
}
