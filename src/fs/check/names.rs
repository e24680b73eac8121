//! Names against inodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::format::record::{Dirent, FileKind, Inode, Position};
use crate::format::{Cookie, FormatError, Ino, NameFault, Record, key};
use crate::fs::edit::Edit;
use crate::fs::entries::FIRST_COOKIE;
use crate::fs::error::FsError;
use crate::fs::inodes::read_inode;

use super::checker::{Checker, Cursor};
use super::report::FindingKind;

/// The totals of the entries of one directory.
#[derive(Clone, Copy, Debug, Default)]
struct CheckedEntries {
    count: u64,
    subdirectories: u32,
    last_cookie: u64,
}

/// Name under which a directory stays.
#[derive(Clone)]
struct Home {
    parent: Ino,
    name: Vec<u8>,
    /// True if the directory's inode records this parent.
    is_recorded: bool,
}

/// The totals of all names.
#[derive(Default)]
pub(super) struct NameCounts {
    /// The number of names of each inode.
    counts: HashMap<Ino, u32>,
    directories: HashMap<Ino, CheckedEntries>,
    /// The name of each directory, the root excepted.
    homes: BTreeMap<Ino, Home>,
}

impl NameCounts {
    /// Chooses between the names of a directory. Returns the one that is surplus, if it has two: it keeps
    /// the first in the parent that it records, else the first of all.
    fn choose(&mut self, ino: Ino, found: &Home) -> Option<(Ino, Vec<u8>)> {
        let Some(home) = self.homes.get_mut(&ino) else {
            self.homes.insert(ino, found.clone());
            return None;
        };
        if home.is_recorded || !found.is_recorded {
            return Some((found.parent, found.name.clone()));
        }
        let surplus = std::mem::replace(home, found.clone());
        // It was counted when it was found.
        *self.counts.entry(ino).or_default() -= 1;
        let entries = self.directories.entry(surplus.parent).or_default();
        entries.count -= 1;
        entries.subdirectories -= 1;
        Some((surplus.parent, surplus.name))
    }
}

/// Checks each name against the inode it leads to and its place in the listing, and counts.
pub(super) fn check_entries(check: &mut Checker<'_>) -> Result<NameCounts, FsError> {
    let mut names = NameCounts::default();
    let range = (key::dirents(Ino(0)).0, key::dirents(Ino(u64::MAX)).1);
    check.each(range, |check, key, value| {
        let parsed = key::parse_dirent(key);
        if let Err(FormatError::Name { fault, .. }) = parsed {
            return check_bad_name(check, key, fault);
        }
        let Some((parent, name)) = check.decoded(parsed, None) else {
            return Ok(());
        };
        let Some(entry) = check.decoded(Dirent::decode(value), Some(parent)) else {
            return Ok(());
        };
        check_entry(check, &mut names, (parent, name), entry)
    })?;
    check_parents(check, &names)?;
    Ok(names)
}

/// Takes a name away that no entry may have. An inode without another name gets one in the root directory
/// when its own turn comes.
fn check_bad_name(check: &mut Checker<'_>, key: &[u8], fault: NameFault) -> Result<(), FsError> {
    let (parent, name) = key::parse_dirent_of_any_name(key)?;
    let mut repair = Edit::default();
    repair.delete_name(parent, name);
    check.repairable(FindingKind::BadName(fault), Some(parent), repair)
}

fn check_entry(
    check: &mut Checker<'_>,
    names: &mut NameCounts,
    (parent, name): (Ino, &[u8]),
    mut entry: Dirent,
) -> Result<(), FsError> {
    match read_inode(check.transactions, entry.ino) {
        Ok(Some(inode)) => {
            check_named(check, (parent, name), &mut entry, &inode)?;
            if inode.kind == FileKind::Directory {
                let found = Home {
                    parent,
                    name: name.to_vec(),
                    is_recorded: inode.parent == parent,
                };
                if !check_only_name(check, names, entry.ino, &found)? {
                    return Ok(());
                }
            }
        }
        Ok(None) => {
            let mut repair = Edit::default();
            repair.delete_entry(parent, name, entry.cookie);
            return check.repairable(FindingKind::NameWithoutInode, Some(parent), repair);
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

/// Checks that a directory has no other name, and takes the surplus one away. Says whether the name that
/// was found is the one that stays.
fn check_only_name(
    check: &mut Checker<'_>,
    names: &mut NameCounts,
    ino: Ino,
    found: &Home,
) -> Result<bool, FsError> {
    let surplus = if ino == Ino::ROOT {
        Some((found.parent, found.name.clone()))
    } else {
        names.choose(ino, found)
    };
    let Some((parent, name)) = surplus else {
        return Ok(true);
    };
    let stays = (parent, &name) != (found.parent, &found.name);
    let mut repair = Edit::default();
    repair.delete_name(parent, &name);
    check.repairable(FindingKind::DirectoryNamedTwice, Some(ino), repair)?;
    Ok(stays)
}

/// Checks what a name says of its inode.
fn check_named(
    check: &mut Checker<'_>,
    (parent, name): (Ino, &[u8]),
    entry: &mut Dirent,
    inode: &Inode,
) -> Result<(), FsError> {
    if inode.kind == entry.kind {
        return Ok(());
    }
    entry.kind = inode.kind;
    let mut repair = Edit::default();
    repair.put_entry(parent, name, entry);
    check.repairable(FindingKind::NameOfOtherKind, Some(entry.ino), repair)
}

/// Checks that each directory records the one in which it has its name.
fn check_parents(check: &mut Checker<'_>, names: &NameCounts) -> Result<(), FsError> {
    for (&ino, home) in names.homes.iter().filter(|(_, home)| !home.is_recorded) {
        if let Some(inode) = record_of(check, ino)? {
            let parent = home.parent;
            let mut repair = Edit::default();
            repair.put_inode(ino, &Inode { parent, ..inode });
            check.repairable(FindingKind::WrongParent, Some(ino), repair)?;
        }
    }
    Ok(())
}

fn check_position_of(
    check: &mut Checker<'_>,
    (parent, name): (Ino, &[u8]),
    entry: &Dirent,
) -> Result<(), FsError> {
    let found = check
        .transactions
        .get(&key::position(parent, entry.cookie))?;
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
            let mut repair = Edit::default();
            repair.put_entry(parent, name, entry);
            check.repairable(FindingKind::NameWithoutPosition, Some(entry.ino), repair)
        }
    }
}

/// Checks each place in a listing against the name it stands for.
pub(super) fn check_positions(check: &mut Checker<'_>) -> Result<(), FsError> {
    let range = (
        key::position(Ino(0), Cookie(0)),
        key::positions_after(Ino(u64::MAX), Cookie(0)).1,
    );
    check.each(range, |check, key, value| {
        let Some((parent, cookie)) = check.decoded(key::parse_position(key), None) else {
            return Ok(());
        };
        let mut repair = Edit::default();
        repair.delete_position(parent, cookie);
        let position = Position::decode(value);
        if let Err(FormatError::Name { fault, .. }) = position {
            return check.repairable(FindingKind::BadName(fault), Some(parent), repair);
        }
        let Some(position) = check.decoded(position, Some(parent)) else {
            return Ok(());
        };
        let entry = check
            .transactions
            .get(&key::dirent(parent, &position.name))?;
        let kind = match entry.map(|value| Dirent::decode(&value)) {
            Some(Ok(entry)) if entry.cookie == cookie => return Ok(()),
            Some(Ok(_)) => FindingKind::DuplicateName,
            Some(Err(_)) | None => FindingKind::PositionWithoutName,
        };
        check.repairable(kind, Some(parent), repair)
    })
}

/// Checks each inode against the names counted.
pub(super) fn check_inodes(check: &mut Checker<'_>, names: &NameCounts) -> Result<(), FsError> {
    let mut ways = Ways::default();
    let mut unreachable = Vec::new();
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
            if ways.follow(check, ino)? != Way::Root {
                unreachable.push(ino);
            }
            return Ok(());
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
    ways.looping.clear();
    for ino in unreachable {
        bring_below_root(check, &mut ways, ino)?;
    }
    if !check.is_there(&key::inode(Ino::ROOT))? {
        check.lost(FindingKind::NoRoot, Some(Ino::ROOT));
    }
    Ok(())
}

/// Files with extents are summed up later; here are those that only claim to have some.
fn check_has_extents(check: &mut Checker<'_>, ino: Ino, inode: &Inode) -> Result<(), FsError> {
    let (from, end) = key::extents_from(ino, 0);
    if inode.allocated_bytes == 0 || !check.transactions.scan(&from, &end, 1)?.is_empty() {
        return Ok(());
    }
    let mut repair = Edit::default();
    let repaired = Inode {
        allocated_bytes: 0,
        unwritten_bytes: 0,
        ..inode.clone()
    };
    repair.put_inode(ino, &repaired);
    repair.mark_unwritten(ino, false);
    let kind = FindingKind::WrongAllocation {
        recorded: inode.allocated_bytes,
        counted: 0,
    };
    check.repairable(kind, Some(ino), repair)
}

fn check_mark(check: &mut Checker<'_>, ino: Ino) -> Result<(), FsError> {
    if check.is_there(&key::orphan(ino))? {
        return Ok(());
    }
    let mut repair = Edit::default();
    repair.put_orphan(ino);
    check.repairable(FindingKind::Unmarked, Some(ino), repair)
}

fn check_directory(
    check: &mut Checker<'_>,
    names: &NameCounts,
    ino: Ino,
    mut inode: Inode,
) -> Result<(), FsError> {
    let entries = names.directories.get(&ino).copied().unwrap_or_default();
    if inode.size != entries.count || inode.next_cookie.0 <= entries.last_cookie {
        inode.size = entries.count;
        let free = Cookie(entries.last_cookie.saturating_add(1)).max(FIRST_COOKIE);
        inode.next_cookie = inode.next_cookie.max(free);
        let mut repair = Edit::default();
        repair.put_inode(ino, &inode);
        check.repairable(FindingKind::WrongEntries, Some(ino), repair)?;
    }
    let links = entries.subdirectories + 2;
    if inode.links != links {
        set_links(check, ino, inode, links)?;
    }
    Ok(())
}

fn set_links(
    check: &mut Checker<'_>,
    ino: Ino,
    mut inode: Inode,
    counted: u32,
) -> Result<(), FsError> {
    let recorded = std::mem::replace(&mut inode.links, counted);
    let mut repair = Edit::default();
    repair.put_inode(ino, &inode);
    let kind = FindingKind::WrongLinks { recorded, counted };
    check.repairable(kind, Some(ino), repair)
}

/// Gives an inode without a name one in the root directory.
fn adopt(check: &mut Checker<'_>, ino: Ino) -> Result<(), FsError> {
    let mut repair = Edit::default();
    if let Some(inode) = record_of(check, ino)?
        && put_into_root(check, &mut repair, ino, inode)?
    {
        check.repairable(FindingKind::Nameless, Some(ino), repair)
    } else {
        check.lost(FindingKind::Nameless, Some(ino));
        Ok(())
    }
}

/// Puts a name in the root directory for an inode into an edit; says whether there is a root directory.
fn put_into_root(
    check: &Checker<'_>,
    repair: &mut Edit,
    ino: Ino,
    mut inode: Inode,
) -> Result<bool, FsError> {
    let Some(mut root) = record_of(check, Ino::ROOT)? else {
        return Ok(false);
    };
    let name = free_name(check, ino)?;
    let entry = Dirent {
        ino,
        kind: inode.kind,
        cookie: root.next_cookie,
    };
    root.next_cookie = Cookie(root.next_cookie.0.saturating_add(1));
    root.size = root.size.saturating_add(1);
    if inode.kind == FileKind::Directory {
        root.links = root.links.saturating_add(1);
        inode.parent = Ino::ROOT;
    } else {
        inode.links = 1;
    }
    repair.put_entry(Ino::ROOT, name.as_bytes(), &entry);
    repair.put_inode(ino, &inode);
    repair.put_inode(Ino::ROOT, &root);
    Ok(true)
}

/// Returns a name that nothing in the root directory has.
fn free_name(check: &Checker<'_>, ino: Ino) -> Result<String, FsError> {
    let mut name = format!("lost+found-{ino}");
    let mut attempt = 0_u64;
    while check.is_there(&key::dirent(Ino::ROOT, name.as_bytes()))? {
        attempt += 1;
        name = format!("lost+found-{ino}.{attempt}");
    }
    Ok(name)
}

/// End of the way from a directory through its parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Root,
    /// A loop, with one directory of it.
    Loop(Ino),
    Missing,
}

/// Directories whose ways are known, so that each is followed once.
struct Ways {
    below_root: HashSet<Ino>,
    looping: HashSet<Ino>,
    missing: HashSet<Ino>,
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            below_root: HashSet::from([Ino::ROOT]),
            looping: HashSet::new(),
            missing: HashSet::new(),
        }
    }
}

impl Ways {
    /// Follows a directory's parents.
    fn follow(&mut self, check: &Checker<'_>, ino: Ino) -> Result<Way, FsError> {
        let mut passed = HashSet::new();
        let mut at = ino;
        let (way, known) = loop {
            if self.below_root.contains(&at) {
                break (Way::Root, &mut self.below_root);
            }
            if self.missing.contains(&at) {
                break (Way::Missing, &mut self.missing);
            }
            if self.looping.contains(&at) || !passed.insert(at) {
                break (Way::Loop(at), &mut self.looping);
            }
            match record_of(check, at)? {
                Some(inode) => at = inode.parent,
                None => break (Way::Missing, &mut self.missing),
            }
        };
        known.extend(passed);
        Ok(way)
    }
}

/// Moves a directory that lies in itself to the root directory, with what it holds.
fn bring_below_root(check: &mut Checker<'_>, ways: &mut Ways, ino: Ino) -> Result<(), FsError> {
    if !check.repair {
        check.lost(FindingKind::Unreachable, Some(ino));
        return Ok(());
    }
    let mut repair = Edit::default();
    let is_mendable = match ways.follow(check, ino)? {
        // It came with another one.
        Way::Root => true,
        Way::Loop(at) => match take_out_of_parent(check, &mut repair, at)? {
            Some(inode) => put_into_root(check, &mut repair, at, inode)?,
            None => false,
        },
        Way::Missing => false,
    };
    if is_mendable {
        // The directories of a loop now lie below the root.
        ways.looping.clear();
        check.repairable(FindingKind::Unreachable, Some(ino), repair)
    } else {
        ways.missing.insert(ino);
        check.lost(FindingKind::Unreachable, Some(ino));
        Ok(())
    }
}

/// Puts the removal of a directory's name into an edit. Returns the directory as it is then, if the name
/// has been found.
fn take_out_of_parent(
    check: &Checker<'_>,
    repair: &mut Edit,
    ino: Ino,
) -> Result<Option<Inode>, FsError> {
    let Some(mut inode) = record_of(check, ino)? else {
        return Ok(None);
    };
    let parent = inode.parent;
    let (from, end) = key::dirents(parent);
    let mut cursor = Cursor::new(from, end);
    while let Some((key, value)) = cursor.next(check.transactions)? {
        let (Ok((_, name)), Ok(entry)) = (key::parse_dirent(&key), Dirent::decode(&value)) else {
            continue;
        };
        if entry.ino != ino {
            continue;
        }
        repair.delete_entry(parent, name, entry.cookie);
        let count_out = |outer: &mut Inode| {
            outer.size = outer.size.saturating_sub(1);
            outer.links = outer.links.saturating_sub(1);
        };
        if parent == ino {
            count_out(&mut inode);
        } else if let Some(mut outer) = record_of(check, parent)? {
            count_out(&mut outer);
            repair.put_inode(parent, &outer);
        }
        return Ok(Some(inode));
    }
    Ok(None)
}

/// Checks that each attribute belongs to an inode.
pub(super) fn check_attributes(check: &mut Checker<'_>) -> Result<(), FsError> {
    let range = (key::xattrs(Ino(0)).0, key::xattrs(Ino(u64::MAX)).1);
    check.each(range, |check, key, _| {
        let Some((ino, name)) = check.decoded(key::parse_xattr(key), None) else {
            return Ok(());
        };
        if check.is_there(&key::inode(ino))? {
            return Ok(());
        }
        let mut repair = Edit::default();
        repair.delete_xattr(ino, name);
        check.repairable(FindingKind::AttributeWithoutInode, Some(ino), repair)
    })
}

/// Reads an inode for others' sake: whether it decodes is found out when its own turn comes.
fn record_of(check: &Checker<'_>, ino: Ino) -> Result<Option<Inode>, FsError> {
    match read_inode(check.transactions, ino) {
        Err(FsError::Format(_)) => Ok(None),
        other => other,
    }
}
