//! The part of the report about coding.

use serde::{Deserialize, Serialize};

use crate::coding::{Coded, Coding};

/// The work of coding since the volume was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodingReport {
    pub(crate) cpu: CodedReport,
    pub(crate) cuda: CodedReport,
    /// Passes that the CPU did because a GPU had failed to.
    pub(crate) redone: u64,
    /// The GPUs in use.
    pub(crate) gpus: Vec<String>,
    /// Those that do not answer; stripes wait for them.
    #[serde(default)]
    pub(crate) gpus_hanging: Vec<String>,
    /// The work of each GPU, in their order, with those that are not used any more. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) gpu_times: Vec<GpuTimeReport>,
}

/// The time that a GPU has worked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GpuTimeReport {
    pub(crate) name: String,
    /// The time in which it had at least one batch.
    pub(crate) seconds: f64,
}

/// The work of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodedReport {
    pub(crate) passes: u64,
    pub(crate) bytes: u64,
    /// While at least one pass was under way.
    pub(crate) gb_per_s: f64,
    /// The time in which at least one pass was under way. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) seconds: f64,
}

impl From<Coded> for CodedReport {
    fn from(coded: Coded) -> Self {
        Self {
            passes: coded.passes,
            bytes: coded.bytes,
            gb_per_s: coded.bytes_per_second() / 1e9,
            seconds: coded.busy.as_secs_f64(),
        }
    }
}

impl From<Coding> for CodingReport {
    fn from(coding: Coding) -> Self {
        Self {
            cpu: coding.cpu.into(),
            cuda: coding.cuda.into(),
            redone: coding.redone,
            gpus: coding.devices,
            gpus_hanging: coding.hanging,
            gpu_times: coding
                .device_times
                .into_iter()
                .map(|(name, busy)| GpuTimeReport {
                    name,
                    seconds: busy.as_secs_f64(),
                })
                .collect(),
        }
    }
}
