//! The lengths of the copies' files.

use std::io;

use super::{Copied, FIRST_PAGES, Io, Mirror, PAGE};
use crate::format::MemberIndex;
use crate::format::frame;
use crate::store::StoreErrorKind;

/// Bytes that a file may grow by with its space reserved, and the part of what is free that this may
/// take. The database doubles its length up to 4 GiB, and then grows by as much at a time: reserving
/// all of that would take space from data, and from the index itself.
const MAX_RESERVED_GROWTH: u64 = 256 << 20;
const MAX_RESERVED_PART: u64 = 8;

impl Mirror {
    /// Returns the length of the database in bytes.
    pub(in crate::meta) fn db_bytes(&self) -> u64 {
        self.front.lock().db_bytes
    }

    /// Makes every copy's file long enough for the whole database, so that no read of a page meets
    /// the file's end. The space is reserved, unless the database grows by too much at once.
    pub(super) fn extend(&self, io: &mut Io, db_bytes: u64) -> io::Result<()> {
        let len = file_bytes(db_bytes);
        let short: Vec<_> = self
            .copies
            .read()
            .iter()
            .filter(|copy| copy.file_bytes < len)
            .copied()
            .collect();
        io.unsynced |= !short.is_empty();
        let grow = |copy: Copied| {
            let reserved = self.may_reserve(copy.member, len - copy.file_bytes)
                && self
                    .disk
                    .reserve(copy.member, &self.name, copy.file_bytes..len)
                    .is_ok();
            // Much of a longer database may never be written: let the writes decide.
            let grown = if reserved {
                Ok(())
            } else {
                self.disk.truncate(copy.member, &self.name, len)
            };
            if grown.is_ok() {
                self.note_len(copy.member, len);
            }
            (copy.member, grown)
        };
        self.settle(io, short.into_iter().map(grow).collect())
    }

    fn may_reserve(&self, member: MemberIndex, growth: u64) -> bool {
        let free = self.disk.free_bytes(member).unwrap_or(0);
        growth <= MAX_RESERVED_GROWTH.min(free / MAX_RESERVED_PART)
    }

    /// Gives back what the copies' files have beyond the durable length of the database.
    pub(super) fn cut(&self, io: &mut Io) -> io::Result<()> {
        let len = file_bytes(io.durable.db_bytes.max(FIRST_PAGES * PAGE));
        let long: Vec<_> = self
            .copies
            .read()
            .iter()
            .filter(|copy| copy.file_bytes > len)
            .map(|copy| copy.member)
            .collect();
        let cut = |member: MemberIndex| {
            // First, so that readers of that range know that the end has moved.
            self.note_len(member, len);
            let cut = match self.disk.truncate(member, &self.name, len) {
                Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                    log::debug!("{error}: the unused end of the file stays");
                    Ok(())
                }
                other => other,
            };
            (member, cut)
        };
        self.settle(io, long.into_iter().map(cut).collect())
    }

    fn note_len(&self, member: MemberIndex, len: u64) {
        let mut copies = self.copies.write();
        for copy in copies.iter_mut().filter(|copy| copy.member == member) {
            copy.file_bytes = len;
        }
    }

    /// Says whether the file of a member's copy is at least `len` bytes long.
    pub(super) fn reaches(&self, member: MemberIndex, len: u64) -> bool {
        let copies = self.copies.read();
        let mut of_member = copies.iter().filter(|copy| copy.member == member);
        of_member.any(|copy| copy.file_bytes >= len)
    }
}

/// Returns how long a file is that holds a database of so many bytes.
pub(super) fn file_bytes(db_bytes: u64) -> u64 {
    frame::frame_offset(db_bytes.div_ceil(PAGE))
}
