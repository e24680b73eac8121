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
        let module = kernels.random_code()?;
        let shape = MessageShape::new(context, code, bulk.packets_per_message);
        let target_bytes = bulk.messages * code.source_packets() * bulk.packet_bytes;
        bulk.check(code.source_packets(), target_bytes)?;
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
        // SAFETY: the packets are borrowed until after the wait, and the device has room for all of them.
        let queued = unsafe { stream.copy(&copy) };
        queued.and(stream.finish())?;
        let sources = bulk.messages * code.source_packets();
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
        self.measure(rounds, (true, false))
    }

    /// Solves all messages and multiplies so many times, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn decode(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        self.measure(rounds, (true, true))
    }

    fn measure(
        &mut self,
        rounds: u32,
        (solves, multiplies): (bool, bool),
    ) -> Result<Duration, DeviceError> {
        let messages = OnDevice {
            packets: self.packets.address(),
            packet_pitch: pitch(self.packet_bytes),
            targets: self.targets.address(),
            messages: self.messages,
            bytes: self.packet_bytes,
            first_solution: (!self.is_equal).then_some(0),
        };
        let stream = self.solutions.stream();
        self.context.enter()?;
        self.start.record(stream)?;
        for _ in 0..rounds {
            if solves {
                self.solutions.solve()?;
            }
            if multiplies {
                // SAFETY: packets and targets have room for all messages, and live until the wait below.
                unsafe { messages.multiply(stream, &self.module, &self.solutions) }?;
            }
        }
        self.end.record(stream)?;
        self.end.wait()?;
        self.end.since(&self.start)
    }
}
