//! The overlay's layers over an index in memory.

use parking_lot::RwLock;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::memory::MemIndex;
use super::rig::State;
use crate::meta::index::{Commit, Index, Position};
use crate::meta::overlay::{Origin, Overlay};
use crate::meta::{Batch, Key, view};

fn key(random: &mut StdRng) -> Key {
    Key::from(random.random_range(0..9000u32).to_be_bytes().to_vec())
}

#[test]
fn scans_agree_with_an_ordered_map_whatever_layer_each_change_is_in() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let (overlay, index, mut model) = (
            RwLock::new(Overlay::default()),
            MemIndex::default(),
            State::new(),
        );
        for round in 0..12 {
            let mut batch = Batch::default();
            for _ in 0..random.random_range(0..3000) {
                let key = key(&mut random);
                if random.random_bool(0.6) {
                    model.remove(&key);
                    batch.delete(key);
                } else {
                    let value = Key::from(vec![round; 3]);
                    model.insert(key.clone(), value.clone());
                    batch.put(key, value);
                }
            }
            let origin = if random.random() {
                Origin::Applied
            } else {
                Origin::Stripes
            };
            overlay.write().apply(batch, origin);
            if random.random_bool(0.5) {
                let taken = overlay.write().take(origin);
                let changes: Vec<_> = taken
                    .layer
                    .iter()
                    .map(|(key, entry)| (key.clone(), entry.clone()))
                    .collect();
                if random.random_bool(0.7) {
                    overlay.write().log(&changes);
                } else {
                    overlay.write().put_back(origin, &changes);
                }
                overlay.write().forget(&taken.layer);
            }
            if random.random_bool(0.4) {
                if let Some(frozen) = overlay.read().frozen() {
                    let changes = frozen
                        .layer
                        .iter()
                        .map(|(key, entry)| (key, entry.value.as_ref()));
                    let position = Position::default();
                    index
                        .commit(&mut Commit {
                            changes: Box::new(changes),
                            position,
                            carried: Some(&[]),
                        })
                        .expect("commit");
                }
                overlay.write().thaw();
                overlay.write().freeze(Position::default());
            }
            for limit in [0, 1, 10, 5000, usize::MAX] {
                let (from, end) = (key(&mut random), key(&mut random));
                let found = view::scan(&overlay, &index, &from, &end, limit).expect("scan");
                let within = model.iter().filter(|(key, _)| **key >= from && **key < end);
                let expected: Vec<_> = within
                    .take(limit)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                assert!(
                    found == expected,
                    "seed {seed}, round {round}, limit {limit}"
                );
                assert_eq!(
                    view::get(&overlay, &index, &from).expect("get"),
                    model.get(&from).cloned(),
                    "seed {seed}, round {round}"
                );
            }
        }
    }
}

#[test]
fn a_change_that_waited_does_not_undo_a_newer_one_that_is_in_the_journal() {
    let mut overlay = Overlay::default();
    let put = |value: &'static str| {
        let mut batch = Batch::default();
        batch.put("key", value);
        batch
    };
    overlay.apply(put("old"), Origin::Applied);
    overlay.apply(put("new"), Origin::Stripes);
    let taken = overlay.take(Origin::Stripes);
    let changes: Vec<_> = taken
        .layer
        .iter()
        .map(|(key, entry)| (key.clone(), entry.clone()))
        .collect();
    overlay.log(&changes);
    overlay.forget(&taken.layer);
    assert!(
        overlay.take(Origin::Applied).is_empty(),
        "the old value would be journaled after the new"
    );
    assert_eq!(
        overlay.get(b"key").and_then(|entry| entry.value.clone()),
        Some("new".into())
    );
}
