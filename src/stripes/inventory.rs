//! The segment files on the members: listing them, and removing remnants of a crash or an absence.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::census::{Census, FileLengths};
use super::segment_io::SegmentIo;
use super::segments::Segments;
use crate::format::{MemberIndex, SegmentId, files};
use crate::membership::Members;
use crate::store::{Op, Store, StoreError, StoreErrorKind};

/// The segment files of a member.
enum Listed {
    /// As it says itself.
    Now(Vec<(SegmentId, u64)>),
    /// As it said before, and the first segment that was not made yet then.
    Before(Vec<(SegmentId, u64)>, SegmentId),
}

/// Lists the segment files on the members, and removes those that no record names.
pub(crate) struct FileInventory {
    members: Arc<Members>,
    segments: Arc<Segments>,
    io: SegmentIo,
    /// The segment files that there were when the members were asked last.
    last: Mutex<Census>,
}

impl FileInventory {
    /// Creates the part; it asks no member yet.
    pub(super) fn new(members: Arc<Members>, segments: Arc<Segments>) -> Self {
        Self {
            io: SegmentIo::new(Arc::clone(&members)),
            members,
            segments,
            last: Mutex::default(),
        }
    }

    /// Forgets the answers of the members, since another directory has the place of one.
    pub(super) fn forget(&self) {
        *self.last.lock() = Census::default();
    }

    /// Lists the segment files of all online members: one call to each.
    pub(crate) fn census(&self) -> Census {
        self.census_by(|member| {
            let listed = self.members.io().call(member, "list", list_segments);
            listed.map(Listed::Now)
        })
    }

    /// Lists like [`Self::census`], but a member that does not answer in a moment counts with its last answer, and with
    /// the files made since.
    pub(crate) fn quick_census(&self) -> Census {
        let known = self.last.lock().clone();
        self.census_by(|member| {
            let of_member = |found: &(MemberIndex, SegmentId)| found.0 == member;
            if !known.files.keys().any(of_member) {
                let listed = self.members.io().call(member, "list", list_segments);
                return listed.map(Listed::Now);
            }
            let listed = self.members.io().call_hedged(member, "list", list_segments);
            match listed {
                Err(error) if error.kind() == StoreErrorKind::Slow => {
                    let files = known.files.iter();
                    let held = files.filter(|((holder, _), _)| *holder == member);
                    let held = held.map(|((_, segment), len)| (*segment, *len)).collect();
                    let next = known.silent.get(&member).copied().unwrap_or(known.next);
                    Ok(Listed::Before(held, next))
                }
                listed => listed.map(Listed::Now),
            }
        })
    }

    fn census_by(&self, list: impl Fn(MemberIndex) -> Result<Listed, StoreError>) -> Census {
        // Before any member is asked: the files of a segment are there before it is known.
        let newest = self.segments.all().iter().map(|handle| handle.id.0).max();
        let mut files = HashMap::new();
        let mut silent = BTreeMap::new();
        for member in self.members.membership().live() {
            let listed = match list(member) {
                Ok(Listed::Now(listed)) => listed,
                Ok(Listed::Before(listed, next)) => {
                    silent.insert(member, next);
                    listed
                }
                // Most likely it is out of the volume by now; it counts for nothing.
                Err(error) => {
                    tracing::debug!("{error}");
                    continue;
                }
            };
            let listed = listed.into_iter();
            files.extend(listed.map(|(segment, len)| ((member, segment), len)));
        }
        let census = Census {
            files: Arc::new(files),
            unverified: Arc::new(self.members.stale_copies().unverified()),
            next: SegmentId(newest.map_or(0, |newest| newest.saturating_add(1))),
            silent,
        };
        *self.last.lock() = census.clone();
        census
    }

    /// Asks the members of a segment how long their files of it are at this moment; `None` if one that is online does
    /// not answer.
    pub(crate) fn files_of(&self, id: SegmentId) -> Option<FileLengths> {
        let handle = self.segments.get(id)?;
        let live = self.members.membership().live();
        let mut lens = BTreeMap::new();
        for member in handle.record.slots.iter().flatten() {
            if !live.contains(member) {
                continue;
            }
            let name = Arc::clone(&handle.name);
            let open_len = move |store: &dyn Store| store.open_len(&name);
            match self.members.io().call(*member, "open", open_len) {
                Ok(len) => {
                    lens.insert(*member, Some(len));
                }
                Err(error) if error.kind().lacks_file() => {
                    lens.insert(*member, None);
                }
                Err(error) if self.members.membership().live().contains(member) => {
                    tracing::warn!(segment = %id, "{error}");
                    return None;
                }
                Err(error) => tracing::debug!(segment = %id, "{error}"),
            }
        }
        Some(FileLengths { lens })
    }

    /// Removes files of segments that the index does not know, or knows on other members only. They were made before a
    /// crash and never recorded, or removed while their member was away.
    ///
    /// The caller passes the present files. It calls this once everything that a crash left to recover is in the index,
    /// and before anything else is written.
    ///
    /// The numbers of segments are never used twice, so such a file holds nothing that is named. A file
    /// longer than its segment missed that it was cut, and is cut now.
    pub(crate) fn remove_strays(&self, census: &Census) {
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
        let outcomes = self.members.io().run(strays.iter().map(remove).collect());
        for error in outcomes.into_iter().filter_map(Result::err) {
            tracing::warn!("a stray segment file stays: {error}");
        }
        for (member, segment) in census.files() {
            if let Some(handle) = self.segments.get(segment)
                && handle.record.slots.contains(&Some(member))
                && census.len(member, segment) > Some(handle.record.len)
            {
                self.io.truncate(&handle, member, handle.record.len);
            }
        }
    }
}

fn list_segments(store: &dyn Store) -> Result<Vec<(SegmentId, u64)>, StoreError> {
    let listed = store.list(files::SEGMENTS)?.into_iter();
    let segment = |(name, len): (String, u64)| Some((files::parse_segment(&name)?, len));
    Ok(listed.filter_map(segment).collect())
}
