//! Putting segment files in order after a mount: remnants of a crash or an absence go.

use super::{Census, Core, VolumeError};
use crate::format::{MemberIndex, SegmentId, files};
use crate::store::Op;

impl Core {
    /// Removes files of segments that the index does not know, or knows on other members only: they
    /// were made before a crash and never recorded, or removed while their member was away.
    ///
    /// The numbers of segments are never used twice, so such a file holds nothing that is named. A file
    /// longer than its segment missed that it was cut, and is cut now.
    pub(super) fn remove_strays(&self, census: &Census) {
        let is_stray = |&(member, segment): &(MemberIndex, SegmentId)| {
            let handle = self.segments.get(segment);
            handle.is_none_or(|handle| !handle.record.slots.contains(&Some(member)))
        };
        let strays: Vec<_> = census.files().filter(is_stray).collect();
        let remove = |&(member, segment): &_| {
            (
                member,
                Op::Remove {
                    name: files::segment(segment).into(),
                },
            )
        };
        let outcomes = self.members.run(strays.iter().map(remove).collect());
        for error in outcomes.into_iter().filter_map(Result::err) {
            log::warn!("a stray segment file stays: {error}");
        }
        for (member, segment) in census.files() {
            if let Some(handle) = self.segments.get(segment)
                && handle.record.slots.contains(&Some(member))
                && census.len(member, segment) > Some(handle.record.len)
            {
                self.segments
                    .truncate_file(&handle, member, handle.record.len);
            }
        }
    }

    /// Cuts a segment that was being written when the volume was last used to what is used of it.
    pub(super) fn cut(&self, segment: SegmentId, used: u64) -> Result<(), VolumeError> {
        match self.segments.get(segment) {
            Some(handle) if handle.record.len > used && !self.segments.is_writing(segment) => {
                self.segments.cut(&handle, used)
            }
            _ => Ok(()),
        }
    }
}
