use std::fmt::Debug;

use proptest::prelude::*;

use super::*;

fn inside(range: &KeyRange, key: &Key) -> bool {
    range.0 <= *key && *key < range.1
}

/// `parse` must refuse every part of `key` that is cut short, every longer one and every other tag.
fn refuses_all_but<T: Debug>(key: &Key, parse: impl Fn(&[u8]) -> Result<T, FormatError>) {
    for len in 0..key.len() {
        assert!(parse(&key[..len]).is_err(), "{len} bytes of {key:?}");
    }
    let longer = [key, &b"x"[..]].concat();
    assert!(parse(&longer).is_err(), "{longer:?}");
    for tag in (0..=u8::MAX).filter(|tag| *tag != key[0]) {
        let mut other = key.to_vec();
        other[0] = tag;
        assert!(parse(&other).is_err(), "{other:?}");
    }
}

/// Numbers at which a carry or an overflow could go wrong.
const EDGES: [u64; 8] = [
    0,
    1,
    0xff,
    0x100,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 1,
    u64::MAX,
];

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), prop::sample::select(&EDGES[..])]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![1..b'/', b'/' + 1..=u8::MAX];
    let name = prop::collection::vec(byte, 1..=NAME_MAX);
    name.prop_filter("every directory has it", |name| {
        !matches!(&name[..], b"." | b"..")
    })
}

proptest! {
    #[test]
    fn keys_of_one_number_round_trip(n in number()) {
        prop_assert_eq!(parse_inode(&inode(Ino(n))), Ok(Ino(n)));
        prop_assert_eq!(parse_orphan(&orphan(Ino(n))), Ok(Ino(n)));
        prop_assert_eq!(parse_unwritten(&unwritten(Ino(n))), Ok(Ino(n)));
        prop_assert!(inside(&all_unwritten(), &unwritten(Ino(n))));
        prop_assert_eq!(parse_stripe(&stripe(StripeId(n))), Ok(StripeId(n)));
        prop_assert_eq!(parse_segment(&segment(SegmentId(n))), Ok(SegmentId(n)));
        prop_assert_eq!(parse_stripe_unit_below(&stripe_unit_below(SegmentId(n))), Ok(SegmentId(n)));
        prop_assert!(inside(&stripe_units(), &stripe_unit_below(SegmentId(n))));
        prop_assert_eq!(parse_perhaps_dead(&perhaps_dead(StripeId(n))), Ok(StripeId(n)));
        prop_assert_eq!(parse_quota(&quota(QuotaId(n))), Ok(QuotaId(n)));
        prop_assert!(inside(&quotas(), &quota(QuotaId(n))));
        let class = StripeClass(1 + (n % 255) as u8);
        prop_assert_eq!(parse_directory_code(&directory_code(class)), Ok(class));
        prop_assert!(inside(&directory_codes(), &directory_code(class)));
        prop_assert_eq!(parse_lost(&lost(StripeId(n))), Ok(StripeId(n)));
        prop_assert!(inside(&all_lost(), &lost(StripeId(n))));
        prop_assert!(inside(&inodes(), &inode(Ino(n))));
        prop_assert!(inside(&orphans(), &orphan(Ino(n))));
        prop_assert!(inside(&stripes(), &stripe(StripeId(n))));
        prop_assert!(inside(&segments(), &segment(SegmentId(n))));
        prop_assert!(inside(&all_perhaps_dead(), &perhaps_dead(StripeId(n))));
    }

    #[test]
    fn keys_of_several_numbers_round_trip(a in number(), b in number(), c in number(), d: u8) {
        prop_assert_eq!(parse_extent(&extent(Ino(a), b)), Ok((Ino(a), b)));
        prop_assert_eq!(parse_position(&position(Ino(a), Cookie(b))), Ok((Ino(a), Cookie(b))));
        prop_assert_eq!(
            parse_segment_stripe(&segment_stripe(SegmentId(a), b)),
            Ok((SegmentId(a), b))
        );
        prop_assert_eq!(
            parse_backref(&backref(StripeId(a), Ino(b), c)),
            Ok((StripeId(a), Ino(b), c))
        );
        prop_assert_eq!(
            parse_sums(&sums(StripeId(a), ShardIndex(d))),
            Ok((StripeId(a), ShardIndex(d)))
        );
    }

    #[test]
    fn keys_with_a_name_round_trip(n in number(), name in name()) {
        let key = dirent(Ino(n), &name);
        prop_assert_eq!(parse_dirent(&key), Ok((Ino(n), &name[..])));
        let key = xattr(Ino(n), &name);
        prop_assert_eq!(parse_xattr(&key), Ok((Ino(n), &name[..])));
        prop_assert!(inside(&dirents(Ino(n)), &dirent(Ino(n), &name)));
        prop_assert!(inside(&xattrs(Ino(n)), &xattr(Ino(n), &name)));
    }

    #[test]
    fn the_order_of_keys_is_the_order_of_their_numbers(
        a in (number(), number(), number()),
        b in (number(), number(), number()),
    ) {
        let extents = (extent(Ino(a.0), a.1), extent(Ino(b.0), b.1));
        prop_assert_eq!(extents.0.cmp(&extents.1), (a.0, a.1).cmp(&(b.0, b.1)));
        let backrefs = (backref(StripeId(a.0), Ino(a.1), a.2), backref(StripeId(b.0), Ino(b.1), b.2));
        prop_assert_eq!(backrefs.0.cmp(&backrefs.1), a.cmp(&b));
    }

    #[test]
    fn a_range_holds_the_keys_of_its_number_and_no_others(a in number(), b in number(), c in number()) {
        prop_assert_eq!(inside(&backrefs(StripeId(a)), &backref(StripeId(b), Ino(c), c)), a == b);
        prop_assert_eq!(inside(&sums_of(StripeId(a)), &sums(StripeId(b), ShardIndex(255))), a == b);
        prop_assert_eq!(
            inside(&segment_stripes(SegmentId(a)), &segment_stripe(SegmentId(b), c)),
            a == b
        );
        prop_assert_eq!(inside(&dirents(Ino(a)), &dirent(Ino(b), &[255; NAME_MAX])), a == b);
        prop_assert_eq!(inside(&xattrs(Ino(a)), &xattr(Ino(b), b"\0")), a == b);
    }

    #[test]
    fn extents_from_holds_what_ends_after_the_offset(
        ino in number(), other in number(), offset in number(), end in number(),
    ) {
        let range = extents_from(Ino(ino), offset);
        prop_assert!(range.0 <= range.1);
        prop_assert_eq!(inside(&range, &extent(Ino(ino), end)), end > offset);
        prop_assert_eq!(inside(&range, &extent(Ino(other), end)), other == ino && end > offset);
        let range = positions_after(Ino(ino), Cookie(offset));
        prop_assert_eq!(inside(&range, &position(Ino(ino), Cookie(end))), end > offset);
    }

    #[test]
    fn no_parser_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_inode(&bytes);
        let _ = parse_dirent(&bytes);
        let _ = parse_position(&bytes);
        let _ = parse_xattr(&bytes);
        let _ = parse_extent(&bytes);
        let _ = parse_backref(&bytes);
        let _ = parse_stripe(&bytes);
        let _ = parse_sums(&bytes);
        let _ = parse_segment(&bytes);
        let _ = parse_segment_stripe(&bytes);
        let _ = parse_orphan(&bytes);
        let _ = parse_unwritten(&bytes);
        let _ = parse_quota(&bytes);
        let _ = parse_directory_code(&bytes);
        let _ = parse_perhaps_dead(&bytes);
        let _ = parse_repair(&bytes);
    }
}

#[test]
fn every_parser_refuses_cut_longer_and_foreign_keys() {
    let (ino, stripe_id) = (Ino(7), StripeId(9));
    refuses_all_but(&inode(ino), parse_inode);
    refuses_all_but(&orphan(ino), parse_orphan);
    refuses_all_but(&unwritten(ino), parse_unwritten);
    refuses_all_but(&quota(QuotaId(5)), parse_quota);
    refuses_all_but(&directory_code(StripeClass(5)), parse_directory_code);
    for class in [0, 256] {
        assert!(parse_directory_code(&one(tag::DIRECTORY_CODE, class)).is_err());
    }
    refuses_all_but(&stripe(stripe_id), parse_stripe);
    refuses_all_but(&perhaps_dead(stripe_id), parse_perhaps_dead);
    refuses_all_but(&segment(SegmentId(3)), parse_segment);
    refuses_all_but(&segment_stripe(SegmentId(3), 4096), parse_segment_stripe);
    refuses_all_but(&extent(ino, 11), parse_extent);
    refuses_all_but(&position(ino, Cookie(11)), parse_position);
    refuses_all_but(&backref(stripe_id, ino, 11), parse_backref);
    refuses_all_but(&sums(stripe_id, ShardIndex(2)), parse_sums);
    refuses_all_but(&repair(Some(1), stripe_id), parse_repair);
}

#[test]
fn names_are_never_empty_and_never_too_long() {
    for len in [0, NAME_MAX + 1] {
        assert!(parse_dirent(&dirent(Ino(1), &vec![b'n'; len])).is_err());
        assert!(parse_xattr(&xattr(Ino(1), &vec![b'n'; len])).is_err());
    }
}

#[test]
fn names_that_posix_forbids_are_refused() {
    for (name, fault) in [
        (&b"."[..], NameFault::Dots),
        (b"..", NameFault::Dots),
        (b"", NameFault::Empty),
        (b"/", NameFault::Slash),
        (b"../a", NameFault::Slash),
        (b"a/", NameFault::Slash),
        (b"a\0b", NameFault::Nul),
        (&[b'n'; 256], NameFault::TooLong { len: 256 }),
    ] {
        let key = dirent(Ino(7), name);
        let what = "dirent key";
        assert_eq!(parse_dirent(&key), Err(FormatError::Name { what, fault }));
        assert_eq!(parse_dirent_of_any_name(&key), Ok((Ino(7), name)));
    }
    for name in [&b"..."[..], b".a", b" ", b"\\", b"\n", &[255; NAME_MAX]] {
        assert_eq!(parse_dirent(&dirent(Ino(7), name)), Ok((Ino(7), name)));
    }
    assert!(parse_xattr(&xattr(Ino(7), b"user.a/b")).is_ok());
    assert!(parse_xattr(&xattr(Ino(7), b"user.a\0user.b")).is_err());
}

#[test]
fn the_ledger_lists_lost_stripes_then_the_most_endangered() {
    let mut urgencies = vec![None];
    urgencies.extend((0..=254).map(Some));
    let keys: Vec<_> = urgencies
        .iter()
        .map(|losses| repair(*losses, StripeId(u64::MAX)))
        .collect();
    assert!(keys.is_sorted());
    for (losses, key) in urgencies.iter().zip(&keys) {
        assert_eq!(parse_repair(key), Ok((*losses, StripeId(u64::MAX))));
        assert!(inside(&repairs(), key));
        let holders = urgencies.iter().filter(|l| inside(&repairs_of(**l), key));
        assert_eq!(holders.collect::<Vec<_>>(), [losses]);
        for most in 0..=254 {
            let is_below = losses.is_none_or(|losses| losses < most);
            assert_eq!(inside(&repairs_below(most), key), is_below, "{losses:?}");
        }
    }
}
