//! Writing bytes.

mod allocate;
mod copy_range;
mod truncate;

use std::ops::Range;

use crate::commit::Written;
use crate::format::Ino;
use crate::format::record::{Inline, Inode};

use super::Fs;
use super::edit::Edit;
use super::error::FsError;
use super::extents;
use super::handles::OpenFile;
use super::limits::{INLINE_MAX, SIZE_MAX};
use super::locks::Exclusive;
use super::mode::{check_regular, clear_privileges};
use super::run::Run;
use super::types::{Caller, Handle, WriteFlags};

impl Fs {
    /// Writes `data` at `offset`, or at the end of a file that was opened to append, and returns its length: all of it
    /// is written or nothing. If a write from a page cache fails and the file holds nothing else, reading fails as
    /// well, until something is written there.
    ///
    /// The bytes are copied into a stripe, and the file points at them then, in one batch; with
    /// `O_SYNC` they are durable when this returns. A write from a page cache leaves the times alone
    /// and goes where it says.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if the handle is not open for writing, [`FsError::FileTooBig`],
    /// [`FsError::NoSpace`] with nothing changed.
    pub fn write(
        &self,
        _caller: &Caller,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, FsError> {
        self.writable()?;
        let file = self.handles.file(handle)?;
        if !file.flags.write {
            return Err(FsError::BadHandle);
        }
        if data.is_empty() {
            return Ok(0);
        }
        if flags.at_once {
            if self.is_being_cut(file.ino) {
                return Err(FsError::NoSpace);
            }
            self.write_once(&file, offset, data, flags)?;
        } else {
            let needed = data.len() as u64;
            let written = self.with_room(needed, || self.write_once(&file, offset, data, flags));
            if written.is_err() && flags.from_page_cache {
                // Before the kernel hears of it, and goes on with what follows.
                self.note_refused(file.ino, offset, needed);
            }
            written?;
        }
        if file.flags.sync && !flags.from_page_cache {
            self.pipeline.sync()?;
        }
        Ok(data.len())
    }

    fn write_once(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(), FsError> {
        // Much is placed before the file is locked; little may yet fit into its record.
        let early = if data.len() > INLINE_MAX {
            Some(self.pipeline.write(data)?)
        } else {
            self.pipeline.growth().check_growth()?;
            None
        };
        self.with_open_stripe(|| self.write_locked(file, offset, data, flags, early.as_ref()))
    }

    /// Runs `attempt` until it returns something. In between it holds no lock, and a stripe is opened,
    /// which may have to wait for members.
    pub(super) fn with_open_stripe<T>(
        &self,
        mut attempt: impl FnMut() -> Result<Option<T>, FsError>,
    ) -> Result<T, FsError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            self.pipeline.open_stripe()?;
        }
    }

    /// Writes what was placed `early`, or is so little that it can be placed without waiting: `None` if it
    /// cannot, and nothing has changed.
    fn write_locked(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        early: Option<&Written>,
    ) -> Result<Option<()>, FsError> {
        let lock = self.locks.exclusive(&[file.ino]);
        let mut inode = self.inode(file.ino)?;
        check_regular(&inode)?;
        let start = if file.flags.append && !flags.from_page_cache {
            inode.size
        } else {
            offset
        };
        let end = end_of(start, data.len() as u64)?;
        self.clear_behind(&lock, file.ino, &mut inode, end)?;
        if !self.mark_refused(&lock, file.ino, &mut inode, &(start..end))? {
            return Ok(None);
        }
        let mut edit = Edit::default();
        // Until the batch is applied, nothing but these says that the bytes are needed.
        let mut _holds = (Spilled::default(), None);
        if fits_inline(&inode, end) {
            write_inline(&mut inode, start, data);
        } else {
            let range = start..end;
            let Some(spilled) = self.spill(&inode, &range)? else {
                return Ok(None);
            };
            let written = match early {
                Some(_) => None,
                None => match self.pipeline.write_at_once(data)? {
                    Some(written) => Some(written),
                    None => return self.give_up(&spilled),
                },
            };
            let placed = early.or(written.as_ref());
            let runs = placed.map_or(Vec::new(), |placed| extents::placed_at(start, placed));
            self.put_runs(
                &lock,
                &mut edit,
                (file.ino, &mut inode),
                &range,
                &spilled,
                &runs,
            )?;
            _holds = (spilled, written);
        }
        inode.size = inode.size.max(end);
        if flags.kill_suid_sgid {
            clear_privileges(&mut inode);
        }
        self.drop_capability(&mut edit, file.ino, &inode)?;
        if !flags.from_page_cache {
            inode.mtime = self.now();
            inode.ctime = inode.mtime;
        }
        edit.put_inode(file.ino, &inode);
        self.apply(edit)?;
        self.refused.forget(file.ino, &(start..end));
        Ok(Some(()))
    }

    /// Puts into `edit` that `range` of a file holds `runs`. The rest of the file keeps what it held; data that was in
    /// its record is `spilled`.
    pub(super) fn put_runs(
        &self,
        lock: &Exclusive<'_>,
        edit: &mut Edit,
        (ino, inode): (Ino, &mut Inode),
        range: &Range<u64>,
        spilled: &Spilled,
        runs: &[Run],
    ) -> Result<(), FsError> {
        debug_assert!(lock.covers(ino));
        let old = if inode.allocated_bytes > 0 {
            extents::around(&self.pipeline, ino, range)?
        } else {
            Vec::new()
        };
        let current = if spilled.runs.is_empty() {
            &old
        } else {
            &spilled.runs
        };
        let new = extents::splice(current, range, runs);
        let growth = extents::replace(edit, ino, &old, &new);
        inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
        inode.inline = Inline::None;
        Ok(())
    }

    /// Places the bytes that an inode's record holds, unless all lie in `range` and are replaced. `None`
    /// if that would have to wait: see [`Self::with_open_stripe`].
    pub(super) fn spill(
        &self,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Option<Spilled>, FsError> {
        match &inode.inline {
            Inline::Data(data) if range.start > 0 || range.end < data.len() as u64 => {
                let written = self.pipeline.write_at_once(data)?;
                Ok(written.map(|written| Spilled {
                    runs: extents::placed_at(0, &written),
                    written: Some(written),
                }))
            }
            Inline::Data(_) | Inline::None | Inline::Target(_) => Ok(Some(Spilled::default())),
        }
    }

    /// Has what was spilled in vain given back.
    fn give_up(&self, spilled: &Spilled) -> Result<Option<()>, FsError> {
        if let Some(written) = &spilled.written {
            self.pipeline.abandon(written)?;
        }
        Ok(None)
    }
}

/// Bytes of a record that have a place in a stripe. To be kept until the edit is applied that says so.
#[derive(Default)]
pub(super) struct Spilled {
    runs: Vec<Run>,
    written: Option<Written>,
}

/// Returns where a range ends, if a file can be so long.
pub(super) fn end_of(start: u64, len: u64) -> Result<u64, FsError> {
    match start.checked_add(len) {
        Some(end) if end <= SIZE_MAX => Ok(end),
        _ => Err(FsError::FileTooBig),
    }
}

/// Says whether the record can hold the file's bytes up to `end`.
pub(super) fn fits_inline(inode: &Inode, end: u64) -> bool {
    inode.allocated_bytes == 0 && end <= INLINE_MAX as u64
}

fn write_inline(inode: &mut Inode, start: u64, data: &[u8]) {
    let start = usize::try_from(start).expect("the record holds it");
    let end = start + data.len();
    let mut bytes = match std::mem::replace(&mut inode.inline, Inline::None) {
        Inline::Data(bytes) => bytes,
        Inline::None | Inline::Target(_) => Vec::new(),
    };
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(data);
    inode.inline = Inline::Data(bytes);
}
