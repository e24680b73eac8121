//! The kernels of the random code, against the decoder of the CPU.

use cauchyfs_codec::{
    rateless::{Bulk, Form, Numbers, RandomCode, RandomCodec},
    select,
};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::{Launch, Memory, Module, emulator};
use crate::ptx::{ProductShape, STRIP, SolveShape, mix};

/// Bytes that nothing was written over.
const STALE: u8 = 0xA5;

const SEED: u64 = 0x6702_2026;

/// Messages, and where they lie in the memory of the emulator.
struct Messages {
    code: RandomCode,
    /// One list of numbers for all messages, or one for each.
    numbers: Vec<u64>,
    is_equal: bool,
    count: usize,
    per_message: usize,
    packet_bytes: usize,
    packets: Vec<u8>,
}

impl Messages {
    /// Returns messages of noise. Their numbers are drawn from few, so that some are equal and ranks are short.
    fn new(
        seed: u64,
        (form, sources): (Form, usize),
        (messages, per_message, packet_bytes): (usize, usize, usize),
        is_equal: bool,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let code = RandomCode::new(form, sources, rng.random()).expect("valid");
        let lists = if is_equal { 1 } else { messages };
        let most = 2 * per_message as u64;
        let draw = |_| match rng.random_range(0..4) {
            0 => rng.random(),
            _ => rng.random_range(0..most),
        };
        let numbers: Vec<u64> = (0..lists * per_message).map(draw).collect();
        let codec = RandomCodec::new(code, select("scalar").expect("everywhere"));
        let mut packets = vec![0; messages * per_message * packet_bytes];
        for (message, packets) in packets.chunks_mut(per_message * packet_bytes).enumerate() {
            let mut content = vec![0; sources * packet_bytes];
            rng.fill_bytes(&mut content);
            let list = if is_equal { 0 } else { message };
            let numbers = &numbers[list * per_message..][..per_message];
            let sources: Vec<&[u8]> = content.chunks(packet_bytes).collect();
            let mut targets: Vec<&mut [u8]> = packets.chunks_mut(packet_bytes).collect();
            codec.encode(numbers, &sources, &mut targets).expect("fits");
        }
        Self {
            code,
            numbers,
            is_equal,
            count: messages,
            per_message,
            packet_bytes,
            packets,
        }
    }

    /// Returns the ranks and targets of the CPU's decoder.
    fn expected(&self) -> (Vec<usize>, Vec<u8>) {
        let codec = RandomCodec::new(self.code, select("scalar").expect("everywhere"));
        let sources = self.code.source_packets();
        let mut targets = vec![STALE; self.count * sources * self.packet_bytes];
        let bulk = Bulk {
            messages: self.count,
            packets_per_message: self.per_message,
            packet_bytes: self.packet_bytes,
            numbers: if self.is_equal {
                Numbers::Equal(&self.numbers)
            } else {
                Numbers::Different(&self.numbers)
            },
            packets: &self.packets,
        };
        let ranks = codec.decode_bulk(&bulk, &mut targets).expect("fits");
        (ranks, targets)
    }

    /// Returns the same of the kernels.
    fn found(&self, solve: SolveShape, is_backwards: bool) -> (Vec<usize>, Vec<u8>) {
        let sources = self.code.source_packets();
        let lists = self.numbers.len() / self.per_message;
        let pitch = self.packet_bytes.next_multiple_of(4);
        let words = sources << solve.shift;
        let mut bytes: Vec<u8> = self.numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut room = |len: usize| {
            let start = bytes.len();
            bytes.resize(start + len, STALE);
            start
        };
        let inverse_at = room(4 * lists * words);
        let order_at = room(4 * lists * sources);
        let ranks_at = room(4 * lists);
        let packets_at = room(self.count * self.per_message * pitch);
        let targets_at = room(self.count * sources * pitch);
        for (index, packet) in self.packets.chunks(self.packet_bytes).enumerate() {
            bytes[packets_at + index * pitch..][..packet.len()].copy_from_slice(packet);
        }
        let at = |offset: usize| Memory::START + offset as u64;
        let mut memory = Memory::new(bytes);
        let module = Module::for_random_code();
        let form = self.code.form();
        let plain = if form == Form::Systematic { sources } else { 0 };
        let mut parameters = vec![
            ("numbers", at(0)),
            ("inverse", at(inverse_at)),
            ("order", at(order_at)),
            ("ranks", at(ranks_at)),
            ("seed", mix(self.code.seed())),
            ("plain", plain as u64),
            ("sources", sources as u64),
            ("packets", self.per_message as u64),
        ];
        parameters.push(match solve.kernel {
            0 => ("messages", lists as u64),
            _ => ("shift", u64::from(solve.shift)),
        });
        let short = |n: usize| u32::try_from(n).expect("few");
        let launch = Launch {
            kernel: &module.kernels[solve.kernel].name,
            grid: [short(lists.div_ceil(solve.messages)), 1, 1],
            threads: short(solve.threads),
            shared_bytes: solve.shared_bytes,
            is_backwards,
            parameters: &parameters,
        };
        emulator::run(&module.text, &launch, &mut memory);
        let product = ProductShape::new(sources);
        let strips = self.packet_bytes.div_ceil(STRIP);
        let parameters = [
            ("packets", at(packets_at)),
            ("stride", (self.per_message * pitch) as u64),
            ("targets", at(targets_at)),
            ("inverse", at(inverse_at)),
            ("order", at(order_at)),
            ("ranks", at(ranks_at)),
            ("pitch", pitch as u64),
            ("target_pitch", pitch as u64),
            ("bytes", self.packet_bytes as u64),
            ("strips", strips as u64),
            ("sources", sources as u64),
            ("shift", u64::from(solve.shift)),
            ("apart", u64::from(!self.is_equal)),
        ];
        let kernel = &module.kernels[product.kernel];
        let launch = Launch {
            kernel: &kernel.name,
            grid: [self.count * strips, product.groups, 1].map(short),
            threads: short(kernel.threads),
            shared_bytes: product.shared_bytes,
            is_backwards,
            parameters: &parameters,
        };
        emulator::run(&module.text, &launch, &mut memory);
        let word = |at: usize| u32::from_le_bytes(memory.bytes[at..at + 4].try_into().expect("4"));
        let ranks: Vec<usize> = (0..self.count)
            .map(|message| if self.is_equal { 0 } else { message })
            .map(|list| word(ranks_at + 4 * list) as usize)
            .collect();
        let targets = memory.bytes[targets_at..].chunks(pitch);
        let targets = targets.flat_map(|target| &target[..self.packet_bytes]);
        (ranks, targets.copied().collect())
    }

    /// Asserts that kernels do as the CPU does, in whatever order warps run; returns how many messages were complete.
    fn check(&self, solve: SolveShape, what: &str) -> usize {
        let expected = self.expected();
        for is_backwards in [false, true] {
            let found = self.found(solve, is_backwards);
            assert_eq!(found.0, expected.0, "{what}, backwards: {is_backwards}");
            assert!(found.1 == expected.1, "{what}, backwards: {is_backwards}");
        }
        let sources = self.code.source_packets();
        expected.0.iter().filter(|rank| **rank == sources).count()
    }
}

/// Returns the shape of a block for each message, whatever the messages are.
fn by_block(sources: usize, packets: usize) -> SolveShape {
    // So many packets are never given to a warp.
    let least = SolveShape::new(sources, packets.max(65)).expect("fits");
    assert_eq!(least.kernel, 1);
    least
}

#[test]
fn messages_of_a_warp_are_decoded_as_by_the_cpu_and_short_ranks_are_told() {
    let mut complete = [0, 0];
    for (case, sources) in [2, 3, 8, 17, 31, 32].into_iter().enumerate() {
        for (extra, bytes) in [(0, 4), (1, 7), (5, 129), (32, 1)] {
            for form in [Form::Plain, Form::Systematic] {
                let seed = SEED + case as u64;
                let size = (6, (sources + extra).min(64), bytes);
                let messages = Messages::new(seed, (form, sources), size, extra == 5);
                let shape = SolveShape::new(sources, size.1).expect("fits");
                assert_eq!(shape.kernel, 0);
                let what = format!("seed {seed:#x}, k={sources}, {size:?}, {form:?}");
                complete[0] += messages.check(shape, &what);
                complete[1] += messages.count;
            }
        }
    }
    let [complete, all] = complete;
    assert!(complete > all / 10 && complete < all, "{complete} of {all}");
}

#[test]
fn messages_of_a_block_are_decoded_as_by_the_cpu_and_short_ranks_are_told() {
    let mut complete = [0, 0];
    for (case, sources) in [2, 5, 8, 31, 33, 40, 64, 65, 100].into_iter().enumerate() {
        for (extra, bytes) in [(1, 5), (30, 132)] {
            for form in [Form::Plain, Form::Systematic] {
                let seed = SEED + 100 + case as u64;
                let size = (2, sources + extra, bytes);
                let messages = Messages::new(seed, (form, sources), size, extra == 1);
                let shape = by_block(sources, size.1);
                let what = format!("seed {seed:#x}, k={sources}, {size:?}, {form:?}");
                complete[0] += messages.check(shape, &what);
                complete[1] += messages.count;
            }
        }
    }
    let [complete, all] = complete;
    assert!(complete > all / 10 && complete < all, "{complete} of {all}");
}

/// Threads of a block take several rows each, and rows are of several words.
#[test]
fn a_message_with_more_packets_than_threads_is_decoded() {
    let seed = SEED + 200;
    let messages = Messages::new(seed, (Form::Plain, 70), (1, 150, 9), false);
    let shape = SolveShape {
        threads: 64,
        ..by_block(70, 150)
    };
    assert_eq!(messages.check(shape, &format!("seed {seed:#x}")), 1);
}

#[test]
fn every_number_of_source_packets_fits_a_block_of_a_hopper_up_to_1024() {
    for sources in 2..=1024 {
        let shape = SolveShape::new(sources, sources + 10).expect("threads suffice");
        assert!(shape.shared_bytes <= 227 << 10, "k={sources}: {shape:?}");
    }
    assert!(SolveShape::new(4096, 1 << 20).is_none());
}
