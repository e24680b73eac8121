//! The state that the threads of a volume share.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

use super::buffers::{Buffers, Hold, Opening, Placed};
use super::cache::ShardCache;
use super::census::Census;
use super::damage::Damage;
use super::dirty::{Dirty, LostShard};
use super::pins::Pins;
use super::prefetch::Prefetch;
use super::reader::PartlyDecoded;
use super::rebuilder::BATCH_PARTS;
use super::records::StripeRecords;
use super::segments::{Need, Reservation, Segments};
use super::unrecoverable::Undecodable;
use super::{VolumeError, VolumeOptions};
use crate::codec::{Accelerator, CodeId, Codec, CodecError, Geometry, Pass};
use crate::format::record::{Segment, Stripe};
use crate::format::{SegmentId, StripeId};
use crate::members::{Access, Members};
use crate::store::Pool;
use crate::workers::{Threads, Workers};

/// The most stripes that are in memory at a time.
const MAX_BUFFERS: usize = 16;

/// The state that the threads of a volume share.
pub(crate) struct Core {
    pub(super) members: Arc<Members>,
    pub(super) records: Arc<StripeRecords>,
    pub(super) codec: Arc<Codec>,
    /// Codecs of segments that were written with another geometry or code.
    codecs: Mutex<HashMap<(CodeId, Geometry), Arc<Codec>>>,
    pub(super) workers: Arc<Workers>,
    pub(super) accelerator: Option<Arc<dyn Accelerator>>,
    pub(super) pool: Pool,
    pub(super) segments: Segments,
    pub(super) buffers: Arc<Buffers>,
    pub(super) dirty: Dirty,
    pub(super) cache: ShardCache,
    pub(super) prefetch: Prefetch,
    pub(super) pins: Pins,
    /// The rows of stripes of which parts of shards were decoded lately.
    pub(super) partly_decoded: PartlyDecoded,
    /// The rate limiter for messages about damage.
    pub(super) damage: Damage,
    pub(super) undecodable: Undecodable,
    /// The segment files that there were when the members were asked last.
    pub(super) last_census: Mutex<Census>,
    /// True if files turned out to be gone or too short.
    pub(super) lacks_files: AtomicBool,
    pub(super) mended: AtomicU64,
    pub(super) decodes: AtomicU64,
    /// Threads of each kind; with none, everything is done by the caller, one thing after the other.
    pub(super) threads: usize,
    /// Memory for each batch of stripes that is rebuilt.
    pub(super) batch_bytes: usize,
}

impl Core {
    pub(super) fn new(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &VolumeOptions,
    ) -> Result<Self, CodecError> {
        let geometry = members.geometry();
        let codec = Arc::new(Codec::new(members.code(), geometry, options.engine)?);
        let height = members.greatest_height() as usize;
        let capacity = height * geometry.data_shards();
        let limit = options.buffer_bytes / (height * geometry.total_shards());
        let limit = limit.clamp(2, MAX_BUFFERS);
        let pool = Pool::pinned(options.buffer_bytes, options.pinner.clone());
        let segments = Segments::new(
            Arc::clone(&members),
            Arc::clone(&records),
            (height as u64, limit as u64),
            segments,
        );
        Ok(Self {
            buffers: Buffers::new(pool.clone(), geometry.data_shards(), capacity, limit),
            members,
            records,
            codec,
            codecs: Mutex::default(),
            workers: Arc::clone(&options.workers),
            accelerator: options.accelerator.clone(),
            pool,
            segments,
            dirty: Dirty::default(),
            cache: ShardCache::new(options.cache_bytes),
            prefetch: Prefetch::default(),
            pins: Pins::default(),
            partly_decoded: PartlyDecoded::default(),
            damage: Damage::default(),
            undecodable: Undecodable::default(),
            last_census: Mutex::default(),
            lacks_files: AtomicBool::new(false),
            mended: AtomicU64::new(0),
            decodes: AtomicU64::new(0),
            threads: options.threads,
            batch_bytes: options.buffer_bytes / BATCH_PARTS,
        })
    }

    pub(super) fn is_writable(&self) -> bool {
        self.members.access() == Access::ReadWrite
    }

    /// Returns the codec of a segment's stripes.
    pub(super) fn codec_of(&self, segment: &Segment) -> Result<Arc<Codec>, CodecError> {
        let (data, parity) = (segment.data_shards, segment.parity_shards);
        let geometry = Geometry::new(usize::from(data), usize::from(parity))?;
        let code = CodeId(segment.code);
        if (code, geometry) == (self.codec.code(), self.codec.geometry()) {
            return Ok(Arc::clone(&self.codec));
        }
        if let Some(codec) = self.codecs.lock().get(&(code, geometry)) {
            return Ok(Arc::clone(codec));
        }
        let codec = Arc::new(Codec::new(code, geometry, self.codec.engine())?);
        self.codecs
            .lock()
            .insert((code, geometry), Arc::clone(&codec));
        Ok(codec)
    }

    /// Returns a pass over a stripe, with all that the daemon has to compute it with.
    pub(super) fn pass<'a>(&'a self, codec: &'a Codec) -> Pass<'a> {
        codec
            .pass()
            .crew(&*self.workers)
            .accelerator(self.accelerator.as_deref())
    }

    /// Runs `compute`, and repeats it on the CPU if `is_right` rejects the result, because a device may be wrong while
    /// checksums are right. A device that was wrong is not trusted any more. Returns whether the result is right in the
    /// end.
    ///
    /// # Errors
    ///
    /// Those of `compute`.
    pub(super) fn compute_surely(
        &self,
        codec: &Codec,
        mut compute: impl FnMut(Pass<'_>) -> Result<bool, VolumeError>,
    ) -> Result<bool, VolumeError> {
        Ok(compute(self.pass(codec))? || self.compute_again(codec, compute)?)
    }

    /// Has something that is not right computed on the CPU, as [`Self::compute_surely`] does.
    ///
    /// # Errors
    ///
    /// Those of `compute`.
    pub(super) fn compute_again(
        &self,
        codec: &Codec,
        mut compute: impl FnMut(Pass<'_>) -> Result<bool, VolumeError>,
    ) -> Result<bool, VolumeError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(false);
        };
        let is_right = compute(self.pass(codec).accelerator(None))?;
        if is_right {
            accelerator.distrust();
        }
        Ok(is_right)
    }

    /// Returns whether several stripes are better computed by one call than one by each thread.
    pub(super) fn computes_many(&self) -> bool {
        let accelerator = self.accelerator.as_ref();
        accelerator.is_some_and(|accelerator| accelerator.prefers_many())
    }

    pub(super) fn append(&self, data: &[u8]) -> Result<(Placed, Hold), VolumeError> {
        if !self.is_writable() {
            return Err(VolumeError::ReadOnly);
        }
        loop {
            if let Some(placed) = self.buffers.append(data) {
                return Ok(placed);
            }
            self.open_stripe()?;
        }
    }

    pub(super) fn open_stripe(&self) -> Result<(), VolumeError> {
        let prepare = || self.number(self.segments.reserve(Need::New)?);
        self.buffers.open_stripe(|| self.flush_one_here(), prepare)
    }

    pub(super) fn append_stripe(&self, payload: &[u8]) -> Result<(StripeId, Hold), VolumeError> {
        if !self.is_writable() {
            return Err(VolumeError::ReadOnly);
        }
        self.buffers.check()?;
        let Opening {
            stripe,
            reservation,
        } = self.number(self.segments.reserve(Need::Compaction)?)?;
        let hold = self.buffers.hold(stripe);
        self.buffers.restore(stripe, payload, Some(reservation));
        Ok((stripe, hold))
    }

    fn number(&self, reservation: Reservation) -> Result<Opening, VolumeError> {
        match self.records.next_stripe() {
            Ok(stripe) => Ok(Opening {
                stripe,
                reservation,
            }),
            Err(source) => {
                self.segments.release(reservation)?;
                Err(VolumeError::NoNumber(source))
            }
        }
    }

    pub(super) fn restore(&self, stripe: StripeId, payload: &[u8]) -> Result<(), VolumeError> {
        if !self.is_writable() {
            self.buffers.keep(stripe, payload);
            return Ok(());
        }
        let reservation = match self.segments.reserve(Need::Accepted) {
            Ok(reservation) => Some(reservation),
            // It waits for space like any other stripe that found none.
            Err(VolumeError::NoSpace { .. }) => None,
            Err(error) => return Err(error),
        };
        self.buffers.restore(stripe, payload, reservation);
        Ok(())
    }

    /// See [`Volume::sync`](super::Volume::sync).
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(super) fn sync(&self) -> Result<Vec<LostShard>, VolumeError> {
        let mut lost = Vec::new();
        let mut early = Vec::new();
        for shard in self.dirty.sync(&self.members) {
            // Asked first: once a stripe has left the buffers, its record is in the index.
            let in_memory = self.buffers.has(shard.stripe);
            if in_memory && self.record_of(shard.stripe)?.is_none() {
                early.push(shard);
            } else {
                lost.push(shard);
            }
        }
        self.dirty.put_back(early);
        Ok(lost)
    }

    pub(super) fn record_of(&self, stripe: StripeId) -> Result<Option<Stripe>, VolumeError> {
        let found = self.records.stripe(stripe);
        found.map_err(|source| VolumeError::Lookup { stripe, source })
    }

    /// Lets stripes that found no space try again.
    pub(super) fn retry(&self) {
        self.segments.forget_full();
        self.buffers.retry();
    }

    /// Flushes what is queued if there are no threads to do so.
    pub(super) fn flush_here(&self) {
        while self.flush_one_here() {}
    }

    fn flush_one_here(&self) -> bool {
        let sealed = if self.threads == 0 {
            self.buffers.next(false)
        } else {
            None
        };
        let found = sealed.is_some();
        if let Some(sealed) = sealed {
            self.flush(&sealed);
        }
        found
    }

    /// See [`Volume::prefetch`](super::Volume::prefetch).
    pub(super) fn ask_ahead(&self, stripe: StripeId) {
        if self.threads > 0 && self.cache.limit_bytes() > 0 {
            self.prefetch.ask(stripe);
        }
    }

    fn flush_forever(&self) {
        while let Some(sealed) = self.buffers.next(true) {
            if self.computes_many() {
                self.encode_ahead(&sealed);
            }
            self.flush(&sealed);
            self.segments.open_ahead();
        }
    }

    fn read_ahead_forever(&self) {
        while let Some(stripe) = self.prefetch.next() {
            // It is logged, and nothing but the stripe's being in the cache hangs upon it.
            let _ = catch_unwind(AssertUnwindSafe(|| self.read_ahead(&stripe)));
        }
    }
}

/// Starts the threads that flush and those that read ahead.
///
/// # Errors
///
/// If the system gives no more threads; those that were started go on.
pub(super) fn start(core: &Arc<Core>, threads: &Threads, count: usize) -> io::Result<()> {
    let start = |name, work: fn(&Core)| {
        let core = Arc::clone(core);
        threads.start(name, move || work(&core))
    };
    (0..count).try_for_each(|_| {
        start("flush", Core::flush_forever)?;
        start("read-ahead", Core::read_ahead_forever)
    })
}
