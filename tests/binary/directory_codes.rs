//! Codes of directories: files of each survive the loss of as many directories of members as their code promises.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, eventually, skip_mounts, text,
    write_large,
};

const LARGE: u64 = 24 << 20;

/// Returns the bytes of files in stripes of a code, by `status`.
fn bytes_in(status: &Value, (data, parity): (u64, u64), of_directories: bool) -> u64 {
    let codes = status["codes"].as_array().expect("codes are told");
    let is_wanted = |code: &&Value| {
        let found = (code["data"].as_u64(), code["parity"].as_u64());
        found == (Some(data), Some(parity))
            && code["of_directories"].as_bool().unwrap_or(false) == of_directories
    };
    let bytes = codes.iter().filter(is_wanted);
    bytes.filter_map(|code| code["bytes"].as_u64()).sum()
}

/// Writes a file that is durable on return.
fn put(path: &Path, seed: u64, len: u64) {
    write_large(path, seed, len).expect("the file is written");
    let file = File::open(path).expect("the file can be opened");
    file.sync_all().expect("the file is durable");
}

#[test]
fn a_directory_with_less_parity_survives_one_loss_and_all_others_two() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    let (thesis, scratch) = (volume.path("thesis"), volume.path("scratch"));
    fs::create_dir(&thesis).unwrap();
    fs::create_dir_all(scratch.join("old/older")).unwrap();
    put(&scratch.join("before"), 1, 1 << 20);
    let path = ["set", "--path", text(&scratch)];
    let set = [&path[..], &["--data", "6", "--parity", "1"]].concat();
    let (code, said) = volume.command(&set, &[]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    assert!(said.contains(": 6+1 rs-cauchy"), "{said}");
    let (_, shown) = volume.command(&[&path[..], &["--show"]].concat(), &[]);
    assert!(shown.contains(": 6+1 rs-cauchy"), "{shown}");
    fs::create_dir(scratch.join("new")).unwrap();
    let scratch_files = ["large", "old/older/large", "new/large"];
    for name in scratch_files {
        put(&scratch.join(name), 2, LARGE);
    }
    fs::write(scratch.join("small"), "small").unwrap();
    put(&thesis.join("large"), 3, LARGE);
    let (status, _) = volume.status();
    let thin = bytes_in(&status, (6, 1), true);
    // The last stripes may be in memory still.
    assert!(thin >= 3 * LARGE, "{status}");
    assert!(thin < 3 * LARGE / 6 * 7 + (8 << 20), "{status}");
    let whole = bytes_in(&status, (4, 2), false);
    assert!(whole >= LARGE, "{status}");
    assert_eq!(status["state"], "healthy", "{status}");
    let (_, told) = volume.command(&["status"], &[]);
    assert!(!told.contains("is being changed"), "{told}");
    let (_, told) = volume.command(&["set", "--show"], &[]);
    assert!(
        told.contains("in 6+1 rs-cauchy, a code of directories"),
        "{told}"
    );
    volume.try_unmount();

    volume.delete_member(3);
    volume.mount_degraded(&[0, 1, 2, 4, 5, 6]);
    drop_caches();
    for name in scratch_files {
        check_large(&scratch.join(name), 2, LARGE);
    }
    check_large(&thesis.join("large"), 3, LARGE);
    volume.try_unmount();
    volume.delete_member(0);
    // The files with less parity are lost, and the volume goes on.
    let output = volume.try_mount(&[1, 2, 4, 5, 6], &[]);
    assert_eq!(
        output.status.code(),
        Some(4),
        "{output:?}\n{}",
        volume.log()
    );
    drop_caches();
    check_large(&thesis.join("large"), 3, LARGE);
    check_large(&scratch.join("before"), 1, 1 << 20);
    assert_eq!(fs::read_to_string(scratch.join("small")).unwrap(), "small");
    assert!(
        fs::read(scratch.join("large")).is_err(),
        "two of seven are lost"
    );
    volume.try_unmount();
}

#[test]
fn files_are_rewritten_on_request_and_that_goes_on_after_a_kill() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    let scratch = volume.path("scratch");
    fs::create_dir_all(scratch.join("below")).unwrap();
    let files = [scratch.join("large"), scratch.join("below/large")];
    for file in &files {
        put(file, 1, LARGE);
    }
    put(&volume.path("other"), 2, 1 << 20);
    let order = [
        "set",
        "--path",
        text(&scratch),
        "--data",
        "5",
        "--parity",
        "1",
        "--rewrite",
    ];
    let mut rewriting = Command::new(CAUCHYFS)
        .args(order)
        .args(["--rate", "4MiB"])
        .arg(&volume.mountpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    eventually("some is rewritten", || {
        bytes_in(&volume.status().0, (5, 1), true) > 0
    });
    let (status, _) = volume.status();
    assert_eq!(status["awaits_rewrite"], true, "{status}");
    volume.crash();
    rewriting.wait().unwrap();
    volume.mount();
    for file in &files {
        check_large(file, 1, LARGE);
    }
    eventually("all is rewritten", || {
        let (status, _) = volume.status();
        bytes_in(&status, (5, 1), true) >= 2 * LARGE
            && bytes_in(&status, (4, 2), false) <= 4 << 20
            && status["awaits_rewrite"] == false
    });
    // Once more, there is nothing to do.
    let (code, said) = volume.command(&order, &[]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.delete_member(4);
    drop_caches();
    for file in &files {
        check_large(file, 1, LARGE);
    }
    check_large(&volume.path("other"), 2, 1 << 20);
    volume.try_unmount();
}

/// While a directory of seven is away, files of 6+1 are written with 4+2. No order follows.
#[test]
fn files_get_the_code_of_their_directory_by_themselves_once_all_members_are_back() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    let scratch = volume.path("scratch");
    fs::create_dir(&scratch).unwrap();
    put(&scratch.join("old"), 1, LARGE);
    let set = [
        "set",
        "--path",
        text(&scratch),
        "--data",
        "6",
        "--parity",
        "1",
    ];
    let (code, said) = volume.command(&set, &[]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.try_unmount();
    volume.mount_degraded(&[0, 1, 2, 4, 5, 6]);
    put(&scratch.join("new"), 2, LARGE);
    volume.try_unmount();
    volume.mount_degraded(&[0, 1, 2, 4, 5, 6]);
    let (status, _) = volume.status();
    assert_eq!(status["awaits_rewrite"], true, "{status}");
    assert_eq!(status["rewriting"]["waits_for"], "members", "{status}");
    assert_eq!(bytes_in(&status, (6, 1), true), 0, "{status}");
    let (_, told) = volume.command(&["status"], &[]);
    let waits = "once member 3 is back or given up";
    assert!(told.contains(waits), "{told}");
    volume.try_unmount();
    volume.mount();
    eventually("the new file has the code of its directory", || {
        let (status, _) = volume.status();
        bytes_in(&status, (6, 1), true) >= LARGE && status["awaits_rewrite"] == false
    });
    let (status, _) = volume.status();
    assert!(bytes_in(&status, (4, 2), false) >= LARGE, "{status}");
    volume.delete_member(0);
    drop_caches();
    check_large(&scratch.join("old"), 1, LARGE);
    check_large(&scratch.join("new"), 2, LARGE);
    volume.try_unmount();
}

#[test]
fn a_rewrite_without_room_for_it_is_refused_and_changes_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    volume.mount();
    let scratch = volume.path("scratch");
    fs::create_dir(&scratch).unwrap();
    // Of 256 MiB 135 are taken, and 270 would be.
    for seed in 0..9 {
        put(&scratch.join(seed.to_string()), seed, 10 << 20);
    }
    let order = [
        "set",
        "--path",
        text(&scratch),
        "--data",
        "1",
        "--parity",
        "2",
        "--rewrite",
    ];
    let (code, said) = volume.command(&order, &[]);
    assert_eq!(code, Some(2), "{said}\n{}", volume.log());
    assert!(
        said.contains("there is too little room to rewrite the files"),
        "{said}"
    );
    assert!(said.contains("leave --rewrite out"), "{said}");
    let (_, shown) = volume.command(&["set", "--path", text(&scratch), "--show"], &[]);
    assert!(shown.contains(": 4+2 rs-cauchy"), "{shown}");
    let (status, _) = volume.status();
    assert_eq!(status["awaits_rewrite"], false, "{status}");
    volume.try_unmount();
}

#[test]
fn what_a_directory_cannot_have_is_refused_in_one_line() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    let scratch = volume.path("scratch");
    fs::create_dir(&scratch).unwrap();
    fs::write(volume.path("file"), "a file").unwrap();
    let (place, file) = (
        text(&scratch).to_owned(),
        text(&volume.path("file")).to_owned(),
    );
    let missing = text(&scratch.join("missing")).to_owned();
    for (words, problem, remedy) in [
        (
            &["--path", &place, "--parity", "3"][..],
            "the index survives 2 losses",
            "cauchyfs set --parity 3",
        ),
        (
            &["--path", &place, "--data", "9"],
            "9+2 needs 11 directories, and 7 are there to stay",
            "cauchyfs member add",
        ),
        (
            &["--path", &place, "--code", "raid6"],
            "raid6",
            "cauchyfs create --help",
        ),
        (
            &["--path", &place],
            "nothing to change",
            "cauchyfs set --path",
        ),
        (
            &["--path", "/", "--parity", "1"],
            "does not lie in",
            "give a directory of the volume",
        ),
        (
            &["--path", &file, "--parity", "1"],
            "is no directory",
            "name the directory in which it lies",
        ),
        (
            &["--path", &missing, "--parity", "1"],
            "No such file",
            "mkdir",
        ),
        (
            &["--path", &place, "--parity", "1", "--rate", "1MiB"],
            "--rate limits what --rewrite writes",
            "give --rewrite as well",
        ),
    ] {
        refused(&volume, &[&["set"], words].concat(), problem, remedy);
    }
    let (code, said) = volume.command(&["set", "--rewrite", "--parity", "1"], &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--path"), "{said}");
    let set = ["set", "--path", &place, "--data", "5", "--parity", "2"];
    let (code, said) = volume.command(&set, &[]);
    assert_eq!(code, Some(0), "{said}");
    refused(
        &volume,
        &["set", "--parity", "1"],
        "a directory has a code that survives 2 losses",
        "cauchyfs set --show",
    );
    volume.try_unmount();
    let all: Vec<usize> = (0..7).collect();
    let output = volume.try_mount(&all, &["-o", "ro"]);
    assert!(output.status.success(), "{output:?}\n{}", volume.log());
    let (code, said) = volume.command(&set, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("mounted to be read only"), "{said}");
    assert!(said.contains("mount it without `-o ro`"), "{said}");
    let (code, said) = volume.command(&["set", "--show"], &[]);
    assert_eq!(code, Some(0), "{said}");
    let line = format!("new data in {place}: 5+2 rs-cauchy");
    assert!(said.contains(&line), "{said}");
    volume.try_unmount();
}

/// Asserts that a command is refused as wrong usage, in one line and one of advice.
#[track_caller]
fn refused(volume: &TestVolume, words: &[&str], problem: &str, remedy: &str) {
    let (code, said) = volume.command(words, &[]);
    assert_eq!(code, Some(1), "{words:?}: {said}");
    let lines: Vec<&str> = said.lines().collect();
    let [first, second] = lines[..] else {
        panic!("{words:?}: {said}");
    };
    assert!(first.contains(problem), "{words:?}: {said}");
    assert!(second.contains(remedy), "{words:?}: {said}");
}

#[test]
fn directories_with_codes_are_listed_and_keep_the_members_that_they_need() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 1024);
    volume.mount();
    let document = || -> Value {
        let (code, said) = volume.command(&["set", "--show", "--json"], &[]);
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str(&said).expect("one document")
    };
    let none = document();
    assert_eq!(none["directories"], serde_json::json!([]), "{none}");
    assert_eq!(none["geometry"]["data"], 4, "{none}");
    let (scratch, inner) = (volume.path("scratch"), volume.path("scratch/in ner"));
    fs::create_dir_all(&inner).unwrap();
    for (directory, data) in [(&inner, "2"), (&scratch, "6")] {
        let path = ["set", "--path", text(directory)];
        let set = [&path[..], &["--data", data, "--parity", "1"]].concat();
        let (code, said) = volume.command(&set, &[]);
        assert_eq!(code, Some(0), "{said}");
    }
    let shown = document();
    let directories = shown["directories"].as_array().expect("a list");
    let found: Vec<_> = directories
        .iter()
        .map(|it| (it["path"].as_str(), it["geometry"]["data"].as_u64()))
        .collect();
    let expected = [
        (Some(text(&scratch)), Some(6)),
        (Some(text(&inner)), Some(2)),
    ];
    assert_eq!(found, expected, "{shown}");
    assert_eq!(shown["geometry"]["data"], 4, "{shown}");
    assert_eq!(shown["has_more_directories"], false, "{shown}");
    // Nothing has the code yet but the directory.
    let (code, removed) = volume.command(&["member", "remove"], &["3"]);
    assert_eq!(code, Some(1), "{removed}");
    assert!(
        removed.contains("a stripe of 6+1 rs-cauchy, a code of directories, needs 7"),
        "{removed}"
    );
    assert!(removed.contains("cauchyfs set --show"), "{removed}");
    let narrow = ["set", "--path", text(&scratch), "--data", "5", "--rewrite"];
    let (code, said) = volume.command(&narrow, &[]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = volume.command(&["member", "remove"], &["3"]);
    assert_eq!(code, Some(0), "{said}\n{}", volume.log());
    volume.try_unmount();
}
