//! The field of the extension that names the last journal record that each absent member acknowledged.
//!
//! A directory in the place of such a member whose journal ends earlier is a stale copy. A superblock without the field,
//! or with one that cannot be read, names no record. It is as good as any other.

use std::collections::BTreeMap;

use bytes::BufMut;

use super::Superblock;
use crate::{Epoch, FormatError, Lsn, MemberIndex, wire::Reader};

/// The field's number. Number 4 is reserved: FORMAT.md, "Reserved for authenticated and encrypted volumes".
const FIELD: u16 = 5;

/// Bytes of the entry of one member: index, epoch, journal generation, LSN, flags.
const ENTRY_LEN: usize = 27;

/// The last journal record that a member acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastRecord {
    /// The epoch of the record; 0 if that is not known. A directory whose superblock is of a later epoch lacks no record:
    /// it joined after this one.
    pub epoch: Epoch,
    /// The number of the journal generation that it belongs to; 0 if that is not known.
    pub generation: u64,
    /// The record.
    pub lsn: Lsn,
    /// True if a commit came after it that no record tells of, or another directory was seen in the place of the member.
    /// Then no journal proves that a directory is up to date.
    pub is_surpassed: bool,
}

impl Superblock {
    /// Returns the last record that each absent member acknowledged, as far as that is known.
    #[must_use]
    pub fn last_records(&self) -> BTreeMap<MemberIndex, LastRecord> {
        let entries = self.field(FIELD).unwrap_or_default();
        parse(entries).unwrap_or_default()
    }

    /// Records which record each absent member acknowledged last, in place of the earlier statement. Nothing is recorded
    /// if there is no room beside the other fields.
    pub fn set_last_records(&mut self, members: &BTreeMap<MemberIndex, LastRecord>) {
        let mut entries = Vec::with_capacity(members.len() * ENTRY_LEN);
        for (member, record) in members {
            entries.put_u16_le(member.0);
            entries.put_u64_le(record.epoch.0);
            entries.put_u64_le(record.generation);
            entries.put_u64_le(record.lsn.0);
            entries.put_u8(record.is_surpassed.into());
        }
        self.set_field(FIELD, &entries);
    }
}

fn parse(entries: &[u8]) -> Result<BTreeMap<MemberIndex, LastRecord>, FormatError> {
    let mut reader = Reader::new("last records of absent members", entries);
    let mut members = BTreeMap::new();
    while !reader.is_empty() {
        let member = MemberIndex(reader.u16()?);
        let epoch = Epoch(reader.count("epoch")?);
        let generation = reader.count("journal generation")?;
        let lsn = Lsn(reader.count("record")?);
        let is_surpassed = match reader.u8()? {
            flags @ 0..2 => flags == 1,
            other => return Err(reader.bad("flags of a record", other)),
        };
        let record = LastRecord {
            epoch,
            generation,
            lsn,
            is_surpassed,
        };
        members.insert(member, record);
    }
    Ok(members)
}
