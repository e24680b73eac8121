//! Moving names.

use crate::format::record::{Dirent, FileKind, Inode, Timestamp};
use crate::format::{Cookie, Ino};
use crate::fs::edit::Edit;
use crate::fs::entries::{Directory, check_name, drop_directory, drop_link, is_dot};
use crate::fs::error::{FsError, corrupt};
use crate::fs::interlock::Admission;
use crate::fs::types::{Caller, RenameMode};

use super::Names;

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EntryName<'a> {
    parent: Ino,
    name: &'a [u8],
}

/// One or two directories that a rename changes.
struct Parents {
    first: Directory,
    second: Option<Directory>,
}

impl Parents {
    fn at(&mut self, ino: Ino) -> &mut Directory {
        match &mut self.second {
            Some(second) if second.ino == ino => second,
            _ => &mut self.first,
        }
    }

    fn put(self, edit: &mut Edit, now: Timestamp) {
        self.first.put(edit, now);
        if let Some(second) = self.second {
            second.put(edit, now);
        }
    }
}

impl Names {
    /// Moves a name to another, in the same directory or another one, wholly or not at all (P3). A whiteout that is to
    /// take the old name belongs to the caller.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`]; [`FsError::Exists`] with [`RenameMode::NoReplace`] and
    /// [`RenameMode::WhiteoutNoReplace`]; [`FsError::Invalid`] for a directory that would come to lie in itself;
    /// [`FsError::NotDirectory`], [`FsError::IsDirectory`] and [`FsError::NotEmpty`] for what cannot be replaced;
    /// [`FsError::TooManyLinks`], [`FsError::NameTooLong`]; [`FsError::NoSpace`] and [`FsError::QuotaExceeded`] if there is
    /// no room for a whiteout; [`FsError::CrossesQuota`] if the directories lie in different quotas.
    pub fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        if is_dot(name) || is_dot(new_name) {
            return Err(FsError::Invalid);
        }
        check_name(name)?;
        check_name(new_name)?;
        let from = EntryName { parent, name };
        let to = EntryName {
            parent: new_parent,
            name: new_name,
        };
        self.inodes.directory(parent)?;
        self.inodes.directory(new_parent)?;
        let renamed = if mode.leaves_whiteout() {
            self.with_room(|| self.rename_once(from, to, mode, caller))
        } else {
            self.rename_once(from, to, mode, caller)
        };
        self.inodes.recorded(renamed)
    }

    fn rename_once(
        &self,
        from: EntryName<'_>,
        to: EntryName<'_>,
        mode: RenameMode,
        caller: &Caller,
    ) -> Result<(), FsError> {
        loop {
            let source = self.entry_at(from)?.ok_or(FsError::NotFound)?;
            let target = self.entry_at(to)?;
            let is_dir = |entry: Dirent| entry.kind == FileKind::Directory;
            let may_nest = is_dir(source) || target.is_some_and(is_dir);
            let quotas = self.inodes.quotas();
            let may_nest = from.parent != to.parent && may_nest;
            let rename = (may_nest || quotas.is_counting()).then(|| self.inodes.locks().rename());
            let mut inos = vec![from.parent, to.parent, source.ino];
            inos.extend(target.map(|target| target.ino));
            let lock = self.inodes.locks().exclusive(&inos);
            // The names may have come to mean something else before all were locked.
            if self.entry_at(from)? != Some(source) || self.entry_at(to)? != target {
                continue;
            }
            if quotas.is_counting() && rename.is_none() {
                continue;
            }
            quotas.check_same(from.parent, to.parent)?;
            // Of both directories: they lie in the same quota.
            let counting = quotas.counting_around(to.parent)?;
            let whiteout_owner = mode.leaves_whiteout().then_some(caller);
            let replaced = match (mode, target) {
                (RenameMode::Exchange, None) => return Err(FsError::NotFound),
                (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => {
                    return Err(FsError::Exists);
                }
                (_, Some(target)) if target.ino == source.ino => return Ok(()),
                (RenameMode::Exchange, Some(target)) => {
                    self.exchange((from, source), (to, target))?;
                    quotas.note_moved(counting, [source.ino, target.ino]);
                    return Ok(());
                }
                (_, target) => self.replace((from, source), to, target, whiteout_owner)?,
            };
            quotas.note_moved(counting, [source.ino]);
            if let Some((ino, inode)) = replaced {
                self.after_drop(lock, (ino, &inode));
            }
            return Ok(());
        }
    }

    fn entry_at(&self, at: EntryName<'_>) -> Result<Option<Dirent>, FsError> {
        self.entry(at.parent, at.name)
    }

    /// Moves `source` to `to`, where `target` is now, and leaves a whiteout of `whiteout_owner` if there is one. Returns
    /// the inode that lost its name.
    fn replace(
        &self,
        (from, source): (EntryName<'_>, Dirent),
        to: EntryName<'_>,
        target: Option<Dirent>,
        whiteout_owner: Option<&Caller>,
    ) -> Result<Option<(Ino, Inode)>, FsError> {
        let is_dir = source.kind == FileKind::Directory;
        if let Some(target) = target {
            match (is_dir, target.kind == FileKind::Directory) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) => self.check_empty(target.ino)?,
                (false, false) => {}
            }
        }
        if is_dir {
            self.check_not_within(source.ino, to.parent)?;
        }
        let mut parents = self.parents(from.parent, to.parent)?;
        let mut moved = self.named_inode(&source)?;
        let now = self.inodes.now();
        let mut edit = Edit::default();
        let mut dropped = None;
        let mut admission = Admission::default();
        parents
            .at(from.parent)
            .remove(&mut edit, from.name, &source);
        if let Some(target) = target {
            let mut inode = self.named_inode(&target)?;
            parents.at(to.parent).remove(&mut edit, to.name, &target);
            if is_dir {
                parents.at(to.parent).remove_child();
                drop_directory(&mut edit, target.ino, &mut inode, now);
            } else {
                drop_link(&mut edit, target.ino, &mut inode, now);
                if inode.links == 0 {
                    admission = self.inodes.admit_replacement(&moved, &inode, now)?;
                }
            }
            dropped = Some((target.ino, inode));
        }
        // Within a directory the entry keeps its position: a program that renames all entries as it
        // reads them must come to an end.
        let within = from.parent == to.parent;
        let child = (source.ino, source.kind);
        parents
            .at(to.parent)
            .add(&mut edit, to.name, child, within.then_some(source.cookie))?;
        if is_dir {
            move_child(&mut parents, from.parent, to.parent)?;
            moved.parent = to.parent;
        }
        moved.ctime = now;
        edit.put_inode(source.ino, &moved);
        if let Some(owner) = whiteout_owner {
            // The position that the moved entry leaves is free for it.
            let cookie = (!within).then_some(source.cookie);
            let directory = parents.at(from.parent);
            self.add_whiteout(&mut edit, owner, directory, from.name, cookie)?;
            parents.put(&mut edit, now);
            self.inodes.apply_growth(edit)?;
        } else {
            parents.put(&mut edit, now);
            self.inodes.apply(edit)?;
        }
        admission.done();
        Ok(dropped)
    }

    /// Exchanges two names; each keeps its position.
    fn exchange(
        &self,
        (from, source): (EntryName<'_>, Dirent),
        (to, target): (EntryName<'_>, Dirent),
    ) -> Result<(), FsError> {
        let source_is_dir = source.kind == FileKind::Directory;
        let target_is_dir = target.kind == FileKind::Directory;
        if source_is_dir {
            self.check_not_within(source.ino, to.parent)?;
        }
        if target_is_dir {
            self.check_not_within(target.ino, from.parent)?;
        }
        let mut parents = self.parents(from.parent, to.parent)?;
        let mut moved = self.named_inode(&source)?;
        let mut other = self.named_inode(&target)?;
        if source_is_dir != target_is_dir {
            let (giver, taker) = if source_is_dir {
                (from.parent, to.parent)
            } else {
                (to.parent, from.parent)
            };
            move_child(&mut parents, giver, taker)?;
        }
        let now = self.inodes.now();
        let mut edit = Edit::default();
        edit.put_entry(to.parent, to.name, &at(source, target.cookie));
        edit.put_entry(from.parent, from.name, &at(target, source.cookie));
        if source_is_dir {
            moved.parent = to.parent;
        }
        if target_is_dir {
            other.parent = from.parent;
        }
        moved.ctime = now;
        other.ctime = now;
        edit.put_inode(source.ino, &moved);
        edit.put_inode(target.ino, &other);
        parents.put(&mut edit, now);
        self.inodes.apply(edit)
    }

    fn parents(&self, first: Ino, second: Ino) -> Result<Parents, FsError> {
        Ok(Parents {
            first: self.directory_to_change(first)?,
            second: if first == second {
                None
            } else {
                Some(self.directory_to_change(second)?)
            },
        })
    }

    /// Checks that `directory` is not `inner` and does not contain it. The caller keeps directories from
    /// being moved. On a damaged volume the parents may form a loop; that is an error.
    fn check_not_within(&self, directory: Ino, inner: Ino) -> Result<(), FsError> {
        let (mut ino, mut passed, mut steps) = (inner, inner, 0_u64);
        while ino != Ino::ROOT {
            if ino == directory {
                return Err(FsError::Invalid);
            }
            ino = self.inodes.directory(ino)?.parent;
            if ino == passed {
                return Err(corrupt(ino, "the directory lies in itself"));
            }
            steps += 1;
            // Brent's algorithm: a loop is passed in full before the mark moves on.
            if steps.is_power_of_two() {
                passed = ino;
            }
        }
        Ok(())
    }
}

/// Counts a subdirectory out of one directory and into another.
fn move_child(parents: &mut Parents, from: Ino, to: Ino) -> Result<(), FsError> {
    if from != to {
        parents.at(from).remove_child();
        parents.at(to).add_child()?;
    }
    Ok(())
}

fn at(entry: Dirent, cookie: Cookie) -> Dirent {
    Dirent { cookie, ..entry }
}
