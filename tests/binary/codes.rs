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

/// Where it has the parameters of that code, and the bits of incompatible features.
const PARAMETERS_OFFSET: usize = 106;
const FEATURES_OFFSET: usize = 24;

/// A volume that survives the loss of any three directories, and of most sets of four.
const RANDOM: Shape = Shape {
    data: 4,
    parity: 4,
    members: 8,
    segment: "4MiB",
    unit: "128KiB",
    code: "random-gf2",
};

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

#[test]
fn a_volume_of_random_rows_survives_what_create_says_and_gets_it_back() {
    if skip_mounts() {
        return;
    }
    let mut volume = TestVolume::with_large(RANDOM, 1024, LARGE);
    for member in &volume.members {
        let superblock = fs::read(member.join("superblock")).expect("it is there");
        assert_eq!(superblock[CODE_OFFSET..][..2], [3, 0], "{member:?}");
        assert_eq!(superblock[PARAMETERS_OFFSET], 3, "{member:?}");
        assert_eq!(superblock[FEATURES_OFFSET] & 32, 32, "{member:?}");
    }
    volume.assert_full_redundancy();
    let (status, _) = volume.status();
    assert_eq!(status["geometry"]["survives"]["losses"], 3, "{status}");
    for lost in [1, 2, 6] {
        volume.delete_member(lost);
    }
    eventually("the losses are seen", || volume.members_in("missing") == 3);
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    let (status, _) = volume.status();
    assert_eq!(status["redundancy"][0]["losses_tolerated"], 0, "{status}");
    volume.unmount();
    let left = [0, 3, 4, 5, 7];
    volume.assert_intact_in(&left, 0);
    let out = volume.home.join("out");
    let members = left.map(|index| text(&volume.members[index]));
    let extract = [&["extract"][..], &members, &["--to", text(&out)]].concat();
    let output = run(CAUCHYFS, &extract);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    check_large(&out.join("large"), 1, LARGE);
    volume.mount_degraded(&left);
    for lost in [1, 2, 6] {
        let new = volume.members[0].with_file_name(format!("new{lost}"));
        let (code, said) = volume.command(&["member", "replace"], &[&lost.to_string(), text(&new)]);
        assert!(matches!(code, Some(0 | 3)), "{said}");
        volume.members[lost] = new;
    }
    eventually("all is rebuilt", || volume.status().1 == 0);
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
    // And three others may be lost now.
    volume.mount_degraded(&[1, 2, 4, 6, 7]);
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

#[test]
fn create_says_what_random_rows_survive_and_refuses_shapes_without_such_rows() {
    let home = tempfile::tempdir().expect("there is room");
    let create = |name: &str, data: usize, parity: usize| {
        let directories = (0..data + parity).map(|n| home.path().join(format!("{name}{n}")));
        let directories: Vec<_> = directories.collect();
        let (data, parity) = (data.to_string(), parity.to_string());
        let mut arguments = vec!["create", "--data", &data, "--parity", &parity];
        arguments.extend(["--code", "random-gf2", "--stripe-unit", "4KiB"]);
        arguments.extend(["--segment-size", "1MiB"]);
        arguments.extend(directories.iter().map(|directory| text(directory)));
        let output = run(CAUCHYFS, &arguments);
        let told = String::from_utf8(output.stderr).expect("it is text");
        let made = directories.iter().any(|directory| directory.exists());
        (output.status.code(), told, made)
    };
    let (code, told, _) = create("even", 4, 4);
    assert_eq!(code, Some(0), "{told}");
    let survives = "this volume survives any 3 losses, and 80 % of the sets of 4";
    assert!(told.contains(survives), "{told}");
    for (data, parity, hint) in [
        (4, 1, "2 to 16 parity shards"),
        (1, 4, "at least 2 data shards"),
        (60, 5, "more than 64 shards"),
        (60, 2, "survives any loss"),
    ] {
        let (code, told, made) = create("bad", data, parity);
        assert_eq!(code, Some(1), "{data}+{parity}: {told}");
        assert!(told.contains(hint), "{data}+{parity}: {told}");
        assert!(told.contains("rs-cauchy"), "{data}+{parity}: {told}");
        assert_eq!(told.lines().count(), 2, "{data}+{parity}: {told}");
        assert!(!made, "{data}+{parity}");
    }
}
