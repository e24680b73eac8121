//! Many messages by one call: each comes out as it would alone.

use cauchyfs_codec::{
    engines,
    rateless::{Bulk, Form, Method, Numbers, RandomCodec, RatelessError},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    SEED, code,
    support::{Threads, best, coded, decoded, random_packets},
};

/// Bytes of a cache line, to which stores past the caches are aligned.
const LINE_BYTES: usize = 64;

/// Content of targets before a call.
const STALE: u8 = 0xEE;

/// Messages with their packets, in the layout of bulk calls.
struct Messages {
    numbers: Vec<u64>,
    packets: Vec<u8>,
    received: Vec<Vec<(u64, Vec<u8>)>>,
}

impl Messages {
    fn new(
        rng: &mut StdRng,
        codec: RandomCodec<'_>,
        (messages, per_message, bytes): (usize, usize, usize),
        mut numbers: impl FnMut(&mut StdRng) -> Vec<u64>,
    ) -> Self {
        let mut all = Self {
            numbers: Vec::new(),
            packets: Vec::new(),
            received: Vec::new(),
        };
        for _ in 0..messages {
            let numbers = numbers(rng);
            assert_eq!(numbers.len(), per_message);
            let sources = random_packets(rng, codec.code().source_packets(), bytes);
            let received = coded(codec, &numbers, &sources);
            all.numbers.extend(numbers);
            for packet in &received {
                all.packets.extend(&packet.1);
            }
            all.received.push(received);
        }
        all
    }

    /// Asserts that a call decodes each message as it is decoded alone. Returns their ranks.
    fn check(&self, codec: RandomCodec<'_>, bulk: &Bulk<'_>, seed: u64) -> Vec<usize> {
        self.check_at(0, codec, bulk, seed)
    }

    /// Does so with targets that begin so many bytes behind a cache line.
    fn check_at(
        &self,
        shift: usize,
        codec: RandomCodec<'_>,
        bulk: &Bulk<'_>,
        seed: u64,
    ) -> Vec<usize> {
        let source_packets = codec.code().source_packets();
        let message_bytes = source_packets * bulk.packet_bytes;
        let mut room = vec![STALE; bulk.messages * message_bytes + LINE_BYTES + shift];
        let line = room.as_ptr().align_offset(LINE_BYTES);
        let targets = &mut room[line + shift..][..bulk.messages * message_bytes];
        let ranks = codec.decode_bulk(bulk, targets).expect("buffers fit");
        assert_eq!(ranks.len(), bulk.messages);
        for (message, received) in self.received.iter().enumerate() {
            let found = &targets[message * message_bytes..][..message_bytes];
            match decoded(codec, Method::Words, received, bulk.packet_bytes) {
                Ok(expected) => {
                    assert_eq!(ranks[message], source_packets, "seed {seed:#x}");
                    assert!(found == expected.concat(), "seed {seed:#x}: {message}");
                }
                Err(RatelessError::Rank { rank, .. }) => {
                    assert_eq!(ranks[message], rank, "seed {seed:#x}: {message}");
                    assert!(found.iter().all(|&byte| byte == STALE), "seed {seed:#x}");
                }
                Err(error) => panic!("seed {seed:#x}: {error}"),
            }
        }
        ranks
    }
}

#[test]
fn messages_with_different_numbers_are_decoded_as_each_would_be_alone() {
    let threads = Threads(3);
    for (case, source_packets) in [2, 31, 32, 33, 64, 65, 100].into_iter().enumerate() {
        for (messages, bytes) in [(0, 8), (1, 1024), (5, 0), (7, 1), (30, 100), (101, 130)] {
            let seed = SEED + 4000 + case as u64;
            let mut rng = StdRng::seed_from_u64(seed);
            let code = code(Form::Systematic, source_packets, rng.random());
            // One more packet than needed: a third of the messages lacks rank.
            let per_message = source_packets + 1;
            let draw = |rng: &mut StdRng| (0..per_message).map(|_| rng.random()).collect();
            let codec = RandomCodec::new(code, best());
            let size = (messages, per_message, bytes);
            let all = Messages::new(&mut rng, codec, size, draw);
            let bulk = Bulk {
                messages,
                packets_per_message: per_message,
                packet_bytes: bytes,
                numbers: Numbers::Different(&all.numbers),
                packets: &all.packets,
            };
            all.check(codec.with_workers(&threads), &bulk, seed);
            for engine in engines() {
                all.check(RandomCodec::new(code, engine), &bulk, seed);
            }
        }
    }
}

/// Batches of every size, of messages of every rank, up to one packet more than lanes have rows.
#[test]
fn small_messages_are_decoded_together_whatever_their_rank_is() {
    let (mut complete, mut lacking) = (0, 0);
    for case in 0..60 {
        let seed = SEED + 6000 + case;
        let mut rng = StdRng::seed_from_u64(seed);
        let form = super::FORMS[rng.random_range(0..2)];
        let code = code(form, rng.random_range(2..=32), rng.random());
        let messages = rng.random_range(1..=20);
        let per_message = [rng.random_range(0..40), 64, 65][rng.random_range(0..3)];
        let bytes = [1, 127, 128, 129, 300][rng.random_range(0..5)];
        // Few numbers to draw from leave some messages without full rank.
        let most = rng.random_range(20..60);
        let draw = |rng: &mut StdRng| {
            let numbers = (0..per_message).map(|_| rng.random_range(0..most));
            numbers.collect()
        };
        let codec = RandomCodec::new(code, best());
        let size = (messages, per_message, bytes);
        let all = Messages::new(&mut rng, codec, size, draw);
        let bulk = Bulk {
            messages,
            packets_per_message: per_message,
            packet_bytes: bytes,
            numbers: Numbers::Different(&all.numbers),
            packets: &all.packets,
        };
        for engine in engines() {
            let ranks = all.check(RandomCodec::new(code, engine), &bulk, seed);
            let full = |rank: &&usize| **rank == code.source_packets();
            complete += ranks.iter().filter(full).count();
            lacking += ranks.len() - ranks.iter().filter(full).count();
        }
    }
    assert!(complete > 100 && lacking > 100, "{complete} {lacking}");
}

/// So much that results are written past the caches, at aligned and at odd addresses. The last piece of a thread is shorter.
#[test]
fn messages_beyond_the_cache_are_decoded_as_each_would_be_alone() {
    let threads = Threads(3);
    let mut rng = StdRng::seed_from_u64(SEED + 7000);
    let code = code(Form::Plain, 32, rng.random());
    for bytes in [1024, 1023] {
        let size = (270, 33, bytes);
        let draw = |rng: &mut StdRng| (0..33).map(|_| rng.random()).collect();
        let all = Messages::new(&mut rng, RandomCodec::new(code, best()), size, draw);
        let bulk = Bulk {
            messages: 270,
            packets_per_message: 33,
            packet_bytes: bytes,
            numbers: Numbers::Different(&all.numbers),
            packets: &all.packets,
        };
        for engine in engines() {
            let codec = RandomCodec::new(code, engine);
            for shift in [0, 13] {
                all.check_at(shift, codec, &bulk, SEED + 7000);
            }
            all.check(codec.with_workers(&threads), &bulk, SEED + 7000);
        }
    }
}

#[test]
fn messages_with_equal_numbers_are_decoded_by_one_elimination() {
    let threads = Threads(3);
    for (case, source_packets) in [2, 32, 65].into_iter().enumerate() {
        for extra in [0, 10] {
            let seed = SEED + 5000 + case as u64;
            let mut rng = StdRng::seed_from_u64(seed);
            let code = code(Form::Plain, source_packets, rng.random());
            let per_message = source_packets + extra;
            let numbers: Vec<u64> = (0..per_message).map(|_| rng.random()).collect();
            let codec = RandomCodec::new(code, best());
            let size = (9, per_message, 70);
            let all = Messages::new(&mut rng, codec, size, |_| numbers.clone());
            let bulk = Bulk {
                messages: 9,
                packets_per_message: per_message,
                packet_bytes: 70,
                numbers: Numbers::Equal(&numbers),
                packets: &all.packets,
            };
            all.check(codec, &bulk, seed);
            all.check(codec.with_workers(&threads), &bulk, seed);
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_by_name() {
    let codec = RandomCodec::new(code(Form::Plain, 2, 0), best());
    let (numbers, packets) = ([0; 6], [0; 24]);
    let good = Bulk {
        messages: 2,
        packets_per_message: 3,
        packet_bytes: 4,
        numbers: Numbers::Different(&numbers),
        packets: &packets,
    };
    assert_eq!(codec.decode_bulk(&good, &mut [0; 16]), Ok(vec![1, 1]));
    let few = Numbers::Different(&numbers[..5]);
    let cases = [
        (
            Bulk {
                numbers: few,
                ..good
            },
            16,
            "5 entries of numbers given, 6 needed",
        ),
        (
            Bulk {
                numbers: Numbers::Equal(&numbers),
                ..good
            },
            16,
            "6 entries of numbers given, 3 needed",
        ),
        (
            Bulk {
                packets: &packets[1..],
                ..good
            },
            16,
            "23 bytes of packets given, 24 needed",
        ),
        (good, 17, "17 bytes of targets given, 16 needed"),
    ];
    for (bulk, target_bytes, text) in cases {
        let outcome = codec.decode_bulk(&bulk, &mut vec![0; target_bytes]);
        assert_eq!(outcome.expect_err("does not fit").to_string(), text);
    }
    let huge = Bulk {
        messages: usize::MAX,
        ..good
    };
    assert!(codec.decode_bulk(&huge, &mut []).is_err());
}
