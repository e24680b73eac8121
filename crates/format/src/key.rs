//! Keys of the index: constructors, ranges and parsers.
//!
//! A key is a tag byte, then big-endian numbers, then at most one name. So the order of the bytes is the
//! order of the numbers. A range is `(from, end)`: `from` is in it, `end` is not.
//!
//! # Examples
//!
//! ```
//! # use cauchyfs_format::{Ino, key};
//! // The extent that covers byte 4096 of inode 7 is the first that *ends* after 4096.
//! let (from, end) = key::extents_from(Ino(7), 4096);
//! assert!(key::extent(Ino(7), 4096) < from); // ends before byte 4096
//! assert!((from.clone()..end.clone()).contains(&key::extent(Ino(7), 4097)));
//! assert!(key::extent(Ino(8), 1) >= end);
//! assert_eq!(key::parse_extent(&key::extent(Ino(7), 4097)), Ok((Ino(7), 4097)));
//! ```

mod stored;

pub use stored::Key;

use super::{
    Cookie, FormatError, Ino, MemberIndex, NAME_MAX, NameFault, QuotaId, SegmentId, ShardIndex,
    StripeClass, StripeId, wire::Reader,
};

/// A range of keys: the first key in it, and the first key after it.
pub type KeyRange = (Key, Key);

/// The first byte of a key says what its value is.
mod tag {
    pub(super) const DIRECTORY_CODE: u8 = b'a';
    pub(super) const POSITION: u8 = b'c';
    pub(super) const DIRENT: u8 = b'd';
    pub(super) const EXTENT: u8 = b'e';
    pub(super) const SEGMENT_STRIPE: u8 = b'g';
    pub(super) const INODE: u8 = b'i';
    pub(super) const SUMS: u8 = b'k';
    pub(super) const REPAIR: u8 = b'l';
    pub(super) const COUNTER: u8 = b'n';
    pub(super) const ORPHAN: u8 = b'o';
    pub(super) const QUOTA: u8 = b'p';
    pub(super) const PERHAPS_DEAD: u8 = b'q';
    pub(super) const BACKREF: u8 = b'r';
    pub(super) const SEGMENT: u8 = b's';
    pub(super) const STRIPE: u8 = b't';
    pub(super) const LOST: u8 = b'u';
    pub(super) const SCRUB: u8 = b'v';
    pub(super) const UNWRITTEN: u8 = b'w';
    pub(super) const XATTR: u8 = b'x';
}

/// Name of the counter of inode numbers, all below it may have been used.
pub const NEXT_INO: &str = "next-ino";

/// Name of the counter of stripe numbers, all below it may have been used.
pub const NEXT_STRIPE: &str = "next-stripe";

/// Name of the counter of segment numbers, all below it may have been used.
pub const NEXT_SEGMENT: &str = "next-segment";

/// Name of the counter of quota numbers, all below it may have been used.
pub const NEXT_QUOTA: &str = "next-quota";

/// Name of the counter of orders to rewrite files whose bytes have another code than theirs. It is absent while there is
/// nothing to do.
pub const REWRITES: &str = "rewrites";

/// Name of the counter of stripes that the last order to rewrite files could not move. It is absent if there are none.
pub const REWRITES_LEFT: &str = "rewrites-left";

/// Name of the counter of stripes that the last scrub did not rewrite, because their bytes would have been less protected
/// then. It is absent if there are none.
pub const SCRUB_WAITING: &str = "scrub-waiting";

/// Name of the counter of bytes that an ordered rebuild writes in a second at most. It is absent without such an order, and
/// while that has no limit.
pub const REBUILD_LIMIT: &str = "rebuild-limit";

/// Name of the counter that is there while shards are to be moved to members that have fewer, for an order.
pub const BALANCE: &str = "balance";

/// Returns the name of the counter that is there while the shards of an absent member are rebuilt on others for an order.
#[must_use]
pub fn rebuilt_elsewhere(member: MemberIndex) -> String {
    format!("rebuilt-elsewhere-{member}")
}

/// The names of the counters that tell earlier stripe units begin so.
const STRIPE_UNIT_BELOW: &str = "stripe-unit-below-";

/// Returns the key of the counter that tells the stripe unit of segments with numbers below this one.
#[must_use]
pub fn stripe_unit_below(segment: SegmentId) -> Key {
    counter(&format!("{STRIPE_UNIT_BELOW}{}", segment.0))
}

/// Returns the range of all counters that tell earlier stripe units. Their order is not that of the segments.
#[must_use]
pub fn stripe_units() -> KeyRange {
    below(&counter(STRIPE_UNIT_BELOW))
}

/// Reads the key of a counter that tells an earlier stripe unit.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_stripe_unit_below(key: &[u8]) -> Result<SegmentId, FormatError> {
    let what = "key of a stripe unit";
    let number = key.strip_prefix(&*counter(STRIPE_UNIT_BELOW));
    let number = number.and_then(|number| str::from_utf8(number).ok()?.parse().ok());
    let segment = number.map(SegmentId);
    // Each number is written in one way only.
    segment
        .filter(|segment| stripe_unit_below(*segment)[..] == *key)
        .ok_or(FormatError::Magic { what })
}

/// Returns the key of an [`Inode`](super::record::Inode).
#[must_use]
pub fn inode(ino: Ino) -> Key {
    one(tag::INODE, ino.0)
}

/// Returns the range of all inodes.
#[must_use]
pub fn inodes() -> KeyRange {
    below(&[tag::INODE])
}

/// Reads an inode's key.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_inode(key: &[u8]) -> Result<Ino, FormatError> {
    parse_one("inode key", tag::INODE, key).map(Ino)
}

/// Returns the key of a [`Dirent`](super::record::Dirent).
#[must_use]
pub fn dirent(parent: Ino, name: &[u8]) -> Key {
    named(tag::DIRENT, parent.0, name)
}

/// Returns the range of a directory's entries, by name.
#[must_use]
pub fn dirents(parent: Ino) -> KeyRange {
    below_one(tag::DIRENT, parent.0)
}

/// Reads a directory entry's key: the directory and the name.
///
/// # Errors
///
/// [`FormatError`] if it is none, [`FormatError::Name`] for `.`, `..` and names with `/` or NUL among others.
pub fn parse_dirent(key: &[u8]) -> Result<(Ino, &[u8]), FormatError> {
    let (parent, name) = parse_dirent_of_any_name(key)?;
    match NameFault::of_entry(name) {
        Some(fault) => Err(FormatError::Name {
            what: "dirent key",
            fault,
        }),
        None => Ok((parent, name)),
    }
}

/// Reads a directory entry's key, also one with a name that no entry may have; for its repair only.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_dirent_of_any_name(key: &[u8]) -> Result<(Ino, &[u8]), FormatError> {
    let (parent, name) = parse_named(tagged("dirent key", tag::DIRENT, key)?)?;
    Ok((Ino(parent), name))
}

/// Returns the key of a [`Position`](super::record::Position).
#[must_use]
pub fn position(parent: Ino, cookie: Cookie) -> Key {
    two(tag::POSITION, parent.0, cookie.0)
}

/// Returns the range of a directory's entries whose cookies are greater than `cookie`.
#[must_use]
pub fn positions_after(parent: Ino, cookie: Cookie) -> KeyRange {
    after(tag::POSITION, parent.0, cookie.0)
}

/// Reads a position's key: the directory and the cookie.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_position(key: &[u8]) -> Result<(Ino, Cookie), FormatError> {
    parse_two("position key", tag::POSITION, key)
        .map(|(parent, cookie)| (Ino(parent), Cookie(cookie)))
}

/// Returns the key of an [`Xattr`](super::record::Xattr).
#[must_use]
pub fn xattr(ino: Ino, name: &[u8]) -> Key {
    named(tag::XATTR, ino.0, name)
}

/// Returns the range of an inode's extended attributes, by name.
#[must_use]
pub fn xattrs(ino: Ino) -> KeyRange {
    below_one(tag::XATTR, ino.0)
}

/// Reads an extended attribute's key: the inode and the name.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_xattr(key: &[u8]) -> Result<(Ino, &[u8]), FormatError> {
    let (ino, name) = parse_named(tagged("xattr key", tag::XATTR, key)?)?;
    match NameFault::of_bytes(name, NAME_MAX) {
        Some(fault) => Err(FormatError::Name {
            what: "xattr key",
            fault,
        }),
        None => Ok((Ino(ino), name)),
    }
}

/// Returns the key of an [`Extent`](super::record::Extent) that ends before byte `end` of the file.
#[must_use]
pub fn extent(ino: Ino, end: u64) -> Key {
    two(tag::EXTENT, ino.0, end)
}

/// Returns the range of a file's extents that end after `offset`: the first covers `offset`, or
/// is the next one behind it.
#[must_use]
pub fn extents_from(ino: Ino, offset: u64) -> KeyRange {
    after(tag::EXTENT, ino.0, offset)
}

/// Returns the range of all extents of all files.
#[must_use]
pub fn extents() -> KeyRange {
    below(&[tag::EXTENT])
}

/// Reads an extent's key: the inode and the extent's end.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_extent(key: &[u8]) -> Result<(Ino, u64), FormatError> {
    parse_two("extent key", tag::EXTENT, key).map(|(ino, end)| (Ino(ino), end))
}

/// Returns the key of a [`Backref`](super::record::Backref) to the extent of `ino` that ends at `end`.
#[must_use]
pub fn backref(stripe: StripeId, ino: Ino, end: u64) -> Key {
    three(tag::BACKREF, stripe.0, ino.0, end)
}

/// Returns the range of a stripe's backrefs; a stripe without any is dead.
#[must_use]
pub fn backrefs(stripe: StripeId) -> KeyRange {
    below_one(tag::BACKREF, stripe.0)
}

/// Reads a backref's key: the stripe, the inode and the extent's end.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_backref(key: &[u8]) -> Result<(StripeId, Ino, u64), FormatError> {
    let mut reader = tagged("backref key", tag::BACKREF, key)?;
    let parsed = (
        StripeId(reader.u64_be()?),
        Ino(reader.u64_be()?),
        reader.u64_be()?,
    );
    reader.finish()?;
    Ok(parsed)
}

/// Returns the key of a [`Stripe`](super::record::Stripe).
#[must_use]
pub fn stripe(stripe: StripeId) -> Key {
    one(tag::STRIPE, stripe.0)
}

/// Returns the range of all stripes.
#[must_use]
pub fn stripes() -> KeyRange {
    below(&[tag::STRIPE])
}

/// Reads a stripe's key.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_stripe(key: &[u8]) -> Result<StripeId, FormatError> {
    parse_one("stripe key", tag::STRIPE, key).map(StripeId)
}

/// Returns the stripe that a key is of, if it is that of a stripe or of a backref, and whether it is the latter.
#[must_use]
pub fn stripe_of(key: &[u8]) -> Option<(StripeId, bool)> {
    let (&tag, rest) = key.split_first()?;
    let number = *rest.first_chunk()?;
    let stripe = StripeId(u64::from_be_bytes(number));
    matches!(tag, tag::STRIPE | tag::BACKREF).then_some((stripe, tag == tag::BACKREF))
}

/// Returns the key of the [`ShardSums`](super::record::ShardSums) of one shard.
#[must_use]
pub fn sums(stripe: StripeId, shard: ShardIndex) -> Key {
    let mut key = [0; 10];
    key[0] = tag::SUMS;
    key[1..9].copy_from_slice(&stripe.0.to_be_bytes());
    key[9] = shard.0;
    Key::from(&key)
}

/// Returns the range of the checksums of all shards of a stripe, in the order of the shards.
#[must_use]
pub fn sums_of(stripe: StripeId) -> KeyRange {
    below_one(tag::SUMS, stripe.0)
}

/// Reads the key of a shard's checksums.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_sums(key: &[u8]) -> Result<(StripeId, ShardIndex), FormatError> {
    let mut reader = tagged("sums key", tag::SUMS, key)?;
    let parsed = (StripeId(reader.u64_be()?), ShardIndex(reader.u8()?));
    reader.finish()?;
    Ok(parsed)
}

/// Returns the key of a [`Segment`](super::record::Segment).
#[must_use]
pub fn segment(segment: SegmentId) -> Key {
    one(tag::SEGMENT, segment.0)
}

/// Returns the range of all segments.
#[must_use]
pub fn segments() -> KeyRange {
    below(&[tag::SEGMENT])
}

/// Reads a segment's key.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_segment(key: &[u8]) -> Result<SegmentId, FormatError> {
    parse_one("segment key", tag::SEGMENT, key).map(SegmentId)
}

/// Returns the key of the [`SegmentStripe`](super::record::SegmentStripe) whose shards lie at `offset`
/// of the segment's files.
#[must_use]
pub fn segment_stripe(segment: SegmentId, offset: u64) -> Key {
    two(tag::SEGMENT_STRIPE, segment.0, offset)
}

/// Returns the range of a segment's stripes, in the order they lie on disk.
#[must_use]
pub fn segment_stripes(segment: SegmentId) -> KeyRange {
    below_one(tag::SEGMENT_STRIPE, segment.0)
}

/// Reads the key of a stripe's place: the segment and the offset.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_segment_stripe(key: &[u8]) -> Result<(SegmentId, u64), FormatError> {
    parse_two("segment stripe key", tag::SEGMENT_STRIPE, key)
        .map(|(segment, offset)| (SegmentId(segment), offset))
}

/// Returns the key that marks an inode without a name: to be removed when its last handle goes, or
/// at the next mount. The value is a [`Marker`](super::record::Marker).
#[must_use]
pub fn orphan(ino: Ino) -> Key {
    one(tag::ORPHAN, ino.0)
}

/// Returns the range of all orphans.
#[must_use]
pub fn orphans() -> KeyRange {
    below(&[tag::ORPHAN])
}

/// Reads an orphan's key.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_orphan(key: &[u8]) -> Result<Ino, FormatError> {
    parse_one("orphan key", tag::ORPHAN, key).map(Ino)
}

/// Returns the key that marks an inode with unwritten extents. The value is a [`Marker`](super::record::Marker).
#[must_use]
pub fn unwritten(ino: Ino) -> Key {
    one(tag::UNWRITTEN, ino.0)
}

/// Returns the range of all marks of inodes with unwritten extents.
#[must_use]
pub fn all_unwritten() -> KeyRange {
    below(&[tag::UNWRITTEN])
}

/// Reads the key of a mark of an inode with unwritten extents.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_unwritten(key: &[u8]) -> Result<Ino, FormatError> {
    parse_one("unwritten key", tag::UNWRITTEN, key).map(Ino)
}

/// Returns the key of a [`Quota`](super::record::Quota).
#[must_use]
pub fn quota(quota: QuotaId) -> Key {
    one(tag::QUOTA, quota.0)
}

/// Returns the range of all quotas.
#[must_use]
pub fn quotas() -> KeyRange {
    below(&[tag::QUOTA])
}

/// Reads a quota's key.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_quota(key: &[u8]) -> Result<QuotaId, FormatError> {
    parse_one("quota key", tag::QUOTA, key).map(QuotaId)
}

/// Returns the key of a [`DirectoryCode`](super::record::DirectoryCode).
#[must_use]
pub fn directory_code(class: StripeClass) -> Key {
    one(tag::DIRECTORY_CODE, class.0.into())
}

/// Returns the range of the codes of directories.
#[must_use]
pub fn directory_codes() -> KeyRange {
    below(&[tag::DIRECTORY_CODE])
}

/// Reads the key of a directory's code.
///
/// # Errors
///
/// [`FormatError`] if it is none, or of the volume's own class.
pub fn parse_directory_code(key: &[u8]) -> Result<StripeClass, FormatError> {
    let number = parse_one("directory code key", tag::DIRECTORY_CODE, key)?;
    match u8::try_from(number).map(StripeClass) {
        Ok(class) if class != StripeClass::VOLUME => Ok(class),
        _ => Err(FormatError::Field {
            what: "directory code key",
            field: "class",
            value: number,
        }),
    }
}

/// Returns the key that marks a stripe which may have lost its last backref. The value is a
/// [`Marker`](super::record::Marker).
#[must_use]
pub fn perhaps_dead(stripe: StripeId) -> Key {
    one(tag::PERHAPS_DEAD, stripe.0)
}

/// Returns the range of all marks of stripes that may be dead.
#[must_use]
pub fn all_perhaps_dead() -> KeyRange {
    below(&[tag::PERHAPS_DEAD])
}

/// Returns whether a key was made by [`perhaps_dead`].
#[must_use]
pub fn is_perhaps_dead(key: &[u8]) -> bool {
    key.first() == Some(&tag::PERHAPS_DEAD)
}

/// Reads the key of a mark of a stripe that may be dead.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_perhaps_dead(key: &[u8]) -> Result<StripeId, FormatError> {
    parse_one("perhaps-dead key", tag::PERHAPS_DEAD, key).map(StripeId)
}

/// Returns the key of a [`RepairNote`](super::record::RepairNote) on a stripe that can bear the loss of
/// `losses_tolerated` more shards; `None` if it has lost too many already.
#[must_use]
pub fn repair(losses_tolerated: Option<u8>, stripe: StripeId) -> Key {
    let mut key = [0; 10];
    key[0] = tag::REPAIR;
    key[1] = urgency(losses_tolerated);
    key[2..].copy_from_slice(&stripe.0.to_be_bytes());
    Key::from(&key)
}

/// Returns the range of the repair ledger: lost stripes, then the most endangered ones.
#[must_use]
pub fn repairs() -> KeyRange {
    below(&[tag::REPAIR])
}

/// Returns the range of the ledger's notes on stripes that can bear `losses_tolerated` more losses;
/// `None` for those that have lost too many already.
#[must_use]
pub fn repairs_of(losses_tolerated: Option<u8>) -> KeyRange {
    below(&[tag::REPAIR, urgency(losses_tolerated)])
}

/// Returns the range of the ledger's notes on stripes that cannot bear as many as `losses` more.
#[must_use]
pub fn repairs_below(losses: u8) -> KeyRange {
    (repairs().0, repairs_of(Some(losses)).0)
}

/// Reads a repair note's key: the losses still tolerated, and the stripe.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_repair(key: &[u8]) -> Result<(Option<u8>, StripeId), FormatError> {
    let mut reader = tagged("repair key", tag::REPAIR, key)?;
    let parsed = (reader.u8()?.checked_sub(1), StripeId(reader.u64_be()?));
    reader.finish()?;
    Ok(parsed)
}

/// The lower, the more urgent. A stripe has at most 254 parity shards, so no two counts share a byte.
fn urgency(losses_tolerated: Option<u8>) -> u8 {
    losses_tolerated.map_or(0, |losses| losses.saturating_add(1))
}

/// Returns the key of the one [`Scrub`](super::record::Scrub).
#[must_use]
pub fn scrub() -> Key {
    Key::from(&[tag::SCRUB])
}

/// Returns the key of a stripe's [`LostBytes`](super::record::LostBytes).
#[must_use]
pub fn lost(stripe: StripeId) -> Key {
    one(tag::LOST, stripe.0)
}

/// Returns the range of all lost bytes.
#[must_use]
pub fn all_lost() -> KeyRange {
    below(&[tag::LOST])
}

/// Reads the key of a stripe's lost bytes.
///
/// # Errors
///
/// [`FormatError`] if it is none.
pub fn parse_lost(key: &[u8]) -> Result<StripeId, FormatError> {
    parse_one("key of lost bytes", tag::LOST, key).map(StripeId)
}

/// Returns the key of a [`Counter`](super::record::Counter), such as [`NEXT_INO`].
#[must_use]
pub fn counter(name: &str) -> Key {
    Key::concat(&[&[tag::COUNTER], name.as_bytes()])
}

fn one(tag: u8, first: u64) -> Key {
    let mut key = [0; 9];
    key[0] = tag;
    key[1..].copy_from_slice(&first.to_be_bytes());
    Key::from(&key)
}

fn two(tag: u8, first: u64, second: u64) -> Key {
    let mut key = [0; 17];
    key[0] = tag;
    key[1..9].copy_from_slice(&first.to_be_bytes());
    key[9..].copy_from_slice(&second.to_be_bytes());
    Key::from(&key)
}

fn three(tag: u8, first: u64, second: u64, third: u64) -> Key {
    let mut key = [0; 25];
    key[0] = tag;
    key[1..9].copy_from_slice(&first.to_be_bytes());
    key[9..17].copy_from_slice(&second.to_be_bytes());
    key[17..].copy_from_slice(&third.to_be_bytes());
    Key::from(&key)
}

fn named(tag: u8, first: u64, name: &[u8]) -> Key {
    Key::concat(&[&one(tag, first), name])
}

/// Returns the range of all keys that begin with `prefix`, which is not empty.
fn below(prefix: &[u8]) -> KeyRange {
    // Tags are ASCII letters, so a byte that can be raised is always found.
    let raised = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let (kept, raised) = prefix.split_at(raised.unwrap_or(prefix.len()));
    let raised = raised.first().map(|byte| byte + 1);
    (Key::from(prefix), Key::concat(&[kept, raised.as_slice()]))
}

fn below_one(tag: u8, first: u64) -> KeyRange {
    below(&one(tag, first))
}

/// All keys of `tag` and `first` whose second number is greater than `second`.
fn after(tag: u8, first: u64, second: u64) -> KeyRange {
    let (_, end) = below_one(tag, first);
    let from = match second.checked_add(1) {
        Some(next) => two(tag, first, next),
        None => end.clone(),
    };
    (from, end)
}

fn tagged<'a>(what: &'static str, tag: u8, key: &'a [u8]) -> Result<Reader<'a>, FormatError> {
    let mut reader = Reader::new(what, key);
    if reader.u8()? == tag {
        Ok(reader)
    } else {
        Err(FormatError::Magic { what })
    }
}

fn parse_one(what: &'static str, tag: u8, key: &[u8]) -> Result<u64, FormatError> {
    let mut reader = tagged(what, tag, key)?;
    let first = reader.u64_be()?;
    reader.finish()?;
    Ok(first)
}

fn parse_two(what: &'static str, tag: u8, key: &[u8]) -> Result<(u64, u64), FormatError> {
    let mut reader = tagged(what, tag, key)?;
    let parsed = (reader.u64_be()?, reader.u64_be()?);
    reader.finish()?;
    Ok(parsed)
}

/// Reads a number and the bytes after it, which the caller checks as a name.
fn parse_named(mut reader: Reader<'_>) -> Result<(u64, &[u8]), FormatError> {
    Ok((reader.u64_be()?, reader.rest()))
}

#[cfg(test)]
mod tests;
