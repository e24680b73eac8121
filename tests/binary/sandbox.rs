//! Limits that commands on directories, and daemons, set themselves.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, copy_program, eventually, must, pattern, run, said,
    skip_mounts, text, write_large,
};

/// Capabilities by number, as `/proc/PID/status` counts them.
const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const FOWNER: u64 = 1 << 3;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;
const MKNOD: u64 = 1 << 27;
const IPC_LOCK: u64 = 1 << 14;
const SETFCAP: u64 = 1 << 31;
const FSETID: u64 = 1 << 4;

/// Limits of one thread of a process.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Limits {
    /// True if system calls are filtered.
    filters: bool,
    no_new_privileges: bool,
    capabilities: u64,
    /// True if it is in any supplementary group.
    groups: bool,
}

/// Returns the limits of all threads of a process, once each.
fn limits(pid: u32) -> BTreeSet<Limits> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let statuses =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let limits = statuses.map(|status| {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("the kernel tells").trim().to_owned()
        };
        Limits {
            filters: field("Seccomp:") == "2",
            no_new_privileges: field("NoNewPrivs:") == "1",
            capabilities: u64::from_str_radix(&field("CapPrm:"), 16).expect("a number"),
            groups: !field("Groups:").is_empty(),
        }
    });
    limits.collect()
}

/// Limits of a process in a sandbox that keeps `capabilities`, as far as the one that started it has them.
fn confined(capabilities: u64) -> Limits {
    let own = limits(std::process::id());
    let own = own.first().expect("this thread runs").capabilities;
    Limits {
        filters: true,
        no_new_privileges: true,
        capabilities: capabilities & own,
        groups: false,
    }
}

/// A command that waits inside its sandbox, because it cannot print its report.
struct Waiting {
    child: Child,
    full: PipeReader,
}

impl Waiting {
    fn start(words: &[&str]) -> Self {
        let (full, mut writer) = pipe().expect("there are descriptors");
        let flags = rustix::fs::fcntl_getfl(&writer).expect("it is open");
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).expect("it is open");
        let filled = std::iter::repeat_with(|| writer.write(&[b'\n'; 4096]))
            .find_map(Result::err)
            .expect("a pipe has an end");
        assert_eq!(filled.kind(), ErrorKind::WouldBlock);
        rustix::fs::fcntl_setfl(&writer, flags).expect("it is open");
        let child = Command::new(CAUCHYFS)
            .args(words)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let waiting = Self { child, full };
        eventually("it waits for room in the pipe", || {
            let call = fs::read_to_string(format!("/proc/{}/syscall", waiting.pid()));
            // 1 is `write`, and so is its first argument: standard output.
            call.is_ok_and(|call| call.starts_with("1 0x1 "))
        });
        waiting
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it print its report; returns that, and how it ended.
    fn finish(mut self) -> (String, Option<i32>) {
        let mut report = String::new();
        self.full.read_to_string(&mut report).expect("it is text");
        let ended = self.child.wait().expect("it was started here");
        (report.trim().to_owned(), ended.code())
    }
}

/// Makes a volume with a large file, a symbolic link and a hard link, unmounted.
fn filled(shape: Shape) -> TestVolume {
    let volume = TestVolume::create(shape, 512);
    volume.mount();
    write_large(&volume.path("large"), 7, 5 << 20).expect("the mount is writable");
    fs::write(volume.path("small"), pattern(1, 1000)).expect("the mount is writable");
    fs::hard_link(volume.path("small"), volume.path("twin")).expect("the mount is writable");
    std::os::unix::fs::symlink("small", volume.path("link")).expect("the mount is writable");
    volume.unmount();
    volume
}

/// Fails on the commit that had no sandbox.
#[test]
#[cfg(target_arch = "x86_64")]
fn commands_on_directories_work_with_no_more_rights_than_they_need() {
    if skip_mounts() {
        return;
    }
    let reading = DAC_READ_SEARCH | FOWNER;
    let changing = reading | DAC_OVERRIDE | CHOWN | SYS_RESOURCE;
    let filling = reading | DAC_OVERRIDE | CHOWN;
    let all = filling | FSETID | MKNOD | SETFCAP | SYS_ADMIN;
    // The second one can be parted into branches, each of which is looked for.
    for shape in [
        Shape::FOUR_TWO,
        Shape {
            data: 2,
            parity: 2,
            members: 4,
            ..Shape::FOUR_TWO
        },
    ] {
        let volume = filled(shape);
        let (out, other) = (volume.home.join("out"), volume.home.join("other"));
        let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
        let cases: [(&[&str], &[&str], u64); 6] = [
            (&["check"], &[], reading),
            (&["check", "--deep"], &[], reading),
            (&["check", "--deep", "--repair"], &[], changing),
            (&["status"], &[], reading),
            (&["extract"], &["--to", text(&out)], filling),
            (&["extract", "--privileged"], &["--to", text(&other)], all),
        ];
        for (before, after, capabilities) in cases {
            let words = [before, &["--memory-limit", "5GiB"], &members, after].concat();
            let waiting = Waiting::start(&words);
            let seen = limits(waiting.pid());
            assert_eq!(seen, [confined(capabilities)].into(), "{words:?}");
            let data = fs::read_to_string(format!("/proc/{}/limits", waiting.pid())).unwrap();
            let data = data
                .lines()
                .find(|line| line.starts_with("Max data size"))
                .unwrap();
            assert!(data.contains(&(5_u64 << 30).to_string()), "{data}");
            let (report, code) = waiting.finish();
            assert_eq!(code, Some(0), "{words:?}: {report}");
        }
        check_large(&out.join("large"), 7, 5 << 20);
        assert_eq!(fs::read(out.join("twin")).unwrap(), pattern(1, 1000));
        assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("small"));
    }
}

#[test]
fn a_command_can_do_without_its_sandbox() {
    if skip_mounts() {
        return;
    }
    let volume = filled(Shape::FOUR_TWO);
    let mut words = vec!["check", "--no-sandbox"];
    words.extend(volume.members.iter().map(|member| text(member)));
    let waiting = Waiting::start(&words);
    let seen = limits(waiting.pid());
    assert!(
        seen.iter()
            .all(|limits| !limits.filters && !limits.no_new_privileges)
    );
    assert_eq!(waiting.finish().1, Some(0));
}

/// `-v` tells what the kernel lacks; that is nothing where it has Landlock and seccomp.
#[test]
fn commands_find_members_by_links_and_relative_paths() {
    if skip_mounts() {
        return;
    }
    let volume = filled(Shape::FOUR_TWO);
    let at = |name: &str| volume.home.join(name);
    fs::create_dir(at("links")).unwrap();
    fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink("../real", at("links/out")).unwrap();
    for (number, member) in volume.members.iter().enumerate() {
        std::os::unix::fs::symlink(member, at(&format!("links/d{number}"))).unwrap();
    }
    let script = r#"cd "$1/links" && "$2" -v check d0 ./d1 d2 d3 d4 d5 && "$2" status d0 d1 d2 ../links/d3 d4 d5 &&
        "$2" extract d0 d1 d2 d3 d4 d5 --to out && "$2" check --repair --deep d0 d1 d2 d3 d4 d5"#;
    let output = run("sh", &["-c", script, "sh", text(&volume.home), CAUCHYFS]);
    assert!(output.status.success(), "{}", said(&output));
    check_large(&at("real/large"), 7, 5 << 20);
}

#[test]
fn commands_of_an_ordinary_user_are_confined_and_work() {
    if skip_mounts() {
        return;
    }
    let volume = filled(Shape::FOUR_TWO);
    let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    for member in &members {
        must("chown", &["-R", "65534:65534", member]);
    }
    let home = tempfile::tempdir().unwrap();
    must("chmod", &["777", text(home.path())]);
    let binary = copy_program(home.path());
    let out = home.path().join("out");
    let cases: [(&[&str], &[&str]); 5] = [
        (&["check"], &[]),
        (&["check", "--deep", "--repair"], &[]),
        (&["status"], &[]),
        (&["extract"], &["--to", text(&out)]),
        (&["check", "--deep"], &[]),
    ];
    for (before, after) in cases {
        let user = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            text(&binary),
        ];
        let output = run("setpriv", &[&user, before, &members, after].concat());
        assert!(output.status.success(), "{before:?}: {}", said(&output));
    }
    check_large(&out.join("large"), 7, 5 << 20);
}

#[test]
fn a_command_says_that_its_memory_is_limited() {
    let output = run(CAUCHYFS, &["check", "--memory-limit", "1MiB", "d0"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("256.0 MiB are needed"),
        "{}",
        said(&output)
    );
}

/// Fails on the commit that had no sandbox.
#[test]
fn a_daemon_drops_unneeded_privileges_and_serves() {
    if skip_mounts() {
        return;
    }
    let changing = DAC_READ_SEARCH | FOWNER | DAC_OVERRIDE | CHOWN | SYS_RESOURCE;
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 512);
    for is_foreign in [false, true] {
        if is_foreign {
            for member in &volume.members {
                must("chown", &["-R", "65534:65534", text(member)]);
            }
        }
        let trust: &[&str] = if is_foreign {
            &["--trust-members"]
        } else {
            &[]
        };
        let all: Vec<usize> = (0..volume.members.len()).collect();
        let mounted = volume.try_mount(&all, trust);
        assert!(mounted.status.success(), "{}", said(&mounted));
        let daemon = volume.daemon().expect("a daemon serves the mount");
        let mounting = if is_foreign { 0 } else { SYS_ADMIN };
        for seen in limits(daemon) {
            let capabilities = seen.capabilities & !SYS_PTRACE;
            let seen = Limits {
                capabilities,
                ..seen
            };
            assert_eq!(seen, confined(changing | mounting | IPC_LOCK));
        }
        let helper = mounter(&volume);
        assert_eq!(helper.is_some(), is_foreign);
        for seen in helper.into_iter().flat_map(limits) {
            assert_eq!(seen, confined(SYS_ADMIN | DAC_OVERRIDE | DAC_READ_SEARCH));
        }
        let log = fs::read_to_string(volume.home.join("log")).unwrap();
        assert_eq!(log.contains("owned by another user"), is_foreign, "{log}");
        write_large(&volume.path("large"), 3, 20 << 20).unwrap();
        let (scrubbed, code) = (volume.command(&["scrub"], &[]).1, volume.status().1);
        assert_eq!(code, 0, "{scrubbed}");
        let rings = volume.open_files("io_uring").len();
        assert!(!is_foreign || rings == 0, "{rings} rings");
        volume.unmount();
        eventually("the helper is gone", || mounter(&volume).is_none());
        let mounted = volume.try_mount(&all, trust);
        assert!(mounted.status.success(), "{}", said(&mounted));
        check_large(&volume.path("large"), 3, 20 << 20);
        must("kill", &[&volume.daemon().expect("it serves").to_string()]);
        eventually("a signal unmounts", || volume.daemon().is_none());
        assert_eq!(volume.check(&["--deep"]).1, 0);
    }
}

/// The daemon of a foreign volume can open no log file itself.
#[test]
fn a_log_that_was_renamed_is_opened_again_by_daemons_of_every_kind() {
    if skip_mounts() {
        return;
    }
    let check = |volume: &TestVolume, what: &str| {
        let (log, renamed) = (volume.home.join("log"), volume.home.join("log.1"));
        let daemon = volume.daemon().expect("a daemon serves the mount");
        fs::rename(&log, &renamed).expect("the home is writable");
        must("kill", &["-HUP", &daemon.to_string()]);
        eventually(what, || volume.log().contains("opened again"));
        assert_eq!(
            fs::metadata(&log).expect(what).permissions().mode() & 0o7777,
            0o600
        );
        let before = fs::read_to_string(&renamed).expect(what);
        must("kill", &["-USR1", &daemon.to_string()]);
        eventually(what, || volume.log().contains("SIGUSR1"));
        assert_eq!(fs::read_to_string(&renamed).expect(what), before);
        assert!(before.contains("is mounted"), "{what}: {before}");
    };
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let all: Vec<usize> = (0..volume.members.len()).collect();
    volume.mount();
    check(&volume, "root's daemon");
    volume.unmount();
    for member in &volume.members {
        must("chown", &["-R", "65534:65534", text(member)]);
    }
    let mounted = volume.try_mount(&all, &["--trust-members"]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    check(&volume, "root's daemon of a foreign volume");
    volume.unmount();
    if let Some(own) = OfUser::create() {
        own.mount();
        check(&own.volume, "a user's daemon");
        must(
            "kill",
            &[&own.volume.daemon().expect("it serves").to_string()],
        );
        own.is_over("a signal unmounts");
    }
}

/// Fails on commits that had no daemon under Landlock.
#[test]
fn the_daemon_of_a_foreign_volume_opens_only_the_directories_that_it_was_mounted_with() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 512);
    for member in &volume.members {
        must("chown", &["-R", "65534:65534", text(member)]);
    }
    let all: Vec<usize> = (0..volume.members.len()).collect();
    let mounted = volume.try_mount(&all, &["--trust-members"]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    write_large(&volume.path("large"), 3, 8 << 20).unwrap();
    must("sync", &["-f", text(&volume.path("large"))]);
    // A move within one filesystem keeps the directory itself.
    let member = &volume.members[1];
    let aside = member.with_file_name("aside");
    must("mv", &[text(member), text(&aside)]);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    must("cp", &["-a", text(&aside), text(member)]);
    let seen_before = volume.log().len();
    eventually("the copy is looked at", || {
        volume.log()[seen_before..].contains("Permission denied")
    });
    assert_eq!(volume.members_in("online"), all.len() - 1);
    // A directory that any other daemon would take in.
    let new = volume.home.join("new");
    fs::create_dir(&new).unwrap();
    let (refusal, code) = {
        let words = ["member", "add", text(&volume.mountpoint), text(&new)];
        let output = run(CAUCHYFS, &words);
        (said(&output), output.status.code())
    };
    assert_eq!(code, Some(2), "{refusal}");
    assert!(refusal.contains("it was mounted with"), "{refusal}");
    assert_eq!(fs::read_dir(&new).unwrap().count(), 0);
    must("rm", &["-r", text(member)]);
    must("mv", &[text(&aside), text(member)]);
    eventually("the member itself is taken back", || {
        volume.members_in("online") == all.len()
    });
    check_large(&volume.path("large"), 3, 8 << 20);
    volume.unmount();
    let mounted = volume.try_mount(&all, &["--trust-members", "-o", "ro", "--engine", "cuda"]);
    // Without a GPU the command ends earlier, with another code.
    let code = mounted.status.code();
    assert!(matches!(code, Some(1 | 2)), "{}", said(&mounted));
    let mounted = volume.try_mount(&all, &["--trust-members", "-o", "ro"]);
    // Stripes of the time without the member may still lack shards.
    assert!(
        matches!(mounted.status.code(), Some(0 | 3)),
        "{}",
        said(&mounted)
    );
    check_large(&volume.path("large"), 3, 8 << 20);
}

/// Returns the process that mounts and unmounts for the daemon of a volume.
fn mounter(volume: &TestVolume) -> Option<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is there");
    let mut numbers =
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let mountpoint = text(&volume.mountpoint).as_bytes();
        words.get(1..3) == Some(&[b"--mounter".as_slice(), mountpoint][..])
    })
}

/// Runs a program as an ordinary user.
fn as_user(words: &[&str]) -> Output {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    run("setpriv", &[&user, words].concat())
}

/// A volume of an ordinary user, with a program that the user may run.
struct OfUser {
    volume: TestVolume,
    binary: PathBuf,
}

impl OfUser {
    /// Makes one; returns none, and says why, if an ordinary user cannot mount here.
    fn create() -> Option<Self> {
        let device = fs::metadata("/dev/fuse").map(|device| device.permissions().mode() & 0o6);
        let finds = run("sh", &["-c", "command -v fusermount3"]);
        if device.ok() != Some(0o6) || !finds.status.success() {
            eprintln!("skipped: an ordinary user cannot mount here");
            return None;
        }
        let volume = TestVolume::create(Shape::FOUR_TWO, 512);
        let binary = copy_program(&volume.home);
        volume.mount();
        must("chown", &["65534:65534", text(&volume.mountpoint)]);
        volume.unmount();
        for path in volume.members.iter().chain([&volume.home]) {
            must("chown", &["-R", "65534:65534", text(path)]);
        }
        Some(Self { volume, binary })
    }

    fn mount(&self) {
        let log = self.volume.home.join("log");
        let mut words = vec![text(&self.binary), "mount", "--log-file", text(&log)];
        words.extend(self.volume.members.iter().map(|member| text(member)));
        words.push(text(&self.volume.mountpoint));
        let output = as_user(&words);
        let log = self.volume.log();
        assert!(output.status.success(), "{}\n{log}", said(&output));
    }

    /// Waits until neither the daemon, nor its helper, nor the mount is left.
    fn is_over(&self, what: &str) {
        let mountpoint = text(&self.volume.mountpoint);
        eventually(what, || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
            self.volume.daemon().is_none()
                && mounter(&self.volume).is_none()
                && !mounts.contains(mountpoint)
        });
    }
}

/// Runs a program as an ordinary user where a device for root alone lies over `/dev/fuse`.
const WITHOUT_DEVICE: &str = r#"
    mknod "$1" c 10 229 && chmod 600 "$1" && mount --bind "$1" /dev/fuse && shift && exec setpriv \
    --reuid=65534 --regid=65534 --clear-groups "$@""#;

#[test]
fn a_user_who_may_not_open_the_device_is_told_what_to_do() {
    if skip_mounts() {
        return;
    }
    let Some(own) = OfUser::create() else {
        return;
    };
    let device = own.volume.home.join("fuse");
    let mut words = vec!["--mount", "sh", "-c", WITHOUT_DEVICE, "sh", text(&device)];
    words.extend([text(&own.binary), "mount"]);
    words.extend(own.volume.members.iter().map(|member| text(member)));
    words.push(text(&own.volume.mountpoint));
    let output = run("unshare", &words);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("/dev/fuse: Permission denied"), "{said}");
    assert!(said.contains("`chmod a+rw /dev/fuse`"), "{said}");
}

/// Fails where no helper mounts and unmounts: the daemon could be confined, or unmount.
#[test]
fn a_daemon_of_an_ordinary_user_is_confined_and_unmounts_in_every_way() {
    if skip_mounts() {
        return;
    }
    let Some(own) = OfUser::create() else {
        return;
    };
    let (volume, binary) = (&own.volume, text(&own.binary));
    let mountpoint = text(&volume.mountpoint);
    let file = volume.path("file");
    own.mount();
    for seen in limits(volume.daemon().expect("it serves")) {
        assert_eq!(seen, confined(0));
    }
    let helper = mounter(volume).expect("a helper unmounts");
    let name = fs::read_to_string(format!("/proc/{helper}/comm")).unwrap();
    assert_eq!(name, "cauchyfs-mount\n");
    // It closes the descriptor of the mount a moment after the daemon has it.
    eventually("the helper keeps its socket and no file", || {
        let mut descriptors = fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
        descriptors.all(|descriptor| {
            let open = fs::read_link(descriptor.unwrap().path()).unwrap_or_default();
            open.to_string_lossy().starts_with("socket:") || open == Path::new("/dev/null")
        })
    });
    let written = as_user(&["sh", "-c", "echo content > \"$1\"", "sh", text(&file)]);
    assert!(written.status.success(), "{}", said(&written));

    // A program in the mount keeps it busy.
    let busy = as_user(&[
        "sh",
        "-c",
        "cd \"$1\" && \"$2\" unmount \"$1\"",
        "sh",
        mountpoint,
        binary,
    ]);
    assert_eq!(busy.status.code(), Some(2), "{}", said(&busy));
    assert!(said(&busy).contains("is in use by"), "{}", said(&busy));
    let daemon = || volume.daemon().expect("it serves").to_string();
    let ways: [(&str, &[&str]); 3] = [
        ("unmounted", &[binary, "unmount", mountpoint]),
        (
            "unmounted lazily",
            &[binary, "unmount", "--lazy", mountpoint],
        ),
        (
            "unmounted beside the daemon",
            &["fusermount3", "-u", mountpoint],
        ),
    ];
    for (what, words) in ways {
        let output = as_user(words);
        assert!(output.status.success(), "{what}: {}", said(&output));
        own.is_over(what);
        own.mount();
    }
    for signal in ["-TERM", "-INT"] {
        // As from a terminal, to all of its processes.
        must(
            "kill",
            &[signal, &daemon(), &mounter(volume).unwrap().to_string()],
        );
        own.is_over(signal);
        own.mount();
    }
    // The next mount takes the dead one away.
    must("kill", &["-KILL", &daemon()]);
    eventually("daemon and helper are gone", || {
        volume.daemon().is_none() && mounter(volume).is_none()
    });
    own.mount();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(mounts.matches(mountpoint).count(), 1, "{mounts}");
    must("kill", &["-KILL", &daemon()]);
    eventually("the helper is gone", || mounter(volume).is_none());
    let cleared = as_user(&[binary, "unmount", mountpoint]);
    assert!(cleared.status.success(), "{}", said(&cleared));
    own.is_over("the dead mount is cleared");

    // Without its helper a daemon says so, and ends when its user unmounts.
    own.mount();
    must("kill", &["-KILL", &mounter(volume).unwrap().to_string()]);
    let refused = as_user(&[binary, "unmount", mountpoint]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("is gone"), "{}", said(&refused));
    let content = as_user(&["cat", text(&file)]);
    assert_eq!(said(&content), "content\n");
    let by_user = as_user(&["fusermount3", "-u", mountpoint]);
    assert!(by_user.status.success(), "{}", said(&by_user));
    own.is_over("unmounted without a helper");
    assert_eq!(volume.check(&["--deep"]).1, 0);
}

/// Fails on the commits that ended with a panic and code 101. A thread whose stack goes beyond the limit on memory
/// is refused in the same way.
#[test]
fn a_command_that_gets_no_more_threads_fails_with_an_error() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let home = tempfile::tempdir().unwrap();
    must("chmod", &["755", text(home.path())]);
    let binary = copy_program(home.path());
    // It runs nothing else.
    let user = "61234";
    for member in &volume.members {
        must("chown", &["-R", user, text(member)]);
    }
    let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
    let user = format!("--reuid={user}");
    // Each step meets another place that starts threads.
    let mut threads = 1;
    loop {
        let limit = format!("--nproc={threads}");
        let words = [
            &user,
            "--clear-groups",
            "prlimit",
            &limit,
            text(&binary),
            "check",
        ];
        let output = run("setpriv", &[&words, &*members].concat());
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 2)), "{threads}: {}", said(&output));
        assert!(!said(&output).contains("panicked"), "{}", said(&output));
        if code == Some(0) {
            break;
        }
        assert!(threads < 10_000, "{}", said(&output));
        threads += 1 + threads / 16;
    }
}
