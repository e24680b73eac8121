//! Counting redundancy (P6): stripe by stripe, against the files that are really there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::reap::successor;
use super::{CommitError, Pipeline};
use crate::format::record::{Segment, Stripe};
use crate::format::{Epoch, Ino, MemberIndex, Record, SegmentId, StripeId, key};
use crate::volume::member_of;

/// How long a count is good while no member comes or goes and nothing is committed: files may vanish
/// behind the daemon's back.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// Stripes and inodes that are listed by name at most.
const MAX_LISTED: usize = 1000;

/// Records read at once.
const RECORDS_AT_ONCE: usize = 1024;

/// Stripes that can bear the same number of further losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedundancyRow {
    /// Shards of each that can still be lost; negative: its data is lost already.
    pub losses_tolerated: i16,
    /// How many stripes.
    pub stripes: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

/// What was counted on the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redundancy {
    /// The most endangered first. Together they are all stripes.
    pub rows: Vec<RedundancyRow>,
    /// The first stripes whose data is lost, at most 1000.
    pub unrecoverable: Vec<StripeId>,
}

/// Shards that were written to a file of a member at hand, but are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingShards {
    /// The member.
    pub member: MemberIndex,
    /// The segment whose file it is.
    pub segment: SegmentId,
    /// The length of the file in bytes, or `None` if there is none.
    pub found: Option<u64>,
    /// How many shards lie beyond that.
    pub shards: u64,
}

/// A count and what it was true for.
#[derive(Debug)]
pub(super) struct Counted {
    at: Instant,
    epoch: Epoch,
    commits: u64,
    redundancy: Redundancy,
}

impl Pipeline {
    /// Counts, for every stripe, the shards that were written and whose files are on members at hand.
    ///
    /// Walks the records of all stripes and lists the segment files of each member, unless that was
    /// done just now. Stripes that are still in memory are not counted.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn redundancy(&self) -> Result<Redundancy, CommitError> {
        let (epoch, commits) = (self.members.epoch(), self.group.count());
        if let Some(counted) = &*self.counted.lock()
            && (counted.epoch, counted.commits) == (epoch, commits)
            && counted.at.elapsed() < GOOD_FOR
        {
            return Ok(counted.redundancy.clone());
        }
        let redundancy = self.count_redundancy()?;
        let counted = Counted {
            at: Instant::now(),
            epoch,
            commits,
            redundancy: redundancy.clone(),
        };
        *self.counted.lock() = Some(counted);
        Ok(redundancy)
    }

    fn count_redundancy(&self) -> Result<Redundancy, CommitError> {
        let census = self.volume.census();
        let segments: HashMap<SegmentId, Segment> = self.volume.segments().into_iter().collect();
        let mut rows: BTreeMap<i16, RedundancyRow> = BTreeMap::new();
        let mut unrecoverable = Vec::new();
        self.for_each_stripe(|stripe, record| {
            // A stripe without a segment cannot be read at all.
            let tolerated = segments.get(&record.segment).map_or(i16::MIN, |segment| {
                census.losses_tolerated(segment, &record)
            });
            let fresh = RedundancyRow {
                losses_tolerated: tolerated,
                stripes: 0,
                bytes: 0,
            };
            let row = rows.entry(tolerated).or_insert(fresh);
            row.stripes += 1;
            row.bytes += u64::from(record.payload_len);
            if tolerated < 0 && unrecoverable.len() < MAX_LISTED {
                unrecoverable.push(stripe);
            }
        })?;
        Ok(Redundancy {
            rows: rows.into_values().collect(),
            unrecoverable,
        })
    }

    /// Lists the segment files that are gone, or too short for the shards that were written to them, on
    /// members at hand; by member and segment.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn missing_shards(&self) -> Result<Vec<MissingShards>, CommitError> {
        let census = self.volume.census();
        let live = self.members.live();
        let segments: HashMap<SegmentId, Segment> = self.volume.segments().into_iter().collect();
        let mut missing: BTreeMap<(MemberIndex, SegmentId), u64> = BTreeMap::new();
        self.for_each_stripe(|_, record| {
            let Some(segment) = segments.get(&record.segment) else {
                return;
            };
            let holders = record
                .written
                .iter()
                .filter_map(|shard| member_of(segment, &record, shard));
            for member in holders.filter(|member| live.contains(member)) {
                if !census.holds(member, &record) {
                    *missing.entry((member, record.segment)).or_default() += 1;
                }
            }
        })?;
        let list = |((member, segment), shards)| MissingShards {
            member,
            segment,
            found: census.len(member, segment),
            shards,
        };
        Ok(missing.into_iter().map(list).collect())
    }

    fn for_each_stripe(&self, mut visit: impl FnMut(StripeId, Stripe)) -> Result<(), CommitError> {
        let (mut from, end) = key::stripes();
        loop {
            let found = self.meta.scan(&from, &end, RECORDS_AT_ONCE)?;
            for (found, value) in &found {
                visit(key::parse_stripe(found)?, Stripe::decode(value)?);
            }
            match found.last() {
                Some((last, _)) if found.len() == RECORDS_AT_ONCE => from = successor(last),
                _ => return Ok(()),
            }
        }
    }

    /// Returns the inodes that have bytes in an unrecoverable stripe, at most 1000.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn lost_inodes(&self) -> Result<Vec<Ino>, CommitError> {
        let mut inodes = BTreeSet::new();
        for stripe in self.redundancy()?.unrecoverable {
            let (from, end) = key::backrefs(stripe);
            for (found, _) in self.meta.scan(&from, &end, MAX_LISTED)? {
                inodes.insert(key::parse_backref(&found)?.1);
            }
            if inodes.len() >= MAX_LISTED {
                break;
            }
        }
        Ok(inodes.into_iter().take(MAX_LISTED).collect())
    }
}
