//! Mounts that another mount namespace keeps after they were taken away here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, eventually, must, run, said, skip_mounts, text,
};

/// Longest run of a command that waits for nothing, in seconds.
const BOUND: &str = "60";

/// A process in a mount namespace of its own, with a copy of one mount. It ends when it is dropped.
pub(crate) struct Holder(Child);

impl Holder {
    /// Starts a process that keeps the mount of a volume. If a file of the volume is named, it has the file open and
    /// has written to it.
    pub(crate) fn of(volume: &TestVolume, file: Option<&str>) -> Self {
        // The copies of the mounts of other tests are of no use here, and in the way there.
        const SCRIPT: &str = r#"
            while read -r _ mount _; do
                case "$mount" in
                "$1") ;;
                "$2"/*) umount -i -l "$mount" ;;
                esac
            done < /proc/self/mounts
            # No descriptor of the file is closed after the write: the kernel would hand over what it holds.
            if [ -n "$3" ]; then exec > "$1/$3"; printf unsynced; fi
            exec sleep 600"#;
        let temporary = fs::canonicalize(std::env::temp_dir()).expect("it is there");
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .args([text(&volume.mountpoint), text(&temporary)])
            .arg(file.unwrap_or_default())
            .spawn()
            .expect("unshare runs");
        let holder = Self(child);
        let command = format!("/proc/{}/comm", holder.0.id());
        eventually("the process keeps the mount", || {
            fs::read_to_string(&command).is_ok_and(|name| name == "sleep\n")
        });
        holder
    }

    /// Returns what commands call it.
    pub(crate) fn name(&self) -> String {
        format!("sleep (process {})", self.0.id())
    }

    /// Runs a command in its mount namespace.
    fn run(&self, command: &[&str]) -> Output {
        let id = self.0.id().to_string();
        let arguments = ["--target", &id, "--mount"];
        run("nsenter", &[&arguments, command].concat())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A second mountpoint of a volume. It is unmounted when it is dropped.
struct Bound(PathBuf);

impl Bound {
    fn of(volume: &TestVolume) -> Self {
        let other = volume.home.join("other");
        fs::create_dir(&other).expect("the home is writable");
        must("mount", &["--bind", text(&volume.mountpoint), text(&other)]);
        Self(other)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        run("umount", &["-i", "-l", text(&self.0)]);
    }
}

/// Runs a command that must end in time, and returns its exit code and all that it said.
fn bounded(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run("timeout", &[&[BOUND, CAUCHYFS], arguments].concat());
    (output.status.code(), said(&output))
}

fn mount(volume: &TestVolume) -> (Option<i32>, String) {
    let members = volume.members.iter().map(|member| text(member));
    let mut arguments = vec!["mount"];
    arguments.extend(members);
    arguments.push(text(&volume.mountpoint));
    bounded(&arguments)
}

/// Fails unless a command ended with code 3 and named the process.
#[track_caller]
fn assert_names(holder: &Holder, (code, said): &(Option<i32>, String)) {
    assert_eq!(*code, Some(3), "{said}");
    assert!(said.contains(&holder.name()), "{said}");
}

/// Fails unless a file of the volume has the content, in copies of the directories as they are now.
#[track_caller]
fn assert_durable(volume: &TestVolume, file: &str, content: &[u8]) {
    let home = tempfile::tempdir_in(&volume.home).expect("there is room");
    let out = home.path().join("out");
    must("mkdir", &[text(&home.path().join("copies"))]);
    let copies: Vec<_> = (0..volume.members.len())
        .map(|index| home.path().join(format!("copies/{index}")))
        .collect();
    for (member, copy) in volume.members.iter().zip(&copies) {
        must("cp", &["-a", "--sparse=always", text(member), text(copy)]);
    }
    let mut arguments = vec!["extract"];
    arguments.extend(copies.iter().map(|copy| text(copy)));
    arguments.extend(["--to", text(&out)]);
    let output = run(CAUCHYFS, &arguments);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(out.join(file)).expect("it is there"), content);
}

fn is_mounted(mountpoint: &Path) -> bool {
    run("mountpoint", &["-q", text(mountpoint)])
        .status
        .success()
}

#[track_caller]
fn assert_serves_again(volume: &TestVolume) {
    eventually("the daemon has ended", || volume.daemon().is_none());
    volume.mount();
    check_large(&volume.path("large"), 1, 9 << 20);
    volume.unmount();
    volume.assert_intact();
}

/// Programs of the volume are served on.
#[test]
fn a_part_of_a_volume_that_is_mounted_in_another_place_is_unmounted_without_a_word() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let (file, directory) = (volume.path("file"), volume.path("directory"));
    fs::write(&file, "content").expect("the mount is writable");
    fs::create_dir(&directory).expect("the mount is writable");
    let (at_file, at_directory) = (volume.home.join("at"), volume.home.join("there"));
    fs::write(&at_file, "").expect("the home is writable");
    fs::create_dir(&at_directory).expect("the home is writable");
    for (part, place) in [(&file, &at_file), (&directory, &at_directory)] {
        must("mount", &["--bind", text(part), text(place)]);
        assert!(is_mounted(place), "{}", place.display());
        let (code, said) = bounded(&["unmount", text(place)]);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{}", place.display());
        assert!(!is_mounted(place), "{}", place.display());
    }
    assert_eq!(fs::read(&file).expect("it is served"), b"content");
    volume.unmount();
}

#[test]
fn commands_name_the_process_that_keeps_the_mount_in_another_namespace() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    fs::write(volume.path("small"), "small").unwrap();
    let holder = Holder::of(&volume, Some("open"));
    let daemon = volume.daemon();

    let unmounted = bounded(&["unmount", text(&volume.mountpoint)]);
    assert_names(&holder, &unmounted);
    assert!(unmounted.1.contains("is durable"), "{}", unmounted.1);
    assert!(!is_mounted(&volume.mountpoint));
    assert_durable(&volume, "small", b"small");
    assert_durable(&volume, "open", b"unsynced");

    // Programs in the other mount namespace are not cut off.
    let written = holder.run(&[
        "sh",
        "-c",
        "echo later > \"$0\"",
        text(&volume.path("later")),
    ]);
    assert!(written.status.success(), "{written:?}");
    let read = holder.run(&["cat", text(&volume.path("small"))]);
    assert_eq!(read.stdout, b"small", "{read:?}");

    assert_names(&holder, &mount(&volume));
    assert_durable(&volume, "later", b"later\n");
    assert_names(&holder, &bounded(&["unmount", text(&volume.mountpoint)]));
    for paths in [
        vec![text(&volume.mountpoint)],
        volume.members.iter().map(|member| text(member)).collect(),
    ] {
        let status = bounded(&[&["status"], paths.as_slice()].concat());
        assert_names(&holder, &status);
        assert!(status.1.contains("test: healthy"), "{}", status.1);
    }
    assert_eq!(volume.daemon(), daemon, "it serves the other namespace");

    drop(holder);
    assert_serves_again(&volume);
}

#[test]
fn a_lazy_unmount_cuts_off_no_other_namespace() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let holder = Holder::of(&volume, Some("open"));
    let here = fs::File::create(volume.path("here")).unwrap();
    let unmounted = bounded(&["unmount", "--lazy", text(&volume.mountpoint)]);
    assert_names(&holder, &unmounted);
    assert!(!is_mounted(&volume.mountpoint));
    assert_durable(&volume, "open", b"unsynced");
    let listed = holder.run(&["ls", text(&volume.mountpoint)]);
    assert_eq!(listed.stdout, b"here\nlarge\nopen\n", "{listed:?}");
    assert_names(&holder, &mount(&volume));
    drop(here);
    drop(holder);
    assert_serves_again(&volume);
}

/// `umount` and `fusermount3` ask no daemon.
#[test]
fn a_mount_that_umount_took_away_is_waited_for_no_longer_than_one_of_ours() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let holder = Holder::of(&volume, Some("open"));
    eventually("nothing keeps the mount busy", || {
        let output = run("umount", &["-i", text(&volume.mountpoint)]);
        output.status.success()
    });
    let refused = mount(&volume);
    assert_names(&holder, &refused);
    // The daemon was not asked before, so the kernel holds what is written and not synced.
    assert!(refused.1.contains("may not be durable"), "{}", refused.1);
    assert!(refused.1.contains("another program took"), "{}", refused.1);
    assert_names(&holder, &bounded(&["unmount", text(&volume.mountpoint)]));
    // As the advice says.
    let unmounted = holder.run(&["umount", "-i", "-l", text(&volume.mountpoint)]);
    assert!(unmounted.status.success(), "{unmounted:?}");
    let (code, said) = bounded(&["unmount", text(&volume.mountpoint)]);
    // The file is open yet.
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains(&format!("in use by {}", holder.name())),
        "{said}"
    );
    drop(holder);
    assert_serves_again(&volume);
}

#[test]
fn an_unmount_in_the_other_namespace_ends_the_daemon() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let holder = Holder::of(&volume, None);
    assert_names(&holder, &bounded(&["unmount", text(&volume.mountpoint)]));
    let unmounted = holder.run(&[
        "timeout",
        BOUND,
        CAUCHYFS,
        "unmount",
        text(&volume.mountpoint),
    ]);
    assert!(unmounted.status.success(), "{unmounted:?}");
    assert_serves_again(&volume);
}

#[test]
fn a_signal_ends_the_daemon_although_another_namespace_keeps_the_mount() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let holder = Holder::of(&volume, None);
    let (_, said) = bounded(&["unmount", text(&volume.mountpoint)]);
    let daemon = volume.daemon().expect("it serves the other namespace");
    assert!(said.contains(&format!("`kill -TERM {daemon}`")), "{said}");
    must("kill", &["-TERM", &daemon.to_string()]);
    assert_serves_again(&volume);
    drop(holder);
}

/// Starts a process that has a library of the volume mapped, and no descriptor of it open.
fn mapping_process(volume: &TestVolume) -> Holder {
    let maps = fs::read_to_string("/proc/self/maps").expect("it is there");
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let library = paths.find(|path| path.contains("/libgcc_s"));
    let copy = volume.path("library.so");
    must("cp", &[library.expect("this program uses it"), text(&copy)]);
    let child = Command::new("sleep")
        .arg("600")
        .env("LD_PRELOAD", &copy)
        .spawn()
        .expect("sleep runs");
    let holder = Holder(child);
    let directory = format!("/proc/{}", holder.0.id());
    let is_there = |table: &str, part: &str| {
        fs::read_to_string(format!("{directory}/{table}")).is_ok_and(|text| text.contains(part))
    };
    eventually("the library is mapped", || {
        is_there("comm", "sleep") && is_there("maps", text(&copy)) && is_there("syscall", " 0x")
    });
    eventually("the loader has closed it", || {
        let open = fs::read_dir(format!("{directory}/fd")).expect("the process runs");
        let mut links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        !links.any(|link| link == copy)
    });
    holder
}

#[test]
fn a_process_that_only_maps_a_library_is_named() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let holder = mapping_process(&volume);
    let (code, said) = bounded(&["unmount", text(&volume.mountpoint)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains(&format!("is in use by {}", holder.name())),
        "{said}"
    );
    must("umount", &["-i", "-l", text(&volume.mountpoint)]);
    let unmounted = bounded(&["unmount", text(&volume.mountpoint)]);
    assert_names(&holder, &unmounted);
    assert!(unmounted.1.contains("it is in use by"), "{}", unmounted.1);
    drop(holder);
    assert_serves_again(&volume);
}

#[test]
fn another_mountpoint_that_keeps_the_mount_is_named() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO, 512, 9 << 20);
    let bound = Bound::of(&volume);
    let other = &bound.0;
    let (code, said) = bounded(&["unmount", text(&volume.mountpoint)]);
    assert_eq!(code, Some(3), "{said}");
    let command = format!("`umount '{}'`", other.display());
    assert!(said.contains(&command), "{said}");
    check_large(&other.join("large"), 1, 9 << 20);
    must("umount", &["-i", text(other)]);
    assert_serves_again(&volume);
}
