//! From inodes back to their names.
//!
//! A directory's record says in which directory it lies; nothing else says where an inode has its names.
//! So they are found by looking at all names there are, once for any number of inodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use crate::format::record::{Dirent, FileKind};
use crate::format::{Ino, Record, key};
use crate::transaction::{CommitError, Transactions};

use super::error::FsError;
use super::inodes::read_inode;
use super::limits::DEPTH_MAX;

/// Bytes of all paths that are returned together; a damaged volume can have few names and endless paths.
const BYTES_MAX: usize = 64 << 20;

/// A name in a directory.
type Named = (Ino, Vec<u8>);

/// Paths from the root on, without a leading slash.
pub(super) type Paths = BTreeMap<Ino, Vec<Vec<u8>>>;

/// Finds all paths of some inodes, but no more than `most` names of them.
///
/// The search ends once as many names are found as the inodes have links. Damaged entries on the way are passed over,
/// and have no path.
///
/// # Errors
///
/// If the index cannot be read.
pub(super) fn find(
    transactions: &Transactions,
    inos: &BTreeSet<Ino>,
    most: usize,
) -> Result<Paths, FsError> {
    let mut left = HashMap::new();
    for &ino in inos.iter().filter(|ino| **ino != Ino::ROOT) {
        let names = match whole_inode(transactions, ino)? {
            Some((FileKind::Directory, _, _)) => 1,
            Some((_, links, _)) => links,
            // It may have any number of them.
            None => u32::MAX,
        };
        left.insert(ino, names);
    }
    left.retain(|_, names| *names > 0);
    let names = names_of(transactions, left, most)?;
    let mut ancestors = Ancestors::default();
    for (parent, _) in names.values().flatten() {
        ancestors.want(transactions, *parent)?;
    }
    ancestors.find_names(transactions)?;
    let mut paths = Paths::new();
    let mut bytes_left = BYTES_MAX;
    for ino in inos {
        let names = names.get(ino).into_iter().flatten();
        let mut through = |(parent, name): &Named| {
            let mut path = ancestors.path(*parent)?;
            path.push(name);
            let len = path.iter().map(|name| name.len() + 1).sum();
            bytes_left = bytes_left.checked_sub(len)?;
            Some(path.join(&b'/'))
        };
        let mut found: Vec<Vec<u8>> = names.filter_map(&mut through).collect();
        if *ino == Ino::ROOT {
            found.push(Vec::new());
        }
        paths.insert(*ino, found);
    }
    Ok(paths)
}

/// Returns the path of each of some directories, from the root on and without a leading slash. Directories without a
/// path are left out, and so are those whose paths would be too long together.
///
/// # Errors
///
/// If the index cannot be read.
pub(super) fn of_directories(
    transactions: &Transactions,
    directories: &BTreeSet<Ino>,
) -> Result<BTreeMap<Ino, Vec<u8>>, FsError> {
    let mut ancestors = Ancestors::default();
    for ino in directories {
        ancestors.want(transactions, *ino)?;
    }
    ancestors.find_names(transactions)?;
    let mut bytes_left = BYTES_MAX;
    let path = |ino: &Ino| {
        let path = ancestors.path(*ino)?;
        let len = path.iter().map(|name| name.len() + 1).sum();
        bytes_left = bytes_left.checked_sub(len)?;
        Some((*ino, path.join(&b'/')))
    };
    Ok(directories.iter().filter_map(path).collect())
}

/// Returns what an inode is, its links and its parent; nothing if it is gone or damaged.
fn whole_inode(
    transactions: &Transactions,
    ino: Ino,
) -> Result<Option<(FileKind, u32, Ino)>, FsError> {
    match read_inode(transactions, ino) {
        Ok(found) => Ok(found.map(|inode| (inode.kind, inode.links, inode.parent))),
        Err(FsError::Format(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds names by looking at all there are, until every inode has as many as are left to be found.
fn names_of(
    transactions: &Transactions,
    mut left: HashMap<Ino, u32>,
    most: usize,
) -> Result<BTreeMap<Ino, Vec<Named>>, FsError> {
    let mut names: BTreeMap<Ino, Vec<Named>> = BTreeMap::new();
    if left.is_empty() {
        return Ok(names);
    }
    let mut count = 0;
    let (from, end) = (key::dirents(Ino(0)).0, key::dirents(Ino(u64::MAX)).1);
    transactions.visit(&from, &end, |key, value| {
        if let (Ok((parent, name)), Ok(entry)) = (key::parse_dirent(key), Dirent::decode(value))
            && let Some(links) = left.get_mut(&entry.ino)
        {
            names
                .entry(entry.ino)
                .or_default()
                .push((parent, name.to_vec()));
            count += 1;
            *links -= 1;
            if *links == 0 {
                left.remove(&entry.ino);
            }
        }
        Ok::<_, CommitError>(if left.is_empty() || count == most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    Ok(names)
}

/// Ancestors that paths lead through.
#[derive(Default)]
struct Ancestors {
    /// The parent of each.
    parents: BTreeMap<Ino, Ino>,
    names: HashMap<Ino, Vec<u8>>,
}

impl Ancestors {
    /// Adds a directory and those it lies in.
    fn want(&mut self, transactions: &Transactions, ino: Ino) -> Result<(), FsError> {
        let mut at = ino;
        while at != Ino::ROOT && !self.parents.contains_key(&at) {
            match whole_inode(transactions, at)? {
                Some((FileKind::Directory, _, parent)) => self.parents.insert(at, parent),
                _ => break,
            };
            at = self.parents[&at];
        }
        Ok(())
    }

    /// Finds the name of each in the directory that it lies in.
    fn find_names(&mut self, transactions: &Transactions) -> Result<(), FsError> {
        let mut children: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        for (child, parent) in &self.parents {
            children.entry(*parent).or_default().insert(*child);
        }
        for (parent, mut wanted) in children {
            let (from, end) = key::dirents(parent);
            transactions.visit(&from, &end, |key, value| {
                if let (Ok((_, name)), Ok(entry)) = (key::parse_dirent(key), Dirent::decode(value))
                    && wanted.remove(&entry.ino)
                {
                    self.names.insert(entry.ino, name.to_vec());
                }
                Ok::<_, CommitError>(if wanted.is_empty() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
        }
        Ok(())
    }

    /// Returns the names on the way from the root to a directory.
    fn path(&self, ino: Ino) -> Option<Vec<&[u8]>> {
        let mut way: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            if way.len() > DEPTH_MAX {
                return None;
            }
            way.push(self.names.get(&at)?);
            at = *self.parents.get(&at)?;
        }
        way.reverse();
        Some(way)
    }
}
