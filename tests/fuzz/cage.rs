//! A place in which hostile volumes can do no harm, and children under limits.
//!
//! The tests run in a mount namespace and a process namespace of their own. Everything but one memory filesystem,
//! `/run`, `/proc`, `/dev` and `/sys` is read-only there, and every process in it ends with it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Set inside the cage to the directory that can be written.
const CAGE: &str = "CAUCHYFS_FUZZ_CAGE";

/// Path of the binary under test, if it is not the one that was built along with this test.
const BINARY: &str = "CAUCHYFS_FUZZ_BINARY";

/// Private memory that a child may ask for, in bytes. More is refused, and whatever aborts then has failed.
const DATA_LIMIT: u64 = 2 << 30;

/// Memory that a child may have used at any one time, in KiB.
const RESIDENT_LIMIT_KIB: u64 = 768 << 10;

/// Words of a command that met its own limit of memory.
const MEMORY_LIMIT_MET: &str = "more memory is needed";

/// The most memory that any child has used so far, in KiB.
static PEAK_KIB: AtomicU64 = AtomicU64::new(0);

/// Time after which a child counts as hung. It includes waits of some seconds for members, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

const SCRIPT: &str = r#"
set -eu
cage=$1
shift
mount -t tmpfs -o size=75%,mode=0700 tmpfs "$cage"
mount -t tmpfs tmpfs /run
while read -r _ _ _ _ point _; do
    case $point in
    "$cage" | /run | /run/* | /proc | /proc/* | /dev | /dev/* | /sys | /sys/*) ;;
    *)
        # The table escapes blanks. A mount that another one hides cannot be reached, by a command neither.
        point=$(printf '%b' "$point")
        mount -o remount,bind,ro "$point" || echo "$point stays as it is" >&2
        ;;
    esac
done </proc/self/mountinfo
if ! touch "$0.probe" 2>/dev/null; then exec "$@"; fi
echo "the cage is open" >&2
exit 2
"#;

/// Runs a test of this program in a cage. Returns the cage's directory inside, and `None` outside once it passed.
pub(crate) fn enter(test: &str) -> Option<PathBuf> {
    if let Some(cage) = std::env::var_os(CAGE) {
        return Some(cage.into());
    }
    if std::env::var_os("CAUCHYFS_SKIP_MOUNTS").is_some_and(|value| value == "1") {
        eprintln!("skipped: CAUCHYFS_SKIP_MOUNTS=1");
        return None;
    }
    assert!(
        rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists(),
        "this test mounts: run it as root where /dev/fuse is, or set CAUCHYFS_SKIP_MOUNTS=1"
    );
    let home = tempfile::Builder::new()
        .prefix("cauchyfs-fuzz-")
        .tempdir()
        .unwrap();
    let program = std::env::current_exe().unwrap();
    let status = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["sh", "-c", SCRIPT])
        .arg(home.path())
        .arg(home.path())
        .arg(program)
        .args([
            test,
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CAGE, home.path())
        .status()
        .unwrap();
    assert!(status.success(), "{test}, in its cage: {status}");
    None
}

/// Returns the path of the binary under test.
pub(crate) fn binary() -> OsString {
    std::env::var_os(BINARY).unwrap_or_else(|| env!("CARGO_BIN_EXE_cauchyfs").into())
}

/// Returns the most memory that any child has used so far, in MiB.
pub(crate) fn peak_mib() -> u64 {
    PEAK_KIB.load(Ordering::Relaxed) >> 10
}

/// Returns the most memory that this program has used so far, in KiB.
fn own_peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    number.unwrap_or(0)
}

/// A process that was started, and the files that take its output.
pub(crate) struct Running {
    /// Name of its work, for messages.
    pub(crate) what: String,
    pub(crate) pid: Pid,
    out: PathBuf,
    err: PathBuf,
    since: Instant,
}

/// The end of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) what: String,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) out: String,
    pub(crate) err: String,
    peak_kib: u64,
}

/// Starts a program under limits; its output goes to files in `logs`.
#[expect(
    clippy::zombie_processes,
    reason = "`Running` waits for it in its own way"
)]
pub(crate) fn start<A: AsRef<OsStr>>(program: &OsStr, arguments: &[A], logs: &Path) -> Running {
    fs::create_dir_all(logs).unwrap();
    let (out, err) = (logs.join("out"), logs.join("err"));
    // Without paths: what differs between two cases is of no use in a message.
    let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
    let words: Vec<_> = words.filter(|word| !word.contains('/')).collect();
    let child = Command::new("prlimit")
        .arg(format!("--data={DATA_LIMIT}"))
        .arg("--core=0")
        .arg(program)
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    Running {
        what: words.join(" "),
        pid: Pid::from_child(&child),
        out,
        err,
        since: Instant::now(),
    }
}

impl Running {
    /// Says how it ended, if it did.
    pub(crate) fn try_wait(&self) -> Option<Ended> {
        let (status, peak_kib) = reap(self.pid)?;
        Some(self.ended(Some(status), peak_kib))
    }

    /// Waits until it ends, and kills it if it takes too long.
    pub(crate) fn wait(&self) -> Ended {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(ended) = self.try_wait() {
                return ended;
            }
            let pause = if self.since.elapsed() < Duration::from_millis(200) {
                1
            } else {
                10
            };
            std::thread::sleep(Duration::from_millis(pause));
        }
        self.kill()
    }

    /// Kills it; it counts as hung.
    pub(crate) fn kill(&self) -> Ended {
        let stacks = stacks(self.pid);
        let _ = kill_process(self.pid, Signal::KILL);
        for _ in 0..1000 {
            if let Some((_, peak_kib)) = reap(self.pid) {
                let mut ended = self.ended(None, peak_kib);
                ended.err.push_str(&stacks);
                return ended;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.ended(None, 0)
    }

    fn ended(&self, status: Option<ExitStatus>, peak_kib: u64) -> Ended {
        let read = |path: &Path| {
            let bytes = fs::read(path).unwrap();
            assert!(
                bytes.len() < 64 << 20,
                "{}: {} bytes of output",
                self.what,
                bytes.len()
            );
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ended {
            what: self.what.clone(),
            status,
            out: read(&self.out),
            err: read(&self.err),
            peak_kib,
        }
    }
}

/// Returns in which calls the threads of a process wait.
fn stacks(pid: Pid) -> String {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let Ok(entries) = fs::read_dir(tasks) else {
        return String::new();
    };
    let lines = entries.flatten().map(|task| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("\nthread {}: {}", read("comm").trim(), read("wchan"))
    });
    lines.collect()
}

#[expect(
    unsafe_code,
    reason = "the standard library does not return what a child used"
)]
fn reap(pid: Pid) -> Option<(ExitStatus, u64)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are valid for writes of their types during the call.
    let reaped = unsafe {
        libc::wait4(
            pid.as_raw_nonzero().get(),
            &raw mut status,
            libc::WNOHANG,
            usage.as_mut_ptr(),
        )
    };
    if reaped <= 0 {
        return None;
    }
    // SAFETY: zeros are a valid `rusage`, and the call wrote at most valid numbers over them.
    let usage = unsafe { usage.assume_init() };
    Some((
        ExitStatus::from_raw(status),
        usage.ru_maxrss.cast_unsigned(),
    ))
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// Returns every way in which it did what no command may do, whatever it was given.
    pub(crate) fn offences(&self) -> Vec<String> {
        let mut found = Vec::new();
        let what = &self.what;
        let tail: String = self
            .err
            .lines()
            .rev()
            .take(12)
            .collect::<Vec<_>>()
            .join(" | ");
        match (self.status, self.code()) {
            (None, _) => found.push(format!(
                "HANG: {what}: killed after {PATIENCE:?}: {}",
                self.err
            )),
            (Some(status), None) => found.push(format!("DEATH: {what}: {status}: {tail}")),
            (_, Some(0..=4)) => {}
            (_, Some(code)) => found.push(format!("CODE: {what}: exit code {code}: {tail}")),
        }
        for line in self.err.lines().filter(|line| is_uncontained_panic(line)) {
            found.push(format!("PANIC: {what}: {line}"));
        }
        // A command that meets its limit of memory ends in order, with a code that others have too.
        if let Some(line) = self
            .err
            .lines()
            .find(|line| line.contains(MEMORY_LIMIT_MET))
        {
            found.push(format!("MEMORY: {what}: {line}"));
        }
        PEAK_KIB.fetch_max(self.peak_kib, Ordering::Relaxed);
        // A child counts what this program had when it was started, too.
        if self.peak_kib > RESIDENT_LIMIT_KIB.max(own_peak_kib()) {
            found.push(format!(
                "MEMORY: {what}: {} MiB at once",
                self.peak_kib >> 10
            ));
        }
        for (name, text) in [("output", &self.out), ("messages", &self.err)] {
            let control = |c: char| c.is_control() && !"\n\t".contains(c);
            if let Some(line) = text.lines().find(|line| line.contains(control)) {
                found.push(format!(
                    "CONTROL: {what}: {name}: {:?}",
                    line.escape_debug().to_string()
                ));
            }
        }
        found
    }
}

/// Says whether a line tells of a panic. Those of the index database are contained where they happen, and the exit
/// code tells if one was not.
fn is_uncontained_panic(line: &str) -> bool {
    line.contains("panicked at") && !line.contains("redb-")
}
