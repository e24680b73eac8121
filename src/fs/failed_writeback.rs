//! Bytes that programs were told of as written, and that were refused afterwards.
//!
//! A kernel with a page cache takes the bytes of a program before they are here. If they find no room, the program
//! learns of it with fsync or close, but the kernel goes on with what follows them. Reading them may then return only
//! what the file held there before: neither zeros, which no program wrote, nor the end of the file (P2). So it fails.
//!
//! While nothing else is written to the file there is no room for more than this memory of them, and none
//! is needed: without it the file is as if they had never come. But what is written next to them, or behind
//! them, makes holes of them. From then on the file has extents there that name no stripe
//! ([`Extent::REFUSED`]), until it is written again there, or cut off.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::commit::CommitError;
use crate::format::Ino;
use crate::format::record::{Extent, Inline, Inode};

use super::Fs;
use super::edit::Edit;
use super::error::FsError;
use super::extents;
use super::limits::SIZE_MAX;
use super::locks::Exclusive;
use super::run::Run;

/// Most ranges that are remembered of one file; more of them are taken for fewer.
const MOST_RANGES: usize = 1024;

/// Most files of which any are remembered. For other files, only their writers learn of it, as everywhere.
const MOST_FILES: usize = 4096;

/// Bytes of a run that names no stripe: what a record can say.
const MOST_BYTES: u64 = 1 << 30;

/// Ranges that are noted in the index although it is not to grow. Otherwise the end of the file or of the mount would
/// make zeros of them. They take the space that is kept back for removing, and are as small as removals.
const MOST_OVERDRAWN: usize = 256;

/// The ranges of files that are remembered; each file's are changed under its lock.
#[derive(Debug, Default)]
pub(super) struct Refused {
    files: Mutex<HashMap<Ino, Ranges>>,
    /// The number of ranges noted while the index was not to grow.
    overdrawn: AtomicUsize,
}

/// Ranges that neither overlap nor touch: where each starts, and where it ends.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, mut range: Range<u64>) {
        let touched = self.0.range(..=range.end);
        let touched = touched.filter(|(_, end)| **end >= range.start);
        let touched: Vec<(u64, u64)> = touched.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touched {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
        if self.0.len() > MOST_RANGES {
            // The range between two others counts only where the file holds nothing.
            let before = self.0.range(..range.start).next_back();
            let other = before.or_else(|| self.0.range(range.end..).next());
            if let Some((&start, &end)) = other {
                self.add(start.min(range.start)..end.max(range.end));
            }
        }
    }

    fn remove(&mut self, range: &Range<u64>) {
        for found in self.within(range) {
            let before = self.0.range(..=found.start).next_back();
            let Some((&start, &end)) = before else {
                continue;
            };
            self.0.remove(&start);
            if start < found.start {
                self.0.insert(start, found.start);
            }
            if found.end < end {
                self.0.insert(found.end, end);
            }
        }
    }

    /// Returns the parts that lie in `range`.
    fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let all = self.0.range(..range.end);
        let cut = all.map(|(start, end)| range.start.max(*start)..range.end.min(*end));
        cut.filter(|part| !part.is_empty()).collect()
    }
}

impl Refused {
    fn add(&self, ino: Ino, range: Range<u64>) {
        let mut files = self.files.lock();
        if files.len() < MOST_FILES || files.contains_key(&ino) {
            files.entry(ino).or_default().add(range);
        }
    }

    /// Returns the parts of a range whose bytes were refused, and perhaps other parts.
    pub(super) fn within(&self, ino: Ino, range: &Range<u64>) -> Vec<Range<u64>> {
        let files = self.files.lock();
        files.get(&ino).map_or(Vec::new(), |all| all.within(range))
    }

    /// A range of a file holds something else, or nothing on purpose.
    pub(super) fn forget(&self, ino: Ino, range: &Range<u64>) {
        let mut files = self.files.lock();
        if let Some(all) = files.get_mut(&ino) {
            all.remove(range);
            if all.0.is_empty() {
                files.remove(&ino);
            }
        }
    }

    /// Says whether so many more ranges can be noted while the index is not to grow, and counts them.
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
}

impl Fs {
    /// Remembers that bytes of a page cache were refused.
    pub(super) fn note_refused(&self, ino: Ino, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(SIZE_MAX);
        if offset < end {
            let lock = self.locks.exclusive(&[ino]);
            self.refused.add(ino, offset..end);
            drop(lock);
            // The bytes that follow them may have been faster.
            self.keep_refused(ino);
        }
    }

    /// Puts extents without a stripe where a file has holes instead of refused bytes. Requires that there is room for
    /// that, or that not much of it is needed.
    pub(super) fn keep_refused(&self, ino: Ino) {
        let keep = || {
            let growth = self.pipeline.growth().check_growth();
            let lock = self.locks.exclusive(&[ino]);
            let mut inode = self.inode(ino)?;
            let overdrawn = match growth {
                Err(CommitError::NoSpace) => self.refused.within(ino, &(0..inode.size)).len(),
                growth => growth.map(|()| 0)?,
            };
            if !self.refused.overdraw(overdrawn) {
                return Err(FsError::NoSpace);
            }
            let end = inode.size..inode.size;
            let marked = self.mark_refused(&lock, ino, &mut inode, &end);
            if !matches!(marked, Ok(true)) {
                self.refused
                    .overdrawn
                    .fetch_sub(overdrawn, Ordering::Relaxed);
            }
            marked
        };
        if let Err(error) = keep() {
            log::debug!("what was refused of inode {ino} is known until it is unmounted: {error}");
        }
    }

    /// The kernel has nothing of a file in memory any more: what was refused behind its end is as if it
    /// had never come.
    pub(super) fn forget_refused(&self, ino: Ino) {
        if !self.refused.has(ino) {
            return;
        }
        self.keep_refused(ino);
        let _lock = self.locks.exclusive(&[ino]);
        let size = self.inode(ino).map_or(0, |inode| inode.size);
        self.refused.forget(ino, &(size..SIZE_MAX));
    }

    /// Fails if bytes of `hole`, where a file holds nothing, were refused.
    pub(super) fn check_hole(
        ino: Ino,
        refused: &[Range<u64>],
        hole: &Range<u64>,
    ) -> Result<(), FsError> {
        let hit = |part: &&Range<u64>| part.start < hole.end && hole.start < part.end;
        match refused.iter().find(hit) {
            Some(part) => Err(FsError::Refused {
                ino: ino.0,
                offset: part.start.max(hole.start),
            }),
            None => Ok(()),
        }
    }

    /// Before `range` of a file is written, or it becomes so long: puts extents without a stripe where it
    /// would have holes instead of bytes that were refused. `false` if a stripe must be opened first: see
    /// [`Self::with_open_stripe`].
    pub(super) fn mark_refused(
        &self,
        lock: &Exclusive<'_>,
        ino: Ino,
        inode: &mut Inode,
        range: &Range<u64>,
    ) -> Result<bool, FsError> {
        debug_assert!(lock.covers(ino));
        let end = inode.size.max(range.end);
        let mut parts = self.refused.within(ino, &(0..range.start));
        parts.extend(self.refused.within(ino, &(range.end..end)));
        if parts.is_empty() {
            return Ok(true);
        }
        // Without what the caller has changed already.
        let mut stored = self.inode(ino)?;
        for part in parts {
            for hole in self.holes_in(ino, &stored, &part)? {
                let Some(spilled) = self.spill(&stored, &hole)? else {
                    return Ok(false);
                };
                let mut edit = Edit::default();
                let file = (ino, &mut stored);
                self.put_runs(lock, &mut edit, file, &hole, &spilled, &[nothing(&hole)])?;
                stored.size = stored.size.max(hole.end);
                edit.put_inode(ino, &stored);
                self.apply(edit)?;
                self.refused.forget(ino, &hole);
            }
            self.refused.forget(ino, &part);
        }
        inode.allocated_bytes = stored.allocated_bytes;
        inode.size = stored.size;
        inode.inline = stored.inline;
        Ok(true)
    }

    /// Returns the parts of a range that hold nothing, none longer than a run can be.
    fn holes_in(
        &self,
        ino: Ino,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, FsError> {
        let mut at = match &inode.inline {
            Inline::Data(data) => range.start.max(data.len() as u64),
            Inline::None | Inline::Target(_) => range.start,
        };
        let mut holes = Vec::new();
        let runs = extents::around(&self.pipeline, ino, range)?;
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
}

/// A run that names no stripe.
fn nothing(hole: &Range<u64>) -> Run {
    Run {
        start: hole.start,
        len: hole.end - hole.start,
        stripe: Extent::REFUSED,
        stripe_offset: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges.0.iter().map(|(start, end)| (*start, *end)).collect()
    }

    #[test]
    fn ranges_that_touch_are_one_and_what_is_removed_splits_them() {
        let mut ranges = Ranges::default();
        ranges.add(10..20);
        ranges.add(30..40);
        assert_eq!(listed(&ranges), [(10, 20), (30, 40)]);
        ranges.add(20..30);
        assert_eq!(listed(&ranges), [(10, 40)]);
        ranges.remove(&(15..25));
        assert_eq!(listed(&ranges), [(10, 15), (25, 40)]);
        assert_eq!(ranges.within(&(12..30)), [12..15, 25..30]);
        ranges.remove(&(0..11));
        ranges.remove(&(39..90));
        assert_eq!(listed(&ranges), [(11, 15), (25, 39)]);
        ranges.remove(&(0..100));
        assert_eq!(listed(&ranges), []);
    }

    #[test]
    fn many_ranges_take_bounded_memory_and_none_is_forgotten() {
        for order in [1, -1] {
            let mut ranges = Ranges::default();
            let starts = (0..10 * MOST_RANGES as u64).map(|number| 10 * number);
            let starts: Vec<u64> = if order == 1 {
                starts.collect()
            } else {
                starts.rev().collect()
            };
            for &start in &starts {
                ranges.add(start..start + 5);
            }
            assert!(ranges.0.len() <= MOST_RANGES);
            for &start in &starts {
                let found = ranges.within(&(start..start + 5));
                assert_eq!(found.first(), Some(&(start..start + 5)));
            }
        }
    }
}
