//! Journals that no commit has written, under good checksums.

use bytes::Bytes;

use super::*;
use crate::metadata::{MetaError, StripeData};

/// Stripes that no commit numbers in these tests.
const FIRST: u64 = 1 << 40;

fn piece(stripe: u64, offset: u32, len: usize) -> StripeData {
    StripeData {
        stripe: StripeId(FIRST + stripe),
        offset,
        bytes: Bytes::from(vec![7; len]),
    }
}

/// Returns a volume whose last journal record has this stripe data.
fn with_journaled(data: usize, pieces: &[StripeData]) -> Rig {
    let rig = Rig::new(data, 1, data + 1);
    let fs = rig.open(&[]);
    fs.write(1, &pattern(1, 300)).unwrap();
    fs.sync().unwrap();
    fs.transactions.meta.append(Vec::new(), pieces).unwrap();
    rig.fork()
}

#[test]
fn a_volume_with_stripe_data_behind_the_longest_stripe_on_all_members_is_refused() {
    for offset in [2 * UNIT as u32, 64 << 20, 0x2000_0000, 0xffff_fff0] {
        let rig = with_journaled(2, &[piece(0, offset, 16)]);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let opened = TestFs::open(rig.fork().stores(&[]), access);
            let error = opened.err().expect("it is refused");
            let is_typed = matches!(
                &error,
                CommitError::Meta(error) if matches!(**error, MetaError::RefusedRecord { .. })
            );
            assert!(is_typed, "offset {offset}, {access:?}: {error}");
            assert!(error.remedy().is_some(), "offset {offset}, {access:?}");
        }
    }
}

#[test]
fn stripe_data_that_ends_with_the_longest_stripe_is_restored() {
    let half = u32::try_from(UNIT).unwrap();
    let rig = with_journaled(2, &[piece(0, 0, UNIT), piece(0, half, UNIT)]);
    let fs = TestFs::open(rig.stores(&[]), Access::ReadOnly).unwrap();
    let mut last = [0; 1];
    let restored = fs
        .transactions
        .stripes
        .reader()
        .read(StripeId(FIRST), 2 * half - 1, &mut last);
    restored.unwrap();
    assert_eq!(last, [7]);
}

/// A hole in what is journaled would have a few bytes demand a whole stripe of memory.
#[test]
fn a_volume_whose_journaled_bytes_have_a_hole_is_refused() {
    for pieces in [
        vec![piece(0, 64, 16)],
        vec![piece(0, 0, 16), piece(0, 17, 16)],
    ] {
        let rig = with_journaled(2, &pieces);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let opened = TestFs::open(rig.fork().stores(&[]), access);
            let error = opened.err().expect("it is refused");
            assert!(error.to_string().contains("do not follow"), "{error}");
        }
    }
}

#[test]
fn a_volume_with_more_journaled_stripes_than_can_be_in_use_is_refused() {
    let row = 8 * BLOCK_SIZE;
    let most = (1 << 30) / row as u64;
    let pieces: Vec<StripeData> = (0..=most).map(|stripe| piece(stripe, 0, 1)).collect();
    let rig = with_journaled(8, &pieces);
    let opened = TestFs::open(rig.stores(&[]), Access::ReadOnly);
    let error = opened.err().expect("it is refused");
    assert!(error.to_string().contains("more stripes"), "{error}");
}

fn journal_lens(rig: &Rig) -> Vec<u64> {
    let lens = rig.disks.iter().flat_map(|disk| {
        let store = disk.open();
        files::JOURNALS.map(|name| store.open_len(name).unwrap())
    });
    lens.collect()
}

/// A change that does not fit the journal is in the index once it is acknowledged.
#[test]
fn commits_of_any_length_are_durable_and_leave_the_journal_as_long_as_it_was() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let before = journal_lens(&rig);
    let attribute = |number| key::xattr(Ino(number), b"user.large");
    let mut last = 0;
    for of_commit in [1, 200, 1000, 10, 700, 300] {
        fs.write(last, &pattern(last, 900)).unwrap();
        for _ in 0..of_commit {
            let mut batch = Batch::default();
            batch.put(attribute(last), pattern(last, 3000));
            fs.transactions.apply(batch).unwrap();
            last += 1;
        }
        fs.sync().unwrap();
        assert_eq!(journal_lens(&rig), before, "after {last}");
        let crashed = rig.fork();
        crashed.cut(CutPolicy::Drop);
        let again = crashed.open(&[]);
        for number in 0..last {
            let found = again.transactions.get(&attribute(number)).unwrap();
            assert!(found.is_some_and(|value| *value == pattern(number, 3000)));
        }
        assert_eq!(
            again.read(last - of_commit).unwrap(),
            pattern(last - of_commit, 900)
        );
    }
}
