//! Writing bytes.

mod allocate;
mod claims;
mod copy_range;
mod preallocate;
mod truncate;

use std::ops::Range;
use std::sync::Arc;

use crate::format::record::{Inline, Inode};
use crate::format::{Ino, StripeClass};
use crate::transaction::unwritten::Claim;
use crate::transaction::{Transactions, Written};

use super::edit::Edit;
use super::error::FsError;
use super::extents;
use super::failed_writeback::{FailedWriteback, Reach};
use super::handles::OpenFile;
use super::inodes::Inodes;
use super::limits::{INLINE_MAX, SIZE_MAX};
use super::locks::ExclusiveLock;
use super::mode::{check_regular, clear_privileges};
use super::reader::FileReader;
use super::references::References;
use super::removal::Removal;
use super::spill::Spilled;
use super::types::{Handle, WriteFlags};
use super::xattr::Xattrs;

/// Changes the data of files.
pub struct FileWriter {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    references: Arc<References>,
    xattrs: Arc<Xattrs>,
    failed_writeback: Arc<FailedWriteback>,
    removal: Arc<Removal>,
    reader: Arc<FileReader>,
}

impl FileWriter {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        transactions: &Arc<Transactions>,
        references: &Arc<References>,
        xattrs: &Arc<Xattrs>,
        failed_writeback: &Arc<FailedWriteback>,
        removal: &Arc<Removal>,
        reader: &Arc<FileReader>,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            references: Arc::clone(references),
            xattrs: Arc::clone(xattrs),
            failed_writeback: Arc::clone(failed_writeback),
            removal: Arc::clone(removal),
            reader: Arc::clone(reader),
        }
    }

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
    /// [`FsError::NoSpace`] and [`FsError::QuotaExceeded`] with nothing changed.
    pub fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, FsError> {
        self.inodes.check_writable()?;
        let file = self.references.handles.file(handle)?;
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
            let written = self.write_once(&file, offset, data, flags);
            if !matches!(written, Err(FsError::NoSpace | FsError::QuotaExceeded)) {
                self.note_if_failed(&file, offset, data.len() as u64, flags, &written);
            }
            written?;
        } else {
            let needed = data.len() as u64;
            let attempt = || self.write_once(&file, offset, data, flags);
            let written = self.with_room(needed, attempt);
            // Before the kernel hears of it, and goes on with what follows.
            self.note_if_failed(&file, offset, needed, flags, &written);
            written?;
        }
        if file.flags.sync && !flags.from_page_cache {
            self.transactions.sync_file(file.ino)?;
        }
        Ok(data.len())
    }

    /// Remembers bytes of a page cache that could not be written, and that are not written again after an outage.
    fn note_if_failed(
        &self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        flags: WriteFlags,
        written: &Result<(), FsError>,
    ) {
        let Err(error) = written else { return };
        let failed_with_volume = matches!(error, FsError::Storage(_) | FsError::NoSpace)
            && self.transactions.lacks_members();
        if flags.from_page_cache && !(flags.tries_again && failed_with_volume) {
            self.failed_writeback.note(file.ino, offset, len);
        }
    }

    fn write_once(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(), FsError> {
        loop {
            match self.try_write(file, offset, data, flags)? {
                Wrote::All => return Ok(()),
                Wrote::Nothing => {}
            }
        }
    }

    fn try_write(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<Wrote, FsError> {
        let claim = self.claim(file, offset, data.len() as u64, flags)?;
        let claim = claim.as_ref();
        let class = self.transactions.class_of(file.ino)?;
        // Much is placed before the file is locked; little may yet fit into its record.
        let early = if data.len() > INLINE_MAX {
            self.check_quota(file, offset, data.len() as u64, flags)?;
            Some(self.transactions.write_within(class, claim, data)?)
        } else {
            if !claim.is_some_and(Claim::is_full) {
                self.transactions.growth().check_growth()?;
            }
            None
        };
        let placed = (class, claim, early.as_ref());
        let attempt = || self.write_locked(file, offset, data, flags, placed);
        let written = self.with_open_stripe((&[file.ino], claim), attempt);
        let is_unused = matches!(
            written,
            Err(FsError::QuotaExceeded | FsError::NoSpace) | Ok(Wrote::Nothing)
        );
        if let (true, Some(early)) = (is_unused, &early) {
            self.transactions.abandon(early)?;
        }
        written
    }

    /// Runs `attempt`, which holds no lock when it returns. If it finds no space, or no room in a quota, makes some and
    /// tries again.
    fn with_room<T>(
        &self,
        needed: u64,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.references
            .with_quota(|| self.inodes.with_room(needed, &mut attempt))
    }

    /// Refuses a write that is sure to be more than a quota leaves, before its bytes are placed.
    fn check_quota(
        &self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        flags: WriteFlags,
    ) -> Result<(), FsError> {
        if self.inodes.quotas().is_empty() {
            return Ok(());
        }
        let _lock = self.inodes.locks().shared(file.ino);
        let inode = self.inodes.get(file.ino)?;
        let start = start_of(file, &inode, offset, flags);
        self.check_growth_of(file.ino, &inode, &(start..end_of(start, len)?))
    }

    /// Checks that quotas let a file grow by the bytes that it lacks in a range. A write there puts lost bytes before it on
    /// record, which count as well.
    fn check_growth_of(&self, ino: Ino, inode: &Inode, range: &Range<u64>) -> Result<(), FsError> {
        let Some(left) = self.inodes.quotas().bytes_left(inode) else {
            return Ok(());
        };
        // Bytes in the record are counted already.
        let in_record = match &inode.inline {
            Inline::Data(data) => data.len() as u64,
            Inline::None | Inline::Target(_) => 0,
        };
        let lost = self.failed_writeback.within(ino, &(0..range.start));
        let lost: u64 = lost.iter().map(|part| part.end - part.start).sum();
        let enough = left.saturating_sub(lost).saturating_add(in_record);
        if range.end - range.start > enough && self.missing_in(ino, range, enough)? > enough {
            return Err(FsError::QuotaExceeded);
        }
        Ok(())
    }

    /// Runs `attempt` until it returns something. In between it holds no lock, and a stripe is opened for each file, of the
    /// class that it has by then; this may have to wait for members.
    fn with_open_stripe<T>(
        &self,
        (files, claim): (&[Ino], Option<&Claim<'_>>),
        mut attempt: impl FnMut() -> Result<Option<T>, FsError>,
    ) -> Result<T, FsError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            for file in files {
                let class = self.transactions.class_of(*file)?;
                self.transactions.open_stripe(class, claim)?;
            }
        }
    }

    /// Runs `attempt`, which holds no lock when it returns, until it returns something. In between a stripe is opened for a
    /// file, and room is made for that if there is none.
    pub(in crate::fs) fn with_stripe_for<T>(
        &self,
        ino: Ino,
        mut attempt: impl FnMut() -> Result<Option<T>, FsError>,
    ) -> Result<T, FsError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            self.inodes.open_stripe_for(ino)?;
        }
    }

    /// Gives back what was placed for an edit that is not applied.
    fn abandon(&self, (spilled, written): &(Spilled, Option<Written>)) -> Result<(), FsError> {
        spilled.abandon(&self.transactions)?;
        if let Some(written) = written {
            self.transactions.abandon(written)?;
        }
        Ok(())
    }

    /// Prepares a file for a write to `range` with this reach, or for an end at `range.end`: removes what is left behind its
    /// end, and puts failed ranges on record that would become holes. Returns `false` if a stripe must be opened first.
    fn prepare(
        &self,
        lock: &ExclusiveLock<'_>,
        ino: Ino,
        inode: &mut Inode,
        (range, reach): (&Range<u64>, Reach),
    ) -> Result<bool, FsError> {
        self.removal.clear_behind(lock, ino, inode, range.end)?;
        self.failed_writeback.mark(lock, ino, inode, (range, reach))
    }

    /// Returns whether a change of the size of a file may take its time: much is left to be taken out behind its end, or lost
    /// bytes must be put on record.
    #[must_use]
    pub fn may_resize_slowly(&self, ino: Ino) -> bool {
        self.is_being_cut(ino) || self.failed_writeback.has_any(ino)
    }

    /// Returns whether much is left to be taken out behind the end of a file: making it longer may take
    /// its time.
    #[must_use]
    fn is_being_cut(&self, ino: Ino) -> bool {
        self.removal.is_cutting(ino)
    }

    /// Writes what was placed `early`, or is so little that it can be placed without waiting: `None` if it
    /// cannot, and nothing has changed.
    fn write_locked(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        (class, claim, early): (StripeClass, Option<&Claim<'_>>, Option<&Written>),
    ) -> Result<Option<Wrote>, FsError> {
        let lock = self.inodes.locks().exclusive(&[file.ino]);
        let mut inode = self.inodes.get(file.ino)?;
        check_regular(&inode)?;
        let start = start_of(file, &inode, offset, flags);
        let end = end_of(start, data.len() as u64)?;
        let is_moved = claim.is_some_and(|claim| *claim.range() != (start..end));
        if is_moved || class != inode.class {
            // Another try does no better if no code is known.
            self.transactions.check_class(inode.class)?;
            return Ok(Some(Wrote::Nothing));
        }
        self.check_growth_of(file.ino, &inode, &(start..end))?;
        let change = (&(start..end), flags.reach());
        // Other writes change the times.
        let stored = flags.from_page_cache.then(|| inode.clone());
        if !self.prepare(&lock, file.ino, &mut inode, change)? {
            return Ok(None);
        }
        let mut edit = Edit::default();
        // Until the batch is applied, nothing but these says that the bytes are needed.
        let mut holds = (Spilled::default(), None);
        if fits_inline(&inode, end) {
            write_inline(&mut inode, start, data);
        } else {
            let range = start..end;
            let Some(spilled) = Spilled::place(&self.transactions, &inode, &range)? else {
                return Ok(None);
            };
            let mut written = None;
            if early.is_none() {
                written = self.transactions.write_at_once_within(class, claim, data)?;
                if written.is_none() {
                    spilled.abandon(&self.transactions)?;
                    return Ok(None);
                }
            }
            let placed = early.or(written.as_ref());
            let runs = placed.map_or(Vec::new(), |placed| extents::placed_at(start, placed));
            let target = (file.ino, &mut inode);
            spilled.replace_range(&self.transactions, &mut edit, target, &range, &runs)?;
            holds = (spilled, written);
        }
        inode.size = inode.size.max(end);
        if let Some(caller) = &flags.unprivileged {
            clear_privileges(&mut inode, caller);
        }
        self.xattrs.drop_capability(&mut edit, file.ino, &inode)?;
        if !flags.from_page_cache {
            inode.mtime = self.inodes.now();
            inode.ctime = inode.mtime;
        }
        // Writeback that only replaces bytes of the file leaves its record as it is.
        if stored.as_ref() != Some(&inode) {
            edit.put_inode(file.ino, &inode);
        }
        let applied = self.inodes.apply(edit);
        if let Err(FsError::QuotaExceeded) = applied {
            self.abandon(&holds)?;
        }
        applied?;
        self.failed_writeback.clear_written(file.ino, change);
        Ok(Some(Wrote::All))
    }
}

/// The outcome of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrote {
    /// Everything.
    All,
    /// Nothing: the end of a file that is appended to has moved, or the file has another class of stripes. Another try
    /// claims the range there, or places the bytes in such a stripe.
    Nothing,
}

impl WriteFlags {
    /// Returns which bytes a write replaces.
    fn reach(&self) -> Reach {
        if self.is_direct && !self.from_page_cache {
            Reach::Bytes
        } else {
            Reach::Pages
        }
    }
}

/// Returns the offset to which a write goes.
fn start_of(file: &OpenFile, inode: &Inode, offset: u64, flags: WriteFlags) -> u64 {
    if file.flags.append && !flags.from_page_cache {
        inode.size
    } else {
        offset
    }
}

/// Returns where a range ends, if a file can be so long.
pub(super) fn end_of(start: u64, len: u64) -> Result<u64, FsError> {
    match start.checked_add(len) {
        Some(end) if end <= SIZE_MAX => Ok(end),
        _ => Err(FsError::FileTooBig),
    }
}

/// Returns whether the record can hold the file's bytes up to `end`.
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
