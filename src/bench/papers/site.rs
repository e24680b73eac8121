//! The settings that all sources share.

use std::time::Duration;

use crate::bench::bus::Gpus;
use crate::bench::isal::Isal;
use crate::bench::lane::{Arena, Lane};
use crate::bench::row::{Row as CodecRow, RowPlan};
use crate::bench::setting::{Operation, Setting, WorkingSet};
use crate::bench::{BenchError, machine::memory_bytes};
use crate::codec::{CodeId, Codec, Engine, Geometry};

/// The settings that all sources share, and memory to work in.
pub(super) struct PapersSite {
    pub(super) engine: &'static dyn Engine,
    /// All threads of the machine.
    pub(super) threads: usize,
    pub(super) isal: Option<Isal>,
    pub(super) gpus: Option<Gpus>,
    pub(super) arena: Arena,
    /// How long to measure a figure.
    pub(super) time: Duration,
}

/// A code and its geometry.
pub(super) type Coded = (CodeId, (usize, usize));

impl PapersSite {
    /// Measures how fast the CPU encodes, beside plain XOR and ISA-L.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the code has no such geometry, or the system gives no memory or no threads.
    pub(super) fn on_cpu(
        &mut self,
        coded: Coded,
        shard_bytes: usize,
        (threads, working_set): (usize, WorkingSet),
    ) -> Result<CodecRow, BenchError> {
        let setting = Setting {
            shard_bytes,
            threads,
            working_set,
            stripes: 1,
            operation: Operation::Encode,
        };
        let plan = self.plan(coded, setting)?;
        plan.measure(self.isal.as_ref(), &mut self.arena, self.time)
    }

    /// Measures how fast the first GPU encodes stripes that lie in its memory, beside copies inside it; returns nothing
    /// without a GPU.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the GPU is lost or has too little memory.
    pub(super) fn inside_gpu(
        &self,
        geometry: (usize, usize),
        shard_bytes: usize,
    ) -> Result<Option<CodecRow>, BenchError> {
        let Some(gpus) = &self.gpus else {
            return Ok(None);
        };
        let setting = Setting {
            shard_bytes,
            threads: 1,
            working_set: WorkingSet::Device,
            stripes: 1,
            operation: Operation::Encode,
        };
        let plan = self.plan((CodeId::RS_CAUCHY, geometry), setting)?;
        plan.measure_resident(gpus.first(), self.time).map(Some)
    }

    fn plan(&self, (code, (data, parity)): Coded, setting: Setting) -> Result<RowPlan, BenchError> {
        let geometry = Geometry::new(data, parity)?;
        let codec = Codec::new(code, geometry, self.engine)?;
        Ok(RowPlan::new(codec, setting))
    }
}

/// Returns a lane of so many stripes, filled with noise.
///
/// # Errors
///
/// [`BenchError`] if they take more than half of the machine's memory, or the system does not give it.
pub(super) fn lane(
    arena: &mut Arena,
    geometry: Geometry,
    (shard_bytes, stripes): (usize, usize),
) -> Result<Lane<'_>, BenchError> {
    let needed = geometry.total_shards() * shard_bytes * stripes;
    let limit = memory_bytes() / 2;
    if needed > limit {
        return Err(BenchError::Memory {
            geometry,
            needed,
            limit,
        });
    }
    let lanes = arena.lanes(1, geometry, shard_bytes, stripes);
    let mut lanes = lanes.map_err(|_| BenchError::NoMemory { geometry, needed })?;
    Ok(lanes.remove(0))
}
