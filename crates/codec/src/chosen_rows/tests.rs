use super::*;
use crate::CodeId;

fn geometry(k: usize, m: usize) -> Geometry {
    Geometry::new(k, m).expect("valid")
}

/// Weighs all codewords but zero one by one.
fn weighed(rows: &[u64], k: usize) -> Distance {
    let weight = |data: u64| {
        let parities = rows.iter().map(|row| (row & data).count_ones() & 1);
        (data.count_ones() + parities.sum::<u32>()) as usize
    };
    let weights: Vec<usize> = (1..1_u64 << k).map(weight).collect();
    let least = *weights.iter().min().expect("k is not 0");
    Distance {
        survived: least - 1,
        fatal_sets: weights.iter().filter(|&&it| it == least).count() as u64,
    }
}

#[test]
fn the_dual_code_tells_the_distance_that_weighing_all_codewords_does() {
    for (k, m) in [(2, 2), (3, 2), (4, 4), (2, 8), (9, 3), (10, 4), (12, 7)] {
        for seed in 0..40 {
            let rows = rows(seed, geometry(k, m));
            let found = Weights::new(geometry(k, m)).distance(&rows);
            assert_eq!(found, weighed(&rows, k), "{k}+{m}, seed {seed}");
        }
    }
}

/// Counts the codewords by weight of which at most `rest` more data bits are set, from data bit `first` on.
fn count_light(
    columns: &[u64],
    first: usize,
    rest: usize,
    (bits, sum): (u32, u64),
    counts: &mut [u64],
) {
    if let Some(count) = counts.get_mut((bits + sum.count_ones()) as usize) {
        *count += u64::from(bits > 0);
    }
    if rest > 0 {
        for column in first..columns.len() {
            let next = (bits + 1, sum ^ columns[column]);
            count_light(columns, column + 1, rest - 1, next, counts);
        }
    }
}

#[test]
fn the_distance_is_right_with_as_many_shards_as_there_can_be() {
    let geometry = geometry(48, 16);
    for seed in 0..3 {
        let rows = rows(seed, geometry);
        let column = |c: usize| (0..16).fold(0, |bits, r| bits | (rows[r] >> c & 1) << r);
        let columns: Vec<u64> = (0..48).map(column).collect();
        let found = Weights::new(geometry).distance(&rows);
        let mut counts = vec![0; found.survived + 2];
        count_light(&columns, 0, found.survived + 1, (0, 0), &mut counts);
        let fatal_sets = counts.pop().expect("one for each weight");
        assert_eq!(fatal_sets, found.fatal_sets, "seed {seed}");
        assert_eq!(counts.iter().sum::<u64>(), 0, "seed {seed}");
    }
}

/// Seeds are part of volumes only as the search found them, so a later search may find others. What a build creates
/// should change only on purpose, all the same.
#[test]
fn the_search_finds_these_seeds() {
    for (k, m, seed, survived, fatal_sets) in FOUND {
        let found = search(geometry(k, m)).expect("there are rows");
        assert_eq!(found, (seed, survived), "{k}+{m}");
        let code = CodeId::RANDOM_GF2
            .for_geometry(geometry(k, m))
            .expect("known");
        let distance = distance(code.seed(), geometry(k, m));
        assert_eq!(distance, weighed(&rows(seed, geometry(k, m)), k), "{k}+{m}");
        assert_eq!(distance.fatal_sets, fatal_sets, "{k}+{m}");
    }
}

/// Data and parity shards, the seed, the losses survived, and the sets of one loss more that are not.
const FOUND: [(usize, usize, u64, u8, u64); 4] = [
    (2, 2, 2, 1, 1),
    (4, 2, 6, 1, 3),
    (4, 4, 3881, 3, 14),
    (10, 4, 16064, 2, 28),
];

#[test]
fn geometries_without_rows_are_refused() {
    for (k, m) in [(1, 4), (4, 1), (4, 17)] {
        let refused = search(geometry(k, m)).expect_err("out of bounds");
        assert!(
            matches!(refused, CodecError::RandomGeometry { .. }),
            "{refused}"
        );
    }
    let refused = search(geometry(60, 5)).expect_err("too wide");
    assert!(
        matches!(refused, CodecError::GeometryTooWide { max: 64, .. }),
        "{refused}"
    );
    let refused = search(geometry(60, 2)).expect_err("hopeless");
    assert_eq!(
        refused,
        CodecError::NoRows {
            data: 60,
            parity: 2
        }
    );
}

#[test]
fn a_number_that_promises_something_else_than_its_rows_hold_is_refused() {
    let geometry = geometry(4, 4);
    let right = CodeId::RANDOM_GF2
        .for_geometry(geometry)
        .expect("there are rows");
    assert_eq!(right.check(geometry), Ok(()));
    let number = |survived: u64| CodeId(right.0 & !(0xff << 16) | survived << 16);
    for stored in [0, 1, 2, 4, 5, 255] {
        let refused = number(stored).check(geometry).expect_err("a lie");
        let survived = 3;
        let stored = usize::try_from(stored).expect("small");
        assert_eq!(refused, CodecError::WrongRows { stored, survived });
    }
    assert!(
        CodeId::RANDOM_GF2.check(geometry).is_err(),
        "no rows chosen"
    );
    let other = Geometry::new(5, 4).expect("valid");
    assert_eq!(
        right.for_geometry(other).is_ok(),
        right.check(other).is_ok()
    );
}
