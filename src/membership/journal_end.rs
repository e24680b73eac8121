//! The end of the journal in a directory: the newest record that is intact.

use std::io;

use super::buffered_reader::BufferedReader;
use crate::format::journal::{self, Preview, RecordHeader};
use crate::format::{BLOCK_SIZE, Lsn, files};
use crate::store::{Executor, StoreError, StoreErrorKind, StoreRef};

/// Records that are not intact overlap only where an older journal was written over, or where they were forged. All of
/// them together are read at most as long as this many times the file.
const MAX_OVERLAP: u64 = 4;

/// Returns the last record of a journal, of whatever volume: the newest that is intact in either file. Records behind
/// a damaged one count as well, and left-overs are older.
///
/// # Errors
///
/// If a file cannot be read, has more than `most` bytes, or names far more bytes of records than it has.
pub(super) fn newest_record(
    store: &StoreRef,
    executor: &Executor,
    most: u64,
) -> Result<Option<RecordHeader>, StoreError> {
    let mut newest: Option<RecordHeader> = None;
    for name in files::JOURNALS {
        let Some(mut reader) = BufferedReader::open(store, executor, name)? else {
            continue;
        };
        let refused = |reason| {
            let source = io::Error::other(reason);
            StoreError::new(StoreErrorKind::Io, store.label(), "read", name, source)
        };
        if reader.len() > most {
            return Err(refused("it is longer than the journals of the volume"));
        }
        let mut wasted = 0;
        let mut offset = 0;
        while let Some(front) = reader.read(offset, BLOCK_SIZE)? {
            // The next one may begin in any block.
            let mut bytes = BLOCK_SIZE as u64;
            if let Some(found) = record_at(&mut reader, offset, &front)? {
                if let Some(header) = found.header {
                    newest = newest.into_iter().chain([header]).max_by_key(age);
                    bytes = found.bytes;
                } else {
                    wasted += found.bytes;
                }
            }
            if wasted > reader.len().saturating_mul(MAX_OVERLAP) {
                return Err(refused("its records overlap"));
            }
            offset += bytes;
        }
    }
    Ok(newest)
}

/// The key that is greater for a record written later.
pub(super) fn age(record: &RecordHeader) -> (u64, Lsn) {
    (record.generation.number, record.lsn)
}

/// A place where a record seems to begin.
struct PossibleRecord {
    /// Its header, if it is intact.
    header: Option<RecordHeader>,
    /// Its length.
    bytes: u64,
}

/// Reads the record of which this is the first block; none if no record that fits the file begins there.
fn record_at(
    reader: &mut BufferedReader<'_>,
    offset: u64,
    front: &[u8],
) -> Result<Option<PossibleRecord>, StoreError> {
    let Ok(preview) = Preview::decode(front) else {
        return Ok(None);
    };
    let whole = reader.read(offset, preview.padded_bytes)?;
    Ok(whole.map(|whole| PossibleRecord {
        header: journal::decode(&whole).ok().map(|record| record.header),
        bytes: preview.padded_bytes as u64,
    }))
}
