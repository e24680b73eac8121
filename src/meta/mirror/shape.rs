//! The shape of the database: verified before the database sees it.
//!
//! The database allocates memory for a page before it reads the page, as much as the page's number says, and follows page
//! numbers without asking whether it was there before. Neither can be contained afterwards. So the header and the
//! definitions of the tables are verified before the database is opened, and every branch page as it is read.
//!
//! # Invariants
//!
//! - No page number that the database takes from a copy names a page longer than a stripe needs or outside
//!   the database.
//! - Until something is written, no page has two parents: a walk over all pages ends. Later the database moves pages
//!   and itself keeps them apart.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{Mirror, PAGE, len::file_bytes};
use crate::format::frame::{DB_HEADER_BYTES, PAGE_BYTES};

/// Bytes of the longest page, unless a stripe's data is longer: that is the longest value.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Order of the longest page that the database can read.
const MAX_ORDER: u32 = 20;

/// Data pages of a region, as the database makes it: 4 GiB. A smaller region would make a large table of regions.
const REGION_PAGES: u32 = 1 << 20;

/// Most pages at the front of a region that hold no data.
const MAX_REGION_HEADER_PAGES: u32 = 1 << 10;

/// Most pages that the definitions of the few tables fill.
const MAX_DEFINITION_PAGES: usize = 64;

const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Layout of the database's header.
mod at {
    pub(super) const FLAGS: usize = 9; // u8: primary slot, recovery required, two-phase commit
    pub(super) const PAGE_SIZE: usize = 12; // u32
    pub(super) const REGION_HEADER_PAGES: usize = 16; // u32
    pub(super) const REGION_PAGES: usize = 20; // u32
    pub(super) const SLOTS: [usize; 2] = [64, 192];
    /// Within a slot: whether there is a root (u8), and the root's page number (u64).
    pub(super) const ROOTS: [(usize, usize); 2] = [(1, 8), (2, 40)];
    /// Within the definition of a table: whether there is a root (u8), and the root's page number (u64).
    pub(super) const TABLE_ROOT: (usize, usize) = (9, 10);
}

/// Pages that were named by branch pages read from the copies.
#[derive(Debug, Default)]
pub(super) struct Claims {
    parents: HashSet<u64>,
    children: HashSet<u64>,
}

/// Places of pages in the database.
#[derive(Clone, Copy, Debug)]
struct Layout {
    header_pages: u32,
    db_bytes: u64,
    /// Bytes of the longest page.
    page_bytes: u64,
}

impl Layout {
    /// Returns the bytes of the page that a number names.
    fn range(self, number: u64) -> io::Result<Range<u64>> {
        let order = u32::try_from(number >> 59).unwrap_or(u32::MAX);
        let index = number & (0xf_ffff >> order);
        let region = (number >> 20) & 0xf_ffff;
        if order > MAX_ORDER || PAGE << order > self.page_bytes {
            // Of a kind of its own: also where a page may lie anywhere, none is longer.
            let text = format!("the index names a page of {PAGE_BYTES} << {order} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let region_pages = u64::from(self.header_pages) + u64::from(REGION_PAGES);
        let start = 1 + region * region_pages + u64::from(self.header_pages) + (index << order);
        let bytes = start * PAGE..(start + (1 << order)) * PAGE;
        if bytes.end > self.db_bytes {
            return Err(misshapen(format!(
                "page {start} lies beyond the database's end"
            )));
        }
        Ok(bytes)
    }
}

impl Mirror {
    /// Returns the bytes of the longest payload of a stripe.
    pub(in crate::meta) fn stripe_bytes(&self) -> u32 {
        self.disk.members().stripe_bytes()
    }

    /// Verifies the header of the database, and where its tables begin.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if it is not as the database writes it; or if a page cannot be read.
    pub(in crate::meta) fn check_shape(&self) -> io::Result<()> {
        let front = self.front.lock().clone();
        if front.db_bytes == 0 && self.has_begun() {
            // It is being made.
            return Ok(());
        }
        let layout = self.refuse_if(self.layout())?;
        let longest = self.copies.read().iter().map(|copy| copy.file_bytes).max();
        if longest < Some(file_bytes(front.db_bytes)) {
            return self.refuse(misshapen(format!(
                "{} bytes are longer than any copy's file",
                front.db_bytes
            )));
        }
        let flags = front.db_header[at::FLAGS];
        let primary = usize::from(flags & 1);
        let is_two_phase = flags & 4 != 0;
        let checked = self.check_slot(layout, &front.db_header, primary);
        self.refuse_if(checked)?;
        if is_two_phase {
            return Ok(());
        }
        // The database may fall back to the other slot. Parts of what that names may be overwritten.
        match self.check_slot(layout, &front.db_header, 1 - primary) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => self.refuse(error),
            _ => Ok(()),
        }
    }

    fn refuse_if<T>(&self, checked: io::Result<T>) -> io::Result<T> {
        checked.or_else(|error| self.refuse(error))
    }

    fn refuse<T>(&self, error: io::Error) -> io::Result<T> {
        use io::ErrorKind::{FileTooLarge, InvalidData};
        if matches!(error.kind(), InvalidData | FileTooLarge) {
            self.misshapen.store(true, Ordering::Release);
        }
        Err(error)
    }

    fn layout(&self) -> io::Result<Layout> {
        let front = self.front.lock();
        let number = |at: usize| u32_at(&front.db_header, at).unwrap_or_default();
        let layout = Layout {
            header_pages: number(at::REGION_HEADER_PAGES),
            db_bytes: front.db_bytes,
            page_bytes: self.longest_page(),
        };
        if number(at::PAGE_SIZE) as usize == PAGE_BYTES
            && number(at::REGION_PAGES) == REGION_PAGES
            && layout.header_pages <= MAX_REGION_HEADER_PAGES
        {
            Ok(layout)
        } else {
            Err(misshapen("a header with other pages or regions".to_owned()))
        }
    }

    fn longest_page(&self) -> u64 {
        // The stripe's number and its key lie in the same page.
        MAX_PAGE_BYTES.max((u64::from(self.stripe_bytes()) + PAGE).next_power_of_two())
    }

    fn check_slot(
        &self,
        layout: Layout,
        header: &[u8; DB_HEADER_BYTES],
        slot: usize,
    ) -> io::Result<()> {
        let slot = &header[at::SLOTS[slot]..];
        for (is_there, root) in at::ROOTS {
            if slot[is_there] != 0 {
                let root = u64_at(slot, root).ok_or_else(cut_short)?;
                self.check_definitions(layout, root)?;
            }
        }
        Ok(())
    }

    /// Verifies the roots of all tables that a tree defines.
    fn check_definitions(&self, layout: Layout, root: u64) -> io::Result<()> {
        let mut rest = vec![root];
        let mut seen = HashSet::new();
        while let Some(number) = rest.pop() {
            let range = layout.range(number)?;
            if !seen.insert(range.start) || seen.len() > MAX_DEFINITION_PAGES {
                return Err(misshapen("definitions of tables without end".to_owned()));
            }
            let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut page = vec![0; len];
            self.read_pages(range.start / PAGE, &mut page)?;
            match page[0] {
                BRANCH => rest.extend(children(&page)?),
                LEAF => check_definition_leaf(layout, &page)?,
                other => return Err(misshapen(format!("a page of type {other}"))),
            }
        }
        Ok(())
    }

    /// Verifies a page that the database read from the copies, from `first` on.
    pub(super) fn check_page(&self, first: u64, page: &[u8]) -> io::Result<()> {
        if page[0] != BRANCH || self.buffered.lock().contains_key(&first) {
            return Ok(());
        }
        self.refuse_if(self.check_branch(first, page))
    }

    fn check_branch(&self, first: u64, page: &[u8]) -> io::Result<()> {
        let layout = self.layout()?;
        let children: Vec<u64> = children(page)?
            .map(|number| layout.range(number).map(|range| range.start / PAGE))
            .collect::<io::Result<_>>()?;
        let mut claims = self.claims.lock();
        let Some(claims) = claims.as_mut() else {
            return Ok(());
        };
        if !claims.parents.insert(first) {
            return Ok(());
        }
        for child in children {
            if child == first || !claims.children.insert(child) {
                return Err(misshapen(format!("page {child} has two parents")));
            }
        }
        Ok(())
    }

    /// Forgets which pages were read: other copies are read from now on, or pages are about to move.
    pub(super) fn reset_claims(&self, keep: bool) {
        *self.claims.lock() = keep.then(Claims::default);
        self.misshapen.store(false, Ordering::Release);
    }

    /// Returns whether a page or the header was refused since the copies were chosen.
    pub(in crate::meta) fn is_misshapen(&self) -> bool {
        self.misshapen.load(Ordering::Acquire)
    }
}

/// Returns the page numbers that a branch page names.
fn children(page: &[u8]) -> io::Result<impl Iterator<Item = u64>> {
    let count = 1 + usize::from(u16_at(page, 2).ok_or_else(cut_short)?);
    let start = 8 + 16 * count;
    let numbers = page.get(start..start + 8 * count).ok_or_else(cut_short)?;
    Ok(numbers
        .as_chunks()
        .0
        .iter()
        .map(|number| u64::from_le_bytes(*number)))
}

fn check_definition_leaf(layout: Layout, page: &[u8]) -> io::Result<()> {
    let count = usize::from(u16_at(page, 2).ok_or_else(cut_short)?);
    let end = |number: usize| u32_at(page, 4 + 4 * number).ok_or_else(cut_short);
    for value in 0..count {
        // The ends of all keys come first, and the values follow the last key.
        let start = end(count + value - 1)? as usize;
        let definition = page.get(start..).ok_or_else(cut_short)?;
        let (is_there, root) = at::TABLE_ROOT;
        if definition.get(is_there).is_some_and(|byte| *byte != 0) {
            layout.range(u64_at(definition, root).ok_or_else(cut_short)?)?;
        }
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn cut_short() -> io::Error {
    misshapen("a page that ends too early".to_owned())
}

fn misshapen(found: String) -> io::Error {
    let text = format!("the index is not as any database writes it: {found}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
