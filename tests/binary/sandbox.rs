//! Limits that commands on directories, and daemons, set themselves.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{
    CAUCHYFS, Shape, TestVolume, check_large, eventually, must, pattern, run, said, skip_mounts,
    text, write_large,
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
    /// Whether system calls are filtered.
    filters: bool,
    no_new_privileges: bool,
    capabilities: u64,
    /// Whether it is in any supplementary group.
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
    let filling = reading | DAC_OVERRIDE | CHOWN | FSETID | MKNOD | SETFCAP | SYS_ADMIN;
    // The second one can be parted into halves, of which each is looked for.
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
        let out = volume.home.join("out");
        let members: Vec<&str> = volume.members.iter().map(|member| text(member)).collect();
        let cases: [(&[&str], &[&str], u64); 5] = [
            (&["check"], &[], reading),
            (&["check", "--deep"], &[], reading),
            (&["check", "--deep", "--repair"], &[], changing),
            (&["status"], &[], reading),
            (&["extract"], &["--to", text(&out)], filling),
        ];
        for (before, after, capabilities) in cases {
            let words = [before, &members, after].concat();
            let waiting = Waiting::start(&words);
            let seen = limits(waiting.pid());
            assert_eq!(seen, [confined(capabilities)].into(), "{words:?}");
            let data = fs::read_to_string(format!("/proc/{}/limits", waiting.pid())).unwrap();
            let data = data
                .lines()
                .find(|line| line.starts_with("Max data size"))
                .unwrap();
            assert!(data.contains(&(4_u64 << 30).to_string()), "{data}");
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
    let binary = home.path().join("cauchyfs");
    fs::copy(CAUCHYFS, &binary).unwrap();
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
fn a_daemon_drops_what_it_does_not_need_and_serves() {
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
        volume.mount();
        let daemon = volume.daemon().expect("a daemon serves the mount");
        for seen in limits(daemon) {
            let capabilities = seen.capabilities & !SYS_PTRACE;
            let seen = Limits {
                capabilities,
                ..seen
            };
            assert_eq!(seen, confined(changing | SYS_ADMIN | IPC_LOCK));
        }
        let log = fs::read_to_string(volume.home.join("log")).unwrap();
        assert_eq!(log.contains("owned by another user"), is_foreign, "{log}");
        write_large(&volume.path("large"), 3, 20 << 20).unwrap();
        let (said, code) = (volume.command(&["scrub"], &[]).1, volume.status().1);
        assert_eq!(code, 0, "{said}");
        let rings = volume.open_files("io_uring").len();
        assert!(!is_foreign || rings == 0, "{rings} rings");
        volume.remount();
        check_large(&volume.path("large"), 3, 20 << 20);
        must("kill", &[&volume.daemon().expect("it serves").to_string()]);
        eventually("a signal unmounts", || volume.daemon().is_none());
        assert_eq!(volume.check(&["--deep"]).1, 0);
    }
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
    let binary = home.path().join("cauchyfs");
    fs::copy(CAUCHYFS, &binary).unwrap();
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
