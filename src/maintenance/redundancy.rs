//! Counts redundancy (P6), stripe by stripe, against the segment files that the members list. Only changed stripes are
//! counted again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rebuild_status::RebuildStatus;
use crate::format::record::Backref;
use crate::format::{Epoch, Ino, MemberIndex, Record, SegmentId, StripeClass, StripeId, key};
use crate::membership::{Members, StripeCode, UnverifiedCopies};
use crate::metadata::Meta;
use crate::stripes::{StripeRecords, Stripes, joined};
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::live::ends_of;
use crate::transaction::{CommitError, CountLimits};
use stretch_len::StretchLen;
use stretches::Stretches;

mod count;
mod files;
mod live;
mod row;
mod stretch_len;
mod stretches;

pub use row::RedundancyRow;

/// The time for which a count holds while no member comes or goes and nothing is committed. It is limited because
/// other programs may remove files.
const GOOD_FOR: Duration = Duration::from_secs(10);

impl CountLimits {
    /// Returns the length of a stretch.
    pub(super) fn stretch_len(self) -> StretchLen {
        StretchLen(self.stretch_stripes)
    }
}

/// A stripe with lost bytes that files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostStripe {
    /// The stripe.
    pub stripe: StripeId,
    /// The lost ranges of its payload, perhaps some of them twice; all of it if it lies nowhere.
    pub bytes: Vec<Range<u32>>,
}

/// The redundancy as counted on the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redundancy {
    /// The most endangered first. Together they are all live data that is not in memory alone.
    pub rows: Vec<RedundancyRow>,
    /// The same data by the segments in which it lies, in bytes.
    pub live: BTreeMap<SegmentId, u64>,
    /// The first stripes whose data is lost, at most 100,000.
    pub unrecoverable: Vec<LostStripe>,
    /// Set if more stripes turned out to be lost than are remembered: the rest count as their files look.
    pub is_cut: bool,
}

impl Redundancy {
    /// Returns how many shards of live stripes no online file has.
    #[must_use]
    pub fn missing_shards(&self) -> u64 {
        self.rows.iter().map(|row| row.missing).sum()
    }

    /// Returns how many of them belong to stripes with too few other shards to rebuild them.
    #[must_use]
    pub fn missing_beside_too_many(&self) -> u64 {
        let lost = self.rows.iter().filter(|row| row.losses_tolerated < 0);
        lost.map(|row| row.missing).sum()
    }

    /// Returns whether all stripes whose data is lost are listed.
    #[must_use]
    pub fn lists_all_lost(&self) -> bool {
        let lost = self.rows.iter().filter(|row| row.losses_tolerated < 0);
        let stripes: u64 = lost.map(|row| row.stripes).sum();
        !self.is_cut && stripes <= self.unrecoverable.len() as u64
    }
}

/// Shards that were written to a file of an online member, but are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingShards {
    /// The member.
    pub member: MemberIndex,
    /// The segment whose file it is.
    pub segment: SegmentId,
    /// The length of the file in bytes, or `None` if there is none.
    pub found: Option<u64>,
    /// The number of shards that lie beyond that.
    pub shards: u64,
}

/// Shards that no file should have, although stripes that files refer to lack them: they were never written, or turned out
/// bad. Those of absent members are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwrittenShards {
    /// The number of shards by segment, and by the member that is to get them. None is one that the segment does not have yet.
    pub places: BTreeMap<(SegmentId, Option<MemberIndex>), u64>,
    /// The first of these stripes.
    pub stripes: Vec<StripeId>,
}

/// Counter of redundancy. It keeps the last count, which may serve other callers.
pub struct RedundancyCounter {
    members: Arc<Members>,
    meta: Arc<Meta>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    rebuild_status: Arc<RebuildStatus>,
    limits: CountLimits,
    /// Held while counting: a caller that waits for it may find that the count serves it as well.
    counting: Mutex<Stretches>,
    last: Mutex<Option<Counted>>,
}

/// The parts that a [`RedundancyCounter`] uses.
pub(super) struct RedundancyDependencies {
    pub(super) members: Arc<Members>,
    pub(super) meta: Arc<Meta>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) records: Arc<StripeRecords>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) commits: Arc<Commits>,
    pub(super) rebuild_status: Arc<RebuildStatus>,
}

/// A count and the state for which it was true.
#[derive(Debug)]
struct Counted {
    began: Instant,
    state: KnownState,
    redundancy: Arc<Redundancy>,
}

/// The state on which a count depends, as far as a change of it is noticed.
#[derive(Debug, PartialEq, Eq)]
struct KnownState {
    epoch: Epoch,
    /// Once too few members are left, the epoch does not rise any more.
    live: Vec<MemberIndex>,
    commits: u64,
    /// The change counter of the unrecoverable ranges.
    unrecoverable_ranges: u64,
    /// The members whose files count for nothing yet.
    unverified: UnverifiedCopies,
}

impl RedundancyCounter {
    pub(super) fn new(dependencies: RedundancyDependencies, limits: CountLimits) -> Self {
        let RedundancyDependencies {
            members,
            meta,
            stripes,
            records,
            catalog,
            commits,
            rebuild_status,
        } = dependencies;
        meta.track_dirty_groups(Box::new(limits.stretch_len()));
        Self {
            members,
            meta,
            stripes,
            records,
            catalog,
            commits,
            rebuild_status,
            limits,
            counting: Mutex::new(Stretches::new(limits)),
            last: Mutex::default(),
        }
    }

    /// Counts, for every stripe with live bytes, the shards that were written and whose files are on online members.
    ///
    /// Lists the segment files of each member, and walks the records of stripes that changed, or have other files,
    /// since the last count. Does nothing if that was done just now. Callers that ask while another one counts share
    /// the next count. Stripes that are still in memory are not counted. Of the contents of shards, only ranges count
    /// that a scrub, or a read since the volume was opened, found unrecoverable.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn redundancy(&self) -> Result<Arc<Redundancy>, CommitError> {
        self.redundancy_since(Instant::now())
    }

    /// Returns a count like [`Self::redundancy`], for a caller that asked at an earlier moment.
    pub(super) fn redundancy_since(&self, asked: Instant) -> Result<Arc<Redundancy>, CommitError> {
        if let Some(known) = self.known_redundancy(asked) {
            return Ok(known);
        }
        let mut stretches = self.counting.lock();
        if let Some(known) = self.known_redundancy(asked) {
            return Ok(known);
        }
        let began = Instant::now();
        let state = self.known_state();
        let progress = self.rebuild_status.progress();
        let redundancy = Arc::new(self.count_redundancy(&mut stretches)?);
        let is_draining = !self.members.membership().draining().is_empty();
        if Self::is_full(&redundancy) && !is_draining && self.has_one_code(&redundancy) {
            self.rebuild_status.forget_stuck(&progress);
        }
        *self.last.lock() = Some(Counted {
            began,
            state,
            redundancy: Arc::clone(&redundancy),
        });
        Ok(redundancy)
    }

    /// Returns the last count if it began after the caller asked, or if no known change happened since.
    fn known_redundancy(&self, asked: Instant) -> Option<Arc<Redundancy>> {
        let last = self.last.lock();
        let is_good = |counted: &&Counted| {
            let is_young = counted.began.elapsed() < GOOD_FOR;
            counted.began >= asked || (is_young && counted.state == self.known_state())
        };
        let counted = last.as_ref().filter(is_good)?;
        Some(Arc::clone(&counted.redundancy))
    }

    /// Returns whether every stripe bears as many losses as it can.
    fn is_full(redundancy: &Redundancy) -> bool {
        redundancy.rows.iter().all(RedundancyRow::is_as_promised)
    }

    /// Returns whether all counted data has the stripe unit and the code of new data. Directories have codes of their own.
    fn has_one_code(&self, redundancy: &Redundancy) -> bool {
        let StripeCode {
            geometry,
            code,
            unit_bytes,
        } = self.members.shape().stripe_code();
        let shards = (geometry.data_shards(), geometry.parity_shards());
        let segments = self.stripes.segments().records().into_iter();
        let mut counted = segments.filter(|(id, _)| redundancy.live.contains_key(id));
        counted.all(|(id, record)| {
            let has = (record.data_shards.into(), record.parity_shards.into());
            let has_code = has == shards && record.code == code.0;
            let unit = self.catalog.past_unit_of(id);
            unit.is_none_or(|unit| unit == unit_bytes)
                && (has_code || record.class != StripeClass::VOLUME)
        })
    }

    fn known_state(&self) -> KnownState {
        KnownState {
            epoch: self.members.membership().epoch(),
            live: self.members.membership().live(),
            commits: self.commits.group.count(),
            unrecoverable_ranges: self.stripes.damage().unrecoverable().changes(),
            unverified: self.members.stale_copies().unverified(),
        }
    }

    /// Returns a number that changes when ranges of stripes become unrecoverable, or right again.
    #[must_use]
    pub fn unrecoverable_changes(&self) -> u64 {
        self.stripes.damage().unrecoverable().changes()
    }

    /// Returns how many bytes that files hold are lost of the stripes that a count lists.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn lost_bytes_in(&self, counted: &Redundancy) -> Result<u64, CommitError> {
        let mut lost = 0;
        for LostStripe { stripe, bytes } in &counted.unrecoverable {
            lost += self.catalog.live_within(*stripe, &joined(bytes.clone()))?;
        }
        Ok(lost)
    }

    /// Returns the inodes that hold bytes that are lost, at most `most`.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn inodes_in(
        &self,
        lost: &[LostStripe],
        most: usize,
    ) -> Result<BTreeSet<Ino>, CommitError> {
        let mut inodes = BTreeSet::new();
        for LostStripe { stripe, bytes } in lost {
            if inodes.len() >= most {
                break;
            }
            let (from, end) = key::backrefs(*stripe);
            self.catalog.visit(&from, &end, |key, value| {
                if is_hit(&Backref::decode(value)?, bytes) {
                    inodes.insert(key::parse_backref(key)?.1);
                }
                Ok::<_, CommitError>(if inodes.len() < most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                })
            })?;
        }
        Ok(inodes)
    }
}

/// Returns whether some of a file's bytes are among those that are lost.
pub(super) fn is_hit(backref: &Backref, lost: &[Range<u32>]) -> bool {
    let (start, end) = ends_of(backref);
    lost.iter()
        .any(|lost| u64::from(lost.start) < end && start < u64::from(lost.end))
}
