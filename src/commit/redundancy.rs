//! Counting redundancy (P6): stripe by stripe, against the files that are really there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::reap::successor;
use super::{CommitError, Pipeline};
use crate::format::record::{Backref, Segment, Stripe};
use crate::format::{Epoch, Ino, MemberIndex, Record, SegmentId, StripeId, key};
use crate::members::PutBack;
use crate::volume::{Census, SegmentCensus, Volume, member_of};
use live::LiveBytes;

mod live;

/// How long a count is good while no member comes or goes and nothing is committed: files may vanish
/// behind the daemon's back.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// Stripes and inodes that are listed by name at most.
const MAX_LISTED: usize = 1000;

/// Stripes counted in one go.
const STRIPES_AT_ONCE: usize = 4096;

/// Stripes that can bear the same number of further losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedundancyRow {
    /// Shards of each that can still be lost; negative: its data is lost already.
    pub losses_tolerated: i16,
    /// How many stripes.
    pub stripes: u64,
    /// Bytes in them that files hold; those that several share count once.
    pub bytes: u64,
}

/// A stripe of which bytes are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostStripe {
    /// The stripe.
    pub stripe: StripeId,
    /// Which bytes of its payload, perhaps some of them twice; all of them if it lies nowhere.
    pub bytes: Vec<Range<u32>>,
}

/// What was counted on the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redundancy {
    /// The most endangered first. Together they are all live data that is not in memory alone.
    pub rows: Vec<RedundancyRow>,
    /// The first stripes whose data is lost, at most 1000.
    pub unrecoverable: Vec<LostStripe>,
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

/// The count that is shared, and who makes the next one.
#[derive(Debug, Default)]
pub(super) struct Counting {
    /// Held while counting: whoever waits for it may find that the count is his as well.
    baton: Mutex<()>,
    last: Mutex<Option<Counted>>,
}

/// A count and what it was true for.
#[derive(Debug)]
struct Counted {
    began: Instant,
    state: KnownState,
    redundancy: Arc<Redundancy>,
}

/// What a count depends on, as far as a change of it is noticed.
#[derive(Debug, PartialEq, Eq)]
struct KnownState {
    epoch: Epoch,
    /// Once too few members are left, the epoch does not rise any more.
    live: Vec<MemberIndex>,
    commits: u64,
    /// Changes of what turned out to be undecodable.
    undecodable: u64,
    /// The members whose files count for nothing yet.
    unverified: PutBack,
}

impl Pipeline {
    /// Counts, for every stripe with live bytes, the shards that were written and whose files are on
    /// members at hand.
    ///
    /// Walks the records of all stripes and lists the segment files of each member, unless that was
    /// done just now. Who asks while others count shares the next count with all who do. Stripes that
    /// are still in memory are not counted. Of what shards hold only that counts which a scrub found
    /// undecodable, or reads since the volume was opened.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn redundancy(&self) -> Result<Arc<Redundancy>, CommitError> {
        self.redundancy_since(Instant::now())
    }

    /// The same, asked for at a moment that has passed.
    pub(super) fn redundancy_since(&self, asked: Instant) -> Result<Arc<Redundancy>, CommitError> {
        if let Some(known) = self.known_redundancy(asked) {
            return Ok(known);
        }
        let _baton = self.counting.baton.lock();
        if let Some(known) = self.known_redundancy(asked) {
            return Ok(known);
        }
        let began = Instant::now();
        let state = self.known_state();
        let redundancy = Arc::new(self.count_redundancy()?);
        *self.counting.last.lock() = Some(Counted {
            began,
            state,
            redundancy: Arc::clone(&redundancy),
        });
        Ok(redundancy)
    }

    /// Returns a count that began after it was asked for, or since when nothing changed that is known of.
    fn known_redundancy(&self, asked: Instant) -> Option<Arc<Redundancy>> {
        let last = self.counting.last.lock();
        let is_good = |counted: &&Counted| {
            let is_young = counted.began.elapsed() < GOOD_FOR;
            counted.began >= asked || (is_young && counted.state == self.known_state())
        };
        let counted = last.as_ref().filter(is_good)?;
        Some(Arc::clone(&counted.redundancy))
    }

    fn known_state(&self) -> KnownState {
        KnownState {
            epoch: self.members.epoch(),
            live: self.members.live(),
            commits: self.group.count(),
            undecodable: self.volume.undecodable_changes(),
            unverified: self.members.put_back(),
        }
    }

    fn count_redundancy(&self) -> Result<Redundancy, CommitError> {
        let (census, segments) = take_census(&self.volume);
        self.note_files(&census);
        self.count_all(Count::new(&self.volume, segments))
    }

    fn count_all(&self, mut count: Count<'_>) -> Result<Redundancy, CommitError> {
        let (mut from, end) = key::stripes();
        let mut stripes = Vec::new();
        loop {
            self.read_stripes(&from, &end, &mut stripes)?;
            let Some(&(last, _)) = stripes.last() else {
                count.look_again();
                return Ok(count.result());
            };
            self.count_stripes(&mut count, &stripes)?;
            from = successor(&key::stripe(last));
        }
    }

    /// Reads the first of the records of stripes in a range.
    fn read_stripes(
        &self,
        from: &[u8],
        end: &[u8],
        stripes: &mut Vec<(StripeId, Stripe)>,
    ) -> Result<(), CommitError> {
        stripes.clear();
        self.visit(from, end, |key, value| {
            stripes.push((key::parse_stripe(key)?, Stripe::decode(value)?));
            Ok(if stripes.len() < STRIPES_AT_ONCE {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })
    }

    /// Counts some stripes, in order, beside the backrefs that say what of them lives.
    fn count_stripes(
        &self,
        count: &mut Count<'_>,
        stripes: &[(StripeId, Stripe)],
    ) -> Result<(), CommitError> {
        let (Some((first, _)), Some((last, _))) = (stripes.first(), stripes.last()) else {
            return Ok(());
        };
        let (from, end) = (key::backrefs(*first).0, key::backrefs(*last).1);
        let mut stripes = stripes.iter().peekable();
        let mut live = LiveBytes::default();
        self.visit(&from, &end, |key, value| {
            let (stripe, _, _) = key::parse_backref(key)?;
            while let Some((before, record)) = stripes.next_if(|(id, _)| *id < stripe) {
                count.add(*before, record, live.take());
            }
            // One without a record is in memory.
            if stripes.peek().is_some_and(|(id, _)| *id == stripe) {
                live.add(&Backref::decode(value)?);
            }
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        for (stripe, record) in stripes {
            count.add(*stripe, record, live.take());
        }
        Ok(())
    }

    /// Returns how many bytes of a stripe files hold; those that several share count once.
    pub(super) fn live_in(&self, stripe: StripeId) -> Result<u64, CommitError> {
        let (from, end) = key::backrefs(stripe);
        let mut live = LiveBytes::default();
        self.visit(&from, &end, |_, value| {
            live.add(&Backref::decode(value)?);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        Ok(live.take())
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

    /// Says whether stripes are known to lack shards: those that were written while members were away,
    /// or that lost shards since; and those whose files turned out to be gone or too short. It counts
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn lacks_shards(&self) -> Result<bool, CommitError> {
        let (from, end) = key::repairs();
        let noted = !self.meta.scan(&from, &end, 1)?.is_empty();
        Ok(noted || self.volume.lacks_files())
    }

    /// Says whether segment files are known to be gone or too short, on members at hand: since the volume
    /// was opened, counted, or read.
    #[must_use]
    pub fn lacks_files(&self) -> bool {
        self.volume.lacks_files()
    }

    /// Looks whether segment files are gone or too short, on members at hand: one call to each.
    pub fn look_for_files(&self) {
        self.note_files(&self.volume.census());
    }

    /// Takes note of it if segment files turned out to be gone or too short. Those of segments that are
    /// being written are found when they are finished.
    fn note_files(&self, census: &Census) {
        let mut segments = self.volume.segments();
        segments.retain(|(segment, _)| !self.volume.is_writing(*segment));
        if census.lacks_files(&segments, &self.members.live()) {
            self.volume.set_lacks_files(true);
        }
    }

    /// Says whether there are segments of which fewer members are at hand than they have data shards.
    /// It counts nothing; short stripes in them may be whole.
    #[must_use]
    pub fn has_lost_segments(&self) -> bool {
        let live = self.members.live();
        let is_lost = |(_, segment): &(SegmentId, Segment)| {
            let holders = segment.slots.iter().flatten();
            let held = holders.filter(|member| live.contains(member)).count();
            held < usize::from(segment.data_shards)
        };
        self.volume.segments().iter().any(is_lost)
    }

    pub(super) fn for_each_stripe(
        &self,
        mut visit: impl FnMut(StripeId, Stripe),
    ) -> Result<(), CommitError> {
        let (from, end) = key::stripes();
        self.visit(&from, &end, |key, value| {
            visit(key::parse_stripe(key)?, Stripe::decode(value)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the inodes that hold bytes that are lost, at most 1000.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn inodes_in(&self, lost: &[LostStripe]) -> Result<BTreeSet<Ino>, CommitError> {
        let mut inodes = BTreeSet::new();
        for LostStripe { stripe, bytes } in lost {
            let (from, end) = key::backrefs(*stripe);
            self.visit(&from, &end, |key, value| {
                if is_hit(&Backref::decode(value)?, bytes) {
                    inodes.insert(key::parse_backref(key)?.1);
                }
                Ok::<_, CommitError>(if inodes.len() < MAX_LISTED {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                })
            })?;
        }
        Ok(inodes)
    }
}

/// Says whether some of a file's bytes are among those that are lost.
fn is_hit(backref: &Backref, lost: &[Range<u32>]) -> bool {
    let start = u64::from(backref.stripe_offset);
    let end = start.saturating_add(backref.len);
    lost.iter()
        .any(|lost| u64::from(lost.start) < end && start < u64::from(lost.end))
}

/// A count that is being made.
struct Count<'v> {
    volume: &'v Volume,
    undecodable: BTreeMap<StripeId, Vec<Range<u32>>>,
    segments: HashMap<SegmentId, SegmentCensus>,
    rows: BTreeMap<i16, RedundancyRow>,
    unrecoverable: Vec<LostStripe>,
    /// Stripes, and their live bytes, that lack shards in segments that were being written meanwhile:
    /// their files may be younger than the look at the members.
    doubtful: Vec<(StripeId, Stripe, u64)>,
}

impl<'v> Count<'v> {
    fn new(volume: &'v Volume, segments: HashMap<SegmentId, SegmentCensus>) -> Self {
        Self {
            volume,
            undecodable: volume.undecodable(),
            segments,
            rows: BTreeMap::new(),
            unrecoverable: Vec::new(),
            doubtful: Vec::new(),
        }
    }

    /// Counts what was left open, by files as they are now.
    fn look_again(&mut self) {
        if self.doubtful.is_empty() {
            return;
        }
        self.segments = take_census(self.volume).1;
        for (stripe, record, live) in std::mem::take(&mut self.doubtful) {
            self.settle(stripe, &record, live);
        }
    }

    /// Counts a stripe of which so many bytes live; one that is dead holds nothing that can be lost.
    fn add(&mut self, stripe: StripeId, record: &Stripe, live: u64) {
        if live == 0 {
            return;
        }
        let segment = self.segments.get(&record.segment);
        let is_whole = segment.is_some_and(|segment| segment.is_whole(record));
        let is_fresh = segment.is_none() || self.volume.is_writing(record.segment);
        if is_fresh && !is_whole {
            self.doubtful.push((stripe, *record, live));
        } else {
            self.settle(stripe, record, live);
        }
    }

    fn settle(&mut self, stripe: StripeId, record: &Stripe, live: u64) {
        // A stripe without a segment cannot be read at all.
        let segment = self.segments.get(&record.segment);
        let mut tolerated =
            segment.map_or(i16::MIN, |segment| segment.losses_surely_tolerated(record));
        let undecodable = self.undecodable.get(&stripe);
        if undecodable.is_some() {
            tolerated = tolerated.min(-1);
        }
        let fresh = RedundancyRow {
            losses_tolerated: tolerated,
            stripes: 0,
            bytes: 0,
        };
        let row = self.rows.entry(tolerated).or_insert(fresh);
        row.stripes += 1;
        row.bytes += live;
        if tolerated < 0 && self.unrecoverable.len() < MAX_LISTED {
            let everything = || std::iter::once(0..u32::MAX).collect();
            let absent = segment.map_or_else(everything, |segment| segment.lost_bytes(record));
            let found = undecodable.cloned().unwrap_or_default();
            let bytes = absent.into_iter().chain(found).collect();
            self.unrecoverable.push(LostStripe { stripe, bytes });
        }
    }

    fn result(self) -> Redundancy {
        Redundancy {
            rows: self.rows.into_values().collect(),
            unrecoverable: self.unrecoverable,
        }
    }
}

/// Lists the segments, and then what there is of them: a file is there before its segment is known.
fn take_census(volume: &Volume) -> (Census, HashMap<SegmentId, SegmentCensus>) {
    let segments = volume.segments().into_iter();
    let census = volume.census_at_once();
    let of_segments = segments
        .map(|(id, record)| (id, census.of_segment(id, record)))
        .collect();
    (census, of_segments)
}

#[cfg(test)]
impl Pipeline {
    /// Counts after something happened that a count which has begun does not see.
    pub(super) fn redundancy_with(
        &self,
        meanwhile: impl FnOnce(),
    ) -> Result<Redundancy, CommitError> {
        let count = Count::new(&self.volume, take_census(&self.volume).1);
        meanwhile();
        self.count_all(count)
    }
}
