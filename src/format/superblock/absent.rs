//! The fields of the extension that say what became of members that are gone: which others took their places, and of
//! which what they held is made up for.
//!
//! Without them nothing is lost: what was under way waits until somebody asks for it again.

use std::collections::BTreeSet;

use bytes::BufMut;

use super::{MAX_PATH, Superblock, narrow, noted_path};
use crate::format::{FormatError, MemberIndex, wire::Reader};

/// The number of the field that says who took whose place.
const REPLACED: u16 = 2;

/// The number of the field that says who is made up for.
const GIVEN_UP: u16 = 3;

/// Most members of which it is said who took their places.
pub const MAX_REPLACED: usize = 8;

/// A member that another took the place of, or is to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its place in the table, as long as no other member has that which came later.
    pub index: MemberIndex,
    /// Who gets what it has. The same number if it was gone, and the other has its very place.
    pub heir: MemberIndex,
    /// Where it was, as the table has it.
    pub path: Vec<u8>,
}

impl Superblock {
    /// Returns who was replaced by whom of late.
    #[must_use]
    pub fn replaced(&self) -> Vec<Replaced> {
        let entries = self.field(REPLACED).unwrap_or_default();
        parse_replaced(entries).unwrap_or_default()
    }

    /// Says who was replaced by whom, if there is room for that.
    ///
    /// # Panics
    ///
    /// If a path is longer than the table of members takes.
    pub fn set_replaced(&mut self, replaced: &[Replaced]) {
        let mut entries = Vec::new();
        for Replaced { index, heir, path } in replaced {
            assert!(path.len() <= MAX_PATH, "too long a path");
            entries.put_u16_le(index.0);
            entries.put_u16_le(heir.0);
            entries.put_u8(narrow(path.len()));
            entries.put_slice(path);
        }
        self.set_field(REPLACED, &entries);
    }

    /// Returns the members that are away of which what they held is being rebuilt on others.
    #[must_use]
    pub fn given_up(&self) -> BTreeSet<MemberIndex> {
        let entries = self.field(GIVEN_UP).unwrap_or_default();
        parse_given_up(entries).unwrap_or_default()
    }

    /// Says of which members what they held is being rebuilt on others, if there is room for that.
    pub fn set_given_up(&mut self, members: &BTreeSet<MemberIndex>) {
        let entries: Vec<u8> = members
            .iter()
            .flat_map(|member| member.0.to_le_bytes())
            .collect();
        self.set_field(GIVEN_UP, &entries);
    }
}

fn parse_replaced(entries: &[u8]) -> Result<Vec<Replaced>, FormatError> {
    let mut reader = Reader::new("members that were replaced", entries);
    let mut replaced = Vec::new();
    while !reader.is_empty() {
        let (index, heir) = (MemberIndex(reader.u16()?), MemberIndex(reader.u16()?));
        let path_len = reader.u8()?;
        if usize::from(path_len) > MAX_PATH || replaced.len() >= MAX_REPLACED {
            return Err(reader.bad("path of length", path_len));
        }
        let path = noted_path(reader.bytes(path_len.into())?);
        replaced.push(Replaced { index, heir, path });
    }
    Ok(replaced)
}

fn parse_given_up(entries: &[u8]) -> Result<BTreeSet<MemberIndex>, FormatError> {
    let mut reader = Reader::new("members that were given up", entries);
    let mut members = BTreeSet::new();
    while !reader.is_empty() {
        members.insert(MemberIndex(reader.u16()?));
    }
    Ok(members)
}
