//! Creates and opens a volume, and cleans up after a crash before the first caller is let in.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::extent_cache::ExtentCache;
use super::{CommitError, OpenOptions, Transactions};
use crate::codec::{CodeId, Geometry};
use crate::coding;
use crate::format::record::{DirectoryCode, LostBytes, Segment, SegmentStripe};
use crate::format::{BLOCK_SIZE, Ino, Record, SegmentId, StripeClass, StripeId, VolumeId, key};
use crate::membership::{Access, CreateOptions, Members, RecoveredMembers};
use crate::metadata::{Batch, Meta, MetaOptions, Numbers, StripeData};
use crate::store::{Executor, StoreRef};
use crate::stripes::{ClassCode, StripeError, StripeOptions, StripeRecords, Stripes};
use crate::workers::Workers;

/// The distance that the counter of inodes on disk runs ahead of the numbers in use.
const INODES_AHEAD: u64 = 4096;

/// The part of the memory for the index that holds extents of files.
const EXTENTS_PART: usize = 8;

/// Records read at once.
const RECORDS_AT_ONCE: usize = 1024;

/// The newest segments of a class, among which are those that were being written when the volume was last used.
const NEWEST_SEGMENTS: usize = 8;

/// Pieces of missing copies of the index to repair before the first caller is let in.
const MAX_REFILLED_AT_OPEN: usize = 32;

/// Most bytes of stripes that recovery restores, many times what a crash leaves: the journal's files hold
/// all of them, and only a few stripes lack records at a time.
const MAX_RESTORED_BYTES: usize = 1 << 30;

/// Bytes that stripe buffers take together, unless stripes are so wide that two take more.
const BUFFER_BYTES: usize = 192 << 20;

impl Transactions {
    /// Makes a volume in empty directories: superblocks, journals and an empty index.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if the directories are refused or cannot be written. They are made as empty as they
    /// were, as far as that is still possible.
    pub fn create(
        stores: &[StoreRef],
        options: &CreateOptions,
        executor: Arc<Executor>,
    ) -> Result<VolumeId, CommitError> {
        let volume = Members::create(stores, options)?;
        let members = Members::open(stores.to_vec(), Access::ReadWrite, executor)?;
        if let Err(error) = Meta::format(&members, &Batch::default()) {
            for store in stores {
                members.changes().clear(store);
            }
            return Err(error.into());
        }
        Ok(volume)
    }

    /// Recovers the transactions of a volume: steps 1 to 4 of [`Maintenance::open`](crate::maintenance::Maintenance::open).
    ///
    /// # Errors
    ///
    /// As for [`Maintenance::open`](crate::maintenance::Maintenance::open).
    pub(crate) fn recover(
        stores: Vec<StoreRef>,
        claims: &RecoveredMembers,
        options: &OpenOptions,
        executor: Arc<Executor>,
    ) -> Result<Self, CommitError> {
        let members = Members::open_recovering(stores, claims, options.access, executor)?; // step 1
        let (engine, dispatch) = coding::open(&options.engine)?;
        let dispatch = Arc::new(dispatch);
        let extents_bytes = options.index_cache_bytes / EXTENTS_PART;
        let meta_options = MetaOptions {
            cache_bytes: options.index_cache_bytes - extents_bytes,
            ..MetaOptions::default()
        };
        let opened = Meta::open(Arc::clone(&members), &meta_options)?; // step 2
        let (meta, replicas) = (Arc::new(opened.meta), opened.replicas);
        let records = Arc::new(StripeRecords::open(Arc::clone(&meta) as _)?);
        let inodes = Numbers::open(&*meta, key::NEXT_INO, Ino::ROOT.0 + 1, INODES_AHEAD)?;
        let volume_options = StripeOptions {
            engine,
            buffer_bytes: BUFFER_BYTES,
            cache_bytes: options.cache_bytes,
            full_members: options.full_members,
            threads: options.threads,
            workers: Arc::new(Workers::new(options.threads)?),
            accelerator: Some(Arc::clone(&dispatch) as _),
            pinner: Some(Arc::clone(&dispatch) as _),
        };
        load_past_units(&meta, &records)?;
        let segments = all_segments(&meta)?;
        let newest = newest_of(&segments);
        let stripes = Stripes::open(
            Arc::clone(&members),
            Arc::clone(&records),
            segments,
            &volume_options,
        )?;
        add_classes(&meta, &stripes)?;
        note_lost(&meta, &stripes)?;
        let transactions = Self::new(
            members,
            (meta, replicas),
            (stripes, dispatch),
            (records, inodes),
            ExtentCache::new(extents_bytes),
        );
        let census = transactions.stripes.inventory().census();
        if options.access == Access::ReadWrite {
            transactions.stripes.inventory().remove_strays(&census); // step 3
            newest
                .into_iter()
                .try_for_each(|segment| transactions.cut_unfinished(segment))?;
        }
        let lacks_files = census.lacks_files(
            &transactions.stripes.segments().records(),
            &transactions.members.membership().live(),
        );
        transactions.stripes.damage().set_lacks_files(lacks_files);
        transactions.restore(opened.recovered.data)?; // step 4
        Ok(transactions)
    }

    /// Finishes the recovery: the checkpoint of step 4, and step 5 of [`Maintenance::open`](crate::maintenance::Maintenance::open).
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub(crate) fn finish_recovery(&self) -> Result<(), CommitError> {
        if !self.commits.is_read_only() {
            match self.checkpoint() {
                // Changes from the journal stay in the index until their stripes find space.
                Err(CommitError::NoSpace) => tracing::warn!("the volume is full"),
                done => done?,
            }
            self.commits.refill_index(MAX_REFILLED_AT_OPEN)?; // step 5
        }
        Ok(())
    }

    fn cut_unfinished(&self, segment: SegmentId) -> Result<(), CommitError> {
        let used = self.filled(segment)?;
        Ok(self.stripes.segments().cut_unfinished(segment, used)?)
    }

    /// Returns how far a segment is filled with stripes. It halves the range in which the last one
    /// begins, again and again: a segment of short stripes has hundreds of thousands.
    fn filled(&self, segment: SegmentId) -> Result<u64, CommitError> {
        let len = self
            .stripes
            .segments()
            .record(segment)
            .map_or(0, |record| record.len);
        let (_, end) = key::segment_stripes(segment);
        let (mut filled, mut beyond) = (0, len);
        while filled < beyond {
            let middle = filled.midpoint(beyond);
            let from = key::segment_stripe(segment, middle);
            match self.meta.scan(&from, &end, 1)?.first() {
                None => beyond = middle,
                Some((place, value)) => {
                    let (_, offset) = key::parse_segment_stripe(place)?;
                    let SegmentStripe(stripe) = SegmentStripe::decode(value)?;
                    let record = self.records.stripe(stripe)?;
                    let height = record.map_or(BLOCK_SIZE as u64, |record| record.height.into());
                    filled = offset.saturating_add(height);
                }
            }
        }
        Ok(filled.min(len))
    }

    /// Puts journaled bytes back into their stripes, if these never were flushed.
    ///
    /// Commits journal the bytes of a stripe in order and from its beginning. So the restored bytes take no more memory
    /// than the journaled ones, and whole blocks for each stripe.
    ///
    /// # Errors
    ///
    /// [`StripeError::BadRecord`] for bytes that no commit has journaled.
    fn restore(&self, data: Vec<StripeData>) -> Result<(), CommitError> {
        let mut stripes: BTreeMap<StripeId, Vec<u8>> = BTreeMap::new();
        for piece in data {
            let stripe = piece.stripe;
            if self.records.stripe(stripe)?.is_some() {
                continue;
            }
            let bad = |what| CommitError::from(StripeError::BadRecord { stripe, what });
            let payload = stripes.entry(stripe).or_default();
            let start = piece.offset as usize;
            let end = start.checked_add(piece.bytes.len());
            let most = self.members.shape().most_stripe_bytes() as usize;
            let most = most.max(self.stripes.classes().greatest_capacity());
            let end = end.filter(|end| *end <= most);
            let end = end.ok_or_else(|| bad("journaled bytes end behind the longest stripe"))?;
            if start > payload.len() {
                return Err(bad("journaled bytes do not follow those before them"));
            }
            payload.resize(end.max(payload.len()), 0);
            payload[start..end].copy_from_slice(&piece.bytes);
        }
        // Before the code was changed, all bytes went into stripes with records. So a stripe without one that is longer than
        // any of this code was removed.
        let longest = self.stripes.classes().greatest_capacity();
        stripes.retain(|_, payload| payload.len() <= longest);
        self.check_restored(&stripes)?;
        for (stripe, payload) in stripes {
            let (class, code) = self.code_for(stripe, payload.len())?;
            let writer = self.stripes.writer();
            writer.restore(class, stripe, &code, &payload)?;
        }
        Ok(())
    }

    /// Returns the code of a stripe that was not flushed: that of the files whose bytes it has. It may be too long for that,
    /// because the files were given another code meanwhile, or members were too few for it. Then it gets one that survives as
    /// many losses as any. Returns also the class of the files, which is another one if that of any file is.
    fn code_for(
        &self,
        stripe: StripeId,
        len: usize,
    ) -> Result<(StripeClass, Arc<ClassCode>), CommitError> {
        let classes = self.stripes.classes();
        if classes.is_plain() {
            return Ok((StripeClass::VOLUME, Arc::clone(classes.volume())));
        }
        let mut named = BTreeSet::new();
        let (from, end) = key::backrefs(stripe);
        self.catalog.visit(&from, &end, |key, _| {
            named.insert(key::parse_backref(key)?.1);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        let (mut fitting, mut of_files) = (Vec::new(), BTreeSet::new());
        for ino in named {
            let code = classes.get(self.catalog.class_of(classes, ino)?);
            of_files.extend(code.iter().map(|code| code.class()));
            fitting.extend(code.filter(|code| code.capacity() >= len));
        }
        if fitting.is_empty() {
            fitting.extend(classes.of_directories());
            fitting.push(Arc::clone(classes.volume()));
            fitting.retain(|code| code.capacity() >= len);
        }
        let safest = fitting
            .into_iter()
            .max_by_key(|code| code.survival().guaranteed());
        let code = safest.unwrap_or_else(|| Arc::clone(classes.volume()));
        let other = of_files.into_iter().find(|class| *class != code.class());
        Ok((other.unwrap_or(code.class()), code))
    }
}

/// Returns the newest segments of each class.
fn newest_of(segments: &[(SegmentId, Segment)]) -> Vec<SegmentId> {
    let mut counts: BTreeMap<StripeClass, usize> = BTreeMap::new();
    let newest = segments.iter().rev().filter(|(_, record)| {
        let count = counts.entry(record.class).or_default();
        *count += 1;
        *count <= NEWEST_SEGMENTS
    });
    newest.map(|(segment, _)| *segment).collect()
}

/// Makes the stripe units known that the volume had before.
fn load_past_units(meta: &Meta, records: &StripeRecords) -> Result<(), CommitError> {
    let (from, end) = key::stripe_units();
    let found = meta.scan(&from, &end, usize::MAX)?;
    records.past_units().load(&found);
    Ok(())
}

/// Makes the codes of directories known. Files cannot be written whose code cannot be read: `check` reports it.
fn add_classes(meta: &Meta, stripes: &Stripes) -> Result<(), CommitError> {
    let (from, end) = key::directory_codes();
    for (key, value) in meta.scan(&from, &end, usize::MAX)? {
        let Ok(class) = key::parse_directory_code(&key) else {
            tracing::warn!("the key of a directory's code is damaged");
            stripes.classes().note_unknown();
            continue;
        };
        let code = DirectoryCode::decode(&value).map_err(CommitError::from);
        let added = code.and_then(|code| {
            let (data, parity) = (code.data_shards.into(), code.parity_shards.into());
            let geometry = Geometry::new(data, parity)?;
            Ok(stripes
                .classes()
                .add(class, (geometry, CodeId(code.code)))?)
        });
        if let Err(error) = added {
            tracing::warn!("files of class {class} of stripes cannot be written: {error}");
            stripes.classes().note_unknown();
        }
    }
    Ok(())
}

impl Transactions {
    /// Refuses stripes that would together take more memory than any journal can demand.
    fn check_restored(&self, stripes: &BTreeMap<StripeId, Vec<u8>>) -> Result<(), CommitError> {
        let classes = self.stripes.classes();
        let codes = classes.of_directories().into_iter();
        let widest = codes.map(|code| code.geometry().data_shards()).max();
        let volume = classes.volume().geometry().data_shards();
        let row = BLOCK_SIZE * widest.unwrap_or(0).max(volume);
        let mut total = 0_usize;
        for (&stripe, payload) in stripes {
            total = total.saturating_add(payload.len().next_multiple_of(row));
            if total > MAX_RESTORED_BYTES {
                let what = "more stripes are journaled than can be in use at once";
                return Err(StripeError::BadRecord { stripe, what }.into());
            }
        }
        Ok(())
    }
}

/// Tells the volume which bytes are known to be lost.
fn note_lost(meta: &Meta, stripes: &Stripes) -> Result<(), CommitError> {
    let (from, end) = key::all_lost();
    for (key, value) in meta.scan(&from, &end, usize::MAX)? {
        stripes
            .damage()
            .unrecoverable()
            .add(key::parse_lost(&key)?, &LostBytes::decode(&value)?.0);
    }
    Ok(())
}

fn all_segments(meta: &Meta) -> Result<Vec<(SegmentId, Segment)>, CommitError> {
    let (mut from, end) = key::segments();
    let mut segments = Vec::new();
    loop {
        let found = meta.scan(&from, &end, RECORDS_AT_ONCE)?;
        for (found, value) in &found {
            segments.push((key::parse_segment(found)?, Segment::decode(value)?));
        }
        match found.last() {
            Some((last, _)) if found.len() == RECORDS_AT_ONCE => {
                from = super::catalog::successor(last);
            }
            _ => return Ok(segments),
        }
    }
}
