//! Changing the code of a volume in use: programs go on, and what is there tolerates more losses afterwards.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    CAUCHYFS, Load, Shape, TestVolume, check_large, drop_caches, eventually, must, skip_mounts,
    text, write_large,
};

const LARGE: u64 = 96 << 20;

/// Returns the least losses that any stripe tolerates, by `status`.
fn tolerated(volume: &TestVolume) -> i64 {
    let (status, _) = volume.status();
    let rows = status["redundancy"].as_array().expect("it is counted");
    let losses = rows.iter().map(|row| row["losses_tolerated"].as_i64());
    losses
        .map(|losses| losses.expect("it is a number"))
        .min()
        .expect("there is data")
}

#[test]
fn parity_is_added_under_load_and_one_more_directory_may_die() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 3072, LARGE);
    // The directory for the further shards comes after the mount.
    let added = volume.members[0].with_file_name("added");
    let (code, said) = volume.command(&["member", "add"], &[text(&added)]);
    assert_eq!(code, Some(0), "{said}");
    let load = Load::start(volume.path("load"));
    // Programs keep what they have open, also a file without a name.
    let mut open = File::options()
        .create(true)
        .read(true)
        .write(true)
        .truncate(true)
        .open(volume.path("open"))
        .unwrap();
    open.write_all(b"before, ").unwrap();
    fs::remove_file(volume.path("open")).unwrap();
    load.goes_on();
    let (code, said) = volume.command(&["set", "--parity", "3"], &[]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    load.goes_on();
    open.write_all(b"and after").unwrap();
    open.seek(SeekFrom::Start(0)).unwrap();
    let mut held = String::new();
    open.read_to_string(&mut held).unwrap();
    assert_eq!(held, "before, and after");
    let loaded = load.end();
    let (status, _) = volume.status();
    assert_eq!(status["geometry"]["parity"], 3, "{status}");
    assert_eq!(
        status["codes"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    assert_eq!(tolerated(&volume), 3, "{status}");
    let (_, shown) = volume.command(&["set", "--show"], &[]);
    assert!(shown.contains("new data: 4+3 rs-cauchy"), "{shown}");
    drop(open);
    // A second time, there is nothing to do.
    let (code, said) = volume.command(&["set", "--parity", "3"], &[]);
    assert_eq!(code, Some(0), "{said}");
    for member in [0, 3] {
        volume.delete_member(member);
    }
    eventually("the directory is deleted", || {
        fs::remove_dir_all(&added).is_ok() || !added.exists()
    });
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    loaded.check();
    volume.try_unmount();
    volume.mount_degraded(&[1, 2, 4, 5]);
    check_large(&volume.path("large"), 1, LARGE);
    loaded.check();
    volume.try_unmount();
}

#[test]
fn a_change_that_was_killed_goes_on_at_the_next_mount_and_can_be_redirected() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let mut change = Command::new(CAUCHYFS)
        .args(["set", "--parity", "3", "--rate", "1MiB"])
        .arg(&volume.mountpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    eventually("the change is under way", || {
        let (status, _) = volume.status();
        status["geometry"]["parity"] == 3 && status["rebuild"]["bytes_done"].as_u64() > Some(0)
    });
    let (_, text) = volume.command(&["status"], &[]);
    assert!(
        text.contains("the code is being changed to 4+3 rs-cauchy; "),
        "{text}"
    );
    assert_eq!(tolerated(&volume), 2);
    volume.crash();
    change.wait().unwrap();
    volume.mount();
    check_large(&volume.path("large"), 1, LARGE);
    eventually("the change is complete", || tolerated(&volume) == 3);
    // Fewer data shards: all is rewritten, and then one of three parity shards is given up.
    for (words, geometry) in [
        (["--data", "2"], [2, 3]),
        (["--parity", "1"], [2, 1]),
        (["--code", "rs-fft"], [2, 1]),
    ] {
        let (code, said) = volume.command(&[&["set"], &words[..]].concat(), &[]);
        assert_eq!(code, Some(0), "{words:?}: {said}\n{}", volume.log());
        let (status, _) = volume.status();
        assert_eq!(
            status["codes"].as_array().map(Vec::len),
            Some(1),
            "{status}"
        );
        assert_eq!(status["codes"][0]["data"], geometry[0], "{status}");
        assert_eq!(tolerated(&volume), geometry[1], "{status}");
        drop_caches();
        check_large(&volume.path("large"), 1, LARGE);
    }
    volume.delete_member(5);
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.try_unmount();
}

#[test]
fn a_change_that_cannot_be_is_refused_in_one_line_with_the_remedy() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    write_large(&volume.path("large"), 1, 4 << 20).unwrap();
    for (words, code, expected) in [
        (
            &["--parity", "4"][..],
            1,
            "4+4 needs 8 directories, and 7 are there to stay",
        ),
        (&["--parity", "0"], 1, "0 is not in 1..="),
        (&["--code", "raid6"], 1, "raid6"),
        (
            &["--stripe-unit", "5000"],
            1,
            "--stripe-unit must be a power of two",
        ),
        (&[], 1, "nothing to change"),
        (&["--show", "--parity", "3"], 1, "cannot be used with"),
    ] {
        let (found, said) = volume.command(&[&["set"], words].concat(), &[]);
        assert_eq!(found, Some(code), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    volume.delete_member(2);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let (found, said) = volume.command(&["set", "--parity", "1"], &[]);
    assert_eq!(found, Some(2), "{said}");
    assert!(said.contains("away: member 2"), "{said}");
    let (status, _) = volume.status();
    assert_eq!(status["geometry"]["parity"], 2, "{status}");
    volume.try_unmount();
}

/// Counts the stripes of a file.
fn stripes_of(volume: &TestVolume, name: &str) -> u64 {
    let said = must(CAUCHYFS, &["usage", "--json", text(&volume.path(name))]);
    let document: Value = serde_json::from_str(&said).expect("it prints JSON");
    document["stripes"].as_u64().expect("it is a number")
}

/// Files that were written before it get new stripes, and all places that show the code show the unit in force.
#[test]
fn another_stripe_unit_is_shown_and_the_data_that_is_there_gets_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 1024, 4 << 20);
    let before = stripes_of(&volume, "large");
    let (code, said) = volume.command(&["set", "--stripe-unit", "64KiB"], &[]);
    assert_eq!(code, Some(0), "{said}");
    for words in [
        "a unit of 64.0 KiB from now on, in place of 256.0 KiB",
        "data with another unit is rewritten",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let after = stripes_of(&volume, "large");
    assert!(before < 16 && after >= 16, "{before}, then {after}");
    let (code, said) = volume.command(&["set", "--stripe-unit", "64KiB"], &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("no data that is there had to be changed"),
        "{said}"
    );
    assert_eq!(stripes_of(&volume, "large"), after);
    let check = || {
        let (status, _) = volume.status();
        assert_eq!(status["geometry"]["stripe_unit_bytes"], 65_536, "{status}");
        let (_, said) = volume.command(&["status"], &[]);
        assert!(
            said.contains("4+2 rs-cauchy, stripe unit 64.0 KiB"),
            "{said}"
        );
        let (_, said) = volume.command(&["set", "--show"], &[]);
        assert!(
            said.contains("new data: 4+2 rs-cauchy, stripe unit 64.0 KiB"),
            "{said}"
        );
    };
    check();
    volume.remount();
    check();
    check_large(&volume.path("large"), 1, 4 << 20);
    volume.try_unmount();
}

#[test]
fn a_change_of_the_stripe_unit_that_was_killed_goes_on_and_can_be_redirected() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 3072, LARGE);
    let before = stripes_of(&volume, "large");
    let mut change = Command::new(CAUCHYFS)
        .args(["set", "--stripe-unit", "64KiB", "--rate", "4MiB"])
        .arg(&volume.mountpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let units = || {
        let (status, _) = volume.status();
        let codes = status["codes"].as_array().expect("it is counted").clone();
        let units = codes.iter().map(|code| code["stripe_unit_bytes"].as_u64());
        units.collect::<Vec<_>>()
    };
    let both = [Some(65_536), Some(262_144)];
    eventually("some data is rewritten", || units() == both);
    let (_, said) = volume.command(&["status"], &[]);
    for words in [
        "the code is being changed to 4+2 rs-cauchy with a stripe unit of 64.0 KiB; ",
        "in 4+2 rs-cauchy with a stripe unit of 256.0 KiB",
        "at most 4.0 MiB a second",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(tolerated(&volume), 2);
    volume.crash();
    change.wait().unwrap();
    volume.mount();
    check_large(&volume.path("large"), 1, LARGE);
    eventually("it goes on", || {
        let (status, _) = volume.status();
        status["rebuild"]["state"] == "running" && status["rebuild"]["bytes_per_second"] == 4 << 20
    });
    assert_eq!(units(), both);
    // Another unit during the work counts for what moved and for the rest, and an order without a limit completes it.
    let (code, said) = volume.command(&["set", "--stripe-unit", "128KiB"], &[]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert_eq!(units(), [None]);
    let now = stripes_of(&volume, "large");
    assert!(
        now >= 2 * before && now < 3 * before,
        "{before}, then {now}"
    );
    for member in [0, 3] {
        volume.delete_member(member);
    }
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.try_unmount();
}

/// An order that lasts keeps the limit that its user gave it.
#[test]
fn a_change_keeps_its_rate_after_a_crash_and_after_an_unmount_and_status_shows_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let mut child = Command::new(CAUCHYFS)
        .args(["set", "--parity", "3", "--rate", "1MiB"])
        .arg(&volume.mountpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program is there");
    let is_limited = || {
        let (status, _) = volume.status();
        let rebuild = &status["rebuild"];
        rebuild["state"] == "running" && rebuild["bytes_per_second"] == 1 << 20
    };
    let check = || {
        eventually("it goes on at its rate", is_limited);
        let (_, said) = volume.command(&["status"], &[]);
        assert!(said.contains("at most 1.0 MiB a second"), "{said}");
    };
    check();
    volume.crash();
    child.wait().expect("it ends");
    volume.mount();
    check();
    volume.remount();
    check();
    // It would take a minute and a half.
    let (code, said) = volume.command(&["rebuild"], &[]);
    assert_eq!(code, Some(0), "{said}");
    let (status, _) = volume.status();
    assert_eq!(status["rebuild"]["bytes_per_second"], Value::Null);
    assert_eq!(tolerated(&volume), 3, "{status}");
    volume.try_unmount();
}
