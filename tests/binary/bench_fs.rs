//! `cauchyfs bench fs` measures a mounted volume beside its disks and FUSE, and leaves nothing behind.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, copy_program, eventually, run, said, skip_mounts, text,
};

/// The user of tests that lack rights.
const NOBODY: u32 = 65_534;

/// The columns of a report.
const COLUMNS: [&str; 3] = ["directory", "below", "fuse"];

/// A mounted volume with a file on it, and a place for temporary files.
struct Bench {
    volume: TestVolume,
    temporary: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let volume = TestVolume::create(Shape::FOUR_TWO, 512);
        volume.mount();
        fs::write(volume.path("before"), "kept").expect("there is room");
        let temporary = volume.home.join("tmp");
        fs::create_dir(&temporary).expect("the home has no such name");
        Self { volume, temporary }
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(CAUCHYFS);
        command
            .args(["bench", "fs", "--size", "4M", "--jobs", "2"])
            .args(options)
            .arg(&self.volume.mountpoint)
            .env("TMPDIR", &self.temporary);
        command
    }

    /// Starts a run that would take minutes, and waits until all of its directories are there.
    fn start_long(&self, options: &[&str]) -> Child {
        let mut command = self.command(&[&["--seconds", "60"], options].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let places = [&self.volume.mountpoint, self.disk(), &self.temporary];
        eventually("the jobs begin", || {
            places
                .iter()
                .all(|place| names(place).iter().any(|name| is_of_bench(name)))
        });
        eventually("the mount is there", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            mounts.contains(text(&self.temporary))
        });
        child.expect("the binary runs")
    }

    /// Returns the directory that all members are in.
    fn disk(&self) -> &Path {
        self.volume.members[0].parent().expect("it has one")
    }

    /// Returns the lengths of the files for plain writes, which have no names: those that processes have open.
    fn plain_files(&self) -> Vec<u64> {
        let name = format!("{}/cauchyfs-bench-plain-", text(self.disk()));
        let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
        let open = processes
            .flat_map(|process| fs::read_dir(process.path().join("fd")))
            .flat_map(Iterator::flatten);
        // Some are closed meanwhile.
        open.filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?;
            let link = link.to_str()?;
            let is_plain = link.starts_with(&name) && link.ends_with(" (deleted)");
            is_plain.then(|| fs::metadata(file.path()).ok())?
        })
        .map(|found| found.len())
        .collect()
    }

    /// Returns what a run has left of its files, its mount and its mountpoint.
    fn left(&self) -> Vec<String> {
        let places = [&self.volume.mountpoint, self.disk(), &self.temporary];
        let mut left: Vec<String> = places.into_iter().flat_map(names).collect();
        left.retain(|name| is_of_bench(name));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
        let mounts = mounts.lines().map(str::to_owned);
        left.extend(mounts.filter(|line| line.contains(text(&self.temporary))));
        left
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert!(self.left().is_empty(), "{:?}", self.left());
        assert_eq!(names(&self.volume.mountpoint), ["before"]);
        let kept = fs::read(self.volume.path("before")).expect("it is there");
        assert_eq!(kept, b"kept");
    }
}

fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let listed = fs::read_dir(directory).into_iter().flatten().flatten();
    listed
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn is_of_bench(name: &str) -> bool {
    name.starts_with("cauchyfs-bench")
}

fn report_of(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    assert!(output.stderr.is_empty(), "{}", said(output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

#[test]
fn a_volume_its_disk_and_fuse_have_a_rate_for_every_job_and_nothing_is_left() {
    if skip_mounts() {
        return;
    }
    let bench = Bench::new();
    let output = bench.command(&["--json", "--seconds", "0.1"]).output();
    let report = report_of(&output.expect("the binary runs"));
    assert!(
        report["left_out"].as_array().is_some_and(Vec::is_empty),
        "{report}"
    );
    let rows = report["rows"].as_array().expect("there are rows");
    assert_eq!(rows.len(), 15, "{report}");
    for row in rows {
        for column in COLUMNS {
            assert!(row[column].as_f64() > Some(0.0), "{column}: {row}");
        }
        for ratio in ["of_below", "of_fuse"] {
            assert!(row[ratio].as_f64() > Some(0.0), "{ratio}: {row}");
        }
    }
    let columns = &report["columns"];
    assert_eq!(columns["directory"]["path"], text(&bench.volume.mountpoint));
    assert_eq!(columns["below"]["path"], text(bench.disk()));
    assert_eq!(columns["below"]["filesystem"], "tmpfs");
    assert_eq!(columns["below"]["member"], 0);
    let transport = |column: &str| columns[column]["transport"].as_str();
    assert_eq!(transport("fuse"), transport("directory"), "{columns}");
    assert!(transport("fuse").is_some() && transport("below").is_none());
    bench.assert_nothing_left();

    let output = bench.command(&["--seconds", "0.01"]).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(
        table
            .lines()
            .filter(|line| line.starts_with("4 KiB"))
            .count(),
        5
    );
    bench.assert_nothing_left();
    bench.volume.unmount();
}

#[test]
fn a_run_that_is_interrupted_or_killed_leaves_no_mount_and_an_interrupted_one_no_file() {
    if skip_mounts() {
        return;
    }
    let bench = Bench::new();
    let child = bench.start_long(&[]);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.starts_with("cauchyfs: interrupted before"), "{words}");
    bench.assert_nothing_left();

    let mut child = bench.start_long(&[]);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    eventually("the mount is gone", || names(&bench.temporary).is_empty());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    assert!(!mounts.contains(text(&bench.temporary)), "{mounts}");
}

/// The process that measures was killed while its filesystem in memory was being mounted. It then hears nothing of the mount.
#[test]
fn a_filesystem_in_memory_that_is_reported_to_a_dead_process_is_taken_away() {
    if skip_mounts() {
        return;
    }
    let home = tempfile::tempdir().expect("there is room");
    let (reader, writer) = io::pipe().expect("there are descriptors");
    drop(reader);
    let mountpoint = home
        .path()
        .join("cauchyfs-bench-fuse-dead0000-0000-4000-8000-000000000000");
    fs::create_dir(&mountpoint).expect("the home has no such name");
    let mut command = Command::new(CAUCHYFS);
    let words = ["bench", "fs", "--serve", "auto", "--size", "4M"];
    let serving = command
        .args(words)
        .arg(&mountpoint)
        .stdin(Stdio::null())
        .stdout(writer)
        .output()
        .expect("the binary runs");
    assert_eq!(serving.status.code(), Some(2), "{}", said(&serving));
    assert!(said(&serving).contains("pipe"), "{}", said(&serving));
    assert!(names(home.path()).is_empty());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    assert!(!mounts.contains(text(home.path())), "{mounts}");
}

/// The limit of a 4+2 volume. Each of six files gets a quarter of the bytes, and no more than jobs have in files at once.
#[test]
fn plain_writes_have_a_rate_for_every_job_and_come_into_files_without_names() {
    if skip_mounts() {
        return;
    }
    let bench = Bench::new();
    let output = bench
        .command(&["--plain", "--json", "--seconds", "0.1"])
        .output();
    let report = report_of(&output.expect("the binary runs"));
    assert!(
        report["left_out"].as_array().is_some_and(Vec::is_empty),
        "{report}"
    );
    for row in report["rows"].as_array().expect("there are rows") {
        for value in ["directory", "below", "fuse", "plain", "of_plain"] {
            assert!(row[value].as_f64() > Some(0.0), "{value}: {row}");
        }
    }
    let columns = &report["columns"];
    let transport = |column: &str| columns[column]["transport"].as_str();
    assert_eq!(transport("plain"), transport("directory"), "{columns}");
    assert_ne!(columns["plain"]["path"], columns["fuse"]["path"]);
    bench.assert_nothing_left();

    let child = bench.start_long(&["--plain"]);
    eventually("two rounds of 4 MiB are written", || {
        let lengths = bench.plain_files();
        lengths.len() == 6 && lengths.iter().all(|len| *len >= 2 << 20)
    });
    let bound = (2 << 20) + (1 << 20) + 4096;
    let lengths = bench.plain_files();
    assert!(lengths.iter().all(|len| *len <= bound), "{lengths:?}");
    let is_named = |name: &String| name.starts_with("cauchyfs-bench-plain");
    assert!(!names(bench.disk()).iter().any(is_named));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(bench.plain_files().is_empty());
    bench.assert_nothing_left();
    bench.volume.unmount();
}

#[test]
fn directories_that_cannot_be_measured_are_refused_and_nothing_is_written() {
    let home = tempfile::tempdir().expect("there is room");
    let home = fs::canonicalize(home.path()).expect("it is there");
    let refused = |rest: &[&str], code: i32, needle: &str| {
        let output = run(CAUCHYFS, &[&["bench", "fs"], rest].concat());
        let words = said(&output);
        assert_eq!(output.status.code(), Some(code), "{words}");
        assert!(words.contains(needle), "no `{needle}` in: {words}");
        assert!(names(&home).is_empty());
    };
    let place = text(&home);
    refused(&[&format!("{place}/none")], 1, "cannot find");
    refused(&[CAUCHYFS], 1, "is no directory");
    refused(&["--size", "1K", place], 1, "too small");
    refused(&["--jobs", "0", place], 1, "--jobs");
    refused(
        &["--below", &format!("{place}/none"), "--size", "1M", place],
        1,
        "cannot find",
    );
    refused(
        &["--plain", "--size", "1M", place],
        1,
        "is on no volume of CauchyFS, so `--plain` has no members to write to",
    );
    let served = ["--plain-directory", place, place];
    refused(&served, 1, "--serve");
    refused(
        &["--size", "1M", "/proc"],
        2,
        "/proc has 0 B free, and the jobs need 6.0 MiB",
    );
}

/// A user without `fusermount3`, in a directory on no volume.
#[test]
fn columns_that_cannot_be_had_are_left_out_with_a_sentence() {
    if skip_mounts() {
        return;
    }
    let home = tempfile::tempdir().expect("there is room");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let program = copy_program(home.path());
    let place = home.path().join("place");
    fs::create_dir(&place).expect("the home has no such name");
    let measure = || {
        let mut command = Command::new(&program);
        command
            .args(["bench", "fs", "--json", "--size", "1M", "--seconds", "0.01"])
            .arg(&place)
            .env("TMPDIR", &place)
            .env("PATH", "/nonexistent")
            .uid(NOBODY)
            .gid(NOBODY);
        command.output().expect("the binary runs")
    };
    let output = measure();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("cannot make a directory in"),
        "{}",
        said(&output)
    );

    chown(&place, Some(NOBODY), Some(NOBODY)).expect("root may");
    let report = report_of(&measure());
    let left_out = report["left_out"].as_array().expect("there are some");
    let reason = |column: &str| {
        let found = left_out.iter().find(|entry| entry["column"] == column);
        found
            .and_then(|entry| entry["reason"].as_str())
            .unwrap_or_default()
    };
    assert!(reason("below").contains("is on no volume"), "{report}");
    assert!(
        reason("fuse").contains("cannot run fusermount3"),
        "{report}"
    );
    for row in report["rows"].as_array().expect("there are rows") {
        assert!(row["directory"].as_f64() > Some(0.0), "{row}");
        assert!(row["below"].is_null() && row["fuse"].is_null(), "{row}");
    }
    assert!(names(&place).is_empty(), "{:?}", names(&place));
}
