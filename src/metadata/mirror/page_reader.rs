//! Reading pages of the index from whichever copy has them intact.
//!
//! A member that lost writes which it had called durable, as disks do that lie about their cache, has
//! intact frames of an earlier time. Only their sequence tells them from those of other copies.
//! So until a page has been compared, it is read from all copies and the newest frame of it counts.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::copy_set::CopySet;
use super::files::Page;
use super::page_set::PageSet;
use crate::format::MemberIndex;
use crate::format::frame::{self, FRAME_BYTES, Frame, PAGE_BYTES};
use crate::membership::Wait;
use crate::store::{Buffer, StoreErrorKind};

/// Sequences that are left out at a mount, so that what was cut off is told from what is written next.
const CUT_OFF_SEQUENCES: u64 = 1 << 20;

/// A frame of one member that is damaged or out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongFrame {
    pub(super) member: MemberIndex,
    pub(super) page: u64,
    /// The sequence of the right frame of this page.
    pub(super) sequence: u64,
}

/// The state of a stretch of pages on the copies.
pub(super) struct Compared {
    /// The newest intact frame of each page that has one: its sequence and the page.
    pub(super) newest: BTreeMap<u64, (u64, Page)>,
    /// Frames that are damaged, or older than the newest of the same page.
    pub(super) wrong: Vec<WrongFrame>,
    /// The number of pages that were written, and are damaged on every copy.
    pub(super) damaged: u64,
}

/// Reader of pages from the copies.
#[derive(Debug)]
pub(super) struct PageReader {
    copies: Arc<CopySet>,
    /// The highest sequence of a frame that counts.
    newest_frame: AtomicU64,
    /// Sequences that no valid frame has: after the head that was found, and before those written since. A frame with
    /// one of them belongs to a commit that was never finished, or to heads that are lost.
    cut_off: Range<u64>,
    /// Pages below this one are the same on all copies, as far as can be known.
    compared: AtomicU64,
    /// Intact frames of one page and one sequence were seen that differ.
    disputed: AtomicBool,
    /// Pages that the database has read since [`PageReader::record_walk`] began.
    walked: Mutex<Option<PageSet>>,
}

impl PageReader {
    /// Reads copies that are empty. There is nothing to compare.
    pub(super) fn of_new(copies: &Arc<CopySet>) -> Self {
        Self {
            copies: Arc::clone(copies),
            newest_frame: AtomicU64::new(0),
            cut_off: 0..0,
            compared: AtomicU64::new(u64::MAX),
            disputed: AtomicBool::new(false),
            walked: Mutex::default(),
        }
    }

    /// Reads copies whose newest head has this sequence.
    pub(super) fn of_found(copies: &Arc<CopySet>, sequence: u64, is_disputed: bool) -> Self {
        Self {
            copies: Arc::clone(copies),
            newest_frame: AtomicU64::new(sequence),
            cut_off: sequence + 1..sequence + CUT_OFF_SEQUENCES,
            compared: AtomicU64::new(0),
            disputed: AtomicBool::new(is_disputed),
            walked: Mutex::default(),
        }
    }

    /// Returns the first sequence that frames written from now on may have.
    pub(super) fn first_sequence(&self) -> u64 {
        self.cut_off.end
    }

    /// Counts frames up to this sequence from now on.
    pub(super) fn set_newest_frame(&self, sequence: u64) {
        self.newest_frame.store(sequence, Ordering::Release);
    }

    /// Returns whether intact frames of one page and one sequence were seen that differ: no write leaves that.
    pub(super) fn is_disputed(&self) -> bool {
        self.disputed.load(Ordering::Acquire)
    }

    /// Forgets that frames differed: the copies at fault are left out.
    pub(super) fn forget_dispute(&self) {
        self.disputed.store(false, Ordering::Release);
    }

    /// Returns the first page that has not been compared yet.
    pub(super) fn compared(&self) -> u64 {
        self.compared.load(Ordering::Acquire)
    }

    /// Notes that all pages below this one have been compared.
    pub(super) fn note_compared(&self, end: u64) {
        self.compared.store(end, Ordering::Release);
    }

    /// Runs a walk of the database, and returns the pages that it read from copies that are not compared.
    pub(super) fn record_walk<E>(
        &self,
        walk: impl FnOnce() -> Result<(), E>,
    ) -> Result<PageSet, E> {
        *self.walked.lock() = Some(PageSet::default());
        let done = walk();
        let walked = self.walked.lock().take().unwrap_or_default();
        done.map(|()| walked)
    }

    fn note_walked(&self, pages: &[u64]) {
        if let Some(walked) = &mut *self.walked.lock() {
            for page in pages {
                walked.insert(*page);
            }
        }
    }

    /// Fills the missing pages of `out`, whole pages from `first` on. Page 0 is not among them. Returns the frames
    /// that were seen to be wrong.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if no copy that is online has a page intact.
    pub(super) fn read(
        &self,
        first: u64,
        missing: Vec<u64>,
        out: &mut [u8],
    ) -> io::Result<Vec<WrongFrame>> {
        match (missing.first(), missing.last()) {
            (Some(_), Some(&last)) if last < self.compared() => self.read_any(first, missing, out),
            (Some(&start), Some(&last)) => self.read_newest(first, start..last + 1, &missing, out),
            _ => Ok(Vec::new()),
        }
    }

    /// Fills the missing pages of `out` from any copy: each is as good as another.
    fn read_any(
        &self,
        first: u64,
        mut missing: Vec<u64>,
        out: &mut [u8],
    ) -> io::Result<Vec<WrongFrame>> {
        let mut damaged: Vec<(MemberIndex, u64)> = Vec::new();
        let mut sequences = BTreeMap::new();
        let order = self.copies.reading_order(first);
        // One that is slow is read only if no other has the pages.
        let rounds = [Wait::HedgeDelay, Wait::Full].into_iter();
        let reads = rounds.flat_map(|patience| order.iter().map(move |copy| (patience, copy)));
        let mut answered = Vec::with_capacity(order.len());
        for (patience, copy) in reads {
            let (Some(&start), Some(&last)) = (missing.first(), missing.last()) else {
                break;
            };
            let member = copy.0;
            if answered.contains(&member) {
                continue;
            }
            let frames = self.read_frames(patience, &[*copy], &(start..last + 1));
            let Some((_, frames)) = frames.into_iter().next() else {
                continue;
            };
            answered.push(member);
            missing.retain(|page| {
                let intact = self.intact(&frames, start, *page);
                if let Some(frame) = intact {
                    page_mut(out, first, *page).copy_from_slice(frame.bytes);
                    sequences.insert(*page, frame.sequence);
                } else {
                    damaged.push((member, *page));
                }
                intact.is_none()
            });
        }
        if let Some(page) = missing.first() {
            return Err(damaged_everywhere(*page));
        }
        let wrong = damaged.into_iter().map(|(member, page)| WrongFrame {
            member,
            page,
            sequence: sequences[&page],
        });
        Ok(wrong.collect())
    }

    /// Fills the missing pages of `out` with the newest that any copy has.
    fn read_newest(
        &self,
        first: u64,
        range: Range<u64>,
        missing: &[u64],
        out: &mut [u8],
    ) -> io::Result<Vec<WrongFrame>> {
        let mut compared = self.compare(range.clone(), Wait::HedgeDelay);
        if !missing
            .iter()
            .all(|page| compared.newest.contains_key(page))
        {
            compared = self.compare(range, Wait::Full);
        }
        self.note_walked(missing);
        for page in missing {
            let Some((_, bytes)) = compared.newest.get(page) else {
                return Err(damaged_everywhere(*page));
            };
            page_mut(out, first, *page).copy_from_slice(&**bytes);
        }
        let is_missing = |wrong: &WrongFrame| missing.contains(&wrong.page);
        compared.wrong.retain(is_missing);
        Ok(compared.wrong)
    }

    /// Reads a range of pages from all copies. With [`Wait::HedgeDelay`] one that is slow is
    /// not among them: were it waited for, it would answer or be given up.
    pub(super) fn compare(&self, range: Range<u64>, patience: Wait) -> Compared {
        let first = range.start;
        let read = self.read_frames(patience, &self.copies.reading_order(first), &range);
        let mut compared = Compared {
            newest: BTreeMap::new(),
            wrong: Vec::new(),
            damaged: 0,
        };
        for page in range {
            let frames = read
                .iter()
                .map(|(_, frames)| self.intact(frames, first, page));
            let Some(newest) = frames.flatten().max_by_key(|frame| frame.sequence) else {
                let is_torn = |(_, frames): &(_, Buffer)| self.is_torn(frames, first, page);
                compared.damaged += u64::from(!read.is_empty() && read.iter().all(is_torn));
                continue;
            };
            let is_disputed = read.iter().any(|(_, frames)| {
                let frame = self.intact(frames, first, page);
                frame.is_some_and(|frame| {
                    frame.sequence == newest.sequence && frame.bytes != newest.bytes
                })
            });
            if is_disputed {
                self.disputed.store(true, Ordering::Release);
            }
            let wrong = read.iter().filter(|(_, frames)| {
                let frame = self.intact(frames, first, page);
                frame.is_none_or(|frame| frame.sequence < newest.sequence)
            });
            compared.wrong.extend(wrong.map(|(member, _)| WrongFrame {
                member: *member,
                page,
                sequence: newest.sequence,
            }));
            let bytes = Page::new(*newest.bytes);
            compared.newest.insert(page, (newest.sequence, bytes));
        }
        compared
    }

    /// Reads the frames of a range of pages from some copies at once, or as many as their files have. Copies
    /// that cannot be read are left out.
    fn read_frames(
        &self,
        patience: Wait,
        copies: &[(MemberIndex, u64)],
        range: &Range<u64>,
    ) -> Vec<(MemberIndex, Buffer)> {
        let offset = frame::frame_offset(range.start);
        let end = frame::frame_offset(range.end);
        let reads = copies.iter().filter_map(|(member, file_bytes)| {
            let len = end.min(*file_bytes).checked_sub(offset)?;
            Some((*member, usize::try_from(len).ok()?))
        });
        let files = self.copies.files();
        let mut found = Vec::with_capacity(copies.len());
        for (member, answer) in files.read_each(reads, offset, patience) {
            match answer {
                Ok(frames) => found.push((member, frames)),
                Err(error) if error.kind() == StoreErrorKind::Slow => {}
                // A copy that was given up or cut meanwhile does not reach so far any more.
                Err(error)
                    if !error.is_member_failure()
                        && copies.iter().any(|(copy, file_bytes)| {
                            *copy == member && self.copies.reaches(member, end.min(*file_bytes))
                        }) =>
                {
                    // The file is gone from under us.
                    files.fail(member, &error);
                }
                Err(_) => {}
            }
        }
        found
    }

    /// Returns a page of those read from `start` on, unless it is damaged or does not count.
    fn intact<'a>(&self, frames: &'a [u8], start: u64, page: u64) -> Option<Frame<'a>> {
        let newest = self.newest_frame.load(Ordering::Acquire);
        Frame::open(
            self.copies.files().place(page),
            frame_at(frames, start, page)?,
        )
        .ok()
        .filter(|frame| frame.sequence <= newest && !self.cut_off.contains(&frame.sequence))
    }

    /// Returns whether something was written where a page of those read from `start` on lies, and it is no
    /// intact frame.
    fn is_torn(&self, frames: &[u8], start: u64, page: u64) -> bool {
        let place = self.copies.files().place(page);
        frame_at(frames, start, page).is_some_and(|frame| {
            frame.iter().any(|byte| *byte != 0) && Frame::open(place, frame).is_err()
        })
    }
}

/// Returns the bytes of a page's frame among those read from `start` on, if they reach so far.
fn frame_at(frames: &[u8], start: u64, page: u64) -> Option<&[u8; FRAME_BYTES]> {
    let at = usize::try_from(page - start).ok()?;
    frames.get(at.checked_mul(FRAME_BYTES)?..)?.first_chunk()
}

fn damaged_everywhere(page: u64) -> io::Error {
    let text = format!("page {page} of the index is damaged on every copy that is online");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Returns the place of a page in memory that begins with page `first`.
pub(super) fn page_mut(out: &mut [u8], first: u64, page: u64) -> &mut [u8; PAGE_BYTES] {
    let at = usize::try_from(page - first).expect("the page lies in memory") * PAGE_BYTES;
    out[at..]
        .first_chunk_mut()
        .expect("whole pages were asked for")
}
