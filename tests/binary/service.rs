//! A daemon as a service: waiting for members, and reports to a manager of services, which the test takes the place of.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{
    CAUCHYFS, PATIENCE, Shape, TestVolume, eventually, must, run, said, skip_mounts, text,
};

/// The interval of the watchdog, of which the daemon reports several times in each.
const WATCHDOG_MICROSECONDS: &str = "3000000";

/// Writes the file of a volume; returns its path.
fn volume_file(volume: &TestVolume, rest: &str) -> PathBuf {
    let directories = volume.members.iter();
    let mut lines: Vec<String> = directories
        .map(|path| format!("directory = {}", path.display()))
        .collect();
    lines.push(format!("mountpoint = {}", volume.mountpoint.display()));
    lines.push("transport = classic\nthreads = 2".to_owned());
    lines.push(format!("log-file = {}", volume.home.join("log").display()));
    let path = volume.home.join("photos.conf");
    fs::write(&path, lines.join("\n") + "\n" + rest).expect("there is room");
    path
}

/// A service that was started, and what it reports.
struct Service {
    daemon: Child,
    reports: UnixDatagram,
}

impl Service {
    fn start(volume: &TestVolume, rest: &str) -> Self {
        let file = volume_file(volume, rest);
        let socket = volume.home.join("notify");
        let reports = UnixDatagram::bind(&socket).expect("the socket is new");
        reports
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket has timeouts");
        let command = "WATCHDOG_PID=$$ exec \"$0\" mount --foreground --volume \"$1\"";
        let daemon = Command::new("sh")
            .args(["-c", command, CAUCHYFS, text(&file)])
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", WATCHDOG_MICROSECONDS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        Self { daemon, reports }
    }

    /// Waits for a report with these words.
    #[track_caller]
    fn reports(&self, words: &str) {
        let mut seen = Vec::new();
        // Each report may be one of the watchdog, of which there is one a second.
        for _ in 0..PATIENCE.as_secs() {
            let mut report = [0; 4096];
            let len = self.reports.recv(&mut report);
            let len = len.unwrap_or_else(|error| panic!("no `{words}`: {error}; {seen:?}"));
            let report = String::from_utf8_lossy(&report[..len]).into_owned();
            if report.contains(words) {
                return;
            }
            seen.push(report);
        }
        panic!("no `{words}`: {seen:?}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        if let Ok(None) = self.daemon.try_wait() {
            self.daemon.kill().expect("it is a child");
            self.daemon.wait().expect("it is a child");
        }
    }
}

#[test]
fn a_service_waits_for_members_mounts_as_soon_as_enough_are_there_and_proves_that_it_serves() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("file"), "kept").expect("there is room");
    volume.unmount();
    let away = |index: usize| volume.members[index].with_extension("away");
    for index in [0, 1, 4] {
        fs::rename(&volume.members[index], away(index)).expect("it is there");
    }
    // One is an empty place to mount a disk on.
    fs::create_dir(&volume.members[0]).expect("the name is free");
    let mut service = Service::start(&volume, "wait-for-members = forever\n");
    service.reports("STATUS=waiting for members: 3 ");
    let ended = service.daemon.try_wait().expect("it is a child");
    assert!(ended.is_none(), "{ended:?}");
    fs::rename(away(4), &volume.members[4]).expect("it is there");
    service.reports("READY=1");
    let kept = fs::read_to_string(volume.path("file")).expect("four of six are enough");
    assert_eq!(kept, "kept");
    service.reports("WATCHDOG=1");
    service.reports("WATCHDOG=1");
    fs::rename(away(1), &volume.members[1]).expect("it is there");
    eventually("the late member takes part", || {
        volume.members_in("online") == 5
    });
    must("kill", &["-TERM", &service.daemon.id().to_string()]);
    service.reports("STOPPING=1");
    let ended = service.daemon.wait().expect("it is a child");
    assert!(ended.success(), "{ended}\n{}", volume.log());
}

#[test]
fn a_mount_waits_no_longer_for_members_than_it_is_told_to() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let few = |options: &[&str]| {
        let output = volume.try_mount(&[0, 1, 2], options);
        (output.status.code(), said(&output))
    };
    let (code, text) = few(&["--wait-for-members", "1s"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("waiting for members: 3 "), "{text}");
    let (code, text) = few(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(!text.contains("waiting"), "{text}");
    // Where enough are there, it waits for no others.
    let output = volume.try_mount(&[0, 1, 2, 3], &["--wait-for-members", "forever"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    volume.unmount();
}

#[test]
fn a_wait_does_not_hide_other_failures() {
    let home = tempfile::tempdir().expect("there is room");
    let file = home.path().join("file");
    fs::write(&file, "").expect("there is room");
    let line = [
        "mount",
        "--wait-for-members",
        "forever",
        text(&file),
        "/mnt",
    ];
    let output = run(CAUCHYFS, &line);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("is no directory"),
        "{}",
        said(&output)
    );
    let output = run(CAUCHYFS, &["mount", "--volume", "./none.conf"]);
    assert!(
        said(&output).contains("cannot read ./none.conf"),
        "{}",
        said(&output)
    );
    assert_eq!(output.status.code(), Some(1));
}
