//! Reads through a file of a directory that may be slow or hang, and belongs to no known member yet.
//!
//! The file is read in large pieces, each of which is an operation of its own. So a directory that answers is not given
//! up because there is much to read, and a remote one is not asked for every block.

use bytes::{Bytes, BytesMut};

use crate::store::{Executor, Pool, StoreError, StoreRef};

/// Bytes that are read by one operation at most.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// A file that is read from its beginning on, with the part of it that was read last.
pub(super) struct BufferedReader<'a> {
    store: &'a StoreRef,
    executor: &'a Executor,
    name: &'static str,
    len: u64,
    start: u64,
    bytes: Bytes,
}

impl<'a> BufferedReader<'a> {
    /// Opens a file; none if it is not there.
    pub(super) fn open(
        store: &'a StoreRef,
        executor: &'a Executor,
        name: &'static str,
    ) -> Result<Option<Self>, StoreError> {
        let len = match executor.call(store, "open", move |store| store.open_len(name)) {
            Ok(len) => len,
            Err(error) if error.kind().lacks_file() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Self {
            store,
            executor,
            name,
            len,
            start: 0,
            bytes: Bytes::new(),
        }))
    }

    /// Returns how many bytes the file has.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns so many bytes from `offset` on; none if the file ends before.
    pub(super) fn read(&mut self, offset: u64, len: usize) -> Result<Option<Bytes>, StoreError> {
        let room = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        if len > room {
            return Ok(None);
        }
        let at = offset.checked_sub(self.start).map(usize::try_from);
        let at = at.and_then(Result::ok);
        let is_here = |at: &usize| {
            at.checked_add(len)
                .is_some_and(|end| end <= self.bytes.len())
        };
        if let Some(at) = at.filter(is_here) {
            return Ok(Some(self.bytes.slice(at..at + len)));
        }
        self.bytes = self.fetch(offset, len.max(PIECE_BYTES).min(room))?;
        self.start = offset;
        Ok(Some(self.bytes.slice(..len)))
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let mut all = BytesMut::with_capacity(len);
        while all.len() < len {
            let (at, left) = (offset + all.len() as u64, len - all.len());
            let name = self.name;
            let read = self.executor.call(self.store, "read", move |store| {
                let mut piece = Pool::new(0).buffer(left.min(PIECE_BYTES));
                store.read_at(name, at, &mut piece)?;
                Ok(piece)
            })?;
            all.extend_from_slice(&read);
        }
        Ok(all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::store::{CallKind, ExecutorKind, FaultPlan, FaultStore, MemDisk};

    #[test]
    fn small_reads_of_a_whole_file_take_few_operations() {
        const NAME: &str = "journal.0";
        let len = 3 * PIECE_BYTES + 12_345;
        let written: Vec<u8> = (0..=250).cycle().take(len).collect();
        let store: StoreRef = Arc::new(MemDisk::new("d", 64 << 20).open());
        store.create(NAME, 0).unwrap();
        store.write_at(NAME, 0, &written).unwrap();
        let plan = FaultPlan::new();
        let store: StoreRef = Arc::new(FaultStore::new(store, 0, &plan));
        let executor = Executor::new(ExecutorKind::Inline, Duration::from_secs(5));
        let most = |asked: usize| len / PIECE_BYTES + 1 + len / asked;
        for (asked, most) in [(4096, 5), (700_001, most(700_001)), (len, 4)] {
            plan.record();
            let mut reader = BufferedReader::open(&store, &executor, NAME)
                .unwrap()
                .unwrap();
            let mut read = Vec::new();
            while read.len() < len {
                let next = asked.min(len - read.len());
                read.extend(reader.read(read.len() as u64, next).unwrap().unwrap());
            }
            assert!(read == written, "{asked} bytes at once");
            assert!(reader.read(len as u64, 1).unwrap().is_none());
            assert!(reader.read(0, len + 1).unwrap().is_none());
            assert!(reader.read(u64::MAX, 1).unwrap().is_none());
            let calls = plan.take_log();
            let reads = calls.iter().filter(|call| call.kind == CallKind::Read);
            assert!(reads.count() <= most, "{asked} bytes at once: {calls:?}");
        }
        assert!(
            BufferedReader::open(&store, &executor, "none")
                .unwrap()
                .is_none()
        );
    }
}
