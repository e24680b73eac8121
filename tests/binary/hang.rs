//! A member that hangs: a directory of another volume, whose daemon is stopped.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{
    CAUCHYFS, Disk, DiskKind, Shape, TestVolume, check_large, drop_caches, eventually, must, run,
    said, skip_mounts, text, write_large,
};

/// A daemon that does nothing until this is dropped.
struct Stopped(String);

impl Stopped {
    fn stop(daemon: u32) -> Self {
        must("kill", &["-STOP", &daemon.to_string()]);
        let stopped = Self(daemon.to_string());
        // A thread that has not heard of it yet may take one more request. A process that waits for its answer cannot end.
        eventually("all threads are stopped", || stopped.is_complete());
        stopped
    }

    /// Returns whether every thread has stopped.
    fn is_complete(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).expect("it is there");
        let is_stopped = |thread: io::Result<fs::DirEntry>| {
            let status = thread.and_then(|thread| fs::read_to_string(thread.path().join("status")));
            // One may end just now.
            status.is_ok_and(|status| status.contains("State:\tT"))
        };
        threads.into_iter().all(is_stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        run("kill", &["-CONT", &self.0]);
    }
}

/// Writes and makes durable, until told to stop. The file gets no longer than 10 MB, so that a fast machine does not fill
/// the volume.
fn write_and_sync(path: &Path, stop: &AtomicBool) {
    let bytes = [7; 10_000];
    let file = File::create(path).expect("the mount is writable");
    for record in (0..1000u64).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        file.write_all_at(&bytes, record * bytes.len() as u64)
            .expect("writing goes on");
        file.sync_all().expect("syncing goes on");
    }
}

#[test]
fn unmount_ends_although_a_member_hangs_and_the_others_can_be_mounted_at_once() {
    if skip_mounts() {
        return;
    }
    let (mirror, array) = (
        Shape {
            data: 1,
            parity: 1,
            members: 2,
            ..Shape::FOUR_TWO
        },
        Shape {
            data: 2,
            parity: 1,
            members: 4,
            ..Shape::FOUR_TWO
        },
    );
    let below = TestVolume::create(mirror, 2048);
    below.mount();
    let disk = Disk::new(DiskKind::Tmpfs, 2048);
    let on_disk = (1..4).map(|number| disk.path().join(format!("d{number}")));
    let members = [below.path("d0")].into_iter().chain(on_disk).collect();
    let volume = TestVolume::create_in(array, members, vec![disk]);
    volume.mount();
    write_large(&volume.path("large"), 1, 20 << 20).unwrap();
    drop_caches();

    let daemon = volume.daemon().expect("a daemon serves the mount");
    let stopped = Stopped::stop(below.daemon().expect("a daemon serves the mount"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (path, stop) = (volume.path(&format!("f{writer}")), &stop);
            scope.spawn(move || write_and_sync(&path, stop));
        }
        check_large(&volume.path("large"), 1, 20 << 20);
        eventually("the member is left behind", || {
            volume.members_in("faulted") == 1
        });
        stop.store(true, Ordering::Relaxed);
    });
    let output = volume.try_unmount();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        // The command that hung was still on its way to the daemon that is stopped, and was called back.
        Some(0) => {}
        Some(3) => {
            assert!(said.contains(&daemon.to_string()), "{said}");
            assert!(
                said.contains(&volume.members[0].display().to_string()),
                "{said}"
            );
        }
        _ => panic!("{output:?}\n{}", volume.log()),
    }

    // The hanging one is named as well, and not waited for.
    volume.mount_degraded(&[0, 1, 2, 3]);
    check_large(&volume.path("large"), 1, 20 << 20);
    volume.unmount();
    drop(stopped);
    // Files that were written without it have fewer shards, unless they are rebuilt by the time the command looks.
    let output = volume.try_mount(&[0, 1, 2, 3], &[]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    check_large(&volume.path("large"), 1, 20 << 20);
    eventually("it has what it missed", || volume.status().1 == 0);
    volume.unmount();
    volume.assert_intact();
    below.unmount();
}

/// Also while the volume is opened, in whichever stage of that it is noticed: where branches are looked for there are most.
#[test]
fn a_mount_waits_for_a_directory_that_hangs_as_long_as_it_was_told_and_goes_on_without_it() {
    if skip_mounts() {
        return;
    }
    let mirror = Shape {
        data: 1,
        parity: 1,
        members: 2,
        ..Shape::FOUR_TWO
    };
    let below = TestVolume::create(mirror, 1024);
    below.mount();
    let disk = Disk::new(DiskKind::Tmpfs, 512);
    let on_disk = (1..3).map(|number| disk.path().join(format!("d{number}")));
    let members = [below.path("d0")].into_iter().chain(on_disk).collect();
    let shape = Shape {
        parity: 2,
        members: 3,
        ..mirror
    };
    let volume = TestVolume::create_in(shape, members, vec![disk]);
    volume.mount();
    write_large(&volume.path("large"), 1, 5 << 20).unwrap();
    volume.unmount();

    let stopped = Stopped::stop(below.daemon().expect("a daemon serves the mount"));
    let mounted = volume.try_mount(&[0, 1, 2], &["-v", "--member-timeout", "1100ms"]);
    assert_eq!(mounted.status.code(), Some(3), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned() + &volume.log();
    let hung = volume.members[0].display();
    let line = format!("{hung} has not answered within 1.1s, and is not waited for again");
    assert!(said.contains(&line), "{said}");
    assert!(said.contains("it does not answer"), "{said}");
    check_large(&volume.path("large"), 1, 5 << 20);
    drop(stopped);
    eventually("it is taken in when it answers", || volume.status().1 == 0);
    volume.unmount();
    volume.assert_intact();
    below.unmount();
}

/// A process that keeps a directory locked, as a daemon does that cannot end.
struct Keeper(Child);

impl Keeper {
    fn of(directory: &Path) -> Self {
        let keep = ["--no-fork", "-x", text(directory)];
        let mut keeper = Command::new("flock")
            .args(keep)
            .args(["sh", "-c", "echo has it; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is there");
        let mut line = String::new();
        let pipe = keeper.stdout.take().expect("it is a pipe");
        BufReader::new(pipe)
            .read_line(&mut line)
            .expect("it says so");
        assert_eq!(line, "has it\n");
        Self(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }
}

#[test]
fn a_directory_that_an_old_daemon_keeps_is_left_out_and_comes_back_when_that_ends() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    write_large(&volume.path("large"), 1, 20 << 20).unwrap();
    volume.unmount();
    let keeper = Keeper::of(&volume.members[2]);
    let named = format!("it is in use by process {}", keeper.0.id());

    let all: Vec<_> = volume.members.iter().collect();
    let (status, code) = volume.status_of(&all);
    assert_eq!(code, 3, "{status}");
    let reason = status["members"][2]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with(&named), "{status}");
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(mounted.status.code(), Some(3), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr);
    assert!(said.contains(&named), "{said}");
    check_large(&volume.path("large"), 1, 20 << 20);
    write_large(&volume.path("since"), 2, 20 << 20).unwrap();
    assert_eq!(volume.members_in("missing"), 1);
    drop(keeper);
    eventually("it is back and has what it missed", || {
        volume.status().1 == 0
    });
    volume.unmount();
    volume.assert_intact();
}

/// Returns how a command ended, and all that it said; one that comes to no end is cut off.
fn ended(arguments: &[&str]) -> (Option<i32>, String) {
    let all = [&["-s", "KILL", "60", CAUCHYFS], arguments].concat();
    let output = run("timeout", &all);
    (output.status.code(), said(&output))
}

/// The system keeps all that a process had open until the last of what hangs is over, however dead it is.
#[test]
fn a_daemon_that_is_killed_while_a_disk_hangs_is_told_from_one_that_lives() {
    if skip_mounts() {
        return;
    }
    let frozen = 5;
    let mut disks: Vec<_> = (0..5).map(|_| Disk::new(DiskKind::Tmpfs, 256)).collect();
    disks.push(Disk::new(DiskKind::Ext4, 256));
    let mut volume = TestVolume::create_over(Shape::FOUR_TWO, disks);
    let all: Vec<usize> = (0..6).collect();
    let mounted = volume.try_mount(&all, &["--member-timeout", "3s"]);
    assert!(mounted.status.success(), "{mounted:?}");
    write_large(&volume.path("old"), 1, 10 << 20).unwrap();
    must("sync", &["-f", text(&volume.mountpoint)]);
    let daemon = volume
        .daemon()
        .expect("a daemon serves the mount")
        .to_string();
    volume.freeze_disk(frozen);
    write_large(&volume.path("new"), 2, 10 << 20).unwrap();
    File::open(volume.path("new")).unwrap().sync_all().unwrap();
    eventually("the disk is left behind", || {
        volume.members_in("online") == 5
    });
    must("kill", &["-KILL", &daemon]);
    let stat = format!("/proc/{daemon}/stat");
    eventually("it is dead, and there", || {
        std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
    });

    let mountpoint = text(&volume.mountpoint).to_owned();
    let (code, said) = ended(&["status", &mountpoint]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is gone"), "{said}");
    let healthy: Vec<&str> = volume.members[..frozen]
        .iter()
        .map(|dir| text(dir))
        .collect();
    let (code, said) = ended(&[&["mount"], &healthy[..], &[&mountpoint]].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&daemon) && said.contains("unmount"), "{said}");
    let (code, said) = ended(&["unmount", &mountpoint]);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains(&format!("its process {daemon} cannot end")),
        "{said}"
    );
    let (code, said) = ended(&["unmount", "--lazy", &mountpoint]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing is mounted"), "{said}");
    // The operation that hangs may yet reach the disk, and where else is unknown.
    for command in [&["mount"][..], &["status"], &["check", "--repair"]] {
        let rest: &[&str] = if command == ["mount"] {
            &[&mountpoint]
        } else {
            &[]
        };
        let (code, said) = ended(&[command, &healthy[..], rest].concat());
        assert_eq!(code, Some(2), "{command:?}: {said}");
        let held_up = format!("is in use by process {daemon} (cauchyfs), which was killed");
        assert!(said.contains(&held_up), "{command:?}: {said}");
    }

    volume.thaw_disk(frozen);
    eventually("it is gone", || std::fs::metadata(&stat).is_err());
    let mounted = volume.try_mount(&all, &[]);
    assert!(matches!(mounted.status.code(), Some(0 | 3)), "{mounted:?}");
    eventually("the disk has what it missed", || volume.status().1 == 0);
    check_large(&volume.path("old"), 1, 10 << 20);
    check_large(&volume.path("new"), 2, 10 << 20);
    volume.unmount();
    volume.assert_intact();
}
