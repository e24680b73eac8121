//! Losing directories, and having what was on them rebuilt.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::{
    CAUCHYFS, Load, Shape, TestVolume, check_large, drop_caches, eventually, run, segment_files,
    skip_mounts, text, write_large,
};

/// Two directories more than a stripe needs.
const SPACIOUS: Shape = Shape {
    members: 8,
    ..Shape::FOUR_TWO
};

const LARGE: u64 = 160 << 20;

fn rebuild(volume: &TestVolume, options: &[&str]) -> Output {
    let mut arguments = vec!["rebuild"];
    arguments.extend(options);
    arguments.push(text(&volume.mountpoint));
    run(CAUCHYFS, &arguments)
}

fn start_rebuild(volume: &TestVolume, options: &[&str]) -> Child {
    Command::new(CAUCHYFS)
        .arg("rebuild")
        .args(options)
        .arg(&volume.mountpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs")
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn shards_of_a_lost_directory_are_rebuilt_onto_the_others_under_load() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(SPACIOUS, 3072, LARGE);
    let load = Load::start(volume.path("load"));
    volume.delete_member(7);
    volume.delete_member(6);
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    let (status, _) = volume.status();
    let used = status["capacity"]["bytes_used"].as_u64();
    assert!(used >= Some(LARGE), "{status}");
    let output = rebuild(&volume, &["--json"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{output:?}\n{}",
        volume.log()
    );
    let said = document(&output);
    assert_eq!(said["state"], "finished", "{said}");
    assert_eq!(said["bytes_left"], 0, "{said}");
    assert!(said["bytes_done"].as_u64() >= Some(LARGE / 4), "{said}");
    assert_eq!(said["redundancy"][0]["losses_tolerated"], 2, "{said}");
    load.goes_on();
    let loaded = load.end();
    volume.assert_full_redundancy();
    let (status, _) = volume.status();
    assert_eq!(status["rebuild"]["state"], "finished", "{status}");
    // Two more may go now: what is left is what a stripe can do without no longer.
    volume.delete_member(5);
    volume.delete_member(4);
    eventually("the losses are seen", || volume.members_in("missing") == 4);
    loaded.check();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact_in(&[0, 1, 2, 3], 0);
}

#[test]
fn a_second_order_to_rebuild_reports_the_work_of_the_first() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(SPACIOUS, 3072, LARGE);
    volume.delete_member(7);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let first = Command::new(CAUCHYFS)
        .args(["rebuild", "--json", "--rate", "8MiB"])
        .arg(&volume.mountpoint)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    eventually("it is under way", || {
        let (status, _) = volume.status();
        status["rebuild"]["bytes_done"].as_u64() > Some(0)
    });
    let second = rebuild(&volume, &["--json"]);
    let first = first.wait_with_output().expect("it ends");
    let bytes = |output: &Output| document(output)["bytes_done"].as_u64();
    assert_eq!(second.status.code(), Some(0), "{second:?}");
    assert!(bytes(&first) >= Some(LARGE / 8), "{first:?}");
    assert_eq!(bytes(&second), bytes(&first), "{second:?}");
    volume.assert_full_redundancy();
    volume.unmount();
}

/// There is no second order, and no wait for the time that a directory is given to come back.
#[test]
fn a_rebuild_that_was_ordered_goes_on_by_itself_after_a_crash() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        segment: "2MiB",
        ..SPACIOUS
    };
    let volume = TestVolume::with_large(shape, 3072, LARGE);
    volume.delete_member(7);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let mut command = start_rebuild(&volume, &["--rate", "2MiB"]);
    eventually("it is under way", || {
        volume.status().0["rebuild"]["bytes_done"].as_u64() > Some(0)
    });
    volume.crash();
    assert_ne!(command.wait().expect("it ends").code(), Some(0));
    let kept = [0, 1, 2, 3, 4, 5, 6];
    volume.try_mount(&kept, &["--rebuild-after", "1h"]);
    eventually("all of it is made up for", || {
        let (status, _) = volume.status();
        let rows = status["redundancy"].as_array().expect("rows are listed");
        rows.len() == 1 && rows[0]["losses_tolerated"] == 2
    });
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact_in(&kept, 2);
}

#[test]
fn a_rebuild_that_was_killed_goes_on_and_redoes_little() {
    /// Bytes that a segment has on each of its members.
    const FILE: u64 = 2 << 20;
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        segment: "2MiB",
        ..SPACIOUS
    };
    let volume = TestVolume::with_large(shape, 3072, LARGE);
    volume.unmount();
    let kept = [0, 1, 2, 3, 4, 5, 6];
    fs::remove_dir_all(&volume.members[7]).unwrap();
    volume.mount_degraded(&kept);
    let mut command = start_rebuild(&volume, &["--rate", "2MiB"]);
    let mut lacked = 0;
    let mut done = 0;
    eventually("more than one segment is rebuilt", || {
        let (status, _) = volume.status();
        let bytes = |name: &str| status["rebuild"][name].as_u64().expect("bytes are told");
        (done, lacked) = (
            bytes("bytes_done"),
            bytes("bytes_done") + bytes("bytes_left"),
        );
        status["rebuild"]["state"] == "running" && done > 2 * FILE
    });
    volume.crash();
    assert_ne!(command.wait().unwrap().code(), Some(0));
    volume.mount_degraded(&kept);
    let output = rebuild(&volume, &["--json"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{output:?}\n{}",
        volume.log()
    );
    let said = document(&output);
    let rest = said["bytes_done"].as_u64().expect("bytes are told");
    // Of what was done before, what was written of one segment is done again.
    assert!(
        rest > 0 && done + rest <= lacked + FILE,
        "{done} of {lacked}, then {said}"
    );
    assert_eq!(said["redundancy"][0]["losses_tolerated"], 2, "{said}");
    volume.assert_full_redundancy();
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact_in(&kept, 2);
}

#[test]
fn segment_files_that_vanish_are_made_again_byte_for_byte() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 2048, LARGE / 2);
    volume.unmount();
    let before = segment_files(&volume.members[3]);
    assert!(before.len() > 1);
    fs::remove_dir_all(volume.members[3].join("segments")).unwrap();
    volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    let output = rebuild(&volume, &[]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{output:?}\n{}",
        volume.log()
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("rebuilt in"), "{said}");
    assert!(
        said.contains("survive the loss of 2 more members"),
        "{said}"
    );
    volume.assert_full_redundancy();
    volume.unmount();
    let after = segment_files(&volume.members[3]);
    assert!(before.keys().eq(after.keys()), "{:?}", after.keys());
    for (name, bytes) in &before {
        assert!(after[name] == *bytes, "{name} has other bytes");
    }
    volume.assert_intact();
}

#[test]
fn without_another_directory_a_rebuild_says_that_it_is_incomplete() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 1024, LARGE / 4);
    volume.delete_member(2);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let output = rebuild(&volume, &["--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = document(&output);
    assert!(said["bytes_waiting"].as_u64() > Some(0), "{said}");
    assert_eq!(said["redundancy"][0]["losses_tolerated"], 1, "{said}");
    volume.unmount();
    let output = rebuild(&volume, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    volume.try_mount(&[0, 1, 3, 4, 5], &["-o", "ro"]);
    let output = rebuild(&volume, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    volume.unmount();
}

#[test]
fn a_member_that_is_back_is_brought_up_to_date_by_itself() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    write_large(&volume.path("old"), 1, LARGE / 8).unwrap();
    volume.unmount();
    volume.mount_degraded(&[0, 1, 2, 3, 5]);
    write_large(&volume.path("new"), 2, LARGE / 8).unwrap();
    volume.unmount();
    volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    eventually("it has what it missed", || volume.status().1 == 0);
    volume.assert_full_redundancy();
    volume.unmount();
    volume.assert_intact();
}

#[test]
fn shards_of_a_lost_directory_are_rebuilt_after_the_time_that_it_is_given() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SPACIOUS, 2048);
    volume.try_mount(&[0, 1, 2, 3, 4, 5, 6, 7], &["--rebuild-after", "1s"]);
    write_large(&volume.path("large"), 1, LARGE / 4).unwrap();
    volume.delete_member(5);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    eventually("it is made up for", || {
        let (status, _) = volume.status();
        let rows = status["redundancy"].as_array().expect("rows are listed");
        rows.len() == 1 && rows[0]["losses_tolerated"] == 2
    });
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE / 4);
    volume.unmount();
    volume.assert_intact_in(&[0, 1, 2, 3, 4, 6, 7], 2);
}

/// At this rate neither would end in a day.
#[test]
fn a_rate_limit_slows_work_without_an_order_and_not_work_by_order() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SPACIOUS, 2048);
    let slowly = ["--rebuild-after", "1s", "--background-rate", "1K"];
    let slowly = slowly.into_iter().chain(["--scrub-interval", "1d"]);
    volume.try_mount(&[0, 1, 2, 3, 4, 5, 6, 7], &slowly.collect::<Vec<_>>());
    write_large(&volume.path("large"), 1, LARGE / 4).unwrap();
    volume.delete_member(5);
    let state_of = |what: &str| volume.status().0[what]["state"].clone();
    eventually("both have begun", || {
        state_of("rebuild") == "running" && state_of("scrub") == "running"
    });
    write_large(&volume.path("other"), 2, LARGE / 8).unwrap();
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE / 4);
    assert_eq!(state_of("rebuild"), "running");
    assert_eq!(state_of("scrub"), "running");
    let output = rebuild(&volume, &["--json"]);
    assert_eq!(document(&output)["state"], "finished", "{output:?}");
    volume.assert_full_redundancy();
    assert_eq!(state_of("scrub"), "running");
    let output = run(CAUCHYFS, &["scrub", "--json", text(&volume.mountpoint)]);
    assert_eq!(document(&output)["state"], "finished", "{output:?}");
    volume.unmount();
    volume.assert_intact_in(&[0, 1, 2, 3, 4, 6, 7], 2);
}

/// The data of a replaced directory is on the others by then: only the same command again gives the new one its
/// share.
#[test]
fn a_replacement_that_was_cut_off_is_seen_through_by_the_same_command_after_a_mount_without_it() {
    if skip_mounts() {
        return;
    }
    let held = |member: &Path| fs::read_dir(member.join("segments")).map_or(0, Iterator::count);
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 2048, LARGE);
    volume.delete_member(1);
    eventually("the loss is noticed", || volume.members_in("missing") == 1);
    let new = volume.home.join("new");
    let replace = ["member", "replace", "--rate", "4KiB"];
    let replace = [&replace[..], &[text(&volume.mountpoint), "1", text(&new)]].concat();
    let mut cut_off = Command::new(CAUCHYFS)
        .args(&replace)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    eventually("it is taken in", || volume.members_in("missing") == 0);
    cut_off.kill().expect("it is ours");
    cut_off.wait().expect("it is ours");
    volume.unmount();
    volume.mount_degraded(&[0, 2, 3, 4, 5, 6]);
    let output = rebuild(&volume, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    volume.unmount();

    let mut all: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    all[1] = text(&new);
    let log = volume.home.join("log");
    let mount = ["mount", "--log-file", text(&log)];
    let output = run(
        CAUCHYFS,
        &[&mount[..], &all, &[text(&volume.mountpoint)]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(held(&new), 0, "what it was to have is on the others");
    let replace = [
        "member",
        "replace",
        text(&volume.mountpoint),
        "1",
        text(&new),
    ];
    let output = run(CAUCHYFS, &replace);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let fewest = volume.members[2..].iter().map(|member| held(member)).min();
    assert!(held(&new) + 2 > fewest.unwrap(), "it has as much");
    volume.assert_healthy();
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}
