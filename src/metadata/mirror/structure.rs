//! The structure of the database: verified before the database sees it.
//!
//! The database allocates memory for a page before it reads the page, as much as the page's number says. It follows
//! page numbers without asking whether it was there before. Neither can be contained afterwards. So the header and all
//! tables but that of records are verified before the database is opened, and every page as it is read.
//!
//! # Invariants
//!
//! - The database sees no page that it did not write itself, unless its inside was verified as that of a page of its
//!   tree: see [`btree_page`](super::btree_page).
//! - No page number that the database takes from a copy names a page longer than a stripe needs or outside
//!   the database.
//! - Until something is written, no page has two parents: a walk over all pages ends. Later the database moves pages
//!   and itself keeps them apart.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::btree_page::{
    BRANCH, LEAF, Leaf, Table, TreeKind, TreeKinds, cut_short, malformed, open_branch, u32_at,
    u64_at,
};
use super::files::{PAGE, file_bytes};
use super::page_buffer::{Front, PageBuffer};
use super::write_mode::WriteMode;
use crate::format::frame::{DB_HEADER_BYTES, PAGE_BYTES};

/// Bytes of the longest page, unless a stripe's data is longer: that is the longest value.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Order of the longest page that the database can read.
const MAX_ORDER: u32 = 20;

/// Data pages of a region, as the database makes it: 4 GiB. A smaller region would make a large table of regions.
const REGION_PAGES: u32 = 1 << 20;

/// Most pages at the front of a region that hold no data.
const MAX_REGION_HEADER_PAGES: u32 = 1 << 10;

/// Most tables that either tree of definitions has: the program and the database itself make a few.
const MAX_TABLES: usize = 64;

/// Layout of the database's header.
mod at {
    pub(super) const FLAGS: usize = 9; // u8: primary slot, recovery required, two-phase commit
    pub(super) const PAGE_SIZE: usize = 12; // u32
    pub(super) const REGION_HEADER_PAGES: usize = 16; // u32
    pub(super) const REGION_PAGES: usize = 20; // u32
    pub(super) const SLOTS: [usize; 2] = [64, 192];
    /// Within a slot: number of the transaction (u64).
    pub(super) const TRANSACTION: usize = 104;
    /// Within a slot: whether there is a root (u8), and the root's page number (u64); of the tables of the program, and
    /// of those of the database itself.
    pub(super) const ROOTS: [(usize, usize); 2] = [(1, 8), (2, 40)];
}

/// Links between pages that were read from the copies.
#[derive(Debug, Default)]
struct Links {
    parents: HashSet<u64>,
    children: HashSet<u64>,
}

/// Function that fills memory with whole pages from a page on.
pub(super) type ReadPages<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + 'a;

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
            return Err(malformed(&format!(
                "page {start} lies beyond the database's end"
            )));
        }
        Ok(bytes)
    }

    /// Verifies the pages that the values of a leaf list.
    fn check_listed(self, leaf: &Leaf<'_>, kind: TreeKind) -> io::Result<()> {
        leaf.listed_pages(kind)
            .try_for_each(|number| self.range(number).map(drop))
    }
}

/// Walk over trees: the pages that it has met.
struct Walk<'a> {
    layout: Layout,
    read_pages: &'a ReadPages<'a>,
    pages: HashMap<u64, TreeKind>,
    bytes: u64,
}

impl Walk<'_> {
    /// Verifies all trees that a slot names except the records, and returns their pages.
    fn of_slot(
        layout: Layout,
        read_pages: &ReadPages<'_>,
        header: &[u8; DB_HEADER_BYTES],
        slot: usize,
    ) -> io::Result<HashMap<u64, TreeKind>> {
        let slot = &header[at::SLOTS[slot]..];
        let mut walk = Walk {
            layout,
            read_pages,
            pages: HashMap::new(),
            bytes: 0,
        };
        let mut records = None;
        for ((is_there, root), is_program) in at::ROOTS.into_iter().zip([true, false]) {
            if slot[is_there] == 0 {
                continue;
            }
            let root = u64_at(slot, root).ok_or_else(cut_short)?;
            for table in walk.tree(root, TreeKind::DEFINITIONS)? {
                match table.root {
                    Some(root) if table.is_records && is_program => records = Some(root),
                    Some(root) => {
                        walk.tree(root, table.kind)?;
                    }
                    None => {}
                }
            }
        }
        if let Some(root) = records {
            let first = layout.range(root)?.start / PAGE;
            if walk.pages.contains_key(&first) {
                return Err(malformed(&format!("page {first} is the root of two trees")));
            }
        }
        Ok(walk.pages)
    }

    /// Verifies all pages of one tree, and returns the tables that it defines if that is what it is there for.
    fn tree(&mut self, root: u64, kind: TreeKind) -> io::Result<Vec<Table>> {
        let (mut rest, mut tables) = (vec![root], Vec::new());
        while let Some(number) = rest.pop() {
            let range = self.layout.range(number)?;
            let first = range.start / PAGE;
            self.bytes += range.end - range.start;
            if self.pages.insert(first, kind).is_some() || self.bytes > self.layout.db_bytes {
                return Err(malformed(&format!("page {first} is in two trees")));
            }
            let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut page = vec![0; len];
            (self.read_pages)(first, &mut page)?;
            match page[0] {
                BRANCH => rest.extend(open_branch(&page, kind)?),
                LEAF => {
                    let leaf = Leaf::open(&page, kind)?;
                    self.layout.check_listed(&leaf, kind)?;
                    if kind == TreeKind::DEFINITIONS {
                        for table in leaf.tables() {
                            tables.push(table?);
                        }
                    }
                }
                other => return Err(bad_type(other)),
            }
            if tables.len() > MAX_TABLES {
                return Err(malformed("too many tables"));
            }
        }
        Ok(tables)
    }
}

/// Check of the structure of the database.
#[derive(Debug)]
pub(super) struct StructureCheck {
    buffer: Arc<PageBuffer>,
    mode: Arc<WriteMode>,
    /// Bytes of the longest page.
    page_bytes: u64,
    /// Links of the pages that were read before anything was written.
    links: Mutex<Links>,
    /// Trees of the pages that are not those of records.
    kinds: Mutex<TreeKinds>,
    /// A page or the header was refused since the copies were chosen.
    malformed: AtomicBool,
}

impl StructureCheck {
    /// Checks a database with stripes of at most `stripe_bytes`.
    pub(super) fn new(buffer: &Arc<PageBuffer>, mode: &Arc<WriteMode>, stripe_bytes: u32) -> Self {
        // The stripe's number and its key lie in the same page.
        let stripe_page_bytes = (u64::from(stripe_bytes) + PAGE).next_power_of_two();
        Self {
            buffer: Arc::clone(buffer),
            mode: Arc::clone(mode),
            page_bytes: MAX_PAGE_BYTES.max(stripe_page_bytes),
            links: Mutex::default(),
            kinds: Mutex::default(),
            malformed: AtomicBool::new(false),
        }
    }

    /// Verifies the header of the database, and where its tables begin. `longest_file` is the length of the longest
    /// copy's file.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if it is not as the database writes it; or if a page cannot be read.
    pub(super) fn check(
        &self,
        longest_file: Option<u64>,
        read_pages: &ReadPages<'_>,
    ) -> io::Result<()> {
        let front = self.buffer.front();
        if front.db_bytes == 0 && self.mode.has_begun() {
            // It is being made.
            return Ok(());
        }
        let layout = self.refuse_if(self.layout(&front))?;
        if longest_file < Some(file_bytes(front.db_bytes)) {
            return self.refuse(malformed(&format!(
                "{} bytes are longer than any copy's file",
                front.db_bytes
            )));
        }
        let flags = front.db_header[at::FLAGS];
        let primary = usize::from(flags & 1);
        let is_two_phase = flags & 4 != 0;
        // As the database chooses: a commit in one phase makes both slots durable before it says which counts.
        let id = |slot: usize| u64_at(&front.db_header, at::SLOTS[slot] + at::TRANSACTION);
        let is_other_newer = !is_two_phase && id(1 - primary) > id(primary);
        let primary = if is_other_newer { 1 - primary } else { primary };
        let walked = Walk::of_slot(layout, read_pages, &front.db_header, primary);
        let others = self.refuse_if(walked)?;
        let mut kinds = self.kinds.lock();
        kinds.others = others;
        if !self.mode.has_begun() {
            kinds.written.clear();
        }
        drop(kinds);
        if is_two_phase {
            return Ok(());
        }
        // The database may fall back to the other slot. Parts of what that names may be overwritten.
        match Walk::of_slot(layout, read_pages, &front.db_header, 1 - primary) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => self.refuse(error),
            _ => Ok(()),
        }
    }

    /// Notes that the database writes a page.
    pub(super) fn note_written(&self, page: u64) {
        self.kinds.lock().note_written(page);
    }

    fn refuse_if<T>(&self, checked: io::Result<T>) -> io::Result<T> {
        checked.or_else(|error| self.refuse(error))
    }

    fn refuse<T>(&self, error: io::Error) -> io::Result<T> {
        use io::ErrorKind::{FileTooLarge, InvalidData};
        if matches!(error.kind(), InvalidData | FileTooLarge) {
            self.malformed.store(true, Ordering::Release);
        }
        Err(error)
    }

    fn layout(&self, front: &Front) -> io::Result<Layout> {
        let number = |at: usize| u32_at(&front.db_header, at).unwrap_or_default();
        let layout = Layout {
            header_pages: number(at::REGION_HEADER_PAGES),
            db_bytes: front.db_bytes,
            page_bytes: self.page_bytes,
        };
        if number(at::PAGE_SIZE) as usize == PAGE_BYTES
            && number(at::REGION_PAGES) == REGION_PAGES
            && layout.header_pages <= MAX_REGION_HEADER_PAGES
        {
            Ok(layout)
        } else {
            Err(malformed("a header with other pages or regions"))
        }
    }

    fn current_layout(&self) -> io::Result<Layout> {
        self.buffer.look_at_front(|front| self.layout(front))
    }

    /// Verifies a page that the database read from the copies, from `first` on.
    pub(super) fn check_page(&self, first: u64, page: &[u8]) -> io::Result<()> {
        if self.buffer.contains(first) {
            return Ok(());
        }
        let kinds = self.kinds.lock();
        if kinds.written.contains(first) {
            return Ok(());
        }
        let kind = kinds.others.get(&first).copied();
        drop(kinds);
        let kind = kind.unwrap_or(TreeKind::RECORDS);
        self.refuse_if(match page[0] {
            BRANCH => self.check_branch(first, page, kind),
            LEAF => self.check_leaf(page, kind),
            other => Err(bad_type(other)),
        })
    }

    fn check_leaf(&self, page: &[u8], kind: TreeKind) -> io::Result<()> {
        self.current_layout()?
            .check_listed(&Leaf::open(page, kind)?, kind)
    }

    fn check_branch(&self, first: u64, page: &[u8], kind: TreeKind) -> io::Result<()> {
        let layout = self.current_layout()?;
        let children: Vec<u64> = open_branch(page, kind)?
            .map(|number| layout.range(number).map(|range| range.start / PAGE))
            .collect::<io::Result<_>>()?;
        let kinds = self.kinds.lock();
        let is_of_kind = |child| {
            kinds
                .others
                .get(child)
                .copied()
                .unwrap_or(TreeKind::RECORDS)
                == kind
        };
        if let Some(child) = children.iter().find(|child| !is_of_kind(child)) {
            return Err(malformed(&format!("page {child} is in two trees")));
        }
        drop(kinds);
        if self.mode.has_begun() {
            return Ok(());
        }
        let mut links = self.links.lock();
        if !links.parents.insert(first) {
            return Ok(());
        }
        for child in children {
            if child == first || !links.children.insert(child) {
                return Err(malformed(&format!("page {child} has two parents")));
            }
        }
        Ok(())
    }

    /// Forgets which pages were read: other copies are read from now on, or pages are about to move.
    pub(super) fn reset(&self) {
        *self.links.lock() = Links::default();
        self.malformed.store(false, Ordering::Release);
    }

    /// Returns whether a page or the header was refused since the copies were chosen.
    pub(super) fn is_malformed(&self) -> bool {
        self.malformed.load(Ordering::Acquire)
    }
}

fn bad_type(found: u8) -> io::Error {
    malformed(&format!("a page of type {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the front of a database of a hundred pages.
    fn sound_front() -> Front {
        let mut front = Front::empty();
        front.db_bytes = 100 * PAGE;
        let page_bytes = u32::try_from(PAGE_BYTES).expect("small");
        for (at, value) in [
            (at::PAGE_SIZE, page_bytes),
            (at::REGION_PAGES, REGION_PAGES),
        ] {
            front.db_header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        front
    }

    fn check_of(front: Front) -> (StructureCheck, Arc<WriteMode>) {
        let buffer = Arc::new(PageBuffer::new(front));
        let mode = Arc::new(WriteMode::suspended(true));
        (StructureCheck::new(&buffer, &mode, 1 << 20), mode)
    }

    /// Returns a branch page whose children are the pages behind these numbers.
    fn branch(children: [u64; 2]) -> Vec<u8> {
        let mut page = vec![BRANCH, 0, 1, 0, 0, 0, 0, 0];
        page.extend([0; 32]);
        page.extend(children.map(u64::to_le_bytes).concat());
        page.extend(61u32.to_le_bytes());
        page.push(b'a');
        page.resize(PAGE_BYTES, 0);
        page
    }

    #[test]
    fn a_header_that_no_database_writes_is_refused_before_a_page_is_read() {
        let never = |page, _: &mut [u8]| panic!("page {page} is read");
        let longest = Some(u64::MAX);
        let (check, _) = check_of(sound_front());
        assert!(check.check(longest, &never).is_ok() && !check.is_malformed());
        for at in [at::PAGE_SIZE, at::REGION_PAGES, at::REGION_HEADER_PAGES + 2] {
            let mut front = sound_front();
            front.db_header[at] ^= 0xff;
            let (check, _) = check_of(front);
            assert!(check.check(longest, &never).is_err(), "{at}");
            assert!(check.is_malformed(), "{at}");
        }
        let (check, _) = check_of(sound_front());
        assert!(
            check.check(Some(50 * PAGE), &never).is_err(),
            "the files are too short"
        );
    }

    #[test]
    fn a_page_with_two_parents_is_refused_until_pages_may_move() {
        let (check, mode) = check_of(sound_front());
        assert!(check.check_page(10, &branch([20, 21])).is_ok());
        assert!(
            check.check_page(10, &branch([20, 21])).is_ok(),
            "it was read before"
        );
        assert!(check.check_page(11, &branch([22, 20])).is_err());
        assert!(check.is_malformed());
        mode.begin();
        check.reset();
        assert!(check.check_page(12, &branch([22, 20])).is_ok());
        assert!(
            check.check_page(13, &branch([22, 99])).is_err(),
            "beyond the end"
        );
    }

    #[test]
    fn pages_that_the_database_wrote_itself_are_not_checked() {
        let (check, _) = check_of(sound_front());
        let nonsense = vec![0xee; PAGE_BYTES];
        assert!(check.check_page(30, &nonsense).is_err());
        check.note_written(30);
        assert!(check.check_page(30, &nonsense).is_ok());
    }
}
