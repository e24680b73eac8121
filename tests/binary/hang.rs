//! A member that hangs: a directory of another volume, whose daemon is stopped.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{
    Disk, DiskKind, Shape, TestVolume, check_large, drop_caches, eventually, must, run,
    skip_mounts, write_large,
};

/// A daemon that does nothing until this is dropped.
struct Stopped(String);

impl Stopped {
    fn stop(daemon: u32) -> Self {
        must("kill", &["-STOP", &daemon.to_string()]);
        Self(daemon.to_string())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        run("kill", &["-CONT", &self.0]);
    }
}

/// Writes and makes durable, until told to stop.
fn write_and_sync(path: &Path, stop: &AtomicBool) {
    let mut file = File::create(path).expect("the mount is writable");
    while !stop.load(Ordering::Relaxed) {
        file.write_all(&[7; 10_000]).expect("writing goes on");
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
    let below = TestVolume::create(mirror, 1024);
    below.mount();
    let disk = Disk::new(DiskKind::Tmpfs, 512);
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
        // What hung was still on its way to the daemon that is stopped, and was called back.
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

    volume.mount_degraded(&[1, 2, 3]);
    check_large(&volume.path("large"), 1, 20 << 20);
    volume.unmount();
    drop(stopped);
    // What was written without it has fewer shards.
    volume.mount_degraded(&[0, 1, 2, 3]);
    check_large(&volume.path("large"), 1, 20 << 20);
    eventually("it has what it missed", || volume.status().1 == 0);
    volume.unmount();
    volume.assert_intact();
    below.unmount();
}
