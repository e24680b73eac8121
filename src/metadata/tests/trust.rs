//! Data that recovery must not believe, however valid it looks.

use super::rig::{Records, Refused, Rig, content};
use crate::format::journal::{self, RecordHeader};
use crate::format::{Lsn, files};
use crate::membership::Access;
use crate::metadata::{Batch, Meta, MetaError};
use crate::store::{CallKind, CutPolicy, Effect, Fault, FaultPlan, Scope, Store};

fn append(meta: &Meta, key: &'static str) -> Result<(), MetaError> {
    let mut batch = Batch::default();
    batch.put(key, "value");
    meta.apply(batch)?;
    meta.append(vec![meta.rotate()], &[]).map(|_| ())
}

fn opened(rig: &Rig, without: &[usize]) -> Records {
    let (meta, _, _members) = rig.open(without, None, Access::ReadWrite).expect("open");
    content(&meta).expect("content")
}

fn cut(rig: &Rig, policies: [CutPolicy; 3]) {
    for (disk, policy) in rig.disks.iter().zip(policies) {
        disk.cut(policy);
    }
}

/// Only member 2 has the newest record, and is away when the others decide that there is none. Its
/// LSN is the one that comes next in the generation after.
#[test]
fn a_record_of_an_earlier_generation_is_not_replayed() {
    let rig = Rig::new(1, 1, 3);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    append(&meta, "kept").expect("append");
    plan.add(Fault::at(1, Effect::PowerCut).of(Scope::Kind(CallKind::Sync)));
    append(&meta, "lost").expect_err("the power is cut");
    drop((meta, members));
    cut(&rig, [CutPolicy::Drop, CutPolicy::Drop, CutPolicy::Keep]);
    let decided = opened(&rig, &[2]);
    assert!(decided.contains_key("kept".as_bytes()) && !decided.contains_key("lost".as_bytes()));
    assert_eq!(opened(&rig, &[]), decided, "member 2 is stale");
    assert_eq!(
        opened(&rig, &[]),
        decided,
        "member 2 is current again, its journal is not"
    );
}

#[test]
fn an_old_copy_of_the_index_on_a_member_that_came_back_is_never_shown() {
    for lost in 0..3 {
        let rig = Rig::new(1, 1, 3);
        let has_copy = |disk: &usize| rig.disks[*disk].open().open_len("index").is_ok();
        let holder = (0..3).find(has_copy).expect("a holder");
        let (meta, _, members) = rig.open(&[holder], None, Access::ReadWrite).expect("open");
        append(&meta, "newer").expect("append");
        meta.close().expect("close");
        drop((meta, members));
        let expected = opened(&rig, &[]);
        assert_eq!(opened(&rig, &[lost]), expected, "{lost} lost");
    }
}

/// Damages the first block of the record that holds `text` on all members.
fn damage_record(rig: &Rig, text: &[u8]) {
    for disk in &rig.disks {
        let store = disk.open();
        let len = store.open_len("journal.0").expect("the journal is there");
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        store.read_at("journal.0", 0, &mut bytes).expect("read");
        let at = bytes
            .windows(text.len())
            .position(|window| window == text)
            .expect("the record");
        disk.corrupt("journal.0", at as u64, |bytes| bytes.fill(0), text.len());
    }
}

#[test]
fn a_record_missing_on_all_members_is_reported_and_what_was_before_it_can_be_read() {
    let rig = Rig::new(1, 1, 3);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    append(&meta, "before").expect("append");
    append(&meta, "damaged").expect("append");
    // Without a checkpoint, so that the gap is found between the files.
    meta.journal.as_ref().expect("a journal").switch_file();
    append(&meta, "after").expect("append");
    plan.add(Fault::at(1, Effect::PowerCut));
    drop((meta, members));
    damage_record(&rig, b"damaged");
    match rig.open(&[], None, Access::ReadWrite) {
        Err(Refused::Meta(MetaError::LostRecords { missing, found })) => {
            assert_eq!((missing.0, found.0), (2, 3));
        }
        other => panic!("{:?}", other.map(|(meta, ..)| content(&meta))),
    }
    let (meta, _, _members) = rig
        .open(&[], None, Access::ReadOnly)
        .expect("for reading only");
    let found = content(&meta).expect("content");
    assert!(found.contains_key("before".as_bytes()) && !found.contains_key("after".as_bytes()));
}

/// Copies of the index from before a mount, under a journal from after it.
#[test]
fn an_index_older_than_the_journals_generation_is_refused() {
    let rig = Rig::new(1, 1, 3);
    let old = rig.fork();
    opened(&rig, &[]);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    append(&meta, "newer").expect("append");
    plan.add(Fault::at(1, Effect::PowerCut));
    drop((meta, members));
    for (disk, old) in rig.disks.iter().zip(&old.disks) {
        let (store, old) = (disk.open(), old.open());
        let Ok(len) = old.open_len("index") else {
            continue;
        };
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        old.read_at("index", 0, &mut bytes).expect("read");
        store.write_at("index", 0, &bytes).expect("write");
    }
    let refused = rig
        .open(&[], None, Access::ReadWrite)
        .map(|(meta, ..)| content(&meta));
    assert!(
        matches!(refused, Err(Refused::Meta(MetaError::OldIndex { .. }))),
        "{refused:?}"
    );
}

/// As earlier builds left it, which let a file grow.
#[test]
fn a_journal_that_had_to_grow_is_replayed_wholly() {
    let rig = Rig::new(1, 1, 2);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    let mut expected = content(&meta).expect("content");
    let position = meta.index.position();
    let mut records = Vec::new();
    for number in 0..60u8 {
        let (key, value) = (vec![number], vec![number; 100_000]);
        let entry = (&*key, Some(&*value));
        let body = journal::entry_bytes(&key, Some(&value));
        let mut record = vec![0; journal::padded_bytes(body)];
        let header = RecordHeader {
            volume: members.shape().volume_id(),
            epoch: members.membership().epoch(),
            lsn: Lsn(position.lsn.0 + 1 + u64::from(number)),
            generation: position.generation,
        };
        journal::encode(&header, &[entry], &[], &mut record);
        records.append(&mut record);
        expected.insert(key.into(), value.into());
    }
    plan.add(Fault::at(1, Effect::PowerCut));
    drop((meta, members));
    let name = files::JOURNALS[0];
    for disk in &rig.disks {
        let store = disk.open();
        let len = store.open_len(name).expect("a journal");
        assert!(len < records.len() as u64, "nothing to grow");
        store
            .reserve(name, len, records.len() as u64 - len)
            .expect("reserve");
        store.write_at(name, 0, &records).expect("write");
        store.sync(name).expect("sync");
    }
    for lost in [vec![], vec![0], vec![1]] {
        assert!(opened(&rig.fork(), &lost) == expected, "without {lost:?}");
    }
    drop(rig.open(&[], None, Access::ReadWrite).expect("open"));
    for disk in &rig.disks {
        let len = disk.open().open_len(name).expect("a journal");
        assert!(len < records.len() as u64, "it is as long as before");
    }
}
