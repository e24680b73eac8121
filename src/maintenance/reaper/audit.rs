//! Audit of the segments for space that no other code gives back any more.
//!
//! A dead stripe's space is given back some time after its records are gone, and the unfilled rest of a segment when it
//! is finished. A crash in between leaves space that no record names. The absence of a member and a stripe that never
//! got its record do the same, and so does parity that is dropped. After a mount, a background pass looks once at every
//! segment that existed then. It punches the gaps, and the places of dropped shards. It cuts off the bytes behind the
//! last stripe, and notes the space really taken for `SpaceMeter::measure` of the stripes.

use std::collections::HashMap;

use super::{Queues, Reaper};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex};
use crate::stripes::{member_of, place_of};
use crate::transaction::CommitError;

/// Segments looked at in one go.
const SEGMENTS_AT_ONCE: usize = 16;

/// Places of dropped shards after which the rest waits for the next go, since others wait for the reaper.
const PLACES_AT_ONCE: usize = 1024;

impl Reaper {
    /// Audits the next few of the segments that existed at the mount.
    pub(super) fn audit_segments(&self, queues: &mut Queues) -> Result<(), CommitError> {
        // If one cannot be looked at, all are, again, by the next call.
        let mut left = queues.unaudited.take().unwrap_or_else(|| {
            let segments = self.stripes.segments().records().into_iter();
            segments.map(|(segment, _)| segment).collect()
        });
        let mut places = 0;
        for _ in 0..SEGMENTS_AT_ONCE {
            if places >= PLACES_AT_ONCE {
                break;
            }
            let Some(segment) = left.pop_front() else {
                break;
            };
            if queues.is_freeing(segment) || queues.held.contains(&segment) {
                // Records that are gone may be back after a crash, until a commit covers that. A held segment may get shards
                // that no record names yet.
                left.push_back(segment);
            } else {
                places += self.audit_segment(queues, segment)?;
            }
        }
        queues.unaudited = Some(left);
        Ok(())
    }

    /// Counts the space that stripes take of each segment of a read-only volume. No segment of it is audited, so
    /// `SpaceMeter::measure` of the stripes would take all of them for full otherwise.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn measure_segments(&self) -> Result<(), CommitError> {
        let segments = self.stripes.segments().records().into_iter();
        let mut taken: HashMap<SegmentId, u64> =
            segments.map(|(segment, _)| (segment, 0)).collect();
        self.catalog.for_each_stripe(|_, stripe| {
            if let Some(taken) = taken.get_mut(&stripe.segment) {
                *taken += u64::from(stripe.height);
            }
        })?;
        for (segment, taken) in taken {
            self.stripes.segments().set_taken(segment, taken);
        }
        Ok(())
    }

    /// Audits a segment. Returns the number of places of dropped shards that it freed.
    fn audit_segment(&self, queues: &mut Queues, segment: SegmentId) -> Result<usize, CommitError> {
        if self.stripes.segments().is_writing(segment) {
            return Ok(0);
        }
        let Some(record) = self.stripes.segments().record(segment) else {
            return Ok(0);
        };
        // If the records do not agree, a range that seems free may not be so.
        let Some(stripes) = self.catalog.stripes_in(segment)? else {
            tracing::warn!(
                %segment,
                "the records of its stripes are damaged: it is left as it is"
            );
            return Ok(0);
        };
        let Some(last) = stripes.last().map(|(_, last)| place_of(last)) else {
            queues.closed_segments.push(segment);
            return Ok(0);
        };
        self.stripes.segments().cut_unfinished(segment, last.end)?;
        let mut gap_start = 0;
        let mut taken = 0;
        for (_, stripe) in &stripes {
            let place = place_of(stripe);
            if place.start > gap_start {
                self.stripes
                    .segments()
                    .free_range(segment, gap_start..place.start);
            }
            taken += place.end - place.start;
            gap_start = gap_start.max(place.end);
        }
        self.stripes.segments().set_taken(segment, taken);
        let spare = stripes.iter().flat_map(|(_, stripe)| {
            let members = members_without_shard(&record, stripe).into_iter();
            members.map(|member| (member, place_of(stripe)))
        });
        Ok(self.stripes.segments().free_places(segment, spare))
    }
}

/// Returns the members that keep a file of the segment, but no shard of a stripe in it. They may have held parity that was
/// dropped.
fn members_without_shard(segment: &Segment, stripe: &Stripe) -> Vec<MemberIndex> {
    let spare = segment.total_shards()..segment.slots.len();
    let spare = spare.filter_map(|shard| u8::try_from(shard).ok().map(ShardIndex));
    // Shards that are noted already get their record of the segment later.
    let spare = spare.filter(|shard| !stripe.written.contains(*shard));
    spare
        .filter_map(|shard| member_of(segment, stripe, shard))
        .collect()
}
