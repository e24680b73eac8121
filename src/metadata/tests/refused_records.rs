//! Journal records with right checksums that do not decode.

use bytes::Bytes;

use super::rig::{Records, Refused, Rig, content};
use super::untouched::image;
use crate::format::journal::{self, Change, RecordHeader, StripeData};
use crate::format::{BLOCK_SIZE, Lsn, MemberIndex, StripeId, files};
use crate::membership::Access;
use crate::metadata::MetaError;
use crate::store::{Effect, Fault, FaultPlan, Store};

const RECORDS: u64 = 3;

/// A way to make a record fail to decode.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// Its stripe data ends behind the longest stripe.
    StripeData,
    /// Its stripe data has no bytes.
    EmptyStripeData,
    /// Its reserved field is not zero.
    Reserved,
}

/// Returns a record of one block.
fn encoded(header: &RecordHeader, harm: Option<Harm>) -> Vec<u8> {
    let entry: Change = (
        format!("key {}", header.lsn).into(),
        Some(Bytes::from_static(b"value")),
    );
    let data = |offset, bytes: &'static [u8]| StripeData {
        stripe: StripeId(1 << 40),
        offset,
        bytes: Bytes::from_static(bytes),
    };
    let data = match harm {
        Some(Harm::StripeData) => Some(data(0xffff_fff0, &[7; 16])),
        Some(Harm::EmptyStripeData) => Some(data(0, &[])),
        _ => None,
    };
    let mut record = vec![0; BLOCK_SIZE];
    journal::encode(header, &[entry], data.as_slice(), &mut record);
    if matches!(harm, Some(Harm::Reserved)) {
        record[6] = 1;
    }
    record
}

/// Returns a volume on three disks whose journal has three records, of which one does not decode on some disks.
/// Returns also its content with all records, and the number of that one.
fn crafted(harm: Harm, place: u64, disks: &[usize]) -> (Rig, Records, Lsn) {
    let rig = Rig::new(1, 1, 3);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    let mut expected = content(&meta).expect("content");
    let position = meta.index.position();
    let header = |number: u64| RecordHeader {
        volume: members.shape().volume_id(),
        epoch: members.membership().epoch(),
        lsn: Lsn(position.lsn.0 + 1 + number),
        generation: position.generation,
    };
    for (index, disk) in rig.disks.iter().enumerate() {
        let harm = |number| Some(harm).filter(|_| number == place && disks.contains(&index));
        let records = (0..RECORDS).map(|number| encoded(&header(number), harm(number)));
        let store = disk.open();
        let records: Vec<u8> = records.flatten().collect();
        store
            .write_at(files::JOURNALS[0], 0, &records)
            .expect("write");
        store.sync(files::JOURNALS[0]).expect("sync");
    }
    for number in 0..RECORDS {
        let key = format!("key {}", header(number).lsn);
        expected.insert(key.into(), "value".into());
    }
    let lsn = header(place).lsn;
    plan.add(Fault::at(1, Effect::PowerCut));
    drop((meta, members));
    (rig, expected, lsn)
}

fn cases() -> impl Iterator<Item = (Harm, u64, Access)> {
    let harms = [Harm::StripeData, Harm::EmptyStripeData, Harm::Reserved].into_iter();
    harms.flat_map(|harm| {
        let places = 0..RECORDS;
        places.flat_map(move |place| {
            [Access::ReadOnly, Access::ReadWrite].map(|access| (harm, place, access))
        })
    })
}

#[test]
fn a_record_that_decodes_on_no_member_ends_opening_before_anything_is_written() {
    for (harm, place, access) in cases() {
        let (rig, _, expected) = crafted(harm, place, &[0, 1, 2]);
        let before = image(&rig);
        match rig.open(&[], None, access).map(|_| ()) {
            Err(Refused::Meta(error @ MetaError::RefusedRecord { member, lsn, .. })) => {
                assert_eq!((member, lsn), (MemberIndex(0), expected));
                assert!(error.remedy().is_some());
            }
            other => panic!("{harm:?} at {place}, {access:?}: {other:?}"),
        }
        assert!(image(&rig) == before, "{harm:?} at {place}, {access:?}");
    }
}

#[test]
fn a_record_that_decodes_on_one_member_is_replayed_from_there() {
    for (harm, place, access) in cases() {
        for refused in [&[0][..], &[1], &[2], &[0, 1], &[1, 2]] {
            let case = format!("{harm:?} at {place} on {refused:?}, {access:?}");
            let (rig, expected, _) = crafted(harm, place, refused);
            let (meta, ..) = rig.open(&[], None, access).expect(&case);
            assert!(content(&meta).expect(&case) == expected, "{case}");
        }
    }
}
