//! The daemon is killed in the middle of things, and everything acknowledged is there afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Shape, TestVolume, eventually, must, pattern, skip_mounts};

/// Writes and syncs files until the daemon dies; returns those that were acknowledged, as seeds.
pub(crate) fn write_until_killed(directory: PathBuf, first: u64) -> mpsc::Receiver<u64> {
    let (acknowledged, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in first.. {
            if write_synced(&directory, seed).is_err() || acknowledged.send(seed).is_err() {
                return;
            }
        }
    });
    inbox
}

/// Sizes go from nothing over inline and journaled to several stripes.
fn content(seed: u64) -> Vec<u8> {
    let sizes = [0, 1, 100, 2048, 4096, 5000, 70_000, 300_000, 3 << 20];
    let nth = usize::try_from(seed).expect("seeds are small");
    pattern(seed, sizes[nth % sizes.len()])
}

/// Writes a file under another name, syncs it, renames it, and syncs the directory.
pub(crate) fn write_synced(directory: &Path, seed: u64) -> std::io::Result<()> {
    let (draft, name) = (
        directory.join(format!("draft{seed}")),
        directory.join(format!("f{seed}")),
    );
    let mut file = File::create(&draft)?;
    file.write_all(&content(seed))?;
    file.sync_all()?;
    fs::rename(&draft, &name)?;
    File::open(directory)?.sync_all()
}

/// Fails unless the files are there as they were written.
#[track_caller]
pub(crate) fn check(directory: &Path, acknowledged: &[u64]) {
    for &seed in acknowledged {
        let found = fs::read(directory.join(format!("f{seed}")))
            .unwrap_or_else(|error| panic!("file {seed} was acknowledged: {error}"));
        assert!(found == content(seed), "file {seed} has other bytes");
    }
}

#[test]
fn everything_synced_survives_kill_9_with_all_members_and_with_any_two_lost() {
    if skip_mounts() {
        return;
    }
    for lost in [&[][..], &[0, 1], &[2, 5]] {
        let volume = TestVolume::create(Shape::FOUR_TWO, 4096);
        let kept: Vec<usize> = (0..6).filter(|index| !lost.contains(index)).collect();
        let directory = volume.path("synced");
        let mut acknowledged = Vec::new();
        for round in 0..3 {
            if round == 0 || lost.is_empty() {
                volume.mount();
                fs::create_dir_all(&directory).unwrap();
            } else {
                volume.mount_degraded(&kept);
            }
            check(&directory, &acknowledged);
            let writer = write_until_killed(directory.clone(), 1000 * round);
            // Sizes of every kind, and then some.
            let first: Vec<u64> = writer.iter().take(9).collect();
            assert_eq!(first.len(), 9, "the daemon died by itself");
            acknowledged.extend(first);
            std::thread::sleep(Duration::from_millis(170 * round));
            volume.crash();
            acknowledged.extend(writer.iter());
            if round == 0 {
                for &index in lost {
                    volume.delete_member(index);
                }
            }
        }
        if lost.is_empty() {
            volume.mount();
        } else {
            volume.mount_degraded(&kept);
        }
        check(&directory, &acknowledged);
        volume.unmount();
    }
}

/// With `-o dirsync` and `-o sync` nothing needs an fsync but, with the former, what is in files.
#[test]
fn changes_of_a_synchronous_mount_are_durable_when_they_return() {
    if skip_mounts() {
        return;
    }
    for option in ["dirsync", "sync"] {
        let volume = TestVolume::create(Shape::FOUR_TWO, 512);
        let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-o", option]);
        assert!(mounted.status.success(), "{mounted:?}");
        fs::create_dir(volume.path("directory")).unwrap();
        let file = File::create(volume.path("draft")).unwrap();
        if option == "sync" {
            (&file).write_all(b"written").unwrap();
            fs::set_permissions(volume.path("draft"), fs::Permissions::from_mode(0o640)).unwrap();
        }
        fs::rename(volume.path("draft"), volume.path("directory/final")).unwrap();
        fs::hard_link(volume.path("directory/final"), volume.path("twin")).unwrap();
        symlink("twin", volume.path("link")).unwrap();
        volume.crash();
        drop(file);
        volume.mount();
        let names = ["directory/final", "twin", "link"].map(|name| volume.path(name));
        assert!(names.iter().all(|path| path.exists()), "{option}");
        assert!(!volume.path("draft").exists(), "{option}");
        if option == "sync" {
            let meta = fs::metadata(volume.path("twin")).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o640);
            assert_eq!(fs::read(volume.path("twin")).unwrap(), b"written");
        }
        volume.unmount();
    }
}

fn sqlite(database: &Path, statement: &str) -> Output {
    Command::new("sqlite3")
        .arg(database)
        .arg(statement)
        .output()
        .expect("sqlite3 is installed")
}

#[test]
fn a_database_is_whole_and_keeps_every_commit_after_kill_9() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let database = volume.path("rows.db");
    for (round, journal) in ["delete", "wal"].into_iter().enumerate() {
        let setup = format!(
            "pragma journal_mode={journal}; create table if not exists rows(n integer primary key, text);"
        );
        assert!(sqlite(&database, &setup).status.success());
        let counted = sqlite(&database, "select count(*) from rows");
        let start: u64 = String::from_utf8(counted.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let (committed, inbox) = mpsc::channel();
        let writer = std::thread::spawn({
            let database = database.clone();
            move || {
                for row in start.. {
                    let insert = format!(
                        "pragma synchronous=extra; insert into rows values({row}, hex(randomblob(500)));"
                    );
                    // SQLite takes a directory that it cannot open to be one that needs no
                    // sync: a commit counts only if the daemon still answers after it.
                    if !sqlite(&database, &insert).status.success()
                        || rustix::fs::statfs(&database).is_err()
                        || committed.send(row).is_err()
                    {
                        return;
                    }
                }
            }
        });
        let first = inbox.iter().nth(9).expect("ten rows are committed");
        volume.crash();
        let last = inbox.iter().last().unwrap_or(first);
        writer.join().expect("the writer does not panic");
        volume.mount();
        let whole = sqlite(&database, "pragma integrity_check");
        assert_eq!(
            String::from_utf8_lossy(&whole.stdout).trim(),
            "ok",
            "round {round}"
        );
        let there = sqlite(
            &database,
            &format!("select count(*) from rows where n <= {last}"),
        );
        assert_eq!(
            String::from_utf8_lossy(&there.stdout).trim(),
            (last + 1).to_string()
        );
    }
    volume.unmount();
}

#[test]
fn files_unlinked_while_open_leave_no_space_behind_after_a_crash() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let taken = || -> u64 {
        let segments = volume.members.iter().map(|member| member.join("segments"));
        let files = segments.flat_map(|segments| fs::read_dir(segments).into_iter().flatten());
        files
            .map(|file| file.unwrap().metadata().unwrap().blocks() * 512)
            .sum()
    };
    let before = taken();
    volume.mount();
    let mut file = File::create(volume.path("ghost")).unwrap();
    file.write_all(&pattern(1, 20 << 20)).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(volume.path("ghost")).unwrap();
    File::open(&volume.mountpoint).unwrap().sync_all().unwrap();
    let live = || -> u64 {
        let (status, _) = volume.status();
        let rows = status["redundancy"].as_array().unwrap();
        rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum()
    };
    assert!(live() >= 20 << 20, "an open file keeps its bytes");
    assert!(taken() >= before + (30 << 20), "{} bytes", taken());
    volume.crash();
    drop(file);
    volume.mount();
    eventually("the space of the unlinked file is given back", || {
        live() < 1 << 20
    });
    must("ls", &[volume.mountpoint.to_str().unwrap()]);
    // With what is kept ready for the next stripes.
    volume.unmount();
    assert!(taken() <= before, "{} of {before} bytes", taken());
}

#[test]
fn a_full_volume_mounts_again_after_kill_9_and_keeps_synced_data() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 300);
    volume.mount();
    let full = (0..10_000)
        .find(|&seed| write_synced(&volume.mountpoint, seed).is_err())
        .expect("300 MiB of backing cannot hold this");
    volume.crash();
    volume.mount();
    let acknowledged: Vec<u64> = (0..full).collect();
    check(&volume.mountpoint, &acknowledged);
    for seed in acknowledged {
        fs::remove_file(volume.path(&format!("f{seed}"))).expect("deleting always works");
    }
    eventually("the freed space can be used again", || {
        write_synced(&volume.mountpoint, 8).is_ok()
    });
    volume.unmount();
}
