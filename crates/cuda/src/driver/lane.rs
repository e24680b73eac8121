//! A lane: pieces of a batch on their way to a device, on it, and back.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::{
    context::Context,
    copy::{Copies, End},
    kernels::{Applied, Kernels},
    launch::Stripes,
    memory::{DeviceMemory, Staged},
    module::Module,
    stream::{Event, Purpose, Stream},
};
use crate::{
    DeviceError, Lane, MatrixBatch, Program,
    cut::{self, Piece},
    ptx::Kind,
};
use cauchyfs_codec::{BLOCK_BYTES, Item, Targets};

/// Pieces of a batch that are worked on at once: one on its way there, one on the device or on its way back.
const SLOTS: usize = 2;

/// Bytes of a piece, at most.
const PIECE_BYTES: usize = 64 << 20;

/// Words for the results of a piece: a verdict and a sum per block. There are no more of either than shards
/// would be if they were as short as can be.
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

    fn run_pieces(
        &mut self,
        task: &Task,
        work: &mut MatrixBatch<'_, '_>,
    ) -> Result<(), DeviceError> {
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
    fn run(&mut self, work: &mut MatrixBatch<'_, '_>) -> Result<Program, DeviceError> {
        self.context.enter()?;
        // Kernels that may still run belong to it: it goes after they were waited for.
        let task = Task::new(work, &self.kernels)?;
        // Even if this fails or panics, nothing touches the items any more when it is over.
        let mut lane = scopeguard::guard(self, |lane| {
            lane.slots.iter_mut().for_each(Slot::abandon);
        });
        lane.run_pieces(&task, work)?;
        Ok(task.applied.program())
    }
}

/// The operation on every piece of a batch.
struct Task {
    sources: usize,
    targets: usize,
    shard_bytes: usize,
    is_compared: bool,
    applied: Arc<Applied>,
    /// The module that computes checksums, if they are wanted.
    checksums: Option<Arc<Module>>,
}

impl Task {
    /// Returns the task of a batch.
    ///
    /// # Panics
    ///
    /// If there are no items, or they are empty, not alike, or do not fit the matrix: lengths are relied on when the device writes.
    fn new(work: &MatrixBatch<'_, '_>, kernels: &Kernels) -> Result<Self, DeviceError> {
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
            let blocks = first.blocks();
            assert!(
                item.sums.iter().all(|list| list.len() == blocks),
                "{item:?}"
            );
            if let Targets::Compared { wrong, .. } = &item.targets {
                assert_eq!(wrong.len(), targets * blocks, "{item:?}");
            }
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
            piece.items.len() * self.targets * piece.blocks().len()
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
        let blocks = piece.blocks();
        if self.is_compared {
            let all_blocks = self.shard_bytes.div_ceil(BLOCK_BYTES);
            let lists = items.iter_mut().flat_map(|item| match &mut item.targets {
                Targets::Compared { wrong, .. } => wrong.chunks_mut(all_blocks),
                Targets::Written(_) => [].chunks_mut(all_blocks),
            });
            for (list, verdicts) in lists.zip(verdicts.chunks(blocks.len())) {
                for (wrong, &verdict) in list[blocks.clone()].iter_mut().zip(verdicts) {
                    *wrong = verdict != 0;
                }
            }
        }
        if self.checksums.is_some() {
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
    /// Those that are about to be queued; kept for its room.
    copies: Copies,
}

/// A piece whose results have not been handed over yet.
struct UnderWay {
    piece: Piece,
    /// The place of its results among the staged words.
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
            copies: Copies::default(),
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
        self.copies.clear();
        for (index, item) in items[piece.items.clone()].iter().enumerate() {
            let address = stripes.address + (index * stripes.stride) as u64;
            self.send(&item.sources, piece, address);
            if let Targets::Compared { shards, .. } = &item.targets {
                self.send(shards, piece, address + (task.sources * pitch) as u64);
            }
        }
        // SAFETY: these are columns of borrowed shards, which the lane does not return before the stream is
        // done with them; the device has room for all shards of the piece.
        unsafe { self.stream.copy_all(&mut self.copies) }?;
        let verdicts = self.results.address();
        let words = task.verdict_words(piece);
        let sums = verdicts + (words * size_of::<u32>()) as u64;
        if task.is_compared {
            // SAFETY: the results have room for as many, and live until the stream is done.
            unsafe { self.stream.clear(verdicts, words) }?;
        }
        // SAFETY: stripes lie as their description says, in memory that was checked to be long enough. Addresses of
        // allocations, pitches and strides are multiples of 256. The task's matrix has as many sources and targets.
        unsafe { stripes.apply(&self.stream, &task.applied, verdicts) }?;
        if let Some(module) = &task.checksums {
            // SAFETY: as above; behind the verdicts there is room for the sums.
            unsafe { stripes.sum(&self.stream, module, sums) }?;
        }
        self.copies.clear();
        for (index, item) in items[piece.items.clone()].iter_mut().enumerate() {
            let address = stripes.address + (index * stripes.stride) as u64;
            if let Targets::Written(shards) = &mut item.targets {
                self.fetch(shards, piece, address + (task.sources * pitch) as u64);
            }
        }
        self.fetch_results(&staged);
        // SAFETY: as above, and the shards are borrowed mutably; the staged words are not read before
        // the stream was waited for.
        unsafe { self.stream.copy_all(&mut self.copies) }
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

    /// Adds columns of shards to the copies that go to the device.
    fn send(&mut self, shards: &[&[u8]], piece: &Piece, to: u64) {
        let pitch = piece.pitch();
        for (index, shard) in shards.iter().enumerate() {
            let from = End::Host {
                address: shard[piece.columns.clone()].as_ptr().expose_provenance(),
                pitch: shard.len(),
            };
            let address = to + (index * pitch) as u64;
            let to = End::Device { address, pitch };
            self.copies.add(from, to, piece.bytes());
        }
    }

    /// Adds columns of shards to the copies that come from the device.
    fn fetch(&mut self, shards: &mut [&mut [u8]], piece: &Piece, from: u64) {
        let pitch = piece.pitch();
        for (index, shard) in shards.iter_mut().enumerate() {
            let address = from + (index * pitch) as u64;
            let from = End::Device { address, pitch };
            let to = End::Host {
                address: shard[piece.columns.clone()]
                    .as_mut_ptr()
                    .expose_provenance(),
                pitch: shard.len(),
            };
            self.copies.add(from, to, piece.bytes());
        }
    }

    /// Adds verdicts and sums, if there are any, to the copies that come from the device.
    fn fetch_results(&mut self, staged: &Range<usize>) {
        if staged.is_empty() {
            return;
        }
        let width = staged.len() * size_of::<u32>();
        let from = End::Device {
            address: self.results.address(),
            pitch: width,
        };
        let words = self.staged.as_mut_ptr().wrapping_add(staged.start);
        let to = End::Host {
            address: words.expose_provenance(),
            pitch: width,
        };
        self.copies.add(from, to, width);
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
        let mut was_used = !self.under_way.is_empty();
        self.under_way.clear();
        self.stream.abandon(&mut was_used);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.abandon();
    }
}
