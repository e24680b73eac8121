//! Faults of quotas.

use cauchyfs::format::QuotaId;
use cauchyfs::format::record::{Quota, QuotaUsage};

use super::*;

const QUOTA: QuotaId = QuotaId(1);

/// The storage of the file, in units of 512 bytes, and the file with its directory.
const USAGE: QuotaUsage = QuotaUsage {
    bytes: 15_360,
    files: 2,
};

fn quota_of(root: Ino) -> Quota {
    Quota {
        root,
        usage: USAGE,
        max_files: Some(9),
        ..Quota::default()
    }
}

/// Gives the directory a quota, which the file names. The directory names it as well if `is_named`.
fn put(volume: &Volume, batch: &mut Batch, quota: Quota, is_named: bool) {
    volume.change(batch, volume.file, |file| file.quota = QUOTA);
    if is_named {
        volume.change(batch, volume.dir, |dir| dir.quota = QUOTA);
    }
    batch.put(key::quota(QUOTA), quota.encode());
}

#[test]
fn a_right_quota_is_no_finding() {
    let volume = Volume::new();
    let mut batch = Batch::default();
    put(&volume, &mut batch, quota_of(volume.dir), true);
    volume.maintenance.transactions().apply(batch).unwrap();
    assert_eq!(volume.check(false).findings, []);
}

#[test]
fn every_fault_of_quotas_is_found_and_repaired() {
    let recorded = QuotaUsage {
        bytes: 512,
        files: 3,
    };
    found(
        "a wrong account",
        |volume, batch| {
            let quota = Quota {
                usage: recorded,
                ..quota_of(volume.dir)
            };
            put(volume, batch, quota, true);
        },
        |_| FindingKind::WrongUsage {
            recorded,
            counted: USAGE,
        },
        Some("dir"),
        true,
    );
    found(
        "a quota of nothing",
        |_, batch| batch.put(key::quota(QUOTA), quota_of(Ino(99)).encode()),
        |_| FindingKind::QuotaWithoutDirectory,
        None,
        true,
    );
    found(
        "a quota in itself",
        |volume, batch| {
            let quota = Quota {
                outer: QUOTA,
                ..quota_of(volume.dir)
            };
            put(volume, batch, quota, true);
        },
        |_| FindingKind::WrongOuterQuota,
        Some("dir"),
        true,
    );
    found(
        "a directory that does not name its quota",
        |volume, batch| put(volume, batch, quota_of(volume.dir), false),
        |_| FindingKind::WrongQuota,
        Some("dir"),
        true,
    );
}
