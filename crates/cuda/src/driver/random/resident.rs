//! Messages that stay on a device, to measure how fast it is at its best.

use std::sync::Arc;
use std::time::Duration;

use super::{
    product::{OnDevice, pitch},
    solutions::{MessageShape, Solutions},
};
use crate::{
    DeviceError, RandomError,
    driver::{
        context::Context,
        copy::{Copy, End},
        kernels::Kernels,
        memory::DeviceMemory,
        module::Module,
        stream::{Event, Purpose, Stream},
    },
};
use cauchyfs_codec::rateless::{Bulk, Numbers, RandomCode};

/// Messages of the random code on a device.
pub struct ResidentMessages {
    context: Arc<Context>,
    module: Arc<Module>,
    start: Event,
    end: Event,
    solutions: Solutions,
    packets: DeviceMemory,
    targets: DeviceMemory,
    messages: usize,
    packet_bytes: usize,
    is_equal: bool,
}

impl ResidentMessages {
    pub(in crate::driver) fn new(
        context: &Arc<Context>,
        kernels: &Kernels,
        code: RandomCode,
        bulk: &Bulk<'_>,
    ) -> Result<Self, RandomError> {
        let sources = bulk.messages.saturating_mul(code.source_packets());
        // A length that saturates is refused.
        bulk.check(
            code.source_packets(),
            sources.saturating_mul(bulk.packet_bytes),
        )?;
        if bulk.packets.is_empty() {
            return Err(RandomError::Device(DeviceError::Failed {
                operation: "hold messages",
                reason: "they have no bytes".to_owned(),
            }));
        }
        let module = kernels.random_code()?;
        let shape = MessageShape::new(context, code, bulk.packets_per_message);
        let pitch = pitch(bulk.packet_bytes);
        let rows = bulk.messages * bulk.packets_per_message;
        let mut solutions = Solutions::new(context, &module)?;
        let (numbers, is_equal) = match bulk.numbers {
            Numbers::Equal(numbers) => (numbers, true),
            Numbers::Different(numbers) => (numbers, false),
        };
        solutions.start(&shape, numbers)?;
        solutions.finish()?;
        let packets = DeviceMemory::new(context, rows * pitch)?;
        let copy = Copy {
            from: End::Host {
                address: bulk.packets.as_ptr().expose_provenance(),
                pitch: bulk.packet_bytes,
            },
            to: End::Device {
                address: packets.address(),
                pitch,
            },
            width: bulk.packet_bytes,
            rows,
        };
        let stream = Stream::new(context)?;
        // Kernels read whole words, also where a packet ends within one.
        // SAFETY: the memory is that long, and goes after the wait.
        let queued = unsafe { stream.clear(packets.address(), rows * pitch / size_of::<u32>()) };
        // SAFETY: the packets are borrowed until after the wait, and the device has room for all of them.
        let queued = queued.and_then(|()| unsafe { stream.copy(&copy) });
        stream.finish_or_abandon(queued)?;
        Ok(Self {
            context: Arc::clone(context),
            module,
            start: Event::new(context, Purpose::Measure)?,
            end: Event::new(context, Purpose::Measure)?,
            solutions,
            packets,
            targets: DeviceMemory::new(context, sources * pitch)?,
            messages: bulk.messages,
            packet_bytes: bulk.packet_bytes,
            is_equal,
        })
    }

    /// Returns whether [`Self::decode`] solves the messages. Otherwise the CPU has done so once.
    #[must_use]
    pub fn is_solved_on_device(&self) -> bool {
        self.solutions.shape().is_solved_on_device()
    }

    /// Solves all messages so many times, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn solve(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        self.measure(rounds, false)
    }

    /// Solves all messages and multiplies so many times, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn decode(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        self.measure(rounds, true)
    }

    fn measure(&mut self, rounds: u32, multiplies: bool) -> Result<Duration, DeviceError> {
        let messages = OnDevice {
            packets: self.packets.address(),
            packet_pitch: pitch(self.packet_bytes),
            targets: self.targets.address(),
            messages: self.messages,
            bytes: self.packet_bytes,
            first_solution: (!self.is_equal).then_some(0),
        };
        self.context.enter()?;
        self.start.record(self.solutions.stream())?;
        for _ in 0..rounds {
            self.solutions.solve()?;
            if multiplies {
                let stream = self.solutions.stream();
                // SAFETY: packets and targets have room for all messages. They go after the solutions, which wait for
                // the stream if the wait below is not reached.
                unsafe { messages.multiply(stream, &self.module, &self.solutions) }?;
            }
        }
        self.end.record(self.solutions.stream())?;
        self.end.wait()?;
        self.end.since(&self.start)
    }
}
