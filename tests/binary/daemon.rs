//! The files that a daemon leaves alone, and the actions that others may take beside it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{
    CAUCHYFS, PATIENCE, Shape, TestVolume, check_large, drop_caches, eventually, must, pattern,
    run, skip_mounts, text, write_large,
};

#[test]
fn a_signal_takes_away_the_own_mount_and_nothing_that_took_its_place() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let open = File::create(volume.path("open")).unwrap();
    let daemon = volume.daemon().expect("a daemon serves the mount");
    // Without a helper of mount(8), which may be of another version.
    must("umount", &["-i", "-l", text(&volume.mountpoint)]);
    must("mount", &["-t", "tmpfs", "none", text(&volume.mountpoint)]);
    must("kill", &["-TERM", &daemon.to_string()]);
    eventually("the daemon is gone", || volume.daemon().is_none());
    assert!(
        run("mountpoint", &["-q", text(&volume.mountpoint)])
            .status
            .success()
    );
    drop(open);
    must("umount", &[text(&volume.mountpoint)]);
    volume.mount();
    assert!(volume.path("open").exists());
    volume.unmount();
}

/// The mounting process may be killed while the daemon opens the volume.
#[test]
fn a_daemon_whose_mounting_process_is_gone_mounts_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    drop(reader);
    let ended = Command::new(CAUCHYFS)
        .args(["mount", "--report", "--log-file"])
        .arg(volume.home.join("log"))
        .args(&volume.members)
        .arg(&volume.mountpoint)
        .stdout(Stdio::from(writer))
        .status()
        .expect("the binary runs");
    assert!(!ended.success(), "{ended}");
    let log = volume.log();
    assert!(log.contains("nothing is mounted"), "{log}");
    let mounted = format!("{} is mounted", volume.mountpoint.display());
    assert!(!log.contains(&mounted), "{log}");
    assert!(
        !run("mountpoint", &["-q", text(&volume.mountpoint)])
            .status
            .success()
    );
    // The directories are free.
    volume.mount();
    volume.unmount();
}

#[test]
fn signals_that_ask_for_no_end_leave_the_daemon_alone() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let daemon = volume.daemon().expect("a daemon serves the mount");
    for (signal, heard) in [("USR1", "SIGUSR1"), ("USR2", "SIGUSR2"), ("HUP", "SIGHUP")] {
        must("kill", &[&format!("-{signal}"), &daemon.to_string()]);
        eventually("the signal is heard", || volume.log().contains(heard));
        assert_eq!(volume.daemon(), Some(daemon), "{signal}");
    }
    fs::write(volume.path("f"), "x").unwrap();
    volume.unmount();
}

#[test]
fn a_client_that_hangs_up_leaves_no_line_in_the_log() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let socket = volume.control_socket();
    for piece in [b"".as_slice(), b"{"] {
        let mut client = UnixStream::connect(&socket).expect("the daemon listens");
        client.write_all(piece).expect("the daemon reads");
    }
    let mut client = UnixStream::connect(&socket).expect("the daemon listens");
    client.write_all(b"{}\n").expect("the daemon reads");
    let mut answer = String::new();
    client
        .read_to_string(&mut answer)
        .expect("the daemon answers");
    eventually("a malformed request is noted", || {
        volume.log().contains("a request on the control socket")
    });
    assert_eq!(volume.status().1, 0);
    let log = volume.log();
    let lines = log.lines().filter(|line| line.contains("control socket"));
    assert_eq!(lines.count(), 1, "{log}");
    volume.unmount();
}

#[test]
fn a_lock_of_the_mounting_process_does_not_stay_with_the_daemon() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let lock = volume.home.join("lock");
    let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    let script = r#"exec 9>"$1"; flock 9; shift; exec "$@""#;
    let mut arguments = vec!["-c", script, "sh", text(&lock), CAUCHYFS, "mount"];
    arguments.extend(&members);
    arguments.push(text(&volume.mountpoint));
    must("sh", &arguments);
    must("flock", &["-n", text(&lock), "true"]);
    volume.unmount();
}

/// The home may lie on the mounted volume itself, whose daemon must not wait for its own answers.
#[test]
fn the_driver_of_gpus_keeps_no_kernels_in_the_home_of_the_mounting_user() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let is_kept_out = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let mut variables = environment.split(|&byte| byte == 0);
        variables.any(|variable| variable == b"CUDA_CACHE_DISABLE=1")
    };
    volume.mount();
    assert!(is_kept_out(
        volume.daemon().expect("a daemon serves the mount")
    ));
    volume.unmount();
    let mut command = Command::new(CAUCHYFS);
    command
        .args(["mount", "--foreground"])
        .args(&volume.members);
    command.env("CUDA_CACHE_DISABLE", "0");
    let mut foreground = command.arg(&volume.mountpoint).spawn().unwrap();
    eventually("it is mounted", || {
        let mounted = run("mountpoint", &["-q", text(&volume.mountpoint)]);
        mounted.status.success()
    });
    assert!(is_kept_out(foreground.id()));
    must("umount", &[text(&volume.mountpoint)]);
    assert!(foreground.wait().unwrap().success());
}

#[test]
fn few_descriptors_are_enough_for_many_segments() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        segment: "1MiB",
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(shape, 1024);
    let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    let mut arguments = vec!["--nofile=128:128", CAUCHYFS, "mount"];
    arguments.extend(&members);
    arguments.push(text(&volume.mountpoint));
    must("prlimit", &arguments);
    write_large(&volume.path("large"), 1, 300 << 20).unwrap();
    drop_caches();
    check_large(&volume.path("large"), 1, 300 << 20);
    assert_eq!(volume.members_in("online"), 6);
    volume.unmount();
}

#[test]
fn readers_and_a_writer_keep_each_other_out() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let all = [0, 1, 2, 3, 4, 5];
    let output = volume.try_mount(&all, &["-o", "ro"]);
    assert!(output.status.success(), "{output:?}");
    let elsewhere = volume.home.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let mut arguments = vec!["mount"];
    arguments.extend(volume.members.iter().map(|member| text(member)));
    arguments.push(text(&elsewhere));
    let output = run(CAUCHYFS, &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // A mount that is only read is watched all the same.
    volume.delete_member(2);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    volume.unmount();
}

/// Commands that have yet to say what they want, or take long, hold up no others.
#[test]
fn commands_do_not_wait_for_one_another() {
    const SILENT: usize = 20;
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let socket = volume.control_socket();
    let connect = |_| UnixStream::connect(&socket).expect("the daemon listens");
    // One after the other they would be waited for longer than a command waits for an answer.
    let silent: Vec<UnixStream> = (0..SILENT).map(connect).collect();
    let asked: Vec<Child> = (0..4)
        .map(|_| {
            let mut status = Command::new(CAUCHYFS);
            status.arg("status").arg(&volume.mountpoint);
            status
                .stdout(Stdio::null())
                .spawn()
                .expect("the binary runs")
        })
        .collect();
    for mut status in asked {
        assert!(status.wait().expect("it ends").success());
    }
    volume.unmount();
    drop(silent);
}

#[test]
fn status_of_too_few_directories_says_which_are_there() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let some: Vec<_> = volume.members[..3].iter().collect();
    let (status, code) = volume.status_of(&some);
    assert_eq!(code, 3, "nothing is known to be lost");
    assert_eq!(status["state"], "failed");
    assert_eq!(status["label"], "test");
    assert_eq!(status["geometry"]["data"], 4);
    let members: Vec<_> = status["members"].as_array().unwrap().iter().collect();
    assert_eq!(members.len(), 6);
    for (index, member) in members.iter().enumerate() {
        let expected = if index < 3 { "online" } else { "missing" };
        assert_eq!(member["state"], expected, "{member}");
    }
}

/// Damages one block of the file of the one segment that each directory has, in the middle.
fn damage(member: &Path, offset: u64) {
    for entry in fs::read_dir(member.join("segments")).expect("the member is there") {
        let path = entry.expect("the member is there").path();
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("the member is there");
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, offset)
            .expect("the member is there");
        for byte in &mut block {
            *byte ^= 0x55;
        }
        file.write_all_at(&block, offset)
            .expect("the member is there");
    }
}

#[test]
fn extract_saves_every_readable_byte_around_unreadable_ones() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let content = pattern(1, 3 << 20);
    fs::write(volume.path("damaged"), &content).unwrap();
    fs::write(volume.path("whole"), "whole").unwrap();
    fs::set_permissions(volume.path("damaged"), fs::Permissions::from_mode(0o640)).unwrap();
    volume.unmount();
    // One more block than parity makes up for, at the same place of the first stripe.
    for member in &volume.members[..3] {
        damage(member, 8192);
    }
    let out = volume.home.join("out");
    let extract = || {
        let mut command = Command::new(CAUCHYFS);
        command.arg("extract").args(&volume.members);
        let output = command.arg("--to").arg(&out).output();
        let output = output.expect("the binary runs");
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = extract();
    assert!(said.starts_with("2 files, "), "{said}");
    assert!(said.contains("\n1 of them incomplete, "), "{said}");
    assert_eq!(fs::read(out.join("whole")).unwrap(), b"whole");
    assert!(!out.join("damaged").exists(), "it is not whole");
    let mode = fs::metadata(out.join("damaged.damaged"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o7777,
        0o640,
        "an incomplete file is finished like any other"
    );
    let again = extract();
    assert!(again.contains("\n1 file of an earlier run"), "{again}");
    let mut names: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["damaged.damaged", "whole"]);
    let copied = fs::read(out.join("damaged.damaged")).unwrap();
    assert_eq!(copied.len(), content.len());
    let wrong: Vec<_> = (0..content.len() / 4096)
        .map(|block| block * 4096..(block + 1) * 4096)
        .filter(|range| copied[range.clone()] != content[range.clone()])
        .collect();
    assert!(
        (1..=3).contains(&wrong.len()),
        "three blocks are damaged: {wrong:?}"
    );
    assert!(
        wrong
            .iter()
            .all(|range| copied[range.clone()].iter().all(|&byte| byte == 0))
    );
}

/// A task that waits for the kernel to write back must leave threads for those writes, which take long on a full
/// volume.
#[test]
fn seeking_in_many_files_with_unwritten_pages_ends_on_a_full_volume() {
    const FILES: usize = 40;
    const PAGES: usize = 64 << 12;
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 1,
        parity: 1,
        members: 2,
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(shape, 192);
    volume.mount();
    let connection = Connection::of(&volume);
    let files: Vec<File> = (0..FILES)
        .map(|number| File::create(volume.path(&format!("f{number}"))).unwrap())
        .collect();
    let filler = File::create(volume.path("filler")).unwrap();
    let full = (0..512_u64).find(|&mebibyte| {
        let written = filler.write_all_at(&pattern(mebibyte, 1 << 20), mebibyte << 20);
        written.and_then(|()| filler.sync_all()).is_err()
    });
    assert!(full.is_some(), "192 MiB of backing cannot hold this");
    let (ended, ends) = std::sync::mpsc::channel();
    for (seed, file) in (0..).zip(files) {
        let ended = ended.clone();
        std::thread::spawn(move || {
            // A full volume may take them or refuse them; it must say so.
            let written = file.write_all_at(&pattern(seed, PAGES), 0);
            let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0));
            let told = ended.send((written.is_ok(), hole));
            told.expect("somebody waits for it");
        });
    }
    for number in 0..FILES {
        match ends.recv_timeout(PATIENCE) {
            Ok((_, Ok(offset))) => assert!(offset <= PAGES as u64),
            Ok((_, Err(rustix::io::Errno::NXIO | rustix::io::Errno::IO))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                connection.abort();
                panic!("{number} of {FILES} seeks ended: {error}");
            }
        }
    }
    drop(filler);
    fs::remove_file(volume.path("filler")).unwrap();
    volume.unmount();
}

/// A mount's connection to the kernel, which can be cut off where nothing else ends it.
pub(crate) struct Connection(std::path::PathBuf);

impl Connection {
    pub(crate) fn of(volume: &TestVolume) -> Self {
        let control = Path::new("/sys/fs/fuse/connections");
        if fs::read_dir(control)
            .expect("FUSE is there")
            .next()
            .is_none()
        {
            must("mount", &["-t", "fusectl", "none", text(control)]);
        }
        let device = rustix::fs::stat(&volume.mountpoint)
            .expect("it is mounted")
            .st_dev;
        Self(control.join(rustix::fs::minor(device).to_string()))
    }

    pub(crate) fn abort(&self) {
        fs::write(self.0.join("abort"), "1").expect("root may cut it off");
    }
}
