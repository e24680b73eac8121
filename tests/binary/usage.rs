//! Where the space goes: every block of a member's files has a use, and every file a place.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use serde_json::Value;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, eventually, must, pattern, run, said, skip_mounts, text,
};

const MIB: u64 = 1 << 20;

/// The stripes of the large file: as many times 1 MiB of data and 512 KiB of parity.
const STRIPES: u64 = 8;

const USES: [&str; 8] = [
    "data",
    "parity",
    "dead",
    "preallocated",
    "journal",
    "index",
    "held_back",
    "other",
];

/// Returns what `usage --json` says of a path, and its exit code.
fn usage(path: &Path) -> (Value, Option<i32>) {
    let output = run(CAUCHYFS, &["usage", "--json", text(path)]);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    (value, output.status.code())
}

/// Returns the bytes of one use of a member.
fn of(member: &Value, column: &str) -> u64 {
    member["uses"][column].as_u64().expect("it is counted")
}

/// Returns the bytes of one use of all members.
fn of_all(usage: &Value, column: &str) -> u64 {
    let members = usage["members"].as_array().expect("members are listed");
    members.iter().map(|member| of(member, column)).sum()
}

/// Returns the blocks that the files below a directory take, in bytes, without those of directories.
fn blocks_below(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).expect("the member is there") {
        let path = entry.expect("the member is there").path();
        // A segment may go meanwhile.
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        bytes += if found.is_dir() {
            blocks_below(&path)
        } else {
            found.blocks() * 512
        };
    }
    bytes
}

/// Checks that the uses of each member sum to the blocks of its files.
fn is_explained(volume: &TestVolume, usage: &Value) -> bool {
    let members = usage["members"].as_array().expect("members are listed");
    assert_eq!(members.len(), volume.members.len(), "{usage}");
    members
        .iter()
        .zip(&volume.members)
        .all(|(member, directory)| {
            let sum: u64 = USES.iter().map(|column| of(member, column)).sum();
            assert_eq!(member["bytes_used"].as_u64(), Some(sum), "{usage}");
            sum == blocks_below(directory)
        })
}

fn write_large(volume: &TestVolume) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(volume.path("large"))
        .expect("the mount answers");
    let bytes = usize::try_from(STRIPES * MIB).expect("it fits memory");
    file.write_all_at(&pattern(1, bytes), 0)
        .expect("there is room");
    file.sync_all().expect("it is durable");
    file
}

#[test]
fn the_uses_of_each_member_sum_to_the_blocks_of_its_files() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let (empty, code) = usage(&volume.mountpoint);
    assert_eq!(code, Some(0), "{empty}");
    for column in ["data", "parity", "dead"] {
        assert_eq!(of_all(&empty, column), 0, "{column}: {empty}");
    }
    let file = write_large(&volume);
    let mut last = Value::Null;
    eventually("every block has a use", || {
        last = usage(&volume.mountpoint).0;
        is_explained(&volume, &last) && last["unwritten_bytes"] == 0
    });
    assert_eq!(of_all(&last, "data"), STRIPES * MIB, "{last}");
    assert_eq!(of_all(&last, "parity"), STRIPES * MIB / 2, "{last}");
    assert_eq!(of_all(&last, "dead"), 0, "{last}");
    assert_eq!(last["held_bytes"], STRIPES * MIB, "{last}");
    let members = last["members"].as_array().expect("members are listed");
    for (member, directory) in members.iter().zip(&volume.members) {
        let journals = ["journal.0", "journal.1"].map(|name| directory.join(name));
        let journals = journals.map(|path| fs::metadata(path).expect("it is there").blocks() * 512);
        assert_eq!(
            of(member, "journal"),
            journals.iter().sum::<u64>(),
            "{last}"
        );
        let has_index = directory.join("index").exists();
        assert_eq!(of(member, "index") > 0, has_index, "{last}");
        assert_eq!(
            of(member, "held_back") > 0,
            directory.join("ballast").exists()
        );
    }
    // The first half of each stripe is replaced, and so dead where it was.
    for stripe in 0..STRIPES {
        file.write_all_at(&pattern(2, 1 << 19), stripe * MIB)
            .expect("there is room");
    }
    file.sync_all().expect("it is durable");
    eventually("every block has a use", || {
        last = usage(&volume.mountpoint).0;
        is_explained(&volume, &last) && last["unwritten_bytes"] == 0
    });
    // Half of the data, and the parity that belongs to it.
    let dead = STRIPES * MIB / 2 + STRIPES * MIB / 4;
    let found = of_all(&last, "dead");
    assert!((dead..dead + MIB).contains(&found), "{found}: {last}");
    let data = of_all(&last, "data");
    assert!(
        (STRIPES * MIB..(STRIPES + 1) * MIB).contains(&data),
        "{last}"
    );
    let said = volume.command(&["usage"], &[]).1;
    assert!(said.contains("test: files hold 8.0 MiB"), "{said}");
    drop(file);
    volume.unmount();
}

#[test]
fn a_member_that_is_away_is_listed_with_the_reason_why_it_is_not_counted() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let away = volume.members[4].with_extension("aside");
    fs::rename(&volume.members[4], &away).expect("the directory is there");
    eventually("it is seen to be away", || {
        volume.members_in("missing") == 1
    });
    let (found, code) = usage(&volume.mountpoint);
    assert_eq!(code, Some(0), "{found}");
    let member = &found["members"][4];
    assert!(member["bytes_used"].is_null() && member["uses"].is_null());
    let reason = member["reason"].as_str().expect("there is a reason");
    assert!(reason.contains("cannot find directory"), "{reason}");
    fs::rename(&away, &volume.members[4]).expect("the directory is there");
    volume.unmount();
}

#[test]
fn a_file_is_shown_with_its_stripes_its_members_and_the_losses_that_it_survives() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    drop(write_large(&volume));
    let large = volume.path("large");
    let mut last = usage(&large);
    eventually("all of it is on the members", || {
        last = usage(&large);
        last.0["unwritten_stripes"] == 0
    });
    let (found, code) = &last;
    assert_eq!(*code, Some(0), "{found}");
    assert_eq!(found["size"], STRIPES * MIB, "{found}");
    assert_eq!(found["stripes"], STRIPES, "{found}");
    assert_eq!(found["losses_tolerated"], 2, "{found}");
    assert_eq!(found["stripes_below_full"], 0, "{found}");
    let members = found["members"].as_array().expect("members are listed");
    assert_eq!(members.len(), 6, "{found}");
    assert!(members.iter().all(|member| member["shards"] == STRIPES));

    let away = volume.members[1].with_extension("aside");
    fs::rename(&volume.members[1], &away).expect("the directory is there");
    eventually("it is seen to be away", || {
        volume.members_in("missing") == 1
    });
    let (found, code) = usage(&large);
    assert_eq!(code, Some(3), "{found}");
    assert_eq!(found["losses_tolerated"], 1, "{found}");
    assert_eq!(found["stripes_below_full"], STRIPES, "{found}");
    assert_eq!(found["members"][1]["is_online"], false, "{found}");
    let (code, said) = volume.command(&["usage"], &["large"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("survives the loss of 1 more member"),
        "{said}"
    );
    assert!(
        said.contains("8 stripes of 8 below full redundancy"),
        "{said}"
    );
    fs::rename(&away, &volume.members[1]).expect("the directory is there");
    volume.unmount();
}

#[test]
fn a_directory_is_shown_as_the_sum_of_the_files_below_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    drop(write_large(&volume));
    fs::create_dir_all(volume.path("dir/inner")).expect("the mount answers");
    fs::rename(volume.path("large"), volume.path("dir/inner/large")).expect("the mount answers");
    fs::hard_link(volume.path("dir/inner/large"), volume.path("dir/again"))
        .expect("the mount answers");
    fs::write(volume.path("dir/small"), "in the index").expect("the mount answers");
    let (found, _) = usage(&volume.path("dir"));
    assert_eq!(found["is_directory"], true, "{found}");
    assert_eq!(found["files"], 2, "one has two names: {found}");
    assert_eq!(found["directories"], 2, "{found}");
    assert_eq!(found["size"], STRIPES * MIB + 12, "{found}");
    let (found, code) = usage(&volume.path("dir/small"));
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(found["stripes"], 0, "{found}");
    assert_eq!(found["losses_tolerated"], 2, "{found}");
    let said = said(&run(CAUCHYFS, &["usage", text(&volume.path("dir/small"))]));
    assert!(said.contains("all of it is in the index"), "{said}");
    must("fallocate", &["-l", "3MiB", text(&volume.path("dir/room"))]);
    let (found, _) = usage(&volume.path("dir"));
    assert_eq!(found["reserved_bytes"], 3 * MIB, "{found}");
    volume.unmount();
}

#[test]
fn a_path_outside_of_every_mount_is_refused_with_what_would_work() {
    let output = run(CAUCHYFS, &["usage", "/proc/self/cmdline"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = said(&output);
    assert!(said.contains("lies in no mounted volume"), "{said}");
    assert!(
        said.contains("`cauchyfs mount DIR... MOUNTPOINT` first"),
        "{said}"
    );
    let output = run(CAUCHYFS, &["usage", "/proc/self/nothing"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
