//! Quotas against the inodes that name them.

use std::collections::BTreeMap;

use crate::format::record::{FileKind, Inode, Quota, QuotaState, QuotaUsage};
use crate::format::{Ino, QuotaId, Record, key};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::inodes::read_inode;
use crate::fs::limits::DEPTH_MAX;
use crate::fs::quotas::{Book, Change, Charge};

use super::checker::Checker;
use super::report::FindingKind;

/// Checks each quota against its directory and against what is counted. Directories below it must name it.
pub(super) fn check_quotas(check: &mut Checker<'_>) -> Result<(), FsError> {
    let book = Book::of(check_records(check)?);
    if book.len() == 0 {
        return Ok(());
    }
    let is_counting = |(_, quota): (_, &Quota)| quota.state == QuotaState::Counting;
    // The next mount goes on with a count, and makes directories name the quota.
    if !book.iter().any(is_counting) {
        check_directories(check, &book)?;
    }
    check_usages(check, &book)
}

/// Checks that the quotas around each quota exist. Returns the quotas as they are then.
fn check_records(check: &mut Checker<'_>) -> Result<BTreeMap<QuotaId, Quota>, FsError> {
    let mut quotas = BTreeMap::new();
    check.each(key::quotas(), |check, key, value| {
        let parsed = check.decoded(key::parse_quota(key), None);
        if let Some(id) = parsed
            && let Some(quota) = check.decoded(Quota::decode(value), None)
        {
            quotas.insert(id, quota);
        }
        Ok(())
    })?;
    let ids: Vec<QuotaId> = quotas.keys().copied().collect();
    for id in ids {
        let mut quota = quotas[&id];
        if !ends(&quotas, quota.outer) {
            quota.outer = QuotaId::NONE;
            quotas.insert(id, quota);
            let mut repair = Edit::default();
            repair.put_quotas(&[(id, Some(quota))]);
            check.repairable(FindingKind::WrongOuterQuota, Some(quota.root), repair)?;
        }
    }
    Ok(quotas)
}

/// Returns whether the way from a quota to the outermost one around it has an end, and all quotas on it exist.
fn ends(quotas: &BTreeMap<QuotaId, Quota>, mut id: QuotaId) -> bool {
    for _ in 0..=quotas.len() {
        if id == QuotaId::NONE {
            return true;
        }
        match quotas.get(&id) {
            Some(quota) => id = quota.outer,
            None => return false,
        }
    }
    false
}

/// Returns the record of a directory; none if there is no such directory.
fn directory(check: &Checker<'_>, ino: Ino) -> Result<Option<Inode>, FsError> {
    match read_inode(check.transactions, ino) {
        Ok(inode) => Ok(inode.filter(|inode| inode.kind == FileKind::Directory)),
        Err(FsError::Format(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks that each directory names the quota in which it lies. Files with several names may lie in several, and name
/// any of them.
fn check_directories(check: &mut Checker<'_>, book: &Book) -> Result<(), FsError> {
    check.each(key::inodes(), |check, key, value| {
        let (Ok(ino), Ok(inode)) = (key::parse_inode(key), Inode::decode(value)) else {
            return Ok(());
        };
        if inode.kind != FileKind::Directory || inode.links == 0 {
            return Ok(());
        }
        let Some(expected) = expected_quota(check, book, ino)? else {
            return Ok(());
        };
        if book.resolve(inode.quota) == expected {
            return Ok(());
        }
        let mut repair = Edit::default();
        let quota = expected;
        repair.put_recharged(ino, &Inode { quota, ..inode });
        check.repairable(FindingKind::WrongQuota, Some(ino), repair)
    })
}

/// Returns the quota of the innermost directory with one, from `ino` on outward. Returns `None` if the directories above
/// have no end.
fn expected_quota(
    check: &Checker<'_>,
    book: &Book,
    mut ino: Ino,
) -> Result<Option<QuotaId>, FsError> {
    for _ in 0..DEPTH_MAX {
        if let Some(id) = book.rooted_at(ino) {
            return Ok(Some(id));
        }
        if ino == Ino::ROOT {
            return Ok(Some(QuotaId::NONE));
        }
        match directory(check, ino)? {
            Some(inode) => ino = inode.parent,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Checks that each quota counts what the inodes add up to. One without a directory goes, unless inodes name it still: files
/// that are open, and those that left a directory whose quota was lifted.
fn check_usages(check: &mut Checker<'_>, book: &Book) -> Result<(), FsError> {
    let mut named: BTreeMap<QuotaId, Change> = BTreeMap::new();
    check.each(key::inodes(), |_, _, value| {
        if let Ok(inode) = Inode::decode(value) {
            let charge = Charge::of(&inode);
            named.entry(charge.quota).or_default().add(charge.usage);
        }
        Ok(())
    })?;
    let mut counted: BTreeMap<QuotaId, QuotaUsage> = BTreeMap::new();
    for (id, change) in named {
        for (around, _) in book.chain(id) {
            let usage = counted.entry(around).or_default();
            *usage = change.applied_to(*usage);
        }
    }
    for (id, quota) in book.iter() {
        let usage = counted.get(&id).copied().unwrap_or_default();
        if usage.files == 0 && directory(check, quota.root)?.is_none() {
            let mut repair = Edit::default();
            repair.put_quotas(&[(id, None)]);
            check.repairable(FindingKind::QuotaWithoutDirectory, Some(quota.root), repair)?;
            continue;
        }
        if usage == quota.usage {
            continue;
        }
        let kind = FindingKind::WrongUsage {
            recorded: quota.usage,
            counted: usage,
        };
        let mut repair = Edit::default();
        repair.put_quotas(&[(id, Some(Quota { usage, ..*quota }))]);
        check.repairable(kind, Some(quota.root), repair)?;
    }
    Ok(())
}
