//! Engines: the loops over bytes, one per kind of CPU, all with the same result.

#[cfg(target_arch = "x86_64")]
mod affine;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod bitsliced;
mod candidates;
mod fft;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packets;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod plain;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod quads;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tables;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use crate::{
    Job,
    rateless::{BitLanes, BitRows, SelectionJob},
};

pub use candidates::{Candidate, candidates, engines, select};

/// A loop over bytes that this machine can run. The choice of an engine never changes a byte of the
/// result, only how soon it is there.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Returns the name by which `--engine` picks it and `status` shows it.
    fn name(&self) -> &'static str;

    /// Computes all targets of the job from its plan's coefficients.
    fn run(&self, job: &mut Job<'_, '_>);

    /// Computes the packets of all whole blocks, replacing what targets held. The bytes behind the
    /// last packet of a block stay as they are. [`Job::run`] does the rest.
    ///
    /// # Panics
    ///
    /// If the job's plan is not one for packets.
    fn run_packets(&self, job: &mut Job<'_, '_>);

    /// Writes the plain XOR of all sources to every target, whatever the plan says: the same memory
    /// traffic as [`Self::run`], with the least arithmetic there can be. Hardly any code can be faster
    /// on these registers, so `bench` holds engines against it.
    fn run_plain(&self, job: &mut Job<'_, '_>);

    /// Writes the sums of packets that the job's selection calls for to all targets. If the job is one of a series,
    /// [`Self::fence`] must follow before another thread is told of the targets.
    fn run_selection(&self, job: &mut SelectionJob<'_, '_>);

    /// Orders all that this thread wrote past the caches before its later writes.
    fn fence(&self);

    /// Eliminates the rows of a random code in place, as Gauss and Jordan do, and returns their rank. `order` begins as
    /// any labels, one to a row, and moves with the rows.
    ///
    /// If the rank is the number of columns, row c of the result is the combination of packets that gives source packet
    /// c. Its column p stands for the packet with label `order[p]`. Otherwise the content is meaningless.
    ///
    /// # Panics
    ///
    /// If there are not as many labels as rows.
    fn eliminate(&self, rows: &mut BitRows, order: &mut [usize]) -> usize;

    /// Eliminates the rows of several small messages at once.
    fn eliminate_lanes(&self, lanes: &mut BitLanes);
}
