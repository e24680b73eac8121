//! Claims of writes on the room that is kept for unwritten extents.

use std::ops::Range;

use crate::format::Ino;
use crate::fs::error::FsError;
use crate::fs::extents;
use crate::fs::handles::OpenFile;
use crate::fs::types::WriteFlags;
use crate::transaction::unwritten::Claim;

use super::{FileWriter, end_of, start_of};

impl FileWriter {
    /// Claims the range of a write, if a part of it is unwritten. Waits for other writes of the range. The caller holds no
    /// lock.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if it would have to wait and may not.
    pub(super) fn claim(
        &self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        flags: WriteFlags,
    ) -> Result<Option<Claim<'_>>, FsError> {
        let room = self.transactions.unwritten_room();
        if !room.is_in_use() {
            return Ok(None);
        }
        let range = {
            let _lock = self.inodes.locks().shared(file.ino);
            let inode = self.inodes.get(file.ino)?;
            let start = start_of(file, &inode, offset, flags);
            let range = start..end_of(start, len)?;
            if inode.unwritten_bytes == 0 || self.unwritten_in(file.ino, &range)? == 0 {
                return Ok(None);
            }
            range
        };
        let claim = room.claim(file.ino, &range, !flags.at_once);
        let Some(mut claim) = claim else {
            return Err(FsError::NoSpace);
        };
        // An earlier claim may have written a part of it.
        let _lock = self.inodes.locks().shared(file.ino);
        claim.cover(self.unwritten_in(file.ino, &range)?);
        Ok(Some(claim))
    }

    /// Returns how many bytes of a range are unwritten. The caller holds the lock of the file.
    fn unwritten_in(&self, ino: Ino, range: &Range<u64>) -> Result<u64, FsError> {
        let runs = extents::within(&self.transactions, ino, range)?;
        let unwritten = runs.iter().filter(|run| run.is_unwritten());
        Ok(unwritten.map(|run| run.len).sum())
    }
}
