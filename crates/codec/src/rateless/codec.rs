//! Encoding and decoding of single messages.

use super::{
    BitRows, RandomCode, RatelessError, Selection, SelectionJob,
    columns::side_by_side,
    packets::{Numbered, check_count, check_rank, common_length},
    parts, serial, words,
};
use crate::{Engine, Stores, WorkerPool};

/// Packets of one call that take more than this together are taken to exceed the cache.
const CACHE_BYTES: usize = 8 << 20;

/// Pieces of packets that are worked on side by side begin at multiples of a cache line.
const LINE_BYTES: usize = 64;

/// The fewest table entries to add, in bytes of all targets and sources, that are worth waking another thread for.
const PIECE_WORK: usize = 4 << 20;

/// The way to decode. All of them give the same bytes, and refuse the same sets of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Elimination on (G|X), one bit a step: the base case of the literature.
    Serial,
    /// The same, 64 bits a step.
    Words,
    /// The message split into so many parts of shorter packets, each decoded by itself as with [`Self::Words`], side by
    /// side on the pool.
    Parts(usize),
    /// Elimination of G alone by the four Russians' tables. Then the product of its inverse and the packets, by tables of
    /// sums, on the engine and the pool. The fastest.
    Tables,
}

/// A random code on an engine.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, rateless::{Form, Method, RandomCode, RandomCodec}};
/// let code = RandomCode::new(Form::Systematic, 2, 9)?;
/// let codec = RandomCodec::new(code, codec::select("auto")?);
/// let mut coded = [0; 3];
/// codec.encode(&[2], &[b"abc", b"xyz"], &mut [&mut coded])?;
/// // Row 2 selects both, so that either one is the sum of the coded packet and the other one.
/// assert_eq!(coded, [b'a' ^ b'x', b'b' ^ b'y', b'c' ^ b'z']);
/// let (mut first, mut second) = ([0; 3], [0; 3]);
/// codec.decode(Method::Tables, &[(2, &coded), (1, b"xyz")], &mut [&mut first, &mut second])?;
/// assert_eq!((&first, &second), (b"abc", b"xyz"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RandomCodec<'p> {
    pub(super) code: RandomCode,
    pub(super) engine: &'static dyn Engine,
    pub(super) workers: Option<&'p dyn WorkerPool>,
}

impl<'p> RandomCodec<'p> {
    /// Returns the codec that computes on an engine, on the caller's thread.
    #[must_use]
    pub fn new(code: RandomCode, engine: &'static dyn Engine) -> Self {
        Self {
            code,
            engine,
            workers: None,
        }
    }

    /// Splits big calls over a pool of threads.
    #[must_use]
    pub fn with_workers(self, workers: &'p dyn WorkerPool) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> RandomCode {
        self.code
    }

    /// Writes the packets with these numbers, from all source packets.
    ///
    /// # Errors
    ///
    /// [`RatelessError::PacketCount`] if there are not k source packets and one target for each number,
    /// [`RatelessError::PacketLength`] if packets differ in length.
    pub fn encode(
        &self,
        numbers: &[u64],
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
    ) -> Result<(), RatelessError> {
        check_count("source", sources.len(), self.code.source_packets())?;
        check_count("coded", targets.len(), numbers.len())?;
        self.combine(&self.code.rows(numbers), sources, targets)
    }

    /// Writes all source packets, from any coded packets that determine them. More packets than needed do no harm, nor
    /// does one that is given twice. No method looks at all of the packets; whichever it uses must be right.
    ///
    /// # Errors
    ///
    /// - [`RatelessError::PacketCount`] if there are not k targets.
    /// - [`RatelessError::PacketLength`] if packets differ in length.
    /// - [`RatelessError::NoParts`] for a method of no parts.
    /// - [`RatelessError::Rank`] if the packets do not determine the message. Then the targets are unchanged.
    pub fn decode(
        &self,
        method: Method,
        received: &[(u64, &[u8])],
        targets: &mut [&mut [u8]],
    ) -> Result<(), RatelessError> {
        check_count("source", targets.len(), self.code.source_packets())?;
        let lengths = received.iter().map(|packet| packet.1.len());
        common_length(lengths.chain(targets.iter().map(|target| target.len())))?;
        match method {
            Method::Serial => serial::decode(self.code, received, targets),
            Method::Words => words::decode(self.code, received, targets),
            Method::Parts(parts) => {
                parts::decode(self.code, parts, self.workers, received, targets)
            }
            Method::Tables => self.decode_by_tables(received, targets),
        }
    }

    fn decode_by_tables(
        &self,
        received: &[Numbered<'_>],
        targets: &mut [&mut [u8]],
    ) -> Result<(), RatelessError> {
        let numbers: Vec<u64> = received.iter().map(|packet| packet.0).collect();
        let mut rows = self.code.rows(&numbers);
        let mut order: Vec<usize> = (0..received.len()).collect();
        let rank = self.engine.eliminate(&mut rows, &mut order);
        check_rank(rank, self.code.source_packets())?;
        let pivots = order.iter().take(rank);
        let sources: Vec<&[u8]> = pivots.map(|&packet| received[packet].1).collect();
        self.combine(&rows, &sources, targets)
    }

    /// Writes to each target the sum of the sources that its row selects. Rows behind those of the targets are ignored.
    pub(super) fn combine(
        &self,
        rows: &BitRows,
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
    ) -> Result<(), RatelessError> {
        let lengths = sources.iter().map(|source| source.len());
        let lengths = lengths.chain(targets.iter().map(|target| target.len()));
        let packet_bytes = common_length(lengths)?;
        let mut summed = Vec::with_capacity(targets.len());
        let mut sums = Vec::with_capacity(targets.len());
        for (row, target) in targets.iter_mut().enumerate() {
            if let Some(column) = rows.only_column(row) {
                target.copy_from_slice(sources[column]);
            } else {
                summed.push(row);
                sums.push(&mut **target);
            }
        }
        let mut selection = Selection::default();
        selection.replace(rows, &summed.iter().copied());
        self.run(&selection, packet_bytes, sources, &mut sums);
        Ok(())
    }

    /// Runs a selection on packets that fit it.
    fn run(
        &self,
        selection: &Selection,
        packet_bytes: usize,
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
    ) {
        let is_big = (sources.len() + targets.len()) * packet_bytes > CACHE_BYTES;
        let stores = if is_big {
            Stores::Streaming
        } else {
            Stores::Cached
        };
        let work = |sources: &[&[u8]], targets: &mut [&mut [u8]]| {
            let job = SelectionJob::new(selection, sources, targets);
            let job = job.expect("the packets fit the selection");
            self.engine.run_selection(&mut job.with_stores(stores));
        };
        let added_bytes = sources.len() * targets.len() * packet_bytes;
        let width = self.workers.map_or(1, WorkerPool::width);
        let pieces = width.min(added_bytes / PIECE_WORK).max(1);
        let piece_bytes = packet_bytes
            .div_ceil(pieces)
            .next_multiple_of(LINE_BYTES)
            .max(LINE_BYTES);
        side_by_side(
            self.workers,
            (packet_bytes, piece_bytes),
            sources,
            targets,
            &work,
        );
    }
}
