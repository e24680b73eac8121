//! Halves of a volume that were mounted apart, and meet again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{CAUCHYFS, Shape, TestVolume, pattern, skip_mounts};

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

/// Mounts some of the members alone and writes a file.
fn write_alone(volume: &TestVolume, members: &[usize], name: &str, seed: u64) {
    volume.mount_degraded(members);
    fs::write(volume.path(name), pattern(seed, 300_000)).expect("there is room");
    volume.unmount();
}

#[test]
fn halves_that_were_mounted_apart_are_left_as_they_are_and_the_way_out_is_named() {
    if skip_mounts() {
        return;
    }
    for (data, parity, halves) in [
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
        for (half, name) in halves.iter().zip(["first", "second"]) {
            write_alone(&volume, half, name, 2);
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
        // Each half is as good as it was: the loser's files are copied out, the winner's are used.
        let losers: Vec<&PathBuf> = halves[1].iter().map(|&at| &volume.members[at]).collect();
        let out = volume.home.join("out");
        let out_text = out.to_str().expect("test paths are text");
        let mut arguments: Vec<&PathBuf> = losers.clone();
        let option = PathBuf::from("--to");
        let target = PathBuf::from(out_text);
        arguments.extend([&option, &target]);
        let (code, said) = run(&["extract"], &arguments);
        assert!(matches!(code, 0 | 3), "{said}");
        assert!(fs::read(out.join("second")).expect("it was copied") == pattern(2, 300_000));
        volume.mount_degraded(&halves[0]);
        assert!(fs::read(volume.path("first")).expect("it is there") == pattern(2, 300_000));
        assert!(fs::read(volume.path("both")).expect("it is there") == pattern(1, 300_000));
        assert!(!volume.path("second").exists());
        volume.unmount();
    }
}
