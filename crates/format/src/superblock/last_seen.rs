//! The field of the extension that records the state of each member when it was seen last.
//!
//! A superblock without the field, or with one that cannot be read, records no member's state. It is as good
//! as any other.

use std::collections::BTreeMap;

use bytes::BufMut;

use super::Superblock;
use crate::{Epoch, FormatError, Generation, MemberIndex, wire::Reader};

/// The field's number.
const FIELD: u16 = 1;

/// Bytes of the entry of one member: index, epoch, generation.
const ENTRY_LEN: usize = 18;

/// The state of a member when something was written to its superblock last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// The epoch that it was in.
    pub epoch: Epoch,
    /// The generation of its superblock; 0 if that is not known.
    pub generation: Generation,
}

impl LastSeen {
    /// Returns the state of a member that has this superblock.
    #[must_use]
    pub fn of(block: &Superblock) -> Self {
        Self {
            epoch: block.head().epoch,
            generation: block.generation,
        }
    }

    /// Says whether a member that was as this says has a superblock from before. One that knows of an epoch
    /// only as proposed may be in it.
    #[must_use]
    pub fn is_after(&self, block: &Superblock) -> bool {
        let proposed = block.proposed.map_or(Epoch(0), |mark| mark.epoch);
        block.head().epoch.max(proposed) < self.epoch || block.generation < self.generation
    }
}

impl Superblock {
    /// Returns how the members were last that do not belong to the current epoch, as far as that is known.
    #[must_use]
    pub fn last_seen(&self) -> BTreeMap<MemberIndex, LastSeen> {
        let entries = self.field(FIELD).unwrap_or_default();
        parse(entries).unwrap_or_default()
    }

    /// Says how members were last, in the place of what was said of any. Nothing is said if there is no
    /// room beside the fields that this build does not know.
    pub fn set_last_seen(&mut self, members: &BTreeMap<MemberIndex, LastSeen>) {
        let mut entries = Vec::with_capacity(members.len() * ENTRY_LEN);
        for (member, seen) in members {
            entries.put_u16_le(member.0);
            entries.put_u64_le(seen.epoch.0);
            entries.put_u64_le(seen.generation.0);
        }
        self.set_field(FIELD, &entries);
    }
}

fn parse(entries: &[u8]) -> Result<BTreeMap<MemberIndex, LastSeen>, FormatError> {
    let mut reader = Reader::new("members last seen", entries);
    let mut members = BTreeMap::new();
    while !reader.is_empty() {
        let member = MemberIndex(reader.u16()?);
        let seen = LastSeen {
            epoch: Epoch(reader.count("epoch")?),
            generation: Generation(reader.count("generation")?),
        };
        members.insert(member, seen);
    }
    Ok(members)
}
