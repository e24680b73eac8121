//! The messages and the ends of commands when something has happened: a reader can do as they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{
    CAUCHYFS, Disk, DiskKind, Shape, TestVolume, check_large, eventually, must, pattern, run, said,
    skip_mounts, text, write_large,
};

const LARGE: u64 = 96 << 20;

/// Returns the next step that `status` advises.
fn next_step(volume: &TestVolume) -> String {
    let (_, said) = volume.command(&["status"], &[]);
    said.lines().last().unwrap_or_default().to_owned()
}

fn is_mounted(volume: &TestVolume) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
    table.contains(&format!(" {} ", volume.mountpoint.display()))
}

/// Returns how often a mount said that it hides what is in its place.
fn times_hidden(output: &Output) -> usize {
    said(output).matches("is not empty").count()
}

fn aside(member: &Path) -> PathBuf {
    member.with_extension("aside")
}

#[test]
fn after_a_crash_the_volume_is_mounted_again_without_another_command() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    fs::write(volume.path("below"), "hidden").unwrap();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(times_hidden(&output), 1, "{output:?}");
    let file = fs::File::create(volume.path("synced")).unwrap();
    fs::write(volume.path("synced"), pattern(1, 300_000)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let daemon = volume.daemon().expect("a daemon serves the mount");
    must("kill", &["-KILL", &daemon.to_string()]);
    // It is ending, and has its socket open for some moments more.
    let (_, status) = volume.command(&["status"], &[]);
    assert!(status.contains("gone"), "{status}");
    eventually("the daemon is dead", || volume.daemon().is_none());
    assert!(is_mounted(&volume), "the dead mount is in the way");
    let (_, status) = volume.command(&["status"], &[]);
    assert!(status.contains("is gone"), "{status}");
    // It is in the way of nothing until the volume is open, and everything else there that a mount needs.
    let output = volume.try_mount(&[0, 1, 2], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(is_mounted(&volume), "cleared for nothing: {output:?}");
    // Nowhere a socket can be made.
    let script = "mount -t tmpfs -o ro none /run && exec \"$@\"";
    let log = volume.home.join("log");
    let mut arguments = vec!["-m", "sh", "-c", script, "sh", CAUCHYFS, "mount"];
    arguments.extend(["--log-file", text(&log)]);
    arguments.extend(volume.members.iter().map(|member| text(member)));
    arguments.push(text(&volume.mountpoint));
    let output = run("unshare", &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("control socket"), "{output:?}");
    assert!(is_mounted(&volume), "cleared for nothing: {output:?}");
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said(&output).contains("was gone"), "{output:?}");
    assert_eq!(times_hidden(&output), 1, "{output:?}");
    assert!(fs::read(volume.path("synced")).unwrap() == pattern(1, 300_000));
    // One that lives is left alone.
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("already"), "{output:?}");
    volume.unmount();
    assert!(
        !is_mounted(&volume),
        "one mount was there, and no other below it"
    );
}

/// The log has this without a request for more than its usual messages.
#[test]
fn the_log_names_lost_and_returned_members_and_the_repairs() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    write_large(&volume.path("before"), 1, LARGE / 4).unwrap();
    let log = |line: &str| {
        let log = volume.log();
        assert!(log.contains(line), "nothing of `{line}` in:\n{log}");
    };
    let member = &volume.members[3];
    fs::rename(member, aside(member)).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    log("member 3 is marked missing");
    write_large(&volume.path("after"), 2, LARGE / 4).unwrap();
    fs::rename(aside(member), member).unwrap();
    eventually("it is whole again", || volume.status().1 == 0);
    log("member 3 is back at");
    log("member 3 has the index and the journal again");
    eventually("the end of the rebuild is logged", || {
        volume.log().contains("rebuilt: ")
    });
    assert_eq!(volume.command(&["scrub"], &[]).0, Some(0));
    log("scrub through: ");
    let last = text(&volume.members[6]);
    let (code, said) = volume.command(&["member", "remove"], &[last]);
    assert_eq!(code, Some(0), "{said}");
    log("member 6 is to be drained");
    log("member 6 is removed");
    let (code, said) = volume.command(&["member", "add"], &[last]);
    assert_eq!(code, Some(0), "{said}");
    log("takes part as member 6");
    let new = volume.home.join("new");
    let (code, said) = volume.command(&["member", "replace"], &["0", text(&new)]);
    assert_eq!(code, Some(0), "{said}");
    log("member 0 is to be drained for member 7");
    volume.unmount();
}

#[test]
fn the_reason_of_an_absence_is_shown_as_it_is_now() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let other = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let member = &volume.members[3];
    fs::rename(member, aside(member)).unwrap();
    let is_said = |reason: &str| {
        eventually(&format!("`{reason}` is the reason"), || {
            let (status, _) = volume.status();
            let said = status["members"][3]["reason"].as_str();
            assert_ne!(status["members"][3]["state"], "online");
            said.is_some_and(|said| said.contains(reason))
        });
        assert!(volume.log().contains(reason), "{}", volume.log());
    };
    is_said("does not exist");
    fs::create_dir(member).unwrap();
    is_said("it is empty; is its disk mounted?");
    fs::write(member.join("photo"), "mine").unwrap();
    is_said("it has photo");
    fs::remove_file(member.join("photo")).unwrap();
    fs::copy(
        other.members[3].join("superblock"),
        member.join("superblock"),
    )
    .unwrap();
    is_said("a member of another volume");
    fs::remove_dir_all(member).unwrap();
    is_said("does not exist");
    fs::rename(aside(member), member).unwrap();
    eventually("it is taken back", || volume.status().1 == 0);
    volume.unmount();
}

#[test]
fn the_advice_of_a_read_only_mount_is_not_refused_there() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("f"), pattern(1, 300_000)).unwrap();
    volume.unmount();
    let output = volume.try_mount(&[0, 1, 2, 4, 5], &["-o", "ro"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let next = next_step(&volume);
    assert!(next.starts_with("next: unmount it, and mount it"), "{next}");
    assert_eq!(volume.status().0["read_only"], true);
    let new = volume.home.join("new");
    let refused: [(&[&str], &[&str]); 4] = [
        (&["scrub"], &[]),
        (&["rebuild"], &[]),
        (&["member", "add"], &[text(&new)]),
        (&["member", "remove"], &["0"]),
    ];
    for (words, rest) in refused {
        let (code, said) = volume.command(words, rest);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{words:?}: {said}");
        assert!(lines[1].contains("without `-o ro`"), "{words:?}: {said}");
    }
    assert!(!new.exists());
    volume.unmount();
    volume.mount();
    assert_eq!(volume.status().0["read_only"], false);
    volume.unmount();
}

/// An adapter or a hub drops them all for a moment.
#[test]
fn where_too_many_are_away_every_command_says_to_bring_them_back() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("f"), pattern(1, 300_000)).unwrap();
    volume.remount();
    let dropped = &volume.members[..3];
    for member in dropped {
        fs::rename(member, aside(member)).unwrap();
    }
    eventually("they are seen to be away", || {
        volume.members_in("missing") == 3
    });
    let new = volume.home.join("new");
    let refused: [(&[&str], &[&str]); 5] = [
        (&["usage"], &[]),
        (&["scrub"], &[]),
        (&["rebuild"], &[]),
        (&["member", "add"], &[text(&new)]),
        (&["member", "remove"], &["4"]),
    ];
    for (words, rest) in refused {
        let (code, said) = volume.command(words, rest);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(
            said.lines().count() == 2
                && last.contains("bring them back")
                && last.contains("goes on by itself"),
            "{words:?}: {said}"
        );
    }
    assert!(!new.exists());
    let next = next_step(&volume);
    assert!(next.contains("goes on by itself"), "{next}");
    let output = volume.try_unmount();
    let unmounted = said(&output);
    assert!(!is_mounted(&volume), "{unmounted}");
    assert_eq!(output.status.code(), Some(3), "{unmounted}");
    let lines: Vec<&str> = unmounted.lines().collect();
    assert!(lines[0].contains("it is unmounted"), "{unmounted}");
    assert!(lines[1].contains("mount it again"), "{unmounted}");
    for member in dropped {
        fs::rename(aside(member), member).unwrap();
    }
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    assert!(fs::read(volume.path("f")).unwrap() == pattern(1, 300_000));
    eventually("it is as it was", || volume.status().1 == 0);
    volume.unmount();
}

#[test]
fn a_replacement_that_dies_half_way_is_not_reported_as_done() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let new = volume.home.join("new");
    let replacement = Command::new(CAUCHYFS)
        .args(["member", "replace", "--rate", "4MiB"])
        .args([&volume.mountpoint, &volume.members[2], &new])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    eventually("some of it is on the new one", || {
        new.join("segments").exists()
    });
    fs::rename(&new, aside(&new)).unwrap();
    let output = replacement.wait_with_output().expect("it ends");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(3), "{text}\n{}", volume.log());
    assert!(text.contains("member 7 is gone again"), "{text}");
    volume.assert_full_redundancy();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

/// Every stripe may be whole, and the next loss takes the last copy of the index nevertheless.
#[test]
fn a_rebuild_is_not_done_while_copies_of_the_index_are_missing() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        parity: 2,
        members: 4,
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(shape, 600);
    volume.mount();
    fs::create_dir(volume.path("no-stripes")).unwrap();
    assert_eq!(volume.command(&["rebuild"], &[]).0, Some(0));
    let (code, said) = volume.command(&["rebuild", "--json"], &[]);
    assert_eq!(code, Some(0), "{said}");
    let document: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    assert_eq!(document["progress"], 1.0, "{said}");
    for index in [0, 1] {
        volume.delete_member(index);
    }
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    let (code, said) = volume.command(&["rebuild"], &[]);
    assert_eq!(code, Some(3), "{said}\n{}", volume.log());
    assert!(said.contains("the index has 2 of 3 copies"), "{said}");
    volume.unmount();
}

#[test]
fn directories_that_are_too_small_for_anything_make_no_volume_and_stay_empty() {
    if skip_mounts() {
        return;
    }
    for mebibytes in [2, 4, 6, 9] {
        let disks = [0, 1, 2].map(|_| Disk::new(DiskKind::Tmpfs, mebibytes));
        let members = disks.each_ref().map(|disk| disk.path().join("d"));
        let create = ["create", "--data", "2", "--parity", "1"];
        let arguments = [&create[..], &members.each_ref().map(|path| text(path))].concat();
        let output = run(CAUCHYFS, &arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{mebibytes} MiB: {said}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{mebibytes} MiB: {said}");
        assert!(lines[0].contains("too small"), "{mebibytes} MiB: {said}");
        assert!(lines[1].contains("12.0 MiB"), "{mebibytes} MiB: {said}");
        for disk in &disks {
            let left = fs::read_dir(disk.path()).unwrap().count();
            assert_eq!(left, 0, "{mebibytes} MiB");
        }
    }
    let disks = [0, 1, 2].map(|_| Disk::new(DiskKind::Tmpfs, 12));
    let members = disks.each_ref().map(|disk| disk.path().join("d"));
    let create = ["create", "--data", "2", "--parity", "1"];
    must(
        CAUCHYFS,
        &[&create[..], &members.each_ref().map(|path| text(path))].concat(),
    );
}

/// A file of a directory's own is deleted while it is in use.
#[test]
fn a_mounted_member_that_loses_a_file_rejoins_or_gets_its_superblock_by_a_scrub() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 20 << 20);
    let holds_index = |member: &&PathBuf| member.join("index").exists();
    let holder = volume.members.iter().find(holds_index).unwrap();
    fs::remove_file(holder.join("index")).unwrap();
    eventually("it is left behind and taken back", || {
        volume.log().contains("is back at") && volume.status().1 == 0
    });

    let superblock = volume.members[3].join("superblock");
    let delete = || fs::remove_file(&superblock);
    let spoil = || fs::write(&superblock, vec![0x5a; 131_072]);
    let harms: [(&dyn Fn() -> std::io::Result<()>, bool); 2] = [(&delete, true), (&spoil, false)];
    for (harm, is_seen_at_once) in harms {
        let before = fs::read(&superblock).unwrap().len();
        harm().unwrap();
        if is_seen_at_once {
            eventually("it is known what it lacks", || {
                next_step(&volume).contains("`cauchyfs scrub '")
            });
        }
        assert_eq!(volume.members_in("online"), 6, "what it holds is there");
        let (code, said) = volume.command(&["scrub"], &[]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(fs::read(&superblock).unwrap().len(), before);
        volume.assert_healthy();
        volume.remount();
        volume.assert_healthy();
    }
    check_large(&volume.path("large"), 1, 20 << 20);
    volume.unmount();
    volume.assert_intact();
}

/// One is above the other, however it came there.
#[test]
fn dead_mounts_above_each_other_are_taken_away_together() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 1,
        parity: 1,
        members: 2,
        ..Shape::FOUR_TWO
    };
    let (volume, other) = (
        TestVolume::create(shape, 512),
        TestVolume::create(shape, 512),
    );
    let (below, above) = (text(&volume.mountpoint), text(&other.mountpoint));
    for is_mounted_again in [false, true] {
        volume.mount();
        other.mount();
        must("mount", &["--bind", above, below]);
        volume.kill();
        other.kill();
        let output = if is_mounted_again {
            volume.try_mount(&[0, 1], &[])
        } else {
            volume.try_unmount()
        };
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(
            said(&output).contains("the daemons of 2 mounts"),
            "{output:?}"
        );
        if is_mounted_again {
            fs::write(volume.path("new"), "here").unwrap();
            volume.unmount();
        }
        assert!(!is_mounted(&volume), "nothing is left");
        other.unmount();
    }
}

/// All members are there, and more shards of some stripes are gone than the others make up for.
#[test]
fn a_mount_says_that_data_is_lost_if_it_is() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, LARGE);
    volume.unmount();
    let names = fs::read_dir(volume.members[5].join("segments")).unwrap();
    let name = names.map(|name| name.unwrap().file_name()).min().unwrap();
    for member in &volume.members[3..] {
        fs::remove_file(member.join("segments").join(&name)).unwrap();
    }
    let all: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    let unmounted = run(CAUCHYFS, &[&["status"], &all[..]].concat());
    assert_eq!(unmounted.status.code(), Some(4), "{unmounted:?}");
    for _ in 0..2 {
        let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let said = said(&output);
        assert!(said.contains("data is lost"), "{said}");
        assert!(said.contains("`cauchyfs status` names the files"), "{said}");
        let (code, listed) = volume.command(&["status"], &[]);
        assert_eq!(code, Some(4), "{listed}");
        assert!(listed.contains("cannot be read in full: large"), "{listed}");
        volume.unmount();
    }
}

/// Checks that a report names the state, all members and a next step.
fn check_complete(output: &Output, volume: &TestVolume) {
    let said = String::from_utf8_lossy(&output.stdout);
    let is_told = matches!(output.status.code(), Some(0 | 3 | 4));
    assert!(is_told, "{output:?}");
    for member in &volume.members {
        assert!(said.contains(text(member)), "{said}");
    }
    let last = said.lines().last().unwrap_or_default();
    let step = last.strip_prefix("next: ");
    assert!(step.is_some_and(|step| !step.is_empty()), "{said}");
}

fn status_of_directories(volume: &TestVolume) -> Output {
    let paths = volume.members.iter().map(|path| text(path));
    let arguments: Vec<&str> = std::iter::once("status").chain(paths).collect();
    run(CAUCHYFS, &arguments)
}

fn index_files(volume: &TestVolume) -> Vec<PathBuf> {
    let files = volume.members.iter().map(|path| path.join("index"));
    files.filter(|path| path.exists()).collect()
}

#[test]
fn status_of_directories_whose_index_is_gone_or_damaged_shows_members_and_a_next_step() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("f"), pattern(1, 300_000)).unwrap();
    volume.unmount();
    let files = index_files(&volume);
    assert_eq!(files.len(), 3, "{files:?}");
    for file in &files {
        let len = fs::metadata(file).unwrap().len();
        fs::write(file, pattern(3, usize::try_from(len).unwrap())).unwrap();
    }
    let check_failed = || {
        let output = status_of_directories(&volume);
        check_complete(&output, &volume);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let (status, _) = volume.status_of(&volume.members.iter().collect::<Vec<_>>());
        assert_eq!(status["state"], "failed", "{status}");
        assert!(status["redundancy"].is_null(), "{status}");
        let reason = status["uncounted"][0]["reason"].as_str();
        assert!(
            reason.is_some_and(|reason| reason.contains("index")),
            "{status}"
        );
        assert!(!said(&output).contains("some data is lost"), "{output:?}");
    };
    check_failed();
    for file in &files {
        fs::remove_file(file).unwrap();
    }
    check_failed();
}

#[test]
fn status_of_a_mount_whose_index_is_gone_shows_members_and_a_next_step() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("f"), pattern(1, 300_000)).unwrap();
    fs::File::open(volume.path("f"))
        .unwrap()
        .sync_all()
        .unwrap();
    let check = || {
        let output = run(CAUCHYFS, &["status", text(&volume.mountpoint)]);
        check_complete(&output, &volume);
        output.status.code() == Some(4)
    };
    assert!(!check(), "it is healthy");
    for file in index_files(&volume) {
        fs::remove_file(file).unwrap();
    }
    eventually("the loss of the index is seen", check);
    eventually("the reason is told", || {
        let (status, _) = volume.status();
        let reason = status["uncounted"][0]["reason"].as_str();
        reason.is_some_and(|reason| reason.contains("holds a copy of the index"))
    });
    // While the volume is closed, and cannot be opened again.
    for _ in 0..3 {
        check();
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
}
