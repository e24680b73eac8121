//! Names against inodes.

use std::collections::{HashMap, HashSet};

use crate::format::record::{Dirent, FileKind, Inode, Position};
use crate::format::{Cookie, Ino, Record, key};

use super::super::edit::Edit;
use super::super::names::FIRST_COOKIE;
use super::super::{FsError, read_inode};
use super::{Check, FindingKind};

/// What the entries of one directory come to.
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    count: u64,
    subdirectories: u32,
    last_cookie: u64,
}

/// What all names come to.
#[derive(Default)]
pub(super) struct Names {
    /// Names of each inode.
    counts: HashMap<Ino, u32>,
    directories: HashMap<Ino, Entries>,
}

/// Checks each name against the inode it leads to and its place in the listing, and counts.
pub(super) fn check_entries(check: &mut Check<'_>) -> Result<Names, FsError> {
    let mut names = Names::default();
    let range = (key::dirents(Ino(0)).0, key::dirents(Ino(u64::MAX)).1);
    check.each(range, |check, key, value| {
        let Some((parent, name)) = check.decoded(key::parse_dirent(key), None) else {
            return Ok(());
        };
        let Some(entry) = check.decoded(Dirent::decode(value), Some(parent)) else {
            return Ok(());
        };
        check_entry(check, &mut names, (parent, name), entry)
    })?;
    Ok(names)
}

fn check_entry(
    check: &mut Check<'_>,
    names: &mut Names,
    (parent, name): (Ino, &[u8]),
    mut entry: Dirent,
) -> Result<(), FsError> {
    match read_inode(check.pipeline, entry.ino) {
        Ok(Some(inode)) => check_named(check, (parent, name), &mut entry, inode)?,
        Ok(None) => {
            let mut mend = Edit::default();
            mend.delete_entry(parent, name, entry.cookie);
            return check.mendable(FindingKind::NameWithoutInode, Some(parent), mend);
        }
        // Found when its own turn comes; until then the name leads to it.
        Err(FsError::Format(_)) => {}
        Err(error) => return Err(error),
    }
    check_position_of(check, (parent, name), &entry)?;
    let is_dir = entry.kind == FileKind::Directory;
    *names.counts.entry(entry.ino).or_default() += 1;
    let entries = names.directories.entry(parent).or_default();
    entries.count += 1;
    entries.subdirectories += u32::from(is_dir);
    entries.last_cookie = entries.last_cookie.max(entry.cookie.0);
    Ok(())
}

/// Checks what a name says of its inode, and what the inode says of where its name is.
fn check_named(
    check: &mut Check<'_>,
    (parent, name): (Ino, &[u8]),
    entry: &mut Dirent,
    inode: Inode,
) -> Result<(), FsError> {
    if inode.kind != entry.kind {
        entry.kind = inode.kind;
        let mut mend = Edit::default();
        mend.put_entry(parent, name, entry);
        check.mendable(FindingKind::NameOfOtherKind, Some(entry.ino), mend)?;
    }
    if inode.kind == FileKind::Directory && inode.parent != parent {
        let mut mend = Edit::default();
        mend.put_inode(entry.ino, &Inode { parent, ..inode });
        check.mendable(FindingKind::WrongParent, Some(entry.ino), mend)?;
    }
    Ok(())
}

fn check_position_of(
    check: &mut Check<'_>,
    (parent, name): (Ino, &[u8]),
    entry: &Dirent,
) -> Result<(), FsError> {
    let found = check.pipeline.get(&key::position(parent, entry.cookie))?;
    let position = found.map(|value| Position::decode(&value));
    let matches = |position: &Position| {
        position.ino == entry.ino && position.kind == entry.kind && position.name == name
    };
    match position {
        Some(Ok(position)) if matches(&position) => Ok(()),
        Some(Ok(position)) if position.name != name => {
            // Another name's place: this one needs one of its own, which only a new entry gets.
            check.lost(FindingKind::NameWithoutPosition, Some(entry.ino));
            Ok(())
        }
        Some(_) | None => {
            let mut mend = Edit::default();
            mend.put_entry(parent, name, entry);
            check.mendable(FindingKind::NameWithoutPosition, Some(entry.ino), mend)
        }
    }
}

/// Checks each place in a listing against the name it stands for.
pub(super) fn check_positions(check: &mut Check<'_>) -> Result<(), FsError> {
    let range = (
        key::position(Ino(0), Cookie(0)),
        key::positions_after(Ino(u64::MAX), Cookie(0)).1,
    );
    check.each(range, |check, key, value| {
        let Some((parent, cookie)) = check.decoded(key::parse_position(key), None) else {
            return Ok(());
        };
        let Some(position) = check.decoded(Position::decode(value), Some(parent)) else {
            return Ok(());
        };
        let entry = check.pipeline.get(&key::dirent(parent, &position.name))?;
        let entry = entry.map(|value| Dirent::decode(&value));
        if entry.is_some_and(|entry| entry.is_ok_and(|entry| entry.cookie == cookie)) {
            return Ok(());
        }
        let mut mend = Edit::default();
        mend.delete_position(parent, cookie);
        check.mendable(FindingKind::PositionWithoutName, Some(parent), mend)
    })
}

/// Checks each inode against the names counted.
pub(super) fn check_inodes(check: &mut Check<'_>, names: &Names) -> Result<(), FsError> {
    let mut below_root = HashSet::from([Ino::ROOT]);
    check.each(key::inodes(), |check, key, value| {
        let Some(ino) = check.decoded(key::parse_inode(key), None) else {
            return Ok(());
        };
        let Some(inode) = check.decoded(Inode::decode(value), Some(ino)) else {
            return Ok(());
        };
        check.report.inodes += 1;
        let count = names.counts.get(&ino).copied().unwrap_or(0);
        if inode.links == 0 && count == 0 {
            return check_mark(check, ino);
        }
        if inode.kind == FileKind::Directory {
            check.report.directories += 1;
            check_directory(check, names, ino, inode)?;
            if count == 0 && ino != Ino::ROOT {
                return adopt(check, ino);
            }
            return check_below_root(check, &mut below_root, ino);
        }
        if names.directories.contains_key(&ino) {
            check.lost(FindingKind::NamesOutsideDirectory, Some(ino));
        }
        check_has_extents(check, ino, &inode)?;
        match count {
            0 => adopt(check, ino),
            _ if count == inode.links => Ok(()),
            _ => {
                let inode = record_of(check, ino)?.unwrap_or(inode);
                set_links(check, ino, inode, count)
            }
        }
    })?;
    if !check.is_there(&key::inode(Ino::ROOT))? {
        check.lost(FindingKind::NoRoot, Some(Ino::ROOT));
    }
    Ok(())
}

/// Files with extents are summed up later; here are those that only claim to have some.
fn check_has_extents(check: &mut Check<'_>, ino: Ino, inode: &Inode) -> Result<(), FsError> {
    let (from, end) = key::extents_from(ino, 0);
    if inode.allocated_bytes == 0 || !check.pipeline.scan(&from, &end, 1)?.is_empty() {
        return Ok(());
    }
    let mut mend = Edit::default();
    let mended = Inode {
        allocated_bytes: 0,
        ..inode.clone()
    };
    mend.put_inode(ino, &mended);
    let kind = FindingKind::WrongAllocation {
        recorded: inode.allocated_bytes,
        counted: 0,
    };
    check.mendable(kind, Some(ino), mend)
}

fn check_mark(check: &mut Check<'_>, ino: Ino) -> Result<(), FsError> {
    if check.is_there(&key::orphan(ino))? {
        return Ok(());
    }
    let mut mend = Edit::default();
    mend.put_orphan(ino);
    check.mendable(FindingKind::Unmarked, Some(ino), mend)
}

fn check_directory(
    check: &mut Check<'_>,
    names: &Names,
    ino: Ino,
    mut inode: Inode,
) -> Result<(), FsError> {
    let entries = names.directories.get(&ino).copied().unwrap_or_default();
    if inode.size != entries.count || inode.next_cookie.0 <= entries.last_cookie {
        inode.size = entries.count;
        let free = Cookie(entries.last_cookie + 1).max(FIRST_COOKIE);
        inode.next_cookie = inode.next_cookie.max(free);
        let mut mend = Edit::default();
        mend.put_inode(ino, &inode);
        check.mendable(FindingKind::WrongEntries, Some(ino), mend)?;
    }
    let links = entries.subdirectories + 2;
    if inode.links != links {
        set_links(check, ino, inode, links)?;
    }
    Ok(())
}

fn set_links(
    check: &mut Check<'_>,
    ino: Ino,
    mut inode: Inode,
    counted: u32,
) -> Result<(), FsError> {
    let recorded = std::mem::replace(&mut inode.links, counted);
    let mut mend = Edit::default();
    mend.put_inode(ino, &inode);
    let kind = FindingKind::WrongLinks { recorded, counted };
    check.mendable(kind, Some(ino), mend)
}

/// Gives an inode without a name one in the root directory.
fn adopt(check: &mut Check<'_>, ino: Ino) -> Result<(), FsError> {
    let (Some(mut root), Some(mut inode)) = (record_of(check, Ino::ROOT)?, record_of(check, ino)?)
    else {
        check.lost(FindingKind::Nameless, Some(ino));
        return Ok(());
    };
    let name = format!("lost+found-{ino}");
    let entry = Dirent {
        ino,
        kind: inode.kind,
        cookie: root.next_cookie,
    };
    root.next_cookie = Cookie(root.next_cookie.0 + 1);
    root.size += 1;
    if inode.kind == FileKind::Directory {
        root.links += 1;
        inode.parent = Ino::ROOT;
    } else {
        inode.links = 1;
    }
    let mut mend = Edit::default();
    mend.put_entry(Ino::ROOT, name.as_bytes(), &entry);
    mend.put_inode(ino, &inode);
    mend.put_inode(Ino::ROOT, &root);
    check.mendable(FindingKind::Nameless, Some(ino), mend)
}

/// Checks that a directory's parents lead to the root. Those that do are remembered.
fn check_below_root(
    check: &mut Check<'_>,
    below_root: &mut HashSet<Ino>,
    ino: Ino,
) -> Result<(), FsError> {
    let mut way = Vec::new();
    let mut at = ino;
    while !below_root.contains(&at) {
        let parent = record_of(check, at)?.map(|inode| inode.parent);
        match parent {
            Some(parent) if !way.contains(&at) => {
                way.push(at);
                at = parent;
            }
            _ => {
                check.lost(FindingKind::Unreachable, Some(ino));
                return Ok(());
            }
        }
    }
    below_root.extend(way);
    Ok(())
}

/// Checks that each attribute belongs to an inode.
pub(super) fn check_attributes(check: &mut Check<'_>) -> Result<(), FsError> {
    let range = (key::xattrs(Ino(0)).0, key::xattrs(Ino(u64::MAX)).1);
    check.each(range, |check, key, _| {
        let Some((ino, name)) = check.decoded(key::parse_xattr(key), None) else {
            return Ok(());
        };
        if check.is_there(&key::inode(ino))? {
            return Ok(());
        }
        let mut mend = Edit::default();
        mend.delete_xattr(ino, name);
        check.mendable(FindingKind::AttributeWithoutInode, Some(ino), mend)
    })
}

/// Reads an inode for others' sake: whether it decodes is found out when its own turn comes.
fn record_of(check: &Check<'_>, ino: Ino) -> Result<Option<Inode>, FsError> {
    match read_inode(check.pipeline, ino) {
        Err(FsError::Format(_)) => Ok(None),
        other => other,
    }
}
