//! Audit of the segments for space that no other code gives back any more.
//!
//! A dead stripe's space is given back some time after its records are gone, and the unfilled rest of a segment when it
//! is finished. A crash in between leaves space that no record names. The absence of a member and a stripe that never
//! got its record do the same. After a mount, a background pass looks once at every segment that existed then. It
//! punches the gaps, cuts off the bytes behind the last stripe, and notes the space really taken for
//! `SpaceMeter::measure` of the stripes.

use std::collections::HashMap;
use std::ops::Range;

use super::{Queues, Reaper};
use crate::format::SegmentId;
use crate::format::record::Stripe;
use crate::transaction::CommitError;

/// Segments looked at in one go.
const SEGMENTS_AT_ONCE: usize = 16;

impl Reaper {
    /// Audits the next few of the segments that existed at the mount.
    pub(super) fn audit_segments(&self, queues: &mut Queues) -> Result<(), CommitError> {
        // If one cannot be looked at, all are, again, by the next call.
        let mut left = queues.unaudited.take().unwrap_or_else(|| {
            let segments = self.stripes.segments().records().into_iter();
            segments.map(|(segment, _)| segment).collect()
        });
        for _ in 0..SEGMENTS_AT_ONCE {
            let Some(segment) = left.pop_front() else {
                break;
            };
            if queues.is_freeing(segment) {
                // Records that are gone may be back after a crash, until a commit covers it.
                left.push_back(segment);
            } else {
                self.audit_segment(queues, segment)?;
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

    fn audit_segment(&self, queues: &mut Queues, segment: SegmentId) -> Result<(), CommitError> {
        if self.stripes.segments().record(segment).is_none()
            || self.stripes.segments().is_writing(segment)
        {
            return Ok(());
        }
        let Some(places) = self.places_in(segment)? else {
            tracing::warn!(
                %segment,
                "the records of its stripes are damaged: it is left as it is"
            );
            return Ok(());
        };
        let Some(last) = places.last() else {
            queues.closed_segments.push(segment);
            return Ok(());
        };
        self.stripes.segments().cut_unfinished(segment, last.end)?;
        let mut gap_start = 0;
        let mut taken = 0;
        for place in places {
            if place.start > gap_start {
                self.stripes
                    .segments()
                    .free_range(segment, gap_start..place.start);
            }
            taken += place.end - place.start;
            gap_start = gap_start.max(place.end);
        }
        self.stripes.segments().set_taken(segment, taken);
        Ok(())
    }

    /// Returns the ranges of each of a segment's files that stripes take, in order. Returns `None` if their records do
    /// not agree on their places, because a range that seems free may not be.
    fn places_in(&self, segment: SegmentId) -> Result<Option<Vec<Range<u64>>>, CommitError> {
        let stripes = self.catalog.stripes_in(segment)?;
        let place = |(_, record): (_, Stripe)| {
            record.offset..record.offset.saturating_add(record.height.into())
        };
        Ok(stripes.map(|stripes| stripes.into_iter().map(place).collect()))
    }
}
