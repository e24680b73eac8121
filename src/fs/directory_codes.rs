//! Giving directories codes. A directory names the class of stripes for what is made in it, and a file names its own.
//!
//! A file keeps its class where it goes, and until it is given another one: so bytes of one file never lie in stripes of
//! several classes for long, and no call looks at the directories above an inode.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::format::key::Key;
use crate::format::record::{Dirent, FileKind, Inode};
use crate::format::superblock::DIRECTORY_CODES;
use crate::format::{Ino, Record, StripeClass, key};
use crate::transaction::Transactions;
use crate::transaction::catalog::successor;

use super::edit::Edit;
use super::error::FsError;
use super::inodes::{Inodes, read_inode};
use super::paths;

/// Directories whose classes are compared at once.
const DIRECTORIES_AT_ONCE: usize = 1024;

/// A directory that has a name.
#[derive(Clone, Copy, Debug)]
struct Directory {
    ino: Ino,
    parent: Ino,
    class: StripeClass,
}

/// The inodes below a directory that may get its class.
#[derive(Debug, Default)]
struct Below {
    /// Each after the one in which it lies; the directory itself is the first.
    directories: Vec<Ino>,
    files: Vec<Ino>,
}

/// A directory whose class is not that of the directory in which it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCode {
    /// The directory.
    pub directory: Ino,
    /// Its path from the root on, without a leading slash, if every name on the way is known.
    pub path: Option<Vec<u8>>,
    /// The class of what is made in it.
    pub class: StripeClass,
}

/// The codes of directories.
pub struct DirectoryCodes {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
}

impl DirectoryCodes {
    pub(in crate::fs) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
        }
    }

    /// Returns the class of what is made in a directory.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`]; [`FsError::Storage`] from below.
    pub fn get(&self, directory: Ino) -> Result<StripeClass, FsError> {
        let _lock = self.inodes.locks().shared(directory);
        Ok(self.inodes.directory(directory)?.class)
    }

    /// Returns the directories that have another class than the directory in which each lies, but no more than `most`. The
    /// root is one of them if its class is not that of the volume. Reads inodes until so many were found, and none if no
    /// directory of the volume ever had a code. Damaged ones are passed over.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the index cannot be read.
    pub fn list(&self, most: usize) -> Result<Vec<OwnCode>, FsError> {
        let epochs = self.transactions.members().epochs();
        if !epochs.uses_features(DIRECTORY_CODES) {
            return Ok(Vec::new());
        }
        let mut owners = BTreeMap::new();
        let (mut from, end) = key::inodes();
        while owners.len() < most {
            let (directories, next) = self.directories_from(&from, &end)?;
            self.find_owners(&directories, most, &mut owners)?;
            let Some(next) = next else {
                break;
            };
            from = next;
        }
        let paths = paths::of_directories(&self.transactions, &owners.keys().copied().collect())?;
        let own = |(directory, class): (Ino, StripeClass)| OwnCode {
            directory,
            path: paths.get(&directory).cloned(),
            class,
        };
        Ok(owners.into_iter().map(own).collect())
    }

    /// Returns the first directories of a range of inodes that have a name, and where to go on if there may be more.
    fn directories_from(
        &self,
        from: &[u8],
        end: &[u8],
    ) -> Result<(Vec<Directory>, Option<Key>), FsError> {
        let mut directories = Vec::new();
        let mut next = None;
        self.transactions.visit(from, end, |key, value| {
            if let (Ok(ino), Ok(inode)) = (key::parse_inode(key), Inode::decode(value))
                && inode.kind == FileKind::Directory
                && inode.links > 0
            {
                directories.push(Directory {
                    ino,
                    parent: inode.parent,
                    class: inode.class,
                });
            }
            Ok::<_, FsError>(if directories.len() == DIRECTORIES_AT_ONCE {
                next = Some(successor(key));
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok((directories, next))
    }

    /// Adds those of some directories that have another class than the directory in which each lies, up to `most`. A
    /// directory whose record is gone or damaged counts as one with the class of the volume.
    fn find_owners(
        &self,
        directories: &[Directory],
        most: usize,
        owners: &mut BTreeMap<Ino, StripeClass>,
    ) -> Result<(), FsError> {
        let known = directories.iter().map(|it| (it.ino, it.class));
        let mut classes: BTreeMap<Ino, StripeClass> = known.collect();
        for directory in directories {
            let above = if directory.ino == Ino::ROOT {
                StripeClass::VOLUME
            } else if let Some(class) = classes.get(&directory.parent) {
                *class
            } else {
                let class = match read_inode(&self.transactions, directory.parent) {
                    Ok(parent) => parent.map_or(StripeClass::VOLUME, |parent| parent.class),
                    Err(FsError::Format(_)) => StripeClass::VOLUME,
                    Err(error) => return Err(error),
                };
                classes.insert(directory.parent, class);
                class
            };
            if directory.class != above && owners.len() < most {
                owners.insert(directory.ino, directory.class);
            }
        }
        Ok(())
    }

    /// Gives a directory a class, and those below that have the class which it had before; durable on return. Files keep
    /// theirs, unless they are to be rewritten: all files in these directories then get the class, and a rebuild moves
    /// their bytes.
    ///
    /// A crash may leave some of them without it. The call can be repeated then.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::ReadOnly`], [`FsError::NoSpace`];
    /// [`FsError::Storage`] from below.
    pub fn set(
        &self,
        directory: Ino,
        class: StripeClass,
        rewrites_files: bool,
    ) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        let before = self.get(directory)?;
        let set = || -> Result<(), FsError> {
            // Those that are made meanwhile, in directories that have not got the class yet, are found by another round.
            while self.set_once(directory, (before, class), rewrites_files)? {}
            Ok(())
        };
        if rewrites_files {
            // The order comes before the first file with another class than its stripes, so that no crash hides one.
            self.transactions.ordering_rewrite(set)?;
        } else {
            set()?;
        }
        Ok(self.transactions.sync()?)
    }

    /// Returns the files to which [`Self::set`] would give this class together with the directory. The class is none if it is
    /// yet to be made.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`]; [`FsError::Storage`] from below.
    pub fn files_to_rewrite(
        &self,
        directory: Ino,
        class: Option<StripeClass>,
    ) -> Result<BTreeSet<Ino>, FsError> {
        let before = self.get(directory)?;
        let below = self.below(directory, [before, class.unwrap_or(before)], true)?;
        Ok(below.files.into_iter().collect())
    }

    /// Gives the class to all directories and files that lack it now; returns whether there were any.
    fn set_once(
        &self,
        directory: Ino,
        (before, class): (StripeClass, StripeClass),
        rewrites_files: bool,
    ) -> Result<bool, FsError> {
        let below = self.below(directory, [before, class], rewrites_files)?;
        let mut has_changed = false;
        for ino in below.files {
            has_changed |= self.set_class(ino, FileKind::Regular, class)?;
        }
        // The inner ones first: a call that is repeated goes on below those that lack the class.
        for ino in below.directories.into_iter().rev() {
            has_changed |= self.set_class(ino, FileKind::Directory, class)?;
        }
        Ok(has_changed)
    }

    /// Gives an inode a class. Returns whether it had another one.
    fn set_class(&self, ino: Ino, kind: FileKind, class: StripeClass) -> Result<bool, FsError> {
        self.inodes.with_room(0, || {
            let _lock = self.inodes.locks().exclusive(&[ino]);
            let mut inode = match self.inodes.get(ino) {
                Err(FsError::NotFound) => return Ok(false),
                inode => inode?,
            };
            if inode.kind != kind || inode.class == class {
                return Ok(false);
            }
            inode.class = class;
            let mut edit = Edit::default();
            edit.put_inode(ino, &inode);
            self.inodes.apply_in_any_case(edit)?;
            Ok(true)
        })
    }

    /// Finds a directory and those below it, through directories of these classes only, and their files.
    fn below(
        &self,
        directory: Ino,
        classes: [StripeClass; 2],
        with_files: bool,
    ) -> Result<Below, FsError> {
        let mut below = Below::default();
        let mut known = BTreeSet::from([directory]);
        below.directories.push(directory);
        let mut next = 0;
        while let Some(&parent) = below.directories.get(next) {
            next += 1;
            for (ino, kind) in self.entries(parent)? {
                if kind == FileKind::Regular && with_files {
                    below.files.push(ino);
                }
                if kind == FileKind::Directory && known.insert(ino) {
                    let inode = self.inodes.get(ino);
                    if inode.is_ok_and(|inode| classes.contains(&inode.class)) {
                        below.directories.push(ino);
                    }
                }
            }
        }
        Ok(below)
    }

    /// Returns what the names in a directory stand for.
    fn entries(&self, parent: Ino) -> Result<Vec<(Ino, FileKind)>, FsError> {
        let (from, end) = key::dirents(parent);
        let mut entries = Vec::new();
        self.transactions.visit(&from, &end, |_, value| {
            let Dirent { ino, kind, .. } = Dirent::decode(value)?;
            entries.push((ino, kind));
            Ok::<_, FsError>(ControlFlow::Continue(()))
        })?;
        Ok(entries)
    }
}
