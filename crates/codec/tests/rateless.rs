//! The random code: every decoder does what the oracle does.

use cauchyfs_codec::rateless::{
    Form, IncrementalDecoder, LEAST_PACKETS, MOST_PACKETS, Method, RandomCode, RandomCodec,
    RatelessError,
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use support::{
    Threads, best, coded, decoded, decoded_in_all_ways, decoded_incrementally, random_packets,
    slices, slices_mut,
};

#[path = "rateless/bulk.rs"]
mod bulk;
#[path = "rateless/engines.rs"]
mod engines;
#[path = "rateless/oracle.rs"]
mod oracle;
#[path = "rateless/support.rs"]
mod support;

const SEED: u64 = 0x2A7E_1E55;

/// Numbers of source packets around the edges of words and tables.
const EDGES: [usize; 9] = [2, 3, 31, 32, 63, 64, 65, 127, 129];

/// Lengths around the edges of words and strips.
const LENGTHS: [usize; 9] = [0, 1, 7, 8, 63, 64, 65, 1023, 1024 + 37];

const FORMS: [Form; 2] = [Form::Plain, Form::Systematic];

fn code(form: Form, source_packets: usize, seed: u64) -> RandomCode {
    RandomCode::new(form, source_packets, seed).expect("valid")
}

/// Asserts that every decoder gives what the oracle gives.
fn check(seed: u64, code: RandomCode, received: &[(u64, Vec<u8>)], bytes: usize) {
    let expected = oracle::decode(code, received).map_err(|rank| RatelessError::Rank {
        rank,
        needed: code.source_packets(),
    });
    let numbers: Vec<u64> = received.iter().map(|packet| packet.0).collect();
    for (way, outcome) in decoded_in_all_ways(code, received, bytes) {
        let is_equal = outcome == expected;
        assert!(
            is_equal,
            "seed {seed:#x}, {way}, {code:?}, {bytes} bytes, {numbers:?}: {:?} instead of {:?}",
            outcome.map(|_| "decoded"),
            expected.as_ref().map(|_| "decoded"),
        );
    }
}

#[test]
fn every_decoder_gives_the_source_at_every_edge_of_count_and_length() {
    for (case, &source_packets) in EDGES.iter().enumerate() {
        for (length, &bytes) in LENGTHS.iter().enumerate() {
            let seed = SEED + (100 * case + length) as u64;
            let mut rng = StdRng::seed_from_u64(seed);
            let code = code(FORMS[(case + length) % 2], source_packets, rng.random());
            let sources = random_packets(&mut rng, source_packets, bytes);
            let count = source_packets + 12;
            let numbers: Vec<u64> = (0..count).map(|_| rng.random_range(0..200)).collect();
            let received = coded(RandomCodec::new(code, best()), &numbers, &sources);
            check(seed, code, &received, bytes);
            if let Ok(decoded) = oracle::decode(code, &received) {
                assert!(decoded == sources, "seed {seed:#x}");
            }
        }
    }
}

/// Too large for the oracle and the base case: what is decoded must be what was encoded.
#[test]
fn the_most_packets_are_decoded_by_all_methods_but_the_base_case() {
    let mut rng = StdRng::seed_from_u64(SEED);
    let threads = Threads(2);
    for (form, bytes) in [(Form::Plain, 1), (Form::Systematic, 100)] {
        let code = code(form, MOST_PACKETS, rng.random());
        let codec = RandomCodec::new(code, best());
        let sources = random_packets(&mut rng, MOST_PACKETS, bytes);
        let first = MOST_PACKETS as u64 / 2;
        let numbers: Vec<u64> = (first..first + MOST_PACKETS as u64 + 20).collect();
        let received = coded(codec, &numbers, &sources);
        for method in [Method::Words, Method::Parts(2), Method::Tables] {
            let decoded = decoded(codec.with_workers(&threads), method, &received, bytes);
            assert!(decoded.as_ref() == Ok(&sources), "{form:?} {method:?}");
        }
        let decoded = decoded_incrementally(codec, &received, bytes);
        assert!(decoded.as_ref() == Ok(&sources), "{form:?}");
    }
}

#[test]
fn sets_without_full_rank_are_refused_by_all_decoders_with_the_same_rank() {
    let mut refused = 0;
    for case in 0..60 {
        let seed = SEED + 1000 + case;
        let mut rng = StdRng::seed_from_u64(seed);
        let source_packets = EDGES[rng.random_range(0..EDGES.len())];
        let code = code(FORMS[rng.random_range(0..2)], source_packets, rng.random());
        let sources = random_packets(&mut rng, source_packets, 9);
        // Too few, or many of which most are named again and again.
        let known = rng.random_range(0..source_packets);
        let mut numbers: Vec<u64> = (0..known).map(|_| rng.random()).collect();
        while known > 0 && rng.random_bool(0.95) {
            numbers.push(numbers[rng.random_range(0..known)]);
        }
        numbers.shuffle(&mut rng);
        let received = coded(RandomCodec::new(code, best()), &numbers, &sources);
        check(seed, code, &received, 9);
        refused += usize::from(oracle::decode(code, &received).is_err());
    }
    assert_eq!(refused, 60, "fewer rows than source packets");
}

#[test]
fn packets_beyond_the_first_k_are_used_where_those_lack_rank() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for source_packets in EDGES {
        let code = code(Form::Plain, source_packets, SEED);
        let codec = RandomCodec::new(code, best());
        let sources = random_packets(&mut rng, source_packets, 33);
        let mut numbers = vec![7; source_packets];
        numbers.extend(0..source_packets as u64 + 30);
        let received = coded(codec, &numbers, &sources);
        check(SEED, code, &received, 33);
        let decoded = decoded(codec, Method::Tables, &received, 33);
        assert!(decoded.as_ref() == Ok(&sources), "k = {source_packets}");
        // All equal: of rank 1, or 0 if the row happens to be zero.
        check(SEED, code, &received[..source_packets], 33);
    }
}

/// Numbers that a damaged or hostile header might hold.
#[test]
fn no_decoder_panics_on_any_numbers_and_all_agree() {
    for case in 0..200 {
        let seed = SEED + 2000 + case;
        let mut rng = StdRng::seed_from_u64(seed);
        let source_packets = rng.random_range(LEAST_PACKETS..=80);
        let code = code(FORMS[rng.random_range(0..2)], source_packets, rng.random());
        let bytes = rng.random_range(0..20);
        let count = rng.random_range(0..2 * source_packets);
        let mut numbers: Vec<u64> = Vec::new();
        for _ in 0..count {
            numbers.push(match rng.random_range(0..5) {
                0 => rng.random_range(0..source_packets as u64),
                1 => u64::MAX - rng.random_range(0..3),
                2 if !numbers.is_empty() => numbers[rng.random_range(0..numbers.len())],
                3 => u64::from(rng.random::<u32>()) << 32,
                _ => rng.random(),
            });
        }
        let sources = random_packets(&mut rng, source_packets, bytes);
        let received = coded(RandomCodec::new(code, best()), &numbers, &sources);
        check(seed, code, &received, bytes);
    }
}

#[test]
fn encoding_is_the_sum_that_the_row_calls_for() {
    for case in 0..40 {
        let seed = SEED + 3000 + case;
        let mut rng = StdRng::seed_from_u64(seed);
        let source_packets = rng.random_range(LEAST_PACKETS..=300);
        let code = code(FORMS[rng.random_range(0..2)], source_packets, rng.random());
        let bytes = LENGTHS[rng.random_range(0..LENGTHS.len())];
        let sources = random_packets(&mut rng, source_packets, bytes);
        let count = rng.random_range(0..50);
        let numbers: Vec<u64> = (0..count).map(|_| rng.random_range(0..400)).collect();
        let threads = Threads(2);
        let codec = RandomCodec::new(code, best()).with_workers(&threads);
        for (number, packet) in coded(codec, &numbers, &sources) {
            let expected = oracle::encode(code, number, &sources);
            assert!(packet == expected, "seed {seed:#x}, packet {number}");
        }
    }
}

#[test]
fn the_systematic_form_begins_with_the_source_and_goes_on_as_the_plain_form() {
    for source_packets in EDGES {
        let [plain, systematic] = FORMS.map(|form| code(form, source_packets, SEED));
        let numbers: Vec<u64> = (0..2 * source_packets as u64).collect();
        let (plain, systematic) = (plain.rows(&numbers), systematic.rows(&numbers));
        for row in 0..source_packets {
            let set = (0..source_packets).filter(|&column| systematic.at(row, column));
            assert_eq!(set.collect::<Vec<_>>(), [row]);
        }
        for row in source_packets..2 * source_packets {
            assert_eq!(plain.row(row), systematic.row(row));
        }
    }
}

/// Four of every ten messages of n = k are short of rank; the exact share is the product of (1 − 2⁻ⁱ).
#[test]
fn as_many_messages_are_complete_as_random_rows_would_make() {
    const MESSAGES: u32 = 20_000;
    for (source_packets, extra) in [(2, 0), (2, 3), (20, 0), (20, 2), (65, 1)] {
        let count = source_packets + extra;
        let exact: f64 = (extra + 1..=count)
            .map(|i| 1.0 - 0.5f64.powi(i32::try_from(i).expect("small")))
            .product();
        let code = code(Form::Plain, source_packets, SEED);
        let complete = (0..u64::from(MESSAGES))
            .filter(|message| {
                let mut rows = cauchyfs_codec::rateless::Echelon::new(code);
                let first = message * count as u64;
                (first..first + count as u64).for_each(|number| {
                    rows.add(number);
                });
                rows.is_complete()
            })
            .count();
        let complete = u32::try_from(complete).expect("at most all");
        let share = f64::from(complete) / f64::from(MESSAGES);
        // Five standard deviations of so many trials.
        let allowed = 5.0 * (exact * (1.0 - exact) / f64::from(MESSAGES)).sqrt();
        assert!(
            (share - exact).abs() < allowed,
            "k = {source_packets}, n = {count}: {share} instead of {exact}"
        );
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_by_name() {
    for seen in [0, 1, MOST_PACKETS + 1] {
        let error = RandomCode::new(Form::Plain, seen, 0).expect_err("no such code");
        assert!(
            matches!(error, RatelessError::SourcePackets { seen: named, .. } if named == seen),
            "{error}"
        );
    }
    let codec = RandomCodec::new(code(Form::Plain, 3, 0), best());
    let sources = vec![vec![1; 4]; 3];
    let mut packet = [0; 4];
    let error = codec.encode(&[0], &slices(&sources[..2]), &mut [&mut packet]);
    let text = error.expect_err("too few").to_string();
    assert_eq!(text, "2 source packets given, 3 needed");
    let error = codec.encode(&[0, 1], &slices(&sources), &mut [&mut packet]);
    let text = error.expect_err("too few").to_string();
    assert_eq!(text, "1 coded packets given, 2 needed");
    let error = codec.encode(&[0], &slices(&sources), &mut [&mut packet[..3]]);
    let text = error.expect_err("too short").to_string();
    assert_eq!(text, "a packet of 3 bytes among packets of 4 bytes");
    let mut targets = vec![vec![0; 4]; 3];
    let received = [(0, &[1, 2, 3, 4][..]), (1, &[1, 2, 3])];
    for method in [Method::Serial, Method::Words, Method::Tables] {
        let error = codec.decode(method, &received, &mut slices_mut(&mut targets));
        let text = error.expect_err("too short").to_string();
        assert_eq!(text, "a packet of 3 bytes among packets of 4 bytes");
        let error = codec.decode(method, &received[..1], &mut slices_mut(&mut targets[..2]));
        let text = error.expect_err("too few").to_string();
        assert_eq!(text, "2 source packets given, 3 needed");
    }
    let error = codec.decode(
        Method::Parts(0),
        &received[..1],
        &mut slices_mut(&mut targets),
    );
    assert_eq!(error, Err(RatelessError::NoParts));
    let mut decoder = IncrementalDecoder::new(codec, 4);
    let text = decoder.add(0, &[1; 5]).expect_err("too long").to_string();
    assert_eq!(text, "a packet of 5 bytes among packets of 4 bytes");
}
