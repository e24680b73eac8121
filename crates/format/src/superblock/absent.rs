//! The fields of the extension about members that are gone: those that others replaced, and those given up,
//! whose content is rebuilt on others.
//!
//! A superblock without these fields loses nothing: an operation under way waits until it is requested again.

use std::collections::BTreeSet;

use bytes::BufMut;

use super::{MAX_PATH, Superblock, narrow, noted_path};
use crate::{FormatError, MemberIndex, wire::Reader};

/// The number of the field that names replaced members.
const REPLACED: u16 = 2;

/// The number of the field that names members given up.
const GIVEN_UP: u16 = 3;

/// Most replaced members that the field names.
pub const MAX_REPLACED: usize = 8;

/// A member that another has replaced, or is to replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its index in the table, as long as no member that came later has that index.
    pub index: MemberIndex,
    /// The member that gets its content. It equals `index` if the old member was gone and the new one has its
    /// index.
    pub heir: MemberIndex,
    /// The path of its directory, as the table has it.
    pub path: Vec<u8>,
}

impl Superblock {
    /// Returns the members that were replaced of late, and by which others.
    #[must_use]
    pub fn replaced(&self) -> Vec<Replaced> {
        let entries = self.field(REPLACED).unwrap_or_default();
        parse_replaced(entries).unwrap_or_default()
    }

    /// Records which members were replaced by which others, if there is room for that.
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

    /// Returns the absent members whose content is being rebuilt on others.
    #[must_use]
    pub fn given_up(&self) -> BTreeSet<MemberIndex> {
        let entries = self.field(GIVEN_UP).unwrap_or_default();
        parse_given_up(entries).unwrap_or_default()
    }

    /// Records the absent members whose content is being rebuilt on others, if there is room for that.
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
