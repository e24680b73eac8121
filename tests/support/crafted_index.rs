//! Crafted copies of the index: wrong content under right checksums.
//!
//! The file knows the layout of the frames and of the database in them. It needs nothing of the program, so that unit
//! tests and integration tests share it. A variant is made by a seed, and the same seed makes it again.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use twox_hash::XxHash3_128;

const PAGE: usize = 4096;
const FRAME: usize = PAGE + 24;
const HEAD: usize = 4096;

/// Within a head: sequence, length of the database, and the front of the database's page 0.
const HEAD_SEQUENCE: usize = 32;
const HEAD_DB_BYTES: usize = 48;
const HEAD_DB: usize = 56;

/// Within the database's header.
const DB_FLAGS: usize = 9;
const DB_SLOTS: [usize; 2] = [64, 192];
const SLOT_CHECKSUM: usize = 112;
/// The fields that say whether there is a root, and where.
const ROOTS: [(usize, usize); 2] = [(1, 8), (2, 40)];

const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Bytes of an index file.
#[derive(Clone)]
pub(crate) struct CraftedIndex {
    bytes: Vec<u8>,
    /// Offset of the head that counts.
    head: usize,
}

/// Widths of keys and values in a tree, where they are fixed.
#[derive(Clone, Copy, Default)]
struct Widths {
    key: Option<usize>,
    value: Option<usize>,
}

/// A page that a root reaches.
#[derive(Clone, Copy)]
struct Reached {
    number: u64,
    /// It defines tables.
    is_definition: bool,
}

impl CraftedIndex {
    /// Takes the bytes of a sound index file.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let sequence = |head: &usize| u64_at(&bytes, head + HEAD_SEQUENCE);
        let head = [0, HEAD].into_iter().max_by_key(sequence);
        let head = head.expect("there are two heads");
        Self { bytes, head }
    }

    /// Returns the bytes of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Changes something, by a seed, and makes all checksums right. Returns what was changed.
    pub(crate) fn craft(&mut self, seed: u64) -> String {
        let mut random = StdRng::seed_from_u64(seed);
        let reached = self.reached();
        let page = *reached.choose(&mut random).expect("a root");
        let changed = match random.random_range(0..12) {
            0 => self.change_header(&mut random),
            1 => self.change_slot(&mut random),
            2 => {
                let db_bytes = [0, 4096, 1 << 30, 1 << 44, 1 << 59].choose(&mut random);
                let db_bytes: u64 = *db_bytes.expect("some");
                let at = self.head + HEAD_DB_BYTES;
                self.bytes[at..at + 8].copy_from_slice(&db_bytes.to_le_bytes());
                format!("length {db_bytes}")
            }
            3..=5 => self.change_definition(&reached, &mut random),
            6 => self.change_child(&reached, &mut random),
            _ => self.change_page(page, &mut random),
        };
        let is_verified = random.random_bool(0.8);
        if is_verified {
            self.seal_trees();
        }
        self.seal();
        format!("{changed}, trees sealed: {is_verified}")
    }

    fn change_header(&mut self, random: &mut StdRng) -> String {
        let at = *[9usize, 12, 16, 20, 24, 28].choose(random).expect("some");
        let value: u32 = *[0, 1, 2, 7, 4096, 1 << 20, u32::MAX]
            .choose(random)
            .expect("some");
        let start = self.head + HEAD_DB + at;
        if at == DB_FLAGS {
            self.bytes[start] ^= 1 << random.random_range(0..3);
        } else {
            self.bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
        }
        format!("header {at} = {value}")
    }

    fn change_slot(&mut self, random: &mut StdRng) -> String {
        let slot = self.slot();
        let at = *[1usize, 2, 8, 14, 15, 32, 40, 46, 47, 64, 104]
            .choose(random)
            .expect("some");
        let value = *[0u8, 1, 3, 0x80, 0xa0, 0xff].choose(random).expect("some");
        self.bytes[slot + at] = value;
        format!("slot {at} = {value}")
    }

    fn change_definition(&mut self, reached: &[Reached], random: &mut StdRng) -> String {
        let definitions: Vec<_> = reached.iter().filter(|page| page.is_definition).collect();
        let page = **definitions.choose(random).expect("definitions");
        let values = self.values(page);
        let Some(start) = values.choose(random).copied() else {
            return self.change_page(page, random);
        };
        let at = *[0usize, 1, 9, 10, 16, 17, 42, 43, 47, 48, 52, 56, 60, 64]
            .choose(random)
            .expect("some");
        let value = *[0u8, 1, 2, 3, 4, 8, 0x50, 0xa0, 0xff]
            .choose(random)
            .expect("some");
        let frame = self.page_at(page.number);
        if let Some(byte) = self.bytes.get_mut(frame + start + at) {
            *byte = value;
        }
        format!("definition in page {:x}, {at} = {value}", page.number)
    }

    /// Makes a branch page name another page, or two times the same.
    fn change_child(&mut self, reached: &[Reached], random: &mut StdRng) -> String {
        let is_branch = |page: &&Reached| self.bytes[self.page_at(page.number)] == BRANCH;
        let branches: Vec<_> = reached.iter().filter(is_branch).collect();
        let Some(page) = branches.choose(random).map(|page| **page) else {
            return self.change_definition(reached, random);
        };
        let frame = self.page_at(page.number);
        let count = 1 + usize::from(u16_at(&self.bytes, frame + 2));
        let other = reached.choose(random).expect("a root").number;
        let numbers = [
            page.number,
            other,
            20 << 59,
            0xf_ffff,
            0xf_ffff << 20,
            14 << 59,
        ];
        let number = *numbers.choose(random).expect("some");
        let at = frame + 8 + 16 * count + 8 * random.random_range(0..count);
        self.bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        format!("child {number:x} of page {:x}", page.number)
    }

    fn change_page(&mut self, page: Reached, random: &mut StdRng) -> String {
        let frame = self.page_at(page.number);
        let kind = random.random_range(0..6);
        let value = *[0u32, 1, 7, 4095, 4097, 70_000, u32::MAX]
            .choose(random)
            .expect("some");
        let at = match kind {
            0 => {
                self.bytes[frame] = value.to_le_bytes()[0];
                0
            }
            1 => {
                self.bytes[frame + 2..frame + 4].copy_from_slice(&value.to_le_bytes()[..2]);
                2
            }
            2 | 3 => {
                let at = 4 + 4 * random.random_range(0..8);
                self.bytes[frame + at..frame + at + 4].copy_from_slice(&value.to_le_bytes());
                at
            }
            _ => {
                for _ in 0..random.random_range(1..40) {
                    let at = random.random_range(0..600);
                    self.bytes[frame + at] = random.random();
                }
                600
            }
        };
        format!("page {:x}, kind {kind}, {at} = {value}", page.number)
    }

    /// Makes the CRC32C of every frame that was written, and of the head, right.
    pub(crate) fn seal(&mut self) {
        for start in (2 * HEAD..self.bytes.len()).step_by(FRAME) {
            let Some(frame) = self.bytes.get_mut(start..start + FRAME) else {
                continue;
            };
            let (page, trailer) = frame.split_at_mut(PAGE);
            let tag = u32::from_le_bytes(trailer[4..8].try_into().expect("4 bytes"));
            if trailer.iter().any(|byte| *byte != 0) {
                let checksum = crc32c::crc32c_append(tag, page);
                let checksum = crc32c::crc32c_append(checksum, &trailer[8..]);
                trailer[..4].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        let head = &mut self.bytes[self.head..self.head + HEAD];
        let checksum = crc32c::crc32c(&head[..HEAD - 4]);
        head[HEAD - 4..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Makes the database's own checksums right, from the leaves to the header.
    pub(crate) fn seal_trees(&mut self) {
        let slot = self.slot();
        for (is_there, root) in ROOTS {
            if self.bytes[slot + is_there] != 0 {
                let number = u64_at(&self.bytes, slot + root);
                if let Some(checksum) = self.seal_tree(number, Widths::default(), true, 0) {
                    self.put_checksum(slot + root + 8, checksum);
                }
            }
        }
        let checksum = XxHash3_128::oneshot(&self.bytes[slot..slot + SLOT_CHECKSUM]);
        self.put_checksum(slot + SLOT_CHECKSUM, checksum);
    }

    fn put_checksum(&mut self, at: usize, checksum: u128) {
        self.bytes[at..at + 16].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Makes the checksums below a page right, and returns that of the page.
    fn seal_tree(
        &mut self,
        number: u64,
        widths: Widths,
        is_definition: bool,
        depth: usize,
    ) -> Option<u128> {
        if depth > 8 {
            return None;
        }
        let (frame, pages) = (self.page_at(number), 1usize << (number >> 59).min(20));
        if frame + FRAME * pages > self.bytes.len() {
            return None;
        }
        if self.bytes[frame] == BRANCH {
            let count = 1 + usize::from(u16_at(&self.bytes, frame + 2));
            if 8 + 24 * count > PAGE {
                return None;
            }
            for child in 0..count {
                let number = u64_at(&self.bytes, frame + 8 + 16 * count + 8 * child);
                if let Some(checksum) = self.seal_tree(number, widths, is_definition, depth + 1) {
                    self.put_checksum(frame + 8 + 16 * child, checksum);
                }
            }
            let keys = 8 + 24 * count;
            let end = match widths.key {
                Some(width) => keys + width * (count - 1),
                None => u32_at(&self.bytes, frame + keys + 4 * count.checked_sub(2)?) as usize,
            };
            return self.checksum(number, end);
        }
        let page = Reached {
            number,
            is_definition,
        };
        if is_definition {
            for start in self.values(page) {
                self.seal_table(frame + start);
            }
        }
        let pairs = usize::from(u16_at(&self.bytes, frame + 2));
        let end = self.value_end(frame, pairs, widths, pairs.checked_sub(1)?)?;
        self.checksum(number, end)
    }

    fn seal_table(&mut self, definition: usize) {
        if self
            .bytes
            .get(definition + 9)
            .is_some_and(|byte| *byte != 0)
        {
            let widths = self.table_widths(definition);
            let number = u64_at(&self.bytes, definition + 10);
            if let Some(checksum) = self.seal_tree(number, widths, false, 0) {
                self.put_checksum(definition + 18, checksum);
            }
        }
    }

    fn checksum(&self, number: u64, end: usize) -> Option<u128> {
        // A page of several frames has a trailer after each.
        let frame = self.page_at(number);
        let pages = 1usize << (number >> 59);
        let mut page = Vec::with_capacity(pages * PAGE);
        for part in 0..pages {
            let start = frame + part * FRAME;
            page.extend_from_slice(self.bytes.get(start..start + PAGE)?);
        }
        Some(XxHash3_128::oneshot(page.get(..end)?))
    }

    fn table_widths(&self, definition: usize) -> Widths {
        let width = |at: usize| {
            let is_fixed = self.bytes[definition + at] != 0;
            is_fixed.then(|| u32_at(&self.bytes, definition + at + 1) as usize)
        };
        Widths {
            key: width(42),
            value: width(47),
        }
    }

    fn slot(&self) -> usize {
        let primary = usize::from(self.bytes[self.head + HEAD_DB + DB_FLAGS] & 1);
        self.head + HEAD_DB + DB_SLOTS[primary]
    }

    /// Returns where in the file a page of the database starts.
    fn page_at(&self, number: u64) -> usize {
        let order = (number >> 59).min(20);
        let index = (number & (0xf_ffff >> order)) << order;
        let header_pages = u64::from(u32_at(&self.bytes, self.head + HEAD_DB + 16));
        let region = (number >> 20 & 0xf_ffff).saturating_mul(header_pages + (1 << 20));
        let page = 1 + region + header_pages + index;
        usize::try_from(page)
            .map_or(usize::MAX / 2, |page| page.saturating_mul(FRAME) / 2 * 2)
            .min(usize::MAX / 4)
            + 2 * HEAD
    }

    fn value_end(&self, frame: usize, pairs: usize, widths: Widths, value: usize) -> Option<usize> {
        let read = |at: usize| {
            let bytes = self.bytes.get(frame + at..frame + at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
        };
        let ends = 4 * pairs * usize::from(widths.key.is_none());
        let values = 4 * pairs * usize::from(widths.value.is_none());
        match (widths.key, widths.value) {
            (_, None) => read(4 + ends + 4 * value),
            (Some(key), Some(width)) => Some(4 + ends + values + key * pairs + width * (value + 1)),
            (None, Some(width)) => Some(read(4 + 4 * (pairs - 1))? + width * (value + 1)),
        }
    }

    /// Returns where the values of a leaf of definitions start.
    fn values(&self, page: Reached) -> Vec<usize> {
        let frame = self.page_at(page.number);
        let pairs = usize::from(u16_at(&self.bytes, frame + 2));
        if self.bytes[frame] != LEAF || pairs > 64 {
            return Vec::new();
        }
        let starts = (0..pairs).map(|value| match value {
            0 => u32_at(&self.bytes, frame + 4 + 4 * (pairs - 1)) as usize,
            _ => u32_at(&self.bytes, frame + 4 + 4 * (pairs + value - 1)) as usize,
        });
        starts.filter(|start| start + 64 < PAGE).collect()
    }

    /// Returns every page that a root reaches.
    fn reached(&self) -> Vec<Reached> {
        let slot = self.slot();
        let mut rest: Vec<Reached> = ROOTS
            .into_iter()
            .filter(|(is_there, _)| self.bytes[slot + is_there] != 0)
            .map(|(_, root)| Reached {
                number: u64_at(&self.bytes, slot + root),
                is_definition: true,
            })
            .collect();
        let (mut reached, mut seen) = (Vec::new(), BTreeSet::new());
        while let Some(page) = rest.pop() {
            if !seen.insert(page.number) {
                continue;
            }
            let frame = self.page_at(page.number);
            if self.bytes[frame] == BRANCH {
                let count = 1 + usize::from(u16_at(&self.bytes, frame + 2));
                let child = |child: usize| u64_at(&self.bytes, frame + 8 + 16 * count + 8 * child);
                rest.extend((0..count).map(|number| Reached {
                    number: child(number),
                    ..page
                }));
            } else if page.is_definition {
                let roots = self.values(page).into_iter().map(|start| frame + start);
                let roots = roots.filter(|definition| self.bytes[definition + 9] != 0);
                rest.extend(roots.map(|definition| Reached {
                    number: u64_at(&self.bytes, definition + 10),
                    is_definition: false,
                }));
            }
            reached.push(page);
        }
        reached
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
