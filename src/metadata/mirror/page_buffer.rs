//! The pages and the header that the database wrote, and that the copies may not have yet.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::files::{PAGE, Page};
use crate::format::frame::{DB_HEADER_BYTES, Head, PAGE_BYTES};

/// Pages that wait in memory before they are written even without a sync.
const MAX_BUFFERED_PAGES: usize = 2048;

/// The part of the database that is in the heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Front {
    pub(super) db_header: [u8; DB_HEADER_BYTES],
    pub(super) db_bytes: u64,
}

impl Front {
    /// Returns the front of an empty database.
    pub(super) fn empty() -> Self {
        Self {
            db_header: [0; DB_HEADER_BYTES],
            db_bytes: 0,
        }
    }

    /// Returns the front that a head holds.
    pub(super) fn of(head: &Head) -> Self {
        Self {
            db_header: head.db_header,
            db_bytes: head.db_bytes,
        }
    }
}

/// Buffer between the database and the copies.
#[derive(Debug)]
pub(super) struct PageBuffer {
    front: Mutex<Front>,
    /// Written by the database, not yet by us. A page stays here until every copy has it.
    pages: Mutex<BTreeMap<u64, Page>>,
}

impl PageBuffer {
    pub(super) fn new(front: Front) -> Self {
        Self {
            front: Mutex::new(front),
            pages: Mutex::default(),
        }
    }

    /// Returns the front as the database wrote it last.
    pub(super) fn front(&self) -> Front {
        self.front.lock().clone()
    }

    /// Returns what `look` makes of the front, without copying it.
    pub(super) fn look_at_front<T>(&self, look: impl FnOnce(&Front) -> T) -> T {
        look(&self.front.lock())
    }

    /// Returns the length of the database in bytes.
    pub(super) fn db_bytes(&self) -> u64 {
        self.front.lock().db_bytes
    }

    /// Sets the length of the database. Pages beyond it are forgotten.
    pub(super) fn set_len(&self, db_bytes: u64) {
        self.front.lock().db_bytes = db_bytes;
        self.pages.lock().split_off(&db_bytes.div_ceil(PAGE));
    }

    /// Refuses a range that does not lie within the database.
    pub(super) fn check_range(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.db_bytes()) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "beyond the end of the index",
        ))
    }

    /// Changes bytes of page 0, which is in the heads.
    ///
    /// # Errors
    ///
    /// If they lie beyond the database's header.
    pub(super) fn write_header(&self, skip: usize, data: &[u8]) -> io::Result<()> {
        let mut front = self.front.lock();
        let Some(target) = front.db_header.get_mut(skip..skip + data.len()) else {
            return Err(io::Error::other(
                "the database's header has outgrown the index head",
            ));
        };
        target.copy_from_slice(data);
        Ok(())
    }

    /// Reads bytes of page 0. It is zero behind the database's header.
    pub(super) fn read_header(&self, skip: usize, out: &mut [u8]) {
        let front = self.front.lock();
        let known = front.db_header.get(skip..).unwrap_or_default();
        let len = known.len().min(out.len());
        out[..len].copy_from_slice(&known[..len]);
        out[len..].fill(0);
    }

    /// Buffers a page. Returns whether so many are buffered now that they should be written.
    pub(super) fn insert(&self, page: u64, bytes: Page) -> bool {
        let mut pages = self.pages.lock();
        pages.insert(page, bytes);
        pages.len() >= MAX_BUFFERED_PAGES
    }

    /// Returns whether a page is buffered.
    pub(super) fn contains(&self, page: u64) -> bool {
        self.pages.lock().contains_key(&page)
    }

    /// Fills `out`, whole pages from `first` on, with those that are buffered. Returns the others, in order.
    pub(super) fn read(&self, first: u64, out: &mut [u8]) -> Vec<u64> {
        let pages = self.pages.lock();
        let mut missing = Vec::new();
        for (page, target) in (first..).zip(out.chunks_exact_mut(PAGE_BYTES)) {
            match pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&**bytes),
                None => missing.push(page),
            }
        }
        missing
    }

    /// Returns all buffered pages, in order.
    pub(super) fn pages(&self) -> Vec<(u64, Page)> {
        self.pages
            .lock()
            .iter()
            .map(|(page, bytes)| (*page, Arc::clone(bytes)))
            .collect()
    }

    /// Forgets pages that all copies have now, unless the database wrote them again meanwhile.
    pub(super) fn remove_written(&self, written: Vec<(u64, Page)>) {
        let mut pages = self.pages.lock();
        for (page, bytes) in written {
            if pages.get(&page).is_some_and(|now| Arc::ptr_eq(now, &bytes)) {
                pages.remove(&page);
            }
        }
    }

    /// Forgets all pages.
    pub(super) fn clear(&self) {
        self.pages.lock().clear();
    }

    /// Forgets all that the database wrote after `durable`.
    pub(super) fn revert(&self, durable: Front) {
        self.clear();
        *self.front.lock() = durable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(fill: u8) -> Page {
        Arc::new([fill; PAGE_BYTES])
    }

    fn buffer(pages: u64) -> PageBuffer {
        PageBuffer::new(Front {
            db_bytes: pages * PAGE,
            ..Front::empty()
        })
    }

    #[test]
    fn buffered_pages_are_read_and_all_others_are_named() {
        let buffer = buffer(6);
        buffer.insert(2, page(2));
        buffer.insert(4, page(4));
        let mut out = vec![0; 4 * PAGE_BYTES];
        assert_eq!(buffer.read(1, &mut out), [1, 3]);
        let firsts = out.chunks(PAGE_BYTES).map(|page| page[0]);
        assert!(firsts.eq([0, 2, 0, 4]));
    }

    #[test]
    fn a_page_that_was_written_again_during_a_flush_stays_buffered() {
        let buffer = buffer(6);
        buffer.insert(1, page(1));
        buffer.insert(2, page(1));
        let written = buffer.pages();
        buffer.insert(2, page(2));
        buffer.remove_written(written);
        assert!(!buffer.contains(1) && buffer.contains(2));
    }

    #[test]
    fn a_shorter_database_has_no_pages_beyond_its_end() {
        let buffer = buffer(6);
        for number in 1..6 {
            buffer.insert(number, page(7));
        }
        buffer.set_len(3 * PAGE);
        let left: Vec<u64> = buffer.pages().into_iter().map(|(page, _)| page).collect();
        assert_eq!(left, [1, 2]);
        assert!(buffer.check_range(2 * PAGE, PAGE_BYTES).is_ok());
        assert!(buffer.check_range(2 * PAGE, PAGE_BYTES + 1).is_err());
        assert!(buffer.check_range(u64::MAX, 2).is_err());
    }

    #[test]
    fn a_revert_leaves_what_was_durable() {
        let buffer = buffer(6);
        let durable = buffer.front();
        buffer
            .write_header(8, &[1, 2])
            .expect("it is within the header");
        buffer.insert(3, page(3));
        buffer.set_len(9 * PAGE);
        buffer.revert(durable.clone());
        assert_eq!(buffer.front(), durable);
        assert!(buffer.pages().is_empty());
    }

    #[test]
    fn the_header_is_read_back_with_zeros_behind_it_and_nothing_is_written_beyond() {
        let buffer = buffer(1);
        let last = DB_HEADER_BYTES - 2;
        buffer.write_header(last, &[5, 6]).expect("within");
        let mut out = [9; 4];
        buffer.read_header(last, &mut out);
        assert_eq!(out, [5, 6, 0, 0]);
        assert!(buffer.write_header(last, &[1, 2, 3]).is_err());
    }
}
