//! Stripe data in the index that no recovery has put there.

use std::sync::Arc;

use bytes::Bytes;

use super::rig::{Refused, Rig, inline};
use crate::format::StripeId;
use crate::members::{Access, Members};
use crate::meta::disk::Disk;
use crate::meta::index::{Commit, Index};
use crate::meta::mirror::Mirror;
use crate::meta::redb_index::RedbIndex;
use crate::meta::{MetaError, StripeData};

fn with_carried(rig: &Rig, data: &[StripeData]) {
    let members = Members::open(rig.stores(&[], None), Access::ReadWrite, inline());
    let members = members.expect("members");
    members.begin().expect("begin");
    let disk = Arc::new(Disk::new(members));
    let mirror = Mirror::open(&disk).expect("mirror");
    let index = RedbIndex::open(mirror, 1 << 20).expect("index");
    index.begin().expect("begin");
    let position = index.position();
    let mut commit = Commit {
        changes: Box::new(std::iter::empty()),
        position,
        carried: Some(data),
    };
    index.commit(&mut commit).expect("commit");
    index.close().expect("close");
}

#[test]
fn carried_data_is_refused_behind_the_longest_stripe() {
    // One data shard, and a stripe unit of 1 MiB.
    let stripe_bytes: u32 = 1 << 20;
    for (offset, is_possible) in [
        (stripe_bytes - 16, true),
        (stripe_bytes - 15, false),
        (0xffff_fff0, false),
    ] {
        let rig = Rig::new(1, 1, 2);
        let data = StripeData {
            stripe: StripeId(9),
            offset,
            bytes: Bytes::from(vec![7; 16]),
        };
        with_carried(&rig, std::slice::from_ref(&data));
        match rig.fork().open(&[], None, Access::ReadOnly) {
            Ok((_, recovered, _)) => {
                assert!(is_possible, "offset {offset}");
                assert_eq!(recovered.data, [data]);
            }
            Err(Refused::Meta(MetaError::DamagedIndex { reason })) => {
                assert!(!is_possible, "offset {offset}: {reason}");
                assert!(reason.contains("stripe data"), "{reason}");
            }
            Err(other) => panic!("offset {offset}: {other:?}"),
        }
    }
}
