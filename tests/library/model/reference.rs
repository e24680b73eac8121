//! A filesystem that is as simple as can be: everything in maps, every byte on its own.

use std::collections::BTreeMap;

use cauchyfs::format::record::{FileKind, Timestamp};
use cauchyfs::fs::{Caller, Changes, INLINE_MAX, RenameMode, TimeOrNow, Whence, XattrMode};

/// Names the [`cauchyfs::fs::FsError`] variant that a call must fail with.
pub(crate) type Refused = &'static str;

/// The number of a node of the reference.
pub(crate) type Id = usize;

pub(crate) const ROOT: Id = 0;
const DAY: i64 = 24 * 60 * 60;
const BLOCK: usize = 4096;

/// A file, directory or anything else.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) rdev: u32,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) btime: i64,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) target: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
    /// The bytes that are stored in extents: one flag each.
    stored: Vec<bool>,
    /// The bytes that are allocated and unwritten, also behind the end: one flag each.
    unwritten: Vec<bool>,
    /// The number of bytes that lie in the record.
    inline_len: usize,
    pub(crate) parent: Id,
    /// Names, in the order in which a listing has them.
    pub(crate) entries: Vec<(Vec<u8>, Id)>,
    /// Handles and look-ups that are out.
    pub(crate) held: u32,
    /// True if it may get a first name.
    linkable: bool,
}

impl Node {
    pub(crate) fn size(&self) -> u64 {
        match self.kind {
            FileKind::Regular => self.bytes.len() as u64,
            FileKind::Symlink => self.target.len() as u64,
            _ => self.entries.len() as u64,
        }
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        let flags = self.stored.iter().chain(&self.unwritten);
        flags.filter(|is_there| **is_there).count() as u64 + self.inline_len as u64
    }

    fn fits_inline(&self, end: usize) -> bool {
        end <= INLINE_MAX && !self.stored.contains(&true) && !self.unwritten.contains(&true)
    }

    fn spill(&mut self) {
        self.stored[..self.inline_len].fill(true);
        self.inline_len = 0;
    }

    fn grow(&mut self, end: usize) {
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.stored.resize(end, false);
        }
    }

    fn put(&mut self, start: usize, data: &[u8]) {
        let end = start + data.len();
        let inline = self.fits_inline(end);
        self.grow(end);
        self.bytes[start..end].copy_from_slice(data);
        if inline {
            self.inline_len = self.inline_len.max(end);
        } else {
            self.spill();
            self.stored[start..end].fill(true);
            self.release(start, end);
        }
    }

    /// Ends the allocation of unwritten bytes.
    fn release(&mut self, start: usize, end: usize) {
        let end = end.min(self.unwritten.len());
        self.unwritten[start.min(end)..end].fill(false);
    }

    /// Allocates what holds nothing in the blocks of a range.
    fn allocate(&mut self, start: usize, end: usize) {
        let blocks = start / BLOCK * BLOCK..end.next_multiple_of(BLOCK);
        self.unwritten
            .resize(self.unwritten.len().max(blocks.end), false);
        let is_stored = |stored: &[bool], at: usize| stored.get(at) == Some(&true);
        let is_missing = |at: &usize| !is_stored(&self.stored, *at) && !self.unwritten[*at];
        if !blocks.clone().any(|at| is_missing(&at)) {
            return;
        }
        self.spill();
        for at in blocks {
            self.unwritten[at] = !is_stored(&self.stored, at);
        }
    }

    fn cut(&mut self, size: usize) {
        if size <= self.bytes.len() {
            self.unwritten.truncate(size);
        }
        self.bytes.resize(size, 0);
        self.stored.resize(size, false);
        self.inline_len = self.inline_len.min(size);
    }

    fn zero(&mut self, start: usize, end: usize) {
        self.release(start, end);
        let end = end.min(self.bytes.len());
        let start = start.min(end);
        self.bytes[start..end].fill(0);
        self.stored[start..end].fill(false);
    }

    fn is_data(&self, offset: usize) -> bool {
        offset < self.inline_len || self.stored[offset]
    }

    fn clear_privileges(&mut self, caller: &Caller) {
        if self.kind == FileKind::Directory {
            return;
        }
        self.permissions &= !0o4000;
        let is_member = caller.is_root() || caller.gid == self.gid;
        if self.permissions & 0o010 != 0 || !is_member {
            self.permissions &= !0o2000;
        }
    }

    fn changed(&mut self, now: i64) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// The reference.
pub(crate) struct Reference {
    pub(crate) nodes: BTreeMap<Id, Node>,
    next: Id,
    pub(crate) now: i64,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let mut reference = Self {
            nodes: BTreeMap::new(),
            next: 0,
            now: 0,
        };
        let root = reference.node(FileKind::Directory, 0o755, (0, 0), ROOT);
        reference.nodes.insert(ROOT, root);
        reference.next = 1;
        reference
    }

    fn node(&self, kind: FileKind, permissions: u16, (uid, gid): (u32, u32), parent: Id) -> Node {
        Node {
            kind,
            permissions,
            uid,
            gid,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            rdev: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            bytes: Vec::new(),
            stored: Vec::new(),
            unwritten: Vec::new(),
            inline_len: 0,
            parent,
            entries: Vec::new(),
            held: 0,
            linkable: false,
        }
    }

    pub(crate) fn at(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("the node is there")
    }

    pub(crate) fn find(&self, parent: Id, name: &[u8]) -> Option<Id> {
        let entries = &self.nodes[&parent].entries;
        entries.iter().find(|(it, _)| it == name).map(|(_, id)| *id)
    }

    fn directory(&self, id: Id) -> Result<(), Refused> {
        match self.nodes.get(&id) {
            None => Err("NotFound"),
            Some(node) if node.kind != FileKind::Directory => Err("NotDirectory"),
            Some(_) => Ok(()),
        }
    }

    fn directory_to_change(&self, id: Id) -> Result<(), Refused> {
        self.directory(id)?;
        if self.nodes[&id].links == 0 {
            return Err("NotFound");
        }
        Ok(())
    }

    fn new_name(&self, parent: Id, name: &[u8]) -> Result<(), Refused> {
        self.directory_to_change(parent)?;
        match self.find(parent, name) {
            Some(_) => Err("Exists"),
            None => Ok(()),
        }
    }

    pub(crate) fn make(
        &mut self,
        (uid, gid): (u32, u32),
        parent: Id,
        name: &[u8],
        kind: FileKind,
        permissions: u16,
    ) -> Result<Id, Refused> {
        self.new_name(parent, name)?;
        let mut node = self.node(kind, permissions, (uid, gid), parent);
        if self.nodes[&parent].permissions & 0o2000 != 0 {
            node.gid = self.nodes[&parent].gid;
            if kind == FileKind::Directory {
                node.permissions |= 0o2000;
            } else if node.permissions & 0o2010 == 0o2010 && uid != 0 && gid != node.gid {
                node.permissions &= !0o2000;
            }
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        let now = self.now;
        let directory = self.at(parent);
        directory.entries.push((name.to_vec(), id));
        directory.links += u32::from(kind == FileKind::Directory);
        directory.changed(now);
        Ok(id)
    }

    pub(crate) fn make_nameless(
        &mut self,
        owner: (u32, u32),
        parent: Id,
        linkable: bool,
    ) -> Result<Id, Refused> {
        self.directory_to_change(parent)?;
        let mut node = self.node(FileKind::Regular, 0o600, owner, parent);
        node.links = 0;
        node.linkable = linkable;
        if self.nodes[&parent].permissions & 0o2000 != 0 {
            node.gid = self.nodes[&parent].gid;
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        Ok(id)
    }

    pub(crate) fn link(&mut self, id: Id, parent: Id, name: &[u8]) -> Result<(), Refused> {
        let node = self.nodes.get(&id).ok_or("NotFound")?;
        if node.kind == FileKind::Directory {
            return Err("NotPermitted");
        }
        self.new_name(parent, name)?;
        if self.nodes[&id].links == 0 && !self.nodes[&id].linkable {
            return Err("NotFound");
        }
        let now = self.now;
        self.at(id).links += 1;
        self.at(id).linkable = false;
        self.at(id).ctime = now;
        self.at(parent).entries.push((name.to_vec(), id));
        self.at(parent).changed(now);
        Ok(())
    }

    pub(crate) fn unlink(&mut self, parent: Id, name: &[u8]) -> Result<(), Refused> {
        self.directory(parent)?;
        let id = self.find(parent, name).ok_or("NotFound")?;
        if self.nodes[&id].kind == FileKind::Directory {
            return Err("IsDirectory");
        }
        self.take_entry(parent, name);
        self.drop_link(id);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, parent: Id, name: &[u8]) -> Result<(), Refused> {
        self.directory(parent)?;
        let id = self.find(parent, name).ok_or("NotFound")?;
        self.directory(id)?;
        if !self.nodes[&id].entries.is_empty() {
            return Err("NotEmpty");
        }
        self.take_entry(parent, name);
        self.at(parent).links -= 1;
        self.drop_directory(id);
        Ok(())
    }

    fn take_entry(&mut self, parent: Id, name: &[u8]) {
        let now = self.now;
        let directory = self.at(parent);
        directory.entries.retain(|(it, _)| it != name);
        directory.changed(now);
    }

    fn drop_link(&mut self, id: Id) {
        let now = self.now;
        self.at(id).links -= 1;
        self.at(id).ctime = now;
        self.reap(id);
    }

    fn drop_directory(&mut self, id: Id) {
        let now = self.now;
        self.at(id).links = 0;
        self.at(id).ctime = now;
        self.reap(id);
    }

    /// Forgets a node of which nothing is left.
    pub(crate) fn reap(&mut self, id: Id) {
        if self.nodes[&id].links == 0 && self.nodes[&id].held == 0 {
            self.nodes.remove(&id);
        }
    }

    fn is_within(&self, outer: Id, inner: Id) -> bool {
        let mut at = inner;
        while at != ROOT {
            if at == outer {
                return true;
            }
            at = self.nodes[&at].parent;
        }
        false
    }

    /// Renames; returns the whiteout that takes the old name.
    pub(crate) fn rename(
        &mut self,
        owner: (u32, u32),
        (parent, name): (Id, &[u8]),
        (new_parent, new_name): (Id, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Id>, Refused> {
        self.directory(parent)?;
        self.directory(new_parent)?;
        let source = self.find(parent, name).ok_or("NotFound")?;
        let target = self.find(new_parent, new_name);
        match (mode, target) {
            (RenameMode::Exchange, None) => return Err("NotFound"),
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => {
                return Err("Exists");
            }
            (_, Some(target)) if target == source => return Ok(None),
            (RenameMode::Exchange, Some(target)) => {
                self.exchange((parent, name, source), (new_parent, new_name, target))?;
                return Ok(None);
            }
            _ => {}
        }
        let is_dir = self.nodes[&source].kind == FileKind::Directory;
        if let Some(target) = target {
            match (is_dir, self.nodes[&target].kind == FileKind::Directory) {
                (true, false) => return Err("NotDirectory"),
                (false, true) => return Err("IsDirectory"),
                (true, true) if !self.nodes[&target].entries.is_empty() => return Err("NotEmpty"),
                _ => {}
            }
        }
        if is_dir && self.is_within(source, new_parent) {
            return Err("Invalid");
        }
        self.directory_to_change(new_parent)?;
        let now = self.now;
        if let Some(target) = target {
            self.take_entry(new_parent, new_name);
            if is_dir {
                self.at(new_parent).links -= 1;
                self.drop_directory(target);
            } else {
                self.drop_link(target);
            }
        }
        let whiteout = mode
            .leaves_whiteout()
            .then(|| self.make_whiteout(owner, parent));
        let entries = &mut self.at(parent).entries;
        let at = entries.iter().position(|(it, _)| it == name);
        let at = at.expect("found before");
        if parent == new_parent {
            entries[at].0 = new_name.to_vec();
            entries.extend(whiteout.map(|id| (name.to_vec(), id)));
        } else {
            match whiteout {
                Some(id) => entries[at].1 = id,
                None => drop(entries.remove(at)),
            }
            let entries = &mut self.at(new_parent).entries;
            entries.push((new_name.to_vec(), source));
        }
        if is_dir {
            self.at(parent).links -= 1;
            self.at(new_parent).links += 1;
            self.at(source).parent = new_parent;
        }
        self.at(source).ctime = now;
        self.at(parent).changed(now);
        self.at(new_parent).changed(now);
        Ok(whiteout)
    }

    fn make_whiteout(&mut self, owner: (u32, u32), parent: Id) -> Id {
        let mut node = self.node(FileKind::CharDevice, 0, owner, parent);
        if self.nodes[&parent].permissions & 0o2000 != 0 {
            node.gid = self.nodes[&parent].gid;
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    fn exchange(
        &mut self,
        (parent, name, source): (Id, &[u8], Id),
        (new_parent, new_name, target): (Id, &[u8], Id),
    ) -> Result<(), Refused> {
        let source_is_dir = self.nodes[&source].kind == FileKind::Directory;
        let target_is_dir = self.nodes[&target].kind == FileKind::Directory;
        if source_is_dir && self.is_within(source, new_parent)
            || target_is_dir && self.is_within(target, parent)
        {
            return Err("Invalid");
        }
        let now = self.now;
        for (directory, name, id) in [(parent, name, target), (new_parent, new_name, source)] {
            let entries = &mut self.at(directory).entries;
            let entry = entries.iter_mut().find(|(it, _)| it == name);
            entry.expect("found before").1 = id;
            self.at(directory).changed(now);
            self.at(id).ctime = now;
        }
        if source_is_dir {
            self.at(source).parent = new_parent;
            self.at(parent).links -= 1;
            self.at(new_parent).links += 1;
        }
        if target_is_dir {
            self.at(target).parent = parent;
            self.at(new_parent).links -= 1;
            self.at(parent).links += 1;
        }
        Ok(())
    }

    pub(crate) fn setattr(
        &mut self,
        id: Id,
        caller: &Caller,
        changes: &Changes,
    ) -> Result<(), Refused> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or("NotFound")?;
        if changes.size.is_some() {
            regular(node)?;
        }
        node.permissions = changes.permissions.unwrap_or(node.permissions);
        let owner = changes.uid.is_some() || changes.gid.is_some();
        if owner || changes.kill_suid_sgid || (changes.size.is_some() && !caller.is_root()) {
            node.clear_privileges(caller);
        }
        node.uid = changes.uid.unwrap_or(node.uid);
        node.gid = changes.gid.unwrap_or(node.gid);
        if let Some(size) = changes.size {
            node.cut(usize::try_from(size).expect("tests keep files small"));
            node.mtime = now;
        }
        let time = |asked| match asked {
            TimeOrNow::Now => now,
            TimeOrNow::At(Timestamp { seconds, .. }) => seconds,
        };
        node.atime = changes.atime.map_or(node.atime, time);
        node.mtime = changes.mtime.map_or(node.mtime, time);
        node.ctime = changes.ctime.map_or(now, |time| time.seconds);
        Ok(())
    }

    pub(crate) fn write(
        &mut self,
        id: Id,
        offset: Option<usize>,
        data: &[u8],
        cached: bool,
    ) -> usize {
        let now = self.now;
        let node = self.at(id);
        if data.is_empty() {
            return 0;
        }
        node.put(offset.unwrap_or(node.bytes.len()), data);
        if !cached {
            node.changed(now);
        }
        data.len()
    }

    pub(crate) fn read(&mut self, id: Id, offset: usize, len: usize) -> Vec<u8> {
        self.accessed(id);
        let bytes = &self.nodes[&id].bytes;
        let start = offset.min(bytes.len());
        bytes[start..(start + len).min(bytes.len())].to_vec()
    }

    /// Relatime.
    pub(crate) fn accessed(&mut self, id: Id) {
        let now = self.now;
        let node = self.at(id);
        if node.atime <= node.mtime || node.atime <= node.ctime || now - node.atime >= DAY {
            node.atime = now;
        }
    }

    pub(crate) fn allocate(&mut self, id: Id, start: usize, end: usize, keep_size: bool) {
        let now = self.now;
        let node = self.at(id);
        node.allocate(start, end);
        if !keep_size && end > node.bytes.len() {
            node.grow(end);
            node.mtime = now;
        }
        node.ctime = now;
    }

    pub(crate) fn zero(&mut self, id: Id, start: usize, end: usize, keep_size: bool) {
        let now = self.now;
        let node = self.at(id);
        if !keep_size {
            node.grow(end);
        }
        node.zero(start, end);
        node.changed(now);
    }

    pub(crate) fn seek(&self, id: Id, offset: usize, whence: Whence) -> Result<u64, Refused> {
        let node = &self.nodes[&id];
        if offset >= node.bytes.len() {
            return Err("NoSuchOffset");
        }
        let wanted = whence == Whence::Data;
        let found = (offset..node.bytes.len()).find(|at| node.is_data(*at) == wanted);
        match (found, whence) {
            (Some(found), _) => Ok(found as u64),
            (None, Whence::Data) => Err("NoSuchOffset"),
            (None, Whence::Hole) => Ok(node.bytes.len() as u64),
        }
    }

    /// Copies as much as one call does.
    pub(crate) fn copy(
        &mut self,
        (source, from): (Id, usize),
        (target, to): (Id, usize),
        len: usize,
    ) -> Result<u64, Refused> {
        if source == target && from < to + len && to < from + len {
            return Err("Invalid");
        }
        let now = self.now;
        let node = self.nodes[&source].clone();
        let len = len.min(node.bytes.len().saturating_sub(from));
        if len == 0 {
            return Ok(0);
        }
        let little =
            len < BLOCK || self.nodes[&target].fits_inline(to + len) || from < node.inline_len;
        if little {
            let len = len.min(BLOCK);
            self.at(target).put(to, &node.bytes[from..from + len]);
            self.at(target).changed(now);
            return Ok(len as u64);
        }
        let copy = self.at(target);
        copy.grow(to + len);
        copy.spill();
        copy.bytes[to..to + len].copy_from_slice(&node.bytes[from..from + len]);
        copy.release(to, to + len);
        copy.stored[to..to + len].copy_from_slice(&node.stored[from..from + len]);
        copy.changed(now);
        Ok(len as u64)
    }

    pub(crate) fn setxattr(
        &mut self,
        id: Id,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Refused> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or("NotFound")?;
        check_user(node, name)?;
        let present = node.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if present => return Err("Exists"),
            XattrMode::Replace if !present => return Err("NoData"),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.ctime = now;
        Ok(())
    }

    pub(crate) fn removexattr(&mut self, id: Id, name: &[u8]) -> Result<(), Refused> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or("NotFound")?;
        check_user(node, name)?;
        node.xattrs.remove(name).ok_or("NoData")?;
        node.ctime = now;
        Ok(())
    }
}

fn check_user(node: &Node, name: &[u8]) -> Result<(), Refused> {
    let plain = matches!(node.kind, FileKind::Regular | FileKind::Directory);
    if name.starts_with(b"user.") && !plain {
        return Err("NotPermitted");
    }
    Ok(())
}

pub(crate) fn regular(node: &Node) -> Result<(), Refused> {
    match node.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err("IsDirectory"),
        _ => Err("Invalid"),
    }
}
