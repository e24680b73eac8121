//! The plan of an engine's work: a matrix of coefficients, and the shards to apply it to.

use std::sync::OnceLock;

use crate::{
    CodecError, Engine, Matrix, field, horner::Horner, packets, packets::Packets,
    syndromes::Syndromes,
};

/// Coefficients that turn sources into targets, in the forms that the engines want them in.
///
/// Target r is the sum over all c of `matrix[r][c]` times source c. A plan is made once per
/// generator or erasure pattern and used for many stripes.
#[derive(Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only GFNI, an extension of x86-64, takes maps")
)]
pub struct Plan {
    matrix: Matrix,
    maps: Vec<u64>,
    leading_ones: bool,
    syndromes: Option<Syndromes>,
    horner: OnceLock<Horner>,
    packets: Option<Packets>,
}

impl Plan {
    /// Returns the plan that applies `matrix`: one row per target, one column per source.
    #[must_use]
    pub fn new(matrix: Matrix) -> Self {
        let mut maps = Vec::with_capacity(matrix.rows() * matrix.columns());
        for column in 0..matrix.columns() {
            maps.extend((0..matrix.rows()).map(|row| field::affine_map(matrix.at(row, column))));
        }
        let leading_ones = (0..matrix.rows()).all(|row| matrix.row(row).first() == Some(&1));
        Self {
            matrix,
            maps,
            leading_ones,
            syndromes: None,
            horner: OnceLock::new(),
            packets: None,
        }
    }

    /// Returns the plan that applies `bits` to the packets of whole blocks, and `matrix` to what is
    /// left of them.
    pub(super) fn with_packets(matrix: Matrix, packets: Packets) -> Self {
        Self {
            packets: Some(packets),
            ..Self::new(matrix)
        }
    }

    /// Returns the same plan with a shorter way to go about it.
    pub(super) fn with_syndromes(self, syndromes: Option<Syndromes>) -> Self {
        Self { syndromes, ..self }
    }

    /// Returns the shorter way to replace all targets, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn syndromes(&self) -> Option<&Syndromes> {
        self.syndromes.as_ref()
    }

    /// Returns what to do to packets, if this plan is one for packets.
    pub(super) fn packets(&self) -> Option<&Packets> {
        self.packets.as_ref()
    }

    /// Returns the coefficients.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Returns the coefficients as `gf2p8affineqb` takes them: those of source 0, one per target,
    /// then those of source 1, and so on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn maps(&self) -> &[u64] {
        &self.maps
    }

    /// Returns whether source 0 enters every target unscaled, as in the normalised generator.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn leading_ones(&self) -> bool {
        self.leading_ones
    }

    /// Returns whether every source enters target `row` unscaled: plain XOR.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn row_is_ones(&self, row: usize) -> bool {
        self.matrix
            .row(row)
            .iter()
            .all(|&coefficient| coefficient == 1)
    }

    /// Returns the coefficients taken apart into bits.
    pub(super) fn horner(&self) -> &Horner {
        self.horner.get_or_init(|| Horner::new(&self.matrix))
    }
}

/// The most targets whose sums any engine keeps in registers together.
pub(super) const MOST_TOGETHER: usize = 16;

/// The choice between replacing targets and adding to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Targets become the sum; what they held does not matter.
    Assign,
    /// The sum is added to what targets hold.
    Add,
}

/// The destination of writes to targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stores {
    /// Into the cache, for shards that are or will be there.
    Cached,
    /// Past the cache where the engine can, for working sets that exceed it.
    Streaming,
}

/// A plan with the shards it is to run on. There is one source per column and one target per row,
/// and all of them are equally long: [`Job::new`] checks this.
#[derive(Debug)]
pub struct Job<'a, 't> {
    plan: &'a Plan,
    sources: &'a [&'a [u8]],
    targets: &'a mut [&'t mut [u8]],
    mode: Mode,
    stores: Stores,
    shard_bytes: usize,
}

impl<'a, 't> Job<'a, 't> {
    /// Returns the job of applying `plan` to `sources`.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the shards do not fit the plan
    /// or each other.
    pub fn new(
        plan: &'a Plan,
        sources: &'a [&'a [u8]],
        targets: &'a mut [&'t mut [u8]],
        mode: Mode,
    ) -> Result<Self, CodecError> {
        check_count("source", sources.len(), plan.matrix().columns())?;
        check_count("target", targets.len(), plan.matrix().rows())?;
        let lengths = sources
            .iter()
            .map(|s| s.len())
            .chain(targets.iter().map(|t| t.len()));
        let shard_bytes = common_length(lengths)?;
        Ok(Self {
            plan,
            sources,
            targets,
            mode,
            stores: Stores::Cached,
            shard_bytes,
        })
    }

    /// Returns the same job with another way of writing targets.
    #[must_use]
    pub fn with_stores(self, stores: Stores) -> Self {
        Self { stores, ..self }
    }

    /// Computes all targets on an engine, in packets if the plan is for packets.
    pub fn run(mut self, engine: &dyn Engine) {
        if self.plan.packets().is_some() {
            packets::run(self, engine);
        } else {
            engine.run(&mut self);
        }
    }

    /// Computes bytes `start..end` of all targets from the plan's coefficients.
    pub(super) fn run_columns(&mut self, engine: &dyn Engine, start: usize, end: usize) {
        let sources: Vec<&[u8]> = self
            .sources
            .iter()
            .map(|shard| &shard[start..end])
            .collect();
        let targets = self.targets.iter_mut();
        let mut targets: Vec<&mut [u8]> = targets.map(|shard| &mut shard[start..end]).collect();
        let columns = Job {
            plan: self.plan,
            sources: &sources,
            targets: &mut targets,
            mode: self.mode,
            stores: Stores::Cached,
            shard_bytes: end - start,
        };
        engine.run(&mut { columns });
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Returns the sources, one per column of the plan.
    #[must_use]
    pub fn sources(&self) -> &'a [&'a [u8]] {
        self.sources
    }

    /// Returns one target.
    ///
    /// # Panics
    ///
    /// If the plan has no such row.
    #[must_use]
    pub fn target(&mut self, row: usize) -> &mut [u8] {
        self.targets[row]
    }

    /// Returns how many targets there are.
    #[must_use]
    pub fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// Returns whether targets are replaced or added to.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns where targets are written to.
    #[must_use]
    pub fn stores(&self) -> Stores {
        self.stores
    }

    /// Returns the length of every source and target, in bytes.
    #[must_use]
    pub fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }
}

/// Refuses a number of shards other than the one needed.
pub(super) fn check_count(
    kind: &'static str,
    seen: usize,
    needed: usize,
) -> Result<(), CodecError> {
    if seen == needed {
        Ok(())
    } else {
        Err(CodecError::ShardCount { kind, seen, needed })
    }
}

/// Returns the length that all shards share; 0 if there are none.
pub(super) fn common_length(mut lengths: impl Iterator<Item = usize>) -> Result<usize, CodecError> {
    let Some(needed) = lengths.next() else {
        return Ok(0);
    };
    match lengths.find(|&length| length != needed) {
        Some(seen) => Err(CodecError::ShardLength { seen, needed }),
        None => Ok(needed),
    }
}
