//! Reading pages of the index from whichever copy has them intact.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

use super::{Io, Mirror};
use crate::format::MemberIndex;
use crate::format::frame::{self, FRAME_BYTES, Frame, PAGE_BYTES};
use crate::members::Patience;
use crate::store::{Buffer, StoreErrorKind};

impl Mirror {
    /// Fills `out` with whole pages from `first` on; page 0 is not among them.
    pub(super) fn read_pages(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let mut missing = self.take_buffered(first, out);
        if let (Some(&start), Some(&last)) = (missing.first(), missing.last())
            && !self.is_compared(start, last - start + 1)
        {
            return self.read_newest(first, &missing, out);
        }
        let mut damaged: Vec<(MemberIndex, u64)> = Vec::new();
        let mut sequences = BTreeMap::new();
        let order = self.reading_order(first);
        // Each copy is as good as another: one that is slow is read only if no other has the pages.
        let rounds = [Patience::Brief, Patience::Full].into_iter();
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
            let frames = self.read_frames(patience, &[*copy], start, last - start + 1);
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
        for (member, page) in damaged {
            let intact = Frame {
                sequence: sequences[&page],
                bytes: page_mut(out, first, page),
            };
            self.mend(member, page, intact);
        }
        Ok(())
    }

    /// Fills the missing pages of `out` with the newest that any copy has.
    fn read_newest(&self, first: u64, missing: &[u64], out: &mut [u8]) -> io::Result<()> {
        let (start, last) = (missing[0], missing[missing.len() - 1]);
        let mut compared = self.read_from_all(start, last - start + 1, Patience::Brief);
        if !missing
            .iter()
            .all(|page| compared.newest.contains_key(page))
        {
            compared = self.read_from_all(start, last - start + 1, Patience::Full);
        }
        self.note_read(missing);
        for page in missing {
            let Some((_, bytes)) = compared.newest.get(page) else {
                return Err(damaged_everywhere(*page));
            };
            page_mut(out, first, *page).copy_from_slice(&**bytes);
        }
        for (member, page) in compared.behind {
            if missing.contains(&page) {
                let (sequence, bytes) = &compared.newest[&page];
                let sequence = *sequence;
                self.mend(member, page, Frame { sequence, bytes });
            }
        }
        Ok(())
    }

    /// Fills `out` from a place within one page.
    pub(super) fn read_in_page(&self, page: u64, skip: usize, out: &mut [u8]) -> io::Result<()> {
        if page > 0 {
            let mut whole = [0; PAGE_BYTES];
            self.read_pages(page, &mut whole)?;
            out.copy_from_slice(&whole[skip..skip + out.len()]);
            return Ok(());
        }
        let front = self.front.lock();
        let known = front.db_header.get(skip..).unwrap_or_default();
        let len = known.len().min(out.len());
        out[..len].copy_from_slice(&known[..len]);
        out[len..].fill(0);
        Ok(())
    }

    /// Serves what it can from memory, and returns the pages that are left, in order.
    fn take_buffered(&self, first: u64, out: &mut [u8]) -> Vec<u64> {
        let buffered = self.buffered.lock();
        let mut missing = Vec::new();
        for (page, target) in (first..).zip(out.chunks_exact_mut(PAGE_BYTES)) {
            match buffered.get(&page) {
                Some(bytes) => target.copy_from_slice(&**bytes),
                None => missing.push(page),
            }
        }
        missing
    }

    /// Returns all copies and the lengths of their files, a different one first for different pages.
    pub(super) fn reading_order(&self, page: u64) -> Vec<(MemberIndex, u64)> {
        let mut order: Vec<_> = self
            .copies
            .read()
            .iter()
            .map(|copy| (copy.member, copy.file_bytes))
            .collect();
        let start = page.checked_rem(order.len() as u64).unwrap_or(0);
        order.rotate_left(usize::try_from(start).expect("a remainder is below a count"));
        order
    }

    /// Reads the frames of `count` pages from some copies at once, or as many as their files have. Copies
    /// that cannot be read are left out.
    pub(super) fn read_frames(
        &self,
        patience: Patience,
        copies: &[(MemberIndex, u64)],
        start: u64,
        count: u64,
    ) -> Vec<(MemberIndex, Buffer)> {
        let offset = frame::frame_offset(start);
        let end = frame::frame_offset(start + count);
        let reads = copies.iter().filter_map(|(member, file_bytes)| {
            let len = end.min(*file_bytes).checked_sub(offset)?;
            Some((*member, usize::try_from(len).ok()?))
        });
        let mut found = Vec::with_capacity(copies.len());
        for (member, answer) in self.disk.read_each(reads, &self.name, offset, patience) {
            match answer {
                Ok(frames) => found.push((member, frames)),
                Err(error) if error.kind() == StoreErrorKind::Slow => {}
                // A copy that was given up or cut meanwhile does not reach so far any more.
                Err(error)
                    if !error.is_member_failure()
                        && copies.iter().any(|(copy, file_bytes)| {
                            *copy == member && self.reaches(member, end.min(*file_bytes))
                        }) =>
                {
                    // The file is gone from under us.
                    self.disk.fail(member, &error);
                }
                Err(_) => {}
            }
        }
        found
    }

    /// Returns a page of those read from `start` on, unless it is damaged or does not count.
    pub(super) fn intact<'a>(&self, frames: &'a [u8], start: u64, page: u64) -> Option<Frame<'a>> {
        let at = usize::try_from(page - start)
            .ok()?
            .checked_mul(FRAME_BYTES)?;
        let frame = frames.get(at..)?.first_chunk()?;
        let newest = self.newest_frame.load(Ordering::Acquire);
        Frame::open(self.place(page), frame)
            .ok()
            .filter(|frame| frame.sequence <= newest && !self.cut_off.contains(&frame.sequence))
    }

    /// Says whether something was written where a page of those read from `start` on lies, and it is no
    /// intact frame.
    pub(super) fn is_torn(&self, frames: &[u8], start: u64, page: u64) -> bool {
        let at = usize::try_from(page - start).ok();
        let frame = at
            .and_then(|at| at.checked_mul(FRAME_BYTES))
            .and_then(|at| frames.get(at..)?.first_chunk());
        frame.is_some_and(|frame| {
            frame.iter().any(|byte| *byte != 0) && Frame::open(self.place(page), frame).is_err()
        })
    }

    /// Writes a page over its damaged frame on one member, unless another thread is writing just now; then the next
    /// reader will do it.
    fn mend(&self, member: MemberIndex, page: u64, intact: Frame<'_>) {
        if !matches!(self.writes_through(), Ok(true)) {
            return;
        }
        let Some(mut io) = self.io.try_lock() else {
            return;
        };
        if !self.members().contains(&member) {
            return;
        }
        self.note_mended(member, page);
        self.disk.members().count_wrong(member, 1);
        match self.mend_under(&mut io, member, page, intact) {
            Ok(()) => self.count_mended(1),
            Err(error) => log::warn!("cannot mend page {page} of the index: {error}"),
        }
    }

    /// Logs once for each member that its copy is being repaired: there may be millions of pages.
    pub(super) fn note_mended(&self, member: MemberIndex, page: u64) {
        if self.mended.lock().insert(member) {
            log::warn!(
                "member {member}: mending pages of its copy of the index, the first is page {page}"
            );
        }
    }

    /// Writes a page over its frame on one member.
    pub(super) fn mend_under(
        &self,
        io: &mut Io,
        member: MemberIndex,
        page: u64,
        intact: Frame<'_>,
    ) -> io::Result<()> {
        let data = self.frames(std::iter::once((page, intact.sequence, intact.bytes)));
        let offset = frame::frame_offset(page);
        let answers = self.disk.write(&[member], &self.name, offset, &data);
        self.settle(io, answers)
    }

    pub(super) fn count_mended(&self, pages: usize) {
        self.repaired_pages
            .fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Returns how many pages were rewritten since the mount, besides those that a scrub repaired.
    pub(in crate::meta) fn repaired_pages(&self) -> u64 {
        self.repaired_pages.load(Ordering::Relaxed)
    }
}

fn damaged_everywhere(page: u64) -> io::Error {
    let text = format!("page {page} of the index is damaged on every copy that is at hand");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn page_mut(out: &mut [u8], first: u64, page: u64) -> &mut [u8; PAGE_BYTES] {
    let at = usize::try_from(page - first).expect("the page lies in memory") * PAGE_BYTES;
    out[at..]
        .first_chunk_mut()
        .expect("whole pages were asked for")
}
