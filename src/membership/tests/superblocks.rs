//! Superblocks that another program deletes while the volume is open.

use super::*;
use crate::membership::VerifiedSuperblocks;

const BEREFT: usize = 1;

/// A volume whose members have journals, one of which loses its superblock; and that one's directory.
fn without_a_superblock() -> (Disks, Arc<Members>, impl Store) {
    let disks = Disks::volume(2, 1, 4);
    for disk in &disks.directories {
        for journal in files::JOURNALS {
            disk.open().create(journal, 4096).expect("there is room");
        }
    }
    let members = disks.open(0..4).expect("all members are there");
    let directory = disks.directories[BEREFT].open();
    directory.remove(files::SUPERBLOCK).expect("it works");
    (disks, members, directory)
}

#[test]
fn a_member_whose_superblock_is_deleted_stays_online_and_verification_creates_it_again() {
    let (disks, members, _) = without_a_superblock();
    for _ in 0..3 {
        members.probe();
    }
    assert_eq!(
        members.membership().live(),
        indices(0..4),
        "nothing that it holds is lost"
    );
    assert_eq!(members.status()[BEREFT].errors.checksum, 1, "said once");
    let expected = VerifiedSuperblocks {
        found: [(indices([BEREFT])[0], 2)].into(),
        repaired: 2,
        wrong: 0,
    };
    assert_eq!(members.verify_superblocks(), expected);
    assert_eq!(members.verify_superblocks(), VerifiedSuperblocks::default());
    let (made, other) = (disks.block(BEREFT), disks.block(0));
    assert_eq!((made.head(), &made.members), (other.head(), &other.members));
    // A second loss is reported again.
    let directory = disks.directories[BEREFT].open();
    members.probe();
    let errors = members.status()[BEREFT].errors.checksum;
    directory.remove(files::SUPERBLOCK).expect("it works");
    members.probe();
    assert_eq!(members.status()[BEREFT].errors.checksum, errors + 1);
    members.verify_superblocks();
    disks.cut(CutPolicy::Drop);
    let members = disks.open(0..4).expect("all have one");
    assert_eq!(
        members.epochs().stale(),
        [],
        "it is as up to date as the others"
    );
    assert!(members.stale_copies().unverified().is_empty());
}

/// As of a directory that another program is deleting.
#[test]
fn a_directory_that_lacks_more_than_its_superblock_gets_none() {
    for journal in files::JOURNALS {
        let (_, members, directory) = without_a_superblock();
        directory.remove(journal).expect("it works");
        let verified = members.verify_superblocks();
        assert_eq!((verified.repaired, verified.wrong), (0, 2), "{journal}");
        let len = directory.open_len(files::SUPERBLOCK);
        assert_eq!(len.unwrap_err().kind(), StoreErrorKind::NotFound);
    }
}
