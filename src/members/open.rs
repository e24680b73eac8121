//! Opening a volume: looking, locking and deciding. Nothing is written yet but the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};

use super::acknowledged::Acknowledged;
use super::directory_locks::Holds;
use super::epoch::Roster;
use super::health::Member;
use super::lineage::{Found, Lineage, Origin, Standing, trace};
use super::reason::AbsenceReason;
use super::slots::{Look, look};
use super::stale_copies::Unverified;
use super::superblock_recovery::{self, Claims};
use super::{Access, Members, MembersError, Shape, Unusable, lock};
use crate::codec::{CodeId, Geometry};
use crate::format::superblock::Superblock;
use crate::format::{MemberId, MemberIndex, files};
use crate::store::{Executor, StoreRef};

/// Opens a volume; see [`Members::open`].
///
/// 1. Look into all directories. Set aside or refuse those that are no members.
/// 2. Lock the members, and look again: another process may have changed them until then.
/// 3. Trace the epochs; refuse members that do not belong together or are too few.
pub(super) fn open(
    stores: Vec<StoreRef>,
    claims: &Claims,
    access: Access,
    executor: Arc<Executor>,
) -> Result<Members, MembersError> {
    if stores.is_empty() {
        return Err(MembersError::NoDirectory);
    }
    let mut unusable = Vec::new();
    let given = stores.clone();
    let mut found = find(stores, claims, &executor, &mut unusable)?;
    let holds = Holds::default();
    // Before locking: one directory given twice would be locked out by itself.
    let lineage = trace(found.clone(), &mut unusable.clone())?;
    let stores = lock::lock(found, &lineage, access, &executor, &holds, &mut unusable)?;
    found = find(stores, claims, &executor, &mut unusable)?;
    let lineage = trace(found, &mut unusable)?;
    lineage.check_features(access)?;
    if access == Access::ReadWrite {
        let bereft = bereft_among(&given, &unusable);
        superblock_recovery::check_not_behind(&lineage, &bereft, &executor)?;
    }
    lineage.check_sufficient(access, &unusable, || is_unfinished(&lineage, &executor))?;
    let mut members = build(&lineage, access, executor, unusable, holds)?;
    let roster = members.roster.lock();
    members.publish(&roster);
    members.note_older(&roster);
    members.note_claimed();
    let current = roster.admitted.iter().copied().collect();
    drop(roster);
    members.current_at_open = current;
    Ok(members)
}

/// Returns the directories that have lost their superblocks, and are not claimed to be members.
fn bereft_among(given: &[StoreRef], unusable: &[Unusable]) -> Vec<StoreRef> {
    let is_bereft = |store: &&StoreRef| {
        let path = store.label();
        let mut seen = unusable.iter();
        seen.any(|seen| seen.path == path && seen.reason.is_missing_superblock())
    };
    given.iter().filter(is_bereft).cloned().collect()
}

/// Looks at the members, even if they are few; see [`Members::survey`].
pub(super) fn survey(
    stores: Vec<StoreRef>,
    executor: Arc<Executor>,
) -> Result<Members, MembersError> {
    let mut unusable = Vec::new();
    let found = find(stores, &Claims::new(), &executor, &mut unusable)?;
    let lineage = trace(found, &mut unusable)?;
    let members = build(
        &lineage,
        Access::ReadOnly,
        executor,
        unusable,
        Holds::default(),
    )?;
    let roster = members.roster.lock();
    members.publish(&roster);
    drop(roster);
    Ok(members)
}

fn find(
    stores: Vec<StoreRef>,
    claims: &Claims,
    executor: &Executor,
    unusable: &mut Vec<Unusable>,
) -> Result<Vec<Found>, MembersError> {
    let looks = look(&stores, executor)?;
    let mut found = Vec::with_capacity(stores.len());
    let mut claimed = Vec::new();
    for (store, look) in stores.into_iter().zip(looks) {
        let path = store.label();
        match (look, claims.get(&path)) {
            (Look::Member(block), _) => found.push(Found::read(store, *block)),
            (Look::Unusable(reason), Some(member)) if reason.is_missing_superblock() => {
                claimed.push((store, *member));
            }
            (Look::Unusable(reason), _) => unusable.push(Unusable { path, reason }),
        }
    }
    found.extend(superblock_recovery::make(&found, claimed, executor)?);
    Ok(found)
}

fn build(
    lineage: &Lineage,
    access: Access,
    executor: Arc<Executor>,
    unusable: Vec<Unusable>,
    holds: Holds,
) -> Result<Members, MembersError> {
    let shape = shape(&lineage.tip)?;
    let entries = (0..).map(MemberIndex).zip(&lineage.tip.members);
    let all = entries
        .map(|(index, entry)| match lineage.present.get(&index) {
            Some(found) => Member::present(entry.id, Arc::clone(&found.store)),
            None if entry.is_vacant() => Member::vacant(),
            None => absent(entry.id, &entry.path, &unusable),
        })
        .map(Arc::new)
        .collect();
    let roster = Roster::new(lineage);
    let claimed = lineage.present.iter().filter_map(|(index, found)| {
        if let Origin::Made(standing) = found.origin {
            let is_level = standing == Standing::Level;
            Some((*index, is_level && lineage.current.contains(index)))
        } else {
            None
        }
    });
    Ok(Members {
        claimed: claimed.collect(),
        shape,
        access,
        executor,
        all: RwLock::new(all),
        joining: Mutex::default(),
        unprepared: Mutex::default(),
        epoch: AtomicU64::new(roster.epoch().0),
        roster: Mutex::new(roster),
        live: RwLock::default(),
        leaving: RwLock::default(),
        succession: RwLock::default(),
        failed: AtomicBool::new(false),
        current_at_open: Vec::new(),
        unusable,
        holds,
        released: AtomicBool::new(false),
        unverified: Unverified::default(),
        acknowledged: Acknowledged::default(),
        last_known: Mutex::default(),
    })
}

/// Says whether no member that is here has more than the superblock with which it began: a volume that was
/// finished has journals on all of them.
fn is_unfinished(lineage: &Lineage, executor: &Executor) -> bool {
    let names = |store: &StoreRef| executor.call(store, "list", |store| store.list(""));
    let is_bare = |found: &Found| {
        let is_first = |name: &str| [files::SUPERBLOCK, files::LOCK].contains(&name);
        names(&found.store).is_ok_and(|names| names.iter().all(|(name, _)| is_first(name)))
    };
    lineage.tip.history.len() == 1 && lineage.present.values().all(is_bare)
}

fn shape(tip: &Superblock) -> Result<Shape, MembersError> {
    let code = CodeId(tip.code);
    let geometry = Geometry::new(tip.data_shards.into(), tip.parity_shards.into())?;
    code.check(geometry)?;
    Ok(Shape {
        volume: tip.volume,
        label: tip.label.clone(),
        geometry,
        code,
        unit_bytes: tip.unit_bytes,
        segment_bytes: tip.segment_bytes,
    })
}

/// A member that was not found; the reason is the thing seen at its old place, if that was looked into.
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
