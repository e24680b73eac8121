//! The stripes that hold some files, and the losses that these survive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};

use super::UsageCounter;
use crate::format::record::{Backref, Extent, Stripe};
use crate::format::{Ino, MemberIndex, Record, SegmentId, ShardIndex, StripeId, key};
use crate::maintenance::redundancy::is_hit;
use crate::stripes::{SegmentCensus, member_of};
use crate::transaction::CommitError;

/// Files that are looked at together, and the stripes that hold them.
#[derive(Debug, Default)]
pub struct FileStripes {
    inos: HashSet<Ino>,
    stripes: BTreeSet<StripeId>,
    extents: u64,
    reserved_bytes: u64,
}

/// The place of some files, and the losses that they survive now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesUsage {
    /// The runs of bytes of which the files consist.
    pub extents: u64,
    /// The bytes for which room is reserved, and where nothing is written.
    pub reserved_bytes: u64,
    /// The numbers of stripes on the members, by how many more losses each tolerates; negative if bytes of these files are
    /// lost.
    pub losses_tolerated: BTreeMap<i16, u64>,
    /// The number of these stripes that lack shards.
    pub below_full: u64,
    /// The number of stripes that are in memory, not on the members yet.
    pub unwritten: u64,
    /// The number of stripes without a record, which nothing can read.
    pub without_record: u64,
    /// The bytes of the files in these. They are lost.
    pub bytes_without_record: u64,
    /// The number of shards that each member holds of these stripes, absent members included.
    pub shards: BTreeMap<MemberIndex, u64>,
}

impl UsageCounter {
    /// Adds the stripes of a file. Returns false if that was done before, under another name of the file.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn add_file(&self, ino: Ino, files: &mut FileStripes) -> Result<bool, CommitError> {
        if !files.inos.insert(ino) {
            return Ok(false);
        }
        self.each_extent(ino, |extent| {
            if Extent::is_stripe(extent.stripe) {
                files.extents += 1;
                files.stripes.insert(extent.stripe);
            } else if extent.stripe == Extent::UNWRITTEN {
                files.reserved_bytes = files.reserved_bytes.saturating_add(extent.len);
            }
        })?;
        Ok(true)
    }

    /// Calls `visit` with each extent of a file.
    fn each_extent(&self, ino: Ino, mut visit: impl FnMut(&Extent)) -> Result<(), CommitError> {
        let (from, end) = key::extents_from(ino, 0);
        self.catalog.visit(&from, &end, |_, value| {
            visit(&Extent::decode(value)?);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })
    }

    /// Counts the losses that the stripes of some files tolerate now, by the files that the members list.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn count_stripes(&self, files: &FileStripes) -> Result<FilesUsage, CommitError> {
        let mut usage = FilesUsage {
            extents: files.extents,
            reserved_bytes: files.reserved_bytes,
            ..FilesUsage::default()
        };
        let mut written = Vec::new();
        let mut not_found = HashSet::new();
        for stripe in &files.stripes {
            let mut record = self.records.stripe(*stripe)?;
            let is_in_memory = record.is_none() && self.stripes.writer().has_in_memory(*stripe);
            if record.is_none() && !is_in_memory {
                // One that left the memory between the two looks has a record by now.
                record = self.records.stripe(*stripe)?;
            }
            match record {
                Some(record) => written.push((*stripe, record)),
                None if is_in_memory => usage.unwritten += 1,
                None => {
                    not_found.insert(*stripe);
                }
            }
        }
        self.count_lost(files, &not_found, &mut usage)?;
        // After the records, because a file is there before a record names it.
        let segments = self.stripes.segments().records().into_iter();
        let census = self.stripes.inventory().quick_census();
        let segments: HashMap<SegmentId, SegmentCensus> = segments
            .map(|(id, record)| (id, census.of_segment(id, record)))
            .collect();
        let unrecoverable = self.stripes.damage().unrecoverable().all();
        for (stripe, record) in written {
            let segment = segments.get(&record.segment);
            let found = unrecoverable.get(&stripe).cloned().unwrap_or_default();
            let tolerated = self.tolerated(files, (stripe, &record), segment, found)?;
            *usage.losses_tolerated.entry(tolerated).or_default() += 1;
            let is_whole = tolerated >= 0 && segment.is_some_and(|it| it.is_whole(&record));
            usage.below_full += u64::from(!is_whole);
            self.count_shards(&record, &mut usage.shards);
        }
        Ok(usage)
    }

    /// Counts the bytes that files still hold of stripes that were not found. If a stripe moved, or its files changed, no
    /// extent names it any more.
    fn count_lost(
        &self,
        files: &FileStripes,
        not_found: &HashSet<StripeId>,
        usage: &mut FilesUsage,
    ) -> Result<(), CommitError> {
        if not_found.is_empty() {
            return Ok(());
        }
        let mut lost = HashSet::new();
        for ino in &files.inos {
            self.each_extent(*ino, |extent| {
                if not_found.contains(&extent.stripe) {
                    lost.insert(extent.stripe);
                    let bytes = usage.bytes_without_record;
                    usage.bytes_without_record = bytes.saturating_add(extent.len);
                }
            })?;
        }
        usage.without_record = lost.len() as u64;
        Ok(())
    }

    /// Returns how many more losses a stripe tolerates. `found` are ranges that turned out to be unrecoverable.
    fn tolerated(
        &self,
        files: &FileStripes,
        (stripe, record): (StripeId, &Stripe),
        segment: Option<&SegmentCensus>,
        found: Vec<Range<u32>>,
    ) -> Result<i16, CommitError> {
        // A stripe without a segment cannot be read at all.
        let tolerated = segment.map_or(i16::MIN, |it| it.losses_surely_tolerated(record));
        if tolerated >= 0 && found.is_empty() {
            return Ok(tolerated);
        }
        let mut lost = found;
        match segment {
            Some(segment) => lost.extend(segment.lost_bytes(record)),
            None => lost.push(0..u32::MAX),
        }
        let is_lost = self.holds_any(files, stripe, &lost)?;
        // Other files may have lost bytes of it.
        Ok(if is_lost { tolerated.min(-1) } else { 0 })
    }

    /// Returns whether the files hold any of these bytes of a stripe.
    fn holds_any(
        &self,
        files: &FileStripes,
        stripe: StripeId,
        lost: &[Range<u32>],
    ) -> Result<bool, CommitError> {
        let (from, end) = key::backrefs(stripe);
        let mut holds = false;
        self.catalog.visit(&from, &end, |key, value| {
            let (_, ino, _) = key::parse_backref(key)?;
            holds |= files.inos.contains(&ino) && is_hit(&Backref::decode(value)?, lost);
            Ok::<_, CommitError>(if holds {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok(holds)
    }

    /// Counts the shards of a stripe for the members that hold them.
    fn count_shards(&self, record: &Stripe, shards: &mut BTreeMap<MemberIndex, u64>) {
        let Some(segment) = self.stripes.segments().record(record.segment) else {
            return;
        };
        let total = segment.data_shards.saturating_add(segment.parity_shards);
        let written = (0..total).map(ShardIndex);
        let written = written.filter(|shard| record.written.contains(*shard));
        for member in written.filter_map(|shard| member_of(&segment, record, shard)) {
            *shards.entry(member).or_default() += 1;
        }
    }
}
