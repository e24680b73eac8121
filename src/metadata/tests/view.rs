//! The overlay's layers over an index in memory.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::memory::MemIndex;
use super::rig::Records;
use crate::format::{Cookie, Ino, key};
use crate::metadata::index::{Commit, Index, Position, Snapshot};
use crate::metadata::overlay::Origin;
use crate::metadata::partitions::partition_of;
use crate::metadata::shared_overlay::SharedOverlay;
use crate::metadata::view::View;
use crate::metadata::{Batch, Key, MetaError, StripeData, Value};

fn view<'a>(overlay: &'a SharedOverlay, index: &'a dyn Index) -> View<'a> {
    View { overlay, index }
}

/// Returns a key of one of nine directories. Ranges within one directory meet one partition of the overlay, others all.
fn key(random: &mut StdRng) -> Key {
    let number = random.random_range(0..9000u64);
    key::position(Ino(number / 1000), Cookie(number % 1000))
}

/// Returns the ends of a range of a few keys.
fn narrow_range(random: &mut StdRng) -> (Key, Key) {
    let (directory, cookie) = (random.random_range(0..9), random.random_range(0..1000));
    let end = cookie + random.random_range(1..4);
    let at = |cookie| key::position(Ino(directory), Cookie(cookie));
    (at(cookie), at(end))
}

/// Applies a drawn batch to an overlay and a model of it. Its changes, or those before them, may move to another layer then.
fn change(
    random: &mut StdRng,
    (overlay, index): (&SharedOverlay, &MemIndex),
    model: &mut Records,
    round: u8,
) {
    let mut batch = Batch::default();
    for _ in 0..random.random_range(0..3000) {
        let key = key(random);
        if random.random_bool(0.6) {
            model.remove(&key);
            batch.delete(key);
        } else {
            let value = Value::from(vec![round; 3]);
            model.insert(key.clone(), value.clone());
            batch.put(key, value);
        }
    }
    let origin = if random.random() {
        Origin::Applied
    } else {
        Origin::Stripes
    };
    overlay.apply(batch, origin);
    if random.random_bool(0.5) {
        let taken = overlay.take(origin);
        let parts = vec![taken];
        if random.random_bool(0.7) {
            overlay.log(&overlay.newest(&parts));
        } else {
            overlay.restore(&parts);
        }
        overlay.forget(parts);
    }
    if random.random_bool(0.4) {
        if let Some(frozen) = overlay.frozen() {
            let changes = frozen.in_order().into_iter();
            let changes = changes.map(|(key, entry)| (key, entry.value.as_ref()));
            let position = Position::default();
            index
                .commit(&mut Commit {
                    changes: Box::new(changes),
                    position,
                    unflushed: Some(&[]),
                })
                .expect("commit");
        }
        overlay.thaw();
        overlay.freeze(Position::default());
    }
}

#[test]
fn scans_agree_with_an_ordered_map_whatever_layer_each_change_is_in() {
    let mut answers = [0, 0];
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let (overlay, index, mut model) = (
            SharedOverlay::default(),
            MemIndex::default(),
            Records::new(),
        );
        for round in 0..12 {
            change(&mut random, (&overlay, &index), &mut model, round);
            for limit in [0, 1, 10, 5000, usize::MAX] {
                let (from, end) = (key(&mut random), key(&mut random));
                let found = view(&overlay, &index)
                    .scan(&from, &end, limit)
                    .expect("scan");
                let within = model.iter().filter(|(key, _)| **key >= from && **key < end);
                let expected: Vec<_> = within
                    .take(limit)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                assert!(
                    found == expected,
                    "seed {seed}, round {round}, limit {limit}"
                );
                let context = format!("seed {seed}, round {round}");
                assert_any_agrees(view(&overlay, &index), &model, (&from, &end), &context);
                for _ in 0..20 {
                    let (from, end) = narrow_range(&mut random);
                    let view = view(&overlay, &index);
                    let any = assert_any_agrees(view, &model, (&from, &end), &context);
                    answers[usize::from(any)] += 1;
                }
                let mut visited = Vec::new();
                let visit = &mut |key: &[u8], value: &[u8]| {
                    visited.push((Key::copy_from_slice(key), Value::copy_from_slice(value)));
                    if visited.len() < limit {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                };
                view(&overlay, &index)
                    .visit(&from, &end, visit)
                    .expect("visit");
                visited.truncate(limit);
                assert!(
                    visited == expected,
                    "visit, seed {seed}, round {round}, limit {limit}"
                );
                assert_eq!(
                    view(&overlay, &index).get(&from).expect("get"),
                    model.get(&from).cloned(),
                    "seed {seed}, round {round}"
                );
            }
        }
    }
    let most = answers.iter().all(|count| *count > 1000);
    assert!(most, "{answers:?}: not both answers are tried");
}

/// Asserts that a view and a model agree on whether there is a key within a range. Returns that.
fn assert_any_agrees(view: View<'_>, model: &Records, range: (&Key, &Key), context: &str) -> bool {
    let (from, end) = range;
    let any = view.has_any(from, end).expect("one view");
    let first = model.keys().find(|key| *key >= from);
    assert_eq!(any, first.is_some_and(|first| first < end), "{context}");
    any
}

/// An index whose members do not answer while a snapshot is taken.
struct Hanging {
    index: MemIndex,
    is_taken: AtomicBool,
    asked: Barrier,
    answered: Barrier,
}

impl Index for Hanging {
    fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        let is_taken = self.is_taken.load(Ordering::SeqCst);
        is_taken.then(|| self.index.snapshot()).flatten()
    }

    fn take_snapshot(&self) -> Result<(), MetaError> {
        self.asked.wait();
        self.answered.wait();
        self.is_taken.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn begin(&self) -> Result<(), MetaError> {
        self.index.begin()
    }

    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError> {
        self.index.commit(commit)
    }

    fn position(&self) -> Position {
        self.index.position()
    }

    fn unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        self.index.unflushed(stripe_bytes)
    }

    fn close(&self) -> Result<(), MetaError> {
        Ok(())
    }
}

#[test]
fn changes_go_on_while_a_reader_waits_for_the_index() {
    for scans in [false, true] {
        let overlay = SharedOverlay::default();
        let index = Hanging {
            index: MemIndex::default(),
            is_taken: AtomicBool::new(false),
            asked: Barrier::new(2),
            answered: Barrier::new(2),
        };
        let put = |value: &'static str| {
            let mut batch = Batch::default();
            batch.put("key", value);
            batch
        };
        let read = || {
            if scans {
                let found = view(&overlay, &index).scan(b"a", b"z", 10).expect("scan");
                found.first().map(|(_, value)| value.clone())
            } else {
                view(&overlay, &index).get(&"key".into()).expect("get")
            }
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(read);
            index.asked.wait();
            let is_free = overlay.is_free();
            if is_free {
                overlay.apply(put("new"), Origin::Applied);
            }
            index.answered.wait();
            let found = reader.join().expect("reader");
            assert!(is_free, "a reader holds the lock meanwhile");
            assert_eq!(found.as_deref(), Some(&b"new"[..]));
        });
    }
}

#[test]
fn a_change_that_waited_does_not_undo_a_newer_one_that_is_in_the_journal() {
    let overlay = SharedOverlay::default();
    let put = |value: &'static str| {
        let mut batch = Batch::default();
        batch.put("key", value);
        batch
    };
    overlay.apply(put("old"), Origin::Applied);
    overlay.apply(put("new"), Origin::Stripes);
    let taken = vec![overlay.take(Origin::Stripes)];
    overlay.log(&overlay.newest(&taken));
    overlay.forget(taken);
    assert!(
        overlay.take(Origin::Applied).is_empty(),
        "the old value would be journaled after the new"
    );
    let found = overlay.get_or(&"key".into(), || ());
    assert_eq!(found.expect("it is there").value, Some("new".into()));
}

/// An index of which a second snapshot takes long. Meanwhile a key that it has moves to the front.
struct Moving<'a> {
    index: MemIndex,
    overlay: &'a SharedOverlay,
    snapshots: AtomicUsize,
}

/// The deletions in front of the key: more than a scan for one key looks at in one go.
const DELETED: u8 = 100;

impl Index for Moving<'_> {
    fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        let is_first = self.snapshots.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| self.index.snapshot()).flatten()
    }

    fn take_snapshot(&self) -> Result<(), MetaError> {
        let mut batch = Batch::default();
        batch.delete(vec![DELETED]);
        batch.put(vec![0], "value");
        self.overlay.apply(batch, Origin::Applied);
        self.snapshots.store(0, Ordering::SeqCst);
        Ok(())
    }

    fn begin(&self) -> Result<(), MetaError> {
        self.index.begin()
    }

    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError> {
        self.index.commit(commit)
    }

    fn position(&self) -> Position {
        self.index.position()
    }

    fn unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        self.index.unflushed(stripe_bytes)
    }

    fn close(&self) -> Result<(), MetaError> {
        self.index.close()
    }
}

/// Fails where a stripe counts as dead because its only reference moved behind the place that a scan had reached.
#[test]
fn a_key_that_moves_within_a_range_is_in_the_range_all_the_while() {
    let overlay = SharedOverlay::default();
    let mut batch = Batch::default();
    for number in 0..DELETED {
        batch.delete(vec![number]);
    }
    overlay.apply(batch, Origin::Applied);
    let (index, key) = (MemIndex::default(), Key::from(&[DELETED]));
    index
        .commit(&mut Commit {
            changes: Box::new([(&key, Some(&"value".into()))].into_iter()),
            position: Position::default(),
            unflushed: Some(&[]),
        })
        .expect("commit");
    let index = Moving {
        index,
        overlay: &overlay,
        snapshots: AtomicUsize::new(0),
    };
    let any = view(&overlay, &index).has_any(&[0], &[DELETED + 1]);
    assert!(any.expect("nothing fails"));
}

/// Fails where a reader locks the partitions of its range one after the other.
#[test]
fn a_key_that_moves_between_partitions_is_in_their_range_all_the_while() {
    const MOVES: u64 = 20_000;
    let keys = [2u64, 1].map(|number| [&b"i"[..], &number.to_be_bytes()].concat());
    assert_ne!(partition_of(&keys[0]), partition_of(&keys[1]));
    let (overlay, index) = (SharedOverlay::default(), MemIndex::default());
    let move_to = |to: usize| {
        let mut batch = Batch::default();
        batch.put(keys[to].clone(), "value");
        batch.delete(keys[1 - to].clone());
        overlay.apply(batch, Origin::Applied);
    };
    move_to(0);
    let (is_over, start) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for number in 1..=MOVES {
                move_to((number % 2) as usize);
            }
            is_over.store(true, Ordering::Release);
        });
        start.wait();
        while !is_over.load(Ordering::Acquire) {
            let any = view(&overlay, &index).has_any(b"i", b"j");
            assert!(any.expect("nothing fails"));
        }
    });
}
