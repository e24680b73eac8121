//! The page of metrics.
//!
//! Names follow <https://prometheus.io/docs/practices/naming/>. A value that cannot be measured now is left out. A member is
//! named by its number. Its path is a label of `cauchyfs_member_info` alone, so that a new path starts no new series.

use std::fmt;
use std::sync::Arc;

use super::families::{self, Family};
use super::process::ProcessUse;
use super::request::Format;
use super::sampler::{PATIENCE, Sample, Sampler};
use crate::control::activity::{ActivityReport, MemberActivity};
use crate::control::mounted::MountedVolume;
use crate::control::server::Announced;
use crate::format::MemberIndex;
use crate::fuse::{BUCKETS, OperationCount, OperationCounts, Transport};
use crate::store::Operations;

mod out;
mod volume;

use out::Out;

/// The origin of all numbers.
pub(crate) struct Source {
    sampler: Arc<Sampler>,
    counts: Arc<OperationCounts>,
    announced: Arc<Announced>,
    volume: Arc<MountedVolume>,
}

impl Source {
    pub(super) fn new(
        sampler: Arc<Sampler>,
        counts: Arc<OperationCounts>,
        announced: Arc<Announced>,
        volume: Arc<MountedVolume>,
    ) -> Self {
        Self {
            sampler,
            counts,
            announced,
            volume,
        }
    }

    /// Writes the page. Returns none if the volume tells nothing yet.
    pub(super) fn page(&self, format: Format) -> Option<String> {
        let written = families::page(self.families()?, format);
        written
            .inspect_err(|error| tracing::error!("metrics cannot be written: {error}"))
            .ok()
    }

    /// Returns all metrics. None if the volume tells nothing yet.
    pub(crate) fn families(&self) -> Option<Vec<Family>> {
        let transport = self.announced.transport()?;
        let sample = self.sampler.latest(PATIENCE)?;
        let numbers = PageNumbers {
            sample,
            transport,
            operations: self.counts.all(),
            bytes_read: self.counts.bytes_read(),
            bytes_written: self.counts.bytes_written(),
            waited: self.counts.waited(),
            process: ProcessUse::now(),
        };
        let collected = numbers.families();
        collected
            .inspect_err(|_| tracing::error!("a metric has a name that another has"))
            .ok()
    }

    /// Returns the counts that cost no look at the volume.
    pub(crate) fn activity(&self) -> ActivityReport {
        let operations = self.counts.all();
        ActivityReport {
            bytes_read: self.counts.bytes_read(),
            bytes_written: self.counts.bytes_written(),
            requests: operations.iter().map(OperationCount::count).sum(),
            requests_failed: operations.iter().map(|it| it.failed).sum(),
            members: self.members(),
        }
    }

    fn members(&self) -> Vec<MemberActivity> {
        let Some(open) = self.volume.now() else {
            return Vec::new();
        };
        let traffic = open.maintenance.transactions().members().traffic();
        let of = |(index, reads, writes): (MemberIndex, Operations, Operations)| MemberActivity {
            index: index.0,
            reads: reads.into(),
            writes: writes.into(),
        };
        traffic.into_iter().map(of).collect()
    }
}

/// All numbers of one page.
#[derive(Debug)]
struct PageNumbers {
    sample: Arc<Sample>,
    transport: Transport,
    operations: Vec<OperationCount>,
    bytes_read: u64,
    bytes_written: u64,
    waited: u64,
    process: Option<ProcessUse>,
}

impl PageNumbers {
    fn families(&self) -> Result<Vec<Family>, fmt::Error> {
        let mut families = Vec::new();
        let mut out = Out::new(&mut families);
        write_operations(self, &mut out)?;
        volume::write_volume(&self.sample, self.transport, &mut out)?;
        volume::write_members(&self.sample, &mut out)?;
        volume::write_data(&self.sample, &mut out)?;
        volume::write_work(&self.sample, &mut out)?;
        if let Some(coding) = &self.sample.report.coding {
            volume::write_coding(coding, &self.sample.report.engine, &mut out)?;
        }
        if let Some(cache) = &self.sample.cache {
            volume::write_cache(cache, &mut out)?;
        }
        if let Some(process) = &self.process {
            write_process(process, &mut out)?;
        }
        out.gauge(
            "process_open_fds",
            self.sample.open_files.map(volume::number),
        )?;
        Ok(families)
    }
}

fn write_operations(numbers: &PageNumbers, out: &mut Out<'_>) -> fmt::Result {
    let of = |operation: &OperationCount| vec![("operation", operation.name.to_owned())];
    out.histograms(
        "cauchyfs_operation_duration_seconds",
        numbers.operations.iter().map(|operation| {
            let bounds = BUCKETS.map(|bound| Some(bound.as_secs_f64())).into_iter();
            let buckets = bounds.chain([None]).zip(operation.buckets);
            (
                of(operation),
                operation.time.as_secs_f64(),
                buckets.collect(),
            )
        }),
    )?;
    out.counters(
        "cauchyfs_operation_errors",
        numbers.operations.iter().map(|it| (of(it), it.failed)),
    )?;
    out.counter("cauchyfs_operation_waits", &numbers.waited)?;
    out.counter("cauchyfs_read_bytes", &numbers.bytes_read)?;
    out.counter("cauchyfs_written_bytes", &numbers.bytes_written)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has no other numbers"
)]
fn write_process(process: &ProcessUse, out: &mut Out<'_>) -> fmt::Result {
    out.counter("process_cpu_seconds", &process.cpu_seconds)?;
    out.gauge(
        "process_resident_memory_bytes",
        process.resident_bytes as f64,
    )?;
    out.gauge("process_virtual_memory_bytes", process.virtual_bytes as f64)?;
    out.gauge("process_threads", process.threads as f64)
}

#[cfg(test)]
pub(super) mod tests;
