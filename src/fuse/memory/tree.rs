//! Names and inodes of a filesystem in memory.
//!
//! # Invariants
//!
//! - An inode stays until it has neither a name nor a look-up of the kernel. [`Tree::unlink`] and [`Tree::forget`]
//!   remove it when the last of these goes.
//! - Each inode but the root has one name at most, so its number serves as its offset in a listing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use super::content::{Capacity, FileContent};
use crate::format::Ino;
use crate::format::record::{FileKind, Timestamp};
use crate::fs::{Attr, Caller, DirItem, FsError, SpaceReport, TimeOrNow};
use crate::fuse::protocol::RequestedAttributes;

/// The offsets behind `.` and `..` in a listing. Numbers of other inodes are greater.
const AFTER_SELF: u64 = 1;
const AFTER_PARENT: u64 = 2;

/// The unit of space, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// The longest name, in bytes.
const NAME_MAX: u32 = 255;

/// All inodes.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Ino, Node>,
    next: u64,
    space: Arc<Capacity>,
}

/// One inode.
#[derive(Debug)]
struct Node {
    attr: Attr,
    parent: Ino,
    /// Look-ups that the kernel has not forgotten.
    lookups: u64,
    is_named: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File(Arc<FileContent>),
    Directory(DirectoryEntries),
}

/// The entries of a directory, by name and in the order of a listing.
#[derive(Debug, Default)]
struct DirectoryEntries {
    by_name: HashMap<Vec<u8>, Ino>,
    by_number: BTreeMap<u64, Vec<u8>>,
}

/// The kind of an inode to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewKind {
    File,
    Directory,
}

impl Node {
    fn attr(&self) -> Attr {
        let mut attr = self.attr;
        attr.size = match &self.content {
            Content::File(content) => content.size(),
            Content::Directory(entries) => entries.by_name.len() as u64,
        };
        attr.blocks_512 = attr.size.div_ceil(512);
        attr
    }

    fn entries(&mut self) -> Result<&mut DirectoryEntries, FsError> {
        match &mut self.content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) => Err(FsError::NotDirectory),
        }
    }
}

impl Tree {
    /// Makes a tree that has an empty root directory and room for so many bytes of files.
    pub(super) fn new(capacity: u64) -> Self {
        let owner = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..Caller::ROOT
        };
        let content = Content::Directory(DirectoryEntries::default());
        let root = Node {
            attr: new_attr(Ino::ROOT, FileKind::Directory, 0o755, &owner),
            parent: Ino::ROOT,
            lookups: 1,
            is_named: true,
            content,
        };
        Self {
            nodes: HashMap::from([(Ino::ROOT, root)]),
            next: AFTER_PARENT + 1,
            space: Arc::new(Capacity::new(capacity)),
        }
    }

    fn node(&self, ino: Ino) -> Result<&Node, FsError> {
        self.nodes.get(&ino).ok_or(FsError::NotFound)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node, FsError> {
        self.nodes.get_mut(&ino).ok_or(FsError::NotFound)
    }

    /// Returns attributes.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such inode. All other methods return it, too.
    pub(super) fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.node(ino).map(Node::attr)
    }

    /// Returns the bytes of a file.
    ///
    /// # Errors
    ///
    /// `IsDirectory` if it is none.
    pub(super) fn content(&self, ino: Ino) -> Result<Arc<FileContent>, FsError> {
        match &self.node(ino)?.content {
            Content::File(content) => Ok(Arc::clone(content)),
            Content::Directory(_) => Err(FsError::IsDirectory),
        }
    }

    /// Finds a name, and counts that as a look-up. In an inode that has a name, `.` is that inode and `..` its
    /// directory.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such name.
    pub(super) fn look_up(&mut self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let ino = match name {
            b"." if self.node(parent)?.is_named => parent,
            b".." if self.node(parent)?.is_named => self.node(parent)?.parent,
            name => {
                let entries = self.node_mut(parent)?.entries()?;
                *entries.by_name.get(name).ok_or(FsError::NotFound)?
            }
        };
        let node = self.node_mut(ino)?;
        node.lookups += 1;
        Ok(node.attr())
    }

    /// Makes a file or a directory, and counts that as a look-up.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is taken.
    pub(super) fn make(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        kind: NewKind,
    ) -> Result<Attr, FsError> {
        let ino = Ino(self.next);
        let entries = self.node_mut(parent)?.entries()?;
        if entries.by_name.contains_key(name) {
            return Err(FsError::Exists);
        }
        entries.by_name.insert(name.to_owned(), ino);
        entries.by_number.insert(ino.0, name.to_owned());
        self.next += 1;
        let (file_kind, content) = match kind {
            NewKind::File => {
                let content = FileContent::new(Arc::clone(&self.space));
                (FileKind::Regular, Content::File(Arc::new(content)))
            }
            NewKind::Directory => (
                FileKind::Directory,
                Content::Directory(DirectoryEntries::default()),
            ),
        };
        let permissions = (mode & !caller.umask & 0o7777) as u16;
        let node = Node {
            attr: new_attr(ino, file_kind, permissions, caller),
            parent,
            lookups: 1,
            is_named: true,
            content,
        };
        let attr = node.attr();
        self.nodes.insert(ino, node);
        Ok(attr)
    }

    /// Removes a name, of a file or of an empty directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsDirectory`, `NotDirectory` or `NotEmpty`.
    pub(super) fn unlink(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: NewKind,
    ) -> Result<(), FsError> {
        let entries = self.node_mut(parent)?.entries()?;
        let ino = *entries.by_name.get(name).ok_or(FsError::NotFound)?;
        let node = self.node_mut(ino)?;
        match (&node.content, kind) {
            (Content::File(_), NewKind::Directory) => return Err(FsError::NotDirectory),
            (Content::Directory(_), NewKind::File) => return Err(FsError::IsDirectory),
            (Content::Directory(entries), NewKind::Directory) if !entries.by_name.is_empty() => {
                return Err(FsError::NotEmpty);
            }
            _ => {}
        }
        node.is_named = false;
        node.attr.links = 0;
        let entries = self.node_mut(parent)?.entries()?;
        entries.by_name.remove(name);
        entries.by_number.remove(&ino.0);
        self.forget(ino, 0);
        Ok(())
    }

    /// Takes back so many look-ups.
    pub(super) fn forget(&mut self, ino: Ino, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&ino) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && !node.is_named {
            self.nodes.remove(&ino);
        }
    }

    /// Sets attributes, and returns all of them.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the file grows too much, `IsDirectory` if a directory is to have a size.
    pub(super) fn set(&mut self, ino: Ino, wanted: &RequestedAttributes) -> Result<Attr, FsError> {
        if let Some(size) = wanted.size {
            self.content(ino)?.resize(size)?;
        }
        let node = self.node_mut(ino)?;
        let attr = &mut node.attr;
        let now = now();
        let time = |wanted: TimeOrNow| match wanted {
            TimeOrNow::Now => now,
            TimeOrNow::At(time) => time,
        };
        if let Some(mode) = wanted.mode {
            attr.permissions = (mode & 0o7777) as u16;
        }
        attr.uid = wanted.uid.unwrap_or(attr.uid);
        attr.gid = wanted.gid.unwrap_or(attr.gid);
        attr.atime = wanted.atime.map_or(attr.atime, time);
        attr.mtime = wanted.mtime.map_or(attr.mtime, time);
        attr.ctime = wanted.ctime.unwrap_or(now);
        Ok(node.attr())
    }

    /// Lists a directory from `offset` on, until `add` has no room. With attributes, an entry counts as a look-up.
    ///
    /// # Errors
    ///
    /// `NotDirectory` if it is none.
    pub(super) fn list(
        &mut self,
        directory: Ino,
        offset: u64,
        with_attributes: bool,
        mut add: impl FnMut(&DirItem<'_>) -> bool,
    ) -> Result<(), FsError> {
        let parent = self.node(directory)?.parent;
        for (name, ino, next) in [
            (&b"."[..], directory, AFTER_SELF),
            (b"..", parent, AFTER_PARENT),
        ] {
            let item = DirItem {
                ino,
                kind: FileKind::Directory,
                next,
                name,
                attr: None,
            };
            if offset < next && !add(&item) {
                return Ok(());
            }
        }
        let Content::Directory(entries) = &self.node(directory)?.content else {
            return Err(FsError::NotDirectory);
        };
        let mut listed = Vec::new();
        let rest = (Bound::Excluded(offset.max(AFTER_PARENT)), Bound::Unbounded);
        for (&number, name) in entries.by_number.range(rest) {
            let attr = self.attr(Ino(number))?;
            let item = DirItem {
                ino: attr.ino,
                kind: attr.kind,
                next: number,
                name,
                attr: with_attributes.then_some(attr),
            };
            if !add(&item) {
                break;
            }
            listed.push(attr.ino);
        }
        if with_attributes {
            for ino in listed {
                self.node_mut(ino)?.lookups += 1;
            }
        }
        Ok(())
    }

    /// Returns the total and free space.
    pub(super) fn report(&self) -> SpaceReport {
        let block = u64::from(BLOCK_BYTES);
        let (capacity, free) = (self.space.capacity() / block, self.space.free() / block);
        SpaceReport {
            block_size: BLOCK_BYTES,
            blocks: capacity,
            blocks_free: free,
            blocks_available: free,
            files: capacity,
            files_free: free,
            name_max: NAME_MAX,
        }
    }
}

fn new_attr(ino: Ino, kind: FileKind, permissions: u16, owner: &Caller) -> Attr {
    let now = now();
    Attr {
        ino,
        kind,
        permissions,
        links: if kind == FileKind::Directory { 2 } else { 1 },
        uid: owner.uid,
        gid: owner.gid,
        rdev: 0,
        size: 0,
        blocks_512: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        block_size: BLOCK_BYTES,
    }
}

/// Returns the time, as the kernel stamps the writes in its page cache with.
fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanos: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(tree: &mut Tree, name: &[u8], kind: NewKind) -> Ino {
        let made = tree.make(&Caller::ROOT, Ino::ROOT, name, 0o640, kind);
        made.unwrap().ino
    }

    fn names_from(tree: &mut Tree, offset: u64, most: usize) -> (Vec<Vec<u8>>, u64) {
        let (mut names, mut next) = (Vec::new(), offset);
        tree.list(Ino::ROOT, offset, false, |item| {
            if names.len() == most {
                return false;
            }
            names.push(item.name.to_vec());
            next = item.next;
            true
        })
        .unwrap();
        (names, next)
    }

    #[test]
    fn a_listing_in_pieces_has_every_name_once_although_names_go_meanwhile() {
        let mut tree = Tree::new(1 << 20);
        for number in 0..10 {
            make(&mut tree, format!("f{number}").as_bytes(), NewKind::File);
        }
        for most in 1..5 {
            let (mut all, mut offset) = (Vec::new(), 0);
            loop {
                let (names, next) = names_from(&mut tree, offset, most);
                if names.is_empty() {
                    break;
                }
                all.extend(names);
                offset = next;
            }
            assert_eq!(all.len(), 12, "pieces of {most}");
            assert_eq!(all[11], b"f9");
        }
        let (_, offset) = names_from(&mut tree, 0, 5);
        tree.unlink(Ino::ROOT, b"f2", NewKind::File).unwrap();
        let (rest, _) = names_from(&mut tree, offset, 100);
        assert_eq!(rest.len(), 7, "{rest:?}");
    }

    #[test]
    fn an_inode_with_a_name_is_found_by_its_number() {
        let mut tree = Tree::new(1 << 20);
        let ino = make(&mut tree, b"f", NewKind::File);
        tree.forget(ino, 1);
        assert_eq!(tree.look_up(ino, b".").unwrap().ino, ino);
        assert_eq!(tree.look_up(ino, b"..").unwrap().ino, Ino::ROOT);
        tree.unlink(Ino::ROOT, b"f", NewKind::File).unwrap();
        assert!(tree.look_up(ino, b".").is_err());
        tree.forget(ino, 1);
        assert!(matches!(tree.look_up(ino, b"."), Err(FsError::NotFound)));
    }

    #[test]
    fn an_inode_without_a_name_stays_while_the_kernel_knows_it() {
        let mut tree = Tree::new(1 << 20);
        let ino = make(&mut tree, b"f", NewKind::File);
        assert_eq!(tree.look_up(Ino::ROOT, b"f").unwrap().ino, ino);
        tree.content(ino).unwrap().write(0, &[1; 5000]).unwrap();
        tree.unlink(Ino::ROOT, b"f", NewKind::File).unwrap();
        assert_eq!(tree.attr(ino).unwrap().size, 5000);
        tree.forget(ino, 1);
        assert!(tree.attr(ino).is_ok());
        assert!(tree.report().blocks_free < tree.report().blocks);
        tree.forget(ino, 1);
        assert!(matches!(tree.attr(ino), Err(FsError::NotFound)));
        assert_eq!(tree.report().blocks_free, tree.report().blocks);
    }

    #[test]
    fn a_name_is_made_once_and_a_full_directory_is_not_removed() {
        let mut tree = Tree::new(1 << 20);
        let directory = make(&mut tree, b"d", NewKind::Directory);
        let again = tree.make(&Caller::ROOT, Ino::ROOT, b"d", 0o755, NewKind::File);
        assert!(matches!(again, Err(FsError::Exists)));
        let made = tree.make(&Caller::ROOT, directory, b"f", 0o644, NewKind::File);
        assert_eq!(made.unwrap().permissions, 0o644);
        let removed = tree.unlink(Ino::ROOT, b"d", NewKind::Directory);
        assert!(matches!(removed, Err(FsError::NotEmpty)));
        let removed = tree.unlink(directory, b"f", NewKind::Directory);
        assert!(matches!(removed, Err(FsError::NotDirectory)));
        tree.unlink(directory, b"f", NewKind::File).unwrap();
        tree.unlink(Ino::ROOT, b"d", NewKind::Directory).unwrap();
        let found = tree.look_up(Ino::ROOT, b"d");
        assert!(matches!(found, Err(FsError::NotFound)));
    }
}
