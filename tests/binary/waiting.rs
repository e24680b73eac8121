//! More members than parity shards go away, and programs are to wait for them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::support::{
    Shape, TestVolume, drop_caches, eventually, must, pattern, run, said, skip_mounts, text,
};

const BYTES: usize = 300_000;

/// Programs that wait at once: more than the daemon has threads.
const PROGRAMS: usize = 40;

const BLOCK: usize = 4096;

/// A volume of which programs wait for members, and the view of the kernel on its requests.
struct Rig {
    volume: TestVolume,
    away: Vec<PathBuf>,
    requests: PathBuf,
    control: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
        let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-o", "on-failure=wait"]);
        assert!(mounted.status.success(), "{mounted:?}");
        let control = volume.home.join("control");
        fs::create_dir(&control).expect("the home is writable");
        must("mount", &["-t", "fusectl", "none", text(&control)]);
        let device = fs::metadata(&volume.mountpoint)
            .expect("it is mounted")
            .dev();
        let minor = rustix::fs::minor(device);
        let away = volume.members[..3].to_vec();
        let blocks: Vec<u8> = (0..1000).flat_map(block).collect();
        fs::write(volume.home.join("blocks"), blocks).expect("the home is writable");
        Self {
            requests: control.join(format!("{minor}/waiting")),
            volume,
            away,
            control,
        }
    }

    /// Returns the file in which writer `number` names the blocks that are durable.
    fn list(&self, number: usize) -> PathBuf {
        self.volume.home.join(format!("list{number}"))
    }

    /// Returns the file whose existence ends the writers.
    fn over(&self) -> PathBuf {
        self.volume.home.join("over")
    }

    /// Returns how many blocks of a writer are durable.
    fn durable(&self, number: usize) -> u64 {
        let list = fs::read_to_string(self.list(number)).unwrap_or_default();
        list.lines().count() as u64
    }

    /// Returns the number of requests that the kernel has sent, and that are not answered.
    fn requests(&self) -> usize {
        let count = fs::read_to_string(&self.requests).expect("it is mounted");
        count.trim().parse().expect("it is a number")
    }

    fn take_away(&self) {
        for member in &self.away {
            fs::rename(member, aside(member)).expect("it is there");
        }
        eventually("they are seen to be away", || {
            let (_, said) = self.volume.command(&["status"], &[]);
            said.contains("goes on by itself")
        });
    }

    fn bring_back(&self) {
        for member in &self.away {
            fs::rename(aside(member), member).expect("it is aside");
        }
    }

    fn write(&self, name: &str, seed: u64) -> File {
        let file = File::create_new(self.volume.path(name)).expect("the mount is writable");
        file.write_all_at(&pattern(seed, BYTES), 0)
            .expect("there is room");
        file.sync_all().expect("it can be durable");
        fs::write(self.volume.home.join(name), pattern(seed, BYTES)).expect("the home is writable");
        file
    }

    /// Starts a program that waits, which makes a directory.
    fn start_mkdir(&self, name: &str) -> Child {
        let child = Command::new("mkdir")
            .arg(self.volume.path(name))
            .stderr(Stdio::piped())
            .spawn()
            .expect("mkdir runs");
        let stack = format!("/proc/{}/stack", child.id());
        eventually("the program waits", || {
            fs::read_to_string(&stack).is_ok_and(|stack| stack.contains("fuse"))
        });
        child
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        run("umount", &[text(&self.control)]);
    }
}

/// Empties the page cache alone. The kernel keeps the names: a look-up would hold its directory while it waits.
fn drop_pages() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "1").expect("root may drop caches");
}

fn aside(member: &Path) -> PathBuf {
    member.with_extension("aside")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
}

/// A block that says which one it is.
fn block(number: u64) -> Vec<u8> {
    pattern(number + 1000, BLOCK)
}

/// Writes and syncs blocks until it is told to stop, and names each in a list that is not on the volume. A sync may report
/// once that its block is lost. The block is written again then. It is a process of its own, because a command that a
/// process starts closes its copies of files, and waits with those that wait.
fn start_writer(rig: &Rig, number: usize) -> Child {
    let script = r#"
        at=0; losses=0; blocks=$1; file=$2; list=$3; over=$4
        while [ ! -e "$over" ]; do
            if dd if="$blocks" of="$file" bs=4096 skip=$at seek=$at count=1 \
                oflag=direct conv=notrunc,fsync status=none; then
                at=$((at + 1)); echo $at >>"$list"
            else
                losses=$((losses + 1)); [ $losses -le 1 ] || exit 1
            fi
            [ $at -lt 1000 ] || exit 2
        done"#;
    let mut writer = Command::new("sh");
    writer.args(["-c", script, "sh"]);
    writer.arg(rig.volume.home.join("blocks"));
    writer.arg(rig.volume.path(&format!("writer{number}/file")));
    writer.arg(rig.list(number)).arg(rig.over());
    writer.spawn().expect("sh runs")
}

/// Makes a directory for each program: the kernel lets one program at a time make a file in a directory, or look one up to
/// make it.
fn make_directories(rig: &Rig) {
    let programs = (0..PROGRAMS).map(|number| number.to_string());
    let writers = (0..4).map(|number| format!("writer{number}"));
    let signals = [libc::SIGTERM, libc::SIGKILL].map(|signal| format!("signal{signal}"));
    for name in programs.chain(writers).chain(signals) {
        fs::create_dir(rig.volume.path(&name)).expect("the mount is writable");
    }
    let root = File::open(&rig.volume.mountpoint).expect("it is a directory");
    root.sync_all().expect("it can be durable");
}

/// Starts programs that write and sync files of their own, each in a process of its own.
fn start_programs(rig: &Rig) -> Vec<Child> {
    let blocks = rig.volume.home.join("blocks");
    let start = |number: usize| {
        let mut program = Command::new("dd");
        program.arg(format!("if={}", text(&blocks)));
        let path = rig.volume.path(&format!("{number}/file"));
        program.arg(format!("of={}", text(&path)));
        program.args(["bs=4096", "count=1", "oflag=direct", "conv=fsync"]);
        program.arg(format!("skip={number}"));
        program.stderr(Stdio::piped()).spawn().expect("dd runs")
    };
    (0..PROGRAMS).map(start).collect()
}

/// Makes a directory, or writes a block of a file and syncs it, when it is told to. It handles a signal.
const PROGRAM: &str = r#"
import mmap, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
what, path = sys.argv[1:]
if what != "mkdir":
    file = os.open(path, os.O_RDWR | (os.O_DIRECT if what == "direct" else 0))
    page = mmap.mmap(-1, 4096)
    page.write(b"x" * 4096)
print("ready", flush=True)
sys.stdin.readline()
if what == "mkdir":
    os.mkdir(path)
else:
    os.pwrite(file, page, 0)
    os.fsync(file)
"#;

/// Starts a program that does `what` with `name`: `mkdir`, or a write with `direct` I/O or of `pages`.
fn start_program(rig: &Rig, what: &str, name: &str) -> Child {
    let mut program = Command::new("python3");
    program.args(["-c", PROGRAM, what]);
    program.arg(rig.volume.path(name));
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("python runs");
    let mut line = String::new();
    let out = program.stdout.take().expect("it is a pipe");
    BufReader::new(out).read_line(&mut line).expect("it runs");
    assert_eq!(line, "ready\n");
    program
}

/// Has a program begin, and sees that it waits.
fn begin(rig: &Rig, program: &mut Child) {
    let before = rig.requests();
    let mut input = program.stdin.take().expect("it is a pipe");
    input.write_all(b"go\n").expect("it listens");
    eventually("the program waits", || rig.requests() > before);
}

/// Checks that a program ends, by a signal or by itself.
fn check_end(mut program: Child, signal: Option<i32>) {
    let mut ended = None;
    eventually("the program ends", || {
        ended = program.try_wait().expect("it was started");
        ended.is_some()
    });
    let ended = ended.expect("it has ended");
    assert_eq!(
        (ended.signal(), ended.success()),
        (signal, signal.is_none())
    );
}

/// Checks that a file of which [`PROGRAM`] wrote the first block, or did not, is so.
fn check_first_block(rig: &Rig, name: &str, is_written: bool) {
    let found = read(&rig.volume.path(name)).expect("it is durable");
    let before = pattern(1, BYTES);
    assert!(found[BLOCK..] == before[BLOCK..], "{name}");
    assert_eq!(found[..BLOCK] == [b'x'; BLOCK], is_written, "{name}");
    assert_eq!(found[..BLOCK] == before[..BLOCK], !is_written, "{name}");
}

fn is_running(program: &mut Child) -> bool {
    program.try_wait().expect("it was started").is_none()
}

#[test]
fn programs_wait_for_members_and_go_on_with_every_byte() {
    if skip_mounts() {
        return;
    }
    let rig = Rig::new();
    let kept = rig.write("kept", 1);
    make_directories(&rig);
    // They write while the members go, and so meet the failure itself.
    let writers: Vec<_> = (0..4).map(|number| start_writer(&rig, number)).collect();
    eventually("each file is durable", || {
        (0..4).all(|number| rig.durable(number) > 0)
    });
    drop_pages();
    rig.take_away();
    let mut programs = start_programs(&rig);
    let mut reader = Command::new("cmp")
        .args([rig.volume.path("kept"), rig.volume.home.join("kept")])
        .spawn()
        .expect("cmp runs");
    eventually("all programs wait", || rig.requests() > PROGRAMS);
    assert!(programs.iter_mut().all(is_running) && is_running(&mut reader));
    let space = rustix::fs::statvfs(&rig.volume.mountpoint).expect("the space is known");
    assert!(space.f_blocks > 0);
    let (code, said) = rig.volume.command(&["status"], &[]);
    assert_ne!(code, Some(0), "{said}");
    // A signal that a program does not survive, and one that it does.
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut program = rig.start_mkdir(&format!("signal{signal}/made"));
        must("kill", &[&format!("-{signal}"), &program.id().to_string()]);
        let mut ended = None;
        eventually("a signal ends the wait", || {
            ended = program.try_wait().expect("it was started");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|ended| ended.signal()), Some(signal));
    }
    assert!(programs.iter_mut().all(is_running));
    rig.bring_back();
    for program in programs {
        let ended = program.wait_with_output().expect("it was started");
        assert!(ended.status.success(), "{ended:?}");
    }
    assert!(reader.wait().expect("it was started").success());
    fs::write(rig.over(), "").expect("the home is writable");
    for (number, mut writer) in writers.into_iter().enumerate() {
        let ended = writer.wait().expect("it was started");
        assert!(ended.success(), "at most one loss is reported: {ended:?}");
        let found =
            read(&rig.volume.path(&format!("writer{number}/file"))).expect("it can be read");
        for at in 0..rig.durable(number) {
            let place = usize::try_from(at).expect("it is small") * BLOCK;
            assert!(found[place..place + BLOCK] == block(at), "block {at}");
        }
    }
    eventually("all members take part", || rig.volume.status().1 == 0);
    drop(kept);
    rig.volume.unmount();
    rig.volume.mount();
    for number in 0..PROGRAMS {
        let found = read(&rig.volume.path(&format!("{number}/file"))).expect("it is durable");
        assert!(found == block(number as u64), "program {number}");
    }
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let made = rig.volume.path(&format!("interrupted{signal}"));
        assert!(!made.exists(), "what was interrupted was done");
    }
    rig.volume.unmount();
    rig.volume.assert_intact();
}

#[test]
fn a_lazy_unmount_and_a_signal_end_the_wait_of_programs() {
    if skip_mounts() {
        return;
    }
    for is_signal in [false, true] {
        let rig = Rig::new();
        make_directories(&rig);
        let kept = rig.write("kept", 1);
        rig.take_away();
        let programs = start_programs(&rig);
        eventually("all programs wait", || rig.requests() >= PROGRAMS);
        if is_signal {
            let daemon = rig.volume.daemon().expect("it is mounted");
            must("kill", &["-TERM", &daemon.to_string()]);
        } else {
            rig.volume.command(&["unmount", "--lazy"], &[]);
        }
        for program in programs {
            let ended = program.wait_with_output().expect("it was started");
            assert!(!ended.status.success(), "{ended:?}");
        }
        drop(kept);
        eventually("the daemon ends", || rig.volume.daemon().is_none());
        rig.bring_back();
        rig.volume.mount();
        let found = read(&rig.volume.path("kept")).expect("it is durable");
        assert!(found == pattern(1, BYTES));
        rig.volume.unmount();
    }
}

/// Programs that wait use the mount.
#[test]
fn an_unmount_that_is_refused_ends_no_wait() {
    if skip_mounts() {
        return;
    }
    let rig = Rig::new();
    make_directories(&rig);
    drop(rig.write("pages", 1));
    let mut pages = start_program(&rig, "pages", "pages");
    rig.take_away();
    begin(&rig, &mut pages);
    let mut programs = start_programs(&rig);
    eventually("all wait", || rig.requests() > PROGRAMS);
    for _ in 0..2 {
        let output = rig.volume.try_unmount();
        assert!(!output.status.success(), "it is in use");
        assert!(said(&output).contains("is in use"), "{}", said(&output));
    }
    assert!(programs.iter_mut().all(is_running) && is_running(&mut pages));
    rig.bring_back();
    for program in programs {
        let ended = program.wait_with_output().expect("it was started");
        assert!(ended.status.success(), "{ended:?}");
    }
    check_end(pages, None);
    rig.volume.unmount();
    rig.volume.mount();
    check_first_block(&rig, "pages", true);
    for number in 0..PROGRAMS {
        let found = read(&rig.volume.path(&format!("{number}/file"))).expect("it is durable");
        assert!(found == block(number as u64), "program {number}");
    }
    rig.volume.unmount();
}

#[test]
fn an_unmount_of_a_mount_that_nothing_uses_succeeds_while_the_volume_is_away() {
    if skip_mounts() {
        return;
    }
    let rig = Rig::new();
    drop(rig.write("kept", 1));
    rig.take_away();
    rig.volume.try_unmount();
    eventually("the daemon ends", || rig.volume.daemon().is_none());
    rig.bring_back();
    rig.volume.mount();
    let found = read(&rig.volume.path("kept")).expect("it is durable");
    assert!(found == pattern(1, BYTES));
    rig.volume.unmount();
}

#[test]
fn a_signal_ends_a_wait_if_it_ends_the_program_also_in_direct_io() {
    if skip_mounts() {
        return;
    }
    let rig = Rig::new();
    make_directories(&rig);
    for name in ["written", "killed"] {
        drop(rig.write(name, 1));
    }
    let of = [
        ("mkdir", "0/made"),
        ("direct", "written"),
        ("mkdir", "1/none"),
        ("direct", "killed"),
    ];
    let mut programs = of.map(|(what, name)| start_program(&rig, what, name));
    rig.take_away();
    for program in &mut programs {
        begin(&rig, program);
        // They handle it. The kernel tells of the first signal alone.
        must("kill", &["-USR1", &program.id().to_string()]);
    }
    let [mut made, mut written, mkdir, direct] = programs;
    for program in [mkdir, direct] {
        must("kill", &["-KILL", &program.id().to_string()]);
        check_end(program, Some(libc::SIGKILL));
    }
    assert!(is_running(&mut made) && is_running(&mut written));
    rig.bring_back();
    check_end(made, None);
    check_end(written, None);
    assert!(rig.volume.path("0/made").is_dir());
    assert!(!rig.volume.path("1/none").exists());
    rig.volume.unmount();
    rig.volume.mount();
    check_first_block(&rig, "written", true);
    check_first_block(&rig, "killed", false);
    rig.volume.unmount();
}

/// Writes of the page cache wait as well.
#[test]
fn pages_that_wait_for_members_are_written_after_their_return() {
    if skip_mounts() {
        return;
    }
    let rig = Rig::new();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(rig.volume.path("pages"))
        .expect("the mount is writable");
    file.write_all_at(&pattern(1, BYTES), 0)
        .expect("there is room");
    file.sync_all().expect("it can be durable");
    rig.take_away();
    // The kernel takes it if it asks nothing, else this waits, and is done after the return.
    let writer = {
        let file = file.try_clone().expect("there are descriptors left");
        thread::spawn(move || file.write_all_at(&pattern(2, BYTES), 0))
    };
    let syncer = {
        let file = file.try_clone().expect("there are descriptors left");
        thread::spawn(move || file.sync_all())
    };
    eventually("they wait", || rig.requests() > 0);
    assert!(!syncer.is_finished());
    rig.bring_back();
    let written = writer.join().expect("it does not panic");
    written.expect("a write is done after the return");
    let outcome = syncer.join().expect("it does not panic");
    outcome.expect("nothing was lost");
    file.sync_all().expect("nothing was lost");
    drop_caches();
    let mut found = vec![0; BYTES];
    file.read_exact_at(&mut found, 0).expect("it can be read");
    assert!(found == pattern(2, BYTES));
    drop(file);
    rig.volume.unmount();
}
