//! Messages of the random code on a device: the rows are eliminated there, and the inverses multiplied by the packets.

mod pieces;
mod product;
mod resident;
mod solutions;

use std::sync::Arc;

use self::{
    pieces::{complete_runs, cut_messages},
    product::{OnDevice, pitch},
    solutions::{MessageShape, Solutions},
};
use super::{
    context::Context,
    copy::{Copies, End},
    kernels::Kernels,
    memory::{DeviceMemory, grow},
    module::Module,
    stream::{Event, Purpose, Stream},
};
use crate::{DeviceError, RandomError, cut::Piece};
use cauchyfs_codec::rateless::{Bulk, Numbers, RandomCode};

pub use self::resident::ResidentMessages;

/// Pieces that are worked on at once: one on its way there, one on the device, and one on its way back.
const SLOTS: usize = 3;

/// Bytes of the solutions that are on the device at once.
const SOLUTION_BYTES: usize = 64 << 20;

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
            let mut batch = PacketBatch {
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
        batch: &mut PacketBatch<'_>,
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
struct PacketBatch<'b> {
    shape: MessageShape,
    messages: usize,
    packet_bytes: usize,
    /// True if all messages have the same numbers.
    is_equal: bool,
    packets: &'b [u8],
    targets: &'b mut [u8],
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
    fn send(&mut self, batch: &PacketBatch<'_>, piece: &Piece) -> Result<(), DeviceError> {
        let per_message = batch.shape.packets;
        let start = piece.items.start * per_message * batch.packet_bytes + piece.columns.start;
        let host = batch.packets[start..].as_ptr().expose_provenance();
        let pitch = pitch(piece.bytes());
        let targets = piece.items.len() * batch.shape.sources() * pitch;
        self.is_used = true;
        grow(&self.context, &mut self.targets, targets)?;
        let rows = piece.items.len() * per_message;
        let is_too_short = self.packets.as_ref().is_none_or(|p| p.len() < rows * pitch);
        let address = grow(&self.context, &mut self.packets, rows * pitch)?;
        if is_too_short {
            // Kernels read whole words, also where a packet ends within one.
            // SAFETY: the memory is that long, and goes only after the stream is done.
            unsafe { self.stream.clear(address, rows * pitch / size_of::<u32>()) }?;
        }
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
        batch: &PacketBatch<'_>,
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
        batch: &mut PacketBatch<'_>,
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

    /// As [`Stream::abandon`].
    fn abandon(&mut self) {
        self.stream.abandon(&mut self.is_used);
    }
}

impl Drop for MessageSlot {
    fn drop(&mut self) {
        self.abandon();
    }
}
