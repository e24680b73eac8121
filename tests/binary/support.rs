//! Volumes on real directories, mounted by the real binary, gone without a trace afterwards, also
//! when a test panics.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod dashboard;
mod disk;
mod fio;
pub(crate) mod http;
mod load;
mod rounds;
mod segment;
mod tree;

pub(crate) use disk::{Disk, DiskKind};
pub(crate) use fio::Fio;
pub(crate) use load::{Load, read_past_caches};
pub(crate) use segment::segment_files;
pub(crate) use tree::{check_large, compare_trees, copy_source, pattern, write_large};

/// The binary under test.
pub(crate) const CAUCHYFS: &str = env!("CARGO_BIN_EXE_cauchyfs");

/// Set to 1 where tests cannot mount; `scripts/test.sh` says so aloud.
const SKIP: &str = "CAUCHYFS_SKIP_MOUNTS";

/// Names the way on which requests of the kernel come in mounts that do not choose one; over `/dev/fuse` without it.
pub(crate) const TRANSPORT: &str = "CAUCHYFS_TEST_TRANSPORT";

/// Returns the option for the transport, unless it is among `options`.
fn transport(options: &[&str]) -> Vec<OsString> {
    if options.contains(&"--transport") {
        return Vec::new();
    }
    let transport = std::env::var_os(TRANSPORT).unwrap_or_else(|| "classic".into());
    vec!["--transport".into(), transport]
}

/// The time that anything that should happen soon may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Says whether this test is to be left out; fails where it could not run and no variable says to skip.
pub(crate) fn skip_mounts() -> bool {
    if std::env::var_os(SKIP).is_some_and(|value| value == "1") {
        eprintln!("skipped: {SKIP}=1");
        return true;
    }
    assert!(
        rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists(),
        "this test mounts: run it as root where /dev/fuse is, or set {SKIP}=1"
    );
    false
}

/// Runs a command and returns what it said, whatever the exit code.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}"))
}

/// All that a command said.
pub(crate) fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Copies the program into a directory, for users who cannot read where it was built.
///
/// A process of its own writes the copy: a child that another test starts meanwhile would otherwise keep the copy open for
/// writing, and it could not be run.
pub(crate) fn copy_program(into: &Path) -> PathBuf {
    let copy = into.join("cauchyfs");
    must("cp", &[CAUCHYFS, text(&copy)]);
    copy
}

/// Runs a command that must succeed and returns its standard output.
#[track_caller]
pub(crate) fn must(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}",
        output.status,
        said(&output)
    );
    String::from_utf8(output.stdout).expect("the output is text")
}

/// Returns a path as text, which those of tests always are.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Polls until `is_true`, or fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn eventually(what: &str, is_true: impl FnMut() -> bool) {
    cauchyfs_testkit::eventually(what, PATIENCE, is_true);
}

/// Empties the kernel's caches, so that reads reach the daemon.
pub(crate) fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

/// The shape of a volume to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) data: usize,
    pub(crate) parity: usize,
    pub(crate) members: usize,
    pub(crate) segment: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) code: &'static str,
}

impl Shape {
    /// Returns how many directories may be lost, whichever they are. Tests make volumes of `random-gf2` with 4+4 shards
    /// only, of which any three may be.
    pub(crate) fn losses(self) -> usize {
        match self.code {
            "random-gf2" => self.parity - 1,
            _ => self.parity,
        }
    }

    /// Four data and two parity shards over six directories, with segments small enough for tests.
    pub(crate) const FOUR_TWO: Self = Self {
        data: 4,
        parity: 2,
        members: 6,
        segment: "16MiB",
        unit: "256KiB",
        code: "rs-cauchy",
    };

    /// The same over one directory more than a stripe needs.
    pub(crate) const FOUR_TWO_AND_ONE: Self = Self {
        members: 7,
        ..Self::FOUR_TWO
    };
}

/// A volume with its directories, and at most one mount.
pub(crate) struct TestVolume {
    pub(crate) mountpoint: PathBuf,
    pub(crate) members: Vec<PathBuf>,
    pub(crate) home: PathBuf,
    // In this order: what lies on a disk goes before it.
    _home: TempDir,
    disks: Vec<Disk>,
    losses: usize,
}

impl TestVolume {
    /// Runs a command on the mount; returns how it ended, and all that it said.
    pub(crate) fn command(&self, words: &[&str], rest: &[&str]) -> (Option<i32>, String) {
        let arguments = [words, &[text(&self.mountpoint)], rest].concat();
        let output = run(CAUCHYFS, &arguments);
        (output.status.code(), said(&output))
    }

    /// Makes a volume in fresh directories on a memory filesystem of `mebibytes`.
    pub(crate) fn create(shape: Shape, mebibytes: u64) -> Self {
        Self::create_on(shape, Disk::new(DiskKind::Tmpfs, mebibytes))
    }

    /// The same, mounted and with a file `large` of so many bytes, by seed 1.
    #[track_caller]
    pub(crate) fn with_large(shape: Shape, mebibytes: u64, len: u64) -> Self {
        let volume = Self::create(shape, mebibytes);
        volume.mount();
        let large = volume.path("large");
        write_large(&large, 1, len).expect("there is room");
        let file = fs::File::open(large).expect("it is there");
        file.sync_all().expect("it is durable");
        volume
    }

    /// Starts `cauchyfs member` with some words before the mountpoint and some after it; what it prints is dropped.
    pub(crate) fn start_member(&self, words: &[&str], rest: &[&str]) -> Child {
        Command::new(CAUCHYFS)
            .arg("member")
            .args(words)
            .arg(&self.mountpoint)
            .args(rest)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs")
    }

    /// Makes a volume in fresh directories of `disk`.
    pub(crate) fn create_on(shape: Shape, disk: Disk) -> Self {
        Self::create_over(shape, vec![disk])
    }

    /// Makes a volume in fresh directories of all `disks` in turn.
    pub(crate) fn create_over(shape: Shape, disks: Vec<Disk>) -> Self {
        let members = (0..shape.members)
            .zip(disks.iter().cycle())
            .map(|(number, disk)| disk.path().join(format!("d{number}")))
            .collect();
        Self::create_in(shape, members, disks)
    }

    /// Makes a volume in fresh directories, some of which may lie on `disks`.
    pub(crate) fn create_in(shape: Shape, members: Vec<PathBuf>, disks: Vec<Disk>) -> Self {
        let home = tempfile::Builder::new()
            .prefix("cauchyfs-test-")
            .tempdir()
            .expect("there is room for a temporary directory");
        let volume = Self {
            mountpoint: home.path().join("mnt"),
            members,
            home: home.path().to_owned(),
            _home: home,
            disks,
            losses: shape.losses(),
        };
        fs::create_dir(&volume.mountpoint).expect("the home is empty");
        volume.run_create(shape);
        volume
    }

    fn run_create(&self, shape: Shape) {
        let output = Command::new(CAUCHYFS)
            .args(["create", "--label", "test"])
            .args(["--data", &shape.data.to_string()])
            .args(["--parity", &shape.parity.to_string(), "--code", shape.code])
            .args(["--segment-size", shape.segment, "--stripe-unit", shape.unit])
            .args(&self.members)
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// Mounts with all directories.
    #[track_caller]
    pub(crate) fn mount(&self) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let output = self.try_mount(&all, &[]);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
    }

    /// Mounts with some of the directories, in the order given.
    pub(crate) fn try_mount(&self, members: &[usize], options: &[&str]) -> Output {
        Command::new(CAUCHYFS)
            .arg("mount")
            .arg("--log-file")
            .arg(self.home.join("log"))
            .args(transport(options))
            .args(options)
            .args(members.iter().map(|&index| &self.members[index]))
            .arg(&self.mountpoint)
            .output()
            .expect("the binary runs")
    }

    /// Mounts with some of the directories; the exit code says that it is degraded.
    #[track_caller]
    pub(crate) fn mount_degraded(&self, members: &[usize]) {
        let output = self.try_mount(members, &[]);
        assert_eq!(output.status.code(), Some(3), "{output:?}\n{}", self.log());
    }

    /// Unmounts in good order.
    #[track_caller]
    pub(crate) fn unmount(&self) {
        let mut output = self.try_unmount();
        // Programs of other tests may have what is open here for a moment, or look at every mount.
        eventually("nothing uses the mount", || {
            let is_busy = said(&output).contains(" is in use");
            if is_busy {
                output = self.try_unmount();
            }
            !is_busy
        });
        assert!(output.status.success(), "{output:?}\n{}", self.log());
    }

    /// Unmounts.
    pub(crate) fn try_unmount(&self) -> Output {
        Command::new(CAUCHYFS)
            .arg("unmount")
            .arg(&self.mountpoint)
            .output()
            .expect("the binary runs")
    }

    /// Unmounts and mounts again with all directories.
    #[track_caller]
    pub(crate) fn remount(&self) {
        self.unmount();
        self.mount();
    }

    /// Kills the daemon as a crash does, and leaves its mount.
    #[track_caller]
    pub(crate) fn kill(&self) {
        let daemon = self.daemon().expect("a daemon serves the mount");
        must("kill", &["-KILL", &daemon.to_string()]);
        eventually("the daemon is dead", || self.daemon().is_none());
    }

    /// Kills the daemon as a crash does, and clears the mountpoint.
    #[track_caller]
    pub(crate) fn crash(&self) {
        self.kill();
        let output = Command::new(CAUCHYFS)
            .arg("unmount")
            .arg(&self.mountpoint)
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the process that serves the mount.
    pub(crate) fn daemon(&self) -> Option<u32> {
        let mountpoint = self.mountpoint.to_str().expect("test paths are text");
        fs::read_dir("/proc")
            .expect("/proc is there")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .find(|pid: &u32| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
                words.contains(&b"--report".as_slice()) && words.contains(&mountpoint.as_bytes())
            })
    }

    /// Returns the control socket of the daemon.
    pub(crate) fn control_socket(&self) -> PathBuf {
        let open = self.open_files("socket:");
        let table = fs::read_to_string("/proc/net/unix").expect("it is there");
        let is_open = |number: &str| open.contains(&PathBuf::from(format!("socket:[{number}]")));
        let mut rows = table.lines().map(|row| row.split_whitespace().skip(6));
        rows.find_map(|mut row| {
            let (number, path) = (row.next()?, row.next()?);
            // Where there is a group of the dashboard, a second one takes no orders.
            let is_control = path.starts_with("/run/cauchyfs/") && !path.ends_with(".questions");
            (is_open(number) && is_control).then(|| PathBuf::from(path))
        })
        .expect("the daemon has one")
    }

    /// Returns what the daemon has open of which the path contains `part`.
    pub(crate) fn open_files(&self, part: &str) -> Vec<PathBuf> {
        let daemon = self.daemon().expect("a daemon serves the mount");
        let open = fs::read_dir(format!("/proc/{daemon}/fd")).expect("the daemon runs");
        // Some are closed meanwhile.
        let links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains(part))
            .collect()
    }

    /// Returns what `status --json` says of the mount, and its exit code.
    #[track_caller]
    pub(crate) fn status(&self) -> (Value, i32) {
        self.status_of(&[&self.mountpoint])
    }

    /// Returns what `status --json` says of paths, and its exit code.
    #[track_caller]
    pub(crate) fn status_of(&self, paths: &[&PathBuf]) -> (Value, i32) {
        let output = Command::new(CAUCHYFS)
            .args(["status", "--json"])
            .args(paths)
            .output()
            .expect("the binary runs");
        let value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}\n{}", self.log()));
        (value, output.status.code().expect("it was not killed"))
    }

    /// Returns what `check` says of the directories, and its exit code; it logs nothing beside its report.
    #[track_caller]
    pub(crate) fn check(&self, options: &[&str]) -> (String, i32) {
        let output = Command::new(CAUCHYFS)
            .arg("check")
            .args(options)
            .args(&self.members)
            .output()
            .expect("the binary runs");
        let beside = String::from_utf8_lossy(&output.stderr);
        let is_ours = |line: &str| line.starts_with("cauchyfs: ") || line.starts_with("  ");
        assert!(beside.lines().all(is_ours), "check {options:?}: {beside}");
        let said = String::from_utf8(output.stdout).expect("it is text");
        (said, output.status.code().expect("it was not killed"))
    }

    /// Fails unless every stripe has all its shards, right in every byte, and nothing else is wrong with the
    /// directories.
    #[track_caller]
    pub(crate) fn assert_intact(&self) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.assert_intact_in(&all, self.losses);
    }

    /// The same of the directories of some members, which may lose `losses` more of them.
    #[track_caller]
    pub(crate) fn assert_intact_in(&self, members: &[usize], losses: usize) {
        let directories = members.iter().map(|&index| text(&self.members[index]));
        let arguments: Vec<&str> = ["check", "--deep"].into_iter().chain(directories).collect();
        let output = run(CAUCHYFS, &arguments);
        let said = String::from_utf8_lossy(&output.stdout);
        // Others may be away, and that is all.
        let is_all = members.len() == self.members.len();
        let expected = if is_all { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        let survives = match losses {
            0 => "would not survive another loss".to_owned(),
            1 => "survive the loss of 1 more member".to_owned(),
            _ => format!("survive the loss of {losses} more members"),
        };
        let rows: Vec<&str> = said
            .lines()
            .filter(|line| line.contains(" surviv"))
            .collect();
        // The fewest losses come first. A short stripe, of which a data shard is empty, may survive more.
        let fewest = rows.first();
        assert!(fewest.is_some_and(|row| row.ends_with(&survives)), "{said}");
        // The name of a file may be any word.
        let is_finding = |line: &&str| !line.starts_with("less protected for that: ");
        for line in said.lines().filter(is_finding) {
            for fault in ["shard wrong", "shards wrong", "damaged", "fault"] {
                assert!(!line.contains(fault), "{said}");
            }
        }
    }

    /// Returns how many members `status` holds for `state`.
    pub(crate) fn members_in(&self, state: &str) -> usize {
        let (status, _) = self.status();
        let members = status["members"].as_array().expect("members are listed");
        members
            .iter()
            .filter(|member| member["state"] == state)
            .count()
    }

    /// Fails unless every stripe has all its shards.
    #[track_caller]
    pub(crate) fn assert_full_redundancy(&self) {
        let (status, _) = self.status();
        let rows = status["redundancy"].as_array().expect("rows are listed");
        assert_eq!(rows.len(), 1, "{status}\n{}", self.log());
        assert_eq!(rows[0]["losses_tolerated"], self.losses, "{status}");
    }

    /// Fails unless every stripe has all its shards, and every member is there.
    #[track_caller]
    pub(crate) fn assert_healthy(&self) {
        let (status, code) = self.status();
        assert_eq!(status["state"], "healthy", "{status}\n{}", self.log());
        assert_eq!(code, 0, "{status}");
        self.assert_full_redundancy();
    }

    /// Mounts a disk that failed again.
    pub(crate) fn mount_disk_again(&mut self, index: usize) {
        self.disks[index].mount_again();
    }

    /// Switches a disk on again whose power was cut.
    pub(crate) fn restart_disk(&mut self, index: usize) {
        self.disks[index].restart();
    }

    /// Has everything that is written to a disk wait, until it is thawed or dropped.
    pub(crate) fn freeze_disk(&mut self, index: usize) {
        self.disks[index].freeze();
    }

    /// See [`TestVolume::freeze_disk`].
    pub(crate) fn thaw_disk(&mut self, index: usize) {
        self.disks[index].thaw();
    }

    /// Leaves no room on a disk.
    pub(crate) fn fill_disk(&self, index: usize) {
        self.disks[index].fill();
    }

    /// Gives back what [`TestVolume::fill_disk`] took.
    pub(crate) fn empty_disk(&self, index: usize) {
        self.disks[index].empty();
    }

    /// Deletes a member's directory, with everything in it.
    pub(crate) fn delete_member(&self, index: usize) {
        // The daemon may add a file while the directory is being emptied.
        eventually("the directory is deleted", || {
            fs::remove_dir_all(&self.members[index]).is_ok() || !self.members[index].exists()
        });
    }

    /// Returns a path on the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// Returns the daemons' log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon() {
            run("kill", &["-KILL", &daemon.to_string()]);
        }
        let mountpoint = self.mountpoint.to_str().expect("test paths are text");
        // Until nothing is mounted there any more.
        while run("umount", &["-l", mountpoint]).status.success() {}
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}", self.log());
        }
    }
}
