//! Reading the journal of a directory that may be forged.

use uuid::Uuid;

use super::*;
use crate::format::journal::{self, Change, JournalGeneration, MAX_FILE_BYTES, RecordHeader};
use crate::format::{BLOCK_SIZE, Lsn};
use crate::membership::journal_end::newest_record;
use crate::store::{CallKind, Executor};

/// Returns an intact record with so many bytes in its body, or a few more.
fn record(lsn: u64, body: usize) -> Vec<u8> {
    let header = RecordHeader {
        volume: VolumeId(Uuid::from_u128(7)),
        epoch: Epoch(1),
        lsn: Lsn(lsn),
        generation: JournalGeneration::default(),
    };
    let changes: Vec<Change> = (0..body.div_ceil(BLOCK_SIZE))
        .map(|_| (vec![1].into(), Some(vec![7; BLOCK_SIZE].into())))
        .collect();
    let bytes = changes.iter();
    let bytes = bytes.map(|(key, value)| journal::entry_bytes(key, value.as_deref()));
    let mut record = vec![0; journal::padded_bytes(bytes.sum())];
    journal::encode(&header, &changes, &[], &mut record);
    record
}

/// Returns a directory with a journal file, and the plan that counts what is read of it.
fn directory(len: u64, pieces: &[(u64, &[u8])]) -> (StoreRef, FaultPlan) {
    let name = files::JOURNALS[0];
    let disk = MemDisk::new("d", 256 << 20).open();
    disk.create(name, len).unwrap();
    for (offset, bytes) in pieces {
        disk.write_at(name, *offset, bytes).unwrap();
    }
    let plan = FaultPlan::new();
    let store: StoreRef = Arc::new(FaultStore::new(Arc::new(disk), 0, &plan));
    plan.record();
    (store, plan)
}

fn executor() -> Executor {
    Executor::new(ExecutorKind::Inline, Duration::from_secs(5))
}

fn bytes_read(plan: &FaultPlan) -> u64 {
    let calls = plan.take_log();
    let reads = calls.iter().filter(|call| call.kind == CallKind::Read);
    reads.map(|read| read.len).sum()
}

#[test]
fn a_journal_that_is_longer_than_the_volume_makes_any_is_not_read() {
    let record = record(3, 100);
    let executor = executor();
    for (len, is_read) in [(MAX_FILE_BYTES, true), (MAX_FILE_BYTES + 1, false)] {
        let (store, plan) = directory(len, &[(0, &record)]);
        let newest = newest_record(&store, &executor, MAX_FILE_BYTES);
        assert_eq!(newest.is_ok(), is_read, "{newest:?}");
        assert_eq!(bytes_read(&plan) > 0, is_read, "{len} bytes");
    }
}

#[test]
fn records_that_are_not_intact_and_overlap_are_not_read_over_and_over() {
    const LEN: usize = 8 << 20;
    let front = &record(3, LEN / 2)[..BLOCK_SIZE];
    let places = (0..LEN as u64).step_by(BLOCK_SIZE);
    let forged: Vec<_> = places.map(|at| (at, front)).collect();
    let (store, plan) = directory(LEN as u64, &forged);
    newest_record(&store, &executor(), MAX_FILE_BYTES).expect_err("they prove nothing");
    assert!(bytes_read(&plan) <= 8 * LEN as u64);
}

/// A torn record was written over a journal of an earlier journal generation, some records of which were torn as well.
#[test]
fn an_intact_record_behind_torn_ones_is_found() {
    let torn = record(9, 3 << 20);
    let (inner, intact) = (record(5, 1 << 20), record(6, 100));
    let (block, whole) = (BLOCK_SIZE as u64, torn.len() as u64);
    let pieces: [(u64, &[u8]); 3] = [
        (0, &torn[..BLOCK_SIZE]),
        (block, &inner[..BLOCK_SIZE]),
        (whole, &intact),
    ];
    let (store, _) = directory(4 << 20, &pieces);
    let newest = newest_record(&store, &executor(), MAX_FILE_BYTES).unwrap();
    assert_eq!(newest.map(|newest| newest.lsn), Some(Lsn(6)));
}
