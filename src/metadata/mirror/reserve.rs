//! Space that is kept in reserve beside every copy, for commits that find no other.
//!
//! The reserve is a file of some megabytes that holds nothing: removing it is enough to have that space. So a volume
//! that is full, for any reason, can still take in the journal, and be freed by deleting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::format::{BLOCK_SIZE, MemberIndex, files};
use crate::metadata::disk::Disk;
use crate::rate_limit::RateLimit;
use crate::store::{StoreError, StoreErrorKind};

/// The part of a member that is kept in reserve.
const MEMBER_PART: u64 = 64;

/// The least and the most that is kept in reserve on a member, in bytes.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// Reserve files of the members that have copies of the index.
#[derive(Debug)]
pub(super) struct Reserve {
    disk: Arc<Disk>,
    /// Members that have their reserve file.
    complete: BTreeSet<MemberIndex>,
    refusals: RateLimit<MemberIndex>,
}

impl Reserve {
    pub(super) fn new(disk: &Arc<Disk>) -> Self {
        Self {
            disk: Arc::clone(disk),
            complete: BTreeSet::new(),
            refusals: RateLimit::once_a_minute(),
        }
    }

    /// Returns whether a member has its reserve.
    pub(super) fn is_complete_on(&self, member: MemberIndex) -> bool {
        self.complete.contains(&member)
    }

    /// Makes the reserve of every holder that lacks it. Returns whether all have it. A holder that fails counts for
    /// nothing, because it loses its copy.
    pub(super) fn keep(&mut self, holders: &[MemberIndex]) -> bool {
        self.complete.retain(|member| holders.contains(member));
        let mut all_have_room = true;
        for member in holders {
            all_have_room &= self.complete.contains(member) || self.make(*member);
        }
        all_have_room
    }

    /// Makes the reserve of a member. Returns false if the member has none, and does not fail for that.
    pub(super) fn make(&mut self, member: MemberIndex) -> bool {
        match self.try_make(member) {
            Ok(true) => {
                self.complete.insert(member);
                true
            }
            Ok(false) => false,
            Err(error) if error.kind() == StoreErrorKind::NoSpace => false,
            Err(error) => {
                if self.refusals.admit(member, Instant::now()).is_some() {
                    tracing::warn!(journal.member = %member, "member {member} keeps no space in reserve: {error}");
                }
                !self.disk.members().membership().live().contains(&member)
            }
        }
    }

    fn try_make(&self, member: MemberIndex) -> Result<bool, StoreError> {
        let size = size_on(&self.disk, member);
        if self.disk.len(member, &name())? == Some(size) {
            return Ok(true);
        }
        // A remaining file of another size makes room for this one.
        self.remove_file(member);
        if self.disk.free_bytes(member)? < size {
            return Ok(false);
        }
        self.disk.members().io().fill(member, &name(), size)?;
        Ok(true)
    }

    /// Gives the holders their reserves, also those of earlier mounts.
    pub(super) fn release(&mut self, holders: &[MemberIndex]) {
        self.complete.clear();
        for member in holders {
            tracing::debug!("the index takes the reserve of member {member}");
            self.remove_file(*member);
        }
    }

    /// Removes the reserve of a member without a copy, if it has one.
    pub(super) fn remove(&mut self, member: MemberIndex) {
        self.complete.remove(&member);
        self.remove_file(member);
    }

    fn remove_file(&self, member: MemberIndex) {
        if let Err(error) = self.disk.remove(member, &name()) {
            tracing::warn!(journal.member = %member, "member {member} goes on keeping space in reserve: {error}");
        }
    }
}

/// Returns how many bytes every one of these members keeps in reserve at least.
pub(super) fn least_bytes(disk: &Disk, members: Vec<MemberIndex>) -> u64 {
    let sizes = members.into_iter().map(|member| size_on(disk, member));
    sizes.min().unwrap_or(*BYTES.start())
}

fn size_on(disk: &Disk, member: MemberIndex) -> u64 {
    let total = disk.total_bytes(member).unwrap_or(0);
    let size = (total / MEMBER_PART).clamp(*BYTES.start(), *BYTES.end());
    size.next_multiple_of(BLOCK_SIZE as u64)
}

fn name() -> Arc<str> {
    files::BALLAST.into()
}
