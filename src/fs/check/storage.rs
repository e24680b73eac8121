//! Extents against stripes, stripes against segments, segments against files.

use crate::format::record::{
    Backref, Extent, FileKind, Inline, Inode, Segment, SegmentStripe, Stripe,
};
use crate::format::{
    FormatError, Ino, MemberIndex, Record, SegmentId, ShardIndex, StripeId, files, key,
};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::inodes::read_inode;
use crate::fs::run::{self, Run};
use crate::transaction::Transactions;

use super::checker::Checker;
use super::report::FindingKind;

/// The file whose extents are being checked.
struct Current {
    ino: Ino,
    /// Its record, if there is one, unless that does not decode.
    inode: Result<Option<Inode>, FormatError>,
    counted: u64,
    unwritten: u64,
    last_end: u64,
}

/// Checks each extent against its file, and its stripe.
pub(super) fn check_extents(check: &mut Checker<'_>) -> Result<(), FsError> {
    let mut current: Option<Current> = None;
    check.each(key::extents(), |check, key, value| {
        let Some((ino, _)) = check.decoded(key::parse_extent(key), None) else {
            return Ok(());
        };
        let run = match run::parse(key, value) {
            Ok(run) => run,
            Err(FsError::Format(error)) => {
                check.lost(FindingKind::Damaged(error), Some(ino));
                return Ok(());
            }
            Err(_) => {
                check.lost(FindingKind::Overlap, Some(ino));
                return Ok(());
            }
        };
        if current.as_ref().is_none_or(|current| current.ino != ino) {
            if let Some(done) = current.take() {
                check_sum(check, done)?;
            }
            current = Some(Current {
                ino,
                inode: match read_inode(check.transactions, ino) {
                    Ok(inode) => Ok(inode),
                    Err(FsError::Format(error)) => Err(error),
                    Err(error) => return Err(error),
                },
                counted: 0,
                unwritten: 0,
                last_end: 0,
            });
        }
        match &mut current {
            Some(current) => check_extent(check, current, &run),
            None => Ok(()),
        }
    })?;
    match current {
        Some(done) => check_sum(check, done),
        None => Ok(()),
    }
}

fn check_extent(check: &mut Checker<'_>, file: &mut Current, run: &Run) -> Result<(), FsError> {
    check.report.extents += 1;
    check.report.bytes += run.len;
    let ino = Some(file.ino);
    let Ok(inode) = &file.inode else {
        // The bytes may yet be of use, whatever the file was.
        return Ok(());
    };
    let file_record = inode.as_ref();
    let Some(inode) = file_record.filter(|inode| inode.kind == FileKind::Regular) else {
        let mut repair = Edit::default();
        repair.delete_run(file.ino, run);
        repair.put_perhaps_dead(run.stripe);
        return check.repairable(FindingKind::ExtentWithoutFile, ino, repair);
    };
    if run.start < file.last_end {
        check.lost(FindingKind::Overlap, ino);
    }
    if run.end() > inode.size && !run.is_unwritten() && !check.is_there(&key::orphan(file.ino))? {
        let mut repair = Edit::default();
        repair.put_orphan(file.ino);
        check.repairable(FindingKind::BehindEnd, ino, repair)?;
    }
    file.last_end = run.end();
    file.counted += run.len;
    if run.is_unwritten() {
        file.unwritten += run.len;
    }
    if !run.is_in_stripe() {
        return Ok(());
    }
    check_backref_of(check, file.ino, run)?;
    check_stripe_of(check, file.ino, run)
}

fn check_backref_of(check: &mut Checker<'_>, ino: Ino, run: &Run) -> Result<(), FsError> {
    let found = check
        .transactions
        .get(&key::backref(run.stripe, ino, run.end()))?;
    let backref = found.map(|value| Backref::decode(&value));
    let matches = backref.is_some_and(|backref| {
        backref.is_ok_and(|it| it.len == run.len && it.stripe_offset == run.stripe_offset)
    });
    if matches {
        return Ok(());
    }
    let mut repair = Edit::default();
    repair.put_run(ino, run);
    let kind = FindingKind::ExtentWithoutBackref(run.stripe);
    check.repairable(kind, Some(ino), repair)
}

fn check_stripe_of(check: &mut Checker<'_>, ino: Ino, run: &Run) -> Result<(), FsError> {
    let end = u64::from(run.stripe_offset) + run.len;
    let reaches = if let Some(stripe) = stripe(check, run.stripe)? {
        end <= u64::from(stripe.payload_len)
    } else {
        // A stripe that is in the journal and was never flushed has no record yet.
        let mut byte = [0];
        let read = check
            .transactions
            .read(run.stripe, run.stripe_offset, &mut byte);
        read.is_ok()
    };
    if !reaches {
        check.lost(FindingKind::ExtentWithoutStripe(run.stripe), Some(ino));
    }
    Ok(())
}

/// Checks what the extents of a file come to against its inode.
fn check_sum(check: &mut Checker<'_>, file: Current) -> Result<(), FsError> {
    let Ok(Some(mut inode)) = file.inode else {
        return Ok(());
    };
    if inode.inline != Inline::None && file.counted > 0 {
        check.lost(FindingKind::InlineAndExtents, Some(file.ino));
    }
    if inode.kind != FileKind::Regular {
        return Ok(());
    }
    let (all, unwritten) = (inode.allocated_bytes, inode.unwritten_bytes);
    inode.allocated_bytes = file.counted;
    inode.unwritten_bytes = file.unwritten;
    let mut repair = Edit::default();
    repair.put_inode(file.ino, &inode);
    let has_unwritten = file.unwritten > 0;
    repair.mark_unwritten(file.ino, has_unwritten);
    let is_marked = check.is_there(&key::unwritten(file.ino))?;
    let kind = if all != file.counted {
        FindingKind::WrongAllocation {
            recorded: all,
            counted: file.counted,
        }
    } else if unwritten != file.unwritten || is_marked != has_unwritten {
        FindingKind::WrongUnwritten {
            recorded: unwritten,
            counted: file.unwritten,
        }
    } else {
        return Ok(());
    };
    check.repairable(kind, Some(file.ino), repair)
}

/// Checks each way back from a stripe against the extent it leads to.
pub(super) fn check_backrefs(check: &mut Checker<'_>) -> Result<(), FsError> {
    let range = (
        key::backrefs(StripeId(0)).0,
        key::backrefs(StripeId(u64::MAX)).1,
    );
    check.each(range, |check, key, value| {
        let Some((stripe, ino, end)) = check.decoded(key::parse_backref(key), None) else {
            return Ok(());
        };
        let Some(backref) = check.decoded(Backref::decode(value), Some(ino)) else {
            return Ok(());
        };
        let extent = check.transactions.get(&key::extent(ino, end))?;
        let matches = |it: Extent| {
            it.stripe == stripe
                && it.len == backref.len
                && it.stripe_offset == backref.stripe_offset
        };
        match extent.map(|value| Extent::decode(&value)) {
            // A damaged extent was found before; the stripe's bytes are all that is left of it.
            Some(Err(_)) => return Ok(()),
            Some(Ok(extent)) if matches(extent) => return Ok(()),
            Some(Ok(_)) | None => {}
        }
        let mut repair = Edit::default();
        repair.delete_backref(stripe, ino, end);
        repair.put_perhaps_dead(stripe);
        check.repairable(FindingKind::BackrefWithoutExtent(stripe), Some(ino), repair)
    })
}

/// Checks each stripe against its segment, its checksums and what it holds.
pub(super) fn check_stripes(check: &mut Checker<'_>) -> Result<(), FsError> {
    check.each(key::stripes(), |check, key, value| {
        let Some(id) = check.decoded(key::parse_stripe(key), None) else {
            return Ok(());
        };
        let Some(stripe) = check.decoded(Stripe::decode(value), None) else {
            return Ok(());
        };
        check.report.stripes += 1;
        check_place(check, id, &stripe)?;
        let (from, end) = key::backrefs(id);
        let is_used = !check.transactions.scan(&from, &end, 1)?.is_empty();
        let is_claimed = is_used || check.is_there(&key::perhaps_dead(id))?;
        check.report.unclaimed += u64::from(!is_claimed);
        Ok(())
    })
}

fn check_place(check: &mut Checker<'_>, id: StripeId, stripe: &Stripe) -> Result<(), FsError> {
    let segment = check.transactions.get(&key::segment(stripe.segment))?;
    let segment = segment.map(|value| Segment::decode(&value));
    let end = stripe.offset.saturating_add(u64::from(stripe.height));
    let fits = match &segment {
        Some(Ok(segment)) => end <= segment.len,
        Some(Err(_)) | None => false,
    };
    let place = key::segment_stripe(stripe.segment, stripe.offset);
    let place = check.transactions.get(&place)?;
    let place = place.map(|value| SegmentStripe::decode(&value));
    let known = place.is_some_and(|place| place.is_ok_and(|place| place.0 == id));
    if !fits || !known {
        check.lost(FindingKind::StripeWithoutPlace(id), None);
    }
    for shard in (0..=u8::MAX).map(ShardIndex) {
        if stripe.written.contains(shard) && !check.is_there(&key::sums(id, shard))? {
            check.lost(FindingKind::StripeWithoutSums(id), None);
            break;
        }
    }
    Ok(())
}

/// Checks each stripe that a segment knows of.
pub(super) fn check_segments(check: &mut Checker<'_>) -> Result<(), FsError> {
    check.each(key::segments(), |check, key, value| {
        let Some(segment) = check.decoded(key::parse_segment(key), None) else {
            return Ok(());
        };
        check.decoded(Segment::decode(value), None);
        check.each(key::segment_stripes(segment), |check, key, value| {
            let Some((_, offset)) = check.decoded(key::parse_segment_stripe(key), None) else {
                return Ok(());
            };
            let Some(place) = check.decoded(SegmentStripe::decode(value), None) else {
                return Ok(());
            };
            let stripe = stripe(check, place.0)?;
            if stripe.is_none_or(|stripe| stripe.segment != segment || stripe.offset != offset) {
                check.lost(FindingKind::PlaceWithoutStripe(place.0), None);
            }
            Ok(())
        })
    })
}

/// Returns where a member's file of a segment lies.
pub(super) fn file_of(
    transactions: &Transactions,
    member: MemberIndex,
    segment: SegmentId,
) -> String {
    let directory = transactions.members().membership().path(member);
    format!("{directory}/{}", files::segment(segment))
}

/// Checks that the segment files on the online members reach as far as the shards written to them.
pub(super) fn check_files(check: &mut Checker<'_>) -> Result<(), FsError> {
    for missing in check.redundancy.missing_shards()? {
        let kind = FindingKind::ShardsMissing {
            file: file_of(check.transactions, missing.member, missing.segment),
            found: missing.found,
            shards: missing.shards,
        };
        check.lost(kind, None);
    }
    Ok(())
}

/// Checks that the index has all its copies, or as many as there are online members.
pub(super) fn check_copies(check: &mut Checker<'_>) -> Result<(), FsError> {
    let transactions = check.transactions;
    let at_hand = transactions.members().membership().live().len();
    let missing = || {
        let copies = transactions.index_copies();
        let wanted = copies.wanted.min(at_hand);
        let found = copies.members.len();
        (found < wanted).then_some(FindingKind::CopiesMissing { found, wanted })
    };
    let Some(kind) = missing() else {
        return Ok(());
    };
    if check.repair {
        transactions.commits().complete_index()?;
    }
    check.note(kind, None, check.repair && missing().is_none());
    Ok(())
}

/// Reads a stripe's record for others' sake: whether it decodes is found out when its turn comes.
fn stripe(check: &Checker<'_>, id: StripeId) -> Result<Option<Stripe>, FsError> {
    let found = check.transactions.get(&key::stripe(id))?;
    Ok(found.and_then(|value| Stripe::decode(&value).ok()))
}
