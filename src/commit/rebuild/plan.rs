//! What lacks shards, counted on the members, and what of it is most urgent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::reap::successor;
use super::super::{CommitError, Pipeline};
use super::Which;
use crate::format::record::{Segment, SegmentStripe, Stripe};
use crate::format::{MemberIndex, Record, SegmentId, ShardIndex, StripeId, key};
use crate::volume::{Census, Load, SegmentFiles, Tally, member_of};

/// Records read at once.
const RECORDS_AT_ONCE: usize = 1024;

/// What a segment lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) segment: SegmentId,
    /// The slots without their shards, and how many bytes these have.
    pub(super) slots: BTreeMap<usize, u64>,
    /// Slots that leave their members although these are at hand.
    pub(super) moves: BTreeSet<usize>,
    /// The members that are being emptied and have such slots.
    emptied: BTreeSet<MemberIndex>,
    /// How many more shards its worst stripe can lose; negative if data is lost.
    worst: i16,
}

impl Need {
    /// Returns how many bytes are to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.values().sum()
    }

    /// Returns the need of slots whose files are gone or too short.
    pub(super) fn of_files(segment: SegmentId, slots: impl Iterator<Item = usize>) -> Self {
        let mut need = Self::new(segment);
        need.slots.extend(slots.map(|slot| (slot, 0)));
        need
    }

    fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            slots: BTreeMap::new(),
            moves: BTreeSet::new(),
            emptied: BTreeSet::new(),
            worst: i16::MAX,
        }
    }

    /// Says whether it is to leave a member that is not among those `leaving` any more.
    pub(super) fn is_kept_after_all(&self, leaving: &[MemberIndex]) -> bool {
        let mut emptied = self.emptied.iter();
        emptied.any(|member| !leaving.contains(member))
    }

    /// Leaves out slots that move, and those whose members are not among `live`; says whether any is left.
    fn keep_those_of(&mut self, slots: &[Option<MemberIndex>], live: &[MemberIndex]) -> bool {
        for moved in std::mem::take(&mut self.moves) {
            self.slots.remove(&moved);
        }
        self.emptied.clear();
        self.slots.retain(|slot, _| {
            let holder = slots.get(*slot).copied().flatten();
            holder.is_some_and(|holder| live.contains(&holder))
        });
        !self.slots.is_empty()
    }

    /// Has a slot move, of so many bytes.
    fn add_move(&mut self, slot: usize, bytes: u64) {
        *self.slots.entry(slot).or_default() += bytes;
        self.moves.insert(slot);
    }
}

/// Returns the shard of a stripe that lies in a slot of its segment, unless that is one of zeros, which
/// lie nowhere.
pub(super) fn shard_in(segment: &Segment, stripe: &Stripe, slot: usize) -> Option<ShardIndex> {
    let total = segment.slots.len().max(1);
    let turn = total - usize::from(stripe.rotation) % total;
    let shard = ShardIndex(u8::try_from((slot + turn) % total).ok()?);
    let data_shards = usize::from(segment.data_shards);
    (!stripe.is_implied(shard, data_shards)).then_some(shard)
}

impl Pipeline {
    /// Counts what each segment lacks; the most urgent come first. Who comes while it counts may seem to
    /// lack more than it does.
    pub(super) fn plan_rebuild(&self, which: Which) -> Result<Vec<Need>, CommitError> {
        let live = self.members.live();
        let segments: HashMap<SegmentId, Segment> = self.volume.segments().into_iter().collect();
        let census = self.volume.census();
        let leaving = self.members.leaving();
        let mut needs = moves_of(&segments, &leaving);
        self.for_each_stripe(|_, stripe| {
            if let Some(segment) = segments.get(&stripe.segment) {
                add(&mut needs, segment, &stripe, &census, &live);
                add_moving(&mut needs, segment, &stripe);
            }
        })?;
        let mut needs: Vec<Need> = needs.into_values().collect();
        if which == Which::AtHand {
            needs.retain_mut(|need| {
                let slots = segments.get(&need.segment).map(|segment| &segment.slots);
                need.keep_those_of(slots.map_or(&[][..], Vec::as_slice), &live)
            });
        }
        needs.sort_by_key(|need| (need.worst, need.segment));
        Ok(needs)
    }

    /// Returns the stripes of a segment in disk order.
    pub(in crate::commit) fn stripes_in(
        &self,
        segment: SegmentId,
    ) -> Result<Vec<(StripeId, Stripe)>, CommitError> {
        let (mut from, end) = key::segment_stripes(segment);
        let mut stripes = Vec::new();
        loop {
            let found = self.meta.scan(&from, &end, RECORDS_AT_ONCE)?;
            for (_, value) in &found {
                let SegmentStripe(stripe) = SegmentStripe::decode(value)?;
                stripes.extend(self.records.stripe(stripe)?.map(|record| (stripe, record)));
            }
            match found.last() {
                Some((last, _)) if found.len() == RECORDS_AT_ONCE => from = successor(last),
                _ => return Ok(stripes),
            }
        }
    }
}

/// Says whether one of the stripes of a segment cannot be read from the files that are there.
pub(super) fn is_unreadable(
    segment: &Segment,
    stripes: &[(StripeId, Stripe)],
    files: &SegmentFiles,
) -> bool {
    stripes.iter().any(|(_, stripe)| {
        let is_there = |shard: ShardIndex| {
            let member = member_of(segment, stripe, shard);
            stripe.written.contains(shard)
                && member.is_some_and(|member| files.hold(member, stripe))
        };
        Tally::of(segment, stripe, is_there).losses_tolerated() < 0
    })
}

/// Returns the segments that are to leave members, with nothing counted yet.
fn moves_of(
    segments: &HashMap<SegmentId, Segment>,
    leaving: &[MemberIndex],
) -> HashMap<SegmentId, Need> {
    let mut needs = HashMap::new();
    for (&id, segment) in segments {
        for (slot, member) in segment.slots.iter().enumerate() {
            if let Some(member) = member.filter(|member| leaving.contains(member)) {
                let need = needs.entry(id).or_insert_with(|| Need::new(id));
                need.add_move(slot, 0);
                need.emptied.insert(member);
            }
        }
    }
    needs
}

/// Adds what a stripe has in the slots of its segment that move.
fn add_moving(needs: &mut HashMap<SegmentId, Need>, segment: &Segment, stripe: &Stripe) {
    let Some(need) = needs.get_mut(&stripe.segment) else {
        return;
    };
    for slot in need.moves.clone() {
        if shard_in(segment, stripe, slot).is_some() {
            need.add_move(slot, stripe.height.into());
        }
    }
}

/// Chooses segments that leave the members with most for those with least, as long as that makes them
/// more alike.
pub(super) fn balance(
    segments: &BTreeMap<SegmentId, Segment>,
    loads: &BTreeMap<MemberIndex, Load>,
) -> Vec<Need> {
    let mut loads = loads.clone();
    let mut needs = Vec::new();
    for (&id, segment) in segments.iter().rev() {
        let is_outside = |member: &MemberIndex| !segment.slots.contains(&Some(*member));
        let slots = segment.slots.iter().enumerate();
        let held = slots.filter_map(|(slot, member)| Some((slot, (*member)?)));
        let held = held.filter(|(_, member)| loads.contains_key(member));
        let fullest = held.max_by_key(|(_, member)| fill(&loads[member]));
        let emptiest = loads.keys().copied().filter(is_outside);
        let emptiest = emptiest.min_by_key(|member| fill(&loads[member]));
        let (Some((slot, from)), Some(to)) = (fullest, emptiest) else {
            continue;
        };
        let less = loads[&from].with(segment.len, false);
        let more = loads[&to].with(segment.len, true);
        if fill(&more) > fill(&less) || segment.len == 0 {
            continue;
        }
        loads.insert(from, less);
        loads.insert(to, more);
        let mut need = Need::new(id);
        need.add_move(slot, segment.len);
        needs.push(need);
    }
    needs
}

/// Returns how full a member is, in parts of a million.
fn fill(load: &Load) -> u64 {
    let whole = u128::from(load.taken) + u128::from(load.available);
    let part = u128::from(load.taken) * 1_000_000;
    part.checked_div(whole)
        .and_then(|part| u64::try_from(part).ok())
        .unwrap_or(u64::MAX)
}

/// Adds what a stripe lacks to what its segment does.
fn add(
    needs: &mut HashMap<SegmentId, Need>,
    segment: &Segment,
    stripe: &Stripe,
    census: &Census,
    live: &[MemberIndex],
) {
    let is_there = |shard: ShardIndex| {
        let member = member_of(segment, stripe, shard);
        let member = member.filter(|member| live.contains(member));
        stripe.written.contains(shard) && member.is_some_and(|member| census.holds(member, stripe))
    };
    let tolerated = Tally::of(segment, stripe, is_there).losses_tolerated();
    if tolerated == i16::from(segment.parity_shards) {
        return;
    }
    let id = stripe.segment;
    let need = needs.entry(id).or_insert_with(|| Need::new(id));
    need.worst = need.worst.min(tolerated);
    for slot in 0..segment.slots.len() {
        let is_lacking = shard_in(segment, stripe, slot).is_some_and(|shard| !is_there(shard));
        if is_lacking && !need.moves.contains(&slot) {
            *need.slots.entry(slot).or_default() += u64::from(stripe.height);
        }
    }
}
