//! The set of members that hold a complete copy of the index.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::files::{CopyFiles, IndexCopy};
use crate::format::MemberIndex;

/// The copies of the index that count. Each of them holds every page that was written and is not buffered.
#[derive(Debug)]
pub(super) struct CopySet {
    files: Arc<CopyFiles>,
    /// Changed only by the holder of the writer.
    copies: RwLock<Vec<IndexCopy>>,
    /// Members whose copies were found damaged although their checksums are right, and were left out.
    excluded: Mutex<BTreeSet<MemberIndex>>,
}

impl CopySet {
    pub(super) fn new(files: Arc<CopyFiles>, copies: Vec<IndexCopy>) -> Self {
        Self {
            files,
            copies: RwLock::new(copies),
            excluded: Mutex::default(),
        }
    }

    /// Returns the files in which copies are.
    pub(super) fn files(&self) -> &Arc<CopyFiles> {
        &self.files
    }

    /// Returns the members that have copies.
    pub(super) fn members(&self) -> Vec<MemberIndex> {
        self.copies.read().iter().map(|copy| copy.member).collect()
    }

    /// Returns whether a member has a copy.
    pub(super) fn contains(&self, member: MemberIndex) -> bool {
        self.copies.read().iter().any(|copy| copy.member == member)
    }

    /// Returns all copies.
    pub(super) fn list(&self) -> Vec<IndexCopy> {
        self.copies.read().clone()
    }

    /// Looks for every copy on its member, and returns the members on which it is, in order.
    pub(super) fn find_all(&self) -> Vec<MemberIndex> {
        let mut members = self.members();
        let live = self.files.members().membership().live();
        members.retain(|member| live.contains(member) && self.files.find(*member).is_some());
        members.sort_unstable();
        members
    }

    /// Counts one more copy.
    pub(super) fn add(&self, copy: IndexCopy) {
        self.copies.write().push(copy);
    }

    /// Keeps the copies of some members only. Returns whether any is left.
    pub(super) fn retain(&self, keep: impl Fn(MemberIndex) -> bool) -> bool {
        let mut copies = self.copies.write();
        copies.retain(|copy| keep(copy.member));
        !copies.is_empty()
    }

    /// Removes the copies of members that are no longer online.
    ///
    /// # Errors
    ///
    /// If no copy is left.
    pub(super) fn remove_offline(&self) -> io::Result<()> {
        let live = self.files.members().membership().live();
        if self.retain(|member| live.contains(&member)) {
            Ok(())
        } else {
            Err(none_left())
        }
    }

    /// Leaves copies out for good that are damaged although their checksums are right.
    pub(super) fn exclude(&self, damaged: impl IntoIterator<Item = MemberIndex>) {
        self.excluded.lock().extend(damaged);
    }

    /// Returns the members whose copies were left out.
    pub(super) fn excluded(&self) -> BTreeSet<MemberIndex> {
        self.excluded.lock().clone()
    }

    /// Notes that every copy has its newest head in the other slot now.
    pub(super) fn flip_slots(&self) {
        for copy in self.copies.write().iter_mut() {
            copy.slot = 1 - copy.slot;
        }
    }

    /// Notes the length of a member's file.
    pub(super) fn note_len(&self, member: MemberIndex, len: u64) {
        let mut copies = self.copies.write();
        for copy in copies.iter_mut().filter(|copy| copy.member == member) {
            copy.file_bytes = len;
        }
    }

    /// Returns whether the file of a member's copy is at least `len` bytes long.
    pub(super) fn reaches(&self, member: MemberIndex, len: u64) -> bool {
        let copies = self.copies.read();
        let mut of_member = copies.iter().filter(|copy| copy.member == member);
        of_member.any(|copy| copy.file_bytes >= len)
    }

    /// Returns the length of the longest file.
    pub(super) fn longest_file(&self) -> Option<u64> {
        self.copies.read().iter().map(|copy| copy.file_bytes).max()
    }

    /// Returns all copies and the lengths of their files, a different one first for different pages.
    pub(super) fn reading_order(&self, page: u64) -> Vec<(MemberIndex, u64)> {
        let mut order: Vec<_> = self
            .copies
            .read()
            .iter()
            .map(|copy| (copy.member, copy.file_bytes))
            .collect();
        let start = page.checked_rem(order.len() as u64).unwrap_or(0);
        order.rotate_left(usize::try_from(start).expect("a remainder is below a count"));
        order
    }
}

/// Returns the error of an index without copies.
pub(super) fn none_left() -> io::Error {
    io::Error::other("no copy of the index is left")
}
