//! Walking a tree, for tools that read a volume without mounting it.

use std::collections::HashSet;

use crate::format::record::{FileKind, Position};
use crate::format::{Cookie, Ino};

use super::Fs;
use super::directories::Listing;
use super::error::{FsError, corrupt};
use super::types::Attr;

pub use super::limits::DEPTH_MAX;

/// Open directories that keep what they have read of their listings; inner ones read it again.
const PAGES_KEPT: usize = 64;

/// Something in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Path from the root on, without a leading slash; the root itself is the empty path.
    pub path: Vec<u8>,
    /// The attributes of the entry.
    pub attr: Attr,
}

/// Finds what a path names. Symbolic links are not followed, `..` is, and no look-up is counted.
///
/// # Errors
///
/// [`FsError::NotFound`], [`FsError::NotDirectory`], or a failure of the index.
pub fn resolve(fs: &Fs, path: &[u8]) -> Result<Attr, FsError> {
    let mut attr = fs.attributes().get(Ino::ROOT)?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        attr = fs.names().find(attr.ino, name)?;
    }
    Ok(attr)
}

/// Walks what a path names and everything in it, depth first, a directory before what it holds, in
/// the order of creation.
///
/// Each entry is one that a look-up of its name finds, so no path comes twice. A directory is entered
/// once, by whichever path comes first, and down to [`DEPTH_MAX`] names; where a volume has more of
/// either, the walk passes an error and goes on. Memory grows with the number of directories.
///
/// # Errors
///
/// As for [`resolve`].
///
/// # Examples
///
/// ```no_run
/// # use cauchyfs::fs::{Fs, FsError, tree};
/// fn bytes_below(fs: &Fs, path: &[u8]) -> Result<u64, FsError> {
///     tree::walk(fs, path)?.map(|entry| Ok(entry?.attr.size)).sum()
/// }
/// ```
pub fn walk<'a>(fs: &'a Fs, from: &[u8]) -> Result<Walk<'a>, FsError> {
    let first = TreeEntry {
        path: normal(from),
        attr: resolve(fs, from)?,
    };
    Ok(Walk::starting_at(fs, first))
}

/// Walks an inode and everything in it, like [`walk`]; paths begin below it, and its own is empty.
///
/// # Errors
///
/// [`FsError::NotFound`], or a failure of the index.
pub fn walk_from(fs: &Fs, ino: Ino) -> Result<Walk<'_>, FsError> {
    let first = TreeEntry {
        path: Vec::new(),
        attr: fs.attributes().get(ino)?,
    };
    Ok(Walk::starting_at(fs, first))
}

/// A path with single slashes between its names, and none around them.
fn normal(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
    names.join(&b'/')
}

/// Returned by [`walk`]. After an error it goes on with what else there is.
pub struct Walk<'a> {
    fs: &'a Fs,
    first: Option<TreeEntry>,
    /// Path of the innermost open directory.
    path: Vec<u8>,
    open: Vec<Open>,
    /// Directories that have been entered: a damaged volume may have one in itself, or under two names.
    entered: HashSet<Ino>,
}

/// A directory that is being walked.
struct Open {
    ino: Ino,
    /// Length of its path, which begins the path of all directories inside.
    path_len: usize,
    after: Cookie,
    page: std::vec::IntoIter<<Listing as IntoIterator>::Item>,
}

impl<'a> Walk<'a> {
    fn starting_at(fs: &'a Fs, first: TreeEntry) -> Self {
        Self {
            fs,
            first: Some(first),
            path: Vec::new(),
            open: Vec::new(),
            entered: HashSet::new(),
        }
    }
}

impl Walk<'_> {
    /// Opens an entry if it is a directory, or says why it cannot.
    fn enter(&mut self, entry: &TreeEntry) -> Result<(), FsError> {
        if entry.attr.kind != FileKind::Directory {
            return Ok(());
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(corrupt(entry.attr.ino, "it lies too deep"));
        }
        if !self.entered.insert(entry.attr.ino) {
            return Err(corrupt(entry.attr.ino, "the directory has two paths"));
        }
        if self.open.len() >= PAGES_KEPT
            && let Some(outer) = self.open.last_mut()
        {
            outer.page = Vec::new().into_iter();
        }
        self.path.clone_from(&entry.path);
        self.open.push(Open {
            ino: entry.attr.ino,
            path_len: entry.path.len(),
            after: Cookie(0),
            page: Vec::new().into_iter(),
        });
        Ok(())
    }

    fn leave(&mut self) {
        self.open.pop();
        let outer = self.open.last().map_or(0, |outer| outer.path_len);
        self.path.truncate(outer);
    }

    /// Returns the next entry of the innermost directory, if it has one.
    fn step(&mut self) -> Option<Result<TreeEntry, FsError>> {
        let open = self.open.last_mut()?;
        if open.page.as_slice().is_empty() {
            match self
                .fs
                .directories()
                .confirmed_listing(open.ino, open.after)
            {
                Ok(page) => open.page = page.into_iter(),
                Err(error) => {
                    self.leave();
                    return Some(Err(error));
                }
            }
        }
        let (cookie, position) = open.page.next()?;
        open.after = cookie;
        Some(position.and_then(|position| self.entry(&position)))
    }

    /// Returns an entry of the innermost directory.
    fn entry(&self, position: &Position) -> Result<TreeEntry, FsError> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&position.name);
        let attr = self.fs.attributes().get(position.ino)?;
        Ok(TreeEntry { path, attr })
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<TreeEntry, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            return Some(self.enter(&first).map(|()| first));
        }
        while !self.open.is_empty() {
            match self.step() {
                Some(Ok(entry)) => return Some(self.enter(&entry).map(|()| entry)),
                Some(error) => return Some(error),
                None => self.leave(),
            }
        }
        None
    }
}
