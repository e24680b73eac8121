//! Volumes with other codes than the usual one.

use std::fs;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, eventually, run, said, skip_mounts, text,
};

/// As many parities as data shards, and a directory for each.
const EIGHT_EIGHT: Shape = Shape {
    data: 8,
    parity: 8,
    members: 16,
    segment: "4MiB",
    unit: "128KiB",
    code: "rs-fft",
};

/// Where a superblock has the number of its code.
const CODE_OFFSET: usize = 66;

const LARGE: u64 = 40 << 20;

#[test]
fn a_volume_of_transforms_keeps_all_bytes_without_as_many_members_as_it_has_parities() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(EIGHT_EIGHT, 1024, LARGE);
    for member in &volume.members {
        let superblock = fs::read(member.join("superblock")).expect("it is there");
        assert_eq!(superblock[CODE_OFFSET..][..2], [2, 0], "{member:?}");
    }
    volume.assert_full_redundancy();
    // Of either kind of shard, since stripes begin at all members in turn.
    for lost in [1, 2, 5, 6, 9, 11, 14, 15] {
        volume.delete_member(lost);
    }
    eventually("the losses are seen", || volume.members_in("missing") == 8);
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    let left = [0, 3, 4, 7, 8, 10, 12, 13];
    volume.assert_intact_in(&left, 0);
    let out = volume.home.join("out");
    let members = left.map(|index| text(&volume.members[index]));
    let extract = [&["extract"][..], &members, &["--to", text(&out)]].concat();
    let output = run(CAUCHYFS, &extract);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    check_large(&out.join("large"), 1, LARGE);
    volume.mount_degraded(&left);
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

#[test]
fn create_proposes_the_code_that_is_faster_with_many_parities() {
    let home = tempfile::tempdir().expect("there is room");
    let create = |name: &str, parity: usize, options: &[&str]| {
        let directories = (0..=parity).map(|number| home.path().join(format!("{name}{number}")));
        let directories: Vec<_> = directories.collect();
        let parity = parity.to_string();
        let mut arguments = vec!["create", "--data", "1", "--parity", &parity];
        arguments.extend(options);
        arguments.extend(directories.iter().map(|directory| text(directory)));
        let output = run(CAUCHYFS, &arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).expect("it is text")
    };
    let small = ["--stripe-unit", "4KiB", "--segment-size", "1MiB"];
    let with_fft = [&small[..], &["--code", "rs-fft"]].concat();
    assert!(create("many", 8, &small).contains("--code rs-fft"));
    assert!(!create("few", 7, &small).contains("rs-fft"));
    assert!(!create("done", 8, &with_fft).contains("rs-fft"));
}
