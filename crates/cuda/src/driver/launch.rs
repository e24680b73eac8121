//! Kernels queued for stripes that lie on a device.

use super::{
    kernels::Applied,
    module::{Module, short},
    stream::{Parameter, Stream},
};
use crate::{DeviceError, ptx};
use cauchyfs_codec::BLOCK_BYTES;

/// The layout of stripes on a device: shards `pitch` bytes apart, sources first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stripes {
    /// The address at which the first one begins.
    pub(super) address: u64,
    pub(super) pitch: usize,
    /// The distance between them.
    pub(super) stride: usize,
    pub(super) count: usize,
    /// Bytes of a shard.
    pub(super) bytes: usize,
    pub(super) sources: usize,
    pub(super) targets: usize,
}

impl Stripes {
    /// Returns how many blocks that have checksums a shard has.
    pub(super) fn blocks(&self) -> usize {
        self.bytes.div_ceil(BLOCK_BYTES)
    }

    /// Queues the kernel that applies a matrix. If targets are compared, each [block](Self::blocks) of each target has
    /// a word at `wrong`, target after target, stripe after stripe. Words of blocks that differ become 1.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// Until the stream is done, stripes must lie as described. `address`, `pitch` and `stride` must be multiples of 16, and
    /// `pitch` no less than `bytes`. `wrong` must have room, and the matrix be of as many sources and targets.
    pub(super) unsafe fn apply(
        &self,
        stream: &Stream,
        applied: &Applied,
        wrong: u64,
    ) -> Result<(), DeviceError> {
        for function in applied.functions() {
            let mut parameters = [
                Parameter::Long(self.address),
                Parameter::Long(self.pitch as u64),
                Parameter::Long(self.stride as u64),
                Parameter::Long(applied.coefficients()),
                Parameter::Long(wrong),
                Parameter::Short(short(self.bytes)),
                Parameter::Short(short(self.sources)),
                Parameter::Short(short(self.targets)),
                Parameter::Short(short(self.blocks())),
                Parameter::Short(short(self.count)),
            ];
            let kernel = function.kernel();
            let spread_over = (self.count, applied.layers());
            let grid = kernel.grid(self.bytes, spread_over, applied.concurrent_blocks());
            let block = (function.threads(), short(kernel.shared_bytes()));
            // SAFETY: these are the parameters of transform.ptx and fft.ptx, which stay within the stripes,
            // `wrong` and the kernel's shared memory; the caller promised that the former are there.
            unsafe { stream.launch_blocks(function, grid.map(short), block, &mut parameters) }?;
        }
        Ok(())
    }

    /// Queues the checksums of all blocks, shard after shard, stripe after stripe.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Safety
    ///
    /// Stripes must lie as said, with every pitch a multiple of 16, and `sums` have room, until the
    /// stream is done.
    pub(super) unsafe fn sum(
        &self,
        stream: &Stream,
        module: &Module,
        sums: u64,
    ) -> Result<(), DeviceError> {
        let blocks = self.blocks();
        let rest = self.bytes - (blocks - 1) * BLOCK_BYTES;
        for function in module.functions() {
            let mut parameters = [
                Parameter::Long(self.address),
                Parameter::Long(self.pitch as u64),
                Parameter::Long(self.stride as u64),
                Parameter::Long(sums),
                Parameter::Short(short(self.bytes)),
                Parameter::Short(short(blocks)),
                Parameter::Short(ptx::start_of_length(BLOCK_BYTES)),
                Parameter::Short(ptx::start_of_length(rest)),
            ];
            let shards = short(self.sources + self.targets);
            let grid = [function.blocks(self.bytes), shards, short(self.count)];
            // SAFETY: these are the parameters of checksum.ptx, which stays within the stripes and
            // `sums`; the caller promised that they are there.
            unsafe { stream.launch(function, grid, &mut parameters) }?;
        }
        Ok(())
    }
}
