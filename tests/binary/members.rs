//! Directories that come and go while the volume is mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::{
    CAUCHYFS, Disk, DiskKind, Load, Shape, TestVolume, check_large, drop_caches, eventually, must,
    run, segment_files, skip_mounts, text, write_large,
};

const LARGE: u64 = 96 << 20;

/// Bytes of a segment file, unless a test says otherwise.
const SEGMENT: usize = 16 << 20;

fn member(volume: &TestVolume, change: &str, arguments: &[&str]) -> (Option<i32>, String) {
    volume.command(&["member", change], arguments)
}

fn beside(volume: &TestVolume, name: &str) -> PathBuf {
    volume.members[0].with_file_name(name)
}

#[test]
fn a_new_directory_in_the_place_of_a_lost_one_gets_its_very_bytes_under_load() {
    if skip_mounts() {
        return;
    }
    let mut volume = TestVolume::with_large(Shape::FOUR_TWO, 3072, LARGE);
    volume.remount();
    let before = segment_files(&volume.members[2]);
    let load = Load::start(volume.path("load"));
    volume.delete_member(2);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let new = beside(&volume, "e2");
    let (code, said) = member(&volume, "replace", &["2", text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert!(said.contains("member 2 is "), "{said}");
    assert!(said.contains(" rebuilt in "), "{said}");
    load.goes_on();
    let loaded = load.end();
    volume.assert_healthy();
    volume.unmount();
    let after = segment_files(&new);
    assert!(before.len() > 1);
    for (name, bytes) in &before {
        assert!(after[name] == *bytes, "{name} has other bytes");
    }
    volume.members[2] = new;
    volume.mount();
    // Any two may be lost again.
    volume.delete_member(4);
    volume.delete_member(5);
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    loaded.check();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

#[test]
fn a_replacement_that_was_killed_half_way_goes_on() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        segment: "4MiB",
        ..Shape::FOUR_TWO
    };
    let mut volume = TestVolume::with_large(shape, 3072, LARGE);
    volume.delete_member(1);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let new = beside(&volume, "e1");
    // Six segments, one in four seconds.
    let places = [text(&volume.members[1]), text(&new)];
    let mut command = volume.start_member(&["replace", "--rate", "1MiB"], &places);
    eventually("some of it is rebuilt", || {
        let (status, _) = volume.status();
        let rows = status["redundancy"].as_array().expect("rows are listed");
        let whole = rows.iter().find(|row| row["losses_tolerated"] == 2);
        whole.is_some_and(|row| row["stripes"].as_u64() > Some(10))
    });
    volume.crash();
    assert_ne!(command.wait().expect("it ends").code(), Some(0));
    let old = std::mem::replace(&mut volume.members[1], new.clone());
    let all = [0, 1, 2, 3, 4, 5];
    volume.try_mount(&all, &[]);
    // The place of the old one belongs to no volume any more.
    for old in [text(&old), "1"] {
        let (code, said) = member(&volume, "replace", &[old, text(&new)]);
        assert_eq!(code, Some(0), "{said}\n{}", volume.log());
        volume.assert_healthy();
    }
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact();
}

#[test]
fn an_added_directory_takes_lost_shards_and_new_data() {
    if skip_mounts() {
        return;
    }
    let mut volume = TestVolume::with_large(Shape::FOUR_TWO, 3072, LARGE);
    volume.delete_member(3);
    assert_eq!(volume.members_in("missing"), 1, "status looks for itself");
    // There are too few without another one, and that turns out before anything is changed.
    let instead = beside(&volume, "e0");
    let (code, said) = member(&volume, "replace", &["0", text(&instead)]);
    assert_eq!(code, Some(1), "{said}\n{}", volume.log());
    assert!(
        said.contains("5 members are left") && !said.contains("stays"),
        "{said}"
    );
    assert!(!instead.exists());
    let new = beside(&volume, "d6");
    let (code, said) = member(&volume, "add", &[text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert!(said.contains("member 6 is "), "{said}");
    let (status, _) = volume.status();
    assert_eq!(status["redundancy"][0]["losses_tolerated"], 2, "{status}");
    write_large(&volume.path("more"), 2, LARGE).unwrap();
    volume.unmount();
    volume.members.push(new);
    volume.mount_degraded(&[0, 1, 2, 4, 5, 6]);
    volume.delete_member(0);
    volume.delete_member(5);
    eventually("the losses are seen", || volume.members_in("missing") == 3);
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    check_large(&volume.path("more"), 2, LARGE);
    volume.unmount();
}

/// `status` looks itself; here no command asks, and no program uses the volume.
#[test]
fn a_vanished_directory_is_marked_missing_without_a_request_even_on_a_read_only_mount() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    for (number, options) in (0..).zip([&[][..], &["-o", "ro"]]) {
        let left: Vec<usize> = (number..6).collect();
        volume.try_mount(&left, options);
        fs::rename(
            &volume.members[number],
            beside(&volume, &format!("away{number}")),
        )
        .unwrap();
        let start = Instant::now();
        let said = format!("member {number} is marked missing");
        eventually("the loss is seen", || volume.log().contains(&said));
        println!("{options:?}: it was seen after {:?}", start.elapsed());
        assert_eq!(volume.members_in("missing"), number + 1);
        volume.unmount();
    }
}

#[test]
fn a_directory_that_was_moved_away_and_back_is_taken_back_by_itself() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_large(&volume.path("old"), 1, LARGE / 4).unwrap();
    let elsewhere = beside(&volume, "elsewhere");
    fs::rename(&volume.members[4], &elsewhere).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    write_large(&volume.path("new"), 2, LARGE / 4).unwrap();
    fs::rename(&elsewhere, &volume.members[4]).unwrap();
    eventually("it is back with all that it missed", || {
        volume.status().1 == 0
    });
    volume.assert_healthy();
    // Its former self had files open that were removed since.
    eventually("what is deleted takes no space", || {
        volume.open_files("(deleted)").is_empty()
    });
    check_large(&volume.path("new"), 2, LARGE / 4);
    volume.unmount();
    volume.assert_intact();
}

#[test]
fn a_directory_that_comes_and_goes_is_left_alone_after_the_third_time() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    write_large(&volume.path("old"), 1, LARGE / 8).unwrap();
    let elsewhere = beside(&volume, "elsewhere");
    let come_and_go = || {
        fs::rename(&volume.members[4], &elsewhere).unwrap();
        eventually("the loss is seen", || volume.members_in("missing") == 1);
        fs::rename(&elsewhere, &volume.members[4]).unwrap();
    };
    for _ in 0..3 {
        come_and_go();
        eventually("it is taken back", || volume.members_in("missing") == 0);
    }
    come_and_go();
    // Another one, which is looked for after it each time, is taken back twice meanwhile.
    for round in 0..2 {
        let away = beside(&volume, "away");
        fs::rename(&volume.members[5], &away).unwrap();
        eventually("the loss is seen", || volume.members_in("missing") == 2);
        fs::rename(&away, &volume.members[5]).unwrap();
        let returns = || volume.log().matches("member 5 is back at").count();
        eventually("another is taken back", || returns() > round);
    }
    let (status, _) = volume.status();
    assert_eq!(status["members"][4]["state"], "missing", "{status}");
    assert_eq!(volume.members_in("missing"), 1, "{}", volume.log());
    assert!(volume.log().contains("comes and goes"), "{}", volume.log());
    let said = run(CAUCHYFS, &["status", text(&volume.mountpoint)]);
    let said = String::from_utf8(said.stdout).unwrap();
    let replace = format!("member replace '{}' 4", text(&volume.mountpoint));
    assert!(said.contains(&replace), "{said}");
    write_large(&volume.path("new"), 2, LARGE / 8).unwrap();
    // The user who mounts it again has looked at it.
    volume.unmount();
    volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    eventually("it has what it missed", || volume.status().1 == 0);
    volume.assert_healthy();
    check_large(&volume.path("new"), 2, LARGE / 8);
    volume.unmount();
}

#[test]
fn an_unnamed_directory_stays_out_until_a_command_adds_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount_degraded(&[0, 1, 2, 3, 5]);
    write_large(&volume.path("large"), 1, LARGE / 8).unwrap();
    // One that was named is looked for, and taken back.
    let elsewhere = beside(&volume, "elsewhere");
    fs::rename(&volume.members[5], &elsewhere).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 2);
    fs::rename(&elsewhere, &volume.members[5]).unwrap();
    eventually("it is taken back", || volume.members_in("online") == 5);
    let (status, _) = volume.status();
    assert_eq!(status["members"][4]["state"], "missing", "{status}");
    let path = text(&volume.members[4]);
    let (code, said) = member(&volume, "replace", &["4", path]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.assert_healthy();
    // From now on it is one like all others.
    fs::rename(path, &elsewhere).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    fs::rename(&elsewhere, path).unwrap();
    eventually("it is taken back", || volume.status().1 == 0);
    volume.unmount();
}

/// Copies a directory with all that is in it.
fn back_up(directory: &Path, copy: &Path) {
    must("cp", &["-a", text(directory), text(copy)]);
}

#[test]
fn an_old_copy_in_the_place_of_a_directory_gets_all_that_it_lacks_while_mounted() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_large(&volume.path("first"), 1, LARGE / 8).unwrap();
    volume.unmount();
    let (copy, newer) = (beside(&volume, "copy"), beside(&volume, "newer"));
    back_up(&volume.members[4], &copy);
    volume.mount();
    write_large(&volume.path("second"), 2, LARGE / 8).unwrap();
    // Others come and go, so that epochs pass that the copy knows nothing of.
    let elsewhere = beside(&volume, "elsewhere");
    fs::rename(&volume.members[1], &elsewhere).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    write_large(&volume.path("third"), 3, LARGE / 8).unwrap();
    fs::rename(&elsewhere, &volume.members[1]).unwrap();
    eventually("it is taken back", || volume.status().1 == 0);
    fs::rename(&volume.members[4], &newer).unwrap();
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    write_large(&volume.path("fourth"), 4, LARGE / 8).unwrap();
    fs::rename(&copy, &volume.members[4]).unwrap();
    eventually("it has what it lacks", || volume.status().1 == 0);
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
    volume.mount_degraded(&[2, 3, 4, 5]);
    for (seed, name) in (1..).zip(["first", "second", "third", "fourth"]) {
        check_large(&volume.path(name), seed, LARGE / 8);
    }
    volume.unmount();
}

#[test]
fn an_old_copy_in_the_place_of_a_directory_gets_all_that_it_lacks_when_it_is_mounted() {
    if skip_mounts() {
        return;
    }
    for copied_while_mounted in [false, true] {
        let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
        volume.mount();
        write_large(&volume.path("first"), 1, LARGE / 8).unwrap();
        let copy = beside(&volume, "copy");
        if copied_while_mounted {
            must("sync", &["-f", text(&volume.mountpoint)]);
            back_up(&volume.members[4], &copy);
        } else {
            volume.unmount();
            back_up(&volume.members[4], &copy);
            volume.mount();
        }
        write_large(&volume.path("second"), 2, LARGE / 8).unwrap();
        volume.unmount();
        fs::remove_dir_all(&volume.members[4]).unwrap();
        fs::rename(&copy, &volume.members[4]).unwrap();
        volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
        eventually("it has what it lacks", || volume.status().1 == 0);
        volume.assert_healthy();
        volume.unmount();
        volume.assert_intact();
        volume.mount_degraded(&[2, 3, 4, 5]);
        for (seed, name) in (1..).zip(["first", "second"]) {
            check_large(&volume.path(name), seed, LARGE / 8);
        }
        volume.unmount();
    }
}

#[test]
fn a_directory_that_is_removed_is_emptied_and_is_nobodys_afterwards() {
    if skip_mounts() {
        return;
    }
    let mut volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let load = Load::start(volume.path("load"));
    let old = volume.members[6].clone();
    let (code, said) = member(&volume, "remove", &[text(&old)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    load.goes_on();
    let loaded = load.end();
    volume.assert_healthy();
    assert_eq!(volume.members_in("online"), 6);
    let left = fs::read_dir(&old).expect("it is there").count();
    assert_eq!(left, 0, "it is empty, the subdirectory gone too");
    // Another volume may have it; this one has too few to give another one away.
    let (code, said) = member(&volume, "remove", &["0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("a stripe needs 6"), "{said}");
    volume.unmount();
    volume.members.pop();
    volume.mount();
    loaded.check();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact();
}

#[test]
fn a_directory_that_is_being_removed_is_kept_when_it_is_added() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let kept = text(&volume.members[6]);
    let mut removal = volume.start_member(&["remove", "--rate", "64K"], &[kept]);
    eventually("it is being removed", || volume.members_in("removing") == 1);
    let (code, said) = member(&volume, "add", &[kept]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    let ended = removal.wait().expect("nobody else waits for it");
    assert_eq!(ended.code(), Some(3), "it was not removed");
    volume.assert_healthy();
    assert_eq!(volume.members_in("online"), 7);
    assert!(!segment_files(&volume.members[6]).is_empty());
    volume.remount();
    volume.assert_healthy();
    assert_eq!(volume.members_in("online"), 7);
    volume.unmount();
    volume.assert_intact();
}

/// Wherever it is by then.
#[test]
fn a_member_lost_while_draining_rejoins_and_is_kept_on_request() {
    if skip_mounts() {
        return;
    }
    for change in [&["add"][..], &["replace", "6"]] {
        let mut volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
        let leaving = text(&volume.members[6]);
        let mut removal = volume.start_member(&["remove", "--rate", "64K"], &[leaving]);
        eventually("it is being removed", || volume.members_in("removing") == 1);
        let elsewhere = beside(&volume, "elsewhere");
        fs::rename(&volume.members[6], &elsewhere).unwrap();
        eventually("it is away", || volume.members_in("missing") == 1);
        let arguments = [&change[1..], &[text(&elsewhere)]].concat();
        let (code, said) = member(&volume, change[0], &arguments);
        assert_eq!(code, Some(0), "{change:?}: {said}\n{}", volume.log());
        removal.wait().expect("nobody else waits for it");
        volume.assert_healthy();
        assert_eq!(volume.members_in("online"), 7, "{change:?}");
        assert!(!segment_files(&elsewhere).is_empty(), "{change:?}");
        volume.members[6] = elsewhere;
        volume.remount();
        volume.assert_healthy();
        check_large(&volume.path("large"), 1, LARGE);
        volume.unmount();
        volume.assert_intact();
    }
}

#[test]
fn an_online_directory_is_replaced_by_copying_its_shards() {
    if skip_mounts() {
        return;
    }
    let mut volume = TestVolume::with_large(Shape::FOUR_TWO, 3072, LARGE);
    volume.remount();
    let new = beside(&volume, "e3");
    let old = volume.members[3].clone();
    let before = segment_files(&old);
    // A user who gives the command up changes nothing, and may give it again.
    let places = [text(&old), text(&new)];
    let mut command = volume.start_member(&["replace", "--rate", "2MiB"], &places);
    eventually("it is being drained", || volume.members_in("removing") == 1);
    command.kill().expect("it runs");
    command.wait().expect("it ends");
    let said = run(CAUCHYFS, &["status", text(&volume.mountpoint)]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("next: leave member 3 ("), "{said}");
    let (code, said) = member(&volume, "replace", &["3", text(&beside(&volume, "f3"))]);
    assert_eq!(code, Some(1), "{said}\n{}", volume.log());
    assert!(said.contains("being drained already"), "{said}");
    let (code, said) = member(&volume, "replace", &[text(&old), text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.assert_healthy();
    let left = fs::read_dir(&old).expect("it is there").count();
    assert_eq!(left, 0, "nothing of it stays");
    let after = segment_files(&new);
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    assert!(after == before, "some bytes are not what they were");
    volume.unmount();
    volume.members[3] = new;
    // The old one is no member, and is not missed.
    let mut directories: Vec<&str> = volume.members.iter().map(|path| text(path)).collect();
    directories.push(text(&old));
    let output = run(
        CAUCHYFS,
        &[&["mount"], &directories[..], &[text(&volume.mountpoint)]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is left aside"), "{said}");
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

#[test]
fn old_data_moves_to_a_new_directory_when_it_is_to_be_balanced() {
    if skip_mounts() {
        return;
    }
    let mut disks: Vec<Disk> = (0..7).map(|_| Disk::new(DiskKind::Tmpfs, 768)).collect();
    let seventh = disks.pop().expect("there are seven");
    let mut volume = TestVolume::create_over(Shape::FOUR_TWO, disks);
    volume.mount();
    write_large(&volume.path("large"), 1, 3 * LARGE).unwrap();
    volume.remount();
    let new = seventh.path().join("d6");
    let (code, said) = member(&volume, "add", &["--balance", text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.members.push(new);
    volume.assert_healthy();
    volume.remount();
    let held = |member: &PathBuf| -> usize {
        let files = segment_files(member);
        files.values().map(Vec::len).sum()
    };
    let held: Vec<usize> = volume.members.iter().map(held).collect();
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(most - least <= SEGMENT, "{held:?}");
    drop_caches();
    check_large(&volume.path("large"), 1, 3 * LARGE);
    volume.unmount();
    volume.assert_intact();
}

/// Members that share a filesystem share its room, so that none is fuller for what the others take.
#[test]
fn directories_of_one_filesystem_get_equal_shares_also_when_they_are_balanced_later() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        segment: "4MiB",
        ..Shape::FOUR_TWO
    };
    let mut volume = TestVolume::create(shape, 1024);
    volume.mount();
    write_large(&volume.path("large"), 1, 2 * LARGE).unwrap();
    volume.remount();
    let held = |volume: &TestVolume| -> Vec<usize> {
        let of_member = |member: &PathBuf| segment_files(member).values().map(Vec::len).sum();
        volume.members.iter().map(of_member).collect()
    };
    let check = |volume: &TestVolume| {
        volume.assert_healthy();
        let held = held(volume);
        let ideal = held.iter().sum::<usize>() / held.len();
        let is_near = |held: &usize| held.abs_diff(ideal) <= 4 << 20;
        assert!(held.iter().all(is_near), "{held:?}, ideally {ideal}");
    };
    let new = beside(&volume, "d6");
    let (code, said) = member(&volume, "add", &["--balance", text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert!(said.contains(" moved in "), "{said}");
    assert!(!said.contains("rebuilt"), "{said}");
    volume.members.push(new);
    volume.remount();
    check(&volume);

    let newer = beside(&volume, "d7");
    let (code, said) = member(&volume, "add", &[text(&newer)]);
    assert_eq!(code, Some(0), "{said}");
    let files = fs::read_dir(newer.join("segments"));
    assert_eq!(files.map_or(0, Iterator::count), 0, "it was not asked for");
    volume.members.push(newer);
    let output = run(
        CAUCHYFS,
        &[
            "balance",
            "--json",
            "--rate",
            "1GiB",
            text(&volume.mountpoint),
        ],
    );
    assert!(output.status.success(), "{output:?}\n{}", volume.log());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["kind"], "balance", "{report}");
    assert_eq!(report["bytes_moved"], report["bytes_done"], "{report}");
    assert!(report["bytes_moved"].as_u64() > Some(0), "{report}");
    let (code, said) = volume.command(&["balance"], &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing moved"), "{said}");
    volume.remount();
    check(&volume);
    drop_caches();
    check_large(&volume.path("large"), 1, 2 * LARGE);
    volume.unmount();
    volume.assert_intact();
}

/// The new directory has joined by the time that it turns out to be too small.
#[test]
fn a_member_replaced_by_a_too_small_directory_stays_and_both_are_named() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        parity: 1,
        members: 3,
        segment: "4MiB",
        unit: "64KiB",
        ..Shape::FOUR_TWO
    };
    let disks = (0..3).map(|_| Disk::new(DiskKind::Tmpfs, 320)).collect();
    let volume = TestVolume::create_over(shape, disks);
    volume.mount();
    write_large(&volume.path("large"), 1, LARGE).unwrap();
    volume.remount();
    volume.fill_disk(1);
    volume.fill_disk(2);
    let small = Disk::new(DiskKind::Tmpfs, 16);
    let new = small.path().join("new");
    let old = text(&volume.members[0]);
    let (code, said) = member(&volume, "replace", &[old, text(&new)]);
    assert_eq!(code, Some(2), "{said}\n{}", volume.log());
    assert!(
        said.contains("is member 3 now, and member 0 stays"),
        "{said}"
    );
    assert_eq!(volume.members_in("online"), 4);
    let (code, said) = member(&volume, "remove", &["3"]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert_eq!(volume.members_in("online"), 3);
    // Once it is large enough, the same command sees through what was begun with it.
    let (code, said) = member(&volume, "replace", &[old, text(&new)]);
    assert_eq!(code, Some(2), "{said}\n{}", volume.log());
    must("mount", &["-o", "remount,size=320m", text(small.path())]);
    let (code, said) = member(&volume, "replace", &[old, text(&new)]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert_eq!(volume.members_in("online"), 3);
    assert_eq!(fs::read_dir(old).unwrap().count(), 0, "nothing of it stays");
    assert!(!segment_files(&new).is_empty());
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
}

#[test]
fn directories_that_do_not_do_are_refused_and_left_alone() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let full = beside(&volume, "full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("note"), "mine").unwrap();
    let (code, said) = member(&volume, "add", &[text(&full)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not empty"), "{said}");
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    let new = beside(&volume, "new");
    for (old, needle) in [("9", "no member 9"), ("/no", "is no member")] {
        let (code, said) = member(&volume, "replace", &[old, text(&new)]);
        assert_eq!(code, Some(1), "{old}: {said}");
        assert!(said.contains(needle), "{old}: {said}");
        assert!(!new.exists(), "{old}");
    }
    let (code, said) = member(&volume, "add", &[text(&volume.members[0])]);
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = member(&volume, "replace", &["1", text(&volume.members[0])]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("member 0 of this very volume"), "{said}");
    let own = text(&volume.members[1]);
    let (code, said) = member(&volume, "replace", &[own, own]);
    assert_eq!(code, Some(0), "it is where it is to be: {said}");
    assert_eq!(volume.status().0["members"].as_array().unwrap().len(), 6);
    let inside = [volume.members[0].join("inner"), volume.path("inner")];
    for inside in &inside {
        let (code, said) = member(&volume, "add", &[text(inside)]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("lies inside"), "{said}");
        assert!(!inside.exists());
    }
    volume.unmount();
}

#[test]
fn a_removal_that_is_interrupted_goes_on_and_says_how_it_is_watched_and_taken_back() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, LARGE);
    let leaving = &volume.members[6];
    let removal = volume.start_member(&["remove", "--rate", "2MiB"], &[text(leaving)]);
    eventually("some of it is moved", || {
        volume.status().0["rebuild"]["bytes_done"].as_u64() > Some(0)
    });
    must("kill", &["-INT", &removal.id().to_string()]);
    let output = removal.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("member 6 is being drained"), "{said}");
    assert!(said.contains("`cauchyfs status "), "{said}");
    assert!(said.contains("`cauchyfs member add '"), "{said}");
    let done = || volume.status().0["rebuild"]["bytes_done"].as_u64();
    let before = done();
    eventually("it goes on", || done() > before);
    assert_eq!(volume.members_in("removing"), 1);
    let (code, said) = member(&volume, "add", &[text(leaving)]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(volume.members_in("removing"), 0);
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
}
