//! `check` and `check --repair` of directories that something happened to.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, must, pattern, run, segment_files,
    skip_mounts, text, write_large,
};

/// Bytes of the large file: several segments.
const LARGE: u64 = 90 << 20;

/// The harm that is done to one directory.
type Harm = fn(&Path);

/// Exit codes of `check`, of `check --repair`, and of `check` again.
type Codes = [i32; 3];

/// Turns bytes of a file into others, if there is such a file.
fn spoil(path: &Path, offset: u64, len: usize) {
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        return;
    };
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset)
        .expect("the volume is not in use");
    for byte in &mut bytes {
        *byte ^= 0x55;
    }
    file.write_all_at(&bytes, offset)
        .expect("the volume is not in use");
}

fn segments(member: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(member.join("segments")).expect("the volume is not in use");
    entries
        .map(|entry| entry.expect("the volume is not in use").path())
        .collect()
}

const JOURNALS: [&str; 2] = ["journal.0", "journal.1"];

fn remove_journals(member: &Path) {
    for name in JOURNALS {
        fs::remove_file(member.join(name)).expect("the volume is not in use");
    }
}

fn spoil_journals(member: &Path) {
    for name in JOURNALS {
        spoil(&member.join(name), 0, 1 << 20);
    }
}

/// Harm to one member, and then to a second one, costs no byte. The codes are those that `check` exits with.
const HARMS: [(&str, Harm, Codes); 10] = [
    // Bytes are not read.
    (
        "wrong bytes in segment files",
        |member| {
            for path in segments(member) {
                spoil(&path, 4096, 40_000);
            }
        },
        [0, 0, 0],
    ),
    (
        "segment files cut short",
        |member| {
            for path in segments(member) {
                let file = File::options()
                    .write(true)
                    .open(path)
                    .expect("the volume is not in use");
                file.set_len(8192).expect("the volume is not in use");
            }
        },
        [3, 3, 3],
    ),
    (
        "segment files deleted",
        |member| {
            for path in segments(member) {
                fs::remove_file(path).expect("the volume is not in use");
            }
        },
        [3, 3, 3],
    ),
    (
        "one slot of the superblock damaged",
        |member| spoil(&member.join("superblock"), 0, 4096),
        [0, 0, 0],
    ),
    (
        "both slots damaged",
        |member| spoil(&member.join("superblock"), 0, 131_072),
        [3, 0, 0],
    ),
    (
        "the superblock deleted",
        |member| fs::remove_file(member.join("superblock")).expect("the volume is not in use"),
        [3, 0, 0],
    ),
    (
        "heads of the index damaged",
        |member| spoil(&member.join("index"), 0, 8192),
        [3, 0, 0],
    ),
    (
        "all pages of the index damaged",
        |member| spoil(&member.join("index"), 8192, 1 << 20),
        [0, 0, 0],
    ),
    ("journals deleted", remove_journals, [0, 0, 0]),
    ("journals damaged", spoil_journals, [0, 0, 0]),
];

/// Keeps copies of a volume's directories, to begin again from.
struct Kept<'a> {
    volume: &'a TestVolume,
    copies: Vec<PathBuf>,
}

impl<'a> Kept<'a> {
    fn new(volume: &'a TestVolume) -> Self {
        let copy = |member: &PathBuf| member.with_extension("kept");
        let copies: Vec<_> = volume.members.iter().map(copy).collect();
        for (member, copy) in volume.members.iter().zip(&copies) {
            must("cp", &["-a", "--sparse=always", text(member), text(copy)]);
        }
        Self { volume, copies }
    }

    fn restore(&self) {
        for (copy, member) in self.copies.iter().zip(&self.volume.members) {
            fs::remove_dir_all(member).expect("the volume is not in use");
            must("cp", &["-a", "--sparse=always", text(copy), text(member)]);
        }
    }
}

/// Returns two members, such that harm to the index hits copies of it.
fn two_with_the_index(volume: &TestVolume) -> [&Path; 2] {
    let with_index = volume.members.iter().map(PathBuf::as_path);
    let mut with_index = with_index.filter(|member| member.join("index").exists());
    [(); 2].map(|()| with_index.next().expect("three have a copy"))
}

#[test]
fn check_reports_the_damage_to_two_directories_and_repairs_all_it_can() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 1024, LARGE);
    for index in 0..500 {
        let name = volume.path(&format!("small{index}"));
        fs::write(name, pattern(index, 1500)).unwrap();
    }
    volume.unmount();
    assert_eq!(volume.check(&[]).1, 0);
    let kept = Kept::new(&volume);
    for (what, harm, codes) in HARMS {
        kept.restore();
        two_with_the_index(&volume).into_iter().for_each(harm);
        let steps: [&[&str]; 3] = [&[], &["--repair"], &[]];
        for (options, expected) in steps.into_iter().zip(codes) {
            let (said, code) = volume.check(options);
            assert_eq!(code, expected, "{what}: check {options:?}: {said}");
            let verdict = said.lines().last().unwrap();
            let repair = verdict.contains("--repair");
            let misleads = repair && !options.is_empty();
            assert!(!misleads, "{what}: {verdict}");
        }
        let all = [0, 1, 2, 3, 4, 5];
        let mounted = volume.try_mount(&all, &[]);
        let expected = codes[2];
        assert_eq!(mounted.status.code(), Some(expected), "{what}: {mounted:?}");
        drop_caches();
        check_large(&volume.path("large"), 1, LARGE);
        for index in 0..500 {
            let name = volume.path(&format!("small{index}"));
            assert_eq!(fs::read(name).unwrap(), pattern(index, 1500), "{what}");
        }
        fs::write(volume.path("new"), what).unwrap();
        volume.unmount();
    }
}

/// The one thing of which the journal is the only place: small files that were synced just now.
#[test]
fn records_of_two_damaged_journals_are_in_the_others() {
    if skip_mounts() {
        return;
    }
    let harms: [Harm; 2] = [remove_journals, spoil_journals];
    for harm in harms {
        let volume = TestVolume::create(Shape::FOUR_TWO, 512);
        volume.mount();
        for index in 0..20 {
            let file = File::create(volume.path(&format!("small{index}"))).unwrap();
            file.write_all_at(&pattern(index, 5_000), 0).unwrap();
            file.sync_all().unwrap();
        }
        volume.crash();
        volume.members[1..3].iter().for_each(|member| harm(member));
        assert_eq!(volume.check(&["--repair"]).1, 0);
        volume.mount();
        for index in 0..20 {
            let name = volume.path(&format!("small{index}"));
            assert_eq!(fs::read(name).unwrap(), pattern(index, 5_000));
        }
        volume.unmount();
    }
}

/// Remnants of a crash are removed before anything is counted.
#[test]
fn a_repair_after_a_crash_finds_nothing_wrong() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    // Extents enough that removing them takes a while.
    let ghost = File::create(volume.path("ghost")).unwrap();
    for index in 0..3_000 {
        ghost.write_all_at(&[1; 4096], index * 12_288).unwrap();
    }
    ghost.sync_all().unwrap();
    fs::remove_file(volume.path("ghost")).unwrap();
    File::open(&volume.mountpoint).unwrap().sync_all().unwrap();
    volume.crash();
    drop(ghost);
    let (said, code) = volume.check(&["--repair"]);
    assert_eq!(code, 0, "{said}");
    let summary = said.lines().last().unwrap();
    assert!(
        summary.starts_with("1 inodes (1 directories), 0 extents"),
        "{summary}"
    );
    assert!(summary.ends_with("nothing is wrong"), "{summary}");
}

#[test]
fn without_any_copy_of_the_index_everything_is_reported_as_lost() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    for member in &volume.members {
        spoil(&member.join("index"), 0, 8192);
    }
    for options in [&[][..], &["--repair"]] {
        assert_eq!(volume.check(options).1, 4);
    }
}

#[test]
fn damage_fixed_by_a_deep_repair_is_not_reported_as_open() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, LARGE);
    volume.unmount();
    let before = segment_files(&volume.members[1]);
    let (name, bytes) = before.iter().next().expect("it has a segment");
    let file = volume.members[1].join("segments").join(name);
    fs::remove_file(&file).unwrap();
    let (said, code) = volume.check(&["--repair"]);
    assert_eq!(code, 3, "{said}");
    let (said, code) = volume.check(&["--repair", "--deep"]);
    assert_eq!(code, 0, "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.ends_with("stripes: 1 fault, repaired"), "{said}");
    assert!(said.contains("shards are missing (repaired)"), "{said}");
    assert!(fs::read(&file).unwrap() == *bytes, "it is as it was");
    assert_eq!(volume.check(&[]).1, 0);
}

/// Defects are in the report, or made up for; the log is for users who ask for it.
#[test]
fn commands_on_damaged_directories_do_not_mix_the_log_into_their_output() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, LARGE);
    volume.unmount();
    for name in segment_files(&volume.members[1]).keys() {
        spoil(&volume.members[1].join("segments").join(name), 0, 1 << 20);
    }
    let out = volume.home.join("out");
    let commands: [(&[&str], &[&str]); 3] = [
        (&["extract"], &["--to", text(&out)]),
        (&["status"], &[]),
        (&["check", "--deep"], &[]),
    ];
    for (command, tail) in commands {
        let logged = |verbose: &[&str]| {
            let output = Command::new(CAUCHYFS)
                .args(verbose)
                .args(command)
                .args(&volume.members)
                .args(tail)
                .output()
                .expect("the binary runs");
            String::from_utf8_lossy(&output.stderr).contains("WARN")
        };
        assert!(!logged(&[]), "{command:?}");
        fs::remove_dir_all(&out).ok();
        let is_read = command != ["status"];
        assert_eq!(logged(&["-v"]), is_read, "{command:?}");
    }
}

/// One superblock is enough to recover all others; without any, no advice says to try that.
#[test]
fn superblocks_that_are_lost_are_named_and_come_back_by_a_repair() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 1024, LARGE);
    volume.unmount();
    let lose = |index: usize| fs::remove_file(volume.members[index].join("superblock")).unwrap();
    lose(5);
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(mounted.status.code(), Some(3), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr);
    assert!(said.contains("its superblock is gone"), "{said}");
    assert!(said.contains("`cauchyfs check --repair`"), "{said}");
    volume.unmount();
    (1..5).for_each(lose);

    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &[]);
    assert_eq!(mounted.status.code(), Some(2), "{mounted:?}");
    let said = String::from_utf8_lossy(&mounted.stderr);
    let named = format!("({}: its superblock is gone)", text(&volume.members[3]));
    assert!(said.contains(&named), "{said}");
    assert!(said.contains("`cauchyfs check --repair`"), "{said}");
    let all: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    let status = run(CAUCHYFS, &[&["status"], &all[..]].concat());
    let said = String::from_utf8_lossy(&status.stdout);
    let next = said.lines().last().unwrap();
    assert!(
        next.starts_with("next: `cauchyfs check --repair '"),
        "{said}"
    );

    let (said, code) = volume.check(&["--repair"]);
    // The volume was mounted without the last one: it is to be verified.
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("it is member 5; it is unknown"), "{said}");
    for member in &volume.members[1..] {
        let restored = format!("{}: its superblock was missing", member.display());
        assert!(
            said.lines().any(|line| line.starts_with(&restored)),
            "{said}"
        );
        assert!(member.join("superblock").exists());
    }
    let (said, code) = volume.check(&["--repair", "--deep"]);
    assert_eq!(code, 0, "{said}");
    volume.mount();
    drop_caches();
    check_large(&volume.path("large"), 1, LARGE);
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();

    (0..6).for_each(lose);
    for command in [&["check", "--repair"][..], &["status"]] {
        let output = run(CAUCHYFS, &[command, &all[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("that has its own"), "{said}");
    }
}

/// Shards that were not written while a directory was away are in no file that could be missing.
#[test]
fn shards_that_were_never_written_are_named_with_their_places_and_files() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount_degraded(&[0, 1, 2, 3, 4]);
    write_large(&volume.path("thesis"), 1, 4 << 20).unwrap();
    volume.unmount();
    for options in [&[][..], &["--deep"]] {
        let (said, code) = volume.check(options);
        assert_eq!(code, 3, "{said}");
        assert!(said.contains("not all that they name is there"), "{said}");
        assert!(said.contains("less protected for that: thesis\n"), "{said}");
        let segment = format!("{}/segments/", text(&volume.members[5]));
        let lacks = |line: &str| line.starts_with(&segment) && line.contains(" lacks ");
        let no_place = |line: &str| line.contains("in no directory yet lacks ");
        assert!(
            said.lines().any(|line| lacks(line) || no_place(line)),
            "{said}"
        );
    }
}
