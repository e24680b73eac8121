//! Directories that take the place of others, or must not.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, eventually, must, run, said,
    segment_files, skip_mounts, text, write_large,
};

const LARGE: u64 = 96 << 20;

/// A function that puts something into a directory, under a name.
type Put = fn(&Path);

/// Segments small enough to be interrupted between them.
const SMALL_SEGMENTS: Shape = Shape {
    segment: "4MiB",
    ..Shape::FOUR_TWO
};

fn beside(volume: &TestVolume, name: &str) -> PathBuf {
    volume.members[0].with_file_name(name)
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("it can be listed").file_name();
        name.to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

fn replace(volume: &TestVolume, old: &str, new: &Path) -> (Option<i32>, String) {
    volume.command(&["member", "replace"], &[old, text(new)])
}

/// Begins to put `new` in the place of a member, slowly, and returns once some of it is done.
fn begin_to_replace(volume: &TestVolume, old: &Path, new: &Path) -> Child {
    let command = volume.start_member(&["replace", "--rate", "2MiB"], &[text(old), text(new)]);
    eventually("some of it is done", || {
        volume.status().0["rebuild"]["bytes_done"].as_u64() > Some(0)
    });
    command
}

/// A mounted volume with a large file, and the files of the segments that a member has.
fn filled(shape: Shape, member: usize) -> (TestVolume, BTreeMap<String, Vec<u8>>) {
    let volume = TestVolume::with_large(shape, 3072, LARGE);
    volume.remount();
    let held = segment_files(&volume.members[member]);
    assert!(held.len() > 1);
    (volume, held)
}

/// Fails unless a member is whole in its new directory, and the old one belongs to no volume.
fn assert_replaced(
    mut volume: TestVolume,
    member: usize,
    new: PathBuf,
    held: &BTreeMap<String, Vec<u8>>,
) {
    volume.assert_healthy();
    assert_eq!(volume.members_in("online"), 6);
    volume.unmount();
    let has = segment_files(&new);
    assert!(has.keys().eq(held.keys()), "{:?}", has.keys());
    assert!(has == *held, "some bytes are not what they were");
    volume.members[member] = new;
    volume.mount();
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.unmount();
    volume.assert_intact();
}

#[test]
fn a_directory_that_holds_no_files_but_something_else_is_refused_and_left_as_it_is() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    volume.delete_member(3);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let somebody_elses: [(&str, Put); 3] = [
        ("photos", |path| fs::create_dir(path).unwrap()),
        ("link", |path| symlink("/srv", path).unwrap()),
        ("socket", |path| drop(UnixListener::bind(path).unwrap())),
    ];
    for (name, put) in somebody_elses {
        let directory = beside(&volume, &format!("with-{name}"));
        fs::create_dir(&directory).unwrap();
        put(&directory.join(name));
        let shown = text(&directory);
        let found = format!("{shown} is not empty: it has {name}");
        for (change, rest) in [("add", &[shown][..]), ("replace", &["3", shown])] {
            let (code, said) = volume.command(&["member", change], rest);
            assert_eq!(code, Some(2), "{change}: {said}");
            assert!(said.contains(&found), "{change}: {said}");
        }
        let other = beside(&volume, "other");
        let create = ["create", "--data", "1", "--parity", "1"];
        let output = run(CAUCHYFS, &[&create[..], &[shown, text(&other)]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("is not empty"), "{output:?}");
        assert_eq!(entries(&directory), [name]);
        assert!(!other.exists());
    }
    let fresh = beside(&volume, "fresh");
    fs::create_dir_all(fresh.join("lost+found")).unwrap();
    let (code, said) = replace(&volume, "3", &fresh);
    assert_eq!(code, Some(0), "mkfs leaves that: {said}");
    assert_eq!(volume.status().1, 0);
    volume.unmount();
}

/// The directory that is replaced is there all the time.
#[test]
fn a_replacement_that_was_cut_off_is_seen_through_by_the_same_command() {
    if skip_mounts() {
        return;
    }
    // Mounted again with the new directory, and without it.
    for is_named in [true, false] {
        let (mut volume, held) = filled(SMALL_SEGMENTS, 3);
        let (old, new) = (volume.members[3].clone(), beside(&volume, "e3"));
        let mut client = begin_to_replace(&volume, &old, &new);
        if is_named {
            volume.crash();
        } else {
            must("kill", &["-INT", &client.id().to_string()]);
        }
        client.wait().expect("it ends");
        if is_named {
            volume.members.push(new.clone());
            volume.try_mount(&[0, 1, 2, 3, 4, 5, 6], &[]);
            volume.members.pop();
        } else {
            volume.unmount();
            volume.mount_degraded(&[0, 1, 2, 3, 4, 5]);
        }
        let (code, said) = replace(&volume, text(&old), &new);
        assert_eq!(code, Some(0), "{is_named}: {said}\n{}", volume.log());
        assert_eq!(entries(&old), [""; 0], "nothing of it stays");
        // It is none any more, and was member 3.
        for name in [text(&old), "3"] {
            let (code, said) = replace(&volume, name, &new);
            assert_eq!(code, Some(0), "{name}: {said}\n{}", volume.log());
            let (code, said) = replace(&volume, name, &beside(&volume, "f3"));
            assert_eq!(code, Some(1), "{name}: {said}");
            assert!(!beside(&volume, "f3").exists());
        }
        assert_replaced(volume, 3, new, &held);
    }
}

#[test]
fn a_replacement_is_seen_through_although_the_old_directory_is_deleted_meanwhile() {
    if skip_mounts() {
        return;
    }
    let (volume, held) = filled(SMALL_SEGMENTS, 3);
    let (old, new) = (volume.members[3].clone(), beside(&volume, "e3"));
    // Only the path is left of the old directory, and there are links on the way.
    let link = beside(&volume, "link");
    symlink(old.parent().unwrap(), &link).unwrap();
    let spelled = link.join(old.file_name().unwrap());
    let mut client = begin_to_replace(&volume, &old, &new);
    must("kill", &["-INT", &client.id().to_string()]);
    client.wait().expect("it ends");
    volume.delete_member(3);
    let (code, said) = replace(&volume, text(&spelled), &new);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert_replaced(volume, 3, new, &held);
}

/// Bytes of each file that is written before and after a directory is copied.
const COPIED: u64 = 24 << 20;

fn write_synced(volume: &TestVolume, name: &str, seed: u64) {
    let path = volume.path(name);
    write_large(&path, seed, COPIED).expect("there is room");
    let file = fs::File::open(path).expect("it is there");
    file.sync_all().expect("it is durable");
}

/// Fails unless a member has all bytes of the segment files that were in its place before.
fn assert_has_all_of(member: &Path, before: &Path) {
    let has = segment_files(member);
    for (name, old) in segment_files(before) {
        // Files that are only reserved need not be there.
        let new = has.get(&name).cloned().unwrap_or_default();
        let (common, rest) = (new.len().min(old.len()), [&new[..], &old[..]]);
        assert!(new[..common] == old[..common], "{name} has other bytes");
        let is_unused = |bytes: &[u8]| bytes[common..].iter().all(|byte| *byte == 0);
        assert!(rest.into_iter().all(is_unused), "{name} is cut short");
    }
}

/// Deletes two members other than 3, and fails unless every byte can be read without them.
fn assert_survives_two_losses(volume: &TestVolume, names: &[(&str, u64)]) {
    volume.delete_member(0);
    volume.delete_member(5);
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    drop_caches();
    for (name, seed) in names {
        check_large(&volume.path(name), *seed, COPIED);
    }
}

/// The copy has the superblock of the original, and an older journal.
#[test]
fn a_stale_copy_in_the_place_of_a_mounted_member_counts_for_nothing_until_it_is_verified() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SMALL_SEGMENTS, 1024);
    // The verification that begins by itself is too slow to end within this test.
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--background-rate", "64KiB"]);
    assert!(mounted.status.success(), "{mounted:?}");
    write_synced(&volume, "before", 1);
    let member = volume.members[3].clone();
    let (copy, gone) = (beside(&volume, "copy"), beside(&volume, "gone"));
    must("cp", &["-a", text(&member), text(&copy)]);
    write_synced(&volume, "after", 2);
    fs::rename(&member, &gone).expect("a directory can be renamed");
    fs::rename(&copy, &member).expect("the name is free");
    eventually("the copy takes part", || {
        volume.log().contains("member 3 is back at")
    });
    let is_doubted = || {
        let (status, code) = volume.status();
        let reason = status["members"][3]["reason"].as_str();
        assert!(
            reason.is_some_and(|reason| reason.contains("is from an earlier time")),
            "{status}"
        );
        assert_eq!((status["state"].as_str(), code), (Some("degraded"), 3));
        let rows = status["redundancy"].as_array().expect("rows are listed");
        let losses = rows.iter().map(|row| row["losses_tolerated"].as_i64());
        assert_eq!(losses.min().flatten(), Some(1), "{status}");
    };
    is_doubted();
    let segments = |directory: &Path| segment_files(directory).len();
    assert!(segments(&member) < segments(&gone), "the copy lacks some");
    // A rebuild brings the segments that it lacks. Its own segments are still not verified.
    let (code, said) = volume.command(&["rebuild"], &[]);
    assert!(matches!(code, Some(0 | 3)), "{said}");
    is_doubted();
    let (code, said) = volume.command(&["scrub"], &[]);
    assert!(matches!(code, Some(0 | 3)), "{said}");
    eventually("all is whole again", || volume.status().1 == 0);
    volume.assert_healthy();
    assert_has_all_of(&member, &gone);
    assert_survives_two_losses(&volume, &[("before", 1), ("after", 2)]);
    volume.unmount();
}

/// Writes a synced file that is smaller than those of [`write_synced`].
fn write_part(volume: &TestVolume, name: &str, seed: u64) {
    let path = volume.path(name);
    write_large(&path, seed, COPIED / 3).expect("there is room");
    let file = fs::File::open(path).expect("it is there");
    file.sync_all().expect("it is durable");
}

/// Sixty percent is deleted and more is written after the copy was made. The copy then takes the place of its original.
#[test]
fn a_backup_put_back_while_mounted_costs_no_byte_when_two_others_are_gone() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SMALL_SEGMENTS, 1024);
    // Verification that begins by itself is too slow to end within this test.
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--background-rate", "64KiB"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let before: Vec<String> = (0..10).map(|number| format!("before{number}")).collect();
    for (seed, name) in (10..).zip(&before) {
        write_part(&volume, name, seed);
    }
    let member = volume.members[4].clone();
    let (old, gone) = (beside(&volume, "old4"), beside(&volume, "x"));
    must("cp", &["-a", text(&member), text(&old)]);
    for name in &before[..6] {
        fs::remove_file(volume.path(name)).expect("it is there");
    }
    let after: Vec<String> = (0..8).map(|number| format!("after{number}")).collect();
    for (seed, name) in (20..).zip(&after) {
        write_part(&volume, name, seed);
    }
    must("sync", &["-f", text(&volume.mountpoint)]);
    must("mv", &[text(&member), text(&gone)]);
    must("mv", &[text(&old), text(&member)]);
    eventually("the change is seen", || {
        volume.log().contains("member 4 is back at")
    });
    let is_doubted = || {
        let (code, said) = volume.command(&["status"], &[]);
        assert_eq!(code, Some(3), "{said}");
        assert!(!said.contains("survive the loss of 2 more"), "{said}");
    };
    is_doubted();
    let (code, said) = volume.command(&["rebuild"], &[]);
    assert!(matches!(code, Some(0 | 3)), "{said}");
    is_doubted();
    let (code, said) = volume.command(&["scrub"], &[]);
    assert!(matches!(code, Some(0 | 3)), "{said}");
    eventually("all is whole again", || volume.status().1 == 0);
    for lost in &volume.members[..2] {
        must("mv", &[text(lost), &format!("{}.away", text(lost))]);
    }
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    drop_caches();
    let kept = (16..).zip(&before[6..]);
    for (seed, name) in kept.chain((20..).zip(&after)) {
        check_large(&volume.path(name), seed, COPIED / 3);
    }
    for name in &before[..6] {
        assert!(!volume.path(name).exists(), "{name} was deleted");
    }
    volume.unmount();
}

/// Nothing was written since the copy was made. It could still lack shards, had it been made during a write.
#[test]
fn a_complete_copy_in_the_place_of_a_mounted_member_is_verified_and_the_original_is_not() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SMALL_SEGMENTS, 1024);
    volume.mount();
    write_synced(&volume, "before", 1);
    let member = volume.members[3].clone();
    let (copy, gone) = (beside(&volume, "copy"), beside(&volume, "gone"));
    let replace = |by: &Path| {
        let returns = || volume.log().matches("member 3 is back at").count();
        let before = returns();
        fs::rename(&member, &gone).expect("a directory can be renamed");
        eventually("the loss is seen", || volume.members_in("missing") == 1);
        fs::rename(by, &member).expect("the name is free");
        eventually("it takes part", || returns() > before);
        eventually("all is whole again", || volume.status().1 == 0);
    };
    let is_doubted = || volume.log().contains("is from an earlier time");
    replace(&gone.clone());
    assert!(!is_doubted(), "{}", volume.log());
    must("cp", &["-a", text(&member), text(&copy)]);
    replace(&copy);
    assert!(is_doubted(), "{}", volume.log());
    volume.assert_healthy();
    assert_survives_two_losses(&volume, &[("before", 1)]);
    volume.unmount();
}

/// The copy has the newest record, and lacks bytes of a shard, as one that was made during a write.
#[test]
fn a_copy_seen_in_the_place_of_a_member_is_verified_although_the_daemon_is_killed_at_once() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SMALL_SEGMENTS, 1024);
    volume.mount();
    write_synced(&volume, "before", 1);
    let member = volume.members[3].clone();
    let (copy, gone) = (beside(&volume, "copy"), beside(&volume, "gone"));
    must("cp", &["-a", text(&member), text(&copy)]);
    let (segment, _) = segment_files(&copy).pop_first().expect("it has one");
    let segment = File::options()
        .write(true)
        .open(copy.join("segments").join(segment));
    let segment = segment.expect("root may open it");
    segment.write_all_at(&[0; 4096], 0).expect("there is room");
    fs::rename(&member, &gone).expect("a directory can be renamed");
    fs::rename(&copy, &member).expect("the name is free");
    eventually("the epoch without the member is durable", || {
        volume.log().contains("with 5 members")
    });
    volume.crash();
    let is_doubted = || volume.log().contains("is from an earlier time");
    assert!(!is_doubted(), "the daemon has lived on:\n{}", volume.log());
    volume.mount();
    assert!(is_doubted(), "{}", volume.log());
    eventually("all is whole again", || volume.status().1 == 0);
    volume.assert_healthy();
    assert_survives_two_losses(&volume, &[("before", 1)]);
    volume.unmount();
}

/// The directory and its files keep their inode numbers, so that only their content shows the change.
#[test]
fn a_mounted_member_overwritten_by_a_stale_copy_is_verified() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(SMALL_SEGMENTS, 1024);
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-v"]);
    assert!(mounted.status.success(), "{mounted:?}");
    write_synced(&volume, "before", 1);
    let member = volume.members[3].clone();
    let (copy, gone) = (beside(&volume, "copy"), beside(&volume, "gone"));
    must("cp", &["-a", text(&member), text(&copy)]);
    write_synced(&volume, "after", 2);
    must("cp", &["-a", text(&member), text(&gone)]);
    let write_record = || {
        fs::write(volume.path("small"), "small").expect("there is room");
        must("sync", &["-f", text(&volume.mountpoint)]);
    };
    // The second time, and from then on, it is a record that the copy lacks.
    let read_back = || {
        let log = volume.log();
        log.matches("was read back from 6 members").count()
    };
    let before = read_back();
    eventually("a record that the copy lacks is read back", || {
        write_record();
        read_back() >= before + 2
    });
    // The daemon is stopped while the directory is replaced. It notices only the whole change, so that nothing is
    // copied over a directory that it doubts already.
    let daemon = volume.daemon().expect("it is mounted").to_string();
    must("kill", &["-STOP", &daemon]);
    must("cp", &["-a", &format!("{}/.", text(&copy)), text(&member)]);
    must("kill", &["-CONT", &daemon]);
    eventually("it is noticed", || {
        write_record();
        volume.log().contains("someone else wrote to its journal")
    });
    eventually("it returns", || {
        volume.log().contains("member 3 is back at")
    });
    eventually("all is whole again", || volume.status().1 == 0);
    volume.assert_healthy();
    assert!(volume.log().contains("is from an earlier time"));
    assert_has_all_of(&member, &gone);
    assert_survives_two_losses(&volume, &[("before", 1), ("after", 2)]);
    volume.unmount();
}
