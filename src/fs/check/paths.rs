//! Paths of the inodes in which something was found.

use std::collections::{HashMap, HashSet};

use crate::commit::Pipeline;
use crate::format::record::Dirent;
use crate::format::{Ino, Record, key};

use super::super::{FsError, read_inode};
use super::{Cursor, Finding};

/// Directories that a path may lead through; more are a cycle.
const DEPTH_MAX: usize = 4096;

/// A name in a directory.
type Named = (Ino, Vec<u8>);

/// Gives each finding the path of its inode, where it has one.
pub(super) fn find(pipeline: &Pipeline, findings: &mut [Finding]) -> Result<(), FsError> {
    let mut wanted: HashSet<Ino> = findings.iter().filter_map(|finding| finding.ino).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let parents: Vec<Ino> = wanted.iter().copied().collect();
    for ino in parents {
        add_parents(pipeline, ino, &mut wanted)?;
    }
    let mut names = names_of(pipeline, &wanted)?;
    // A file's directories are known only now.
    let directories: Vec<Ino> = names.values().map(|(parent, _)| *parent).collect();
    let mut more = HashSet::new();
    for ino in directories {
        add_parents(pipeline, ino, &mut more)?;
    }
    more.retain(|ino| !names.contains_key(ino));
    names.extend(names_of(pipeline, &more)?);
    for finding in findings {
        finding.path = finding.ino.and_then(|ino| path(&names, ino));
    }
    Ok(())
}

/// Adds a directory and those it lies in.
fn add_parents(pipeline: &Pipeline, ino: Ino, all: &mut HashSet<Ino>) -> Result<(), FsError> {
    let mut at = ino;
    for _ in 0..DEPTH_MAX {
        if at == Ino::ROOT || at == Ino(0) {
            break;
        }
        all.insert(at);
        at = match read_inode(pipeline, at) {
            Ok(Some(inode)) => inode.parent,
            Ok(None) | Err(FsError::Format(_)) => break,
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// Finds a name of each of these inodes, by looking at all names there are.
fn names_of(pipeline: &Pipeline, inos: &HashSet<Ino>) -> Result<HashMap<Ino, Named>, FsError> {
    let mut names = HashMap::new();
    if inos.is_empty() {
        return Ok(names);
    }
    let mut cursor = Cursor::new(key::dirents(Ino(0)).0, key::dirents(Ino(u64::MAX)).1);
    while let Some((key, value)) = cursor.next(pipeline)? {
        // What does not decode was found before.
        let (Ok((parent, name)), Ok(entry)) = (key::parse_dirent(&key), Dirent::decode(&value))
        else {
            continue;
        };
        if inos.contains(&entry.ino) {
            names.insert(entry.ino, (parent, name.to_vec()));
        }
    }
    Ok(names)
}

fn path(names: &HashMap<Ino, Named>, ino: Ino) -> Option<Vec<u8>> {
    let mut way: Vec<&[u8]> = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let (parent, name) = names.get(&at)?;
        if way.len() > DEPTH_MAX {
            return None;
        }
        way.push(name);
        at = *parent;
    }
    way.reverse();
    Some(way.join(&b'/'))
}
