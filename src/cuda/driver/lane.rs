//! A lane: pieces of a batch on their way to a device, on it, and back.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::{
    context::Context,
    kernels::{Applied, Kernels},
    launch::Stripes,
    memory::{DeviceMemory, Staged},
    module::Module,
    stream::{Copy, End, Event, Purpose, Stream},
};
use crate::codec::{BLOCK_BYTES, Item, Targets};
use crate::cuda::{
    DeviceError, Lane, Program, Work,
    cut::{self, Piece},
    ptx::Kind,
};

/// Pieces of a batch that are worked on at once: one on its way there, one on the device or on its way back.
const SLOTS: usize = 2;

/// Bytes of a piece, at most.
const PIECE_BYTES: usize = 64 << 20;

/// Words for the results of a piece: a verdict per target, and a sum per block. There are no more of either
/// than shards would be if they were as short as can be.
const RESULT_WORDS: usize = 2 * cut::most_shards(PIECE_BYTES);

/// Words for the results of all pieces that a slot has under way. As a rule a piece has far fewer than it
/// might have.
const STAGED_WORDS: usize = RESULT_WORDS;

/// Pieces that a slot takes one behind the other before it is waited for.
const MOST_UNDER_WAY: usize = 32;

/// A lane of a GPU.
pub(super) struct GpuLane {
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    slots: Vec<Slot>,
}

impl GpuLane {
    /// Makes a lane with all the memory it will need.
    ///
    /// # Errors
    ///
    /// If the device is lost, or memory is short.
    pub(super) fn new(context: &Arc<Context>, kernels: &Arc<Kernels>) -> Result<Self, DeviceError> {
        let slots = (0..SLOTS).map(|_| Slot::new(context));
        Ok(Self {
            context: Arc::clone(context),
            kernels: Arc::clone(kernels),
            slots: slots.collect::<Result<_, _>>()?,
        })
    }

    fn run_pieces(&mut self, task: &Task, work: &mut Work<'_, '_>) -> Result<(), DeviceError> {
        let pieces = cut::cut(
            work.items.len(),
            task.sources + task.targets,
            task.shard_bytes,
            PIECE_BYTES,
        );
        for (index, piece) in pieces.iter().enumerate() {
            self.slots[index % SLOTS].start(task, piece, work.items)?;
        }
        self.wait((pieces.len() - 1) % SLOTS)?;
        for slot in &mut self.slots {
            slot.hand_over(task, work.items);
        }
        Ok(())
    }

    /// Waits for all slots at once; the last piece was given to `last`.
    fn wait(&self, last: usize) -> Result<(), DeviceError> {
        let last = &self.slots[last];
        for slot in &self.slots {
            if !ptr::eq(slot, last) && !slot.under_way.is_empty() {
                slot.ordered.record(&slot.stream)?;
                last.stream.follow(&slot.ordered)?;
            }
        }
        last.wait()
    }
}

impl Lane for GpuLane {
    fn run(&mut self, work: &mut Work<'_, '_>) -> Result<Program, DeviceError> {
        self.context.enter()?;
        // Kernels that may still run belong to it: it goes after they were waited for.
        let task = Task::new(work, &self.kernels)?;
        // Whether this fails or panics, nothing touches the items any more when it is over.
        let mut lane = scopeguard::guard(self, |lane| {
            lane.slots.iter_mut().for_each(Slot::abandon);
        });
        lane.run_pieces(&task, work)?;
        Ok(task.applied.program())
    }
}

/// What is done to every piece of a batch.
struct Task {
    sources: usize,
    targets: usize,
    shard_bytes: usize,
    is_compared: bool,
    applied: Arc<Applied>,
    /// What computes checksums, if they are wanted.
    checksums: Option<Arc<Module>>,
}

impl Task {
    /// Returns the task of a batch.
    ///
    /// # Panics
    ///
    /// If there are no items, or they are empty, not alike, or do not fit the matrix: lengths are relied on when the device writes.
    fn new(work: &Work<'_, '_>, kernels: &Kernels) -> Result<Self, DeviceError> {
        let first = &work.items[0];
        assert_ne!(first.shard_bytes(), 0, "{first:?}");
        let (sources, targets) = (work.matrix.columns(), work.matrix.rows());
        let (shard_bytes, is_compared) = (first.shard_bytes(), first.is_compared());
        let lists = first.sums.len();
        for item in &*work.items {
            assert_eq!(
                (item.sources.len(), item.targets.count()),
                (sources, targets)
            );
            assert!(
                lengths(item).all(|length| length == shard_bytes),
                "{item:?}"
            );
            assert_eq!((item.is_compared(), item.sums.len()), (is_compared, lists));
            let blocks = shard_bytes.div_ceil(BLOCK_BYTES);
            assert!(
                item.sums.iter().all(|list| list.len() == blocks),
                "{item:?}"
            );
        }
        assert!(lists == 0 || lists == sources + targets, "{first:?}");
        let kind = if is_compared {
            Kind::Compare
        } else {
            Kind::Write
        };
        let bytes = (work.items.len() * (sources + targets) * shard_bytes) as u64;
        let checksums = (lists > 0).then(|| kernels.checksums()).transpose()?;
        Ok(Self {
            sources,
            targets,
            shard_bytes,
            is_compared,
            applied: kernels.applying(work.matrix, kind, bytes)?,
            checksums,
        })
    }

    /// Returns how many verdicts a piece has.
    fn verdict_words(&self, piece: &Piece) -> usize {
        if self.is_compared {
            piece.items.len() * self.targets
        } else {
            0
        }
    }

    /// Returns how many sums a piece has.
    fn sum_words(&self, piece: &Piece) -> usize {
        if self.checksums.is_none() {
            return 0;
        }
        piece.items.len() * (self.sources + self.targets) * piece.blocks().len()
    }

    /// Hands results of a piece, verdicts first, over to its items.
    fn hand_over(&self, piece: &Piece, results: &[u32], items: &mut [Item<'_>]) {
        let (verdicts, sums) = results.split_at(self.verdict_words(piece));
        if self.is_compared {
            for (item, verdicts) in items.iter_mut().zip(verdicts.chunks(self.targets)) {
                if let Targets::Compared { wrong, .. } = &mut item.targets {
                    for (wrong, &verdict) in wrong.iter_mut().zip(verdicts) {
                        *wrong |= verdict != 0;
                    }
                }
            }
        }
        if self.checksums.is_some() {
            let blocks = piece.blocks();
            let lists = items.iter_mut().flat_map(|item| item.sums.iter_mut());
            for (list, sums) in lists.zip(sums.chunks(blocks.len())) {
                list[blocks.clone()].copy_from_slice(sums);
            }
        }
    }
}

fn lengths<'i>(item: &'i Item<'_>) -> Box<dyn Iterator<Item = usize> + 'i> {
    let sources = item.sources.iter().map(|shard| shard.len());
    match &item.targets {
        Targets::Written(shards) => Box::new(sources.chain(shards.iter().map(|s| s.len()))),
        Targets::Compared { shards, .. } => Box::new(sources.chain(shards.iter().map(|s| s.len()))),
    }
}

/// Room for one piece on the device, which takes one behind the other: the stream sees to it that none
/// overwrites what is left of the one before.
struct Slot {
    // Nothing uses these any more when they go: `Drop` waits for the stream.
    stream: Stream,
    done: Event,
    ordered: Event,
    shards: DeviceMemory,
    results: DeviceMemory,
    staged: Staged,
    under_way: Vec<UnderWay>,
}

/// A piece whose results have not been handed over yet.
struct UnderWay {
    piece: Piece,
    /// Where its results will be among the staged words.
    staged: Range<usize>,
}

impl Slot {
    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let stream = Stream::new(context)?;
        let shards = DeviceMemory::new(context, PIECE_BYTES)?;
        // Between the ends of shards and the beginnings of the next lie bytes that kernels read along, and that
        // nothing depends on.
        // SAFETY: so many words were allocated, and the stream is done with them before they are freed.
        unsafe { stream.clear(shards.address(), shards.len() / size_of::<u32>()) }?;
        Ok(Self {
            stream,
            done: Event::new(context, Purpose::Sleep)?,
            ordered: Event::new(context, Purpose::Order)?,
            shards,
            results: DeviceMemory::new(context, RESULT_WORDS * size_of::<u32>())?,
            staged: Staged::new(context, STAGED_WORDS)?,
            under_way: Vec::with_capacity(MOST_UNDER_WAY),
        })
    }

    /// Queues everything that is to be done to a piece.
    fn start(
        &mut self,
        task: &Task,
        piece: &Piece,
        items: &mut [Item<'_>],
    ) -> Result<(), DeviceError> {
        let pitch = piece.pitch();
        let stripes = Stripes {
            address: self.shards.address(),
            pitch,
            stride: (task.sources + task.targets) * pitch,
            count: piece.items.len(),
            bytes: piece.bytes(),
            sources: task.sources,
            targets: task.targets,
        };
        assert!(
            stripes.count * stripes.stride <= self.shards.len(),
            "{piece:?}"
        );
        // From here on the device may be using the items, whatever fails.
        let staged = self.admit(task, piece, items)?;
        for (index, item) in items[piece.items.clone()].iter().enumerate() {
            let address = stripes.address + (index * stripes.stride) as u64;
            self.send(&item.sources, piece, address)?;
            if let Targets::Compared { shards, .. } = &item.targets {
                self.send(shards, piece, address + (task.sources * pitch) as u64)?;
            }
        }
        let verdicts = self.results.address();
        let words = task.verdict_words(piece);
        let sums = verdicts + (words * size_of::<u32>()) as u64;
        if task.is_compared {
            // SAFETY: the results have room for as many, and live until the stream is done.
            unsafe { self.stream.clear(verdicts, words) }?;
        }
        // SAFETY: stripes lie as said in memory that was checked to be long enough, pitches are
        // multiples of 256, and the task's matrix has as many sources and targets.
        unsafe { stripes.apply(&self.stream, &task.applied, verdicts) }?;
        if let Some(module) = &task.checksums {
            // SAFETY: as above; behind the verdicts there is room for the sums.
            unsafe { stripes.sum(&self.stream, module, sums) }?;
        }
        for (index, item) in items[piece.items.clone()].iter_mut().enumerate() {
            let address = stripes.address + (index * stripes.stride) as u64;
            if let Targets::Written(shards) = &mut item.targets {
                self.fetch(shards, piece, address + (task.sources * pitch) as u64)?;
            }
        }
        self.fetch_results(&staged)
    }

    /// Takes a piece up among those that are under way; returns where its results will be.
    fn admit(
        &mut self,
        task: &Task,
        piece: &Piece,
        items: &mut [Item<'_>],
    ) -> Result<Range<usize>, DeviceError> {
        let words = task.verdict_words(piece) + task.sum_words(piece);
        assert!(words <= RESULT_WORDS, "{piece:?} has {words} results");
        let end = |slot: &Self| slot.under_way.last().map_or(0, |last| last.staged.end);
        if end(self) + words > STAGED_WORDS || self.under_way.len() == MOST_UNDER_WAY {
            self.wait()?;
            self.hand_over(task, items);
        }
        let staged = end(self)..end(self) + words;
        self.under_way.push(UnderWay {
            piece: piece.clone(),
            staged: staged.clone(),
        });
        Ok(staged)
    }

    /// Queues the copy of columns of shards to the device, those that are adjacent in memory at once.
    fn send(&self, shards: &[&[u8]], piece: &Piece, to: u64) -> Result<(), DeviceError> {
        let pointers: Vec<*const u8> = shards.iter().map(|shard| shard.as_ptr()).collect();
        let shard_bytes = shards.first().map_or(0, |shard| shard.len());
        for run in runs(&pointers, shard_bytes) {
            let first = shards[run.start][piece.columns.clone()].as_ptr();
            let copy = Copy {
                from: End::Host {
                    address: first.cast_mut().cast(),
                    pitch: shard_bytes,
                },
                to: End::Device {
                    address: to + (run.start * piece.pitch()) as u64,
                    pitch: piece.pitch(),
                },
                width: piece.bytes(),
                rows: run.len(),
            };
            // SAFETY: the rows are columns of borrowed shards, which the lane does not return before
            // the stream is done with; the device has room for all shards of the piece.
            unsafe { self.stream.copy(&copy) }?;
        }
        Ok(())
    }

    /// Queues the copy of columns of shards from the device, those that are adjacent in memory at once.
    fn fetch(&self, shards: &mut [&mut [u8]], piece: &Piece, from: u64) -> Result<(), DeviceError> {
        let shard_bytes = shards.first().map_or(0, |shard| shard.len());
        let pointers: Vec<*mut u8> = shards.iter_mut().map(|shard| shard.as_mut_ptr()).collect();
        let read: Vec<*const u8> = pointers
            .iter()
            .map(|pointer| pointer.cast_const())
            .collect();
        for run in runs(&read, shard_bytes) {
            let first: *mut c_void = pointers[run.start].wrapping_add(piece.columns.start).cast();
            let copy = Copy {
                from: End::Device {
                    address: from + (run.start * piece.pitch()) as u64,
                    pitch: piece.pitch(),
                },
                to: End::Host {
                    address: first,
                    pitch: shard_bytes,
                },
                width: piece.bytes(),
                rows: run.len(),
            };
            // SAFETY: as in `send`, and the shards are borrowed mutably.
            unsafe { self.stream.copy(&copy) }?;
        }
        Ok(())
    }

    /// Queues the copy of verdicts and sums, if there are any.
    fn fetch_results(&mut self, staged: &Range<usize>) -> Result<(), DeviceError> {
        if staged.is_empty() {
            return Ok(());
        }
        let width = staged.len() * size_of::<u32>();
        let copy = Copy {
            from: End::Device {
                address: self.results.address(),
                pitch: width,
            },
            to: End::Host {
                address: self.staged.as_mut_ptr().wrapping_add(staged.start).cast(),
                pitch: width,
            },
            width,
            rows: 1,
        };
        // SAFETY: both ends have room for so many words, live as long as the stream, and are not
        // touched before the stream was waited for.
        unsafe { self.stream.copy(&copy) }
    }

    /// Waits until the stream is done with all that it has.
    fn wait(&self) -> Result<(), DeviceError> {
        self.done.record(&self.stream)?;
        self.done.wait()
    }

    /// Hands the results of all pieces that were under way over; they have been waited for.
    fn hand_over(&mut self, task: &Task, items: &mut [Item<'_>]) {
        for UnderWay { piece, staged } in self.under_way.drain(..) {
            let results = &self.staged.words()[staged];
            task.hand_over(&piece, results, &mut items[piece.items.clone()]);
        }
    }

    /// Waits until the device uses no item any more, after something failed.
    fn abandon(&mut self) {
        let was_used = !self.under_way.is_empty();
        self.under_way.clear();
        if was_used && let Err(error) = self.stream.finish() {
            // A lost device uses nothing; what failed first is what is reported.
            log::debug!("after a failure: {error}");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Returns the runs of shards of which each begins where the one before ends.
fn runs(shards: &[*const u8], shard_bytes: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, shard) in shards.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if shards[index - 1].wrapping_add(shard_bytes) == *shard => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    #[test]
    fn adjacent_shards_travel_together() {
        let memory = [0u8; 100];
        let at = |offset: usize| memory[offset..].as_ptr();
        let runs = |offsets: &[usize]| {
            let shards: Vec<*const u8> = offsets.iter().map(|&offset| at(offset)).collect();
            super::runs(&shards, 10)
        };
        assert_eq!(runs(&[0, 10, 20, 50]), [0..3, 3..4]);
        assert_eq!(runs(&[0, 10, 30, 40, 20]), [0..2, 2..4, 4..5]);
        assert_eq!(runs(&[10, 0]), [0..1, 1..2]);
        assert_eq!(runs(&[]), []);
    }
}
