//! Branches of a volume that were mounted apart, and meet again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, pattern, skip_mounts};

/// Bytes of the file that is there before a volume is mounted as two branches.
const BOTH: usize = 3_000_000;

/// Everything that lies in a directory.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("the directory is there") {
        let path = entry.expect("the directory is there").path();
        if path.is_dir() {
            found.extend(content(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("it can be read"));
        }
    }
    found
}

fn run(arguments: &[&str], paths: &[&PathBuf]) -> (i32, String) {
    let output = Command::new(CAUCHYFS)
        .args(arguments)
        .args(paths)
        .output()
        .expect("the binary runs");
    let code = output.status.code().expect("it was not killed");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Mounts some of the members alone, with the others out of sight, and writes a file.
fn write_alone(volume: &TestVolume, members: &[usize], name: &str, seed: u64) {
    let others = (0..volume.members.len()).filter(|index| !members.contains(index));
    let others: Vec<&PathBuf> = others.map(|index| &volume.members[index]).collect();
    let aside = |member: &PathBuf| member.with_extension("aside");
    for other in &others {
        fs::rename(other, aside(other)).expect("nobody uses it");
    }
    volume.mount_degraded(members);
    fs::write(volume.path(name), pattern(seed, 300_000)).expect("there is room");
    volume.unmount();
    for other in &others {
        fs::rename(aside(other), other).expect("nobody uses it");
    }
}

/// Makes a volume of 2+2 with a file.
fn two_plus_two() -> TestVolume {
    let shape = Shape {
        data: 2,
        parity: 2,
        members: 4,
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(shape, 800);
    volume.mount();
    fs::write(volume.path("both"), pattern(1, BOTH)).expect("there is room");
    volume.unmount();
    volume
}

/// The same, with another file in each branch, which the other knows nothing of.
fn mounted_apart() -> TestVolume {
    let volume = two_plus_two();
    write_alone(&volume, &[0, 1], "first", 2);
    write_alone(&volume, &[2, 3], "second", 3);
    volume
}

#[test]
fn branches_that_were_mounted_apart_are_left_as_they_are_and_the_way_out_is_named() {
    if skip_mounts() {
        return;
    }
    for (data, parity, branches) in [
        (2, 2, [vec![0, 1], vec![2, 3]]),
        (1, 2, [vec![1], vec![0, 2]]),
        (1, 1, [vec![0], vec![1]]),
    ] {
        let shape = Shape {
            data,
            parity,
            members: data + parity,
            ..Shape::FOUR_TWO
        };
        let volume = TestVolume::create(shape, 600);
        volume.mount();
        fs::write(volume.path("both"), pattern(1, 300_000)).expect("there is room");
        volume.unmount();
        for (branch, name) in branches.iter().zip(["first", "second"]) {
            write_alone(&volume, branch, name, 2);
        }
        let before: Vec<_> = volume
            .members
            .iter()
            .map(|member| content(member))
            .collect();
        let all: Vec<&PathBuf> = volume.members.iter().collect();
        let unchanged = |what: &str| {
            for (member, before) in volume.members.iter().zip(&before) {
                assert!(
                    content(member) == *before,
                    "{what} changed {}",
                    member.display()
                );
            }
        };
        let numbers: Vec<usize> = (0..volume.members.len()).collect();
        let mounted = volume.try_mount(&numbers, &[]);
        assert_eq!(mounted.status.code(), Some(2), "{mounted:?}");
        let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(
            lines[0].starts_with("cauchyfs: members were mounted apart"),
            "{said}"
        );
        for member in &volume.members {
            assert!(lines[0].contains(&member.display().to_string()), "{said}");
        }
        for way_out in [
            "mount it alone",
            "cauchyfs extract",
            "cauchyfs member replace",
        ] {
            assert!(lines[1].contains(way_out), "{said}");
        }
        unchanged("the mount");
        for command in ["status", "check"] {
            let (code, said) = run(&[command], &all);
            assert_eq!(code, 2, "{command}: {said}");
            assert!(said.contains("mounted apart"), "{command}: {said}");
            unchanged(command);
        }
        // Each branch is as good as it was: the loser's files are copied out, the winner's are used.
        let losers: Vec<&PathBuf> = branches[1].iter().map(|&at| &volume.members[at]).collect();
        let out = volume.home.join("out");
        let out_text = out.to_str().expect("test paths are text");
        let mut arguments: Vec<&PathBuf> = losers.clone();
        let option = PathBuf::from("--to");
        let target = PathBuf::from(out_text);
        arguments.extend([&option, &target]);
        let (code, said) = run(&["extract"], &arguments);
        assert!(matches!(code, 0 | 3), "{said}");
        assert!(fs::read(out.join("second")).expect("it was copied") == pattern(2, 300_000));
        volume.mount_degraded(&branches[0]);
        assert!(fs::read(volume.path("first")).expect("it is there") == pattern(2, 300_000));
        assert!(fs::read(volume.path("both")).expect("it is there") == pattern(1, 300_000));
        assert!(!volume.path("second").exists());
        volume.unmount();
    }
}

#[test]
fn the_advice_for_two_branches_makes_one_whole_volume_of_them() {
    if skip_mounts() {
        return;
    }
    let volume = mounted_apart();
    let mounted = volume.try_mount(&[0, 1, 2, 3], &[]);
    assert_eq!(mounted.status.code(), Some(2), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(
        said.contains("then empty the other's directories"),
        "{said}"
    );

    volume.mount_degraded(&[0, 1]);
    // The other branch belongs to no mount, also while this one is mounted: as the refusal says, its data is copied
    // out.
    let losers: Vec<&PathBuf> = volume.members[2..].iter().collect();
    let (code, said) = run(&["check"], &losers);
    assert!(matches!(code, 0 | 3), "{said}");
    let (option, out) = (PathBuf::from("--to"), volume.home.join("out"));
    let (code, said) = run(&["extract"], &[&losers[..], &[&option, &out]].concat());
    assert!(matches!(code, 0 | 3), "{said}");
    assert!(fs::read(out.join("second")).expect("it was copied") == pattern(3, 300_000));
    for loser in &volume.members[2..] {
        fs::remove_dir_all(loser).expect("nobody uses it");
        fs::create_dir(loser).expect("its parent is there");
    }
    for (loser, outcome) in volume.members[2..].iter().zip([3, 0]) {
        let arguments = [&volume.mountpoint, loser, loser];
        let (code, said) = run(&["member", "replace"], &arguments);
        assert_eq!(code, outcome, "{said}\n{}", volume.log());
    }
    let (status, code) = volume.status();
    assert_eq!(code, 0, "{status}");
    assert_eq!(status["redundancy"][0]["losses_tolerated"], 2, "{status}");
    volume.unmount();
    let all: Vec<&PathBuf> = volume.members.iter().collect();
    let (code, said) = run(&["check", "--deep"], &all);
    assert_eq!(code, 0, "{said}");
    // The winner's data lie on those that lost, which can do without it from now on.
    volume.mount_degraded(&[2, 3]);
    assert!(fs::read(volume.path("first")).expect("it is there") == pattern(2, 300_000));
    assert!(fs::read(volume.path("both")).expect("it is there") == pattern(1, BOTH));
    assert!(!volume.path("second").exists());
    volume.unmount();
}

/// A mount of the members that a mounted volume is without makes a second branch of it.
#[test]
fn a_second_branch_is_not_mounted_to_be_written_where_the_first_is_mounted() {
    if skip_mounts() {
        return;
    }
    let volume = two_plus_two();
    // Else they are taken in at once.
    let elsewhere = |member: &PathBuf| member.with_extension("moved");
    for member in &volume.members[2..] {
        fs::rename(member, elsewhere(member)).expect("nobody uses it");
    }
    volume.mount_degraded(&[0, 1]);
    let second = volume.home.join("second");
    fs::create_dir(&second).expect("the home is writable");
    let moved: Vec<PathBuf> = volume.members[2..].iter().map(elsewhere).collect();
    let before: Vec<_> = moved.iter().map(|member| content(member)).collect();
    let all = [&moved[0], &moved[1], &second];
    let (code, said) = run(&["mount"], &all);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("each half would have writes"), "{said}");
    assert!(said.contains("cauchyfs member replace"), "{said}");
    let after: Vec<_> = moved.iter().map(|member| content(member)).collect();
    assert!(before == after, "they are left as they were");
    // Looking at it does no harm.
    let (code, said) = run(&["mount", "-o", "ro"], &all);
    assert_eq!(code, 3, "{said}");
    assert!(fs::read(second.join("both")).expect("it is there") == pattern(1, BOTH));
    let (code, said) = run(&["unmount"], &[&second]);
    assert_eq!(code, 0, "{said}");
    // The way that was named.
    for (number, directory) in ["2", "3"].iter().zip(&moved) {
        let number = PathBuf::from(number);
        let arguments = [&volume.mountpoint, &number, directory];
        let (code, said) = run(&["member", "replace"], &arguments);
        assert!(matches!(code, 0 | 3), "{said}\n{}", volume.log());
    }
    volume.assert_healthy();
    volume.unmount();
    let (code, said) = run(&["mount"], &[&moved[0], &moved[1], &second]);
    assert_eq!(code, 3, "{said}");
    let (code, said) = run(&["unmount"], &[&second]);
    assert_eq!(code, 0, "{said}");
}

/// The first is where it was when both were last together, and has gone on since.
#[test]
fn a_second_branch_is_not_mounted_to_be_written_either_once_the_first_is_unmounted() {
    if skip_mounts() {
        return;
    }
    let volume = two_plus_two();
    volume.mount_degraded(&[0, 1]);
    fs::write(volume.path("first"), pattern(2, 300_000)).expect("there is room");
    volume.unmount();
    let second: Vec<&PathBuf> = volume.members[2..].iter().collect();
    let before: Vec<_> = second.iter().map(|member| content(member)).collect();
    let refused = |(code, said): (i32, String)| {
        assert_eq!(code, 2, "{said}");
        for ahead in &volume.members[..2] {
            assert!(said.contains(&ahead.display().to_string()), "{said}");
        }
        assert!(said.contains("each half would have"), "{said}");
        assert!(said.contains("give them all"), "{said}");
        let after: Vec<_> = second.iter().map(|member| content(member)).collect();
        assert!(before == after, "they are left as they were");
    };
    let mount = [&second[..], &[&volume.mountpoint]].concat();
    refused(run(&["mount"], &mount));
    refused(run(&["check", "--repair"], &second));
    // Looking at it does no harm.
    let (code, said) = run(&["mount", "-o", "ro"], &mount);
    assert_eq!(code, 3, "{said}");
    assert!(!volume.path("first").exists());
    volume.unmount();
    let (code, said) = run(&["check"], &second);
    assert!(matches!(code, 0 | 3), "{said}");
    // The way that was named.
    let all: Vec<&PathBuf> = volume.members.iter().collect();
    let (code, said) = run(&["mount"], &[&all[..], &[&volume.mountpoint]].concat());
    assert!(matches!(code, 0 | 3), "{said}");
    assert!(fs::read(volume.path("first")).expect("it is there") == pattern(2, 300_000));
    eventually("the second branch has what it missed", || {
        volume.status().1 == 0
    });
    volume.unmount();
}

/// They lie beside it, and were not named.
#[test]
fn a_directory_mounted_apart_and_left_out_is_reported_and_not_advised_to_rejoin_unchanged() {
    if skip_mounts() {
        return;
    }
    let volume = mounted_apart();
    let mounted = volume.try_mount(&[0, 1], &[]);
    assert_eq!(mounted.status.code(), Some(3), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    for loser in &volume.members[2..] {
        let lost = |line: &str| line.contains(&loser.display().to_string());
        let line = said.lines().find(|line| lost(line)).unwrap_or_default();
        assert!(line.contains("mounted apart"), "{said}");
    }
    let next_step = || {
        let (_, said) = said_by_status(&volume);
        let next = said.lines().last().unwrap_or_default().to_owned();
        assert!(next.contains("mounted apart"), "{said}");
        assert!(next.contains("`cauchyfs extract`"), "{said}");
    };
    next_step();
    let (number, loser) = (PathBuf::from("2"), &volume.members[2]);
    let arguments = [&volume.mountpoint, &number, loser];
    let (code, said) = run(&["member", "replace"], &arguments);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("`cauchyfs extract`"), "{said}");
    next_step();
    volume.unmount();
}

/// Nothing is mounted, and the others are not named.
#[test]
fn status_of_one_branch_says_whether_the_other_has_gone_on() {
    if skip_mounts() {
        return;
    }
    let volume = two_plus_two();
    let status = |members: &[usize]| {
        let output = Command::new(CAUCHYFS)
            .arg("status")
            .args(members.iter().map(|at| &volume.members[*at]))
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let went_on = |members: &[usize]| {
        let paths = members.iter().map(|at| &volume.members[*at]);
        let output = Command::new(CAUCHYFS)
            .args(["status", "--json"])
            .args(paths)
            .output();
        let output = output.expect("the binary runs");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it is a document");
        report["elsewhere"]["went_on"].clone()
    };
    let behind = "these are stale";
    assert!(!status(&[2, 3]).contains(behind), "nobody has");
    assert_eq!(went_on(&[2, 3]), false);
    // One that cannot be read may have gone on, and one of another volume says nothing of the absent members.
    let superblock = volume.members[0].join("superblock");
    let kept = fs::read(&superblock).expect("nobody uses it");
    let another = two_plus_two();
    let other = fs::read(another.members[0].join("superblock")).expect("nobody uses it");
    for instead in [vec![0; kept.len()], other] {
        fs::write(&superblock, instead).expect("nobody uses it");
        assert_eq!(went_on(&[2, 3]), Value::Null);
        assert!(status(&[2, 3]).contains("it is unknown whether"));
    }
    fs::write(&superblock, kept).expect("nobody uses it");
    volume.mount_degraded(&[0, 1]);
    fs::write(volume.path("first"), pattern(2, 300_000)).expect("there is room");
    volume.unmount();
    let said = status(&[2, 3]);
    assert_eq!(went_on(&[2, 3]), true);
    assert!(!said.contains("mounted apart"), "{said}");
    let next = said.lines().last().unwrap_or_default();
    for ahead in &volume.members[..2] {
        let ahead = ahead.display().to_string();
        let line = said.lines().find(|line| line.contains(behind));
        assert!(line.is_some_and(|line| line.contains(&ahead)), "{said}");
        assert!(next.contains(&ahead), "{said}");
    }
    assert!(!status(&[0, 1]).contains(behind));
    assert!(!status(&[0, 1]).contains("it is unknown whether"));
    let aside = |member: &PathBuf| member.with_extension("aside");
    for ahead in &volume.members[..2] {
        fs::rename(ahead, aside(ahead)).expect("nobody uses it");
    }
    assert_eq!(went_on(&[2, 3]), Value::Null);
    let said = status(&[2, 3]);
    assert!(
        said.contains("it is unknown whether") && !said.contains(behind),
        "{said}"
    );
    for ahead in &volume.members[..2] {
        fs::rename(aside(ahead), ahead).expect("nobody uses it");
    }
    // Each has gone on without the other by now.
    write_alone(&volume, &[2, 3], "second", 3);
    for branch in [[0, 1], [2, 3]] {
        let said = status(&branch);
        assert_eq!(said.matches("(it was mounted apart").count(), 2, "{said}");
        assert!(!said.contains(behind), "{said}");
        assert!(said.contains("and these without it"), "{said}");
        assert_eq!(went_on(&branch), true);
        let next = said.lines().last().unwrap_or_default();
        assert!(next.contains("`cauchyfs extract`"), "{said}");
    }
}

/// They come to a volume that is mounted without them: `status` says why they are not taken in, and what to do.
#[test]
fn a_directory_mounted_apart_that_rejoins_is_refused_for_that_reason() {
    if skip_mounts() {
        return;
    }
    let volume = mounted_apart();
    let losers = &volume.members[2..];
    let moved = |member: &PathBuf| member.with_extension("moved");
    for member in losers {
        fs::rename(member, moved(member)).expect("nobody uses it");
    }
    let mounted = volume.try_mount(&[0, 1, 2, 3], &[]);
    assert_eq!(mounted.status.code(), Some(3), "{mounted:?}");
    for member in losers {
        fs::rename(moved(member), member).expect("nobody uses it");
    }
    let before: Vec<_> = losers.iter().map(|member| content(member)).collect();
    eventually("both are refused for that reason", || {
        let (status, _) = volume.status();
        [2, 3].iter().all(|&index| {
            let reason = status["members"][index]["reason"].as_str();
            reason.is_some_and(|reason| reason.contains("mounted apart"))
        })
    });
    let (code, said) = said_by_status(&volume);
    assert_eq!(code, 3, "{said}");
    let next = format!(
        "member replace '{}' 2 '{}'",
        volume.mountpoint.display(),
        losers[0].display()
    );
    assert!(
        said.contains("mounted apart") && said.contains(&next),
        "{said}"
    );
    let after: Vec<_> = losers.iter().map(|member| content(member)).collect();
    assert!(before == after, "they are left as they were");
    for (number, directory) in ["2", "3"].iter().zip(losers) {
        fs::remove_dir_all(directory).expect("nobody uses it");
        fs::create_dir(directory).expect("its parent is there");
        let arguments = [&volume.mountpoint, &PathBuf::from(number), directory];
        let (code, said) = run(&["member", "replace"], &arguments);
        assert!(matches!(code, 0 | 3), "{said}\n{}", volume.log());
    }
    volume.assert_healthy();
    volume.unmount();
}

fn said_by_status(volume: &TestVolume) -> (i32, String) {
    let output = Command::new(CAUCHYFS)
        .arg("status")
        .arg(&volume.mountpoint)
        .output()
        .expect("the binary runs");
    let code = output.status.code().expect("it was not killed");
    (code, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The members of the other branch have their superblocks, and say that they went nowhere without the others.
#[test]
fn the_newer_branch_recovers_its_superblocks_from_the_superseded_one() {
    if skip_mounts() {
        return;
    }
    let volume = two_plus_two();
    write_alone(&volume, &[0, 1], "since", 2);
    for member in &volume.members[..2] {
        fs::remove_file(member.join("superblock")).expect("the volume is not in use");
    }
    let all: Vec<_> = volume.members.iter().collect();
    let refused = volume.try_mount(&[0, 1, 2, 3], &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("has lost its superblock, and went on"),
        "{said}"
    );
    assert!(said.contains("to `cauchyfs check --repair`"), "{said}");
    let before: Vec<_> = volume
        .members
        .iter()
        .map(|member| content(member))
        .collect();
    // One that is missing may have gone on with them, or alone.
    let (code, said) = run(&["check", "--repair"], &all[..3]);
    assert!(
        code == 2 && said.contains("has lost its superblock"),
        "{said}"
    );
    let after: Vec<_> = volume
        .members
        .iter()
        .map(|member| content(member))
        .collect();
    assert!(after == before, "all is left as it is");

    let (_, said) = run(&["check", "--repair"], &all);
    assert!(
        volume
            .members
            .iter()
            .all(|member| member.join("superblock").exists()),
        "{said}"
    );
    let mounted = volume.try_mount(&[0, 1, 2, 3], &[]);
    assert!(matches!(mounted.status.code(), Some(0 | 3)), "{mounted:?}");
    assert!(fs::read(volume.path("both")).expect("it is there") == pattern(1, BOTH));
    assert!(fs::read(volume.path("since")).expect("it is there") == pattern(2, 300_000));
    eventually("the others have what they missed", || {
        volume.members_in("online") == 4
    });
    volume.unmount();
}
