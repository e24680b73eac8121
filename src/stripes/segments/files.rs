//! Making the files of a new segment on the members with the most room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Need, Segments};
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId};
use crate::store::{Op, Space, StoreErrorKind};
use crate::stripes::classes::ClassCode;
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::options::FullMembers;
use crate::stripes::placement::{Candidate, Placement, leave_out_full, place};
use crate::stripes::segment_handle::SegmentHandle;

/// Tries at opening one segment, before members that keep failing or filling up are given in to.
const MAX_TRIES: usize = 80;

/// A part of each member that segments leave alone, for the index and for whatever else grows.
const KEPT_BACK_PARTS: u64 = 64;

/// The most that is kept back on a member.
const MAX_KEPT_BACK: u64 = 1 << 30;

/// Segments of one stripe that are kept free for compaction.
const COMPACTION_STEPS: u64 = 4;

/// At most this part of a member is kept back from the index.
const SMALLEST_KEPT_PART: u64 = 8;

/// Returns how much of a member segments may not take.
pub(crate) fn kept_back(space: Space, step: u64, need: Need) -> u64 {
    let for_index = (space.total_bytes / KEPT_BACK_PARTS).min(MAX_KEPT_BACK);
    match need {
        Need::New => for_index + COMPACTION_STEPS * step,
        Need::Compaction(_) => for_index / 2,
        // The index keeps some back for itself.
        Need::Accepted => 0,
    }
}

/// Returns how much of a member the index may not take: what compaction needs, but not all that is
/// kept back from segments. On a small one it is part of that.
pub(crate) fn kept_from_index(space: Space, step: u64) -> u64 {
    let for_compaction = kept_back(space, step, Need::Compaction(0)) + COMPACTION_STEPS * step;
    for_compaction.min(space.total_bytes / SMALLEST_KEPT_PART)
}

/// Returns how much of a filesystem's free space is promised to stripes that are not written yet.
pub(crate) fn promised(
    space: Space,
    spaces: &[(MemberIndex, Space)],
    unwritten: &HashMap<MemberIndex, u64>,
) -> u64 {
    if space.reserves {
        return 0;
    }
    let sharing = spaces
        .iter()
        .filter(|(_, other)| other.filesystem == space.filesystem);
    sharing
        .filter_map(|(member, _)| unwritten.get(member))
        .sum()
}

impl Segments {
    /// Returns the segment that is being opened, if any. Members may have its files already.
    pub(crate) fn unfinished(&self) -> Option<SegmentId> {
        self.frontier.lock().unfinished
    }

    /// Makes the files of a new segment on the members with the most room; what was accepted has all that
    /// is kept back for it.
    pub(super) fn open_segment(
        &self,
        code: &ClassCode,
        need: Need,
    ) -> Result<Arc<SegmentHandle>, StripeError> {
        let mut opened = self.try_open_segment(code, need);
        let lacks_space = matches!(opened, Err(StripeError::NoSpace { .. }));
        if lacks_space && need == Need::Accepted && self.give_all_ballast() {
            opened = self.try_open_segment(code, need);
        }
        if opened.is_err() {
            self.frontier.lock().unfinished = None;
        }
        opened
    }

    fn try_open_segment(
        &self,
        code: &ClassCode,
        need: Need,
    ) -> Result<Arc<SegmentHandle>, StripeError> {
        // The sizes that members turned down although they seemed to have room for them.
        let mut refused: HashMap<MemberIndex, u64> = HashMap::new();
        for _ in 0..MAX_TRIES {
            let (place, left_out) = self.find_place(code, need, &refused)?;
            let id = self.records.next_segment().map_err(StripeError::NoNumber)?;
            let record = Segment {
                class: code.class(),
                data_shards: layout::shard(code.geometry().data_shards()).0,
                parity_shards: layout::shard(code.geometry().parity_shards()).0,
                code: code.code().0,
                len: place.len,
                rotating: layout::shard(place.slots.len()).0,
                slots: place.slots,
            };
            let handle = SegmentHandle::new(id, record);
            self.frontier.lock().unfinished = Some(id);
            if !self.create_files(&handle, &mut refused) {
                continue;
            }
            if need != Need::New {
                return Ok(Arc::new(handle));
            }
            if !self.lacks_ballast(&handle) {
                self.name_full(&left_out);
                let mut frontier = self.frontier.lock();
                *frontier.opened.entry(code.class()).or_default() += 1;
                frontier.left_out = left_out;
                drop(frontier);
                return Ok(Arc::new(handle));
            }
            self.io.remove(&handle, handle.members());
        }
        tracing::warn!(
            "no segment could be created in {MAX_TRIES} tries; these members had no room, of so many bytes: {refused:?}"
        );
        Err(no_space(code))
    }

    fn find_place(
        &self,
        code: &ClassCode,
        need: Need,
        refused: &HashMap<MemberIndex, u64>,
    ) -> Result<(Placement, Vec<MemberIndex>), StripeError> {
        let mut candidates = self.candidates(need, code.geometry().total_shards());
        for candidate in &mut candidates {
            if let Some(&len) = refused.get(&candidate.member) {
                candidate.available = candidate.available.min(len / 2);
            }
        }
        let wanted = self.wanted(code, need);
        let data_shards = code.geometry().data_shards();
        if candidates.len() < data_shards {
            return Err(StripeError::Failed {
                live: candidates.len(),
                needed: data_shards,
            });
        }
        if candidates.len() < wanted.fewest {
            return Err(StripeError::LessProtected {
                homes: candidates.len(),
                needed: wanted.fewest,
            });
        }
        // A compaction waits for room if the bytes would be less protected without these members.
        let left_out = match self.full_members {
            FullMembers::Degrade => leave_out_full(&mut candidates, &wanted),
            FullMembers::Stop => Vec::new(),
        };
        let Some(place) = place(&candidates, &wanted) else {
            let full = candidates.iter().filter(|it| it.available < wanted.step);
            let full: Vec<MemberIndex> = full.map(|candidate| candidate.member).collect();
            if need == Need::New && full.len() < candidates.len() {
                self.name_full(&full);
            }
            return Err(no_space(code));
        };
        Ok((place, left_out))
    }

    /// Returns the room on the members, in stripes. `None` if a new segment for stripes of compaction finds no place.
    pub(in crate::stripes) fn room_for(&self, code: &ClassCode, least: i16) -> Option<u64> {
        let need = Need::Compaction(least);
        self.find_place(code, need, &HashMap::new()).ok()?;
        let candidates = self.candidates(need, code.geometry().total_shards());
        let steps = candidates.iter().map(|it| it.available / code.step());
        Some(steps.sum())
    }

    /// Logs which members have no room for a segment although others do: when these become others, and not too often.
    fn name_full(&self, full: &[MemberIndex]) {
        let before = std::mem::replace(&mut self.frontier.lock().named_full, full.to_vec());
        if full.is_empty() || before == full {
            return;
        }
        if self.full_log.admit(full.to_vec(), Instant::now()).is_none() {
            return;
        }
        let names = full.iter().map(|&member| {
            let path = self.members.membership().path(member);
            format!("member {member} ({path})")
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let consequence = match self.full_members {
            FullMembers::Stop => "nothing new can be written",
            FullMembers::Degrade => {
                "what is written now survives fewer losses, if it can be written at all"
            }
        };
        tracing::warn!(
            "{consequence}, because there is no room on {names}: free some there, or add or replace a directory"
        );
    }

    /// Makes a segment's files; on failure none is left, and what could not be had is noted.
    fn create_files(
        &self,
        handle: &SegmentHandle,
        refused: &mut HashMap<MemberIndex, u64>,
    ) -> bool {
        let members: Vec<MemberIndex> = handle.members().collect();
        let create = |&member| {
            (
                member,
                Op::Create {
                    name: Arc::clone(&handle.name),
                    len: handle.record.len,
                },
            )
        };
        let outcomes = self.members.io().run(members.iter().map(create).collect());
        let mut made = Vec::new();
        for (&member, outcome) in members.iter().zip(&outcomes) {
            match outcome {
                Ok(_) => made.push(member),
                Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                    refused.insert(member, handle.record.len);
                }
                // A member that failed is out by now; a name that is taken gets another number.
                Err(_) => {}
            }
        }
        let complete = made.len() == members.len();
        if !complete {
            self.io.remove(handle, made.into_iter());
        }
        complete
    }

    /// Returns the members that are left, with the room that a new segment may take on each whose stripes have so many
    /// shards.
    pub(crate) fn candidates(&self, need: Need, shards: usize) -> Vec<Candidate> {
        let taken = self.taken_by_member();
        let homes = self.members.membership().homes(shards);
        let mut spaces = self.members.io().spaces();
        spaces.retain(|(member, _)| homes.contains(member));
        let mut full = Vec::new();
        if need == Need::New {
            let (without, took) = self.keep_ballast(&spaces);
            full = without;
            if took {
                spaces = self.members.io().spaces();
                spaces.retain(|(member, _)| homes.contains(member));
            }
        }
        full.extend(self.frontier.lock().full.iter());
        let unwritten = self.unwritten();
        let share = |(member, space): (MemberIndex, Space)| {
            let sharing = spaces
                .iter()
                .filter(|(_, other)| other.filesystem == space.filesystem);
            let room = space
                .free_bytes
                .saturating_sub(kept_back(space, self.step, need))
                .saturating_sub(promised(space, &spaces, &unwritten));
            let available = if full.contains(&member) {
                0
            } else {
                room / sharing.count() as u64
            };
            Candidate {
                member,
                available,
                taken: taken.get(&member).copied().unwrap_or(0),
                filesystem: space.filesystem,
            }
        };
        spaces.iter().copied().map(share).collect()
    }

    /// Returns what the files of all segments take on each member, by their lengths.
    fn taken_by_member(&self) -> HashMap<MemberIndex, u64> {
        let mut taken = HashMap::new();
        for segment in self.all() {
            for member in segment.members() {
                *taken.entry(member).or_default() += segment.record.len;
            }
        }
        taken
    }
}

fn no_space(code: &ClassCode) -> StripeError {
    StripeError::NoSpace {
        needed: code.geometry().total_shards(),
    }
}
