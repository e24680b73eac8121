//! Comparing the copies of the index with one another, once a mount.
//!
//! A member that lost writes which it had called durable, as disks do that lie about their cache, has
//! intact frames of an earlier time. They are told from those of other copies by their sequence, and by
//! nothing else: so until a page has been compared, it is read from all copies and the newest frame of
//! it counts. A pass in the background compares them all.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

use super::{Io, Mirror, PAGE, Page};
use crate::format::MemberIndex;
use crate::format::frame::{Frame, PAGE_BYTES};
use crate::members::Patience;
use crate::store::Buffer;

/// Pages compared in one go: 1 MiB.
pub(super) const PIECE_PAGES: u64 = (1 << 20) / PAGE_BYTES as u64;

/// The state of a stretch of pages on the copies.
pub(super) struct Compared {
    /// The newest intact frame of each page that has one: its sequence and the page.
    pub(super) newest: BTreeMap<u64, (u64, Page)>,
    /// Frames that are damaged, or older than the newest of the same page.
    pub(super) behind: Vec<(MemberIndex, u64)>,
    /// The number of pages that were written, and are damaged on every copy.
    pub(super) damaged: u64,
}

impl Mirror {
    /// Says whether a stretch of pages ends among those that have been compared.
    pub(super) fn is_compared(&self, first: u64, count: u64) -> bool {
        first + count <= self.compared.load(Ordering::Acquire)
    }

    /// Reads `count` pages from `first` on from all copies. With [`Patience::Brief`] one that is slow is
    /// not among them: were it waited for, it would answer or be given up.
    pub(super) fn read_from_all(&self, first: u64, count: u64, patience: Patience) -> Compared {
        let read = self.read_frames(patience, &self.reading_order(first), first, count);
        let mut compared = Compared {
            newest: BTreeMap::new(),
            behind: Vec::new(),
            damaged: 0,
        };
        for page in first..first + count {
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
            let behind = read.iter().filter(|(_, frames)| {
                let frame = self.intact(frames, first, page);
                frame.is_none_or(|frame| frame.sequence < newest.sequence)
            });
            compared
                .behind
                .extend(behind.map(|(member, _)| (*member, page)));
            let bytes = Page::new(*newest.bytes);
            compared.newest.insert(page, (newest.sequence, bytes));
        }
        compared
    }

    /// Compares the copies of some more pages, and writes the newest frame over all others. Says whether
    /// there is more to do.
    pub(in crate::meta) fn compare(&self) -> io::Result<bool> {
        let mut io = self.io.lock();
        if !matches!(self.writes_through(), Ok(true)) {
            return Ok(false);
        }
        let first = self.compared.load(Ordering::Acquire);
        let end = io.durable.db_bytes.div_ceil(PAGE);
        if first >= end {
            // All beyond was written since.
            self.compared.store(u64::MAX, Ordering::Release);
            return Ok(false);
        }
        let count = PIECE_PAGES.min(end - first);
        let compared = self.read_from_all(first, count, Patience::Full);
        self.bring_up(&mut io, &compared)?;
        self.count_mended(compared.behind.len());
        self.compared.store(first + count, Ordering::Release);
        Ok(true)
    }

    pub(super) fn bring_up(&self, io: &mut Io, compared: &Compared) -> io::Result<()> {
        for (member, page) in &compared.behind {
            self.note_mended(*member, *page);
            let (sequence, bytes) = &compared.newest[page];
            self.mend_under(
                io,
                *member,
                *page,
                Frame {
                    sequence: *sequence,
                    bytes,
                },
            )?;
        }
        Ok(())
    }
}
