//! Stripes that stay on a device, to measure how fast it is at its best.

use std::sync::Arc;
use std::time::Duration;

use super::{
    context::Context,
    copy::{Copy, End},
    kernels::Applied,
    launch::Stripes,
    memory::DeviceMemory,
    module::Module,
    stream::{Event, Purpose, Stream},
};
use crate::{
    DeviceError,
    ptx::{self, Kind},
};
use cauchyfs_codec::Matrix;

/// Stripes of noise on a device, and a matrix that is applied to them there.
pub struct Resident {
    context: Arc<Context>,
    stream: Stream,
    start: Event,
    end: Event,
    memory: DeviceMemory,
    wrong: DeviceMemory,
    sums: DeviceMemory,
    checksums: Module,
    applied: Applied,
    stripes: Stripes,
}

impl Resident {
    pub(super) fn new(
        context: &Arc<Context>,
        matrix: &Matrix,
        kind: Kind,
        shard_bytes: usize,
        total_bytes: usize,
    ) -> Result<Self, DeviceError> {
        let shards = matrix.columns() + matrix.rows();
        let pitch = shard_bytes.next_multiple_of(256);
        let stride = shards * pitch;
        let count = (total_bytes / stride).clamp(1, 65_535);
        let memory = DeviceMemory::new(context, count * stride)?;
        let stripes = Stripes {
            address: memory.address(),
            pitch,
            stride,
            count,
            bytes: shard_bytes,
            sources: matrix.columns(),
            targets: matrix.rows(),
        };
        let verdicts = count * matrix.rows() * stripes.blocks();
        let wrong = DeviceMemory::new(context, verdicts * size_of::<u32>())?;
        let sums = count * shards * stripes.blocks();
        let resident = Self {
            context: Arc::clone(context),
            stream: Stream::new(context)?,
            start: Event::new(context, Purpose::Measure)?,
            end: Event::new(context, Purpose::Measure)?,
            memory,
            wrong,
            sums: DeviceMemory::new(context, sums * size_of::<u32>())?,
            checksums: Module::new(context, &ptx::Module::for_checksums())?,
            applied: Applied::compile(context, matrix, kind)?,
            stripes,
        };
        resident.fill(matrix)?;
        Ok(resident)
    }

    /// Fills all sources with noise, and targets with what belongs to it: comparing is measured where
    /// nothing differs.
    fn fill(&self, matrix: &Matrix) -> Result<(), DeviceError> {
        let write = Applied::compile(&self.context, matrix, Kind::Write)?;
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut noise = vec![0u8; self.memory.len().min(NOISE_BYTES)];
        for word in noise.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        let queued = self.queue_fill(&noise, &write);
        // Even if not all was queued, the queued part is done before the noise is freed.
        queued.and(self.stream.finish())
    }

    fn queue_fill(&self, noise: &[u8], write: &Applied) -> Result<(), DeviceError> {
        for start in (0..self.memory.len()).step_by(noise.len()) {
            let width = noise.len().min(self.memory.len() - start);
            let copy = Copy {
                from: End::Host {
                    address: noise.as_ptr().expose_provenance(),
                    pitch: width,
                },
                to: self.end_at(start, width),
                width,
                rows: 1,
            };
            // SAFETY: both ends are there and long enough; `fill` waits for it.
            unsafe { self.stream.copy(&copy) }?;
        }
        // SAFETY: stripes lie in `memory` at multiples of 256, and `fill` waits for it; nothing is compared.
        unsafe { self.stripes.apply(&self.stream, write, 0) }
    }

    /// Returns how many bytes all sources of all stripes have.
    #[must_use]
    pub fn source_bytes(&self) -> usize {
        self.stripes.count * self.stripes.sources * self.stripes.bytes
    }

    /// Applies the matrix to all stripes so many times, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn apply(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        self.context.enter()?;
        self.start.record(&self.stream)?;
        for _ in 0..rounds {
            let wrong = self.wrong.address();
            // SAFETY: stripes lie in `memory` at multiples of 256. `wrong` has a word per block of each target, and
            // both live until the wait below.
            unsafe { self.stripes.apply(&self.stream, &self.applied, wrong) }?;
        }
        self.measured()
    }

    /// Computes the checksums of all blocks of all shards so many times, and returns how long that took.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn sum(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        self.context.enter()?;
        self.start.record(&self.stream)?;
        for _ in 0..rounds {
            let sums = self.sums.address();
            // SAFETY: as in `apply`, and `sums` has a word per block of each shard.
            unsafe { self.stripes.sum(&self.stream, &self.checksums, sums) }?;
        }
        self.measured()
    }

    /// Returns how many bytes [`Self::sum`] reads each time.
    #[must_use]
    pub fn summed_bytes(&self) -> usize {
        self.stripes.count * (self.stripes.sources + self.stripes.targets) * self.stripes.bytes
    }

    /// Copies bytes on the device so many times, and returns how long that took. Each time it reads and writes together
    /// as many as [`Self::apply`] reads and writes (or reads, where it compares).
    ///
    /// # Errors
    ///
    /// If the device is lost.
    pub fn copy(&mut self, rounds: u32) -> Result<Duration, DeviceError> {
        let half = self.memory.len() / 2;
        self.context.enter()?;
        self.start.record(&self.stream)?;
        for _ in 0..rounds {
            let copy = Copy {
                from: self.end_at(0, half),
                to: self.end_at(half, half),
                width: half,
                rows: 1,
            };
            // SAFETY: both halves are in `memory`, and it is waited for below.
            unsafe { self.stream.copy(&copy) }?;
        }
        self.measured()
    }

    /// Returns how many bytes [`Self::copy`] copies each time, each of them read and written.
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        self.memory.len() / 2
    }

    fn end_at(&self, offset: usize, pitch: usize) -> End {
        End::Device {
            address: self.memory.address() + offset as u64,
            pitch,
        }
    }

    fn measured(&self) -> Result<Duration, DeviceError> {
        self.end.record(&self.stream)?;
        self.end.wait()?;
        self.end.since(&self.start)
    }
}

/// Bytes of noise before it repeats.
const NOISE_BYTES: usize = 64 << 20;
