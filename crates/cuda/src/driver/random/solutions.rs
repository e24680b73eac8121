//! The solutions of messages on a device: inverses, the packets that their columns stand for, and ranks.

use std::sync::Arc;

use crate::{
    DeviceError,
    driver::{
        context::Context,
        copy::{Copies, End},
        memory::{DeviceMemory, Staged, grow},
        module::{Module, short},
        stream::{Event, Parameter, Purpose, Stream},
    },
    ptx::{self, ProductShape, SolveShape},
};
use cauchyfs_codec::{
    rateless::{Form, RandomCode},
    select,
};

const WORD_BYTES: usize = size_of::<u32>();

/// The shape of messages, and the way to solve them.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageShape {
    code: RandomCode,
    /// Packets of each message.
    pub(super) packets: usize,
    /// Nothing if the device has too little shared memory, so that the CPU solves them.
    solve: Option<SolveShape>,
}

impl MessageShape {
    pub(super) fn new(context: &Context, code: RandomCode, packets: usize) -> Self {
        let solve = SolveShape::new(code.source_packets(), packets);
        Self {
            code,
            packets,
            solve: solve.filter(|shape| shape.shared_bytes <= context.most_shared_bytes()),
        }
    }

    pub(super) fn sources(&self) -> usize {
        self.code.source_packets()
    }

    /// Returns the logarithm of the words of a row.
    pub(super) fn shift(&self) -> u32 {
        ptx::row_shift(self.sources())
    }

    pub(super) fn product(&self) -> ProductShape {
        ProductShape::new(self.sources())
    }

    /// Returns whether the device solves them.
    pub(super) fn is_solved_on_device(&self) -> bool {
        self.solve.is_some()
    }

    fn inverse_words(&self) -> usize {
        self.sources() << self.shift()
    }

    /// Returns how many bytes the numbers and the solution of a message take.
    pub(super) fn solution_bytes(&self) -> usize {
        self.packets * size_of::<u64>() + (self.inverse_words() + self.sources() + 1) * WORD_BYTES
    }
}

/// Solutions of messages that are all of one shape.
pub(super) struct Solutions {
    context: Arc<Context>,
    module: Arc<Module>,
    // Nothing uses these any more when they go: `Drop` waits for the stream.
    stream: Stream,
    done: Event,
    numbers: Option<DeviceMemory>,
    inverse: Option<DeviceMemory>,
    order: Option<DeviceMemory>,
    ranks: Option<DeviceMemory>,
    staged: Option<Staged>,
    copies: Copies,
    shape: Option<MessageShape>,
    /// Messages that are being solved.
    count: usize,
    is_used: bool,
}

impl Solutions {
    pub(super) fn new(context: &Arc<Context>, module: &Arc<Module>) -> Result<Self, DeviceError> {
        // The kernel for blocks may use all the shared memory that a block can have. A module that exists already was
        // made in another thread, perhaps.
        context.enter()?;
        let limit = context.most_shared_bytes();
        module.functions()[1].allow_shared(limit)?;
        Ok(Self {
            context: Arc::clone(context),
            module: Arc::clone(module),
            stream: Stream::new(context)?,
            done: Event::new(context, Purpose::Sleep)?,
            numbers: None,
            inverse: None,
            order: None,
            ranks: None,
            staged: None,
            copies: Copies::default(),
            shape: None,
            count: 0,
            is_used: false,
        })
    }

    /// Returns the shape of the messages that were solved last.
    ///
    /// # Panics
    ///
    /// If none were.
    pub(super) fn shape(&self) -> MessageShape {
        self.shape.expect("messages were solved")
    }

    /// Returns the address of the inverse of a message.
    pub(super) fn inverse(&self, message: usize) -> u64 {
        at(
            self.inverse.as_ref(),
            message * self.shape().inverse_words(),
        )
    }

    /// Returns the address of the packets that its columns stand for.
    pub(super) fn order(&self, message: usize) -> u64 {
        at(self.order.as_ref(), message * self.shape().sources())
    }

    /// Returns the address of its rank.
    pub(super) fn rank(&self, message: usize) -> u64 {
        at(self.ranks.as_ref(), message)
    }

    /// Begins to solve messages with these numbers, message after message.
    ///
    /// # Errors
    ///
    /// If the device is lost or has too little memory.
    pub(super) fn start(
        &mut self,
        shape: &MessageShape,
        numbers: &[u64],
    ) -> Result<(), DeviceError> {
        let count = numbers.len() / shape.packets;
        (self.shape, self.count) = (Some(*shape), count);
        grow(&self.context, &mut self.numbers, size_of_val(numbers))?;
        let inverse_words = count * shape.inverse_words();
        grow(&self.context, &mut self.inverse, inverse_words * WORD_BYTES)?;
        let order_words = count * shape.sources();
        grow(&self.context, &mut self.order, order_words * WORD_BYTES)?;
        grow(&self.context, &mut self.ranks, count * WORD_BYTES)?;
        if self
            .staged
            .as_ref()
            .is_none_or(|staged| staged.words().len() < count)
        {
            self.staged = Some(Staged::new(&self.context, count)?);
        }
        self.is_used = true;
        if shape.solve.is_none() {
            return self.solve_on_cpu(shape, numbers);
        }
        self.copies.clear();
        self.copies.add(
            host(numbers.as_ptr().expose_provenance(), size_of_val(numbers)),
            device(at(self.numbers.as_ref(), 0), size_of_val(numbers)),
            size_of_val(numbers),
        );
        // SAFETY: the decoder waits before the borrow of the numbers ends; the device has room for them.
        unsafe { self.stream.copy_all(&mut self.copies) }?;
        self.solve()?;
        self.fetch_ranks()
    }

    /// Queues the elimination of the rows of all messages, whose numbers are on the device.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn solve(&mut self) -> Result<(), DeviceError> {
        self.is_used = true;
        let shape = self.shape();
        let Some(solve) = shape.solve else {
            return Ok(()); // the CPU has solved them
        };
        let plain = match shape.code.form() {
            Form::Plain => 0,
            Form::Systematic => shape.sources(),
        };
        let mut parameters = [
            Parameter::Long(at(self.numbers.as_ref(), 0)),
            Parameter::Long(self.inverse(0)),
            Parameter::Long(self.order(0)),
            Parameter::Long(self.rank(0)),
            Parameter::Long(ptx::mix(shape.code.seed())),
            Parameter::Short(short(plain)),
            Parameter::Short(short(shape.sources())),
            Parameter::Short(short(shape.packets)),
            Parameter::Short(match solve.kernel {
                0 => short(self.count),
                _ => solve.shift,
            }),
        ];
        let function = &self.module.functions()[solve.kernel];
        let grid = [short(self.count.div_ceil(solve.messages)), 1, 1];
        let block = (short(solve.threads), short(solve.shared_bytes));
        // SAFETY: these are the parameters of the two kernels, which stay within the numbers, inverses, orders and
        // ranks of so many messages. `start` made room for them, and they live until the stream is done.
        unsafe {
            self.stream
                .launch_blocks(function, grid, block, &mut parameters)
        }
    }

    /// Solves messages on the CPU, and sends the solutions to the device.
    fn solve_on_cpu(&mut self, shape: &MessageShape, numbers: &[u64]) -> Result<(), DeviceError> {
        let engine = select("auto").map_err(|error| DeviceError::Failed {
            operation: "choose an engine",
            reason: error.to_string(),
        })?;
        let words = 1 << shape.shift();
        let (mut inverse, mut order_words, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
        for numbers in numbers.chunks_exact(shape.packets) {
            let mut rows = shape.code.rows(numbers);
            let mut order: Vec<usize> = (0..numbers.len()).collect();
            ranks.push(short(engine.eliminate(&mut rows, &mut order)));
            for row in 0..shape.sources() {
                let there = (row < rows.rows()).then(|| rows.row(row));
                let halves = there.into_iter().flatten();
                let halves = halves.flat_map(|word| [low(*word), low(word >> 32)]);
                inverse.extend(halves.chain(std::iter::repeat(0)).take(words));
                order_words.push(order.get(row).map_or(0, |packet| short(*packet)));
            }
        }
        self.send_words(&inverse, self.inverse(0))?;
        self.send_words(&order_words, self.order(0))?;
        self.send_words(&ranks, self.rank(0))?;
        self.fetch_ranks()
    }

    /// Sends words to the device, and waits until they are there.
    fn send_words(&mut self, words: &[u32], address: u64) -> Result<(), DeviceError> {
        let bytes = size_of_val(words);
        self.copies.clear();
        let from = host(words.as_ptr().expose_provenance(), bytes);
        self.copies.add(from, device(address, bytes), bytes);
        // SAFETY: the wait below comes before the borrow of the words ends; `start` made room for as many.
        let queued = unsafe { self.stream.copy_all(&mut self.copies) };
        self.stream.finish_or_abandon(queued)
    }

    fn fetch_ranks(&mut self) -> Result<(), DeviceError> {
        let bytes = self.count * WORD_BYTES;
        let from = device(self.rank(0), bytes);
        let Some(staged) = &mut self.staged else {
            return Ok(()); // `start` made room
        };
        self.copies.clear();
        let to = host(staged.as_mut_ptr().expose_provenance(), bytes);
        self.copies.add(from, to, bytes);
        // SAFETY: both ends have room for a word of each message, and the words are read after a wait only.
        unsafe { self.stream.copy_all(&mut self.copies) }
    }

    /// Waits until all messages are solved; returns their ranks.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub(super) fn finish(&mut self) -> Result<Vec<usize>, DeviceError> {
        self.done.record(&self.stream)?;
        self.done.wait()?;
        self.is_used = false;
        let words = self.staged.as_ref().map_or(&[][..], Staged::words);
        Ok(words[..self.count]
            .iter()
            .map(|&rank| rank as usize)
            .collect())
    }

    /// Returns the stream in which messages are solved.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As [`Stream::abandon`].
    pub(super) fn abandon(&mut self) {
        self.stream.abandon(&mut self.is_used);
    }
}

impl Drop for Solutions {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Returns the address of a word.
fn at(memory: Option<&DeviceMemory>, word: usize) -> u64 {
    memory.map_or(0, DeviceMemory::address) + (word * WORD_BYTES) as u64
}

fn host(address: usize, pitch: usize) -> End {
    End::Host { address, pitch }
}

fn device(address: u64, pitch: usize) -> End {
    End::Device { address, pitch }
}

fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
