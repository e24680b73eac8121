use std::fmt::Debug;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::wire::MAX_COUNT;
use crate::{
    Cookie, Ino, MemberIndex, NAME_MAX, NameFault, QuotaId, SegmentId, ShardIndex, StripeClass,
    StripeId, code_number,
};

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Timestamp { seconds, nanos })
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(vec![
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ])
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..100)
}

fn inline() -> impl Strategy<Value = Inline> {
    prop_oneof![
        Just(Inline::None),
        blob().prop_map(Inline::Data),
        prop::collection::vec(1..=u8::MAX, 1..100).prop_map(Inline::Target),
    ]
}

fn number_or_zero() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..=MAX_COUNT]
}

fn unwritten_and_allocated() -> impl Strategy<Value = (u64, u64)> {
    let pair = (number_or_zero(), any::<u64>());
    pair.prop_map(|(one, other)| (one.min(other), one.max(other)))
}

prop_compose! {
    fn inode()(
        kind in kind(),
        permissions in 0..=0o7777_u16,
        (uid, gid, links) in any::<(u32, u32, u32)>(),
        rdev in prop_oneof![Just(0), any::<u32>()],
        size in 0..=i64::MAX as u64,
        (unwritten_bytes, allocated_bytes) in unwritten_and_allocated(),
        times in [time(), time(), time(), time()],
        parent in number_or_zero(),
        next_cookie in number_or_zero(),
        quota in number_or_zero(),
        class in 0..3_u8,
        inline in inline(),
    ) -> Inode {
        let [atime, mtime, ctime, btime] = times;
        Inode {
            kind, permissions, uid, gid, links, rdev, size, allocated_bytes, unwritten_bytes, atime, mtime, ctime,
            btime, parent: Ino(parent), next_cookie: Cookie(next_cookie), quota: QuotaId(quota), class: StripeClass(class), inline,
        }
    }
}

prop_compose! {
    fn name()(name in prop::collection::vec(any::<u8>(), 1..=NAME_MAX)) -> Vec<u8> {
        let name = name.into_iter();
        let name: Vec<u8> = name.map(|byte| if matches!(byte, 0 | b'/') { b'-' } else { byte }).collect();
        if matches!(&name[..], b"." | b"..") { b"...".to_vec() } else { name }
    }
}

prop_compose! {
    fn shards()(shards in prop::collection::vec(any::<u8>(), 0..40), small: bool) -> ShardSet {
        shards.into_iter().map(|shard| ShardIndex(if small { shard % 9 } else { shard })).collect()
    }
}

prop_compose! {
    fn stripe()(
        (segment, rotation) in any::<(u64, u8)>(),
        offset in 0..=MAX_SEGMENT_BYTES / 4096,
        height in 1..=MAX_STRIPE_BYTES / 4096,
        payload_len in 0..=MAX_STRIPE_BYTES,
        written in shards(),
    ) -> Stripe {
        Stripe {
            segment: SegmentId(segment), offset: offset * 4096, height: height * 4096, payload_len,
            rotation, written,
        }
    }
}

prop_compose! {
    fn segment()(
        (data_shards, parity_shards) in (1..=255_u8).prop_flat_map(|data| (Just(data), 0..=255 - data)),
        (class, code) in (0..3_u8, 0..1_u16 << 15),
        parameters: [u8; 6],
        len in 0..=MAX_SEGMENT_BYTES,
        members in prop::collection::vec(prop::option::of(0..u16::MAX), 255),
        written in 0..=u8::MAX,
    ) -> Segment {
        let total = data_shards + parity_shards;
        let rotating = if written % 2 == 0 { total } else { written.max(data_shards) };
        let slots = members[..total.max(rotating).into()].iter();
        let slots = slots.map(|member| member.map(MemberIndex)).collect();
        let code = if code_number::has_parameters(code % 8) {
            code_number::join(code % 8, parameters)
        } else {
            code.into()
        };
        Segment { class: StripeClass(class), data_shards, parity_shards, code, len, slots, rotating }
    }
}

/// The value comes back; none of its bytes can be missing, and none can follow, unless the last field
/// is as long as it happens to be (`open_ended`).
fn round_trip<T: Record + PartialEq + Debug>(value: &T, open_ended: bool) {
    let bytes = value.encode();
    assert_eq!(T::decode(&bytes).as_ref(), Ok(value));
    for len in 0..bytes.len() {
        let cut = T::decode(&bytes[..len]);
        assert!(open_ended || cut.is_err(), "{len} bytes of {value:?}");
        assert_ne!(cut.as_ref(), Ok(value));
    }
    let longer = T::decode(&[&bytes, &b"x"[..]].concat());
    assert!(open_ended || longer.is_err(), "{value:?} and a stray byte");
    assert_ne!(longer.as_ref(), Ok(value));
    for version in (0..=u8::MAX).filter(|version| *version != VERSION) {
        let mut other = bytes.to_vec();
        other[0] = version;
        let refused = T::decode(&other);
        assert!(
            matches!(refused, Err(FormatError::Version { .. })),
            "{refused:?}"
        );
    }
}

/// Checks that decoding returns for any bytes, and that a decoded value encodes to the same bytes.
fn survives<T: Record + Debug>(bytes: &[u8]) {
    if let Ok(value) = T::decode(bytes) {
        assert_eq!(*value.encode(), *bytes, "{value:?}");
    }
}

#[test]
fn codes_of_directories_round_trip() {
    for code in [1, code_number::join(3, [1, 2, 3, 4, 5, 6])] {
        let code = DirectoryCode {
            data_shards: 200,
            parity_shards: 55,
            code,
        };
        round_trip(&code, false);
        refused(&DirectoryCode {
            parity_shards: 56,
            ..code
        });
        refused(&DirectoryCode {
            data_shards: 0,
            ..code
        });
    }
}

proptest! {
    #[test]
    fn inodes_round_trip(inode in inode()) {
        round_trip(&inode, !matches!(inode.inline, Inline::None));
    }

    #[test]
    fn directory_entries_round_trip(ino: u64, cookie in 0..MAX_COUNT, kind in kind(), name in name()) {
        round_trip(&Dirent { ino: Ino(ino), kind, cookie: Cookie(cookie) }, false);
        round_trip(&Position { ino: Ino(ino), kind, name }, true);
    }

    #[test]
    fn extents_round_trip(stripe: u64, stripe_offset in 0..MAX_STRIPE_BYTES, len: u64) {
        let len = 1 + len % u64::from(MAX_STRIPE_BYTES - stripe_offset);
        round_trip(&Extent { len, stripe: StripeId(stripe), stripe_offset }, false);
        round_trip(&Backref { len, stripe_offset }, false);
    }

    #[test]
    fn stripes_round_trip(stripe in stripe(), sums in prop::collection::vec(any::<u32>(), 0..50)) {
        round_trip(&stripe, false);
        round_trip(&RepairNote { missing: stripe.written }, false);
        let encoded = ShardSums(sums.clone()).encode();
        for start in 0..sums.len() + 2 {
            for end in start..sums.len() + 2 {
                let decoded = ShardSums::decode_blocks(&encoded, start..end).unwrap();
                let decoded: Option<Vec<u32>> = decoded.map(Iterator::collect);
                prop_assert_eq!(decoded.as_deref(), sums.get(start..end));
            }
        }
        round_trip(&ShardSums(sums), true);
    }

    #[test]
    fn segments_round_trip(segment in segment(), stripe: u64) {
        // With another byte it may be a segment of which shards were dropped.
        round_trip(&segment, true);
        round_trip(&SegmentStripe(StripeId(stripe)), false);
    }

    #[test]
    fn scrubs_round_trip(numbers: [u64; 10], stale_copies: [u64; 4], is_finished: bool, lost in prop::collection::vec((0..MAX_STRIPE_BYTES, 1..=4096_u32), 0..20)) {
        let [segment, offset, end, began, last_finished, bytes, repaired, wrong, missing, lost_bytes] = numbers;
        let scrub = Scrub {
            is_finished, segment: SegmentId(segment), offset, end: SegmentId(end), began, last_finished,
            bytes, repaired, wrong, missing, lost: lost_bytes, stale_copies,
        };
        round_trip(&scrub, false);
        round_trip(&LostBytes(lost.into_iter().map(|(start, len)| start..(start + len).min(MAX_STRIPE_BYTES)).collect()), true);
    }

    #[test]
    fn small_values_round_trip(counter in 0..=MAX_COUNT, xattr in blob()) {
        round_trip(&Marker, false);
        round_trip(&Counter(counter), false);
        round_trip(&Xattr(xattr), true);
    }

    #[test]
    fn quotas_round_trip(
        (root, bytes, files) in any::<(u64, u64, u64)>(),
        outer in number_or_zero(),
        max_bytes: Option<u64>, max_files: Option<u64>,
        state in prop::sample::select(&[QuotaState::InForce, QuotaState::Counting][..]),
    ) {
        let quota = Quota {
            root: Ino(root), outer: QuotaId(outer), state, usage: QuotaUsage { bytes, files }, max_bytes, max_files,
        };
        round_trip(&quota, false);
        let lifted = Quota { state: QuotaState::Lifted, max_bytes: None, max_files: None, ..quota };
        round_trip(&lifted, false);
    }

    #[test]
    fn no_decoder_panics_on_any_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), versioned: bool,
    ) {
        // Most random bytes fail at the version; let half of them get past it.
        if let (true, Some(first)) = (versioned, bytes.first_mut()) {
            *first = VERSION;
        }
        survives::<Inode>(&bytes);
        survives::<Dirent>(&bytes);
        survives::<Position>(&bytes);
        survives::<Extent>(&bytes);
        survives::<Backref>(&bytes);
        survives::<Stripe>(&bytes);
        survives::<ShardSums>(&bytes);
        survives::<Segment>(&bytes);
        survives::<SegmentStripe>(&bytes);
        survives::<RepairNote>(&bytes);
        survives::<Scrub>(&bytes);
        survives::<LostBytes>(&bytes);
        survives::<Marker>(&bytes);
        survives::<Counter>(&bytes);
        survives::<Quota>(&bytes);
        survives::<Xattr>(&bytes);
    }

    #[test]
    fn a_changed_byte_never_panics_a_decoder(
        inode in inode(), stripe in stripe(), segment in segment(), place: prop::sample::Index, byte: u8,
    ) {
        let mangle = |value: Value| {
            let mut value = value.to_vec();
            let place = place.index(value.len());
            value[place] = byte;
            value
        };
        survives::<Inode>(&mangle(inode.encode()));
        survives::<Stripe>(&mangle(stripe.encode()));
        survives::<Segment>(&mangle(segment.encode()));
    }

    #[test]
    fn a_shard_set_holds_the_inserted_shards(members in prop::collection::btree_set(any::<u8>(), 0..256)) {
        let mut set: ShardSet = members.iter().copied().map(ShardIndex).collect();
        prop_assert_eq!(set.len(), members.len());
        prop_assert_eq!(set.iter().map(|s| s.0).collect::<Vec<_>>(), members.iter().copied().collect::<Vec<_>>());
        for shard in 0..=u8::MAX {
            prop_assert_eq!(set.contains(ShardIndex(shard)), members.contains(&shard));
        }
        for shard in members {
            set.remove(ShardIndex(shard));
        }
        prop_assert!(set.is_empty());
    }
}

#[test]
fn only_data_shards_beyond_the_payload_are_implied() {
    let stripe = |payload_len| Stripe {
        segment: SegmentId(0),
        offset: 0,
        height: 4096,
        payload_len,
        rotation: 0,
        written: ShardSet::default(),
    };
    for (payload_len, implied) in [(1, 1..4), (4096, 1..4), (4097, 2..4), (16384, 4..4)] {
        for shard in 0..6 {
            assert_eq!(
                stripe(payload_len).is_implied(ShardIndex(shard), 4),
                implied.contains(&shard),
                "payload {payload_len}, shard {shard}"
            );
        }
    }
}

#[test]
fn places_that_no_segment_can_have_are_refused() {
    let segment = |len| Segment {
        class: StripeClass::VOLUME,
        data_shards: 1,
        parity_shards: 0,
        code: 1,
        len,
        slots: vec![Some(MemberIndex(0))],
        rotating: 1,
    };
    let stripe = |offset| Stripe {
        segment: SegmentId(0),
        offset,
        height: 4096,
        payload_len: 1,
        rotation: 0,
        written: ShardSet::default(),
    };
    let beyond = MAX_SEGMENT_BYTES + 4096;
    assert!(Segment::decode(&segment(MAX_SEGMENT_BYTES).encode()).is_ok());
    assert!(Segment::decode(&segment(beyond).encode()).is_err());
    assert!(Stripe::decode(&stripe(MAX_SEGMENT_BYTES).encode()).is_ok());
    assert!(Stripe::decode(&stripe(beyond).encode()).is_err());
    assert!(Stripe::decode(&stripe(u64::MAX - 4095).encode()).is_err());
}

#[test]
fn a_stripe_never_takes_more_memory_than_allowed_and_is_at_least_a_block_high() {
    assert_eq!(greatest_height(1 << 20, 4), 1 << 20);
    assert_eq!(greatest_height(1 << 20, 64), 1 << 20);
    for data_shards in 1..=255 {
        for unit in [0, 4096, 5000, 1 << 20, 16 << 20, 1 << 30, u32::MAX] {
            let height = greatest_height(unit, data_shards);
            assert!(height.is_multiple_of(4096) && height >= 4096);
            assert!(height * u32::from(data_shards) <= MAX_STRIPE_BYTES);
        }
    }
}

#[test]
fn stripes_that_no_volume_can_have_are_refused() {
    let possible = Stripe {
        segment: SegmentId(1),
        offset: MAX_SEGMENT_BYTES,
        height: MAX_STRIPE_BYTES,
        payload_len: MAX_STRIPE_BYTES,
        rotation: 0,
        written: ShardSet::default(),
    };
    assert_eq!(Stripe::decode(&possible.encode()), Ok(possible));
    let too_high = Stripe {
        height: MAX_STRIPE_BYTES + 4096,
        ..possible
    };
    let too_long = Stripe {
        payload_len: MAX_STRIPE_BYTES + 1,
        ..possible
    };
    let too_far = Stripe {
        offset: MAX_SEGMENT_BYTES + 4096,
        ..possible
    };
    for stripe in [too_high, too_long, too_far] {
        let decoded = Stripe::decode(&stripe.encode());
        assert!(
            matches!(decoded, Err(FormatError::Field { .. })),
            "{decoded:?}"
        );
    }
}

#[test]
fn names_and_targets_that_posix_forbids_are_refused() {
    let position = |name: &[u8]| {
        let entry = Position {
            ino: Ino(7),
            kind: FileKind::Directory,
            name: name.to_vec(),
        };
        Position::decode(&entry.encode())
    };
    let what = "position";
    for (name, fault) in [
        (&b"."[..], NameFault::Dots),
        (b"..", NameFault::Dots),
        (b"", NameFault::Empty),
        (b"../a", NameFault::Slash),
        (b"a\0", NameFault::Nul),
        (&[b'n'; 256], NameFault::TooLong { len: 256 }),
    ] {
        assert_eq!(position(name), Err(FormatError::Name { what, fault }));
    }
    assert!(position(b"...").is_ok());
    let symlink = |target: &[u8]| {
        let mut value = sample_symlink();
        value.inline = Inline::Target(target.to_vec());
        Inode::decode(&value.encode())
    };
    assert!(symlink(b"../a").is_ok());
    for target in [&b""[..], b"a\0b", &[b't'; 4096]] {
        assert!(symlink(target).is_err(), "{} bytes", target.len());
    }
}

fn sample_symlink() -> Inode {
    let time = Timestamp::default();
    Inode {
        kind: FileKind::Symlink,
        permissions: 0o777,
        uid: 0,
        gid: 0,
        links: 1,
        rdev: 0,
        size: 1,
        allocated_bytes: 0,
        unwritten_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: Ino(0),
        next_cookie: Cookie(0),
        quota: QuotaId::NONE,
        class: StripeClass::VOLUME,
        inline: Inline::None,
    }
}

fn refused<T: Record + Debug>(value: &T) {
    let decoded = T::decode(&value.encode());
    assert!(
        matches!(decoded, Err(FormatError::Field { .. })),
        "{value:?}: {decoded:?}"
    );
}

/// Each of these made some sum overflow, or demanded memory.
#[test]
fn values_that_no_volume_can_have_are_refused() {
    let most = u64::from(MAX_STRIPE_BYTES);
    for (len, stripe_offset) in [
        (u64::MAX, 0),
        (most + 1, 0),
        (most, 1),
        (1, MAX_STRIPE_BYTES),
        (16, 0xffff_fff0),
    ] {
        refused(&Backref { len, stripe_offset });
        let stripe = StripeId(7);
        refused(&Extent {
            len,
            stripe,
            stripe_offset,
        });
    }
    let refused_write = Extent {
        len: 1 << 30,
        stripe: Extent::FAILED_WRITEBACK,
        stripe_offset: 0,
    };
    assert_eq!(Extent::decode(&refused_write.encode()), Ok(refused_write));
    for cookie in [MAX_COUNT, u64::MAX] {
        refused(&Dirent {
            ino: Ino(2),
            kind: FileKind::Regular,
            cookie: Cookie(cookie),
        });
    }
    refused(&Quota {
        outer: QuotaId(MAX_COUNT + 1),
        ..Quota::default()
    });
    refused(&Quota {
        state: QuotaState::Lifted,
        max_files: Some(1),
        ..Quota::default()
    });
    refused(&Counter(MAX_COUNT + 1));
    refused(&Counter(u64::MAX));
    let reversed = Range {
        start: 4096,
        end: 0,
    };
    for range in [reversed, 5..5, 0..MAX_STRIPE_BYTES + 1] {
        refused(&LostBytes(vec![0..4096, range]));
    }
    let link = |target: &[u8]| Inode {
        kind: FileKind::Symlink,
        permissions: 0o777,
        uid: 0,
        gid: 0,
        links: 1,
        rdev: 0,
        size: 4,
        allocated_bytes: 0,
        unwritten_bytes: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        btime: Timestamp::default(),
        parent: Ino(0),
        next_cookie: Cookie(0),
        quota: QuotaId::NONE,
        class: StripeClass::VOLUME,
        inline: Inline::Target(target.to_vec()),
    };
    let longest = link(&[b'a'; 4095]);
    assert_eq!(Inode::decode(&longest.encode()), Ok(longest.clone()));
    refused(&Inode {
        kind: FileKind::Directory,
        next_cookie: Cookie(u64::MAX),
        inline: Inline::None,
        ..link(b"")
    });
    refused(&Inode {
        quota: QuotaId(u64::MAX),
        ..longest
    });
}

#[test]
fn unwritten_bytes_that_no_file_can_have_are_refused() {
    let unwritten = |len, stripe_offset| Extent {
        len,
        stripe: Extent::UNWRITTEN,
        stripe_offset,
    };
    let longest = unwritten(u64::from(u32::MAX), 0);
    assert_eq!(Extent::decode(&longest.encode()), Ok(longest));
    refused(&unwritten(u64::MAX, 0));
    refused(&unwritten(u64::from(u32::MAX), 1));
    let with_unwritten = |allocated_bytes, unwritten_bytes| Inode {
        kind: FileKind::Regular,
        allocated_bytes,
        unwritten_bytes,
        inline: Inline::None,
        ..sample_symlink()
    };
    let all = with_unwritten(u64::MAX, u64::MAX);
    assert_eq!(Inode::decode(&all.encode()), Ok(all));
    refused(&with_unwritten(4096, 4097));
    refused(&with_unwritten(0, u64::MAX));
}
