//! `scrub` of mounted volumes to whose directories something happened.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, eventually, must, pattern, skip_mounts,
    text, write_large,
};

/// Bytes of the large file: several segments.
const LARGE: u64 = 90 << 20;

fn segments(member: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(member.join("segments")).expect("the member is there");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the member is there").path())
        .collect();
    paths.sort();
    paths
}

/// Returns the content of the segment files of all members.
fn shards(volume: &TestVolume) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = volume.members.iter().flat_map(|member| segments(member));
    paths
        .map(|path| (path.clone(), fs::read(path).expect("the file can be read")))
        .collect()
}

fn open(path: &Path) -> File {
    let opened = File::options().read(true).write(true).open(path);
    opened.expect("the file is there")
}

/// Turns some bytes of a file into others.
fn spoil(path: &Path, offset: u64) {
    let file = open(path);
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset)
        .expect("it is long enough");
    file.write_all_at(&bytes.map(|byte| byte ^ 0x55), offset)
        .expect("there is room");
}

fn scrub(volume: &TestVolume, options: &[&str]) -> (Value, i32) {
    let output = Command::new(CAUCHYFS)
        .args(["scrub", "--json"])
        .args(options)
        .arg(&volume.mountpoint)
        .output()
        .expect("the binary runs");
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}\n{}", volume.log()));
    (value, output.status.code().expect("it was not killed"))
}

fn filled() -> TestVolume {
    let shape = Shape {
        segment: "4MiB",
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(shape, 900);
    volume.mount();
    write_large(&volume.path("large"), 1, LARGE).expect("there is room");
    fs::write(volume.path("small"), pattern(7, 40_000)).expect("there is room");
    // Bytes that are in memory only are in no file.
    volume.remount();
    volume
}

#[test]
fn damage_to_the_files_of_two_mounted_directories_is_repaired_to_the_byte() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    let (status, code) = volume.status();
    assert_eq!(
        (code, &status["scrub"]["state"]),
        (0, &Value::from("never"))
    );
    let before = shards(&volume);
    for (number, path) in segments(&volume.members[1]).iter().enumerate() {
        let len = fs::metadata(path).expect("it is there").len();
        match number % 3 {
            0 => (0..len / 5000).for_each(|place| spoil(path, place * 5000)),
            1 => fs::remove_file(path).expect("it is there"),
            _ => open(path).set_len(len / 2 + 77).expect("it can be cut"),
        }
    }
    let others = segments(&volume.members[4]);
    let (one, other) = (&others[0], &others[1]);
    let len = |path| fs::metadata(path).expect("it is there").len();
    // Segments become longer: what is exchanged is as long as the shorter one.
    let common = usize::try_from(len(one).min(len(other))).expect("it fits");
    let start = |path| fs::read(path).expect("it is there")[..common].to_vec();
    let (first, second) = (start(one), start(other));
    for (path, bytes) in [(one, second), (other, first)] {
        open(path).write_all_at(&bytes, 0).expect("there is room");
    }
    let zeros = vec![0; 1 << 20];
    open(&others[2])
        .write_all_at(&zeros, 0)
        .expect("there is room");
    // A slot of a superblock, and pages of a copy of the index.
    spoil(&volume.members[4].join("superblock"), 65_536 + 40);
    spoil(&volume.members[2].join("superblock"), 40);
    let mut indexes = volume.members.iter().map(|member| member.join("index"));
    let index = indexes.find(|index| index.exists()).expect("M+1 have one");
    for page in 8..24 {
        spoil(&index, page * 4096 + 77);
    }

    let (scrubbed, code) = scrub(&volume, &[]);
    assert_eq!(code, 0, "{scrubbed}");
    assert_eq!(scrubbed["state"], "finished");
    assert!(scrubbed["repaired"].as_u64() > Some(20), "{scrubbed}");
    for nothing in ["wrong", "missing", "bytes_lost"] {
        assert_eq!(scrubbed[nothing], 0, "{scrubbed}");
    }
    let after = shards(&volume);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    for (path, bytes) in &before {
        assert!(after[path] == *bytes, "{} is not as it was", path.display());
    }
    let log = volume.log();
    let named = |member: usize| {
        let (at, file) = (
            format!("repaired on member {member}: "),
            format!(" bytes of {}/segments/", text(&volume.members[member])),
        );
        let mut lines = log.lines();
        lines.any(|line| {
            [&at, &file, " from offset "]
                .iter()
                .all(|part| line.contains(*part))
        })
    };
    assert!(named(1) || named(4), "{log}");
    let (status, code) = volume.status();
    assert_eq!(code, 0, "{status}");
    assert_eq!(status["scrub"]["state"], "finished");
    assert_eq!(status["scrub"]["progress"], 1.0);
    assert_eq!(status["scrub"]["repaired"], scrubbed["repaired"]);
    let finished = status["scrub"]["finished_at"].as_str().expect("a moment");
    assert!(
        finished.starts_with("20") && finished.ends_with('Z'),
        "{finished}"
    );
    let (again, code) = scrub(&volume, &[]);
    assert_eq!((code, &again["repaired"]), (0, &Value::from(0)), "{again}");
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact();
    // Also with two other directories gone.
    volume.mount_degraded(&[1, 2, 3, 4]);
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

/// Exchanges two files, as a person does who puts disks back in the wrong order.
fn exchange(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    must("mv", &[text(one), text(&aside)]);
    must("mv", &[text(other), text(one)]);
    must("mv", &[text(&aside), text(other)]);
}

/// The daemon has these files open, and reads of them would find nothing wrong.
#[test]
fn segment_files_exchanged_while_mounted_are_repaired_under_their_names() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    let (first, code) = scrub(&volume, &[]);
    assert_eq!((code, &first["repaired"]), (0, &Value::from(0)), "{first}");
    let before = shards(&volume);
    let exchanged = segments(&volume.members[0])[0].clone();
    let name = exchanged.file_name().expect("it has a name");
    let other = volume.members[3].join("segments").join(name);
    exchange(&exchanged, &other);
    assert!(shards(&volume) != before, "they differ");

    let (scrubbed, code) = scrub(&volume, &[]);
    assert_eq!(code, 0, "{scrubbed}");
    assert!(scrubbed["repaired"].as_u64() > Some(2), "{scrubbed}");
    for nothing in ["wrong", "missing", "bytes_lost"] {
        assert_eq!(scrubbed[nothing], 0, "{scrubbed}");
    }
    let after = shards(&volume);
    for (path, bytes) in &before {
        assert!(after[path] == *bytes, "{} is not as it was", path.display());
    }
    let (again, code) = scrub(&volume, &[]);
    assert_eq!((code, &again["repaired"]), (0, &Value::from(0)), "{again}");
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact();
    volume.mount_degraded(&[1, 2, 4, 5]);
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

/// Says where bytes that are found nowhere else lie in a directory's segment files.
fn find(member: &Path, wanted: &[u8]) -> Option<(PathBuf, u64)> {
    segments(member).into_iter().find_map(|path| {
        let bytes = fs::read(&path).expect("it can be read");
        let blocks = bytes
            .chunks(4096)
            .position(|block| block.starts_with(wanted))?;
        Some((path, blocks as u64 * 4096))
    })
}

#[test]
fn files_lost_to_more_damage_than_parity_are_named_and_all_others_are_readable() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    let content = fs::read(volume.path("large")).expect("it can be read");
    // The block that begins here, and the same rows of the stripe's other shards on two more members.
    let hit = 41 << 20;
    let wanted = &content[hit..hit + 64];
    let mut members = volume.members.iter().enumerate();
    let (member, (path, offset)) = members
        .find_map(|(number, member)| Some((number, find(member, wanted)?)))
        .expect("some member has it");
    let name = path.file_name().expect("it has a name");
    for other in [member, (member + 1) % 6, (member + 2) % 6] {
        spoil(&volume.members[other].join("segments").join(name), offset);
    }
    let (scrubbed, code) = scrub(&volume, &[]);
    assert_eq!(code, 4, "{scrubbed}");
    assert_eq!(
        scrubbed["unrecoverable_files"],
        serde_json::json!(["large"])
    );
    let lost = scrubbed["bytes_lost"].as_u64().expect("a number");
    assert!(
        (1..=3).contains(&(lost / 4096)) && lost % 4096 == 0,
        "{scrubbed}"
    );
    let check_reads = || {
        drop_caches();
        let file = File::open(volume.path("large")).expect("it can be opened");
        let mut failed = 0;
        for (number, expected) in content.chunks(4096).enumerate() {
            let mut block = vec![0; expected.len()];
            match file.read_exact_at(&mut block, number as u64 * 4096) {
                Ok(()) => assert!(block == expected, "block {number} has other bytes"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(5), "block {number}: {error}");
                    failed += 4096;
                }
            }
        }
        assert_eq!(failed, lost, "bytes that cannot be read");
    };
    let (status, code) = volume.status();
    assert_eq!((code, &status["state"]), (4, &Value::from("failed")));
    assert_eq!(status["unrecoverable_files"], serde_json::json!(["large"]));
    volume.unmount();
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(mounted.status.code(), Some(4), "{mounted:?}");
    let (status, _) = volume.status();
    assert_eq!(
        status["unrecoverable_files"],
        serde_json::json!(["large"]),
        "before anyone read"
    );
    check_reads();
    fs::remove_file(volume.path("large")).expect("it can be deleted");
    let (scrubbed, code) = scrub(&volume, &[]);
    assert_eq!(code, 0, "{scrubbed}");
    let (status, _) = volume.status();
    assert_eq!(status["state"], "healthy", "{status}");
    volume.unmount();
}

#[test]
fn a_scrub_that_is_killed_with_its_daemon_goes_on_where_it_was() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    for path in segments(&volume.members[3]) {
        spoil(&path, 9000);
    }
    let mut slow = Command::new(CAUCHYFS)
        .args(["scrub", "--rate", "8MiB"])
        .arg(&volume.mountpoint)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let progress = || {
        volume.status().0["scrub"]["progress"]
            .as_f64()
            .expect("a number")
    };
    eventually("much of it is done", || progress() > 0.4);
    assert_eq!(volume.status().0["scrub"]["state"], "running");
    volume.crash();
    let ended = slow.wait().expect("it can be waited for");
    assert_eq!(ended.code(), Some(2), "its daemon died");
    let mut said = String::new();
    let mut stderr = slow.stderr.take().expect("it is a pipe");
    stderr.read_to_string(&mut said).expect("it is text");
    assert!(said.starts_with("cauchyfs: the daemon "), "{said}");

    volume.mount();
    let scrub_of = |status: Value| status["scrub"].clone();
    let stopped = scrub_of(volume.status().0);
    assert_eq!(stopped["state"], "stopped");
    assert!(stopped["progress"].as_f64() > Some(0.2), "{stopped}");
    assert!(stopped["repaired"].as_u64() > Some(0), "{stopped}");
    // One that is interrupted stops as well.
    let mut slow = Command::new(CAUCHYFS)
        .args(["scrub", "--rate", "1MiB"])
        .arg(&volume.mountpoint)
        .spawn()
        .expect("the binary runs");
    eventually("it runs", || {
        volume.status().0["scrub"]["state"] == "running"
    });
    must("kill", &["-TERM", &slow.id().to_string()]);
    slow.wait().expect("it can be waited for");
    eventually("it stopped", || {
        volume.status().0["scrub"]["state"] == "stopped"
    });
    let (scrubbed, code) = scrub(&volume, &[]);
    assert_eq!(code, 0, "{scrubbed}");
    // All but those of the last moments before it was killed are counted, and each once.
    let all = segments(&volume.members[3]).len() as u64;
    let repaired = scrubbed["repaired"].as_u64();
    assert!(repaired >= stopped["repaired"].as_u64() && repaired <= Some(all));
    let (again, code) = scrub(&volume, &[]);
    assert_eq!((code, &again["repaired"]), (0, &Value::from(0)), "{again}");
    check_large(&volume.path("large"), 1, LARGE);
    // A slow one does not keep a user from unmounting.
    let mut slow = Command::new(CAUCHYFS)
        .args(["scrub", "--rate", "1KiB"])
        .arg(&volume.mountpoint)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    eventually("it runs", || {
        volume.status().0["scrub"]["state"] == "running"
    });
    volume.unmount();
    slow.wait().expect("it can be waited for");
}

#[test]
fn a_mount_scrubs_by_itself_when_asked_to() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    volume.unmount();
    let path = &segments(&volume.members[0])[0];
    let before = fs::read(path).expect("it can be read");
    spoil(path, 4096);
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--scrub-interval", "30d"]);
    assert!(mounted.status.success(), "{mounted:?}");
    eventually("it was scrubbed", || {
        volume.status().0["scrub"]["state"] == "finished"
    });
    assert_eq!(volume.status().0["scrub"]["repaired"], 1);
    assert!(fs::read(path).expect("it can be read") == before);
    volume.unmount();
}

#[test]
fn a_deep_check_reads_every_shard_of_a_volume_that_is_not_mounted() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    volume.unmount();
    let (said, code) = volume.check(&["--deep"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("survive the loss of 2 more members"),
        "{said}"
    );
    let before = shards(&volume);
    let hit = [
        &segments(&volume.members[2])[1],
        &segments(&volume.members[5])[0],
    ];
    for path in hit {
        spoil(path, 4096);
    }
    assert_eq!(volume.check(&[]).1, 0, "bytes are not read");
    let (said, code) = volume.check(&["--deep"]);
    assert_eq!(code, 3, "{said}");
    for path in hit {
        assert!(
            said.contains(&format!("{}: 1 shard wrong", path.display())),
            "{said}"
        );
    }
    assert!(
        said.contains("survive the loss of 1 more member\n"),
        "{said}"
    );
    assert!(shards(&volume) != before, "nothing was written");
    let (said, code) = volume.check(&["--deep", "--repair"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 pieces repaired"), "{said}");
    assert!(shards(&volume) == before);
    assert_eq!(volume.check(&["--deep"]).1, 0);
}

/// The page is a hole, as a crash may leave it, which looks undamaged when seen alone.
#[test]
fn a_deep_check_finds_and_repairs_damage_to_one_copy_of_the_index() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    volume.unmount();
    let mut files = volume.members.iter().map(|member| member.join("index"));
    let copy = files.find(|file| file.exists()).expect("somebody has one");
    let len = copy.metadata().expect("it is there").len();
    let behind_heads = vec![0; usize::try_from(len - 8192).expect("it is small")];
    open(&copy)
        .write_all_at(&behind_heads, 8192)
        .expect("there is room");
    assert_eq!(volume.check(&[]).1, 0, "the others have it");
    let (said, code) = volume.check(&["--deep"]);
    assert_eq!(code, 3, "{said}");
    let line = said.lines().find(|line| line.starts_with(text(&copy)));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.ends_with(" pages of this copy of the index wrong"),
        "{line}"
    );
    let output = Command::new(CAUCHYFS)
        .args(["-v", "check", "--deep", "--repair"])
        .args(&volume.members)
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.contains("of the index"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.ends_with(" pages of copies of the index repaired"),
        "{line}"
    );
    let logged = String::from_utf8_lossy(&output.stderr);
    let of_pages = logged.lines().filter(|line| line.contains("page"));
    assert_eq!(of_pages.count(), 1, "{logged}");
    let (said, code) = volume.check(&["--deep"]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn there_is_nothing_to_scrub_where_nothing_is_mounted() {
    let directory = tempfile::tempdir().expect("there is room");
    let output = Command::new(CAUCHYFS)
        .arg("scrub")
        .arg(directory.path())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.starts_with("cauchyfs: no volume is mounted at"),
        "{said}"
    );
}

#[test]
fn a_rate_at_which_nothing_would_be_done_is_refused() {
    let output = Command::new(CAUCHYFS)
        .args(["scrub", "--rate", "0", "/mnt"])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_scrub_for_which_another_command_waits_goes_on_when_its_own_is_interrupted() {
    if skip_mounts() {
        return;
    }
    let volume = filled();
    let command = |options: &[&str]| {
        let mut command = Command::new(CAUCHYFS);
        command.args(["scrub", "--json"]).args(options);
        command.arg(&volume.mountpoint).stdout(Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let is_running = || volume.status().0["scrub"]["state"] == "running";
    let mut first = command(&["--rate", "4MiB"]);
    eventually("the scrub is under way", is_running);
    // Without a limit it would lift that of the first, and be through before an interrupt could reach it.
    let second = command(&["--rate", "4MiB"]);
    let progress = volume.status().0["scrub"]["progress"].as_f64();
    eventually("it gets on", || {
        volume.status().0["scrub"]["progress"].as_f64() > progress
    });
    // Not SIGINT: what is started in the background of a script, as these tests may be, ignores it.
    must("kill", &["-TERM", &first.id().to_string()]);
    assert_ne!(first.wait().expect("it ends").code(), Some(0));
    let output = second.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(said["state"], "finished", "{said}");
    volume.unmount();
}
