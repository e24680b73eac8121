//! Space that is kept back beside every copy, for commits that find no other.
//!
//! The ballast is a file of some megabytes that holds nothing: removing it is enough to have that space. So a volume
//! that is full, for any reason, can still take in the journal, and be freed by deleting.

use std::sync::Arc;

use super::{Io, Mirror};
use crate::format::{BLOCK_SIZE, MemberIndex, files};
use crate::store::StoreErrorKind;

/// The part of a member that is kept back.
const MEMBER_PART: u64 = 64;

/// The least and the most that is kept back on a member, in bytes.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

impl Mirror {
    /// Returns how many bytes every copy keeps back at least.
    pub(in crate::meta) fn reserve_bytes(&self) -> u64 {
        let sizes = self.members().into_iter().map(|member| self.size(member));
        sizes.min().unwrap_or(*BYTES.start())
    }

    fn size(&self, member: MemberIndex) -> u64 {
        let total = self.disk.total_bytes(member).unwrap_or(0);
        let size = (total / MEMBER_PART).clamp(*BYTES.start(), *BYTES.end());
        size.next_multiple_of(BLOCK_SIZE as u64)
    }

    /// Lets the copies have what was kept back for them, also at earlier mounts.
    pub(in crate::meta) fn release_reserve(&self) {
        let mut io = self.io.lock();
        io.ballast.clear();
        for member in self.members() {
            log::debug!("the index takes what member {member} kept back");
            self.remove_ballast(member);
        }
    }

    /// Removes what a member keeps back, if anything.
    pub(super) fn remove_ballast(&self, member: MemberIndex) {
        if let Err(error) = self.disk.remove(member, &name()) {
            log::warn!("member {member} goes on keeping space back: {error}");
        }
    }

    /// Keeps space back beside every copy that does not; says whether all do now.
    pub(in crate::meta) fn keep_reserve(&self) -> bool {
        self.keep_reserve_under(&mut self.io.lock())
    }

    pub(super) fn keep_reserve_under(&self, io: &mut Io) -> bool {
        let members = self.members();
        io.ballast.retain(|member| members.contains(member));
        for member in members {
            if !io.ballast.contains(&member) && self.add_ballast(member) {
                io.ballast.insert(member);
            }
        }
        io.ballast.len() >= self.members().len()
    }

    pub(super) fn add_ballast(&self, member: MemberIndex) -> bool {
        let size = self.size(member);
        if matches!(self.disk.len(member, &name()), Ok(Some(len)) if len == size) {
            return true;
        }
        // A remaining ballast of another size makes room for this one.
        self.remove_ballast(member);
        if self.disk.free_bytes(member).unwrap_or(0) < size {
            return false;
        }
        match self.disk.members().fill(member, &name(), size) {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != StoreErrorKind::NoSpace {
                    log::warn!("member {member} keeps no space back: {error}");
                }
                false
            }
        }
    }
}

fn name() -> Arc<str> {
    files::BALLAST.into()
}
