//! A member that joins an open volume, and is all that is left of it later.

use std::sync::Arc;

use super::initialised::assert_written;
use super::rig::{Mounted, Records, Refused, Rig, content, difference, inline};
use crate::format::{MemberIndex, files};
use crate::membership::{Access, Belongings, JoinAs, MembersError};
use crate::metadata::Batch;
use crate::store::{CutPolicy, FaultPlan, FaultStore, MemDisk, StoreRef};

/// The member that stays, and is lost later.
const OLD: usize = 0;

/// The member that is gone, and whose place a new directory takes.
const JOINING: usize = 1;

/// Bytes of each value: a file of the journal takes about ten.
const VALUE_BYTES: usize = 100 << 10;

/// A volume with one data and one parity shard, of which one member is gone.
struct Halved {
    rig: Rig,
    mounted: Mounted,
}

impl Halved {
    fn new() -> Self {
        let mut rig = Rig::new(1, 1, 2);
        let mounted = rig
            .mount(&[JOINING], None, Access::ReadWrite, inline())
            .expect("one member is enough");
        rig.disks[JOINING] = MemDisk::new("the new one", 96 << 20);
        Self { rig, mounted }
    }

    /// Makes one more key durable.
    fn put(&self, key: &str) {
        let meta = &self.mounted.meta;
        let mut batch = Batch::default();
        batch.put(key.to_owned(), vec![7; VALUE_BYTES]);
        meta.apply(batch).expect("apply");
        meta.append(vec![meta.rotate()], &[]).expect("append");
    }

    /// Appends to the journal until it uses its second file.
    fn fill_first_file(&self) {
        let mut number = 0;
        while self.mounted.meta.journal_fill() < 0.55 {
            self.put(&format!("filler {number}"));
            number += 1;
        }
    }

    fn join(&self) {
        let store: StoreRef = Arc::new(self.rig.disks[JOINING].open());
        self.join_through(&store);
    }

    /// Lets the new directory join through a store.
    fn join_through(&self, store: &StoreRef) {
        let index = MemberIndex(u16::try_from(JOINING).expect("a small number"));
        let belongings = Belongings {
            journal_bytes: self.mounted.meta.journal_file_bytes().expect("a journal"),
            ..Belongings::default()
        };
        let changes = self.mounted.members.changes();
        changes
            .join(JoinAs::InPlaceOf(index), store, &belongings, |_, _| {
                Ok::<_, MembersError>(())
            })
            .expect("its place is free");
    }

    /// Completes the copies of the index and admits the new member if it may be. Returns whether it is.
    fn admit(&self) -> bool {
        while self.mounted.replicas.refill().expect("refill") {}
        let epochs = self.mounted.members.epochs();
        epochs.admit_stale().expect("nothing fails");
        assert_eq!(epochs.is_checkpoint_awaited(), !epochs.stale().is_empty());
        epochs.stale().is_empty()
    }

    /// Returns all that was made durable.
    fn state(&self) -> Records {
        content(&self.mounted.meta).expect("content")
    }

    /// Asserts that the new member alone, after a power cut, has everything if it was admitted, and is refused else.
    fn assert_nothing_is_hidden(&self, is_admitted: bool, context: &str) {
        for policy in [CutPolicy::Keep, CutPolicy::Drop] {
            let rig = self.rig.fork();
            rig.disks.iter().for_each(|disk| disk.cut(policy));
            match rig.open(&[OLD], None, Access::ReadWrite) {
                Ok((meta, ..)) => {
                    assert!(is_admitted, "{context}: it opens, and is not admitted");
                    let found = content(&meta).expect("content");
                    let differs = difference(&self.state(), &found);
                    assert!(found == self.state(), "{context}: {differs:.300}");
                }
                Err(Refused::Members(_)) if !is_admitted => {}
                Err(error) => panic!("{context}: {error:?}"),
            }
        }
    }
}

/// Readers begin at the start of a journal file: a member without the first record of a file has none of it.
#[test]
fn a_member_that_joins_counts_once_its_journal_has_all_that_the_index_may_lack() {
    for (before, during, after) in (0..8).map(|bits| (1 + (bits & 1), bits >> 1 & 1, bits >> 2)) {
        for is_second_file_used in [false, true] {
            let context = format!(
                "{before} records, the choice, {during}, the join, {after}; second file: {is_second_file_used}"
            );
            let volume = Halved::new();
            if is_second_file_used {
                volume.fill_first_file();
            }
            (0..before).for_each(|_| volume.put("before the choice"));
            let join_during = || {
                (0..during).for_each(|_| volume.put("before the join"));
                volume.join();
                (0..after).for_each(|_| volume.put("after the join"));
            };
            let meta = &volume.mounted.meta;
            meta.checkpoint_beyond(join_during).expect("checkpoint");
            let is_admitted = volume.admit();
            volume.put("later");
            volume.assert_nothing_is_hidden(is_admitted, &context);
            let lacks_first = during > 0 || (is_second_file_used && after > 0);
            assert_eq!(is_admitted, !lacks_first, "{context}");
            meta.checkpoint().expect("checkpoint");
            assert!(volume.admit(), "{context}: it is not admitted");
            volume.put("last");
            volume.assert_nothing_is_hidden(true, &context);
        }
    }
}

/// The first checkpoint frees the first file alone, because others append to the second.
#[test]
fn a_member_that_joins_before_a_checkpoint_waits_for_the_file_in_use_to_change() {
    let volume = Halved::new();
    volume.fill_first_file();
    volume.join();
    assert!(!volume.admit(), "no checkpoint was made");
    let meta = &volume.mounted.meta;
    meta.checkpoint_beyond(|| volume.put("meanwhile"))
        .expect("checkpoint");
    let is_admitted = volume.admit();
    volume.put("later");
    volume.assert_nothing_is_hidden(is_admitted, "after one checkpoint");
    assert!(!is_admitted);
    meta.checkpoint_beyond(|| volume.put("meanwhile again"))
        .expect("checkpoint");
    assert!(volume.admit(), "the file in use is its own from the start");
    volume.put("last");
    volume.assert_nothing_is_hidden(true, "after two checkpoints");
}

/// With the journal empty, nothing is to be waited for.
#[test]
fn a_member_that_joins_an_idle_volume_is_admitted_at_once() {
    let volume = Halved::new();
    volume.put("before");
    volume.mounted.meta.checkpoint().expect("checkpoint");
    volume.join();
    assert!(volume.admit());
    volume.put("later");
    volume.assert_nothing_is_hidden(true, "idle");
}

#[test]
fn the_journals_of_a_member_that_joins_are_written_where_the_filesystem_marks_first_writes() {
    let volume = Halved::new();
    volume.rig.disks[JOINING].mark_first_writes();
    let plan = FaultPlan::new();
    let disk = Arc::new(volume.rig.disks[JOINING].open());
    let store: StoreRef = Arc::new(FaultStore::new(disk, JOINING, &plan));
    plan.record();
    volume.join_through(&store);
    let calls = plan.take_log();
    let size = volume.mounted.meta.journal_file_bytes().expect("a journal");
    for name in files::JOURNALS {
        assert_written(&calls, (JOINING, name), 0..size);
    }
}
