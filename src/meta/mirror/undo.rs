//! Going back to what is durable, after members had no space, and giving copies up.

use std::io;
use std::sync::atomic::Ordering;

use super::{Io, Mirror};
use crate::format::MemberIndex;

impl Mirror {
    /// Goes back to what is durable, after the members had no space for what the database wrote since, and writes
    /// nothing more. The database has been closed before; once opened again, it can be read.
    pub(in crate::meta) fn suspend(&self) {
        self.suspend_under(&self.io.lock());
    }

    fn suspend_under(&self, io: &Io) {
        self.suspended.store(true, Ordering::Release);
        self.buffered.lock().clear();
        *self.front.lock() = io.durable.clone();
    }

    /// Like [`Mirror::suspend`], and then begins to write again, unless no copy has space even for
    /// undoing what was written: [`Mirror::ran_out_of_space`] still says so then.
    pub(in crate::meta) fn reset(&self) -> io::Result<()> {
        let mut io = self.io.lock();
        self.suspend_under(&io);
        // All writes since the last durable head are given up.
        io.unsynced = false;
        if io.head_in_doubt {
            // It must be gone before pages that it names are used again.
            match self.undo_head(&mut io) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                undone => undone?,
            }
        }
        self.out_of_space.store(false, Ordering::Release);
        self.suspended.store(false, Ordering::Release);
        self.cut(&mut io)
    }

    /// Writes the durable front into the heads again. Copies without space even for that are given
    /// up if others have it: they would hold back all other copies.
    fn undo_head(&self, io: &mut Io) -> io::Result<()> {
        let cramped = std::mem::take(&mut io.cramped);
        loop {
            let durable = io.durable.clone();
            let undone = self.write_heads(io, durable);
            let full = std::mem::replace(&mut io.cramped, cramped.clone());
            let is_full =
                matches!(&undone, Err(error) if error.kind() == io::ErrorKind::StorageFull);
            if !is_full || self.members().iter().all(|member| full.contains(member)) {
                return undone;
            }
            for member in full {
                log::warn!("member {member} has no space for its copy of the index");
                self.give_up(member);
            }
        }
    }

    /// Takes a member's copy out of the mirror.
    pub(super) fn give_up(&self, member: MemberIndex) {
        self.copies.write().retain(|copy| copy.member != member);
        self.wipe(member);
        self.remove_ballast(member);
    }

    /// Makes sure that the data on a member is never taken for a copy; needs no space there.
    pub(super) fn wipe(&self, member: MemberIndex) {
        if matches!(self.disk.len(member, &self.name), Ok(None)) {
            return;
        }
        let cut = self.disk.truncate(member, &self.name, 0);
        let synced = self.disk.sync(&[member], &self.name);
        for answer in [cut]
            .into_iter()
            .chain(synced.into_iter().map(|(_, answer)| answer))
        {
            if let Err(error) = answer
                && !error.kind().lacks_file()
            {
                self.disk.fail(member, &error);
                return;
            }
        }
        if let Err(error) = self.disk.remove(member, &self.name) {
            log::warn!("member {member} keeps an index file that is of no use: {error}");
        }
    }
}
