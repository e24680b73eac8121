use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Lsn;
use crate::wire::MAX_COUNT;

fn mark() -> impl Strategy<Value = EpochMark> {
    (0..=MAX_COUNT, any::<u64>()).prop_map(|(epoch, nonce)| EpochMark {
        epoch: Epoch(epoch),
        nonce,
    })
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..=MAX_PATH);
    bytes.prop_filter("no control characters", |path| noted_path(path) == *path)
}

prop_compose! {
    fn entry()(id: u128, current: bool, draining: bool, path in path()) -> MemberEntry {
        MemberEntry { id: MemberId(Uuid::from_u128(id)), current, draining, path }
    }
}

prop_compose! {
    fn superblock()(
        (volume, member, code) in any::<(u128, u128, u16)>(),
        (unit, units) in (1..=1024_u32, 1..=1_u64 << 20),
        (data_shards, parity_shards, compat, read_only) in any::<(u8, u8, u64, u64)>(),
        generation in 0..=MAX_COUNT,
        label in "\\PC{0,60}",
        history in prop::collection::vec(mark(), 1..20),
        proposed in prop::option::of(mark()),
        members in prop::collection::vec(entry(), 1..9),
        extension in prop::collection::vec(any::<u8>(), 0..40),
        index: prop::sample::Index,
    ) -> Superblock {
        let features = Features { compat, read_only, incompat: KNOWN.incompat };
        Superblock {
            volume: VolumeId(Uuid::from_u128(volume)),
            member: MemberId(Uuid::from_u128(member)),
            index: MemberIndex(u16::try_from(index.index(members.len())).expect("few members")),
            data_shards, parity_shards, code, label, features,
            unit_bytes: unit * 4096, segment_bytes: u64::from(unit) * 4096 * units,
            generation: Generation(generation), history, proposed, members, extension,
        }
    }
}

/// The largest superblock there can be.
fn largest() -> Superblock {
    let mark = |epoch| EpochMark {
        epoch: Epoch(epoch),
        nonce: u64::MAX,
    };
    let entry = MemberEntry {
        id: MemberId(Uuid::max()),
        current: true,
        draining: true,
        path: vec![b'p'; MAX_PATH],
    };
    Superblock {
        volume: VolumeId(Uuid::max()),
        member: MemberId(Uuid::max()),
        index: MemberIndex(255),
        data_shards: 200,
        parity_shards: 55,
        code: 1,
        unit_bytes: 1 << 20,
        segment_bytes: 1 << 30,
        label: "l".repeat(MAX_LABEL),
        features: KNOWN,
        generation: Generation(3),
        history: (0..MAX_HISTORY as u64).map(mark).collect(),
        proposed: Some(mark(MAX_COUNT)),
        members: vec![entry; MAX_MEMBERS],
        extension: vec![b'e'; MAX_EXTENSION],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn superblocks_round_trip_and_ignore_the_rest_of_the_slot(superblock in superblock()) {
        let mut slot = superblock.encode();
        prop_assert_eq!(Superblock::decode(&slot), Ok(superblock.clone()));
        slot.resize(SLOT_BYTES, 0xa5);
        prop_assert_eq!(Superblock::decode(&slot), Ok(superblock));
    }

    #[test]
    fn every_truncation_is_refused(superblock in superblock()) {
        let slot = superblock.encode();
        for len in 0..slot.len() {
            prop_assert!(Superblock::decode(&slot[..len]).is_err(), "{} bytes", len);
        }
    }

    #[test]
    fn every_flipped_bit_is_refused(superblock in superblock(), place: prop::sample::Index, bit in 0..8_u8) {
        let mut slot = superblock.encode();
        let place = place.index(slot.len());
        slot[place] ^= 1 << bit;
        prop_assert!(Superblock::decode(&slot).is_err(), "byte {} bit {}", place, bit);
    }

    #[test]
    fn bytes_with_a_right_checksum_never_panic(superblock in superblock(), place: prop::sample::Index, byte: u8) {
        let mut slot = superblock.encode();
        let body = slot.len() - CHECKSUM_LEN;
        slot[place.index(body)] = byte;
        let checksum = crc32c::crc32c(&slot[..body]);
        slot[body..].copy_from_slice(&checksum.to_le_bytes());
        let _ = Superblock::decode(&slot);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), magic: bool) {
        let mut slot = if magic { MAGIC.to_vec() } else { Vec::new() };
        slot.extend(bytes);
        prop_assert!(Superblock::decode(&slot).is_err());
    }
}

#[test]
fn the_largest_superblock_fits_its_slot() {
    let largest = largest();
    let slot = largest.encode();
    assert!(slot.len() <= SLOT_BYTES, "{} bytes", slot.len());
    assert_eq!(Superblock::decode(&slot), Ok(largest));
}

/// Writes a field into a whole superblock and sets the checksum right again.
fn with_field<const N: usize>(offset: usize, field: [u8; N]) -> Vec<u8> {
    let mut slot = largest().encode();
    put(&mut slot, offset, field);
    sealed(slot)
}

/// Sets the checksum right.
fn sealed(mut slot: Vec<u8>) -> Vec<u8> {
    let body = slot.len() - CHECKSUM_LEN;
    let checksum = crc32c::crc32c(&slot[..body]);
    slot[body..].copy_from_slice(&checksum.to_le_bytes());
    slot
}

#[test]
fn newer_versions_and_unknown_incompatible_features_are_distinguished_from_damage() {
    let newer = Superblock::decode(&with_field(at::VERSION, 2_u16.to_le_bytes()));
    assert!(
        matches!(
            newer,
            Err(FormatError::Version {
                found: 2,
                known: 1,
                ..
            })
        ),
        "{newer:?}"
    );
    let features = Superblock::decode(&with_field(at::INCOMPAT, (1_u64 << 40).to_le_bytes()));
    assert!(
        matches!(features, Err(FormatError::Features { unknown, .. }) if unknown == 1 << 40),
        "{features:?}"
    );
    let compatible = Superblock::decode(&with_field(at::COMPAT, 4_u64.to_le_bytes()));
    assert_eq!(compatible.map(|block| block.features.compat), Ok(4));
    let readable = Superblock::decode(&with_field(at::READ_ONLY, 4_u64.to_le_bytes()));
    assert_eq!(readable.map(|block| block.read_only_features()), Ok(4));
}

#[test]
fn a_member_in_a_state_of_a_newer_build_is_not_current_and_else_damage() {
    const FIRST_STATE: usize = at::LABEL + MAX_LABEL + 16;
    let read_only = Superblock {
        features: Features {
            read_only: 1,
            ..KNOWN
        },
        ..largest()
    };
    for (block, expected) in [(read_only, Some(false)), (largest(), None)] {
        let mut slot = block.encode();
        slot[FIRST_STATE] = 4;
        let decoded = Superblock::decode(&sealed(slot)).ok();
        assert_eq!(decoded.map(|block| block.members[0].current), expected);
    }
}

#[test]
fn slots_are_used_in_turn() {
    let mut superblock = largest();
    for (generation, offset) in [
        (0, 0),
        (1, SLOT_BYTES as u64),
        (2, 0),
        (3, SLOT_BYTES as u64),
    ] {
        superblock.generation = Generation(generation);
        assert_eq!(superblock.slot_offset(), offset);
    }
}

/// Two fields of some other build.
const UNKNOWN: &[u8] = b"\x07\0\x03\0new\x09\0\0\0";

fn seen(members: u16) -> BTreeMap<MemberIndex, LastSeen> {
    let seen = |member: u16| LastSeen {
        epoch: Epoch(u64::from(member) << 40),
        generation: Generation(MAX_COUNT - u64::from(member)),
    };
    (0..members)
        .map(|member| (MemberIndex(member), seen(member)))
        .collect()
}

#[test]
fn how_members_were_last_stands_beside_the_fields_of_other_builds() {
    for unknown in [&b""[..], UNKNOWN] {
        let mut block = Superblock {
            extension: unknown.to_vec(),
            ..largest()
        };
        assert_eq!(block.last_seen(), BTreeMap::new());
        for members in [3, 0, 200, 1, 0] {
            block.set_last_seen(&seen(members));
            let read = Superblock::decode(&block.encode()).expect("it fits");
            assert_eq!(read.last_seen(), seen(members));
            assert!(read.extension.starts_with(unknown));
        }
        assert_eq!(block.extension, unknown);
    }
}

#[test]
fn how_members_were_last_is_left_out_where_there_is_no_room_for_it() {
    let mut block = Superblock {
        extension: UNKNOWN.to_vec(),
        ..largest()
    };
    block.set_last_seen(&seen(250));
    assert_eq!(block.extension, UNKNOWN);
    let most = u16::try_from((MAX_EXTENSION - UNKNOWN.len() - 4) / 18).expect("some hundred");
    block.set_last_seen(&seen(most));
    assert_eq!(block.last_seen(), seen(most));
    Superblock::decode(&block.encode()).expect("it fits");
}

#[test]
fn an_unreadable_last_seen_field_describes_no_member_and_is_kept() {
    for extension in [&b"\x07\0\x05\0new"[..], b"\x01", b"eeee"] {
        let mut block = Superblock {
            extension: extension.to_vec(),
            ..largest()
        };
        assert_eq!(block.last_seen(), BTreeMap::new());
        block.set_last_seen(&seen(2));
        assert_eq!(block.extension, extension);
    }
    // The field is there, but holds no whole entries.
    let block = Superblock {
        extension: b"\x01\0\x03\0abc".to_vec(),
        ..largest()
    };
    assert_eq!(block.last_seen(), BTreeMap::new());
}

fn records(members: u16) -> BTreeMap<MemberIndex, LastRecord> {
    let record = |member: u16| LastRecord {
        epoch: Epoch(u64::from(member)),
        generation: u64::from(member),
        lsn: Lsn(MAX_COUNT - u64::from(member)),
        is_surpassed: member % 2 == 1,
    };
    (0..members)
        .map(|member| (MemberIndex(member), record(member)))
        .collect()
}

#[test]
fn last_records_stand_beside_all_other_fields_or_are_left_out() {
    let mut block = Superblock {
        extension: UNKNOWN.to_vec(),
        ..largest()
    };
    for members in [3, 0, 80, 1] {
        block.set_last_seen(&seen(members));
        block.set_last_records(&records(members));
        let read = Superblock::decode(&block.encode()).expect("it fits");
        assert_eq!(read.last_seen(), seen(members));
        assert_eq!(read.last_records(), records(members));
        assert!(read.extension.starts_with(UNKNOWN));
    }
    block.set_last_records(&records(250));
    assert_eq!(block.last_records(), BTreeMap::new());
    assert_eq!(block.last_seen(), seen(1), "others stay");
    Superblock::decode(&block.encode()).expect("it fits");
}

#[test]
fn an_unreadable_field_of_last_records_names_none() {
    let entry = |lsn: u64, flags: u8| {
        let mut entry = b"\x05\0\x1b\0\x02\0".to_vec();
        entry.extend_from_slice(&6_u64.to_le_bytes());
        entry.extend_from_slice(&7_u64.to_le_bytes());
        entry.extend_from_slice(&lsn.to_le_bytes());
        entry.push(flags);
        entry
    };
    let block = |extension: Vec<u8>| Superblock {
        extension,
        ..largest()
    };
    let known = BTreeMap::from([(
        MemberIndex(2),
        LastRecord {
            epoch: Epoch(6),
            generation: 7,
            lsn: Lsn(9),
            is_surpassed: true,
        },
    )]);
    assert_eq!(block(entry(9, 1)).last_records(), known);
    for extension in [
        entry(9, 2),
        entry(MAX_COUNT + 1, 0),
        b"\x05\0\x03\0abc".to_vec(),
        b"\x05".to_vec(),
    ] {
        assert_eq!(block(extension).last_records(), BTreeMap::new());
    }
}

fn replaced(index: u16, path: &[u8]) -> Replaced {
    Replaced {
        index: MemberIndex(index),
        heir: MemberIndex(index + 1),
        path: path.to_vec(),
    }
}

#[test]
fn replaced_and_given_up_members_stand_beside_all_other_fields() {
    let mut block = Superblock {
        extension: UNKNOWN.to_vec(),
        ..largest()
    };
    let all = [replaced(3, b"/srv/d3"), replaced(200, &[0xff; MAX_PATH])];
    let given_up: BTreeSet<_> = [0, 3, 255].map(MemberIndex).into();
    for (replaced, given_up) in [
        (&all[..], &given_up),
        (&all[..1], &BTreeSet::new()),
        (&[], &given_up),
    ] {
        block.set_last_seen(&seen(3));
        block.set_given_up(given_up);
        block.set_replaced(replaced);
        let read = Superblock::decode(&block.encode()).expect("it fits");
        assert_eq!(read.replaced(), replaced);
        assert_eq!(read.given_up(), *given_up);
        assert_eq!(read.last_seen(), seen(3));
        assert!(read.extension.starts_with(UNKNOWN));
    }
    block.set_last_seen(&BTreeMap::new());
    block.set_given_up(&BTreeSet::new());
    assert_eq!(block.extension, UNKNOWN);
}

#[test]
fn unreadable_fields_name_no_absent_member() {
    for extension in [
        &b"\x02\0\x03\0abc"[..],
        b"\x02\0\x05\0\0\0\0\0\xc9",
        b"\x03\0\x01\0\0",
        b"eeee",
    ] {
        let block = Superblock {
            extension: extension.to_vec(),
            ..largest()
        };
        assert_eq!(block.replaced(), []);
        assert_eq!(block.given_up(), BTreeSet::new());
    }
}

/// A superblock as `create` makes it.
fn plain() -> Superblock {
    Superblock {
        data_shards: 2,
        parity_shards: 1,
        label: "photos".to_owned(),
        members: vec![
            MemberEntry {
                path: b"/srv/d0".to_vec(),
                ..MemberEntry::vacant()
            };
            3
        ],
        index: MemberIndex(2),
        extension: Vec::new(),
        ..largest()
    }
}

fn refused_field(superblock: &Superblock) -> &'static str {
    match Superblock::decode(&superblock.encode()) {
        Err(FormatError::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn labels_that_create_refuses_are_refused() {
    for label in ["a\nb", "\x1b[2J", "\u{9b}31m", "\x7f", "tab\there", "\0"] {
        let label = label.to_owned();
        let superblock = Superblock { label, ..plain() };
        assert!(refused_field(&superblock).contains("control character"));
    }
    for label in ["", "photos", "größer 日本語", "a b"] {
        let label = label.to_owned();
        let superblock = Superblock { label, ..plain() };
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
}

/// Such a directory can be a member, and earlier builds noted its path.
#[test]
fn a_path_with_control_characters_is_read_as_none() {
    for path in [
        &b"/srv/\x1b[2J"[..],
        b"/srv/a\nb",
        "/srv/\u{9b}1m".as_bytes(),
    ] {
        let mut superblock = plain();
        superblock.members[1].path = path.to_vec();
        superblock.set_replaced(&[Replaced {
            index: MemberIndex(0),
            heir: MemberIndex(1),
            path: path.to_vec(),
        }]);
        let mut decoded = Superblock::decode(&superblock.encode()).expect("it decodes");
        assert!(decoded.replaced()[0].path.is_empty());
        assert!(decoded.members[1].path.is_empty());
        assert!(noted_path(path).is_empty());
        decoded.members[1].path = path.to_vec();
        assert_eq!(decoded, superblock);
    }
    for path in [&b"/srv/d0"[..], "/srv/größer".as_bytes(), b"/srv/\xff"] {
        assert_eq!(noted_path(path), path);
    }
}

#[test]
fn sizes_with_which_no_volume_is_made_are_refused() {
    for unit_bytes in [0, 1, 4095, 5000, u32::MAX, 1 << 31] {
        let superblock = Superblock {
            unit_bytes,
            ..plain()
        };
        assert_eq!(refused_field(&superblock), "stripe unit", "{unit_bytes}");
    }
    for segment_bytes in [
        0,
        4096,
        (1 << 20) + 4096,
        u64::MAX,
        MAX_SEGMENT_BYTES + (1 << 20),
    ] {
        let superblock = Superblock {
            segment_bytes,
            ..plain()
        };
        assert_eq!(
            refused_field(&superblock),
            "segment size",
            "{segment_bytes}"
        );
    }
}

#[test]
fn counts_that_could_overflow_are_refused() {
    let mut superblock = plain();
    superblock.generation = Generation(MAX_COUNT + 1);
    assert_eq!(refused_field(&superblock), "generation");
    let mut superblock = plain();
    superblock.history[0].epoch = Epoch(u64::MAX);
    assert_eq!(refused_field(&superblock), "epoch");
    let mut superblock = plain();
    let seen = LastSeen {
        epoch: Epoch(1),
        generation: Generation(u64::MAX),
    };
    superblock.set_last_seen(&BTreeMap::from([(MemberIndex(0), seen)]));
    assert!(superblock.last_seen().is_empty());
}
