//! The job of an engine: a plan, and the shards to apply it to.

use crate::{CodecError, Plan, fft::Program};

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

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Returns the transforms that replace all targets, if the job is to do so, and its plan has them.
    pub(super) fn program(&self) -> Option<&'a Program> {
        let program = self.plan.program();
        program.filter(|_| self.mode == Mode::Assign)
    }

    /// Returns the sources, one per column of the plan.
    #[must_use]
    pub fn sources(&self) -> &'a [&'a [u8]] {
        self.sources
    }

    /// Returns the targets, one per row of the plan.
    pub(super) fn targets(&mut self) -> &mut [&'t mut [u8]] {
        self.targets
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
