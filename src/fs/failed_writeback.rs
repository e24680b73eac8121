//! Bytes that programs wrote into the page cache, and that found no room when the kernel wrote them back.
//!
//! A kernel with a page cache takes the bytes of a program before they are here. If they find no room, the program
//! learns of it with fsync or close, but the kernel goes on with the bytes that follow. Reading the lost bytes may then
//! return only what the file held there before: neither zeros, which no program wrote, nor the end of the file (P2).
//! So the read fails.
//!
//! As long as nothing else is written to the file, this memory of them is enough: without it the file is as if they had
//! never come. A write next to them, or behind them, makes holes of them. From then on the file has extents there that
//! name no stripe ([`Extent::FAILED_WRITEBACK`]), until it is written again there, or cut off.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::record::{Extent, Inline, Inode};
use crate::format::{BLOCK_SIZE, Ino};
use crate::transaction::{CommitError, Transactions};

use super::edit::Edit;
use super::error::FsError;
use super::extents;
use super::inodes::Inodes;
use super::limits::SIZE_MAX;
use super::locks::ExclusiveLock;
use super::ranges::Ranges;
use super::run::Run;
use super::spill::Spilled;

/// Most files of which ranges are remembered. For other files, only their writers learn of it, as everywhere.
const MOST_FILES: usize = 4096;

/// Bytes of a run that names no stripe: what a record can say.
const MOST_BYTES: u64 = 1 << 30;

/// Ranges that are put on record although the index is not to grow. Otherwise the end of the file or of the mount would
/// make zeros of them. They take the space that is kept back for removing, and are as small as removals.
const MOST_OVERDRAWN: usize = 256;

/// The bytes that a change of a file replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Those that it names.
    Bytes,
    /// The pages of those that it names: a kernel with a page cache may have written these as a whole.
    Pages,
}

impl Reach {
    fn of(self, range: &Range<u64>) -> Range<u64> {
        let page = BLOCK_SIZE as u64;
        match self {
            Self::Bytes => range.clone(),
            Self::Pages => range.start / page * page..range.end.next_multiple_of(page),
        }
    }
}

/// The ranges of files whose writeback failed; each file's are changed under its lock.
pub(super) struct FailedWriteback {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    files: Mutex<HashMap<Ino, Ranges>>,
    /// Parts of pages that an outage took, all behind the ends of their files. They count once a file reaches behind them.
    tails: Mutex<HashMap<Ino, Ranges>>,
    /// The number of files with tails, so that writers of other files take no lock.
    tail_count: AtomicUsize,
    /// The number of those files, readable without a lock.
    file_count: AtomicUsize,
    /// The number of ranges on record that were put there while the index was not to grow.
    overdrawn: AtomicUsize,
}

impl FailedWriteback {
    /// Returns an empty memory.
    pub(super) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            files: Mutex::default(),
            tails: Mutex::default(),
            tail_count: AtomicUsize::new(0),
            file_count: AtomicUsize::new(0),
            overdrawn: AtomicUsize::new(0),
        }
    }

    /// Remembers that bytes of a page cache found no room.
    pub(super) fn note(&self, ino: Ino, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(SIZE_MAX);
        if offset < end {
            let lock = self.inodes.locks().exclusive(&[ino]);
            self.add(ino, offset..end);
            drop(lock);
            // The bytes that follow them may have been faster.
            self.persist(ino);
        }
    }

    /// Remembers bytes of a file that an outage took. Reads of them fail in holes of the file, and behind its end as far as
    /// they fill pages. The kernel reads whole pages: durable bytes at the end stay readable so, and a program can write on
    /// where it believes that the file ends. Lost bytes of its last page fail once the file reaches behind them.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the inode cannot be read. One that is gone has lost nothing.
    pub(super) fn note_lost(&self, ino: Ino, range: &Range<u64>) -> Result<(), FsError> {
        if self.inodes.is_read_only() {
            return Ok(());
        }
        let lock = self.inodes.locks().exclusive(&[ino]);
        let inode = match self.inodes.get(ino) {
            Err(FsError::NotFound) => return Ok(()),
            inode => inode?,
        };
        let page = BLOCK_SIZE as u64;
        let start = range.start.max(inode.size).next_multiple_of(page);
        let end = range.end / page * page;
        for lost in [range.start..range.end.min(inode.size), start..end] {
            if lost.start < lost.end {
                self.add(ino, lost);
            }
        }
        let last_page = end.max(start);
        if last_page < range.end {
            self.add_tail(ino, last_page..range.end);
        }
        drop(lock);
        if self.has(ino) {
            self.persist(ino);
        }
        Ok(())
    }

    /// Remembers lost bytes at the start of a page behind the end of a file. A program that takes them for the end of its
    /// file can write on in their page, which the kernel reads first. If the file reaches behind them otherwise, they count
    /// as lost like others.
    fn add_tail(&self, ino: Ino, tail: Range<u64>) {
        let mut tails = self.tails.lock();
        if tails.len() < MOST_FILES || tails.contains_key(&ino) {
            tails.entry(ino).or_default().add(tail);
            self.tail_count.store(tails.len(), Ordering::Release);
        }
    }

    /// Returns the parts of the tail of a file before `start`.
    fn tail_before(&self, ino: Ino, start: u64) -> Vec<Range<u64>> {
        if self.tail_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let tails = self.tails.lock();
        let tail = tails.get(&ino);
        tail.map_or(Vec::new(), |tail| tail.within(&(0..start)))
    }

    /// Puts extents without a stripe where a file has holes instead of the lost bytes. Requires that there is room for
    /// that, or that not much of it is needed. If a stripe must be opened first, the ranges stay in memory.
    pub(super) fn persist(&self, ino: Ino) {
        if let Err(error) = self.try_persist(ino) {
            tracing::debug!("lost bytes of inode {ino} are known until the unmount: {error}");
        }
    }

    /// Puts all of them on record for the next mount, and opens stripes for it. This may have to wait for members.
    pub(super) fn persist_all(&self) {
        let mut opens_stripes = true;
        for ino in self.files() {
            let persisted = if opens_stripes {
                self.persist_with_stripe(ino)
            } else {
                self.try_persist(ino)
                    .and_then(|done| done.then_some(()).ok_or(FsError::NoSpace))
            };
            match persisted {
                // One that is gone has lost nothing.
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => {
                    // Others would meet the same, each after a wait of its own.
                    opens_stripes = false;
                    tracing::warn!(
                        "lost bytes of inode {ino} may read as zeros at the next mount: {error}"
                    );
                }
            }
        }
    }

    fn persist_with_stripe(&self, ino: Ino) -> Result<(), FsError> {
        while !self.try_persist(ino)? {
            self.inodes.open_stripe_for(ino)?;
        }
        Ok(())
    }

    /// Returns `false` if a stripe must be opened first.
    fn try_persist(&self, ino: Ino) -> Result<bool, FsError> {
        let growth = self.transactions.growth().check_growth();
        let lock = self.inodes.locks().exclusive(&[ino]);
        let mut inode = self.inodes.get(ino)?;
        let overdrawn = match growth {
            Err(CommitError::NoSpace) => self.within(ino, &(0..inode.size)).len(),
            growth => growth.map(|()| 0)?,
        };
        if !self.overdraw(overdrawn) {
            return Err(FsError::NoSpace);
        }
        let end = inode.size..inode.size;
        let marked = self.mark(&lock, ino, &mut inode, (&end, Reach::Bytes));
        if !matches!(marked, Ok(true)) {
            self.overdrawn.fetch_sub(overdrawn, Ordering::Relaxed);
        }
        marked
    }

    /// Forgets the ranges behind the end of a file, because the kernel has nothing of it in memory any more: the file
    /// is as if those bytes had never come.
    pub(super) fn forget_behind_end(&self, ino: Ino) {
        if !self.has_any(ino) {
            return;
        }
        self.persist(ino);
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let size = self.inodes.get(ino).map_or(0, |inode| inode.size);
        self.clear(ino, &(size..SIZE_MAX));
    }

    /// Puts extents without a stripe where a file would have holes instead of lost bytes. The caller has written `range`, or
    /// makes the file so long. Returns `false` if a stripe must be opened first.
    pub(super) fn mark(
        &self,
        lock: &ExclusiveLock<'_>,
        ino: Ino,
        inode: &mut Inode,
        (range, reach): (&Range<u64>, Reach),
    ) -> Result<bool, FsError> {
        debug_assert!(lock.covers(ino));
        let end = inode.size.max(range.end);
        let mut parts = self.within(ino, &(0..range.start));
        parts.extend(self.within(ino, &(range.end..end)));
        parts.extend(self.tail_before(ino, reach.of(range).start));
        if parts.is_empty() {
            return Ok(true);
        }
        // Without what the caller has changed already.
        let mut stored = self.inodes.get(ino)?;
        for part in parts {
            for hole in holes_in(&self.transactions, ino, &stored, &part)? {
                let Some(spilled) = Spilled::place(&self.transactions, &stored, &hole)? else {
                    return Ok(false);
                };
                let mut edit = Edit::default();
                let file = (ino, &mut stored);
                let runs = [lost_run(&hole)];
                spilled.replace_range(&self.transactions, &mut edit, file, &hole, &runs)?;
                stored.size = stored.size.max(hole.end);
                edit.put_inode(ino, &stored);
                // No quota can take back that the bytes are lost.
                self.inodes.apply_in_any_case(edit)?;
                self.clear(ino, &hole);
            }
            self.clear(ino, &part);
        }
        inode.allocated_bytes = stored.allocated_bytes;
        inode.unwritten_bytes = stored.unwritten_bytes;
        inode.size = stored.size;
        inode.inline = stored.inline;
        Ok(true)
    }

    /// Remembers a range.
    fn add(&self, ino: Ino, range: Range<u64>) {
        let mut files = self.files.lock();
        if files.len() < MOST_FILES || files.contains_key(&ino) {
            files.entry(ino).or_default().add(range);
            self.file_count.store(files.len(), Ordering::Release);
        }
    }

    /// Returns the parts of a range whose writeback failed, and perhaps other parts. The caller holds a lock of the file.
    pub(super) fn within(&self, ino: Ino, range: &Range<u64>) -> Vec<Range<u64>> {
        if self.file_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let files = self.files.lock();
        files.get(&ino).map_or(Vec::new(), |all| all.within(range))
    }

    /// Removes a range, because the file holds something else there, or nothing on purpose.
    pub(super) fn clear(&self, ino: Ino, range: &Range<u64>) {
        self.clear_tail(ino, range);
        let mut files = self.files.lock();
        if let Some(all) = files.get_mut(&ino) {
            all.remove(range);
            if all.is_empty() {
                files.remove(&ino);
                self.file_count.store(files.len(), Ordering::Release);
            }
        }
    }

    /// Removes the bytes that a write has replaced.
    pub(super) fn clear_written(&self, ino: Ino, (range, reach): (&Range<u64>, Reach)) {
        self.clear(ino, range);
        self.clear_tail(ino, &reach.of(range));
    }

    /// Forgets a range of the tail of a file.
    fn clear_tail(&self, ino: Ino, range: &Range<u64>) {
        if self.tail_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut tails = self.tails.lock();
        if let Some(tail) = tails.get_mut(&ino) {
            tail.remove(range);
            if tail.is_empty() {
                tails.remove(&ino);
                self.tail_count.store(tails.len(), Ordering::Release);
            }
        }
    }

    /// Returns all tails.
    pub(super) fn tails(&self) -> Vec<(Ino, Range<u64>)> {
        let tails = self.tails.lock();
        let entries = tails.iter().flat_map(|(ino, tail)| {
            let parts = tail.within(&(0..SIZE_MAX)).into_iter();
            parts.map(|part| (*ino, part))
        });
        entries.collect()
    }

    /// Counts ranges that are put on record while the index is not to grow. Returns `false` if they are too many.
    fn overdraw(&self, ranges: usize) -> bool {
        let add = |drawn: usize| Some(drawn + ranges).filter(|sum| *sum <= MOST_OVERDRAWN);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.overdrawn.fetch_update(set, get, add).is_ok()
    }

    /// Returns the files of which any are remembered.
    pub(super) fn files(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    fn has(&self, ino: Ino) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// Returns whether lost bytes of a file, or of its last page, are known to memory alone. Usually takes no lock.
    pub(super) fn has_any(&self, ino: Ino) -> bool {
        let has_files = self.file_count.load(Ordering::Acquire) > 0;
        let has_tails = self.tail_count.load(Ordering::Acquire) > 0;
        (has_files && self.has(ino)) || (has_tails && self.tails.lock().contains_key(&ino))
    }
}

/// Fails if bytes of `hole`, where a file holds nothing, have a failed writeback.
pub(super) fn check_hole(
    ino: Ino,
    failed: &[Range<u64>],
    hole: &Range<u64>,
) -> Result<(), FsError> {
    let hit = |part: &&Range<u64>| part.start < hole.end && hole.start < part.end;
    match failed.iter().find(hit) {
        Some(part) => Err(FsError::FailedWriteback {
            ino: ino.0,
            offset: part.start.max(hole.start),
        }),
        None => Ok(()),
    }
}

/// Returns the parts of a range that hold nothing, none longer than a run can be.
fn holes_in(
    transactions: &Transactions,
    ino: Ino,
    inode: &Inode,
    range: &Range<u64>,
) -> Result<Vec<Range<u64>>, FsError> {
    let mut at = match &inode.inline {
        Inline::Data(data) => range.start.max(data.len() as u64),
        Inline::None | Inline::Target(_) => range.start,
    };
    let mut holes = Vec::new();
    let mut runs = extents::around(transactions, ino, range)?;
    runs.retain(|run| !run.is_unwritten());
    let ends = runs.iter().map(|run| (run.start, run.end()));
    for (start, end) in ends.chain([(range.end, range.end)]) {
        let hole_end = start.min(range.end);
        while at < hole_end {
            let piece = at..hole_end.min(at + MOST_BYTES);
            at = piece.end;
            holes.push(piece);
        }
        at = at.max(end);
    }
    Ok(holes)
}

/// Returns a run that names no stripe.
fn lost_run(hole: &Range<u64>) -> Run {
    Run {
        start: hole.start,
        len: hole.end - hole.start,
        stripe: Extent::FAILED_WRITEBACK,
        stripe_offset: 0,
    }
}
