use super::*;

const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 2),
    (1, 1, 3),
    (1, 2, 3),
    (2, 1, 3),
    (2, 1, 5),
    (2, 2, 4),
    (3, 1, 6),
    (4, 2, 6),
    (2, 3, 7),
];

#[test]
fn every_subset_of_the_members_opens_exactly_if_it_suffices() {
    for (data, parity, count) in SHAPES {
        let volume = Disks::volume(data, parity, count);
        for set in volume.subsets() {
            let disks = volume.fork();
            let opened = disks.open(set.clone());
            let text = format!("{data}+{parity} of {count}, {set:?}: {opened:?}");
            if !disks.suffice(&set) {
                let error = opened.expect_err(&text);
                assert!(error.remedy().is_some(), "{text}");
                match error {
                    MembersError::NoDirectory => assert!(set.is_empty(), "{text}"),
                    MembersError::TooFew {
                        found,
                        needed,
                        missing,
                        ..
                    } => {
                        assert_eq!((found, needed), (set.len(), count - parity), "{text}");
                        let gone: Vec<_> = missing.iter().map(|absent| absent.index).collect();
                        assert_eq!(
                            gone,
                            indices(disks.all().difference(&set).copied()),
                            "{text}"
                        );
                    }
                    _ => panic!("{text}"),
                }
                continue;
            }
            let members = opened.expect(&text);
            assert_eq!(members.membership().live(), indices(set.clone()), "{text}");
            assert_eq!(members.current_at_open(), indices(set.clone()), "{text}");
            assert_eq!(members.epochs().stale(), [], "{text}");
            assert_eq!(members.membership().count(), count, "{text}");
            let raised = u64::from(set.len() < count);
            assert_eq!(members.membership().epoch(), Epoch(1 + raised), "{text}");
            for (index, status) in members.status().iter().enumerate() {
                let online = status.state == MemberState::Online;
                assert_eq!(online, set.contains(&index), "{text}");
                assert_eq!(status.reason.is_none(), online, "{text}");
                assert_eq!(status.path, format!("/d{index}"), "{text}");
            }
        }
    }
}

#[test]
fn the_order_of_directories_does_not_matter() {
    let disks = Disks::volume(2, 1, 4);
    for turn in 0..4 {
        for backwards in [false, true] {
            let mut order: Vec<_> = disks.all().into_iter().collect();
            order.rotate_left(turn);
            if backwards {
                order.reverse();
            }
            let members = disks.open(order.clone()).expect("all members are there");
            for index in indices(disks.all()) {
                let store = members.membership().store(index).expect("it is up");
                assert_eq!(store.label(), format!("/d{index}"), "order {order:?}");
            }
        }
    }
}

#[test]
fn volumes_of_any_number_of_members_open() {
    for count in [2, 3, 20, 64, 255, 256] {
        let disks = Disks::volume(1, 1, count);
        let members = disks.open(disks.all()).expect("all members are there");
        assert_eq!(members.membership().live().len(), count);
        drop(members);
        let members = disks.open(1..count).expect("one may be missing");
        assert_eq!(members.membership().live().len(), count - 1);
    }
    for (data, parity) in [(64, 16), (200, 55), (1, 254)] {
        let disks = Disks::volume(data, parity, data + parity);
        let members = disks
            .open(parity..data + parity)
            .expect("data shards are enough");
        assert_eq!(
            members.shape().geometry().to_string(),
            format!("{data}+{parity}")
        );
    }
}

#[test]
fn the_options_of_creation_are_found_at_opening() {
    let disks = Disks::blank(2, 1, 3);
    let options = CreateOptions {
        unit_bytes: 8192,
        segment_bytes: 81920,
        label: "photos äöü".into(),
        ..disks.options()
    };
    let volume = Members::create(&disks.stores(0..3), &options).expect("blank disks");
    disks.cut(CutPolicy::Drop); // it was durable
    let members = disks.open(0..3).expect("all members are there");
    assert_eq!(members.shape().volume_id(), volume);
    assert_eq!(members.shape().label(), options.label);
    assert_eq!(members.shape().geometry(), options.geometry);
    assert_eq!(members.shape().code(), options.code);
    assert_eq!(members.shape().unit_bytes(), options.unit_bytes);
    assert_eq!(members.shape().segment_bytes(), options.segment_bytes);
    assert_eq!(members.access(), Access::ReadWrite);
}
