//! Messages of the random code on a device: the rows are eliminated there, and the inverses multiplied by the packets.

mod pieces;
mod resident;
mod solutions;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::{
    pieces::{complete_runs, cut_messages},
    solutions::{MessageShape, Solutions},
};
use super::{
    context::Context,
    copy::{Copies, End},
    kernels::Kernels,
    memory::DeviceMemory,
    module::{Module, short},
    stream::{Event, Parameter, Purpose, Stream},
};
use crate::{DeviceError, RandomError, cut::Piece, ptx::STRIP};
use cauchyfs_codec::rateless::{Bulk, Numbers, RandomCode};

pub use self::resident::ResidentMessages;

/// Pieces that are worked on at once: one on its way there, one on the device, and one on its way back.
const SLOTS: usize = 3;

/// Bytes of the solutions that are on the device at once.
const SOLUTION_BYTES: usize = 64 << 20;

/// The pause before a stream is asked again that could not be waited for.
const ABANDON_RETRY: Duration = Duration::from_millis(100);

/// A decoder of messages on a GPU, used by one thread at a time. Its memory on the device grows as messages need it.
pub struct RandomDecoder {
    context: Arc<Context>,
    solutions: Solutions,
    slots: Vec<MessageSlot>,
}

impl RandomDecoder {
    pub(super) fn new(context: &Arc<Context>, kernels: &Kernels) -> Result<Self, DeviceError> {
        let module = kernels.random_code()?;
        let slots = (0..SLOTS).map(|_| MessageSlot::new(context, &module));
        Ok(Self {
            context: Arc::clone(context),
            solutions: Solutions::new(context, &module)?,
            slots: slots.collect::<Result<_, _>>()?,
        })
    }

    /// Decodes many messages into one buffer, source packet after source packet, message after message. Returns the rank
    /// of each message. Those of a rank below k were not decoded, and their targets are unchanged. Packets and targets
    /// may lie anywhere; those that were [pinned](crate::Device::pin) travel faster.
    ///
    /// # Errors
    ///
    /// [`RandomError::Messages`] if a buffer has another length than the messages need. [`RandomError::Device`] if the
    /// device fails; targets are unspecified then, and nothing touches them any more after the return.
    pub fn decode(
        &mut self,
        code: RandomCode,
        bulk: &Bulk<'_>,
        targets: &mut [u8],
    ) -> Result<Vec<usize>, RandomError> {
        bulk.check(code.source_packets(), targets.len())?;
        if bulk.messages == 0 || bulk.packets_per_message == 0 {
            return Ok(vec![0; bulk.messages]);
        }
        self.context.enter()?;
        let mut decoder = scopeguard::guard(self, |decoder| {
            decoder.slots.iter_mut().for_each(MessageSlot::abandon);
            decoder.solutions.abandon();
        });
        Ok(decoder.decode_batches(code, bulk, targets)?)
    }

    fn decode_batches(
        &mut self,
        code: RandomCode,
        bulk: &Bulk<'_>,
        targets: &mut [u8],
    ) -> Result<Vec<usize>, DeviceError> {
        let shape = MessageShape::new(&self.context, code, bulk.packets_per_message);
        let (all, is_equal) = match bulk.numbers {
            Numbers::Equal(numbers) => (numbers, true),
            Numbers::Different(numbers) => (numbers, false),
        };
        let batch = if is_equal {
            bulk.messages
        } else {
            (SOLUTION_BYTES / shape.solution_bytes()).max(1)
        };
        let packet_bytes = bulk.packets_per_message * bulk.packet_bytes;
        let target_bytes = code.source_packets() * bulk.packet_bytes;
        let mut ranks = Vec::with_capacity(bulk.messages);
        for first in (0..bulk.messages).step_by(batch) {
            let messages = batch.min(bulk.messages - first);
            let numbers = if is_equal {
                all
            } else {
                let start = first * bulk.packets_per_message;
                &all[start..start + messages * bulk.packets_per_message]
            };
            let mut batch = Batch {
                shape,
                messages,
                packet_bytes: bulk.packet_bytes,
                is_equal,
                packets: &bulk.packets[first * packet_bytes..][..messages * packet_bytes],
                targets: &mut targets[first * target_bytes..][..messages * target_bytes],
            };
            ranks.extend(self.decode_batch(&mut batch, numbers)?);
        }
        Ok(ranks)
    }

    /// Decodes messages whose solutions fit the device at once; returns their ranks.
    fn decode_batch(
        &mut self,
        batch: &mut Batch<'_>,
        numbers: &[u64],
    ) -> Result<Vec<usize>, DeviceError> {
        let shape = batch.shape;
        let rows = shape.packets + shape.sources();
        let pieces = cut_messages(batch.messages, rows, batch.packet_bytes);
        self.solutions.start(&shape, numbers)?;
        // The first pieces are on their way while their rows are eliminated.
        for (slot, piece) in self.slots.iter_mut().zip(&pieces) {
            slot.send(batch, piece)?;
        }
        let mut ranks = self.solutions.finish()?;
        if batch.is_equal {
            ranks.resize(batch.messages, ranks[0]);
        }
        for (index, piece) in pieces.iter().enumerate() {
            let slot = &mut self.slots[index % SLOTS];
            slot.multiply(batch, piece, &self.solutions)?;
            slot.fetch(batch, piece, &ranks[piece.items.clone()])?;
            if let Some(next) = pieces.get(index + SLOTS) {
                slot.send(batch, next)?;
            }
        }
        for slot in &mut self.slots {
            slot.wait()?;
        }
        Ok(ranks)
    }
}

/// Messages that are decoded together.
struct Batch<'b> {
    shape: MessageShape,
    messages: usize,
    packet_bytes: usize,
    /// True if all messages have the same numbers.
    is_equal: bool,
    packets: &'b [u8],
    targets: &'b mut [u8],
}

/// Returns how far apart packets of so many bytes lie on a device.
fn pitch(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<u32>())
}

/// Packets and targets as a kernel sees them.
struct OnDevice {
    packets: u64,
    packet_pitch: usize,
    targets: u64,
    messages: usize,
    /// Bytes of a packet that are multiplied.
    bytes: usize,
    /// True if each message has a solution of its own, the first of which has this number.
    first_solution: Option<usize>,
}

impl OnDevice {
    /// Queues the product.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// Until the stream is done, packets and targets must lie as described, and the solutions must be those of the
    /// messages.
    unsafe fn multiply(
        &self,
        stream: &Stream,
        module: &Module,
        solutions: &Solutions,
    ) -> Result<(), DeviceError> {
        let shape = solutions.shape();
        let product = shape.product();
        let function = &module.functions()[product.kernel];
        let first = self.first_solution.unwrap_or(0);
        let strips = self.bytes.div_ceil(STRIP);
        let mut parameters = [
            Parameter::Long(self.packets),
            Parameter::Long((shape.packets * self.packet_pitch) as u64),
            Parameter::Long(self.targets),
            Parameter::Long(solutions.inverse(first)),
            Parameter::Long(solutions.order(first)),
            Parameter::Long(solutions.rank(first)),
            Parameter::Short(short(self.packet_pitch)),
            Parameter::Short(short(pitch(self.bytes))),
            Parameter::Short(short(self.bytes)),
            Parameter::Short(short(strips)),
            Parameter::Short(short(shape.sources())),
            Parameter::Short(shape.shift()),
            Parameter::Short(u32::from(self.first_solution.is_some())),
        ];
        let grid = [self.messages * strips, product.groups, 1].map(short);
        let block = (function.threads(), short(product.shared_bytes));
        // SAFETY: these are the parameters of product.ptx, which stays within packets, targets and solutions; the
        // caller promised that they are there.
        unsafe { stream.launch_blocks(function, grid, block, &mut parameters) }
    }
}

/// Room for one piece on the device.
struct MessageSlot {
    context: Arc<Context>,
    module: Arc<Module>,
    // Nothing uses these any more when they go: `Drop` waits for the stream.
    stream: Stream,
    done: Event,
    packets: Option<DeviceMemory>,
    targets: Option<DeviceMemory>,
    copies: Copies,
    is_used: bool,
}

impl MessageSlot {
    fn new(context: &Arc<Context>, module: &Arc<Module>) -> Result<Self, DeviceError> {
        Ok(Self {
            context: Arc::clone(context),
            module: Arc::clone(module),
            stream: Stream::new(context)?,
            done: Event::new(context, Purpose::Sleep)?,
            packets: None,
            targets: None,
            copies: Copies::default(),
            is_used: false,
        })
    }

    /// Queues the way of a piece's packets to the device.
    fn send(&mut self, batch: &Batch<'_>, piece: &Piece) -> Result<(), DeviceError> {
        let per_message = batch.shape.packets;
        let start = piece.items.start * per_message * batch.packet_bytes + piece.columns.start;
        let host = batch.packets[start..].as_ptr().expose_provenance();
        let pitch = pitch(piece.bytes());
        let targets = piece.items.len() * batch.shape.sources() * pitch;
        self.is_used = true;
        grow(&self.context, &mut self.targets, targets)?;
        let rows = piece.items.len() * per_message;
        let address = grow(&self.context, &mut self.packets, rows * pitch)?;
        let from = End::Host {
            address: host,
            pitch: batch.packet_bytes,
        };
        self.copies.clear();
        let to = End::Device { address, pitch };
        self.copies.add_rows(from, to, piece.bytes(), rows);
        // SAFETY: the packets are borrowed for longer than the decoder waits; the device has room for all rows.
        unsafe { self.stream.copy_all(&mut self.copies) }
    }

    /// Queues the product of a piece whose packets are on their way.
    fn multiply(
        &self,
        batch: &Batch<'_>,
        piece: &Piece,
        solutions: &Solutions,
    ) -> Result<(), DeviceError> {
        let there =
            |memory: &Option<DeviceMemory>| memory.as_ref().map_or(0, DeviceMemory::address);
        let messages = OnDevice {
            packets: there(&self.packets),
            packet_pitch: pitch(piece.bytes()),
            targets: there(&self.targets),
            messages: piece.items.len(),
            bytes: piece.bytes(),
            first_solution: (!batch.is_equal).then_some(piece.items.start),
        };
        // SAFETY: `send` made room for both, and the solutions were waited for.
        unsafe { messages.multiply(&self.stream, &self.module, solutions) }
    }

    /// Queues the way back of those messages of a piece that are complete.
    fn fetch(
        &mut self,
        batch: &mut Batch<'_>,
        piece: &Piece,
        ranks: &[usize],
    ) -> Result<(), DeviceError> {
        let sources = batch.shape.sources();
        let pitch = pitch(piece.bytes());
        let address = self.targets.as_ref().map_or(0, DeviceMemory::address);
        self.copies.clear();
        for run in complete_runs(ranks, sources) {
            let row = (piece.items.start + run.start) * sources;
            let start = row * batch.packet_bytes + piece.columns.start;
            let from = End::Device {
                address: address + (run.start * sources * pitch) as u64,
                pitch,
            };
            let to = End::Host {
                address: batch.targets[start..].as_mut_ptr().expose_provenance(),
                pitch: batch.packet_bytes,
            };
            self.copies
                .add_rows(from, to, piece.bytes(), run.len() * sources);
        }
        // SAFETY: the targets are borrowed mutably for longer than the decoder waits, and no two runs overlap.
        unsafe { self.stream.copy_all(&mut self.copies) }
    }

    /// Waits until the stream is done with all that it has.
    fn wait(&mut self) -> Result<(), DeviceError> {
        if self.is_used {
            self.done.record(&self.stream)?;
            self.done.wait()?;
            self.is_used = false;
        }
        Ok(())
    }

    /// Waits until the device uses no memory of the caller any more, after something failed.
    fn abandon(&mut self) {
        abandon(&self.stream, &mut self.is_used);
    }
}

impl Drop for MessageSlot {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Waits until a stream that was used is done, or its device is lost.
fn abandon(stream: &Stream, is_used: &mut bool) {
    while *is_used && let Err(error) = stream.finish() {
        // The first failure is the one that is reported.
        tracing::debug!("after a failure: {error}");
        if error.is_final() {
            break; // a lost device uses nothing
        }
        thread::sleep(ABANDON_RETRY);
    }
    *is_used = false;
}

/// Returns the address of at least so many bytes. New memory takes the place of memory that is too short.
///
/// # Errors
///
/// If the device has not as many left, or is lost.
fn grow(
    context: &Arc<Context>,
    memory: &mut Option<DeviceMemory>,
    len: usize,
) -> Result<u64, DeviceError> {
    if let Some(memory) = memory
        && memory.len() >= len
    {
        return Ok(memory.address());
    }
    // Freed first, which waits for the device, so that both need not fit.
    *memory = None;
    let new = DeviceMemory::new(context, len.max(1))?;
    Ok(memory.insert(new).address())
}
