//! Copying ranges between files by pointing both at the same bytes.

use std::ops::Range;

use crate::format::record::Inline;
use crate::format::{BLOCK_SIZE, Ino};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::extents::{self, PAGE};
use crate::fs::failed_writeback::{Reach, check_hole};
use crate::fs::handles::OpenFile;
use crate::fs::mode::{check_regular, clear_privileges};
use crate::fs::run::Run;
use crate::fs::spill::Spilled;
use crate::fs::types::{Caller, Handle, WriteFlags};

use super::{FileWriter, end_of, fits_inline};

/// The result of an attempt to share bytes.
enum Sharing {
    /// So many have a second file that points at them.
    Bytes(u64),
    /// They are better copied.
    Nothing,
}

impl FileWriter {
    /// Copies up to `len` bytes from one place to another and returns how many: fewer where the source
    /// ends, or where a great many extents were involved (call again for the rest).
    ///
    /// The target points at the same bytes in the same stripes, holes included, so no data moves.
    /// Content that fits into an inode's record, or is less than a block, is copied.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if the target is not open for writing, or is open to append;
    /// [`FsError::Invalid`] if source and target overlap in one file; [`FsError::FileTooBig`];
    /// [`FsError::Unsupported`] if the files have different codes, so that the caller has to read and write;
    /// [`FsError::NoSpace`]; [`FsError::QuotaExceeded`]; [`FsError::FailedWriteback`] if the source ends where it does because what follows was
    /// refused when it was written.
    pub fn copy_range(
        &self,
        caller: &Caller,
        source: Handle,
        source_offset: u64,
        target: Handle,
        target_offset: u64,
        len: u64,
    ) -> Result<u64, FsError> {
        self.inodes.check_writable()?;
        let from = self.references.handles.file(source)?;
        let to = self.references.handles.file(target)?;
        if !to.flags.write || to.flags.append {
            return Err(FsError::BadHandle);
        }
        let source_end = source_offset.saturating_add(len);
        let target_end = target_offset.saturating_add(len);
        if from.ino == to.ino && source_offset < target_end && target_offset < source_end {
            return Err(FsError::Invalid);
        }
        let wanted = source_offset..source_end;
        let share = || self.share(caller, &from, &to, &wanted, target_offset);
        let shared = self.with_room(0, || {
            self.with_open_stripe((&[from.ino, to.ino], None), share)
        })?;
        let copied = match shared {
            Sharing::Bytes(copied) => copied,
            Sharing::Nothing => self.copy_little(caller, &from, target, &wanted, target_offset)?,
        };
        if to.flags.sync {
            self.transactions.sync_file(to.ino)?;
        }
        Ok(copied)
    }

    /// Points the target at the source's bytes; `None` if that would have to wait.
    fn share(
        &self,
        caller: &Caller,
        from: &OpenFile,
        to: &OpenFile,
        wanted: &Range<u64>,
        target_offset: u64,
    ) -> Result<Option<Sharing>, FsError> {
        self.transactions.growth().check_growth()?;
        let lock = self.inodes.locks().exclusive(&[from.ino, to.ino]);
        let mut source = self.inodes.get(from.ino)?;
        check_regular(&source)?;
        // Failed ranges that only memory knows would be holes in the copy.
        let source_end = source.size..source.size;
        let change = (&source_end, Reach::Bytes);
        if !self
            .failed_writeback
            .mark(&lock, from.ino, &mut source, change)?
        {
            return Ok(None);
        }
        let mut inode = self.inodes.get(to.ino)?;
        check_regular(&inode)?;
        let end = wanted.end.min(source.size);
        if wanted.start >= end {
            let failed = self.failed_writeback.within(from.ino, wanted);
            check_hole(from.ino, &failed, wanted)?;
            return Ok(Some(Sharing::Bytes(0)));
        }
        let whole = wanted.start..end;
        let target_end = end_of(target_offset, end - wanted.start)?;
        let little = end - wanted.start < BLOCK_SIZE as u64 || fits_inline(&inode, target_end);
        let in_record =
            matches!(&source.inline, Inline::Data(data) if whole.start < data.len() as u64);
        if little || in_record {
            return Ok(Some(Sharing::Nothing));
        }
        // Stripes that both files shared would have the code of one of them. The kernel copies the bytes instead.
        if source.class != inode.class {
            return Err(FsError::Unsupported);
        }
        let (part, runs) = self.first_runs(from.ino, &whole)?;
        let moved: Vec<Run> = runs
            .iter()
            .map(|run| Run {
                start: run.start - part.start + target_offset,
                ..*run
            })
            .collect();
        let copied = part.end - part.start;
        let range = target_offset..target_offset + copied;
        if !self.prepare(&lock, to.ino, &mut inode, (&range, Reach::Bytes))? {
            return Ok(None);
        }
        let mut edit = Edit::default();
        let Some(spilled) = Spilled::place(&self.transactions, &inode, &range)? else {
            return Ok(None);
        };
        let file = (to.ino, &mut inode);
        spilled.replace_range(&self.transactions, &mut edit, file, &range, &moved)?;
        inode.size = inode.size.max(range.end);
        if !caller.is_root() {
            clear_privileges(&mut inode, caller);
        }
        self.xattrs.drop_capability(&mut edit, to.ino, &inode)?;
        inode.mtime = self.inodes.now();
        inode.ctime = inode.mtime;
        edit.put_inode(to.ino, &inode);
        // With the source still locked: until now its extents alone keep the bytes.
        let applied = self.inodes.apply(edit);
        if let Err(FsError::QuotaExceeded) = applied {
            spilled.abandon(&self.transactions)?;
        }
        applied?;
        self.failed_writeback.clear(to.ino, &range);
        drop(spilled);
        Ok(Some(Sharing::Bytes(copied)))
    }

    /// Returns as much of `range` as one batch should take, and the runs in it.
    fn first_runs(&self, ino: Ino, range: &Range<u64>) -> Result<(Range<u64>, Vec<Run>), FsError> {
        let page = extents::page(&self.transactions, ino, range)?;
        let end = match page.last() {
            Some(last) if page.len() == PAGE => last.end().min(range.end),
            _ => range.end,
        };
        let part = range.start..end;
        // Room that is kept for the source is not kept for its copy.
        let written = page.iter().filter(|run| !run.is_unwritten());
        let runs = written.filter_map(|run| run.clip(&part)).collect();
        Ok((part, runs))
    }

    /// Reads a bounded part of the range and writes it.
    fn copy_little(
        &self,
        caller: &Caller,
        from: &OpenFile,
        target: Handle,
        wanted: &Range<u64>,
        target_offset: u64,
    ) -> Result<u64, FsError> {
        let len = (wanted.end - wanted.start).min(BLOCK_SIZE as u64);
        let mut bytes = vec![0; usize::try_from(len).expect("at most a block")];
        let (_, len) = self.reader.read_at(from.ino, wanted.start, &mut bytes)?;
        let flags = WriteFlags {
            from_page_cache: false,
            is_direct: true,
            tries_again: false,
            unprivileged: (!caller.is_root()).then_some(*caller),
            at_once: false,
        };
        self.write(target, target_offset, &bytes[..len], flags)
            .map(|written| written as u64)
    }
}
