//! Attempts from inside the sandbox, each in a process of its own: what is confined stays so.
//!
//! A test starts this program again to run [`inside`] with the name of a case. The case enters its sandbox, makes
//! its attempts and prints an errno for each.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use cauchyfs_sandbox::calls::{CommandWork, Daemon, allow_only, deny_sockets, deny_to_daemon};
use cauchyfs_sandbox::files::{Access, Grant, restrict_to};
use cauchyfs_sandbox::{Missing, memory, privileges};
use rustix::thread::{CapabilitySet, capabilities, no_new_privs};

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

/// Names the case to run, and its directory.
const CASE: &str = "CAUCHYFS_SANDBOX_CASE";
const HOME: &str = "CAUCHYFS_SANDBOX_HOME";

const ENDED: i32 = 2;

/// Results of attempts, by name: 0 or an errno.
type Attempts = BTreeMap<String, i32>;

#[test]
fn inside() {
    let (Ok(case), Ok(home)) = (std::env::var(CASE), std::env::var(HOME)) else {
        return;
    };
    let home = Path::new(&home);
    match case.as_str() {
        "look" => files(home, Access::Read),
        "repair" => files(home, Access::Change),
        "extract" => files(home, Access::Fill),
        "narrow" => {
            let member = Grant::new(&home.join("member"), Access::Change).expect("it is there");
            let all = Grant::new(Path::new("/"), Access::Read).expect("it is there");
            if let Some(missing) = restrict_to(vec![member, all]).expect("the rules are sound") {
                skip(missing);
            }
            report(
                "read beside at first",
                fs::read(home.join("beside/secret")).map(drop),
            );
            report(
                "write beside at first",
                fs::write(home.join("beside/new"), ""),
            );
            files(home, Access::Change);
        }
        "read" => calls(home, CommandWork::Read),
        "fill" => calls(home, CommandWork::Fill),
        "daemon" => daemon(false),
        "foreign" => daemon(true),
        "privileges" => drop_privileges(),
        "memory" => {
            memory::limit(256 << 20, |limit| format!("too much for {limit}\n"), ENDED)
                .expect("a limit can be set");
            let taken: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 16 << 20]).collect();
            drop(taken);
        }
        other => panic!("there is no case {other}"),
    }
    // The harness would go on in other threads.
    std::process::exit(0);
}

fn report(name: &str, tried: io::Result<()>) {
    let errno = tried.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0);
    println!("attempt {name} {errno}");
}

fn skip(missing: Missing) -> ! {
    println!("skipped: {missing}");
    std::process::exit(0);
}

/// Lays out `member/file`, `out`, `beside/secret`, and `member/link` to the secret.
fn lay_out(home: &Path) {
    for name in ["member", "out", "beside"] {
        fs::create_dir(home.join(name)).expect("the home is empty");
    }
    fs::write(home.join("member/file"), "bytes").expect("there is room");
    fs::write(home.join("beside/secret"), "secret").expect("there is room");
    symlink("../beside/secret", home.join("member/link")).expect("there is room");
}

fn files(home: &Path, access: Access) {
    let target = if access == Access::Fill {
        "out"
    } else {
        "member"
    };
    let mut grants = vec![Grant::new(&home.join(target), access).expect("it is there")];
    if access == Access::Fill {
        grants.push(Grant::new(&home.join("member"), Access::Read).expect("it is there"));
    }
    if let Some(missing) = restrict_to(grants).expect("the rules are sound") {
        skip(missing);
    }
    let at = |name: &str| home.join(name);
    report("read a member", fs::read(at("member/file")).map(drop));
    report("list a member", fs::read_dir(at("member")).map(drop));
    report("read beside", fs::read(at("beside/secret")).map(drop));
    report("read through a link", fs::read(at("member/link")).map(drop));
    report("write to a member", {
        File::options()
            .append(true)
            .open(at("member/file"))
            .map(drop)
    });
    report("make in a member", fs::write(at("member/new"), ""));
    report(
        "rename in a member",
        fs::rename(at("member/file"), at("member/renamed")),
    );
    report("write beside", fs::write(at("beside/new"), ""));
    report("write over beside", fs::write(at("beside/secret"), ""));
    report("remove beside", fs::remove_file(at("beside/secret")));
    report("write to out", fs::write(at("out/new"), ""));
    report("symlink in out", symlink("/", at("out/link")));
    report("write through out", fs::write(at("out/../beside/new"), ""));
    report(
        "link into out",
        fs::hard_link(at("beside/secret"), at("out/stolen")),
    );
    report(
        "run a program",
        Command::new("/bin/true").status().map(drop),
    );
    let port = std::env::var("PORT").expect("the test says where it listens");
    report(
        "connect",
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).map(drop),
    );
}

fn calls(home: &Path, work: CommandWork) {
    if let Some(missing) = allow_only(work).expect("the filter is sound") {
        skip(missing);
    }
    attempt_calls();
    report("thread", {
        std::thread::Builder::new()
            .spawn(|| fs::read("/proc/self/stat").map(drop))
            .map(|thread| thread.join().expect("it does not panic").expect("it reads"))
    });
    report("local socket", UnixListener::bind(home.join("s")).map(drop));
    deny_sockets().expect("the filter is sound");
    report("late socket", UnixListener::bind(home.join("t")).map(drop));
    report("make a directory", fs::create_dir(home.join("new")));
    report("change the mode", {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(home.join("member"), fs::Permissions::from_mode(0o700))
    });
}

#[expect(
    unsafe_code,
    reason = "these system calls have no safe wrapper, or need none"
)]
fn attempt_calls() {
    let done = |result: libc::c_long| {
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    report("remote socket", TcpListener::bind("127.0.0.1:0").map(drop));
    report(
        "run a program",
        Command::new("/bin/true").status().map(drop),
    );
    // SAFETY: the arguments are those of a call that fails, or changes only this process.
    report(
        "unshare",
        done(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNS) }),
    );
    // SAFETY: a ring of one entry, with no parameters, is refused for its parameters at the latest.
    report(
        "io_uring",
        done(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) }),
    );
    // SAFETY: asks to be traced, and is not.
    report(
        "ptrace",
        done(unsafe { libc::syscall(libc::SYS_ptrace, 0, 0, 0, 0) }),
    );
    // SAFETY: no such command.
    report(
        "bpf",
        done(unsafe { libc::syscall(libc::SYS_bpf, 9999, 0, 0) }),
    );
    // SAFETY: no flags that exist.
    report(
        "userfaultfd",
        done(unsafe { libc::syscall(libc::SYS_userfaultfd, 1 << 30) }),
    );
    // SAFETY: null pointers, which the kernel refuses.
    report(
        "mount",
        done(unsafe { libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0) }),
    );
    // SAFETY: a null pointer, which the kernel refuses.
    report(
        "unmount",
        done(unsafe { libc::syscall(libc::SYS_umount2, 0, 0) }),
    );
    // SAFETY: null pointers, which the kernel refuses.
    report(
        "clone3",
        done(unsafe { libc::syscall(libc::SYS_clone3, 0, 0) }),
    );
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by x32, which most kernels lack; null pointers, which the others refuse.
    report(
        "ptrace by x32",
        done(unsafe { libc::syscall(0x4000_0000 + 521, 0, 0, 0, 0) }),
    );
}

fn daemon(foreign: bool) {
    let ask = |daemon| deny_to_daemon(daemon).expect("the filter is sound");
    // A helper unmounts for the daemon of a foreign volume.
    let mounting = if foreign {
        Daemon::Helped
    } else {
        Daemon::Mounted
    };
    let missing = ask(Daemon::Starting).or_else(|| ask(mounting));
    let missing = missing.or_else(|| foreign.then(|| ask(Daemon::Foreign)).flatten());
    if let Some(missing) = missing {
        skip(missing);
    }
    attempt_calls();
}

fn drop_privileges() {
    privileges::keep(privileges::reading()).expect("a thread may drop what it has");
    let left = capabilities(None).expect("they can be read");
    let more = (left.permitted | left.effective | left.inheritable) - privileges::reading();
    assert_eq!(more, CapabilitySet::empty());
    assert!(no_new_privs().expect("it can be read"));
    report("give a file away", {
        std::os::unix::fs::chown("/proc/self/cwd", Some(12345), None)
    });
}

/// Runs a case; returns its output, the attempts in it, and whether the kernel has what it is about.
fn run(case: &str) -> Option<Attempts> {
    let home = tempfile::tempdir().expect("there is room");
    lay_out(home.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a loopback");
    let port = listener.local_addr().expect("it is bound").port();
    let output = start(case, home.path(), port);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {text}{errors}");
    if let Some(line) = text.lines().find(|line| line.contains("skipped: ")) {
        eprintln!("{case}: {line}");
        return None;
    }
    let secret = fs::read_to_string(home.path().join("beside/secret")).expect("it is there");
    assert_eq!(secret, "secret");
    assert!(!home.path().join("beside/new").exists());
    assert!(!home.path().join("out/stolen").exists());
    let attempts = text.lines().filter_map(|line| {
        let (_, line) = line.split_once("attempt ")?;
        let (name, errno) = line.rsplit_once(' ')?;
        Some((name.to_owned(), errno.parse().ok()?))
    });
    Some(attempts.collect())
}

fn start(case: &str, home: &Path, port: u16) -> Output {
    Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "inside", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .env(HOME, home)
        .env("PORT", port.to_string())
        .output()
        .expect("it runs")
}

#[track_caller]
fn expect(attempts: &Attempts, errno: i32, names: &[&str]) {
    for name in names {
        let seen = attempts.get(*name).copied();
        assert_eq!(seen, Some(errno), "{name}, in {attempts:?}");
    }
}

/// Rights that no access to files includes.
const OUTSIDE: [&str; 6] = [
    "read beside",
    "read through a link",
    "write beside",
    "write over beside",
    "remove beside",
    "write through out",
];

#[test]
fn reading_members_changes_nothing_and_sees_nothing_else() {
    let Some(attempts) = run("look") else { return };
    expect(&attempts, 0, &["read a member", "list a member"]);
    expect(&attempts, libc::EACCES, &OUTSIDE);
    let changes = [
        "write to a member",
        "make in a member",
        "rename in a member",
        "write to out",
        "symlink in out",
        "run a program",
        "connect",
    ];
    expect(&attempts, libc::EACCES, &changes);
}

#[test]
fn repairing_members_changes_them_alone() {
    let Some(attempts) = run("repair") else {
        return;
    };
    let changes = [
        "read a member",
        "write to a member",
        "make in a member",
        "rename in a member",
    ];
    expect(&attempts, 0, &changes);
    expect(&attempts, libc::EACCES, &OUTSIDE);
    let others = ["write to out", "symlink in out", "run a program", "connect"];
    expect(&attempts, libc::EACCES, &others);
}

#[test]
fn a_second_restriction_narrows_the_first_one() {
    let Some(attempts) = run("narrow") else {
        return;
    };
    expect(&attempts, 0, &["read beside at first", "write to a member"]);
    expect(&attempts, libc::EACCES, &["write beside at first"]);
    expect(&attempts, libc::EACCES, &OUTSIDE);
}

#[test]
fn no_access_is_granted_by_a_symbolic_link() {
    let home = tempfile::tempdir().expect("there is room");
    lay_out(home.path());
    let granted = Grant::new(&home.path().join("member/link"), Access::Read);
    let error = granted.expect_err("it is a link");
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn extraction_fills_its_target_alone() {
    let Some(attempts) = run("extract") else {
        return;
    };
    expect(
        &attempts,
        0,
        &["read a member", "write to out", "symlink in out"],
    );
    expect(&attempts, libc::EACCES, &OUTSIDE);
    let members = ["write to a member", "make in a member", "connect"];
    expect(&attempts, libc::EACCES, &members);
    assert_ne!(attempts["link into out"], 0);
}

/// Calls that neither a command nor the daemon of a foreign volume may make.
const NEVER: [&str; 7] = [
    "remote socket",
    "unshare",
    "io_uring",
    "ptrace",
    "bpf",
    "userfaultfd",
    "mount",
];

#[test]
fn a_command_makes_only_the_calls_that_it_needs() {
    let Some(attempts) = run("read") else { return };
    expect(&attempts, libc::ENOSYS, &NEVER);
    expect(&attempts, libc::ENOSYS, &["unmount", "clone3"]);
    assert_ne!(attempts["run a program"], 0);
    expect(&attempts, 0, &["thread"]);
    expect(&attempts, libc::EPERM, &["late socket"]);
    // Reading changes no attribute and no name.
    let changes = ["make a directory", "change the mode"];
    expect(&attempts, libc::ENOSYS, &changes);
    #[cfg(target_arch = "x86_64")]
    expect(&attempts, libc::ENOSYS, &["ptrace by x32"]);

    let attempts = run("fill").expect("the same kernel");
    expect(&attempts, libc::ENOSYS, &NEVER);
    expect(
        &attempts,
        0,
        &["thread", "make a directory", "change the mode"],
    );
}

#[test]
fn a_daemon_makes_no_dangerous_call() {
    let Some(attempts) = run("daemon") else {
        return;
    };
    let denied = [
        "remote socket",
        "unshare",
        "ptrace",
        "bpf",
        "userfaultfd",
        "mount",
    ];
    expect(&attempts, libc::EPERM, &denied);
    expect(&attempts, libc::ENOSYS, &["clone3"]);
    expect(&attempts, 0, &["run a program"]);
    // The call itself is allowed; its arguments are not.
    expect(&attempts, libc::EFAULT, &["unmount", "io_uring"]);
}

#[test]
fn the_daemon_of_a_foreign_volume_runs_no_program_and_has_no_io_uring() {
    let Some(attempts) = run("foreign") else {
        return;
    };
    expect(&attempts, libc::EPERM, &NEVER);
    expect(&attempts, libc::EPERM, &["run a program", "unmount"]);
    #[cfg(target_arch = "x86_64")]
    assert_ne!(attempts["ptrace by x32"], 0);
}

#[test]
fn dropped_capabilities_are_gone() {
    let attempts = run("privileges").expect("every kernel has capabilities");
    expect(&attempts, libc::EPERM, &["give a file away"]);
}

#[test]
fn a_process_at_its_memory_limit_says_so_and_ends() {
    let home = tempfile::tempdir().expect("there is room");
    let output = start("memory", home.path(), 0);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(ENDED), "{errors}");
    assert!(
        errors.ends_with(&format!("too much for {}\n", 256 << 20)),
        "{errors}"
    );
}
