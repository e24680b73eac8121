use super::*;

/// Returns the survival of rows, found for all small geometries, and those rows.
fn random(k: usize, m: usize) -> (Survival, Vec<u64>) {
    let geometry = Geometry::new(k, m).expect("valid");
    let code = CodeId::RANDOM_GF2
        .for_geometry(geometry)
        .expect("there are rows");
    (
        Survival::of(code, geometry),
        chosen_rows::rows(code.seed(), geometry),
    )
}

/// Returns the number of independent vectors by elimination, column after column.
fn rank_of(mut vectors: Vec<u64>) -> usize {
    let mut rank = 0;
    for column in 0..64 {
        let Some(pivot) = (rank..vectors.len()).find(|&i| vectors[i] >> column & 1 == 1) else {
            continue;
        };
        vectors.swap(rank, pivot);
        for other in 0..vectors.len() {
            if other != rank && vectors[other] >> column & 1 == 1 {
                vectors[other] ^= vectors[rank];
            }
        }
        rank += 1;
    }
    rank
}

#[test]
fn random_codes_survive_what_the_rank_says_and_never_promise_more() {
    for (k, m) in [
        (2, 2),
        (2, 4),
        (3, 3),
        (4, 2),
        (4, 4),
        (5, 3),
        (6, 5),
        (8, 4),
    ] {
        let (survival, rows) = random(k, m);
        let n = k + m;
        let vector = |shard: usize| {
            if shard < k {
                1 << shard
            } else {
                rows[shard - k]
            }
        };
        let left = |lost: u32| (0..n).filter(move |&shard| lost >> shard & 1 == 0);
        let deficits: Vec<usize> = (0..1_u32 << n)
            .map(|lost| k - rank_of(left(lost).map(vector).collect()))
            .collect();
        for lost in 0..1_u32 << n {
            let is_present = |shard: usize| lost >> shard & 1 == 0;
            let tolerated = survival.losses_tolerated(is_present);
            let deficit = deficits[lost as usize];
            let named = format!("{k}+{m}, lost {lost:b}");
            assert_eq!(survival.is_decodable(is_present), deficit == 0, "{named}");
            if deficit > 0 {
                assert_eq!(
                    tolerated,
                    -i16::try_from(deficit).expect("small"),
                    "{named}"
                );
            }
            assert_eq!(survival.rank(left(lost)), k - deficit, "{named}");
            // Every loss of so many more is indeed survived.
            for more in (0..1_u32 << n).filter(|more| more & lost == 0) {
                if i16::try_from(more.count_ones()).is_ok_and(|count| count <= tolerated) {
                    assert_eq!(deficits[(lost | more) as usize], 0, "{named}, {more:b}");
                }
            }
            let chosen = survival.choose(left(lost));
            match chosen {
                Ok(chosen) => {
                    assert_eq!(chosen.len(), k, "{named}");
                    assert_eq!(
                        rank_of(chosen.into_iter().map(vector).collect()),
                        k,
                        "{named}"
                    );
                }
                Err(error) => {
                    assert!(deficit > 0, "{named}");
                    let (present, needed) = (k - deficit, k);
                    assert_eq!(error, CodecError::TooFewShards { present, needed });
                }
            }
        }
        let t = survival.guaranteed();
        let of_size = |size: usize| {
            let lost = 0..1_u32 << n;
            lost.filter(move |lost| lost.count_ones() as usize == size)
        };
        let survived = |size: usize| of_size(size).filter(|&lost| deficits[lost as usize] == 0);
        assert_eq!(survived(t).count(), of_size(t).count(), "{k}+{m}");
        let beyond = (
            survived(t + 1).count() as u64,
            of_size(t + 1).count() as u64,
        );
        assert!(beyond.0 < beyond.1, "{k}+{m}: t could be larger");
        assert_eq!(survival.beyond_guaranteed(), Some(beyond), "{k}+{m}");
        assert_eq!(
            survival.losses_tolerated(|_| true),
            survival.after(0),
            "{k}+{m}"
        );
    }
}

#[test]
fn shards_that_add_nothing_are_left_out_and_all_that_help_are_named() {
    let (survival, rows) = random(4, 4);
    // Each row of 4+4 that survives any 3 losses has three ones: it adds nothing to these three shards.
    let row = rows[0];
    assert_eq!(row.count_ones(), 3);
    let in_row: Vec<usize> = (0..4).filter(|shard| row >> shard & 1 == 1).collect();
    let missing = (0..4).find(|shard| row >> shard & 1 == 0).expect("one");
    assert_eq!(survival.useful(&in_row, [4]), []);
    assert_eq!(survival.useful(&in_row, [4, missing, 5]), [missing]);
    assert_eq!(survival.useful(&in_row, [4, 5, missing]), [5]);
    assert_eq!(survival.useful(&[], [4, in_row[0]]), [4, in_row[0]]);
    assert_eq!(survival.useful(&[0, 1, 2, 3], [4, 5]), []);
}

#[test]
fn other_codes_count() {
    let survival = Survival::of(CodeId::RS_FFT, Geometry::new(3, 2).expect("valid"));
    assert_eq!(
        (survival.guaranteed(), survival.beyond_guaranteed()),
        (2, None)
    );
    for lost in 0..1_u32 << 5 {
        let tolerated = survival.losses_tolerated(|shard| lost >> shard & 1 == 0);
        assert_eq!(
            tolerated,
            2 - i16::try_from(lost.count_ones()).expect("small")
        );
    }
    assert_eq!(survival.useful(&[4], [3, 2, 1]), [3, 2]);
    assert_eq!([0, 1, 2, 3].map(|lost| survival.after(lost)), [2, 1, 0, -1]);
}

#[test]
fn records_that_no_stripe_can_have_are_counted_and_promise_nothing() {
    for number in [3, 3 | 255 << 16, u64::MAX - 0xfffc] {
        for (data, parity) in [(1, 1), (255, 255), (4, 0), (0, 4), (60, 60), (4, 4)] {
            let survival = Survival::of_record(number, data, parity);
            assert!(survival.guaranteed() <= parity.into());
            assert!(survival.losses_tolerated(|_| false) <= i16::from(parity));
            assert!(survival.rank(0..256) <= data.into());
            let beyond = survival.beyond_guaranteed();
            assert!(beyond.is_none_or(|(survived, all)| survived <= all));
        }
    }
}
