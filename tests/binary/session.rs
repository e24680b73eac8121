//! The main job on real mounts: data in, directories lost, data out.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{
    CAUCHYFS, Disk, DiskKind, Load, Shape, TestVolume, check_large, compare_trees, copy_program,
    copy_source, drop_caches, eventually, must, pattern, run, skip_mounts, text, write_large,
};

/// Bytes of the large file: many stripes, more than the caches hold.
const LARGE: u64 = 300 << 20;

/// The first paragraph of the project's first issue.
#[test]
fn two_of_six_directories_are_deleted_under_load_and_no_byte_is_lost() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    assert_eq!(volume.status().1, 0, "a fresh volume is healthy");
    let original = volume.home.join("original");
    copy_source(&original);
    must("cp", &["-a", text(&original), text(&volume.path("source"))]);
    write_large(&volume.path("large"), 1, LARGE).expect("there is room");

    let load = Load::start(volume.path("load"));
    load.goes_on();
    volume.delete_member(1);
    volume.delete_member(4);
    eventually("both are missing", || volume.members_in("missing") == 2);
    load.goes_on();
    let loaded = load.end();

    let (status, code) = volume.status();
    assert_eq!((status["state"].as_str(), code), (Some("degraded"), 3));
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    compare_trees(&original, &volume.path("source"));
    must("cp", &["-a", text(&original), text(&volume.path("copy"))]);
    write_large(&volume.path("new"), 2, 20 << 20).expect("new files can be written");
    volume.unmount();

    // Any order will do.
    volume.mount_degraded(&[5, 0, 3, 2]);
    check_large(&volume.path("large"), 1, LARGE);
    check_large(&volume.path("new"), 2, 20 << 20);
    loaded.check();
    compare_trees(&original, &volume.path("source"));
    compare_trees(&original, &volume.path("copy"));
    volume.unmount();

    // So will the paths of directories that are gone; they are named as such.
    volume.mount_degraded(&[0, 1, 2, 3, 4, 5]);
    let (status, _) = volume.status();
    assert_eq!(status["members"][1]["reason"], "does not exist");
    volume.unmount();
    volume.assert_intact_in(&[0, 2, 3, 5], 0);
}

#[test]
fn a_volume_works_alike_on_tmpfs_ext4_xfs_and_btrfs() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        parity: 1,
        members: 3,
        ..Shape::FOUR_TWO
    };
    for kind in DiskKind::ALL {
        let volume = TestVolume::create_on(shape, Disk::new(kind, 768));
        volume.mount();
        write_large(&volume.path("large"), 3, 40 << 20)
            .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        fs::write(volume.path("small"), "small").expect("there is room");
        volume.remount();
        check_large(&volume.path("large"), 3, 40 << 20);
        volume.delete_member(2);
        drop_caches();
        check_large(&volume.path("large"), 3, 40 << 20);
        fs::remove_file(volume.path("large")).expect("deleting works degraded");
        volume.unmount();
        volume.mount_degraded(&[0, 1]);
        assert_eq!(
            fs::read(volume.path("small")).unwrap(),
            b"small",
            "{kind:?}"
        );
        assert!(!volume.path("large").exists(), "{kind:?}");
        volume.unmount();
    }
}

#[test]
fn many_directories_and_wide_stripes_bear_all_the_losses_they_were_made_for() {
    if skip_mounts() {
        return;
    }
    let many = Shape {
        members: 20,
        segment: "4MiB",
        ..Shape::FOUR_TWO
    };
    let wide = Shape {
        data: 64,
        parity: 16,
        members: 80,
        segment: "2MiB",
        unit: "64KiB",
        ..Shape::FOUR_TWO
    };
    for shape in [many, wide] {
        // Journals of 80 directories take 5 GiB.
        let volume = TestVolume::create_on(shape, Disk::new(DiskKind::Xfs, 16 << 10));
        volume.mount();
        write_large(&volume.path("large"), 1, LARGE / 3).expect("there is room");
        copy_source(&volume.path("source"));
        assert_eq!(volume.members_in("online"), shape.members);
        // Those with the index among them.
        let (with_index, without): (Vec<usize>, Vec<usize>) =
            (0..shape.members).partition(|&index| volume.members[index].join("index").exists());
        assert_eq!(with_index.len(), shape.parity + 1, "{shape:?}");
        let lost = &with_index[..shape.parity];
        for &index in lost {
            volume.delete_member(index);
        }
        let gone = || volume.members_in("missing") == shape.parity;
        eventually("the losses are seen", gone);
        drop_caches();
        check_large(&volume.path("large"), 1, LARGE / 3);
        write_large(&volume.path("new"), 2, LARGE / 10).expect("new files can be written");
        volume.unmount();
        volume.mount_degraded(&[&with_index[shape.parity..], &without].concat());
        check_large(&volume.path("large"), 1, LARGE / 3);
        check_large(&volume.path("new"), 2, LARGE / 10);
        volume.unmount();
    }
}

#[test]
fn a_full_volume_still_reads_deletes_and_unmounts() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 600);
    volume.mount();
    write_large(&volume.path("first"), 4, 10 << 20).expect("there is room for this one");
    let mut written = 0;
    let error = loop {
        let path = volume.path(&format!("fill{written}"));
        let outcome =
            write_large(&path, written, 16 << 20).and_then(|()| fs::File::open(&path)?.sync_all());
        match outcome {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "600 MiB of backing cannot hold this");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(
        written > 2,
        "most of the space must be usable, {written} files of 16 MiB were"
    );
    drop_caches();
    check_large(&volume.path("first"), 4, 10 << 20);
    for index in 0..=written {
        fs::remove_file(volume.path(&format!("fill{index}"))).expect("deleting always works");
    }
    eventually("the freed space can be used again", || {
        let path = volume.path("again");
        write_large(&path, 5, 20 << 20)
            .and_then(|()| fs::File::open(&path)?.sync_all())
            .is_ok()
    });
    volume.remount();
    check_large(&volume.path("first"), 4, 10 << 20);
    check_large(&volume.path("again"), 5, 20 << 20);
    volume.unmount();
}

#[test]
fn umount_and_sigterm_lose_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let end = |volume: &TestVolume, way: &str| match way {
        "SIGTERM" => {
            let daemon = volume.daemon().expect("a daemon serves the mount");
            must("kill", &["-TERM", &daemon.to_string()]);
        }
        program => unmount_by(program, &volume.mountpoint),
    };
    for (seed, way) in (0..).zip(["umount", "fusermount3", "SIGTERM"]) {
        volume.mount();
        let name = format!("by {way}");
        write_large(&volume.path(&name), seed, 5 << 20).expect("there is room");
        end(&volume, way);
        eventually("the daemon ended", || volume.daemon().is_none());
        volume.mount();
        check_large(&volume.path(&name), seed, 5 << 20);
        volume.unmount();
    }
}

/// Unmounts with a program of the system. A process that another test has just forked may hold our open
/// files for a moment, until it runs its program: that is not this test's business.
fn unmount_by(program: &str, mountpoint: &Path) {
    let options: &[&str] = if program == "fusermount3" {
        &["-u"]
    } else {
        &[]
    };
    eventually("nothing keeps the mount busy", || {
        let output = run(program, &[options, &[text(mountpoint)]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || said.contains("busy"),
            "{output:?}"
        );
        output.status.success()
    });
}

/// `umount` returns before the daemon has flushed; the command that opens the members next waits for that.
#[test]
fn members_that_a_daemon_is_flushing_to_are_waited_for() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    for (seed, program) in (0..).zip(["umount", "fusermount3"]) {
        let name = format!("by {program}");
        volume.mount();
        write_large(&volume.path(&name), seed, 100 << 20).expect("there is room");
        unmount_by(program, &volume.mountpoint);
        volume.mount();
        check_large(&volume.path(&name), seed, 100 << 20);
        unmount_by("umount", &volume.mountpoint);
        let members: Vec<&PathBuf> = volume.members.iter().collect();
        let (status, code) = volume.status_of(&members);
        let found = (status["mounted"].as_bool(), code);
        assert_eq!(found, (Some(false), 0), "{status}\n{}", volume.log());
    }
}

#[test]
fn a_busy_mount_stays_and_names_its_user_until_it_is_taken_away_lazily() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let open = fs::File::create(volume.path("open")).expect("the mount is writable");
    let unmount = |options: &[&str]| {
        let mut command = Command::new(CAUCHYFS);
        command.arg("unmount").args(options).arg(&volume.mountpoint);
        command.output().expect("the binary runs")
    };
    let refused = unmount(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("(process {})", std::process::id())),
        "{said}"
    );
    assert!(unmount(&["--lazy"]).status.success());
    drop(open);
    assert!(
        volume.daemon().is_none(),
        "unmount returns when the daemon is gone"
    );
    volume.mount();
    assert!(volume.path("open").exists());
    volume.unmount();
}

/// A pause between two of very many writes.
const PAUSE: Duration = Duration::from_micros(50);

/// The kernel takes a write into its page cache as long as it trusts the attributes of the file, also without a daemon.
#[test]
fn no_write_to_a_file_of_a_mount_that_was_taken_away_succeeds_and_is_lost() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    for way in ["unmount", "signal"] {
        volume.mount();
        let daemon = volume.daemon().expect("a daemon serves the mount");
        let mut file = fs::File::create(volume.path(way)).expect("the mount is writable");
        let mut idle = fs::File::create(volume.path("idle")).expect("the mount is writable");
        let mut taken = b"first\n".to_vec();
        file.write_all(&taken).expect("the mount is writable");
        let mountpoint = text(&volume.mountpoint);
        let mut ending = match way {
            "unmount" => Command::new(CAUCHYFS)
                .args(["unmount", "--lazy", mountpoint])
                .spawn(),
            _ => Command::new("kill")
                .args(["-TERM", &daemon.to_string()])
                .spawn(),
        }
        .expect("it runs");
        let process = PathBuf::from(format!("/proc/{daemon}"));
        let error = loop {
            let is_over = !process.exists();
            let line = format!("line {}\n", taken.len());
            match file.write_all(line.as_bytes()) {
                Ok(()) => taken.extend(line.as_bytes()),
                Err(error) => break error,
            }
            assert!(!is_over, "{way}: no daemon takes what was written");
            std::thread::sleep(PAUSE);
        };
        // A request that is under way gets the other one.
        let is_cut = matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED)
        );
        assert!(is_cut, "{way}: {error}");
        assert!(ending.wait().expect("it was started here").success());
        eventually("the daemon has ended", || volume.daemon().is_none());
        for file in [&mut file, &mut idle] {
            assert!(file.write_all(b"late").is_err(), "{way}");
        }
        drop((file, idle));
        volume.mount();
        assert!(taken.len() > "first\n".len(), "{way}");
        let found = fs::read(volume.path(way)).expect("it is there");
        let (found_len, taken_len) = (found.len(), taken.len());
        assert!(found == taken, "{way}: {found_len} of {taken_len} bytes");
        assert_eq!(fs::read(volume.path("idle")).expect("it is there"), b"");
        volume.unmount();
    }
}

#[test]
fn files_come_out_of_four_directories_without_root_and_nothing_is_written_there() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::create_dir_all(volume.path("a/b")).unwrap();
    write_large(&volume.path("a/b/large"), 6, 12 << 20).unwrap();
    fs::write(volume.path("a/small"), "small").unwrap();
    fs::hard_link(volume.path("a/small"), volume.path("a/twin")).unwrap();
    std::os::unix::fs::symlink("small", volume.path("a/link")).unwrap();
    fs::write(volume.path("other"), "not asked for").unwrap();
    volume.unmount();
    volume.delete_member(0);
    volume.delete_member(3);
    let sources: Vec<&str> = [1, 2, 4, 5]
        .map(|index| volume.members[index].to_str().unwrap())
        .into();
    for source in &sources {
        must("chmod", &["-R", "a+rX", source]);
    }
    let before: Vec<_> = sources
        .iter()
        .map(|source| stamps(Path::new(source)))
        .collect();

    let home = tempfile::tempdir().unwrap();
    must("chmod", &["777", home.path().to_str().unwrap()]);
    let out = home.path().join("out");
    let binary = copy_program(home.path());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .arg("extract")
        .args(&sources)
        .arg("--to")
        .args([out.to_str().unwrap(), "/a"])
        .output()
        .expect("setpriv runs");
    assert!(output.status.success(), "{output:?}");
    check_large(&out.join("a/b/large"), 6, 12 << 20);
    assert_eq!(fs::read(out.join("a/twin")).unwrap(), b"small");
    assert_eq!(
        fs::read_link(out.join("a/link")).unwrap(),
        Path::new("small")
    );
    assert!(!out.join("other").exists());
    let after: Vec<_> = sources
        .iter()
        .map(|source| stamps(Path::new(source)))
        .collect();
    assert_eq!(before, after, "extract writes nothing to the members");
}

/// Lists a directory's files with their lengths and times of change.
fn stamps(directory: &Path) -> String {
    must("find", &[text(directory), "-printf", "%P %s %T@ %C@\n"])
}

/// The kernel takes writes before they are here, and a program that never syncs must hear of it too.
#[test]
fn writing_without_end_is_refused_on_a_full_volume() {
    const MORE_THAN_FITS: usize = 8 << 10;
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 300);
    volume.mount();
    let mebibyte = pattern(1, 1 << 20);
    let mut file = File::create(volume.path("endless")).unwrap();
    let refused = (0..MORE_THAN_FITS).find_map(|_| file.write_all(&mebibyte).err());
    let errno = refused
        .expect("300 MiB of backing cannot hold 8 GiB")
        .raw_os_error();
    assert_eq!(errno, Some(libc::ENOSPC));
    drop(file);
    fs::remove_file(volume.path("endless")).unwrap();
    eventually("there is room again", || {
        let written = File::create(volume.path("new"))
            .and_then(|mut file| file.write_all(&mebibyte).and_then(|()| file.sync_all()));
        written.is_ok()
    });
    assert!(fs::read(volume.path("new")).unwrap() == mebibyte);
    volume.unmount();
}

#[test]
fn directories_that_were_away_stand_in_for_one_that_is_lost_since() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    write_large(&volume.path("before"), 1, 9 << 20).unwrap();
    volume.unmount();
    volume.mount_degraded(&[2, 3, 4, 5]);
    check_large(&volume.path("before"), 1, 9 << 20);
    write_large(&volume.path("meanwhile"), 2, 9 << 20).unwrap();
    volume.unmount();
    volume.delete_member(2);

    let output = volume.try_mount(&[0, 1, 3, 4, 5], &[]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("data is lost, or on missing"), "{said}");
    assert!(said.contains("`cauchyfs status` names the files"), "{said}");
    check_large(&volume.path("before"), 1, 9 << 20);
    let error = fs::read(volume.path("meanwhile")).expect_err("a shard of each stripe is lost");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    write_large(&volume.path("since"), 3, 9 << 20).unwrap();
    let (status, code) = volume.status();
    assert_eq!(code, 4, "{status}");
    assert_eq!(status["unrecoverable_files"][0], "meanwhile");
    volume.unmount();
    let output = volume.try_mount(&[0, 1, 3, 4, 5], &[]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    drop_caches();
    check_large(&volume.path("before"), 1, 9 << 20);
    check_large(&volume.path("since"), 3, 9 << 20);
    volume.unmount();
}
