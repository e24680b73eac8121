//! Inodes that name a class of stripes.

use cauchyfs::format::StripeClass;
use cauchyfs::format::record::DirectoryCode;

use super::*;

const CLASS: StripeClass = StripeClass(3);

#[test]
fn a_class_with_a_code_is_no_finding() {
    let volume = Volume::new();
    let mut batch = Batch::default();
    let code = DirectoryCode {
        data_shards: 1,
        parity_shards: 1,
        code: 1,
    };
    batch.put(key::directory_code(CLASS), code.encode());
    volume.change(&mut batch, volume.dir, |dir| dir.class = CLASS);
    volume.maintenance.transactions().apply(batch).unwrap();
    assert_eq!(volume.check(false).findings, []);
}

#[test]
fn a_class_without_a_code_is_found_and_repaired() {
    found(
        "a class of no code",
        |volume, batch| volume.change(batch, volume.dir, |dir| dir.class = CLASS),
        |_| FindingKind::ClassWithoutCode,
        Some("dir"),
        true,
    );
}
