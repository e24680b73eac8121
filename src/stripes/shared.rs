//! The parts that writers, readers, inspections and rebuilds of one volume share.

use std::sync::Arc;

use super::buffers::Buffers;
use super::cache::ShardCache;
use super::classes::Classes;
use super::damage::Damage;
use super::dirty::Dirty;
use super::encoder::Encoder;
use super::inspector::Inspector;
use super::locator::Locator;
use super::options::StripeOptions;
use super::reader::Reader;
use super::rebuilder::{Limits, ShardRebuilder};
use super::records::StripeRecords;
use super::segments::Segments;
use super::shard_reader::ShardReader;
use super::stripe_coder::StripeCoder;
use super::writer::Writer;
use crate::codec::{Codec, CodecError};
use crate::format::SegmentId;
use crate::format::record::Segment;
use crate::membership::Members;
use crate::store::Pool;

/// The most stripes that are in memory at a time.
const MAX_BUFFERS: usize = 16;

/// The shared parts, while a volume is composed.
pub(super) struct Shared {
    members: Arc<Members>,
    records: Arc<StripeRecords>,
    pub(super) coder: Arc<StripeCoder>,
    pub(super) classes: Arc<Classes>,
    pool: Pool,
    pub(super) segments: Arc<Segments>,
    buffers: Arc<Buffers>,
    dirty: Arc<Dirty>,
    pub(super) damage: Arc<Damage>,
    cache: Arc<ShardCache>,
    locator: Arc<Locator>,
    shards: Arc<ShardReader>,
}

impl Shared {
    /// Creates the parts for a volume with these segments.
    ///
    /// # Errors
    ///
    /// If the volume's code is not known.
    pub(super) fn new(
        members: &Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &StripeOptions,
    ) -> Result<Self, CodecError> {
        let members = Arc::clone(members);
        let geometry = members.shape().geometry();
        let code = Codec::new(members.shape().code(), geometry, options.engine)?;
        let workers = Arc::clone(&options.workers);
        let coder = Arc::new(StripeCoder::new(code, workers, options.accelerator.clone()));
        let classes = Arc::new(Classes::new(&coder, members.shape()));
        let height = members.shape().greatest_height() as usize;
        let limit = options.buffer_bytes / (height * geometry.total_shards());
        let limit = limit.clamp(2, MAX_BUFFERS);
        let pool = Pool::pinned(options.buffer_bytes, options.pinner.clone());
        let segments = Arc::new(Segments::new(
            Arc::clone(&members),
            (Arc::clone(&records), Arc::clone(&classes)),
            limit as u64,
            options.full_members,
            segments,
        ));
        let buffers = Buffers::new(pool.clone(), limit);
        let dirty = Arc::new(Dirty::default());
        let damage = Arc::new(Damage::default());
        let cache = Arc::new(ShardCache::new(options.cache_bytes));
        let locator = Arc::new(Locator::new(
            Arc::clone(&records),
            Arc::clone(&segments),
            Arc::clone(&coder),
        ));
        let shards = Arc::new(ShardReader::new(
            Arc::clone(&members),
            Arc::clone(&locator),
            Arc::clone(&coder),
            pool.clone(),
            Arc::clone(&cache),
            Arc::clone(&dirty),
            Arc::clone(&damage),
        ));
        Ok(Self {
            members,
            records,
            coder,
            classes,
            pool,
            segments,
            buffers,
            dirty,
            damage,
            cache,
            locator,
            shards,
        })
    }

    /// Creates the part that writes stripes.
    pub(super) fn writer(&self, has_threads: bool) -> Writer {
        Writer::new(
            Arc::clone(&self.members),
            Arc::clone(&self.records),
            (Arc::clone(&self.segments), Arc::clone(&self.classes)),
            Arc::clone(&self.buffers),
            Arc::clone(&self.dirty),
            Encoder::new(Arc::clone(&self.coder), self.pool.clone()),
            has_threads,
        )
    }

    /// Creates the part that reads bytes of stripes.
    pub(super) fn reader(&self, has_threads: bool) -> Reader {
        Reader::new(
            Arc::clone(&self.members),
            Arc::clone(&self.buffers),
            Arc::clone(&self.locator),
            Arc::clone(&self.shards),
            Arc::clone(&self.cache),
            has_threads,
        )
    }

    /// Creates the part that inspects and repairs all shards of stripes.
    pub(super) fn inspector(&self) -> Inspector {
        Inspector::new(
            Arc::clone(&self.members),
            Arc::clone(&self.locator),
            Arc::clone(&self.coder),
            self.pool.clone(),
            Arc::clone(&self.damage),
        )
    }

    /// Creates the part that rebuilds lost shards.
    pub(super) fn rebuilder(&self, limits: Limits) -> ShardRebuilder {
        ShardRebuilder::new(
            Arc::clone(&self.members),
            Arc::clone(&self.segments),
            Arc::clone(&self.locator),
            Arc::clone(&self.shards),
            Arc::clone(&self.coder),
            self.pool.clone(),
            limits,
        )
    }
}
