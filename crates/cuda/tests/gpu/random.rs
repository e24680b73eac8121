//! Messages of the random code on a real GPU, against the decoder of the CPU.

use cauchyfs_codec::{
    rateless::{Bulk, Form, Numbers, RandomCode, RandomCodec, RatelessError},
    select,
};
use cauchyfs_cuda::{Device, Gpu, RandomDecoder, RandomError};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::gpu;

/// Content of targets before a call.
const STALE: u8 = 0xEE;

const SEED: u64 = 0x6B02_2026;

/// Messages with their packets, as bulk calls take them.
struct Messages {
    code: RandomCode,
    is_equal: bool,
    /// The number of messages, of packets of each, and of bytes of a packet.
    size: (usize, usize, usize),
    numbers: Vec<u64>,
    packets: Vec<u8>,
}

impl Messages {
    /// Returns messages of noise. Some of their numbers are equal, so that ranks are short.
    fn new(
        seed: u64,
        form: Form,
        sources: usize,
        size: (usize, usize, usize),
        is_equal: bool,
    ) -> Self {
        let (messages, per_message, _) = size;
        let mut rng = StdRng::seed_from_u64(seed);
        let code = RandomCode::new(form, sources, rng.random()).expect("valid");
        let lists = if is_equal { 1 } else { messages };
        let most = 20 * per_message as u64;
        let draw = |_| match rng.random_range(0..4) {
            0 => rng.random(),
            _ => rng.random_range(0..most),
        };
        let numbers = (0..lists * per_message).map(draw).collect();
        Self::with_numbers(&mut rng, code, size, is_equal, numbers)
    }

    /// Returns one message of noise, whose numbers differ from each other.
    fn one(seed: u64, sources: usize, packets: usize, bytes: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let code = RandomCode::new(Form::Plain, sources, rng.random()).expect("valid");
        let first = rng.random_range(0..1 << 40);
        let numbers = (first..first + packets as u64).collect();
        Self::with_numbers(&mut rng, code, (1, packets, bytes), false, numbers)
    }

    fn with_numbers(
        rng: &mut StdRng,
        code: RandomCode,
        size: (usize, usize, usize),
        is_equal: bool,
        numbers: Vec<u64>,
    ) -> Self {
        let (messages, per_message, bytes) = size;
        let codec = RandomCodec::new(code, select("auto").expect("everywhere"));
        let mut packets = vec![0; messages * per_message * bytes];
        let mut content = vec![0; code.source_packets() * bytes];
        rng.fill_bytes(&mut content);
        for message in 0..messages {
            // Only a few bytes change from message to message: noise for all would take long.
            let change = rng.random_range(0..content.len());
            content[change] ^= 0x5A;
            let list = if is_equal { 0 } else { message };
            let numbers = &numbers[list * per_message..][..per_message];
            let sources: Vec<&[u8]> = content.chunks(bytes).collect();
            let packets = &mut packets[message * per_message * bytes..][..per_message * bytes];
            let mut targets: Vec<&mut [u8]> = packets.chunks_mut(bytes).collect();
            codec.encode(numbers, &sources, &mut targets).expect("fits");
        }
        Self {
            code,
            is_equal,
            size,
            numbers,
            packets,
        }
    }

    fn bulk<'m>(&'m self, packets: &'m [u8]) -> Bulk<'m> {
        Bulk {
            messages: self.size.0,
            packets_per_message: self.size.1,
            packet_bytes: self.size.2,
            numbers: if self.is_equal {
                Numbers::Equal(&self.numbers)
            } else {
                Numbers::Different(&self.numbers)
            },
            packets,
        }
    }

    fn stale(&self) -> Vec<u8> {
        vec![STALE; self.size.0 * self.code.source_packets() * self.size.2]
    }

    fn expected(&self) -> (Vec<usize>, Vec<u8>) {
        let codec = RandomCodec::new(self.code, select("auto").expect("everywhere"));
        let mut targets = self.stale();
        let bulk = self.bulk(&self.packets);
        let ranks = codec.decode_bulk(&bulk, &mut targets).expect("fits");
        (ranks, targets)
    }

    /// Asserts that a GPU decodes as the CPU does, from memory that is pinned and from memory that is not. Returns how many
    /// messages were complete.
    fn check(&self, gpu: &Gpu, decoder: &mut RandomDecoder, what: &str) -> usize {
        let expected = self.expected();
        let mut packets = self.packets.clone();
        for is_pinned in [false, true] {
            let mut targets = self.stale();
            if is_pinned {
                gpu.pin(&mut packets).expect("may be pinned");
                gpu.pin(&mut targets).expect("may be pinned");
            }
            let ranks = decoder.decode(self.code, &self.bulk(&packets), &mut targets);
            if is_pinned {
                gpu.unpin(&mut packets).expect("was pinned");
                gpu.unpin(&mut targets).expect("was pinned");
            }
            let what = format!("{what}, pinned: {is_pinned}");
            let ranks = ranks.unwrap_or_else(|error| panic!("{error}: {what}"));
            assert_eq!(ranks, expected.0, "{what}");
            assert!(targets == expected.1, "{what}");
        }
        let sources = self.code.source_packets();
        expected.0.iter().filter(|rank| **rank == sources).count()
    }
}

#[test]
fn messages_of_every_size_are_decoded_and_short_ranks_are_told() {
    let Some(gpu) = gpu() else { return };
    let (mut complete, mut all) = (0, 0);
    let mut decoder = gpu.random_decoder().expect("a decoder");
    for sources in [2, 3, 8, 31, 32, 33, 63, 64, 65, 100, 200, 512] {
        for (messages, extra, bytes) in [
            (1, 0, 1024),
            (9, 2, 36),
            (70, 1, 7),
            (33, 40, 129),
            (5, 3, 384),
        ] {
            for form in [Form::Plain, Form::Systematic] {
                let seed = SEED + sources as u64;
                let size = (messages, sources + extra, bytes);
                let messages = Messages::new(seed, form, sources, size, extra == 2);
                let what = format!("seed {seed:#x}, k={sources}, {size:?}, {form:?}");
                complete += messages.check(&gpu, &mut decoder, &what);
                all += size.0;
            }
        }
    }
    assert!(complete > all / 10 && complete < all, "{complete} of {all}");
}

/// Small enough for tools that watch every access to memory.
#[test]
fn each_kernel_decodes_a_few_messages_whose_packets_end_within_a_word() {
    let Some(gpu) = gpu() else { return };
    let mut decoder = gpu.random_decoder().expect("a decoder");
    for sources in [5, 32, 33, 64, 65, 130, 1030] {
        let seed = SEED + 4000 + sources as u64;
        for bytes in [1, 130, 519] {
            let message = Messages::one(seed, sources, sources + 12, bytes);
            let what = format!("seed {seed:#x}, k={sources}, {bytes} bytes");
            assert_eq!(message.check(&gpu, &mut decoder, &what), 1, "{what}");
        }
        let size = (3, sources + 2, 37);
        let messages = Messages::new(seed, Form::Systematic, sources, size, false);
        messages.check(&gpu, &mut decoder, &format!("seed {seed:#x}, {size:?}"));
    }
    let size = (6, 50, 259);
    let messages = Messages::new(SEED, Form::Plain, 33, size, true);
    messages.check(&gpu, &mut decoder, "equal numbers");
    let code = messages.code;
    let resident = gpu.resident_messages(code, &messages.bulk(&messages.packets));
    let mut resident = resident.expect("there is room");
    assert!(!resident.decode(2).expect("they are decoded").is_zero());
}

#[test]
fn large_messages_are_decoded_on_the_gpu_or_with_the_cpu_s_help() {
    let Some(gpu) = gpu() else { return };
    let mut decoder = gpu.random_decoder().expect("a decoder");
    for (sources, packets, bytes) in [
        (1024, 1034, 1024),
        (1000, 1100, 333),
        (1025, 1040, 1024),
        (4096, 4106, 64),
        (700, 2000, 100),
        (4, 14, (9 << 20) + 3),
        (2, 40_000, 5),
    ] {
        let seed = SEED + 1000 + sources as u64;
        let message = Messages::one(seed, sources, packets, bytes);
        let what = format!("seed {seed:#x}, k={sources}, {packets} packets of {bytes} bytes");
        assert_eq!(message.check(&gpu, &mut decoder, &what), 1, "{what}");
    }
}

#[test]
fn more_messages_than_fit_the_gpu_at_once_are_decoded() {
    let Some(gpu) = gpu() else { return };
    let mut decoder = gpu.random_decoder().expect("a decoder");
    for (messages, sources, bytes, is_equal) in [
        (150_000, 32, 16, false),
        (70_000, 32, 256, true),
        (20_000, 32, 128, false),
        (3000, 200, 64, false),
    ] {
        let seed = SEED + 2000;
        let size = (messages, sources + 4, bytes);
        let messages = Messages::new(seed, Form::Plain, sources, size, is_equal);
        let complete = messages.check(&gpu, &mut decoder, &format!("seed {seed:#x}, {size:?}"));
        assert!(complete > size.0 / 10 || is_equal, "{complete}");
    }
}

#[test]
fn messages_without_packets_or_bytes_and_wrong_lengths_are_told() {
    let Some(gpu) = gpu() else { return };
    let mut decoder = gpu.random_decoder().expect("a decoder");
    for size in [(0, 40, 8), (3, 0, 8), (3, 40, 0)] {
        let code = RandomCode::new(Form::Plain, 32, 1).expect("valid");
        let numbers: Vec<u64> = (0..size.0 as u64 * size.1 as u64).collect();
        let messages = Messages {
            code,
            is_equal: false,
            size,
            numbers,
            packets: vec![1; size.0 * size.1 * size.2],
        };
        messages.check(&gpu, &mut decoder, &format!("{size:?}"));
        let resident = gpu.resident_messages(code, &messages.bulk(&messages.packets));
        let refused = resident.err().map(|error| error.to_string());
        let said = refused.is_some_and(|error| error.contains("no bytes"));
        assert!(said, "{size:?}");
    }
    let messages = Messages::new(1, Form::Plain, 8, (2, 9, 16), false);
    let mut short = vec![STALE; 8 * 16];
    let refused = decoder.decode(messages.code, &messages.bulk(&messages.packets), &mut short);
    assert_eq!(
        refused,
        Err(RandomError::Messages(RatelessError::BulkLength {
            kind: "targets",
            unit: "bytes",
            seen: 128,
            needed: 256
        }))
    );
    assert!(short.iter().all(|&byte| byte == STALE));
}

#[test]
fn decoders_side_by_side_do_not_disturb_each_other() {
    let Some(gpu) = gpu() else { return };
    // Those of the threads find the kernels loaded, and have been on no device before.
    gpu.random_decoder().expect("a decoder");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let gpu = &gpu;
            scope.spawn(move || {
                let mut decoder = gpu.random_decoder().expect("a decoder");
                for round in 0..5 {
                    let seed = SEED + 3000 + 10 * thread + round;
                    let messages = Messages::new(seed, Form::Plain, 40, (300, 44, 500), false);
                    messages.check(gpu, &mut decoder, &format!("seed {seed:#x}"));
                }
            });
        }
    });
}
