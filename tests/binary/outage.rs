//! More members than parity shards go away, and come back: the mount goes on by itself.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::{Shape, TestVolume, eventually, must, pattern, skip_mounts, text};

const BYTES: usize = 300_000;

/// The size of a file that is cut.
const CUT: usize = 1806;

fn aside(member: &Path) -> PathBuf {
    member.with_extension("aside")
}

fn take_away(members: &[PathBuf]) {
    for member in members {
        fs::rename(member, aside(member)).expect("the directories and the mount answer");
    }
}

fn bring_back(members: &[PathBuf]) {
    for member in members {
        fs::rename(aside(member), member).expect("the directories and the mount answer");
    }
}

/// Writes a file and has it durable.
fn written(path: &Path, seed: u64) -> File {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .expect("the directories and the mount answer");
    file.write_all(&pattern(seed, BYTES))
        .expect("the directories and the mount answer");
    file.sync_all()
        .expect("the directories and the mount answer");
    file
}

fn content(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .expect("the directories and the mount answer");
    file.read_to_end(&mut bytes)
        .expect("the directories and the mount answer");
    bytes
}

fn drop_caches() {
    must("sh", &["-c", "echo 3 > /proc/sys/vm/drop_caches"]);
}

/// Checks that names that are listed are there, and no others of these.
fn check_names(directory: &Path, tried: &[&str]) {
    let listed: BTreeSet<String> = fs::read_dir(directory)
        .expect("the directories and the mount answer")
        .map(|entry| {
            entry
                .expect("the directories and the mount answer")
                .file_name()
                .into_string()
                .expect("the directories and the mount answer")
        })
        .collect();
    for name in tried {
        let is_there = fs::symlink_metadata(directory.join(name)).is_ok();
        assert_eq!(is_there, listed.contains(*name), "{name}: {listed:?}");
    }
}

/// Checks a file of which the second half may be lost: it reads as it was written, or not at all.
fn check_grown(grown: &File) {
    let reported = grown.sync_all().is_err();
    // A write behind the lost bytes makes no zeros of them.
    grown
        .write_all_at(&pattern(7, 4096), 2 * BYTES as u64)
        .expect("a program can write on");
    grown.sync_all().expect("a loss is reported once");
    drop_caches();
    let mut found = vec![0; BYTES];
    match grown.read_exact_at(&mut found, BYTES as u64) {
        Ok(()) => assert!(found == pattern(6, BYTES) && !reported, "other bytes"),
        Err(error) => assert!(reported, "lost without a report: {error}"),
    }
    let mut durable = vec![0; BYTES];
    grown.read_exact_at(&mut durable, 0).expect("it was synced");
    assert!(durable == pattern(5, BYTES));
    grown
        .read_exact_at(&mut found[..4096], 2 * BYTES as u64)
        .expect("it was synced");
    assert!(found[..4096] == pattern(7, 4096));
}

/// Checks what is said of a volume while these members are away: it is as large as it was, nothing of it is free, and
/// nothing is said that cannot be known.
fn check_present_state(volume: &TestVolume, away: &[PathBuf], size: &rustix::fs::StatVfs) {
    let now = rustix::fs::statvfs(&volume.mountpoint).expect("df works at any time");
    assert_eq!((now.f_bfree, now.f_bavail), (0, 0));
    let (now, before) = (now.f_blocks, size.f_blocks);
    assert!(now > before / 2, "{now} blocks, and {before} before");
    let (status, code) = volume.status();
    assert_eq!(code, 3, "nothing is lost: {status}");
    assert_eq!(status["read_only"], true, "{status}");
    assert_eq!(status["mounted_read_only"], false, "{status}");
    assert!(status["redundancy"].is_null(), "{status}");
    assert!(status["capacity"]["bytes_usable"].is_null(), "{status}");
    let uncounted = status["uncounted"].as_array().expect("they are listed");
    let has_reason = |field: &str| {
        let found = uncounted.iter().find(|it| it["field"] == field);
        found.is_some_and(|it| {
            it["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        })
    };
    assert!(
        has_reason("redundancy") && has_reason("capacity"),
        "{status}"
    );
    let members = status["members"].as_array().expect("members are listed");
    assert_eq!(members.len(), volume.members.len(), "{status}");
    for (index, (member, path)) in members.iter().zip(&volume.members).enumerate() {
        let is_away = away.contains(path);
        let state = if is_away { "missing" } else { "online" };
        assert_eq!(member["state"], state, "{status}");
        assert_eq!(member["bytes_used"].is_null(), is_away, "{status}");
        assert_eq!(has_reason(&format!("members.{index}")), is_away, "{status}");
    }
}

/// Works with files while members are away, and checks all of them once these are back.
fn outage(away: &[usize]) {
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let daemon = volume.daemon();
    let mut kept = written(&volume.path("kept"), 1);
    let mut unlinked = written(&volume.path("unlinked"), 2);
    fs::remove_file(volume.path("unlinked")).expect("the directories and the mount answer");
    fs::create_dir(volume.path("dir")).expect("the directories and the mount answer");
    File::open(volume.path("dir"))
        .expect("the directories and the mount answer")
        .sync_all()
        .expect("the directories and the mount answer");
    let away: Vec<PathBuf> = away.iter().map(|at| volume.members[*at].clone()).collect();
    let size = rustix::fs::statvfs(&volume.mountpoint).expect("the mount answers");

    let grown = written(&volume.path("grown"), 5);
    grown
        .write_all_at(&pattern(6, BYTES), BYTES as u64)
        .expect("the directories and the mount answer");
    // The daemon gets these bytes now. They are not durable, unless its own sync happens to come next.
    must("sync", &["-f", text(&volume.path("grown"))]);
    let fleeting =
        File::create(volume.path("dir/fleeting")).expect("the directories and the mount answer");
    fleeting
        .write_all_at(&pattern(3, BYTES), 0)
        .expect("the directories and the mount answer");
    take_away(&away);
    // No sync before that: it could make more durable than it says.
    eventually("they are seen to be away", || {
        volume
            .command(&["status"], &[])
            .1
            .contains("goes on by itself")
    });
    check_present_state(&volume, &away, &size);
    let tried = File::create(volume.path("dir/tried")).and_then(|file| file.sync_all());
    assert!(tried.is_err(), "nothing can be durable");
    let (code, said) = volume.command(&["status"], &[]);
    assert_ne!(code, Some(0), "{said}");
    for member in &away {
        assert!(said.contains(text(member)), "{said}");
    }
    bring_back(&away);
    eventually("the volume goes on", || {
        File::create(volume.path("after")).is_ok_and(|file| file.sync_all().is_ok())
    });
    assert_eq!(volume.daemon(), daemon, "the same daemon serves the mount");

    drop_caches();
    assert!(content(&mut kept) == pattern(1, BYTES));
    assert!(content(&mut unlinked) == pattern(2, BYTES));
    kept.write_all_at(&pattern(4, 4096), BYTES as u64)
        .expect("the directories and the mount answer");
    kept.sync_all()
        .expect("the directories and the mount answer");
    check_names(&volume.path("dir"), &["fleeting", "tried"]);
    check_grown(&grown);
    drop(grown);
    assert!(fleeting.sync_all().is_err(), "its bytes were never durable");
    drop((kept, unlinked, fleeting));
    eventually("all members take part", || volume.status().1 == 0);

    volume.remount();
    let mut expected = pattern(1, BYTES);
    expected.extend(pattern(4, 4096));
    assert!(
        fs::read(volume.path("kept")).expect("the directories and the mount answer") == expected
    );
    assert!(volume.path("after").exists());
    check_names(&volume.path("dir"), &["fleeting", "tried"]);
    volume.unmount();
    let (said, code) = volume.check(&[]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_volume_goes_on_by_itself_after_half_of_its_members_were_away() {
    if !skip_mounts() {
        outage(&[0, 1, 2]);
    }
}

#[test]
fn a_volume_goes_on_by_itself_after_all_of_its_members_were_away() {
    if !skip_mounts() {
        outage(&[0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn an_idle_volume_goes_on_by_itself() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    drop(written(&volume.path("f"), 1));
    volume.remount();
    let away = volume.members[..3].to_vec();
    let file = File::open(volume.path("f")).expect("it is there");
    take_away(&away);
    // The first of these are accepted. Then a commit fails, and what follows is refused.
    let mut refusals = Vec::new();
    let mut number = 0;
    eventually("they are seen to be away", || {
        number += 1;
        let path = volume.path(&format!("created{number}"));
        let created = File::create(path).and_then(|file| file.sync_all());
        refusals.extend(created.err().map(|error| error.raw_os_error()));
        let (_, said) = volume.command(&["status"], &[]);
        refusals.len() > 20 && said.contains("goes on by itself")
    });
    assert!(
        refusals.iter().all(|errno| *errno == Some(libc::EIO)),
        "{refusals:?}"
    );
    // Nothing is read-only or full: the volume comes back as it was.
    for (what, tried) in [
        ("create", File::create(volume.path("new")).map(drop)),
        ("mkdir", fs::create_dir(volume.path("directory"))),
        ("link", fs::hard_link(volume.path("f"), volume.path("link"))),
        ("chmod", file.set_permissions(Permissions::from_mode(0o600))),
    ] {
        let error = tried.expect_err("nothing can be durable");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{what}: {error}");
    }
    drop(file);
    bring_back(&away);
    eventually("it is as it was", || volume.status().1 == 0);
    drop_caches();
    assert!(
        fs::read(volume.path("f")).expect("the directories and the mount answer")
            == pattern(1, BYTES)
    );
    volume.unmount();
}

/// A directory that was not named stays out, also after an outage. One that came by command does not.
#[test]
fn a_member_that_came_after_the_mount_comes_again_after_an_outage() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount_degraded(&[0, 1, 2, 3, 4]);
    let member = text(&volume.members[5]);
    let (code, said) = volume.command(&["member", "replace"], &[member, member]);
    assert!(matches!(code, Some(0 | 3)), "{said}");
    eventually("all members take part", || volume.status().1 == 0);
    take_away(&volume.members);
    eventually("they are seen to be away", || {
        volume
            .command(&["status"], &[])
            .1
            .contains("goes on by itself")
    });
    bring_back(&volume.members);
    eventually("all members take part again", || volume.status().1 == 0);
    volume.unmount();
}

/// The kernel keeps the size of a file that it knows. It must not keep one that an outage took back.
#[test]
fn files_that_were_cut_before_an_outage_are_as_long_as_their_next_mount_finds_them() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let names = ["open", "written", "closed"];
    let paths = names.map(|name| volume.path(name));
    let [mut open, written_on, closed] = [0, 1, 2].map(|at| written(&paths[at], at as u64));
    open.set_len(CUT as u64).expect("the mount answers");
    written_on.set_len(0).expect("the mount answers");
    let [head, rest] = [&pattern(7, CUT)[..], &pattern(1, BYTES)[CUT..]];
    written_on.write_all_at(head, 0).expect("the mount answers");
    closed.set_len(CUT as u64).expect("the mount answers");
    drop(closed);
    take_away(&volume.members);
    eventually("the volume has failed", || {
        volume.log().contains("the volume has failed")
    });
    bring_back(&volume.members);
    eventually("the volume goes on", || {
        File::create(volume.path("after")).is_ok_and(|file| file.sync_all().is_ok())
    });
    eventually("the kernel knows of the losses", || {
        paths.iter().all(|path| {
            let file = File::open(path).expect("the mount answers");
            file.sync_all().is_ok() && file.metadata().is_ok_and(|found| found.len() != CUT as u64)
        })
    });
    let mut expected = pattern(0, BYTES);
    assert!(content(&mut open) == expected, "the file that stayed open");
    expected = [head, rest].concat();
    let found = fs::read(&paths[1]).expect("the mount answers");
    assert!(found == expected || found == pattern(1, BYTES));
    assert!(fs::read(&paths[2]).expect("the mount answers") == pattern(2, BYTES));
    drop((open, written_on));
    volume.remount();
    assert!(fs::read(&paths[0]).expect("the mount answers") == pattern(0, BYTES));
    assert!(fs::read(&paths[1]).expect("the mount answers") == found);
    assert!(fs::read(&paths[2]).expect("the mount answers") == pattern(2, BYTES));
    volume.unmount();
}
