//! Messages, and the ways to decode them.

use cauchyfs_codec::{
    Engine, WorkerPool, engines,
    rateless::{IncrementalDecoder, Method, RandomCode, RandomCodec, RatelessError},
    select,
};
use rand::{RngExt, rngs::StdRng};

/// Content of targets before a call.
const STALE: u8 = 0xEE;

/// Threads of their own for every call.
#[derive(Debug)]
pub(crate) struct Threads(pub(crate) usize);

impl WorkerPool for Threads {
    fn width(&self) -> usize {
        self.0
    }

    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for part in 0..parts {
                scope.spawn(move || work(part));
            }
        });
    }
}

pub(crate) fn best() -> &'static dyn Engine {
    select("auto").expect("always there")
}

pub(crate) fn random_packets(rng: &mut StdRng, count: usize, bytes: usize) -> Vec<Vec<u8>> {
    let mut packets = vec![vec![0; bytes]; count];
    for packet in &mut packets {
        rng.fill(&mut packet[..]);
    }
    packets
}

pub(crate) fn slices(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    packets.iter().map(|packet| &packet[..]).collect()
}

pub(crate) fn slices_mut(packets: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    packets.iter_mut().map(|packet| &mut packet[..]).collect()
}

/// Returns packets with these numbers.
pub(crate) fn coded(
    codec: RandomCodec<'_>,
    numbers: &[u64],
    sources: &[Vec<u8>],
) -> Vec<(u64, Vec<u8>)> {
    let mut packets = vec![vec![STALE; sources[0].len()]; numbers.len()];
    codec
        .encode(numbers, &slices(sources), &mut slices_mut(&mut packets))
        .expect("packets fit");
    numbers.iter().copied().zip(packets).collect()
}

/// Calls a decoder with targets for the source packets, and returns these. If it fails, they must be untouched.
pub(crate) fn targets_of(
    code: RandomCode,
    bytes: usize,
    decode: impl FnOnce(&mut [&mut [u8]]) -> Result<(), RatelessError>,
) -> Result<Vec<Vec<u8>>, RatelessError> {
    let mut targets = vec![vec![STALE; bytes]; code.source_packets()];
    let outcome = decode(&mut slices_mut(&mut targets));
    if outcome.is_err() {
        let is_stale = |target: &Vec<u8>| target.iter().all(|&byte| byte == STALE);
        assert!(targets.iter().all(is_stale), "{code:?}: {outcome:?}");
    }
    outcome.map(|()| targets)
}

/// Returns the result of decoding by one method.
pub(crate) fn decoded(
    codec: RandomCodec<'_>,
    method: Method,
    received: &[(u64, Vec<u8>)],
    bytes: usize,
) -> Result<Vec<Vec<u8>>, RatelessError> {
    let received = received.iter();
    let received: Vec<(u64, &[u8])> = received.map(|(number, p)| (*number, &p[..])).collect();
    targets_of(codec.code(), bytes, |targets| {
        codec.decode(method, &received, targets)
    })
}

/// Returns the result of decoding packet by packet.
pub(crate) fn decoded_incrementally(
    codec: RandomCodec<'_>,
    received: &[(u64, Vec<u8>)],
    bytes: usize,
) -> Result<Vec<Vec<u8>>, RatelessError> {
    let mut decoder = IncrementalDecoder::new(codec, bytes);
    for (number, packet) in received {
        let before = decoder.rank();
        let is_new = decoder.add(*number, packet).expect("packets fit");
        assert_eq!(decoder.rank(), before + usize::from(is_new));
    }
    targets_of(codec.code(), bytes, |targets| decoder.finish(targets))
}

/// The result of one way to decode, and its name.
type Outcome = (String, Result<Vec<Vec<u8>>, RatelessError>);

/// Decodes in every way there is.
pub(crate) fn decoded_in_all_ways(
    code: RandomCode,
    received: &[(u64, Vec<u8>)],
    bytes: usize,
) -> Vec<Outcome> {
    let threads = Threads(3);
    let alone = RandomCodec::new(code, best());
    let together = alone.with_workers(&threads);
    let methods = [
        Method::Serial,
        Method::Words,
        Method::Parts(1),
        Method::Parts(3),
        Method::Parts(1000),
    ];
    let mut outcomes = Vec::new();
    for method in methods {
        let outcome = decoded(together, method, received, bytes);
        outcomes.push((format!("{method:?}"), outcome));
    }
    for engine in engines() {
        let codec = RandomCodec::new(code, engine);
        let outcome = decoded(codec, Method::Tables, received, bytes);
        outcomes.push((format!("Tables on {}", engine.name()), outcome));
    }
    let outcome = decoded(together, Method::Tables, received, bytes);
    outcomes.push(("Tables on threads".to_owned(), outcome));
    let outcome = decoded_incrementally(alone, received, bytes);
    outcomes.push(("incremental".to_owned(), outcome));
    outcomes
}
