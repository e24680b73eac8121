//! The formats of FORMAT.md once more, as hostile hands write them: any value anywhere, and every checksum right.
//!
//! Nothing here uses the decoders and encoders under test, so that no check of theirs keeps a value out.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use super::image::Sparse;

/// Bytes of a superblock's slot.
pub(crate) const SLOT: usize = 64 << 10;
const PAGE: usize = 4096;
const FRAME: usize = PAGE + 24;
const HEADS: usize = 2 * PAGE;
const DB_HEADER: Range<usize> = 56..568;
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn set<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Sets the checksum of a superblock right, at the end that its length names.
pub(crate) fn seal_superblock(slot: &mut [u8]) {
    let len = u32_at(slot, 12) as usize;
    if let Some((body, checksum)) = slot.get_mut(..len).and_then(<[u8]>::split_last_chunk_mut) {
        *checksum = crc32c::crc32c(body).to_le_bytes();
    }
}

/// A journal record; its counts may differ from what follows.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The first 80 bytes; checksum, length and counts are set by [`put_records`].
    pub(crate) header: [u8; 80],
    pub(crate) entries: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(crate) data: Vec<(u64, u32, Vec<u8>)>,
    /// Added to the counts of entries and of stripe data, and to the length.
    pub(crate) lie: [i32; 3],
}

impl Record {
    pub(crate) fn lsn(&self) -> u64 {
        u64_at(&self.header, 48)
    }

    pub(crate) fn generation(&self) -> u64 {
        u64_at(&self.header, 56)
    }

    pub(crate) fn set_lsn(&mut self, lsn: u64) {
        set(&mut self.header, 48, lsn.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let header: [u8; 80] = bytes.get(..80)?.try_into().ok()?;
        let len = u32_at(&header, 12) as usize;
        if &header[..4] != b"CfsJ" || len > bytes.len() {
            return None;
        }
        if crc32c::crc32c(bytes.get(12..len)?) != u32_at(&header, 8) {
            return None;
        }
        let mut rest = &bytes[80..len];
        let mut cut = |count: usize| {
            let (taken, left) = rest.split_at_checked(count)?;
            rest = left;
            Some(taken)
        };
        let mut record = Self {
            header,
            entries: vec![],
            data: vec![],
            lie: [0; 3],
        };
        for _ in 0..u32_at(&header, 16) {
            let lengths = cut(8)?;
            let (key, value) = (u32_at(lengths, 0), u32_at(lengths, 4));
            let key = cut(key as usize)?.to_vec();
            let value = match value {
                u32::MAX => None,
                len => Some(cut(len as usize)?.to_vec()),
            };
            record.entries.push((key, value));
        }
        for _ in 0..u32_at(&header, 20) {
            let front = cut(16)?;
            let bytes = cut(u32_at(front, 12) as usize)?.to_vec();
            record
                .data
                .push((u64_at(front, 0), u32_at(front, 8), bytes));
        }
        Some(record)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = self.header.to_vec();
        for (key, value) in &self.entries {
            out.extend(small(key.len()));
            out.extend(value.as_ref().map_or([0xff; 4], |value| small(value.len())));
            out.extend(key);
            out.extend(value.as_deref().unwrap_or_default());
        }
        for (stripe, offset, bytes) in &self.data {
            out.extend(stripe.to_le_bytes());
            out.extend(offset.to_le_bytes());
            out.extend(small(bytes.len()));
            out.extend(bytes);
        }
        let len = out.len();
        let counts = [len, self.entries.len(), self.data.len()];
        for (field, (count, lie)) in counts.into_iter().zip(self.lie).enumerate() {
            let count = u32::try_from(count).unwrap().wrapping_add_signed(lie);
            set(&mut out, 12 + 4 * field, count.to_le_bytes());
        }
        let covered = (u32_at(&out, 12) as usize).clamp(12, len);
        let checksum = crc32c::crc32c(&out[12..covered]);
        set(&mut out, 8, checksum.to_le_bytes());
        out.resize(len.next_multiple_of(PAGE), 0);
        out
    }
}

fn small(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap().to_le_bytes()
}

/// Returns the records of a journal file, with their offsets, up to the first that is none.
pub(crate) fn records(file: &Sparse) -> Vec<(u64, Record)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 80 <= file.len {
        let len = u32_at(&file.read_at(at, 80), 12) as usize;
        if len > 16 << 20 {
            break;
        }
        let Some(record) = Record::take(&file.read_at(at, len.max(80))) else {
            break;
        };
        found.push((at, record));
        at += (len as u64).next_multiple_of(PAGE as u64);
    }
    found
}

/// Writes records one after the other from `offset` on.
pub(crate) fn put_records(file: &mut Sparse, offset: u64, records: &[Record]) {
    let mut at = offset;
    for record in records {
        let bytes = record.encode();
        file.write_at(at, &bytes);
        at += bytes.len() as u64;
    }
}

/// A database in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let read = bytes
            .get(start..start + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(read);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0
            .lock()
            .unwrap()
            .resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// A copy of the index: its head, and the database without frames.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) head: Vec<u8>,
    slot: usize,
    pub(crate) pages: Vec<u8>,
}

impl Copy {
    /// Reads a copy: its newer head, and every page that its frames hold.
    pub(crate) fn read(file: &Sparse) -> Option<Self> {
        let heads = file.read_at(0, HEADS);
        let (slot, head) = heads
            .chunks(PAGE)
            .enumerate()
            .filter(|(_, head)| &head[..8] == b"CfsIndex")
            .max_by_key(|(_, head)| u64_at(head, 32))?;
        let pages = usize::try_from(u64_at(head, 48)).ok()?.div_ceil(PAGE);
        let mut bytes = vec![0; pages * PAGE];
        for (page, out) in bytes.chunks_mut(PAGE).enumerate() {
            out.copy_from_slice(&file.read_at((HEADS + page * FRAME) as u64, PAGE));
        }
        bytes[..PAGE].fill(0);
        bytes[..DB_HEADER.len()].copy_from_slice(&head[DB_HEADER]);
        Some(Self {
            head: head.to_vec(),
            slot,
            pages: bytes,
        })
    }

    /// Writes the copy, every checksum right. `newer` is added to the sequence of head and pages.
    pub(crate) fn write(&self, file: &mut Sparse, newer: u64) {
        let mut head = self.head.clone();
        let sequence = u64_at(&head, 32).wrapping_add(newer);
        set(&mut head, 32, sequence.to_le_bytes());
        let (body, checksum) = head.split_at_mut(PAGE - 4);
        checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        file.write_at((self.slot * PAGE) as u64, &head);
        let tag = crc32c::crc32c(&head[16..32]);
        for (number, page) in self.pages.chunks(PAGE).enumerate().skip(1) {
            let at = (HEADS + number * FRAME) as u64;
            let old = file.read_at(at, PAGE);
            if old == page {
                continue;
            }
            let mut frame = page.to_vec();
            frame.extend([0; 4]);
            frame.extend(tag.to_le_bytes());
            frame.extend((number as u64).to_le_bytes());
            frame.extend(sequence.to_le_bytes());
            let checksum = crc32c::crc32c_append(tag, page);
            let checksum = crc32c::crc32c_append(checksum, &frame[PAGE + 8..]);
            set(&mut frame, PAGE, checksum.to_le_bytes());
            file.write_at(at, &frame);
        }
    }

    /// Returns all records of the database.
    pub(crate) fn entries(&self) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
        let memory = Memory(Arc::new(Mutex::new(self.pages.clone())));
        let db = redb::Builder::new().create_with_backend(memory).ok()?;
        let table = db.begin_read().ok()?.open_table(RECORDS).ok()?;
        let mut entries = BTreeMap::new();
        for entry in table.iter().ok()? {
            let (key, value) = entry.ok()?;
            entries.insert(key.value().to_vec(), value.value().to_vec());
        }
        Some(entries)
    }

    /// Commits changes to the database, and takes what it wrote as the copy's pages.
    /// Returns `None` if the database is too damaged for that already, which may make it panic.
    pub(crate) fn commit(&mut self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Option<()> {
        catch_unwind(AssertUnwindSafe(|| self.try_commit(changes))).ok()?
    }

    fn try_commit(&mut self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Option<()> {
        let memory = Memory(Arc::new(Mutex::new(self.pages.clone())));
        let db = redb::Builder::new()
            .create_with_backend(memory.clone())
            .ok()?;
        let mut transaction = db.begin_write().ok()?;
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(RECORDS).ok()?;
            for (key, value) in changes {
                match value {
                    Some(value) => table.insert(&**key, &**value).ok()?,
                    None => table.remove(&**key).ok()?,
                };
            }
        }
        transaction.commit().ok()?;
        drop(db);
        let bytes = memory.0.lock().unwrap().clone();
        self.head[DB_HEADER].copy_from_slice(&bytes[..DB_HEADER.len()]);
        set(&mut self.head, 48, (bytes.len() as u64).to_le_bytes());
        self.pages = bytes;
        Some(())
    }
}
