//! Segments that get more parity shards or fewer, because the code of the volume has changed.

use crate::format::record::{Segment, Stripe};
use crate::format::{SegmentId, ShardIndex, StripeClass, StripeId};
use crate::membership::{Members, StripeCode};
use crate::stripes::RebuildTarget;
use crate::transaction::catalog::Catalog;

/// Returns the record of a segment with the parity shards that the code of the volume adds to it, in vacant slots. Its
/// shards stay as they are. A segment that is not widened is returned as it is.
pub(super) fn widened(record: &Segment, wanted: StripeCode) -> Segment {
    let mut wide = record.clone();
    if !is_of(record, wanted) || !wanted.code.takes_more_parity() {
        return wide;
    }
    let parity = u8::try_from(wanted.geometry.parity_shards()).unwrap_or(u8::MAX);
    wide.parity_shards = parity.max(record.parity_shards);
    wide.slots.resize(wide.total_slots(), None);
    wide
}

/// Returns the widened record of a segment as far as all stripes get its new shards now. It is not widened while one of
/// its slots moves: the move is noted before its shards, and new shards before the record that names them.
pub(super) fn up_to(
    stored: &Segment,
    wide: &Segment,
    stripes: &[(StripeId, Stripe)],
    targets: &[RebuildTarget],
) -> Segment {
    let holds =
        |target: &RebuildTarget| stored.slots.get(target.slot) == Some(&Some(target.member));
    let is_new = |target: &RebuildTarget| target.slot >= stored.slots.len();
    if !targets.iter().all(|target| holds(target) || is_new(target)) {
        return stored.clone();
    }
    let gets = |shard: ShardIndex| {
        stripes.iter().all(|(_, stripe)| {
            let slot = wide.slot_of(shard, stripe.rotation);
            targets.iter().any(|target| target.slot == slot)
        })
    };
    let new = stored.total_shards()..wide.total_shards();
    let new = new.filter_map(|shard| u8::try_from(shard).ok().map(ShardIndex));
    let added = new.take_while(|shard| gets(*shard)).count();
    let mut record = stored.clone();
    record.parity_shards += u8::try_from(added).unwrap_or(0);
    record.slots.resize(record.total_slots(), None);
    record
}

/// Returns the record of a segment without surplus parity shards. Returns none if there are none, or its others do not stay
/// as they are then.
pub(super) fn narrowed(record: &Segment, wanted: StripeCode) -> Option<Segment> {
    let parity = u8::try_from(wanted.geometry.parity_shards()).unwrap_or(u8::MAX);
    let stays = is_of(record, wanted) && wanted.code.takes_more_parity();
    if !stays || parity >= record.parity_shards {
        return None;
    }
    let mut narrow = record.clone();
    narrow.parity_shards = parity;
    narrow.slots.truncate(narrow.total_slots());
    Some(narrow)
}

/// Returns whether the stripes of a segment have the data shards and the code that new ones of the volume have, and belong
/// to them.
pub(super) fn is_of(record: &Segment, wanted: StripeCode) -> bool {
    record.class == StripeClass::VOLUME
        && usize::from(record.data_shards) == wanted.geometry.data_shards()
        && record.code == wanted.code.0
}

/// Returns whether a segment is not widened, because its stripes are rewritten for another stripe unit, with all shards. While
/// a member is away, none is rewritten, and the shards are written beside the others.
pub(super) fn is_rewritten_instead(
    segment: SegmentId,
    catalog: &Catalog,
    members: &Members,
) -> bool {
    let noted = catalog.past_unit_of(segment);
    let has_other_unit = noted.is_some_and(|unit| unit != members.shape().unit_bytes());
    has_other_unit && members.membership().away().is_empty()
}

/// Returns whether the stripes of a segment have to be rewritten, to have the code and the unit of new ones. They were
/// written with `unit_bytes`. The codes of directories never change, and their stripes have the unit of the volume.
pub(super) fn is_to_be_rewritten(record: &Segment, unit_bytes: u32, wanted: StripeCode) -> bool {
    if unit_bytes != wanted.unit_bytes {
        return true;
    }
    if record.class != StripeClass::VOLUME {
        return false;
    }
    let parity = wanted.geometry.parity_shards();
    let has = usize::from(record.parity_shards);
    !is_of(record, wanted) || has != parity && !wanted.code.takes_more_parity()
}
