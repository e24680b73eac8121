//! Segments and stripes on the members of one volume.
//!
//! Bytes of any files are appended to stripe buffers, and flushed as `data_shards + parity_shards` shards to the
//! members of a segment. They are read back from whichever shards are left. This module knows nothing of files or
//! names ([`crate::fs`]). [`StripeRecords`] keeps its records in [`crate::metadata`].
//!
//! # Invariants
//!
//! - Nothing live is overwritten in place: an offset of a segment is allocated once (P4). The one
//!   exception is a block that failed its checksum, which is overwritten with what was right.
//! - A byte is accepted only when room for its whole stripe is reserved (P8).
//! - A block is used only after its checksum matched (P2).
//! - `Writer::sync` reports shards on a member that failed before they were synced. They are taken out of their
//!   records before anything that names them is acknowledged (P1).
//!
//! # Locks
//!
//! In this order: the open stripe (`buffers::open`), the buffers' state, the frontier of the segments, the table of
//! segments, the files to sync. None of them is held across I/O. Pins, cache and prefetch queue are taken alone. `dirty::syncing` is
//! held through a sync, and while replaced files are closed, I/O included.

use std::io;
use std::sync::Arc;

use crate::codec::CodecError;
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId};
use crate::membership::Members;
use crate::workers::Threads;

mod buffers;
mod cache;
mod census;
mod classes;
mod damage;
mod dirty;
mod encoded;
mod encoder;
mod error;
mod inspector;
mod inventory;
mod layout;
mod locator;
mod options;
mod past_units;
mod pins;
mod placement;
mod prefetch;
mod ranges;
mod reader;
mod rebuilder;
mod records;
mod rewrites;
mod segment_handle;
mod segment_io;
mod segments;
mod shard_reader;
mod shared;
mod space;
mod stripe_coder;
mod tally;
mod unrecoverable;
mod writer;

pub use buffers::{Hold, Placed, Unjournaled};
pub use cache::CacheUse;
pub use census::{Census, FileLengths, SegmentCensus};
pub use error::StripeError;
pub use inspector::{Inconsistent, Remedy, Verdict};
pub use options::{FullMembers, StripeOptions};
pub use pins::Pin;
pub use reader::Served;
pub use rebuilder::{IncompleteStripe, RebuildTarget, RebuiltStripes, TargetError};
pub use records::{FlushedStripe, LostShard, StripeRecords, WrittenShards};
pub use space::{Load, Space};

pub(crate) use classes::{ClassCode, Classes};
pub(crate) use layout::{member_of, place_of};
pub(crate) use pins::PinFence;
pub(crate) use placement::slot_capacity;
pub(crate) use ranges::joined;
pub(crate) use tally::{Tally, survival};

use self::damage::Damage;
use self::inspector::Inspector;
use self::inventory::FileInventory;
use self::pins::Pins;
use self::reader::Reader;
use self::rebuilder::{Limits, ShardRebuilder};
use self::segments::Segments;
use self::shared::Shared;
use self::space::SpaceMeter;
use self::stripe_coder::StripeCoder;
use self::writer::Writer;

/// A reason why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The volume's code is not known.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The system gives no more threads, or no memory for their stacks.
    #[error("cannot start a thread")]
    Threads(#[source] io::Error),
}

/// The stripes of one volume: the parts that write, read, inspect and rebuild them.
pub struct Stripes {
    coder: Arc<StripeCoder>,
    classes: Arc<Classes>,
    segments: Arc<Segments>,
    writer: Arc<Writer>,
    reader: Arc<Reader>,
    inspector: Inspector,
    rebuilder: ShardRebuilder,
    inventory: FileInventory,
    space: SpaceMeter,
    damage: Arc<Damage>,
    pins: Pins,
    threads: Threads,
}

impl Stripes {
    /// Starts from the segments in the index. Reads and writes nothing yet.
    ///
    /// # Errors
    ///
    /// If the volume's code is not known, or the system gives no more threads.
    pub fn open(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &StripeOptions,
    ) -> Result<Self, OpenError> {
        let stripes = Self::new(members, records, segments, options)?;
        // If one cannot be started, dropping the stripes ends the others.
        let started = stripes.start_threads(options.threads);
        started.map_err(OpenError::Threads)?;
        Ok(stripes)
    }

    /// Composes the parts.
    fn new(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &StripeOptions,
    ) -> Result<Self, CodecError> {
        let shared = Shared::new(&members, records, segments, options)?;
        let has_threads = options.threads > 0;
        let limits = Limits {
            buffer_bytes: options.buffer_bytes,
            reads_ahead: has_threads,
        };
        Ok(Self {
            writer: Arc::new(shared.writer(has_threads)),
            reader: Arc::new(shared.reader(has_threads)),
            inspector: shared.inspector(),
            rebuilder: shared.rebuilder(limits),
            inventory: FileInventory::new(Arc::clone(&members), Arc::clone(&shared.segments)),
            space: SpaceMeter::new(members, Arc::clone(&shared.segments)),
            coder: shared.coder,
            classes: shared.classes,
            segments: shared.segments,
            damage: shared.damage,
            pins: Pins::default(),
            threads: Threads::default(),
        })
    }

    /// Starts `count` threads that flush, and as many that read ahead.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads; those that were started go on.
    fn start_threads(&self, count: usize) -> io::Result<()> {
        (0..count).try_for_each(|_| {
            let writer = Arc::clone(&self.writer);
            self.threads
                .start("flush", move || writer.flush_forever())?;
            let reader = Arc::clone(&self.reader);
            self.threads
                .start("read-ahead", move || reader.read_ahead_forever())
        })
    }

    /// Returns the part that writes stripes.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Returns the part that reads bytes of stripes.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns the part that inspects and repairs all shards of stripes.
    pub(crate) fn inspector(&self) -> &Inspector {
        &self.inspector
    }

    /// Returns the part that writes lost shards again.
    pub(crate) fn rebuilder(&self) -> &ShardRebuilder {
        &self.rebuilder
    }

    /// Returns the classes of stripes, and their codes.
    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns all segments.
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Returns the part that lists the segment files on the members.
    pub(crate) fn inventory(&self) -> &FileInventory {
        &self.inventory
    }

    /// Returns the part that measures the space on the members.
    pub(crate) fn space(&self) -> &SpaceMeter {
        &self.space
    }

    /// Returns the damage that was found.
    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Returns the pins of readers.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns the codecs of the stripes.
    pub(crate) fn coder(&self) -> &StripeCoder {
        &self.coder
    }

    /// Forgets what was found out about a member, since another directory has its place.
    pub fn forget_member(&self, member: MemberIndex) {
        self.segments.forget_member(member);
        self.inventory.forget();
    }
}

impl Drop for Stripes {
    fn drop(&mut self) {
        self.writer.close();
        self.reader.close();
        self.threads.wait();
    }
}

#[cfg(test)]
mod tests;
