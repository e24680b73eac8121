//! The inside of the database's pages: verified as each is read, before the database sees it.
//!
//! The database takes counts and offsets from a page as they are. Wrong ones make it panic, and its destructors read the
//! same page once more while that panic unwinds: a second panic aborts the process, and nothing contains it.
//!
//! # Invariants
//!
//! - Every key and every value of a page that was accepted lies within the page, in order.

use std::collections::HashMap;
use std::io;

use super::page_set::PageSet;

/// Type byte of a leaf.
pub(super) const LEAF: u8 = 1;
/// Type byte of a branch page.
pub(super) const BRANCH: u8 = 2;

/// Bytes before the list of ends in a leaf.
const LEAF_HEADER_BYTES: usize = 4;

/// Bytes before the checksums of the children in a branch page.
const BRANCH_HEADER_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;

/// Layout of the definition of a table.
mod at {
    use std::ops::Range;

    pub(super) const TYPE: usize = 0; // u8
    pub(super) const HAS_ROOT: usize = 9; // u8
    pub(super) const ROOT: usize = 10; // u64
    pub(super) const KEY_WIDTH: usize = 42; // u8, u32
    pub(super) const VALUE_WIDTH: usize = 47; // u8, u32
    pub(super) const ALIGNMENTS: [usize; 2] = [52, 56]; // u32
    pub(super) const KEY_TYPE_BYTES: usize = 60; // u32
    pub(super) const KEY_TYPE: usize = 64;
    /// Values of the first byte of the name of a type.
    pub(super) const CLASSES: Range<u8> = 1..5;
}

/// Type byte of a table with one value for each key: there is no other.
const NORMAL_TABLE: u8 = 3;

/// Rule for the content of keys or values that the database itself takes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ContentRule {
    /// Bytes that only the program takes apart, or of a width that says all.
    #[default]
    Opaque,
    /// Keys that are UTF-8.
    Text,
    /// The same, with values that define tables.
    Tables,
    /// Values that list pages.
    Pages,
    /// Keys that begin with one of a few bytes.
    Allocators,
}

/// Kind of a tree: how its pages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeKind {
    /// Bytes of a key, if all have the same.
    key: Option<usize>,
    /// Bytes of a value, if all have the same.
    value: Option<usize>,
    content: ContentRule,
}

impl TreeKind {
    /// The kind of the table of records.
    pub(super) const RECORDS: Self = Self::new(None, None, ContentRule::Opaque);

    /// The kind of a tree that defines tables.
    pub(super) const DEFINITIONS: Self = Self::new(None, None, ContentRule::Tables);

    const fn new(key: Option<usize>, value: Option<usize>, content: ContentRule) -> Self {
        Self {
            key,
            value,
            content,
        }
    }

    /// Returns the kind of a table that this program or the database itself makes, by its name.
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"records" => Self::RECORDS,
            b"state" => Self::new(None, None, ContentRule::Text),
            b"next_savepoint_id" => Self::new(Some(0), Some(8), ContentRule::Opaque),
            b"carried" | b"persistent_savepoints" => Self::new(Some(8), None, ContentRule::Opaque),
            b"data_pages_allocated" | b"data_pages_unreachable" | b"system_pages_unreachable" => {
                Self::new(Some(16), None, ContentRule::Pages)
            }
            b"allocator_state" => Self::new(Some(5), None, ContentRule::Allocators),
            _ => return None,
        })
    }
}

/// Pages of which more is known than that they are not those of records.
#[derive(Debug, Default)]
pub(super) struct TreeKinds {
    /// Pages of all other trees, as the database was opened.
    pub(super) others: HashMap<u64, TreeKind>,
    /// Pages that the database wrote since.
    pub(super) written: PageSet,
}

impl TreeKinds {
    /// Notes that the database writes a page. It takes what it writes from pages that were verified.
    pub(super) fn note_written(&mut self, page: u64) {
        self.written.insert(page);
        self.others.remove(&page);
    }
}

/// Keys or values of a page, one after another.
#[derive(Clone, Copy)]
struct PageEntries<'a> {
    start: usize,
    /// Bytes of each, or else where each ends.
    width: Option<usize>,
    ends: &'a [[u8; 4]],
    count: usize,
}

impl PageEntries<'_> {
    fn end(&self, number: usize) -> usize {
        match self.width {
            Some(width) => self.start + width * (number + 1),
            None => u32::from_le_bytes(self.ends[number]) as usize,
        }
    }

    /// Verifies that all lie in order below `limit`, and returns where the last one ends.
    fn check(&self, limit: usize) -> io::Result<usize> {
        let mut last = self.start;
        if self.width.is_some() {
            last = self.end(self.count - 1);
        } else {
            for end in self.ends {
                let end = u32::from_le_bytes(*end) as usize;
                if end < last {
                    return Err(malformed("an entry that ends before it begins"));
                }
                last = end;
            }
        }
        if last > limit {
            return Err(malformed("an entry that ends outside its page"));
        }
        Ok(last)
    }

    fn get<'p>(&self, page: &'p [u8], number: usize) -> &'p [u8] {
        let start = match number {
            0 => self.start,
            _ => self.end(number - 1),
        };
        &page[start..self.end(number)]
    }

    fn iter<'p>(&self, page: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
        (0..self.count).map(move |number| self.get(page, number))
    }
}

/// Leaf whose entries lie within it.
pub(super) struct Leaf<'a> {
    page: &'a [u8],
    keys: PageEntries<'a>,
    values: PageEntries<'a>,
}

impl<'a> Leaf<'a> {
    /// Verifies a leaf.
    pub(super) fn open(page: &'a [u8], kind: TreeKind) -> io::Result<Self> {
        let count = count(page)?;
        let mut at = LEAF_HEADER_BYTES;
        let key_ends = take_ends(page, &mut at, kind.key, count)?;
        let value_ends = take_ends(page, &mut at, kind.value, count)?;
        let keys = PageEntries {
            start: at,
            width: kind.key,
            ends: key_ends,
            count,
        };
        let values = PageEntries {
            start: keys.check(page.len())?,
            width: kind.value,
            ends: value_ends,
            count,
        };
        values.check(page.len())?;
        let leaf = Self { page, keys, values };
        check_keys(&keys, page, kind)?;
        if kind.content == ContentRule::Pages {
            for list in leaf.values() {
                listed(list)?;
            }
        }
        Ok(leaf)
    }

    fn values(&self) -> impl Iterator<Item = &'a [u8]> {
        self.values.iter(self.page)
    }

    /// Returns the pages that the values list, if that is what they do.
    pub(super) fn listed_pages(&self, kind: TreeKind) -> impl Iterator<Item = u64> {
        let lists = (kind.content == ContentRule::Pages).then(|| self.values());
        lists
            .into_iter()
            .flatten()
            .flat_map(|list| listed(list).unwrap_or_default())
            .map(|number| u64::from_le_bytes(*number))
    }

    /// Returns the tables that a leaf of definitions defines.
    pub(super) fn tables(&self) -> impl Iterator<Item = io::Result<Table>> {
        let names = self.keys.iter(self.page);
        names
            .zip(self.values())
            .map(|(name, definition)| Table::decode(name, definition))
    }
}

/// Table of a database.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) kind: TreeKind,
    /// Number of the page at its root, if it is not empty.
    pub(super) root: Option<u64>,
    /// It holds the records, so that it can be too long for reading all of it.
    pub(super) is_records: bool,
}

impl Table {
    fn decode(name: &[u8], definition: &[u8]) -> io::Result<Self> {
        let bad = || malformed("a table that is defined in another way");
        let width = |at: usize| {
            let is_fixed = *definition.get(at)?;
            let width = u32_at(definition, at + 1)? as usize;
            Some((is_fixed != 0).then_some(width))
        };
        let root = match definition.get(at::HAS_ROOT) {
            Some(0) => None,
            Some(_) => Some(u64_at(definition, at::ROOT).ok_or_else(bad)?),
            None => return Err(bad()),
        };
        let key = width(at::KEY_WIDTH).ok_or_else(bad)?;
        let value = width(at::VALUE_WIDTH).ok_or_else(bad)?;
        let known = TreeKind::of(name);
        let kind = known.unwrap_or(TreeKind::new(key, value, ContentRule::Opaque));
        let types = definition.get(at::KEY_TYPE..).ok_or_else(bad)?;
        let key_type_bytes = u32_at(definition, at::KEY_TYPE_BYTES).ok_or_else(bad)? as usize;
        let (key_type, value_type) = types.split_at_checked(key_type_bytes).ok_or_else(bad)?;
        let is_type = |bytes: &[u8]| {
            let (class, name) = bytes.split_first()?;
            let is_text = std::str::from_utf8(name).is_ok();
            (at::CLASSES.contains(class) && is_text).then_some(())
        };
        let is_right = definition[at::TYPE] == NORMAL_TABLE
            && (kind.key, kind.value) == (key, value)
            && at::ALIGNMENTS
                .iter()
                .all(|at| u32_at(definition, *at) == Some(1))
            && is_type(key_type).and(is_type(value_type)).is_some();
        if !is_right {
            return Err(bad());
        }
        Ok(Self {
            kind,
            root,
            is_records: name == b"records",
        })
    }
}

/// Verifies a branch page, and returns the numbers of the pages that it names.
pub(super) fn open_branch(page: &[u8], kind: TreeKind) -> io::Result<impl Iterator<Item = u64>> {
    let count = count(page)?;
    let numbers = BRANCH_HEADER_BYTES + CHECKSUM_BYTES * (count + 1);
    let mut at = numbers + NUMBER_BYTES * (count + 1);
    let numbers = page.get(numbers..at).ok_or_else(cut_short)?;
    let ends = take_ends(page, &mut at, kind.key, count)?;
    let keys = PageEntries {
        start: at,
        width: kind.key,
        ends,
        count,
    };
    keys.check(page.len())?;
    check_keys(&keys, page, kind)?;
    let numbers = numbers.as_chunks().0.iter();
    Ok(numbers.map(|number| u64::from_le_bytes(*number)))
}

/// Returns how many entries a page has, or keys if it is a branch: no page that is written has none.
fn count(page: &[u8]) -> io::Result<usize> {
    let count = page.get(2..4).ok_or_else(cut_short)?;
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    if count == 0 {
        return Err(malformed("a page without entries"));
    }
    Ok(count)
}

/// Takes a list of ends, if there is one for entries of this width.
fn take_ends<'a>(
    page: &'a [u8],
    at: &mut usize,
    width: Option<usize>,
    count: usize,
) -> io::Result<&'a [[u8; 4]]> {
    if width.is_some() {
        return Ok(&[]);
    }
    let start = *at;
    *at += 4 * count;
    let ends = page.get(start..*at).ok_or_else(cut_short)?;
    Ok(ends.as_chunks().0)
}

/// Verifies that keys are as the database compares them. Those of a fixed width have an order of their own.
fn check_keys(keys: &PageEntries<'_>, page: &[u8], kind: TreeKind) -> io::Result<()> {
    let bad = |what: &str| Err(malformed(what));
    if kind.key.is_none() {
        let mut iter = keys.iter(page);
        let mut last = iter.next().unwrap_or_default();
        for key in iter {
            if last >= key {
                return bad("keys that are out of order");
            }
            last = key;
        }
    }
    match kind.content {
        ContentRule::Text | ContentRule::Tables
            if !keys.iter(page).all(|key| std::str::from_utf8(key).is_ok()) =>
        {
            bad("a name that is no text")
        }
        ContentRule::Allocators
            if !keys
                .iter(page)
                .all(|key| matches!(key.first(), Some(0..=5))) =>
        {
            bad("an allocator of an unknown kind")
        }
        _ => Ok(()),
    }
}

/// Returns the page numbers of a list.
fn listed(list: &[u8]) -> io::Result<&[[u8; NUMBER_BYTES]]> {
    let (count, rest) = list.split_first_chunk().ok_or_else(cut_short)?;
    let bytes = NUMBER_BYTES * usize::from(u16::from_le_bytes(*count));
    let numbers = rest.get(..bytes).ok_or_else(cut_short)?;
    Ok(numbers.as_chunks().0)
}

/// Reads a little-endian number at an offset, if there is one.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads a little-endian number at an offset, if there is one.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the error of a page that ends too early.
pub(super) fn cut_short() -> io::Error {
    malformed("a page that ends too early")
}

/// Returns the error of content that no database writes.
pub(super) fn malformed(found: &str) -> io::Error {
    let text = format!("the index is not as any database writes it: {found}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: TreeKind = TreeKind::new(Some(8), Some(8), ContentRule::Opaque);

    /// Returns a page of 4 KiB.
    fn page(kind: u8, count: u16, parts: &[&[u8]]) -> Vec<u8> {
        let mut page = vec![kind, 0];
        page.extend(count.to_le_bytes());
        page.extend(parts.concat());
        page.resize(4096, 0);
        page
    }

    fn ends(ends: &[u32]) -> Vec<u8> {
        ends.iter().flat_map(|end| end.to_le_bytes()).collect()
    }

    /// Returns a leaf of the keys "a" and "b", with the values "one" and "two".
    fn leaf() -> Vec<u8> {
        page(LEAF, 2, &[&ends(&[21, 22, 25, 28]), b"abonetwo"])
    }

    /// Returns a branch page of three children, with the keys "a" and "b" between them.
    fn branch() -> Vec<u8> {
        let numbers = [5u64, 6, 7].map(u64::to_le_bytes).concat();
        let parts = [&[0; 4 + 48][..], &*numbers, &ends(&[89, 90]), b"ab"];
        page(BRANCH, 2, &parts)
    }

    fn is_leaf(page: &[u8], kind: TreeKind) -> bool {
        Leaf::open(page, kind).is_ok()
    }

    fn is_branch(page: &[u8], kind: TreeKind) -> bool {
        open_branch(page, kind).is_ok()
    }

    #[test]
    fn sound_pages_are_taken_apart() {
        let page = leaf();
        let leaf = Leaf::open(&page, TreeKind::RECORDS).expect("sound");
        assert!(leaf.values().eq([b"one", b"two"]));
        let page = branch();
        let children = open_branch(&page, TreeKind::RECORDS).expect("sound");
        assert!(children.eq([5, 6, 7]));
    }

    #[test]
    fn pages_with_forged_counts_are_refused() {
        for count in [0u16, 3, 500, 1023, u16::MAX] {
            for (mut page, is_sound) in [
                (leaf(), is_leaf as fn(&[u8], TreeKind) -> bool),
                (branch(), is_branch),
            ] {
                page[2..4].copy_from_slice(&count.to_le_bytes());
                assert!(!is_sound(&page, TreeKind::RECORDS), "{count}");
            }
        }
        for count in [0, 256, u16::MAX] {
            assert!(!is_leaf(&page(LEAF, count, &[]), FIXED), "{count}");
        }
        assert!(is_leaf(&page(LEAF, 255, &[]), FIXED));
        for count in [0, 128, u16::MAX] {
            assert!(!is_branch(&page(BRANCH, count, &[]), FIXED), "{count}");
        }
        assert!(is_branch(&page(BRANCH, 127, &[]), FIXED));
    }

    #[test]
    fn pages_with_forged_ends_are_refused() {
        for (sound, at, is_sound) in [
            (leaf(), 4, is_leaf as fn(&[u8], TreeKind) -> bool),
            (leaf(), 8, is_leaf),
            (leaf(), 12, is_leaf),
            (leaf(), 16, is_leaf),
            (branch(), 80, is_branch),
            (branch(), 84, is_branch),
        ] {
            assert!(is_sound(&sound, TreeKind::RECORDS), "{at}");
            for end in [0, 1, 19, 4097, 70_000, u32::MAX] {
                let mut page = sound.clone();
                page[at..at + 4].copy_from_slice(&end.to_le_bytes());
                assert!(!is_sound(&page, TreeKind::RECORDS), "end {end} at {at}");
            }
        }
    }

    #[test]
    fn keys_out_of_order_are_refused() {
        let mut page = leaf();
        page[20] = b'c';
        assert!(!is_leaf(&page, TreeKind::RECORDS));
        let mut page = branch();
        page[88] = b'b';
        assert!(!is_branch(&page, TreeKind::RECORDS));
    }

    #[test]
    fn content_that_the_database_takes_apart_is_verified() {
        let mut page = leaf();
        page[21] = 0xff;
        assert!(is_leaf(&page, TreeKind::RECORDS) && !is_leaf(&page, TreeKind::DEFINITIONS));
        let lists = TreeKind::of(b"data_pages_unreachable").expect("known");
        let list = |count: u16| {
            let parts = [&ends(&[42])[..], &[0; 16], &count.to_le_bytes(), &[1; 16]];
            self::page(LEAF, 1, &parts)
        };
        assert!(is_leaf(&list(2), lists) && !is_leaf(&list(3), lists));
        let allocators = TreeKind::of(b"allocator_state").expect("known");
        let allocator = |kind| self::page(LEAF, 1, &[&ends(&[20]), &[kind; 5]]);
        assert!(is_leaf(&allocator(5), allocators) && !is_leaf(&allocator(6), allocators));
    }

    #[test]
    fn tables_of_other_widths_are_refused() {
        let mut definition = vec![NORMAL_TABLE];
        definition.resize(at::KEY_TYPE, 0);
        definition[at::KEY_WIDTH] = 1;
        definition[at::KEY_WIDTH + 1] = 8;
        for at in [52, 56, 60] {
            definition[at] = if at == 60 { 4 } else { 1 };
        }
        definition.extend(b"\x01u64\x01&[u8]");
        let is_known = |definition: &[u8]| Table::decode(b"carried", definition).is_ok();
        assert!(is_known(&definition));
        for (at, value) in [
            (at::TYPE, 4),
            (at::KEY_WIDTH, 0),
            (at::KEY_WIDTH + 1, 16),
            (at::VALUE_WIDTH, 1),
            (at::ALIGNMENTS[0], 2),
            (at::KEY_TYPE_BYTES, 0),
            (at::KEY_TYPE_BYTES, 200),
            (at::KEY_TYPE, 0),
            (at::KEY_TYPE + 1, 0xff),
        ] {
            let mut forged = definition.clone();
            forged[at] = value;
            assert!(!is_known(&forged), "{value} at {at}");
        }
        assert!(!is_known(&definition[..60]));
    }

    /// Says how long it takes; nothing depends on that.
    #[test]
    fn a_full_leaf_is_verified() {
        let count = 38u32;
        let keys = 4 + 8 * count;
        let key_ends = (1..=count).map(|number| keys + 10 * number);
        let value_ends = (1..=count).map(|number| keys + 10 * count + 80 * number);
        let ends = ends(&key_ends.chain(value_ends).collect::<Vec<_>>());
        let keys: Vec<u8> = (0..count)
            .flat_map(|number| format!("key {number:06}").into_bytes())
            .collect();
        let page = page(LEAF, 38, &[&ends, &keys]);
        let start = std::time::Instant::now();
        for _ in 0..10_000 {
            assert!(is_leaf(std::hint::black_box(&page), TreeKind::RECORDS));
        }
        eprintln!("{} ns a leaf", start.elapsed().as_nanos() / 10_000);
    }
}
