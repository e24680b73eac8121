//! Members of other users, and what other users can do to a volume from outside.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, drop_caches, eventually, must, run, said,
    segment_files, skip_mounts, text,
};

/// A user who has nothing to do with the volumes.
const STRANGER: u32 = 65534;

const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
}

/// Returns a directory and all that is in it.
fn tree(top: &Path) -> Vec<PathBuf> {
    let found = must("find", &[text(top)]);
    found.lines().map(PathBuf::from).collect()
}

/// Returns one of a member's segment files.
fn segment_of(member: &Path) -> PathBuf {
    let files = segment_files(member);
    let (name, _) = files.first_key_value().expect("it has one");
    member.join("segments").join(name)
}

/// Fails unless a mount was refused in two lines that name all of `needles`.
#[track_caller]
fn assert_refused(output: &Output, needles: &[&str]) {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 2, "{said}");
    for needle in needles {
        assert!(said.contains(needle), "no `{needle}` in: {said}");
    }
}

/// Runs a command under a umask.
fn under(umask: &str, arguments: &[&str]) -> Output {
    let script = format!("umask {umask} && exec \"$0\" \"$@\"");
    let words = [&["-c", script.as_str(), CAUCHYFS][..], arguments].concat();
    run("sh", &words)
}

#[test]
fn root_mounts_no_member_that_another_user_has_or_may_write_to_unless_told_to() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 3 << 20);
    volume.unmount();
    let member = &volume.members[2];
    let advice = format!("chown -R root: '{0}' && chmod -R go-w '{0}'", text(member));
    let owned = |path: &Path| {
        chown(path, Some(STRANGER), None).expect("root may");
        (format!("belongs to uid {STRANGER}"), mode_of(path))
    };
    let segment = segment_of(member);
    let inside = [
        member.clone(),
        member.join("superblock"),
        member.join("journal.1"),
        member.join("lock"),
        member.join("segments"),
        segment,
    ];
    for path in &inside {
        let (what, mode) = owned(path);
        let name = path.strip_prefix(member).expect("inside");
        let name = if name == Path::new("") {
            "directory"
        } else {
            text(name)
        };
        let output = volume.try_mount(&ALL, &[]);
        let mode = format!("(mode {mode:04o})");
        assert_refused(&output, &[text(member), name, &what, &mode, &advice]);
        assert!(!volume.home.join("mnt/large").exists());
        // The command that the advice gives is enough.
        must("sh", &["-c", &advice]);
        let before = mode_of(path);
        set_mode(path, before | 0o020);
        let output = volume.try_mount(&ALL, &["-o", "ro"]);
        assert_refused(&output, &[text(member), name, "may write to it", &advice]);
        must("sh", &["-c", &advice]);
    }
    volume.mount();
    volume.unmount();

    for path in tree(member) {
        chown(&path, Some(STRANGER), None).expect("root may");
    }
    for trusting in [&["--trust-members"][..], &["-o", "trust_members"]] {
        let output = volume.try_mount(&ALL, trusting);
        assert!(output.status.success(), "{output:?}");
        drop_caches();
        check_large(&volume.path("large"), 1, 3 << 20);
        fs::write(volume.path("more"), b"more").expect("the mount is writable");
        volume.assert_healthy();
        volume.unmount();
    }
    volume.assert_intact();
}

/// A command that takes `/tmp` from its users helps no one that named it by mistake.
#[test]
fn a_directory_that_is_no_member_is_to_be_left_out_whatever_its_mode() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let shared = volume.home.join("shared");
    fs::create_dir(&shared).expect("the name is free");
    set_mode(&shared, 0o1777);
    let mountpoint = text(&volume.mountpoint);
    let output = run(
        CAUCHYFS,
        &["mount", text(&shared), text(&volume.members[0]), mountpoint],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is not a member of a volume"), "{said}");
    assert!(
        said.contains(&format!("leave {} out", text(&shared))),
        "{said}"
    );
    assert!(!said.contains("chown") && !said.contains("chmod"), "{said}");
    assert_eq!(mode_of(&shared), 0o1777);
}

#[test]
fn a_member_that_comes_to_a_mounted_volume_is_refused_like_one_that_is_mounted() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 1 << 20);
    let theirs = volume.members[0].with_file_name("theirs");
    fs::create_dir(&theirs).expect("the name is free");
    chown(&theirs, Some(STRANGER), None).expect("root may");
    let (code, told) = volume.command(&["member", "add"], &[text(&theirs)]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("belongs to uid 65534"), "{told}");
    assert!(told.contains("chown -R root:"), "{told}");
    assert_eq!(fs::read_dir(&theirs).expect("readable").count(), 0);

    let away = volume.members[0].with_file_name("away");
    fs::rename(&volume.members[5], &away).expect("renamable");
    eventually("the member is missing", || {
        volume.members_in("missing") == 1
    });
    let superblock = away.join("superblock");
    chown(&superblock, Some(STRANGER), None).expect("root may");
    fs::rename(&away, &volume.members[5]).expect("renamable");
    eventually("it is refused", || {
        let (status, _) = volume.status();
        status["members"]
            .to_string()
            .contains("belongs to uid 65534")
    });
    chown(volume.members[5].join("superblock"), Some(0), None).expect("root may");
    eventually("it is back", || volume.members_in("online") == 6);
    volume.unmount();
    volume.assert_intact();

    let output = run(
        CAUCHYFS,
        &[
            "create",
            "--data",
            "1",
            "--parity",
            "1",
            text(&theirs),
            text(&away),
        ],
    );
    assert_refused(
        &output,
        &[text(&theirs), "belongs to uid 65534", "chown root: "],
    );
    assert!(!away.exists());
}

#[test]
fn set_user_id_programs_and_device_nodes_count_only_where_they_were_asked_for() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    set_mode(&volume.home, 0o755);
    let options = [("", false), ("defaults,", false), ("suid,dev,", true)];
    for (more, counts) in options {
        let output = volume.try_mount(&ALL, &["-o", &format!("{more}allow_other")]);
        assert!(output.status.success(), "{output:?}");
        let (program, device) = (volume.path("id"), volume.path("null"));
        if !program.exists() {
            // Another process writes it, so no child that another test starts keeps it open for that.
            must("cp", &["/usr/bin/id", text(&program)]);
            set_mode(&program, 0o4755);
            must("mknod", &["-m", "666", text(&device), "c", "1", "3"]);
        }
        assert_eq!(mode_of(&program), 0o4755);
        let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let user = must(
            "setpriv",
            &[&as_nobody[..], &[text(&program), "-u"]].concat(),
        );
        let expected = if counts { "0" } else { "65534" };
        assert_eq!(user.trim(), expected, "{more}");
        assert_eq!(fs::read(&device).is_ok(), counts, "{more}");
        volume.unmount();
    }
}

#[test]
fn members_are_for_their_user_alone_under_any_umask() {
    if skip_mounts() {
        return;
    }
    let home = tempfile::tempdir().expect("there is room");
    for umask in ["0000", "0022", "0077", "0777"] {
        let at = |name: &str| home.path().join(umask).join(name);
        let members: Vec<PathBuf> = (0..3).map(|index| at(&format!("d{index}"))).collect();
        // One of them was there before, open to everyone.
        fs::create_dir_all(&members[1]).expect("the name is free");
        set_mode(&members[1], 0o777);
        fs::create_dir(at("mnt")).expect("the name is free");
        let names: Vec<&str> = members.iter().map(|path| text(path)).collect();
        let create = [
            "create",
            "--data",
            "2",
            "--parity",
            "1",
            "--segment-size",
            "8MiB",
        ];
        let output = under(umask, &[&create[..], &names].concat());
        assert!(output.status.success(), "{output:?}");
        let (mnt, log) = (at("mnt"), at("log"));
        // Under the last one, the daemon's own directory would stay closed to its user.
        let is_mounted = umask != "0777";
        if is_mounted {
            let mount = ["mount", "--log-file", text(&log)];
            let output = under(umask, &[&mount[..], &names, &[text(&mnt)]].concat());
            let written = fs::write(mnt.join("f"), vec![1; 3 << 20]);
            let unmounted = run(CAUCHYFS, &["unmount", text(&mnt)]);
            assert!(output.status.success(), "umask {umask}: {output:?}");
            written.expect("the mount is writable");
            assert!(unmounted.status.success(), "{unmounted:?}");
            assert_eq!(mode_of(&log), 0o600, "umask {umask}");
        }
        let mut segments = 0;
        for path in members.iter().flat_map(|member| tree(member)) {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(
                mode_of(&path),
                expected,
                "umask {umask}: {}",
                path.display()
            );
            segments += usize::from(path.parent().is_some_and(|dir| dir.ends_with("segments")));
        }
        assert!(segments >= 3 || !is_mounted, "umask {umask}");
    }
    // Directories above members are made, too, and let no other user write.
    let deep = home.path().join("above/all");
    let names = ["a", "b"].map(|name| deep.join(name));
    let create = ["create", "--data", "1", "--parity", "1"];
    let output = under(
        "0000",
        &[&create[..], &[text(&names[0]), text(&names[1])]].concat(),
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(mode_of(&deep), 0o755);
    assert_eq!(mode_of(&names[0]), 0o700);
}

#[test]
fn a_log_file_is_not_written_through_links_of_others() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let victim = volume.home.join("victim");
    fs::write(&victim, "mine").expect("writable");
    let links = [volume.home.join("symbolic"), volume.home.join("hard")];
    std::os::unix::fs::symlink(&victim, &links[0]).expect("the name is free");
    fs::hard_link(&victim, &links[1]).expect("one filesystem");
    for link in &links {
        let mut arguments = vec!["mount", "--log-file", text(link)];
        arguments.extend(volume.members.iter().map(|path| text(path)));
        arguments.push(text(&volume.mountpoint));
        let output = run(CAUCHYFS, &arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains("link"), "{output:?}");
        assert_eq!(fs::read(&victim).expect("readable"), b"mine");
    }
    assert_eq!(volume.daemon(), None);
}

/// A process of another user that has a directory locked until this is dropped.
struct Locker(Child);

impl Locker {
    fn lock(directory: &Path) -> Self {
        let child = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(["flock", "-x", text(directory)])
            .args(["sh", "-c", "echo locked; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv runs");
        let mut locker = Self(child);
        let mut told = [0; 7];
        let out = locker.0.stdout.as_mut().expect("it has a pipe");
        std::io::Read::read_exact(out, &mut told).expect("it is locked");
        locker
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

#[test]
fn a_lock_of_another_user_on_a_directory_keeps_no_mount_from_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 1 << 20);
    volume.unmount();
    let disk = volume.members[0].parent().and_then(Path::parent);
    set_mode(disk.expect("it is deep"), 0o755);
    // As earlier versions made it.
    for member in &volume.members {
        set_mode(member, 0o755);
    }
    let lockers: Vec<Locker> = volume
        .members
        .iter()
        .map(|member| Locker::lock(member))
        .collect();
    for _ in 0..2 {
        volume.mount();
        fs::write(volume.path("f"), b"x").expect("the mount is writable");
        assert!(volume.members.iter().all(|member| mode_of(member) == 0o700));
        // This one keeps others out all the same.
        let (told, code) = volume.check(&[]);
        assert_eq!(code, 2, "{told}");
        volume.unmount();
    }
    drop(lockers);
    volume.assert_intact();
}

/// A file outside the volume that other names inside lead to.
struct Victim(PathBuf, Vec<u8>);

impl Victim {
    fn new(path: PathBuf, bytes: Vec<u8>) -> Self {
        fs::write(&path, &bytes).expect("writable");
        set_mode(&path, 0o640);
        Self(path, bytes)
    }

    #[track_caller]
    fn assert_untouched(&self, name: &Path) {
        let shown = name.display();
        assert!(fs::read(&self.0).expect("readable") == self.1, "{shown}");
        assert_eq!(mode_of(&self.0), 0o640, "{shown}");
    }
}

/// Takes the names of a volume's files away from them, one at a time, and has `repair` run. Checks what became of the
/// file that got them. `is_made_again` says of which names the volume makes new files.
fn with_hard_links(
    volume: &TestVolume,
    names: &[PathBuf],
    repair: impl Fn(),
    is_made_again: impl Fn(&Path) -> bool,
) {
    let outside = volume.members[0].with_file_name("outside");
    fs::create_dir_all(&outside).expect("there is room");
    for (at, name) in names.iter().enumerate() {
        // Bytes of its own, or those of the member's file, which look right.
        let bytes = if at % 2 == 0 {
            vec![b'v'; 10_000]
        } else {
            fs::read(name).expect("readable")
        };
        let (shown, kept) = (name.display(), outside.join("kept"));
        let victim = Victim::new(outside.join("victim"), bytes);
        fs::rename(name, &kept).expect("renamable");
        fs::hard_link(&victim.0, name).expect("one filesystem");
        repair();
        victim.assert_untouched(name);
        let links = fs::metadata(&victim.0).expect("it is there").nlink();
        if is_made_again(name) {
            assert_eq!(links, 1, "{shown}");
        }
        fs::remove_file(&victim.0).expect("it is there");
        if links > 1 {
            fs::rename(&kept, name).expect("renamable");
        }
    }
}

#[test]
fn check_names_a_journal_that_is_a_hard_link() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 1 << 20);
    volume.unmount();
    let twin = volume.members[0].with_file_name("twin");
    fs::hard_link(volume.members[1].join("journal.0"), &twin).expect("one filesystem");
    let (told, code) = volume.check(&[]);
    assert_eq!(code, 3, "{told}");
    assert!(told.contains("journal.0"), "{told}");
    assert!(!told.contains("nothing is wrong"), "{told}");
    fs::remove_file(&twin).expect("it is there");
    volume.assert_intact();
}

#[test]
fn a_file_elsewhere_stays_as_it_is_when_a_member_has_a_hard_link_to_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 3 << 20);
    volume.unmount();
    let index = || {
        let mut indexes = volume.members.iter().map(|member| member.join("index"));
        indexes
            .find(|index| index.exists())
            .expect("a member has one")
    };
    let names = [
        volume.members[1].join("journal.0"),
        volume.members[0].join("journal.1"),
        volume.members[1].join("superblock"),
        segment_of(&volume.members[1]),
        volume.members[0].join("lock"),
    ];
    let look = || {
        let (told, code) = volume.check(&["--deep"]);
        assert!(matches!(code, 0 | 3), "{told}");
        let (status, _) = volume.status_of(&volume.members.iter().collect::<Vec<_>>());
        assert_eq!(status["geometry"]["data"], 4, "{status}");
    };
    let check_and_repair = || {
        let (told, code) = volume.check(&["--repair", "--deep"]);
        assert!(matches!(code, 0 | 3), "{told}");
    };
    let mount_and_scrub = || {
        let output = volume.try_mount(&ALL, &[]);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        let (code, told) = volume.command(&["scrub"], &[]);
        assert!(matches!(code, Some(0 | 3)), "{told}");
        drop_caches();
        check_large(&volume.path("large"), 1, 3 << 20);
        volume.unmount();
    };
    with_hard_links(&volume, &names, look, |_| false);
    with_hard_links(&volume, &[index()], look, |_| false);
    volume.assert_intact();
    // Another member may get the copy of the index, and only `check --repair` restores superblocks.
    with_hard_links(&volume, &names, check_and_repair, |_| true);
    with_hard_links(&volume, &[index()], check_and_repair, |_| false);
    with_hard_links(&volume, &names[..2], mount_and_scrub, |_| true);
    with_hard_links(&volume, &names[3..], mount_and_scrub, |_| true);
    with_hard_links(&volume, &[index()], mount_and_scrub, |_| false);
    volume.mount();
    drop_caches();
    check_large(&volume.path("large"), 1, 3 << 20);
    eventually("everything is repaired", || volume.status().1 == 0);
    volume.unmount();
    volume.assert_intact();
}
