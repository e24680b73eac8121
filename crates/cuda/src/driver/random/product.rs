//! The product of solutions and packets that lie on a device.

use super::solutions::Solutions;
use crate::{
    DeviceError,
    driver::{
        module::{Module, short},
        stream::{Parameter, Stream},
    },
    ptx::STRIP,
};

/// Returns how far apart packets of so many bytes lie on a device.
pub(super) fn pitch(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<u32>())
}

/// Packets and targets as a kernel sees them.
pub(super) struct OnDevice {
    pub(super) packets: u64,
    pub(super) packet_pitch: usize,
    pub(super) targets: u64,
    pub(super) messages: usize,
    /// Bytes of a packet that are multiplied.
    pub(super) bytes: usize,
    /// True if each message has a solution of its own, the first of which has this number.
    pub(super) first_solution: Option<usize>,
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
    pub(super) unsafe fn multiply(
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
