//! Copies of the index with wrong content under right checksums.

use super::rig::{Mounted, Records, Refused, Rig, Script, content, inline, play};
use crate::format::{MemberIndex, key};
use crate::membership::Access;
use crate::metadata::{Batch, IndexReplicas, Key, Meta, MetaError, Value};
use crate::store::{MemDisk, Store};

#[path = "../../../tests/support/crafted_index.rs"]
mod crafted_index;

use crafted_index::CraftedIndex;

const SEED: u64 = 77;

/// Variants of each kind that are tried.
const VARIANTS: u64 = 150;

fn index_of(disk: &MemDisk) -> Option<Vec<u8>> {
    let store = disk.open();
    let len = store.open_len("index").ok()?;
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    store.read_at("index", 0, &mut bytes).expect("read");
    Some(bytes)
}

/// Puts a crafted copy in the place of a sound one.
fn craft(disk: &MemDisk, seed: u64) -> String {
    let mut crafted = CraftedIndex::new(index_of(disk).expect("a copy"));
    let changed = crafted.craft(seed);
    disk.open()
        .write_at("index", 0, crafted.bytes())
        .expect("write");
    changed
}

/// Returns a closed volume of two copies, and what it holds.
fn sound() -> (Rig, Records) {
    let rig = Rig::new(1, 1, 2);
    let script = Script::new(SEED, 40);
    let (_, outcome) = play(&rig, None, &script, 4, &inline());
    outcome.expect("nothing fails");
    let (meta, _, members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    // Enough for branch pages, and pages of several frames.
    let mut batch = Batch::default();
    for number in 0..600 {
        batch.put(format!("many {number:04}"), vec![7; 90]);
    }
    batch.put("long", vec![9; 20_000]);
    meta.apply(batch).expect("apply");
    meta.append(vec![meta.rotate()], &[]).expect("append");
    meta.close().expect("close");
    drop((meta, members));
    let (meta, ..) = rig.open(&[], None, Access::ReadOnly).expect("open");
    let state = content(&meta).expect("content");
    (rig, state)
}

/// Uses all that the index offers, in order.
fn use_all(meta: &Meta, replicas: &IndexReplicas, access: Access) -> Result<Records, MetaError> {
    let mut state = content(meta)?;
    for key in state.keys().step_by(40) {
        meta.get(key)?;
    }
    if access == Access::ReadOnly {
        replicas.survey()?;
    } else {
        let mut batch = Batch::default();
        for number in (0..600).step_by(7) {
            batch.delete(format!("many {number:04}"));
        }
        batch.put("added", vec![1; 9000]);
        meta.apply(batch)?;
        meta.append(vec![meta.rotate()], &[])?;
        meta.checkpoint()?;
        let mut first = 0;
        while let Some(verified) = replicas.verify(first)? {
            first = verified.next;
        }
        while replicas.compare()? {}
        replicas.compact()?;
    }
    state.remove(&*key::scrub());
    Ok(state)
}

fn open_and_use(rig: &Rig, access: Access) -> Result<Records, Refused> {
    let mounted = rig.mount(&[], None, access, inline())?;
    let used = use_all(&mounted.meta, &mounted.replicas, access);
    let closed = mounted.meta.close();
    drop(mounted);
    let used = used.map_err(Refused::Meta)?;
    closed.map_err(Refused::Meta)?;
    Ok(used)
}

#[test]
fn a_sound_index_stays_the_same_when_it_is_sealed() {
    let (rig, _) = sound();
    let bytes = index_of(&rig.disks[0]).expect("a copy");
    let mut crafted = CraftedIndex::new(bytes.clone());
    crafted.seal_trees();
    crafted.seal();
    assert!(crafted.bytes() == bytes, "the layout is understood");
}

#[test]
fn no_crafted_index_on_all_members_panics_or_hangs() {
    let (origin, _) = sound();
    let (mut refused, mut panicked) = (0, 0);
    for seed in 0..VARIANTS {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let rig = origin.fork();
            let changed: Vec<_> = rig.disks.iter().map(|disk| craft(disk, seed)).collect();
            if std::env::var_os("CRAFTED_VERBOSE").is_some() {
                eprintln!("seed {seed}, {access:?}: {}", changed[0]);
            }
            if let Err(error) = open_and_use(&rig, access) {
                refused += 1;
                panicked += u32::from(format!("{error:?}").contains("panic"));
            }
        }
    }
    eprintln!("{refused} refused, {panicked} of them since the database panicked");
    assert!(refused > 0, "the variants reach what is verified");
}

/// Looks at a volume of which one copy is crafted: the other serves. Both may be sound, and differ.
#[test]
fn one_crafted_copy_of_two_keeps_nothing_from_being_read() {
    let (origin, expected) = sound();
    let mut different = 0;
    for seed in 0..VARIANTS {
        let rig = origin.fork();
        let which = usize::try_from(seed % 2).expect("small");
        let changed = craft(&rig.disks[which], seed);
        let case = format!("seed {seed}, member {which}: {changed}");
        match open_and_use(&rig, Access::ReadOnly) {
            Ok(found) => different += u32::from(found != expected),
            Err(error) => panic!("{case}: {error:?}"),
        }
    }
    eprintln!("{different} variants are sound and different");
}

/// A commit that fails on a crafted page ends all writing, as any failed commit. The next mount has everything
/// that was acknowledged.
#[test]
fn one_crafted_copy_of_two_costs_nothing_that_was_acknowledged() {
    let (origin, expected) = sound();
    let mut poisoned = 0;
    for seed in 0..VARIANTS {
        let rig = origin.fork();
        let which = usize::try_from(seed % 2).expect("small");
        let changed = craft(&rig.disks[which], seed);
        let case = format!("seed {seed}, member {which}: {changed}");
        match open_and_use(&rig, Access::ReadWrite) {
            Ok(_) => continue,
            Err(Refused::Meta(MetaError::Poisoned { .. })) => poisoned += 1,
            Err(error) => panic!("{case}: {error:?}"),
        }
        let again = rig.open(&[], None, Access::ReadWrite);
        let (meta, _, _members) = again.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        let found = content(&meta).unwrap_or_else(|error| panic!("{case}: {error}"));
        let is_kept = |(key, value): (&Key, &Value)| {
            key.starts_with(b"many") || found.get(key) == Some(value)
        };
        assert!(expected.iter().all(is_kept), "{case}");
        meta.close()
            .unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    eprintln!("{poisoned} variants poison the mount");
}

/// Each copy is damaged in turn, in a way that keeps the index from opening where both are.
#[test]
fn a_crafted_copy_is_named_and_remade_from_the_other() {
    let (origin, expected) = sound();
    let breaks = |seed: &u64| {
        let rig = origin.fork();
        for disk in &rig.disks {
            craft(disk, *seed);
        }
        open_and_use(&rig, Access::ReadOnly).is_err()
    };
    for seed in (0..VARIANTS).filter(breaks).take(6) {
        for which in 0..2 {
            let case = format!("seed {seed}, member {which}");
            let rig = origin.fork();
            craft(&rig.disks[which], seed);
            let crafted = index_of(&rig.disks[which]);
            let Mounted {
                meta,
                replicas,
                members,
                ..
            } = rig.mounted(None, Access::ReadOnly);
            assert!(content(&meta).expect(&case) == expected, "{case}");
            let wrong = replicas.survey().expect(&case);
            let other = MemberIndex(u16::try_from(1 - which).expect("small"));
            let named = MemberIndex(u16::try_from(which).expect("small"));
            assert!(
                wrong.contains_key(&named) && !wrong.contains_key(&other),
                "{case}: {wrong:?}"
            );
            assert_eq!(replicas.found(), [other], "{case}");
            meta.close().expect(&case);
            drop((meta, replicas, members));
            assert!(
                index_of(&rig.disks[which]) == crafted,
                "{case}: it was only looked at"
            );
            let Mounted {
                meta,
                replicas,
                members,
                ..
            } = rig.mounted(None, Access::ReadWrite);
            assert!(content(&meta).expect(&case) == expected, "{case}");
            while replicas.refill().expect(&case) {}
            meta.close().expect(&case);
            drop((meta, replicas, members));
            let (meta, ..) = rig.open(&[1 - which], None, Access::ReadOnly).expect(&case);
            assert!(
                content(&meta).expect(&case) == expected,
                "{case}: made again"
            );
        }
    }
}
