//! Random operations, compared with an ordered map.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::memory::MemIndex;
use super::rig::{Records, Rig, content, first, inline, options};
use crate::membership::{Access, Members};
use crate::metadata::disk::Disk;
use crate::metadata::{self, Batch, IndexReplicas, Key, Meta, Pending};

/// The state that the metadata must hold: now, and after a crash.
#[derive(Default)]
struct Model {
    visible: Records,
    durable: Records,
    /// Batches since the last append, in order; whether each is of a stripe flush.
    waiting: Vec<(Batch, bool)>,
    /// Those of them that were taken.
    taken: Vec<(Batch, bool)>,
}

fn change(state: &mut Records, batch: &Batch) {
    for (key, value) in batch.iter() {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

fn random_batch(random: &mut StdRng, prefix: char) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..random.random_range(1..30) {
        let key = format!("{prefix}{:04}", random.random_range(0..300));
        if random.random_bool(0.4) {
            batch.delete(key);
        } else {
            let len = if random.random_bool(0.05) { 9000 } else { 100 };
            batch.put(
                key,
                vec![random.random::<u8>(); random.random_range(0..len)],
            );
        }
    }
    batch
}

impl Model {
    fn apply(&mut self, meta: &Meta, random: &mut StdRng, stripes: bool) {
        let batch = random_batch(random, if stripes { 's' } else { 'a' });
        change(&mut self.visible, &batch);
        self.waiting.push((batch.clone(), stripes));
        let applied = if stripes {
            meta.apply_stripes(batch)
        } else {
            meta.apply(batch)
        };
        applied.expect("apply");
    }

    fn take(&mut self, meta: &Meta, stripes: bool) -> Pending {
        let mine = |entry: &mut (Batch, bool)| entry.1 == stripes;
        self.taken.extend(self.waiting.extract_if(.., mine));
        if stripes {
            meta.take_stripes()
        } else {
            meta.rotate()
        }
    }

    fn append(&mut self, meta: &Meta, parts: Vec<Pending>) {
        meta.append(parts, &[]).expect("append");
        for (batch, _) in self.taken.drain(..) {
            change(&mut self.durable, &batch);
        }
    }

    fn crash(&mut self) {
        self.visible = self.durable.clone();
        self.waiting.clear();
    }

    fn check(&self, meta: &Meta, random: &mut StdRng, case: &str) {
        let key = |random: &mut StdRng| {
            let prefix = if random.random() { 'a' } else { 's' };
            Key::from(format!("{prefix}{:04}", random.random_range(0..301)))
        };
        for _ in 0..20 {
            let key = key(random);
            assert_eq!(
                meta.get(&key).expect("get"),
                self.visible.get(&key).cloned(),
                "{case}: {key:?}"
            );
        }
        let (from, end) = (key(random), key(random));
        let limit = random.random_range(0..40);
        let scanned = meta.scan(&from, &end, limit).expect("scan");
        let expected: Vec<_> = self
            .visible
            .iter()
            .filter(|(key, _)| **key >= from && **key < end)
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(
            scanned, expected,
            "{case}: {from:?}..{end:?}, at most {limit}"
        );
    }
}

/// The index that the metadata stands on.
enum Engine {
    Redb,
    /// An ordered map, which is all that an index has to be.
    Memory(Arc<MemIndex>),
}

/// Metadata that was opened on an [`Engine`].
struct Opened {
    meta: Meta,
    /// The copies of the index, if it has any.
    replicas: Option<Arc<IndexReplicas>>,
    members: Arc<Members>,
}

impl Engine {
    /// Returns an index in memory, and the disks of its volume.
    fn memory(k: usize, m: usize, members: usize) -> (Self, Rig) {
        let rig = Rig::new(k, m, members);
        let index = Arc::new(MemIndex::default());
        metadata::put_first(&*index, &first()).expect("a map takes everything");
        (Self::Memory(index), rig)
    }

    fn open(&self, rig: &Rig) -> Opened {
        let (meta, replicas, members) = match self {
            Self::Redb => {
                let mounted = rig.mounted(None, Access::ReadWrite);
                (mounted.meta, Some(mounted.replicas), mounted.members)
            }
            Self::Memory(index) => {
                let members = Members::open(rig.stores(&[], None), Access::ReadWrite, inline());
                let members = members.expect("members");
                let disk = Arc::new(Disk::new(Arc::clone(&members)));
                let (meta, _) = Meta::open_on(&disk, Arc::clone(index) as _, &options())
                    .expect("the metadata opens");
                (meta, None, members)
            }
        };
        Opened {
            meta,
            replicas,
            members,
        }
    }
}

fn run(seed: u64, engine: &Engine, rig: &Rig) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut opened = engine.open(rig);
    let mut model = Model::default();
    model.visible = content(&opened.meta).expect("content");
    model.durable = model.visible.clone();
    for step in 0..150 {
        let case = format!("seed {seed}, step {step}");
        let meta = &opened.meta;
        match random.random_range(0..20) {
            0..8 => model.apply(meta, &mut random, false),
            8..10 => model.apply(meta, &mut random, true),
            10..14 => {
                let mut parts = vec![model.take(meta, false)];
                model.apply(meta, &mut random, false);
                model.check(meta, &mut random, &case);
                if random.random() {
                    parts.push(model.take(meta, true));
                }
                model.append(meta, parts);
            }
            14..16 => meta.checkpoint().expect("checkpoint"),
            16 => {
                if let Some(replicas) = &opened.replicas {
                    replicas.refill().expect("refill");
                }
            }
            17 => {
                if random.random() {
                    meta.close().expect("close");
                }
                drop(opened);
                opened = engine.open(rig);
                model.crash();
            }
            _ => model.check(meta, &mut random, &case),
        }
    }
    assert_eq!(
        content(&opened.meta).expect("content"),
        model.visible,
        "seed {seed}"
    );
    assert_eq!(opened.members.membership().live().len(), 4, "seed {seed}");
}

#[test]
fn random_operations_agree_with_an_ordered_map() {
    for seed in 0..30 {
        run(seed, &Engine::Redb, &Rig::new(2, 1, 4));
    }
}

/// A database server could be the index as well: nothing but the trait is asked of it.
#[test]
fn any_ordered_store_with_snapshots_and_commits_can_be_the_index() {
    for seed in 0..30 {
        let (engine, rig) = Engine::memory(2, 1, 4);
        run(seed, &engine, &rig);
    }
}

#[test]
fn readers_see_whole_batches_while_changes_move_through_all_layers() {
    let rig = Rig::new(1, 1, 2);
    let (meta, _, _members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    let put = |round: u32| {
        let mut batch = Batch::default();
        for key in 0..50u32 {
            batch.put(format!("k{key:02}"), round.to_le_bytes().to_vec());
        }
        meta.apply(batch).expect("apply");
    };
    put(0);
    let (done, meta) = (&AtomicBool::new(false), &meta);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let entries = meta.scan(b"k", b"l", 100).expect("scan");
                    assert_eq!(entries.len(), 50);
                    assert!(
                        entries.iter().all(|(_, value)| *value == entries[0].1),
                        "a batch in two"
                    );
                    let round = u32::from_le_bytes((*entries[0].1).try_into().expect("4 bytes"));
                    assert!(round >= last, "went back from {last} to {round}");
                    last = round;
                }
            });
        }
        for round in 1..200 {
            put(round);
            meta.append(vec![meta.rotate()], &[]).expect("append");
            if round % 3 == 0 {
                meta.checkpoint().expect("checkpoint");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
