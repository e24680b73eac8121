//! Locks the members of a volume that is about to be opened.
//!
//! A daemon whose mount is gone keeps the directories on which an operation of its hangs, perhaps for ever, and
//! releases all others. A daemon that serves a volume keeps at least as many as there are data shards.
//!
//! A daemon that is killed meanwhile can release none. The system closes a process's files when its last thread is
//! gone, and one that hangs is not. No directory is taken from it. That would be right for directories without
//! operations under way, but these cannot be told apart any more: the system's own threads, which work through the
//! queues, name no directory.

use std::thread;

use super::access::Access;
use super::directory_locks::DirectoryLocks;
use super::error::MembersError;
use super::lineage::{FoundMember, Lineage};
use super::reason::{AbsenceReason, Unusable};
use crate::format::superblock::MemberEntry;
use crate::store::{Executor, Hold, Store, StoreError, StoreErrorKind, StoreLock, StoreRef};

/// Locks directories, and returns the locked ones; those that cannot be locked go to `unusable`.
///
/// # Errors
///
/// [`MembersError::InUse`], [`MembersError::HeldUp`] or [`MembersError::PartlyInUse`]; none is locked then.
pub(super) fn lock(
    found: Vec<FoundMember>,
    lineage: &Lineage,
    access: Access,
    executor: &Executor,
    locks: &DirectoryLocks,
    unusable: &mut Vec<Unusable>,
) -> Result<Vec<StoreRef>, MembersError> {
    let mode = match access {
        Access::ReadWrite => Hold::Exclusive,
        Access::ReadOnly => Hold::Shared,
    };
    let mut stores = Vec::with_capacity(found.len());
    let mut held = Vec::new();
    for (store, locked) in try_all(found, mode, executor) {
        match locked {
            Ok(lock) => {
                locks.add(&store, lock);
                stores.push(store);
            }
            Err(error) if error.kind() == StoreErrorKind::InUse => held.push((store, error)),
            Err(error) => unusable.push(Unusable {
                path: store.label(),
                reason: AbsenceReason::of_failure(&error),
            }),
        }
    }
    let (held_stores, held): (Vec<_>, Vec<_>) = held.into_iter().unzip();
    let Some(first) = held.first() else {
        return Ok(stores);
    };
    // The released directories serve no volume any more.
    let held_members = lineage.with_only(&held_stores).present.len();
    let rest = lineage.with_only(&stores);
    let is_enough = rest.check_sufficient(access, unusable, || false).is_ok();
    // If a holder is not a process of this machine, the locks of the others may say nothing about it.
    let are_local = held.iter().all(|error| error.holder().is_some());
    if is_enough && are_local && cannot_serve(lineage, rest.present.len(), held_members) {
        return Err(MembersError::PartlyInUse {
            held: held.iter().map(in_use).collect(),
        });
    }
    let holders = held
        .iter()
        .filter_map(|error| Some((error, error.holder()?)));
    let mut held_up = holders.filter(|(_, holder)| holder.is_held_up);
    Err(match held_up.next() {
        Some((error, holder)) => MembersError::HeldUp {
            path: error.label().to_owned(),
            holder: holder.clone(),
        },
        None => MembersError::InUse {
            path: first.label().to_owned(),
            holder: first.holder().cloned(),
        },
    })
}

/// Tries to lock directories, one after the other; once one is held by others, which is waited for, all that are left
/// at the same time.
fn try_all(
    found: Vec<FoundMember>,
    hold: Hold,
    executor: &Executor,
) -> Vec<(StoreRef, Result<StoreLock, StoreError>)> {
    let lock = |store: &StoreRef| {
        let lock = move |store: &dyn Store| store.lock(hold);
        executor.call(store, "lock", lock)
    };
    let mut stores = found.into_iter().map(|found| found.store);
    let mut all = Vec::with_capacity(stores.len());
    for store in stores.by_ref() {
        let locked = lock(&store);
        let is_held = matches!(&locked, Err(error) if error.kind() == StoreErrorKind::InUse);
        all.push((store, locked));
        if is_held {
            break;
        }
    }
    let rest: Vec<StoreRef> = stores.collect();
    thread::scope(|scope| {
        let lock = &lock;
        let start = |store| {
            let trial = thread::Builder::new().spawn_scoped(scope, move || lock(store));
            (StoreRef::clone(store), trial)
        };
        let trying: Vec<_> = rest.iter().map(start).collect();
        for (store, trial) in trying {
            let locked = match trial {
                Ok(trial) => trial.join().unwrap_or_else(|_| {
                    let label = store.label();
                    Err(StoreError::in_use(label, None))
                }),
                // Without a thread they are tried one after the other.
                Err(_) => lock(&store),
            };
            all.push((store, locked));
        }
    });
    all
}

/// Returns whether the processes that have `held` members cannot serve the volume, where `locked` are locked here and
/// enough. A server has as many as there are data shards. Members that were not named count as theirs, except with more
/// data shards than parity shards: then no others can go on without one of those that are locked here.
fn cannot_serve(lineage: &Lineage, locked: usize, held: usize) -> bool {
    let data = usize::from(lineage.tip.data_shards);
    let parity = usize::from(lineage.tip.parity_shards);
    let members = lineage.tip.members.iter();
    let members = members
        .filter(|entry| !MemberEntry::is_vacant(entry))
        .count();
    let others = members.saturating_sub(locked);
    held <= parity && held < data && (data > parity || others < data)
}

fn in_use(error: &StoreError) -> Unusable {
    Unusable {
        path: error.label().to_owned(),
        reason: AbsenceReason::InUse {
            holder: error.holder().cloned(),
        },
    }
}
