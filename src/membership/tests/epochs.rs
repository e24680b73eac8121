use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::format::superblock::MAX_HISTORY;
use crate::membership::{Belongings, JoinAs};
use crate::store::{CallKind, Effect, Fault, Scope};

#[test]
fn a_returned_member_is_stale_until_it_is_admitted() {
    let disks = Disks::volume(2, 1, 3);
    drop(disks.open([0, 1]).expect("enough members"));
    for _ in 0..2 {
        // Not admitted the first time, as after a crash: still stale the second time.
        let members = disks.open(0..3).expect("all members are there");
        assert_eq!(members.membership().epoch(), Epoch(2));
        assert_eq!(members.membership().live(), indices(0..3));
        assert_eq!(members.current_at_open(), indices([0, 1]));
        assert_eq!(members.epochs().stale(), indices([2]));
        let status = &members.status()[2];
        assert_eq!(status.state, MemberState::Online);
        let reason = AbsenceReason::Stale { read_only: false };
        assert_eq!(status.reason, Some(reason));
    }
    let members = disks.open(0..3).expect("all members are there");
    members.epochs().admit_stale().expect("nothing fails");
    assert_eq!(members.membership().epoch(), Epoch(3));
    assert_eq!(members.epochs().stale(), []);
    members
        .epochs()
        .admit_stale()
        .expect("nothing is left to do");
    assert_eq!(members.membership().epoch(), Epoch(3));
    drop(members);
    disks.cut(CutPolicy::Drop); // it was durable
    let members = disks.open(0..3).expect("all members are there");
    assert_eq!(members.membership().epoch(), Epoch(3));
    assert_eq!(members.current_at_open(), indices(0..3));
}

#[test]
fn two_branches_mounted_apart_are_refused_together_and_open_alone() {
    let disks = Disks::volume(1, 1, 2);
    drop(disks.open([0]).expect("one is enough"));
    drop(disks.open([1]).expect("one is enough"));
    for order in [[0, 1], [1, 0]] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let opened = Members::open(disks.stores(order), access, inline());
            let error = opened.expect_err("both were written to");
            let MembersError::SplitBrain { branches } = &error else {
                panic!("{error}");
            };
            let paths: Vec<_> = branches
                .iter()
                .flat_map(|branch| branch.paths.clone())
                .collect();
            assert_eq!(
                paths.iter().map(String::as_str).collect::<BTreeSet<_>>(),
                ["/d0", "/d1"].into()
            );
            let Some(Remedy::Choice(DirectoryChoice::OnePart { kept, others })) = error.remedy()
            else {
                panic!("{error:?}");
            };
            let parts: BTreeSet<_> = [kept, others].concat().into_iter().collect();
            assert_eq!(parts, ["/d0", "/d1"].map(str::to_owned).into());
        }
    }
    for alone in [0, 1] {
        disks.open([alone]).expect("either branch is whole");
    }
    // The way out: one branch is emptied, and the other goes on.
    disks.directories[1].wipe();
    let members = disks
        .open([0, 1])
        .expect("the empty branch counts as missing");
    assert_eq!(members.membership().live(), indices([0]));
    assert_eq!(members.unusable()[0].path, "/d1");
}

#[test]
fn branches_of_several_members_are_named_in_full() {
    let disks = Disks::volume(1, 3, 4);
    drop(disks.open([0, 2]).expect("enough members"));
    drop(disks.open([1, 3]).expect("enough members"));
    let error = disks.open(0..4).expect_err("both branches were written to");
    let MembersError::SplitBrain { branches } = error else {
        panic!("{error}");
    };
    let paths: BTreeSet<_> = branches.into_iter().map(|branch| branch.paths).collect();
    let expected = [["/d0", "/d2"], ["/d1", "/d3"]].map(|branch| branch.map(String::from).to_vec());
    assert_eq!(paths, expected.into());
}

#[test]
fn a_member_that_missed_more_epochs_than_are_kept_is_left_out() {
    let disks = Disks::volume(1, 2, 3);
    for missed in 1..=MAX_HISTORY + 1 {
        // Each time member 1 drops out or comes back, an epoch begins; member 2 stays away.
        let members = if missed % 2 == 1 {
            disks.open([0]).expect("one is enough")
        } else {
            disks.open([0, 1]).expect("two are enough")
        };
        members.epochs().admit_stale().expect("nothing fails");
        assert_eq!(members.membership().epoch(), Epoch(1 + missed as u64));
        drop(members);
        let members = Members::open(disks.stores(0..3), Access::ReadOnly, inline());
        let members = members.expect("two are enough");
        // The history has the current epoch and 255 before it.
        let forgotten = missed >= MAX_HISTORY;
        assert_eq!(
            members.membership().live().contains(&MemberIndex(2)),
            !forgotten,
            "{missed} missed"
        );
        assert_eq!(
            members.unusable().len(),
            usize::from(forgotten),
            "{missed} missed"
        );
    }
    assert_eq!(disks.block(0).history.len(), MAX_HISTORY);
}

/// Opens random sets of members, and admits the stale ones or not. Compares with a model in which each member carries
/// the set of all epochs that it has been in or has learned of.
#[test]
fn members_are_split_stale_or_current_as_their_past_says() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(2..6);
        let disks = Disks::volume(1, count - 1, count);
        let mut model = Model::new(count);
        for step in 0..8 {
            let set: BTreeSet<_> = (0..count).filter(|_| random.random_bool(0.6)).collect();
            if set.is_empty() {
                continue;
            }
            let text = format!("seed {seed}, step {step}, members {set:?}");
            let opened = disks.open(set.clone());
            let Some(current) = model.open(&set) else {
                let error = opened.expect_err(&text);
                assert!(
                    matches!(error, MembersError::SplitBrain { .. }),
                    "{text}: {error}"
                );
                continue;
            };
            let members = opened.expect(&text);
            assert_eq!(
                members.current_at_open(),
                indices(current.clone()),
                "{text}"
            );
            let stale = set.difference(&current).copied();
            assert_eq!(members.epochs().stale(), indices(stale), "{text}");
            assert!(
                members.stale_copies().unverified().is_empty(),
                "{text}: none is a copy"
            );
            if current != set && random.random() {
                members.epochs().admit_stale().expect(&text);
                model.begin(&set, &current);
            }
        }
    }
}

/// Epochs are numbered in the order they began anywhere, so that none has the number of another.
struct Model {
    known: Vec<BTreeSet<usize>>,
    memberships: Vec<BTreeSet<usize>>,
}

impl Model {
    fn new(count: usize) -> Self {
        Self {
            known: vec![BTreeSet::from([0]); count],
            memberships: vec![(0..count).collect()],
        }
    }

    /// Opens a set of members; returns those that are up to date, or `None` if they do not go together.
    fn open(&mut self, set: &BTreeSet<usize>) -> Option<BTreeSet<usize>> {
        let known = |index: &usize| &self.known[*index];
        let tip = set
            .iter()
            .map(known)
            .max_by_key(|known| known.len())?
            .clone();
        if !set.iter().all(|index| known(index).is_subset(&tip)) {
            return None;
        }
        let current: BTreeSet<_> = set.iter().copied().filter(|i| *known(i) == tip).collect();
        let epoch = tip.last().copied()?;
        if current != self.memberships[epoch] {
            self.begin(&current, &current);
        }
        Some(current)
    }

    /// Begins an epoch of `membership`, after the one that `current` are in.
    fn begin(&mut self, membership: &BTreeSet<usize>, current: &BTreeSet<usize>) {
        let mut known = current
            .first()
            .map_or(BTreeSet::new(), |i| self.known[*i].clone());
        known.insert(self.memberships.len());
        self.memberships.push(membership.clone());
        for index in membership {
            self.known[*index].clone_from(&known);
        }
    }
}

/// With more data than parity shards no member goes on from an epoch that others have left already, neither beside them
/// nor later. This holds for all absences before and all crashes.
#[test]
fn with_more_data_than_parity_shards_the_volume_is_never_mounted_apart() {
    let mut opened = 0;
    for seed in 0..600 {
        let mut random = StdRng::seed_from_u64(seed);
        let shapes = [
            (2, 1, 3),
            (2, 1, 5),
            (3, 2, 5),
            (3, 1, 7),
            (4, 2, 6),
            (4, 2, 9),
            (4, 3, 12),
        ];
        let (data, parity, count) = shapes[random.random_range(0..shapes.len())];
        let disks = Disks::volume(data, parity, count);
        let mut last = disks.block(0).head();
        for step in 0..12 {
            let set: BTreeSet<_> = (0..count).filter(|_| random.random_bool(0.7)).collect();
            let text = format!("seed {seed}, step {step}, {data}+{parity}, members {set:?}");
            let members = match disks.open(set) {
                Ok(members) => members,
                Err(MembersError::TooFew { .. } | MembersError::NoDirectory) => continue,
                Err(error) => panic!("{text}: {error}"),
            };
            assert!(
                members.stale_copies().unverified().is_empty(),
                "{text}: none is a copy"
            );
            if random.random() {
                members.epochs().admit_stale().expect(&text);
            }
            opened += 1;
            let some = (0..count).filter(|_| random.random_bool(0.4)).collect();
            for gone in [BTreeSet::new(), some] {
                fail_at_once(&disks, &members, &gone);
                if members.membership().is_failed() {
                    // It went no further than before.
                    break;
                }
                let current = members.membership().live().into_iter().find(|index| {
                    let stale = members.epochs().stale();
                    !stale.contains(index)
                });
                let block = disks.block(usize::from(current.expect(&text).0));
                let text = format!("{text}, {gone:?} lost: {block:?}");
                assert!(block.history.contains(&last), "{text}");
                last = block.head();
            }
        }
    }
    assert!(opened > 1000, "only {opened} times");
}

/// Fails the disks of some members at once, and brings all back afterwards.
fn fail_at_once(disks: &Disks, members: &Members, lost: &BTreeSet<usize>) {
    let fail = |kind| {
        for disk in lost {
            disks.directories[*disk].fail(kind);
        }
    };
    fail(Some(StoreErrorKind::Io));
    members.probe();
    fail(None);
}

/// The absent members can be mounted elsewhere. The returned ones that are not in the epoch yet know of nothing that
/// would keep them from it.
#[test]
fn returned_members_do_not_replace_members_without_which_the_others_could_be_mounted_apart() {
    // Of an epoch of six it takes four to open the volume, so that three are to stay.
    for (lost, goes_on) in [(3..6, true), (2..6, false)] {
        let disks = Disks::volume(4, 2, 9);
        drop(disks.open(0..7).expect("enough members"));
        drop(disks.open(0..6).expect("enough members"));
        let members = disks.open(0..9).expect("all members are there");
        assert_eq!(members.epochs().stale(), indices(6..9));
        fail_at_once(&disks, &members, &lost.clone().collect());
        assert_eq!(
            members.membership().live().len(),
            9 - lost.len(),
            "{lost:?}"
        );
        assert_eq!(members.membership().is_failed(), !goes_on, "{lost:?}");
        let heads: BTreeSet<_> = disks
            .all()
            .into_iter()
            .map(|i| disks.block(i).head())
            .collect();
        drop(members);
        let apart = disks.open(lost.clone());
        if goes_on {
            assert_eq!(disks.block(0).head().epoch, Epoch(4));
            assert!(
                matches!(apart, Err(MembersError::TooFew { .. })),
                "{lost:?}: {apart:?}"
            );
        } else {
            assert!(heads.iter().all(|head| head.epoch <= Epoch(3)), "{heads:?}");
            drop(apart.expect("no branch has gone on without them"));
        }
        let members = disks.open(0..9).expect("there is one history");
        members.epochs().admit_stale().expect("nothing fails");
    }
}

/// A volume of as many members as a stripe has shards survives the loss of any that parity makes up for. They may be
/// lost at once or one after the other.
#[test]
fn as_many_members_as_there_are_parity_shards_can_be_lost_of_a_full_epoch_at_once() {
    for (data, parity) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (4, 2), (4, 3)] {
        let count = data + parity;
        for lost in Disks::blank(data, parity, count).subsets() {
            let disks = Disks::volume(data, parity, count);
            let members = disks.open(0..count).expect("all members are there");
            let text = format!("{data}+{parity}, {lost:?} lost");
            fail_at_once(&disks, &members, &lost);
            assert_eq!(
                members.membership().is_failed(),
                lost.len() > parity,
                "{text}"
            );
        }
    }
}

/// With interrupted epochs, the newest one known to absent members may be one of several.
#[test]
fn an_epoch_that_only_some_have_begun_counts_with_the_one_before() {
    let disks = Disks::volume(4, 2, 9);
    drop(disks.open(0..7).expect("enough members"));
    drop(disks.open(0..6).expect("enough members"));
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..9, &plan)).expect("all members are there");
    assert_eq!(members.epochs().stale(), indices(6..9));
    // All nine begin one, and of the four that fail then no superblock says so.
    for member in 2..6 {
        // The first write is the proposal.
        let write = Scope::MemberKind(member, CallKind::Write);
        plan.add(Fault::at(2, Effect::Eio).of(write));
    }
    let error = members
        .epochs()
        .admit_stale()
        .expect_err("four can go on by themselves");
    let text = "2 members left that were up to date, 3 needed to write";
    assert_eq!(error.to_string(), text);
    assert!(members.membership().is_failed());
    assert_eq!(disks.block(0).head().epoch, Epoch(4));
    drop(members);
    let left = disks.fork().open([0, 1, 6, 7, 8]);
    assert!(matches!(left, Err(MembersError::TooFew { .. })), "{left:?}");
    disks
        .open(2..6)
        .expect("no branch has gone on without them");
}

#[test]
fn returned_members_make_up_for_members_lost_since() {
    let disks = Disks::volume(4, 2, 6);
    drop(disks.open(2..6).expect("enough members"));
    let before: Vec<_> = (0..6).map(|index| disks.block(index)).collect();
    // Half of the epoch: the others may go on elsewhere.
    let error = disks.open([0, 1, 4, 5]).expect_err("too few are current");
    assert!(
        error
            .to_string()
            .starts_with("2 members up to date, 3 needed to mount"),
        "{error}"
    );
    assert!(can_be_read(&error), "{error}");
    let after: Vec<_> = (0..6).map(|index| disks.block(index)).collect();
    assert_eq!(after, before, "what fails changes nothing");

    let members = disks.open([0, 1, 3, 4, 5]).expect("most are current");
    assert_eq!(members.current_at_open(), indices(3..6));
    assert_eq!(members.epochs().stale(), indices([0, 1]));
    members.epochs().admit_stale().expect("nothing fails");
    drop(members);
    assert_eq!(disks.block(0).head(), disks.block(5).head());
    assert_eq!(disks.block(2), before[2], "it is stale from now on");
    let members = disks.open(0..6).expect("one that was away comes back");
    assert_eq!(members.epochs().stale(), indices([2]));
}

/// Returns a volume that has come through some epochs, with all its members, and member 1 as it was before
/// each.
fn with_copies() -> (Disks, Vec<MemDisk>) {
    let disks = Disks::volume(2, 1, 3);
    let mut copies = Vec::new();
    for _ in 0..2 {
        copies.push(disks.directories[1].fork());
        drop(disks.open([0, 1]).expect("enough members"));
        copies.push(disks.directories[1].fork());
        let members = disks.open(0..3).expect("all members are there");
        members.epochs().admit_stale().expect("nothing fails");
        assert!(members.stale_copies().unverified().is_empty());
    }
    (disks, copies)
}

/// It died while the volume was mounted, or was away when it was. In both cases the others know its last state, no
/// matter what happened meanwhile.
#[test]
fn a_stale_copy_of_an_absent_member_is_recognised_when_it_returns() {
    for died_mounted in [true, false] {
        for mounts_without in 0..3 {
            let (disks, copies) = with_copies();
            if died_mounted {
                let members = disks.open(0..3).expect("all members are there");
                members.io().fail(MemberIndex(1), &io_error());
            } else {
                drop(disks.open([0, 2]).expect("enough members"));
            }
            for _ in 0..mounts_without {
                drop(disks.open([0, 2]).expect("enough members"));
            }
            let context =
                format!("died mounted: {died_mounted}, {mounts_without} mounts without it");
            let here = disks.fork().open(0..3).expect("all members are there");
            assert_eq!(here.epochs().stale(), indices([1]), "{context}");
            assert!(
                here.stale_copies().unverified().is_empty(),
                "{context}: it is as it was left"
            );
            for (age, copy) in copies.iter().rev().enumerate() {
                let context = format!("{context}, {age} epochs old");
                let mut disks = disks.fork();
                disks.directories[1] = copy.fork();
                // Not admitted the first time, as after a crash: still known the second time.
                for _ in 0..2 {
                    let members = disks.open(0..3).expect("all members are there");
                    let known: Vec<_> = members.stale_copies().unverified().into_keys().collect();
                    assert_eq!(known, indices([1]), "{context}");
                }
                let members = disks.open([0, 2]).expect("enough members");
                let store = disks.stores([1]).remove(0);
                let joined = members.changes().join(
                    JoinAs::Returning,
                    &store,
                    &Belongings::default(),
                    |_, _| Ok::<_, MembersError>(()),
                );
                joined.expect("it is one of them");
                let known: Vec<_> = members.stale_copies().unverified().into_keys().collect();
                assert_eq!(known, indices([1]), "{context}, taken in");
                members.epochs().admit_stale().expect("nothing fails");
                // From now on it must have what is written to it.
                members.io().fail(MemberIndex(1), &io_error());
                drop(members);
                let members = disks.open(0..3).expect("all members are there");
                assert!(
                    members.stale_copies().unverified().is_empty(),
                    "{context}, admitted"
                );
            }
        }
    }
}
