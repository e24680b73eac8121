//! Quotas of directories, as programs and administrators meet them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, must, run, said, skip_mounts, text};

const MIB: u64 = 1 << 20;

/// The sentence of EDQUOT.
const EXCEEDED: &str = "Disk quota exceeded";

fn quota(words: &[&str], directory: &Path) -> (Option<i32>, String) {
    let output = run(CAUCHYFS, &[&["quota"], words, &[text(directory)]].concat());
    (output.status.code(), said(&output))
}

#[track_caller]
fn set(directory: &Path, bytes: &str, files: &str) -> String {
    let (code, said) = quota(&["set", "--bytes", bytes, "--files", files], directory);
    assert_eq!(code, Some(0), "{said}");
    said
}

/// Returns the quotas that `show --json` lists.
#[track_caller]
fn shown(directory: &Path) -> Vec<Value> {
    let (code, said) = quota(&["show", "--json"], directory);
    assert_eq!(code, Some(0), "{said}");
    let document: Value = serde_json::from_str(&said).expect("it is JSON");
    document["quotas"].as_array().expect("it is a list").clone()
}

/// Returns the bytes and files that the innermost quota of a directory counts.
#[track_caller]
fn used(directory: &Path) -> (u64, u64) {
    let quota = &shown(directory)[0];
    let number = |field: &str| quota[field].as_u64().expect("it is a number");
    (number("bytes_used"), number("files_used"))
}

/// Waits until the quota counts this. A removed file counts until the kernel has forgotten it.
#[track_caller]
fn becomes(directory: &Path, expected: (u64, u64)) {
    eventually("removed files count no more", || {
        used(directory) == expected
    });
}

#[track_caller]
fn fails_with(reason: &str, program: &str, arguments: &[&str]) {
    let output = run(program, arguments);
    assert!(!output.status.success(), "{program} {arguments:?}");
    assert!(said(&output).contains(reason), "{}", said(&output));
}

/// Returns what `df` says in one column.
#[track_caller]
fn df(directory: &Path, column: &str) -> u64 {
    let column = format!("--output={column}");
    let said = must("df", &["-B1", &column, text(directory)]);
    let line = said.lines().nth(1).expect("a line for the directory");
    line.trim().parse().expect("it is a number")
}

/// Writes a file of so many MiB past the page cache.
fn dd(path: &Path, mebibytes: u64) -> [String; 6] {
    [
        "if=/dev/zero".to_owned(),
        format!("of={}", text(path)),
        "bs=1M".to_owned(),
        format!("count={mebibytes}"),
        "oflag=direct".to_owned(),
        "status=none".to_owned(),
    ]
}

#[test]
fn programs_meet_a_quota_as_they_meet_one_of_xfs() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let [top, other] = ["top", "other"].map(|name| volume.path(name));
    fs::create_dir_all(top.join("deep/er")).expect("there is room");
    fs::create_dir(&other).expect("there is room");
    fs::write(top.join("deep/before"), vec![1; 100_000]).expect("there is room");
    let said = set(&top, "8MiB", "20");
    assert!(said.contains("4 of 20 files"), "{said}");
    assert_eq!(used(&top), (100_352, 4));
    assert_eq!(shown(&volume.mountpoint).len(), 1);
    assert_eq!(shown(&other).len(), 0);
    assert_eq!(df(&top, "size"), 8 * MIB);
    assert_eq!(df(&top.join("deep/er"), "avail"), 8 * MIB - 102_400);
    assert_eq!((df(&top, "itotal"), df(&top, "iavail")), (20, 16));
    assert!(df(&other, "size") > 100 * MIB);
    // Past the page cache, the very write is refused.
    let arguments = dd(&top.join("direct"), 20);
    fails_with(EXCEEDED, "dd", &arguments.each_ref().map(String::as_str));
    assert_eq!(
        top.join("direct").metadata().expect("it is there").len(),
        7 * MIB
    );
    // New files bypass the page cache while so little is left, so any program hears of it at once.
    let new = top.join("new");
    let of = format!("of={}", text(&new));
    fails_with(EXCEEDED, "dd", &["if=/dev/zero", &of, "bs=1M", "count=20"]);
    let big = volume.path("big");
    fs::write(&big, vec![3; 12 << 20]).expect("there is room");
    fs::remove_file(&new).expect("it is there");
    fails_with(EXCEEDED, "cp", &["--reflink=never", text(&big), text(&new)]);
    fs::remove_file(&new).expect("it is there");
    // Through the page cache, fsync tells.
    let of = format!("of={}", text(&top.join("deep/before")));
    let through = ["bs=1M", "count=20", "conv=notrunc,fsync"];
    fails_with(
        EXCEEDED,
        "dd",
        &[&["if=/dev/zero", &of], &through[..]].concat(),
    );
    must(
        "truncate",
        &["-s", "100000", text(&top.join("deep/before"))],
    );
    let (name, link) = (top.join("direct"), other.join("link"));
    fails_with("cross-device", "ln", &[text(&name), text(&link)]);
    must("mv", &[text(&name), text(&other)]);
    assert_eq!(
        other.join("direct").metadata().expect("it moved").len(),
        7 * MIB
    );
    becomes(&top, (100_352, 4));
    // A second copy is too much, whenever the page cache notices.
    let [copy, again] = ["copy", "again"].map(|name| top.join(name));
    must("cp", &["-r", text(&other), text(&copy)]);
    rustix::fs::sync();
    fails_with("", "cp", &["-r", text(&other), text(&again)]);
    volume.unmount();
}

#[test]
fn overwriting_a_file_is_refused_at_the_limit_on_a_mount_that_begins_with_quotas() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let top = volume.path("top");
    fs::create_dir(&top).expect("there is room");
    let before = top.join("before");
    fs::write(&before, vec![1; 3 << 20]).expect("there is room");
    set(&top, "20MiB", "none");
    volume.remount();
    let mut file = File::options().write(true).open(&before).expect("it opens");
    let piece = vec![2; 1 << 20];
    let accepted = (0..40)
        .take_while(|_| file.write_all(&piece).is_ok())
        .count();
    // The directory counts as well.
    assert_eq!(accepted, 19);
    assert!(used(&top).0 <= 20 * MIB, "{:?}", used(&top));
    file.sync_all().expect("all that was accepted is there");
    drop(file);
    volume.remount();
    let read = fs::read(&before).expect("nothing is lost");
    assert!(read.len() >= 19 << 20 && read.iter().all(|byte| *byte == 2));
    volume.unmount();
}

#[test]
fn the_room_of_a_removed_file_can_be_used_at_once() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let top = volume.path("top");
    fs::create_dir(&top).expect("there is room");
    set(&top, "8MiB", "2");
    let file = top.join("file");
    for _ in 0..20 {
        let arguments = dd(&file, 6);
        must("dd", &arguments.each_ref().map(String::as_str));
        fs::remove_file(&file).expect("it is there");
    }
    volume.unmount();
}

#[test]
fn the_account_survives_a_remount_and_kill_9() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let top = volume.path("top");
    fs::create_dir(&top).expect("there is room");
    set(&top, "64MiB", "1000");
    let write = |name: &str, len: usize| {
        let mut file = File::create(top.join(name)).expect("the quota has room");
        file.write_all(&vec![7; len]).expect("the quota has room");
        file.sync_all().expect("it is durable");
    };
    for number in 0..50 {
        write(&format!("f{number}"), 1000 * number);
    }
    let before = used(&top);
    assert_eq!(before.1, 51);
    volume.remount();
    assert_eq!(used(&top), before);
    write("more", 3 << 20);
    fs::remove_file(top.join("f49")).expect("it is there");
    let expected = (before.0 + (3 << 20) - 49_152, 51);
    becomes(&top, expected);
    File::open(&top)
        .and_then(|top| top.sync_all())
        .expect("it is durable");
    volume.crash();
    volume.mount();
    assert_eq!(used(&top), expected);
    let inner = top.join("inner");
    fs::create_dir(&inner).expect("the quota has room");
    set(&inner, "none", "3");
    fs::write(inner.join("1"), "").expect("the quota has room");
    fs::write(inner.join("2"), "").expect("the quota has room");
    let refused = fs::write(inner.join("3"), "").expect_err("the quota is used up");
    assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT));
    volume.crash();
    let members: Vec<&str> = volume.members.iter().map(|it| text(it)).collect();
    must(CAUCHYFS, &[&["check", "--deep"], &members[..]].concat());
    volume.mount();
    assert_eq!(shown(&volume.mountpoint).len(), 2);
    assert_eq!(quota(&["clear"], &top).0, Some(0));
    assert_eq!(shown(&inner).len(), 1);
    assert_eq!(quota(&["clear"], &inner).0, Some(0));
    let (code, said) = quota(&["clear"], &inner);
    assert_eq!(code, Some(1), "{said}");
    fs::write(inner.join("3"), "").expect("there is no quota any more");
    fs::rename(inner.join("3"), volume.path("3")).expect("nor a border");
    volume.unmount();
}

#[test]
fn a_quota_is_refused_where_it_makes_no_sense() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    volume.mount();
    let file = volume.path("file");
    fs::write(&file, "x").expect("there is room");
    for (words, directory, code, part) in [
        (
            &["set", "--files", "3"][..],
            file.as_path(),
            1,
            "no directory",
        ),
        (
            &["set", "--files", "3"],
            Path::new("/"),
            1,
            "no mounted volume",
        ),
        (&["set"], &volume.mountpoint, 1, "--bytes"),
        (
            &["set", "--files", "x"],
            &volume.mountpoint,
            1,
            "no number of files",
        ),
        (
            &["set", "--bytes", "1parsec"],
            &volume.mountpoint,
            1,
            "no unit",
        ),
        (&["show"], Path::new("/nowhere"), 1, "cannot find"),
        (&["clear"], &volume.mountpoint, 1, "no quota"),
    ] {
        let (ended, said) = quota(words, directory);
        assert_eq!(ended, Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    }
    let (code, said) = quota(&["show"], &volume.mountpoint);
    assert_eq!(code, Some(0));
    assert!(said.starts_with("no quota at"), "{said}");
    volume.unmount();
    let all: Vec<usize> = (0..volume.members.len()).collect();
    let mounted = volume.try_mount(&all, &["-o", "ro"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let (code, said) = quota(&["set", "--files", "3"], &volume.mountpoint);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("read only"), "{said}");
    volume.unmount();
}
