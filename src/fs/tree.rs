//! Walking a tree, for tools that read a volume without mounting it.

use crate::format::record::FileKind;
use crate::format::{Cookie, Ino};

use super::directory::Listing;
use super::{Attr, Fs, FsError};

/// Something in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where, from the root on, without a leading slash; the root itself is the empty path.
    pub path: Vec<u8>,
    /// What.
    pub attr: Attr,
}

/// Finds what a path names. Symbolic links are not followed, `..` is, and no look-up is counted.
///
/// # Errors
///
/// [`FsError::NotFound`], [`FsError::NotDirectory`], or a failure of the index.
pub fn resolve(fs: &Fs, path: &[u8]) -> Result<Attr, FsError> {
    let mut attr = fs.getattr(Ino::ROOT)?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        attr = fs.find(attr.ino, name)?;
    }
    Ok(attr)
}

/// Walks what a path names and everything in it, depth first, a directory before what it holds, in
/// the order of creation.
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
    let first = Entry {
        path: normal(from),
        attr: resolve(fs, from)?,
    };
    Ok(Walk {
        fs,
        first: Some(first),
        open: Vec::new(),
    })
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
    first: Option<Entry>,
    open: Vec<Open>,
}

/// A directory that is being walked.
struct Open {
    ino: Ino,
    path: Vec<u8>,
    after: Cookie,
    page: std::vec::IntoIter<<Listing as IntoIterator>::Item>,
}

impl Walk<'_> {
    fn enter(&mut self, entry: &Entry) {
        if entry.attr.kind == FileKind::Directory {
            self.open.push(Open {
                ino: entry.attr.ino,
                path: entry.path.clone(),
                after: Cookie(0),
                page: Vec::new().into_iter(),
            });
        }
    }

    /// Returns the next entry of the innermost directory, if it has one.
    fn step(&mut self) -> Option<Result<Entry, FsError>> {
        let open = self.open.last_mut()?;
        if open.page.as_slice().is_empty() {
            match self.fs.listing(open.ino, open.after) {
                Ok(page) => open.page = page.into_iter(),
                Err(error) => {
                    self.open.pop();
                    return Some(Err(error));
                }
            }
        }
        let (cookie, position) = open.page.next()?;
        open.after = cookie;
        let mut path = open.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&position.name);
        let attr = self.fs.getattr(position.ino);
        Some(attr.map(|attr| Entry { path, attr }))
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Entry, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            self.enter(&first);
            return Some(Ok(first));
        }
        while !self.open.is_empty() {
            match self.step() {
                Some(Ok(entry)) => {
                    self.enter(&entry);
                    return Some(Ok(entry));
                }
                Some(error) => return Some(error),
                None => {
                    self.open.pop();
                }
            }
        }
        None
    }
}
