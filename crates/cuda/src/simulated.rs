//! A device that computes on the CPU, and fails when told to.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::{Device, DeviceError, Lane, MatrixBatch, Program};
use cauchyfs_codec::{BLOCK_BYTES, Item, Job, Mode, Plan, Targets, select};

/// A device made of software: slow, right, and as faulty as a test wants it. Clones are the same device.
///
/// Its operations (making a lane, running a batch, pinning and unpinning) are counted from 0. Any of them can be made
/// to fail, or all from one on.
#[derive(Clone, Default)]
pub struct Simulated {
    shared: Arc<SimulatedDevice>,
}

#[derive(Default)]
struct SimulatedDevice {
    state: Mutex<SimulatedState>,
    opened: Condvar,
}

#[derive(Default)]
struct SimulatedState {
    operations: u64,
    failing: BTreeSet<u64>,
    lost_from: Option<u64>,
    lying_from: Option<u64>,
    lying_from_item: Option<usize>,
    is_blind: bool,
    recompiled_from: Option<u64>,
    shut: bool,
    /// The number of lanes that are made before further ones are held up.
    most_lanes: Option<usize>,
    lanes: usize,
    waiting: usize,
    /// Starts and lengths of what is pinned.
    pinned: BTreeSet<(usize, usize)>,
    batches: Vec<usize>,
}

impl Simulated {
    /// Lets operation number `operation` fail, and the others succeed.
    #[must_use]
    pub fn failing_at(self, operation: u64) -> Self {
        self.shared.state.lock().failing.insert(operation);
        self
    }

    /// Loses the device with operation number `operation`.
    #[must_use]
    pub fn lost_from(self, operation: u64) -> Self {
        self.shared.state.lock().lost_from = Some(operation);
        self
    }

    /// Gives wrong results from operation number `operation` on, and says that they are right.
    #[must_use]
    pub fn lying_from(self, operation: u64) -> Self {
        self.shared.state.lock().lying_from = Some(operation);
        self
    }

    /// Gives wrong results from now on for all items of a batch from number `item` on. They are counted from 0.
    #[must_use]
    pub fn lying_from_item(self, item: usize) -> Self {
        self.shared.state.lock().lying_from_item = Some(item);
        self
    }

    /// Never finds anything wrong with what it compares.
    #[must_use]
    pub fn blind(self) -> Self {
        self.shared.state.lock().is_blind = true;
        self
    }

    /// Runs another program for each matrix from operation number `operation` on.
    #[must_use]
    pub fn recompiled_from(self, operation: u64) -> Self {
        self.shared.state.lock().recompiled_from = Some(operation);
        self
    }

    /// Lets all operations succeed again that were to fail; a lost device stays lost.
    pub fn heal(&self) {
        self.shared.state.lock().failing.clear();
    }

    /// Keeps batches from being run from now on, until [`Self::open`].
    pub fn shut(&self) {
        self.shared.state.lock().shut = true;
    }

    /// Makes so many lanes, and keeps more from being made until [`Self::open`].
    #[must_use]
    pub fn shut_after_lanes(self, most: usize) -> Self {
        self.shared.state.lock().most_lanes = Some(most);
        self
    }

    /// Lets batches be run and lanes be made again.
    pub fn open(&self) {
        let mut state = self.shared.state.lock();
        (state.shut, state.most_lanes) = (false, None);
        drop(state);
        self.shared.opened.notify_all();
    }

    /// Returns how many batches and lanes wait for [`Self::open`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().waiting
    }

    /// Returns how many operations were asked for.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().operations
    }

    /// Returns how many items each batch had that was run to its end.
    #[must_use]
    pub fn batches(&self) -> Vec<usize> {
        self.shared.state.lock().batches.clone()
    }

    /// Returns how many bytes are pinned.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.shared.state.lock().pinned.iter().map(|p| p.1).sum()
    }

    /// Counts an operation, and fails if it is one of those that are to.
    fn begin(&self, operation: &'static str) -> Result<(), DeviceError> {
        let mut state = self.shared.state.lock();
        let number = state.operations;
        state.operations += 1;
        let reason = format!("operation {number} of a simulated device");
        if state.lost_from.is_some_and(|from| number >= from) {
            return Err(DeviceError::Lost { operation, reason });
        }
        if state.failing.contains(&number) {
            return Err(DeviceError::Failed { operation, reason });
        }
        Ok(())
    }

    fn wait_while(&self, is_shut: impl Fn(&SimulatedState) -> bool) {
        let mut state = self.shared.state.lock();
        state.waiting += 1;
        while is_shut(&state) {
            self.shared.opened.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

impl Device for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn lane(&self) -> Result<Box<dyn Lane>, DeviceError> {
        let number = {
            let mut state = self.shared.state.lock();
            state.lanes += 1;
            state.lanes
        };
        self.wait_while(|state| state.most_lanes.is_some_and(|most| number > most));
        self.begin("make a lane")?;
        Ok(Box::new(self.clone()))
    }

    fn pin(&self, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.begin("pin memory")?;
        let range = (memory.as_ptr().addr(), memory.len());
        let new = self.shared.state.lock().pinned.insert(range);
        assert!(new, "memory is pinned once");
        Ok(())
    }

    fn unpin(&self, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.begin("unpin memory")?;
        let range = (memory.as_ptr().addr(), memory.len());
        let known = self.shared.state.lock().pinned.remove(&range);
        assert!(known, "only what was pinned is unpinned");
        Ok(())
    }
}

impl Lane for Simulated {
    fn run(&mut self, work: &mut MatrixBatch<'_, '_>) -> Result<Program, DeviceError> {
        self.wait_while(|state| state.shut);
        if let Err(error) = self.begin("run a batch") {
            // A device that fails half way leaves anything behind.
            work.items.iter_mut().for_each(spoil);
            return Err(error);
        }
        let plan = Plan::new(work.matrix.clone());
        work.items.iter_mut().for_each(|item| apply(&plan, item));
        let mut state = self.shared.state.lock();
        state.batches.push(work.items.len());
        let is_past = |from: Option<u64>| from.is_some_and(|from| state.operations > from);
        let first_wrong = if is_past(state.lying_from) {
            0
        } else {
            state.lying_from_item.unwrap_or(work.items.len())
        };
        work.items.iter_mut().skip(first_wrong).for_each(falsify);
        if state.is_blind {
            work.items.iter_mut().for_each(overlook);
        }
        let device = Arc::as_ptr(&self.shared).addr();
        let is_recompiled = is_past(state.recompiled_from);
        Ok(Program::of((device, work.matrix, is_recompiled)))
    }
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Simulated")
    }
}

fn spoil(item: &mut Item<'_>) {
    match &mut item.targets {
        Targets::Written(shards) => shards.iter_mut().for_each(|shard| shard.fill(0xEE)),
        Targets::Compared { wrong, .. } => wrong.fill(true),
    }
    item.sums.iter_mut().for_each(|list| list.fill(0xEEEE_EEEE));
}

/// Changes as little as there is.
fn falsify(item: &mut Item<'_>) {
    if let Some(last) = item.sums.last_mut().and_then(|list| list.last_mut()) {
        *last ^= 1;
        return;
    }
    match &mut item.targets {
        Targets::Written(shards) => {
            if let Some(last) = shards.last_mut().and_then(|shard| shard.last_mut()) {
                *last ^= 1;
            }
        }
        Targets::Compared { wrong, .. } => {
            if let Some(first) = wrong.first_mut() {
                *first ^= true;
            }
        }
    }
}

/// Calls everything right.
fn overlook(item: &mut Item<'_>) {
    if let Targets::Compared { wrong, .. } = &mut item.targets {
        wrong.fill(false);
    }
}

fn apply(plan: &Plan, item: &mut Item<'_>) {
    let bytes = item.shard_bytes();
    let mut computed = vec![0; bytes * item.targets.count()];
    let mut rows: Vec<&mut [u8]> = computed.chunks_exact_mut(bytes).collect();
    let job = Job::new(plan, &item.sources, &mut rows, Mode::Assign);
    let scalar = select("scalar").expect("every machine runs scalar code");
    job.expect("a batch is one of items that fit").run(scalar);
    let compared: Vec<&[u8]> = match &mut item.targets {
        Targets::Written(shards) => {
            for (shard, row) in shards.iter_mut().zip(&rows) {
                shard.copy_from_slice(row);
            }
            shards.iter().map(|shard| &**shard).collect()
        }
        Targets::Compared { shards, wrong } => {
            let there = shards.iter().flat_map(|shard| shard.chunks(BLOCK_BYTES));
            let right = rows.iter().flat_map(|row| row.chunks(BLOCK_BYTES));
            for ((there, right), wrong) in there.zip(right).zip(wrong) {
                *wrong = there != right;
            }
            shards.clone()
        }
    };
    for (shard, list) in item.sources.iter().chain(&compared).zip(&mut item.sums) {
        for (block, sum) in shard.chunks(BLOCK_BYTES).zip(list.iter_mut()) {
            *sum = crc32c::crc32c(block);
        }
    }
}
