//! Reading bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::{Inline, Inode};
use crate::transaction::{Served, Transactions};

use super::access_time::AccessTimes;
use super::error::FsError;
use super::extents;
use super::failed_writeback::{FailedWriteback, check_hole};
use super::inodes::Inodes;
use super::limits::SIZE_MAX;
use super::mode::check_regular;
use super::references::References;
use super::run::Run;
use super::seek::{self, DataMap};
use super::types::{Handle, Whence};

/// Stripes that are fetched ahead of a sequential reader.
const STRIPES_AHEAD: u64 = 3;

/// The state of a file at one moment: its inode, and where the bytes of the range asked for are.
struct Snapshot {
    inode: Inode,
    range: Range<u64>,
    runs: Vec<Run>,
    /// The parts of the range asked for whose writeback failed: where the file holds nothing else, nothing can be
    /// read.
    failed: Vec<Range<u64>>,
}

/// Reads the data of files.
pub struct FileReader {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    references: Arc<References>,
    failed_writeback: Arc<FailedWriteback>,
    access_times: Arc<AccessTimes>,
}

impl FileReader {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        transactions: &Arc<Transactions>,
        references: &Arc<References>,
        failed_writeback: &Arc<FailedWriteback>,
        access_times: &Arc<AccessTimes>,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            references: Arc::clone(references),
            failed_writeback: Arc::clone(failed_writeback),
            access_times: Arc::clone(access_times),
        }
    }

    /// Reads from `offset` on into `out` and returns how many bytes there were: fewer than `out`
    /// takes only at the end of the file. Holes read as zeros.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`], [`FsError::IsDirectory`], [`FsError::Storage`] if the bytes cannot be
    /// had: never wrong ones (P2); [`FsError::FailedWriteback`] if they were refused when they were written.
    pub fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        let file = self.references.handles.file(handle)?;
        let (inode, len, served) = self.read_served(file.ino, offset, out)?;
        if served == Served::FromMembers {
            self.read_ahead(handle, file.ino, offset..offset + len as u64);
        }
        if !file.flags.no_atime {
            self.access_times.note(file.ino, &inode);
        }
        Ok(len)
    }

    /// Reads without a handle; returns the inode as it was, too.
    pub(super) fn read_at(
        &self,
        ino: Ino,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(Inode, usize), FsError> {
        let (inode, len, _) = self.read_served(ino, offset, out)?;
        Ok((inode, len))
    }

    /// Reads like [`FileReader::read_at`]; returns where the bytes were, too.
    fn read_served(
        &self,
        ino: Ino,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(Inode, usize, Served), FsError> {
        let mut last: Option<Snapshot> = None;
        loop {
            // Before extents are looked up: what they name stays readable while the pin is held.
            let _pin = self.transactions.pin();
            let snapshot = self.snapshot(ino, offset, out.len())?;
            let len = index(snapshot.range.end - snapshot.range.start);
            match self.fill(ino, &snapshot, &mut out[..len]) {
                Ok(served) => return Ok((snapshot.inode, len, served)),
                // Compaction may have moved the bytes; if they are where they were, they are lost.
                Err(error) if last.is_some_and(|last| last.runs == snapshot.runs) => {
                    return Err(error);
                }
                Err(_) => last = Some(snapshot),
            }
        }
    }

    fn snapshot(&self, ino: Ino, offset: u64, len: usize) -> Result<Snapshot, FsError> {
        let _lock = self.inodes.locks().shared(ino);
        let inode = self.inodes.get(ino)?;
        check_regular(&inode)?;
        let end = offset.saturating_add(len as u64).min(inode.size);
        let range = offset.min(end)..end;
        let mut runs = if inode.allocated_bytes > 0 {
            extents::within(&self.transactions, ino, &range)?
        } else {
            Vec::new()
        };
        // They read as holes do.
        runs.retain(|run| !run.is_unwritten());
        let wanted = offset..offset.saturating_add(len as u64);
        let failed = self.failed_writeback.within(ino, &wanted);
        Ok(Snapshot {
            inode,
            range,
            runs,
            failed,
        })
    }

    fn fill(&self, ino: Ino, snapshot: &Snapshot, out: &mut [u8]) -> Result<Served, FsError> {
        let range = &snapshot.range;
        let nothing = |from: u64, to: u64| check_hole(ino, &snapshot.failed, &(from..to));
        if let Inline::Data(data) = &snapshot.inode.inline {
            nothing(data.len() as u64, u64::MAX)?;
            copy_inline(data, range.start, out);
            return Ok(Served::FromMemory);
        }
        let mut served = Served::FromMemory;
        let mut filled = 0;
        for run in snapshot.runs.iter().filter_map(|run| run.clip(range)) {
            let (from, to) = (
                index(run.start - range.start),
                index(run.end() - range.start),
            );
            nothing(range.start + filled as u64, run.start)?;
            // Runs of one page never overlap; those of two may, if the records are damaged.
            let what = "two extents overlap";
            let hole = out.get_mut(filled..from);
            let hole = hole.ok_or(FsError::Corrupt { ino: ino.0, what })?;
            hole.fill(0);
            if run.is_failed_writeback() {
                let (ino, offset) = (ino.0, run.start);
                return Err(FsError::FailedWriteback { ino, offset });
            }
            let read = self
                .transactions
                .read(run.stripe, run.stripe_offset, &mut out[from..to])?;
            if read == Served::FromMembers {
                served = read;
            }
            filled = to;
        }
        // If the file ends only because the following bytes were refused, this is not its end for their writer.
        nothing(range.start + filled as u64, u64::MAX)?;
        out[filled..].fill(0);
        Ok(served)
    }

    /// Fetches what a sequential reader will want next. Nothing fails if this does.
    fn read_ahead(&self, handle: Handle, ino: Ino, range: Range<u64>) {
        let window = u64::from(self.transactions.stripe_capacity()) * STRIPES_AHEAD;
        let wanted = self.references.handles.note_read(handle, &range, window);
        let Some(wanted) = wanted else { return };
        let end = wanted.end.min(SIZE_MAX);
        let found = {
            let _lock = self.inodes.locks().shared(ino);
            extents::within(&self.transactions, ino, &(wanted.start..end))
        };
        let Ok(runs) = found else { return };
        let mut last = None;
        for run in runs {
            if last != Some(run.stripe) && run.is_in_stripe() {
                self.transactions.prefetch(run.stripe);
                last = Some(run.stripe);
            }
        }
    }

    /// Finds the next data or the next hole at `offset` or behind it. Data is also what was refused when it
    /// was written, even where the file ends because of that: a copy that skipped it would have zeros there.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSuchOffset`] at or behind the end of the file, or if no data follows.
    pub fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64, FsError> {
        let ino = self.references.handles.file(handle)?.ino;
        let _lock = self.inodes.locks().shared(ino);
        let inode = self.inodes.get(ino)?;
        check_regular(&inode)?;
        let failed = self.failed_writeback.within(ino, &(offset..SIZE_MAX));
        let end = failed.last().map_or(0, |last| last.end).max(inode.size);
        if offset >= end {
            return Err(FsError::NoSuchOffset);
        }
        let map = DataMap {
            ino,
            inline_len: match &inode.inline {
                Inline::Data(data) => data.len() as u64,
                Inline::None | Inline::Target(_) => 0,
            },
            failed,
        };
        let found = match whence {
            Whence::Data => seek::next_data(&self.transactions, &map, offset)?,
            // Every file ends in a hole.
            Whence::Hole => Some(seek::next_hole(&self.transactions, &map, offset)?.min(end)),
        };
        found
            .filter(|found| *found < end || whence == Whence::Hole)
            .ok_or(FsError::NoSuchOffset)
    }
}

/// Copies what a record holds from `start` on; zeros follow it.
fn copy_inline(data: &[u8], start: u64, out: &mut [u8]) {
    let start = index(start.min(data.len() as u64));
    let held = data[start..].len().min(out.len());
    out[..held].copy_from_slice(&data[start..start + held]);
    out[held..].fill(0);
}

/// An offset that lies within a buffer.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("lies within a buffer")
}
