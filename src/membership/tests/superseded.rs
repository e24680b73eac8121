use super::*;
use crate::format::superblock::MAX_HISTORY;

fn survey(disks: &Disks, which: impl IntoIterator<Item = usize>) -> Arc<Members> {
    Members::survey(disks.stores(which), inline()).expect("they belong together")
}

fn ahead(members: &Members, disks: &Disks, others: [usize; 2]) -> Option<Vec<String>> {
    match members.epochs().check_not_superseded(&disks.stores(others)) {
        Ok(()) => None,
        Err(MembersError::Superseded { branch }) => Some(branch.paths),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_superseded_half_is_recognised_before_it_parts_the_volume() {
    let disks = Disks::volume(2, 2, 4);
    let second = survey(&disks, [2, 3]);
    assert_eq!(second.epochs().may_have_gone_on(), ["/d0", "/d1"]);
    assert_eq!(
        ahead(&second, &disks, [0, 1]),
        None,
        "no branch has gone on"
    );
    drop(disks.open([0, 1]).expect("enough members"));
    let second = survey(&disks, [2, 3]);
    assert_eq!(second.epochs().may_have_gone_on(), ["/d0", "/d1"]);
    let both = ["/d0", "/d1"].map(String::from).to_vec();
    assert_eq!(ahead(&second, &disks, [0, 1]), Some(both));
    let first = survey(&disks, [0, 1]);
    assert!(
        first.epochs().may_have_gone_on().is_empty(),
        "they were left behind, and go nowhere alone but where they are parted"
    );
    assert_eq!(ahead(&first, &disks, [2, 3]), None);
    // If the volume is parted already, either branch is the owner's choice.
    drop(disks.open([2, 3]).expect("enough members"));
    for (here, others) in [([0, 1], [2, 3]), ([2, 3], [0, 1])] {
        assert_eq!(ahead(&survey(&disks, here), &disks, others), None);
    }
    let other = Disks::volume(2, 2, 4);
    drop(other.open([0, 1]).expect("enough members"));
    assert_eq!(ahead(&second, &other, [0, 1]), None, "another volume");
}

#[test]
fn a_superseded_half_is_recognised_after_any_number_of_epochs() {
    let disks = Disks::volume(2, 3, 5);
    for epochs in 1..=MAX_HISTORY + 2 {
        // Each time member 2 drops out or comes back, an epoch begins.
        let present: &[usize] = if epochs % 2 == 1 { &[0, 1] } else { &[0, 1, 2] };
        let members = disks.open(present.iter().copied());
        let members = members.expect("enough members");
        members.epochs().admit_stale().expect("nothing fails");
        drop(members);
        let behind = survey(&disks, [3, 4]);
        let told = ahead(&behind, &disks, [0, 1]);
        let both = ["/d0", "/d1"].map(String::from).to_vec();
        assert_eq!(told, Some(both), "{epochs} epochs ahead");
    }
    assert_eq!(disks.block(0).history.len(), MAX_HISTORY);
}

#[test]
fn with_more_data_than_parity_shards_no_absent_member_can_have_gone_on() {
    let disks = Disks::volume(4, 2, 6);
    for left_out in 0..5 {
        let members = survey(&disks, [0, 1, 2, 3].map(|index| index + left_out / 2));
        assert!(members.epochs().may_have_gone_on().is_empty());
    }
}

/// Those that have an epoch from its proposal alone are not behind those that have begun it.
#[test]
fn a_power_cut_between_superblocks_supersedes_no_member() {
    let start = Disks::volume(1, 2, 3);
    super::cuts::cut_everywhere(
        &start,
        &[0, 1],
        |_| (),
        |disks, _, text| {
            for (here, other) in [(0, 1), (1, 0)] {
                let members = survey(disks, [here]);
                let checked = members
                    .epochs()
                    .check_not_superseded(&disks.stores([other]));
                assert!(checked.is_ok(), "{text}: {checked:?}");
            }
        },
    );
}
