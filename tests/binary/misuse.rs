//! Impossible requests are refused with a sentence that says why, and a second one that helps.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{CAUCHYFS, Shape, TestVolume, skip_mounts};
use tempfile::TempDir;

fn cauchyfs<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(CAUCHYFS)
        .args(arguments)
        .output()
        .expect("the binary runs")
}

/// Fails unless the command ended with `code` after one line on standard error, or two, of which
/// the first contains `needle`.
#[track_caller]
fn refused(output: &Output, code: i32, needle: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!((1..=2).contains(&lines.len()), "one line, or two: {said}");
    assert!(lines[0].starts_with("cauchyfs: "), "{said}");
    assert!(said.contains(needle), "no `{needle}` in: {said}");
    assert!(
        lines.iter().skip(1).all(|line| line.starts_with("  ")),
        "{said}"
    );
}

fn home() -> (TempDir, impl Fn(&str) -> PathBuf) {
    let home = tempfile::tempdir().expect("there is room for a temporary directory");
    let path = home.path().to_owned();
    (home, move |name: &str| path.join(name))
}

/// Makes a 2+1 volume in `d0`, `d1`, `d2` of a directory.
fn create(base: &Path) -> [PathBuf; 3] {
    let members = [0, 1, 2].map(|index| base.join(format!("d{index}")));
    let mut arguments = [
        "create",
        "--data",
        "2",
        "--parity",
        "1",
        "--segment-size",
        "8MiB",
    ]
    .map(PathBuf::from)
    .to_vec();
    arguments.extend(members.clone());
    let output = cauchyfs(&arguments);
    assert!(output.status.success(), "{output:?}");
    members
}

#[test]
fn create_prints_an_id_and_refuses_the_same_directories_again() {
    let (home, _at) = home();
    let members = [0, 1].map(|index| home.path().join(format!("d{index}")));
    let mut arguments = [
        "create",
        "--data",
        "1",
        "--parity",
        "1",
        "--segment-size",
        "8MiB",
    ]
    .map(PathBuf::from)
    .to_vec();
    arguments.extend(members);
    let output = cauchyfs(&arguments);
    let id = String::from_utf8(output.stdout).expect("the id is text");
    assert!(uuid::Uuid::parse_str(id.trim()).is_ok(), "{id}");
    refused(&cauchyfs(&arguments), 1, "belongs to a volume already");
}

#[test]
fn create_warns_of_directories_on_one_device_and_status_counts_the_device() {
    let (home, _at) = home();
    let members = [0, 1, 2].map(|index| home.path().join(format!("d{index}")));
    let words = ["create", "--data", "2", "--parity", "1"].map(PathBuf::from);
    let output = cauchyfs(&[words.as_slice(), &members].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let warned = String::from_utf8_lossy(&output.stderr);
    assert_eq!(warned.lines().count(), 1, "{warned}");
    let listed = members.each_ref().map(|path| path.display().to_string());
    let listed = listed.join(", ");
    assert!(warned.contains("share a device"), "{warned}");
    assert!(warned.trim_end().ends_with(&listed), "{warned}");
    let words = ["status", "--json"].map(PathBuf::from);
    let output = cauchyfs(&[words.as_slice(), &members].concat());
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status["shared_devices"], serde_json::json!([[0, 1, 2]]));
}

/// Runs the program with one of its streams at `/dev/full`, or at a pipe that has no reader.
fn unheard(arguments: &[&str], stream: &str, closed: bool) -> Output {
    let place = if closed {
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        drop(reader);
        Stdio::from(writer)
    } else {
        let full = fs::File::options().write(true).open("/dev/full");
        Stdio::from(full.expect("it is there"))
    };
    let mut command = Command::new(CAUCHYFS);
    command.args(arguments);
    match stream {
        "stdout" => command.stdout(place).stderr(Stdio::piped()),
        _ => command.stdout(Stdio::piped()).stderr(place),
    };
    let child = command.spawn().expect("the binary runs");
    child.wait_with_output().expect("it was started here")
}

#[test]
fn output_that_is_not_taken_gives_an_exit_code_and_no_panic() {
    let (home, _at) = home();
    let members = create(home.path());
    let members = members
        .each_ref()
        .map(|member| member.to_str().expect("text"));
    for words in [
        ["--help"].as_slice(),
        &[["status"].as_slice(), &members].concat(),
        &[["status", "--json"].as_slice(), &members].concat(),
        &[["check"].as_slice(), &members].concat(),
    ] {
        let full = unheard(words, "stdout", false);
        refused(&full, 2, "cannot write to standard output: No space left");
        let closed = unheard(words, "stdout", true);
        assert_eq!(closed.status.code(), Some(2), "{words:?}: {closed:?}");
        assert!(closed.stderr.is_empty(), "{words:?}: {closed:?}");
    }
    for closed in [false, true] {
        let missing = unheard(&["status", "/nonexistent/d0"], "stderr", closed);
        let heard = cauchyfs(&["status", "/nonexistent/d0"]);
        assert_eq!(missing.status.code(), heard.status.code(), "{missing:?}");
        let wrong = unheard(&["frobnicate"], "stderr", closed);
        assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    }
}

#[test]
fn an_unknown_mount_option_is_refused_with_the_nearest_known_one() {
    let (home, at) = home();
    let members = create(home.path());
    fs::create_dir(at("mnt")).expect("the home is empty");
    for (option, nearest) in [("noatme", "noatime"), ("cach-size=1GiB", "cache-size")] {
        let words = ["mount", "-o", option].map(PathBuf::from);
        let output = cauchyfs(&[words.as_slice(), &members, &[at("mnt")]].concat());
        refused(&output, 1, &format!("unknown mount option `{option}`"));
        refused(&output, 1, &format!("`{nearest}` is the nearest"));
    }
    let words = ["mount", "-o", "threads=many"].map(PathBuf::from);
    let output = cauchyfs(&[words.as_slice(), &members, &[at("mnt")]].concat());
    refused(&output, 1, "--threads");
}

#[test]
fn create_refuses_directories_and_options_that_cannot_be_a_volume() {
    let (_home, at) = home();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/note"), "mine").unwrap();
    symlink(at("a"), at("alias")).unwrap();
    fs::create_dir(at("volume")).unwrap();
    let member = create(&at("volume"))[0].join("segments/below");
    let member = member.to_str().unwrap();
    let name = |name: &str| at(name).to_str().unwrap().to_owned();
    let directories: Vec<String> = (0..18).map(|index| name(&format!("a{index}"))).collect();
    let mut too_wide = vec!["--data", "14", "--parity", "4", "--code", "crs-w4"];
    too_wide.extend(directories.iter().map(String::as_str));
    let cases: [(&[&str], &str); 11] = [
        (
            &["--data", "0", "--parity", "1", &name("a"), &name("b")],
            "--data must be at least 1",
        ),
        (
            &["--data", "1", "--parity", "0", &name("a"), &name("b")],
            "--parity must be at least 1",
        ),
        (
            &["--data", "4", "--parity", "2", &name("a"), &name("b")],
            "needs 6 directories",
        ),
        (
            &["--data", "1", "--parity", "1", &name("a"), &name("full")],
            "is not empty",
        ),
        (
            &[
                "--data",
                "1",
                "--parity",
                "1",
                &name("a"),
                &name("full/note"),
            ],
            "is no directory",
        ),
        (
            &["--data", "1", "--parity", "1", &name("a"), member],
            "a member of a volume",
        ),
        (
            &["--data", "1", "--parity", "1", &name("a"), &name("a")],
            "given twice",
        ),
        (
            &["--data", "1", "--parity", "1", &name("a"), &name("a/b")],
            "lies inside",
        ),
        (
            &[
                "--data",
                "1",
                "--parity",
                "1",
                "--code",
                "rot13",
                &name("a"),
                &name("b"),
            ],
            "rot13",
        ),
        (&too_wide, "more than 16 shards"),
        (
            &["--data", "x", "--parity", "1", &name("a"), &name("b")],
            "invalid value 'x'",
        ),
    ];
    for (arguments, needle) in cases {
        let all: Vec<&str> = ["create"].iter().chain(arguments).copied().collect();
        refused(&cauchyfs(&all), 1, needle);
        assert!(
            !at("a").exists() && !at("a0").exists(),
            "a refused create leaves nothing behind: {arguments:?}"
        );
    }
    assert_eq!(fs::read(at("full/note")).unwrap(), b"mine");
}

#[test]
fn nonsense_is_refused_and_help_is_not() {
    refused(&cauchyfs(&["frobnicate"]), 1, "frobnicate");
    refused(&cauchyfs::<&str>(&[]), 1, "no command");
    refused(&cauchyfs(&["mount", "--frob", "a", "b"]), 1, "--frob");
    refused(&cauchyfs(&["member"]), 1, "no command given after `member`");
    refused(&cauchyfs(&["member", "add", "/"]), 1, "DIR");
    refused(&cauchyfs(&["rebuild", "/"]), 1, "no volume is mounted");
    for command in [
        "create", "mount", "unmount", "status", "usage", "check", "extract", "scrub", "rebuild",
        "balance", "quota", "member",
    ] {
        let help = cauchyfs(&[command, "--help"]);
        assert!(help.status.success());
        assert!(
            String::from_utf8_lossy(&help.stdout).contains("Examples:"),
            "{command}"
        );
    }
}

#[test]
fn a_mount_on_gpus_is_refused_where_there_is_none() {
    let (home, at) = home();
    let members = create(home.path());
    let mut line = vec!["mount".into(), "--engine".into(), "cuda".into()];
    line.extend(members.iter().cloned());
    line.push(at("nowhere"));
    let output = cauchyfs(&line);
    if String::from_utf8_lossy(&output.stderr).contains("cannot mount on") {
        println!("skipped: there is a CUDA device");
        return;
    }
    refused(&output, 2, "the coding engine cuda cannot be used: no CUDA");
}

#[test]
fn mount_refuses_bad_options_places_and_members() {
    let (home, at) = home();
    let members = create(home.path());
    fs::create_dir(at("mnt")).unwrap();
    fs::create_dir(at("blank")).unwrap();
    let base = home.path().to_str().unwrap();
    let d = members.each_ref().map(|path| path.to_str().unwrap());
    let name = |name: &str| at(name).to_str().unwrap().to_owned();
    let cases: [(&[&str], i32, &str); 13] = [
        (&[d[0], d[1], d[2]], 1, "is a member of a volume"),
        (
            &["-o", "remount,ro", d[0], d[1], d[2], &name("mnt")],
            1,
            "cannot be changed while it is there",
        ),
        (
            &["-o", "frob", d[0], d[1], d[2], &name("mnt")],
            1,
            "unknown mount option `frob`",
        ),
        (
            &["--metrics", "x:1", d[0], d[1], d[2], &name("mnt")],
            1,
            "an IP address with a port",
        ),
        (
            &["--engine", "abacus", d[0], d[1], d[2], &name("mnt")],
            1,
            "abacus",
        ),
        (
            &["--threads", "100000", d[0], d[1], d[2], &name("mnt")],
            1,
            "--threads",
        ),
        (&[d[0], d[1], d[2], &name("none")], 1, "cannot mount on"),
        (
            &[d[0], d[1], d[2], &format!("{}/segments", d[0])],
            1,
            "cannot mount on",
        ),
        (&[d[0], d[1], d[2], d[0]], 1, "lies inside the member"),
        (&[d[0], d[1], d[2], base], 1, "lies inside the mountpoint"),
        (&[d[0], d[1], d[0], &name("mnt")], 1, "given twice"),
        (&[d[0], &name("mnt")], 2, "cauchyfs: "),
        (&[&name("blank"), &name("mnt")], 2, "cauchyfs: "),
    ];
    for (arguments, code, needle) in cases {
        let all: Vec<&str> = ["mount"].iter().chain(arguments).copied().collect();
        refused(&cauchyfs(&all), code, needle);
    }
}

#[test]
fn bench_refuses_impossible_measurements() {
    let cases: [(&[&str], &str); 20] = [
        (&["bench"], "no command given after `bench`"),
        (&["bench", "disk"], "disk"),
        (&["bench", "codec", "--data", "3"], "these shards"),
        (
            &["bench", "codec", "--data", "200", "--parity", "100"],
            "200+100",
        ),
        (&["bench", "codec", "--engine", "abacus"], "abacus"),
        (&["bench", "codec", "--code", "rot13"], "rot13"),
        (&["bench", "codec", "--op", "guess"], "guess"),
        (&["bench", "codec", "--working-set", "tepid"], "tepid"),
        (&["bench", "codec", "--threads", "0"], "0 threads"),
        (&["bench", "codec", "--shard-bytes", "0"], "0 bytes"),
        (&["bench", "codec", "--seconds", "0"], "no time"),
        (&["bench", "schedule", "--code", "rs-cauchy"], "no schedule"),
        (&["bench", "schedule", "--code", "rs-fft"], "no schedule"),
        (&["bench", "schedule", "--data", "3"], "no such geometry"),
        (&["bench", "schedule", "--new-points"], "--search"),
        (&["bench", "papers", "--source", "hearsay"], "hearsay"),
        (&["bench", "papers", "--seconds", "-1"], "-1"),
        (&["bench", "rateless", "--packets", "1"], "2 to 4096"),
        (&["bench", "rateless", "--messages", "0"], "0"),
        (
            &[
                "bench",
                "rateless",
                "--packets",
                "2",
                "--messages",
                "9999999",
                "--seconds",
                "0.001",
                "--trials",
                "1",
            ],
            "bytes are needed",
        ),
    ];
    for (arguments, needle) in cases {
        refused(&cauchyfs(arguments), 1, needle);
    }
}

#[test]
fn members_of_two_volumes_are_not_mixed() {
    let (home, at) = home();
    fs::create_dir(at("one")).unwrap();
    fs::create_dir(at("two")).unwrap();
    fs::create_dir(at("mnt")).unwrap();
    let (one, two) = (
        create(&home.path().join("one")),
        create(&home.path().join("two")),
    );
    let mixed = [Path::new("mount"), &one[0], &one[1], &two[2], &at("mnt")].map(Path::to_owned);
    refused(&cauchyfs(&mixed), 1, "volume");
}

#[test]
fn missing_directories_and_mounts_are_reported() {
    let (_home, at) = home();
    fs::create_dir(at("blank")).unwrap();
    let blank = at("blank");
    refused(&cauchyfs(&[Path::new("status"), &blank]), 2, "cauchyfs: ");
    refused(
        &cauchyfs(&[Path::new("unmount"), &blank]),
        1,
        "nothing is mounted",
    );
    refused(
        &cauchyfs(&[Path::new("check"), &at("gone")]),
        2,
        "gone does not exist",
    );
    let nowhere = [Path::new("mount"), &at("gone"), &at("lost"), &blank];
    refused(&cauchyfs(&nowhere), 2, "none of these exists");
    fs::write(blank.join("note"), "mine").unwrap();
    refused(
        &cauchyfs(&[Path::new("status"), &blank]),
        1,
        "no superblock",
    );
    fs::write(at("file"), "mine").unwrap();
    refused(
        &cauchyfs(&[Path::new("status"), &at("file")]),
        1,
        "is no directory",
    );
}

#[test]
fn a_mounted_volume_is_neither_mounted_nor_checked_nor_extracted_again() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let all: Vec<usize> = (0..6).collect();
    refused(&volume.try_mount(&all, &[]), 1, "mounted on it already");
    let other = volume.home.join("other");
    fs::create_dir(&other).unwrap();
    let with = |command: &[&str], tail: &[&str]| {
        let mut arguments: Vec<PathBuf> = command.iter().map(PathBuf::from).collect();
        arguments.extend(volume.members.clone());
        arguments.extend(tail.iter().map(PathBuf::from));
        cauchyfs(&arguments)
    };
    let taken = with(&["mount"], &[other.to_str().unwrap()]);
    refused(&taken, 2, "in use");
    let place = format!("mounted at {}", volume.mountpoint.display());
    refused(&taken, 2, &place);
    refused(&with(&["check"], &[]), 2, "in use");
    refused(
        &with(&["extract"], &["--to", other.to_str().unwrap()]),
        2,
        "in use",
    );
    // Status finds the mount behind the directories.
    let members: Vec<&PathBuf> = volume.members.iter().collect();
    let (status, code) = volume.status_of(&members);
    assert_eq!((status["mounted"].as_bool(), code), (Some(true), 0));
    let third = volume.home.join("third");
    fs::create_dir(&third).unwrap();
    let mixed = [Path::new("status"), &third, members[0], &other, members[1]].map(Path::to_owned);
    let named = |paths: [&PathBuf; 2]| paths.map(|path| path.display().to_string()).join(", ");
    let (ours, others) = (named([members[0], members[1]]), named([&third, &other]));
    refused(
        &cauchyfs(&mixed),
        1,
        &format!("are {ours}, and not {others}"),
    );
    for order in [[0, 1], [1, 0]] {
        let paths = [&volume.mountpoint, members[0]];
        let both = [Path::new("status"), paths[order[0]], paths[order[1]]].map(Path::to_owned);
        refused(&cauchyfs(&both), 1, "give it alone: `cauchyfs status");
    }
    volume.unmount();
    let (status, code) = volume.status_of(&members);
    assert_eq!((status["mounted"].as_bool(), code), (Some(false), 0));
}
