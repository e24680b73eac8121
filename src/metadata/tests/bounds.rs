//! Bounds of the space that the journal takes, and of stripe data in the index that no recovery has put there.

use std::sync::Arc;

use bytes::Bytes;

use super::rig::{Refused, Rig, content, inline};
use crate::format::{StripeId, files};
use crate::membership::{Access, Members};
use crate::metadata::disk::Disk;
use crate::metadata::index::{Commit, Index};
use crate::metadata::mirror::Mirror;
use crate::metadata::redb_index::RedbIndex;
use crate::metadata::{Batch, Key, MetaError, StripeData, Value};
use crate::store::Store;

fn with_unflushed(rig: &Rig, data: &[StripeData]) {
    let members = Members::open(rig.stores(&[], None), Access::ReadWrite, inline());
    let members = members.expect("members");
    members.epochs().begin().expect("begin");
    let disk = Arc::new(Disk::new(members));
    let mirror = Mirror::open(&disk).expect("mirror");
    let index = RedbIndex::open(mirror, 1 << 20).expect("index");
    index.begin().expect("begin");
    let position = index.position();
    let mut commit = Commit {
        changes: Box::new(std::iter::empty()),
        position,
        unflushed: Some(data),
    };
    index.commit(&mut commit).expect("commit");
    index.close().expect("close");
}

#[test]
fn unflushed_data_beyond_the_longest_stripe_is_refused() {
    // One data shard, and a stripe unit of 1 MiB.
    let stripe_bytes: u32 = 1 << 20;
    for (offset, is_possible) in [
        (stripe_bytes - 16, true),
        (stripe_bytes - 15, false),
        (0xffff_fff0, false),
    ] {
        let rig = Rig::new(1, 1, 2);
        let data = StripeData {
            stripe: StripeId(9),
            offset,
            bytes: Bytes::from(vec![7; 16]),
        };
        with_unflushed(&rig, std::slice::from_ref(&data));
        match rig.fork().open(&[], None, Access::ReadOnly) {
            Ok((_, recovered, _)) => {
                assert!(is_possible, "offset {offset}");
                assert_eq!(recovered.data, [data]);
            }
            Err(Refused::Meta(MetaError::DamagedIndex { reason })) => {
                assert!(!is_possible, "offset {offset}: {reason}");
                assert!(reason.contains("stripe data"), "{reason}");
            }
            Err(other) => panic!("offset {offset}: {other:?}"),
        }
    }
}

fn journal_lens(rig: &Rig) -> Vec<u64> {
    let lens = rig.disks.iter().flat_map(|disk| {
        let store = disk.open();
        files::JOURNALS.map(|name| store.open_len(name).expect("a journal"))
    });
    lens.collect()
}

fn change(number: u8, len: usize) -> (Batch, Key, Value) {
    let mut batch = Batch::default();
    let (key, value) = (vec![number], vec![number; len]);
    batch.put(key.clone(), value.clone());
    (batch, key.into(), value.into())
}

#[test]
fn a_full_journal_takes_no_more_and_the_index_takes_it_at_once() {
    let rig = Rig::new(1, 1, 2);
    let (meta, _, members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    let before = journal_lens(&rig);
    let mut expected = content(&meta).expect("content");
    let mut refused = 0;
    for number in 0..60 {
        let (batch, key, value) = change(number, 100_000);
        expected.insert(key, value);
        meta.apply(batch).expect("apply");
        match meta.append(vec![meta.rotate()], &[]) {
            Ok(_) => {}
            Err(MetaError::JournalFull) => {
                refused += 1;
                assert!(!meta.is_full(), "the members have space");
                meta.append_to_index(vec![meta.rotate()]).expect("commit");
                assert!(meta.journal_fill() <= 0.0);
            }
            Err(error) => panic!("{error}"),
        }
        assert!(meta.journal_fill() <= 1.0);
        assert_eq!(journal_lens(&rig), before);
    }
    assert!(refused > 0, "all records did fit");
    // One that is longer than a whole file.
    let (batch, key, value) = change(99, 3 << 20);
    expected.insert(key, value);
    meta.apply(batch).expect("apply");
    let appended = meta.append(vec![meta.rotate()], &[]);
    assert!(matches!(appended, Err(MetaError::JournalFull)));
    meta.append_to_index(vec![meta.rotate()]).expect("commit");
    assert_eq!(journal_lens(&rig), before);
    drop((meta, members));
    let (meta, ..) = rig.fork().open(&[], None, Access::ReadOnly).expect("open");
    assert!(content(&meta).expect("content") == expected);
}
