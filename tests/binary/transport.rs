//! Requests over `io_uring` and over `/dev/fuse`: the same answers, and a good end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::mount::UnmountFlags;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::daemon::Connection;
use crate::support::{
    CAUCHYFS, Disk, DiskKind, PATIENCE, Shape, TRANSPORT, TestVolume, drop_caches, eventually,
    pattern, run, said, skip_mounts, text,
};

/// The file that says whether the kernel offers requests over `io_uring` to new mounts.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Held by the test that has set the parameter.
static PARAMETER_IN_USE: Mutex<()> = Mutex::new(());

/// The parameter with another value, until this is dropped.
struct Parameter {
    before: String,
    _in_use: MutexGuard<'static, ()>,
}

impl Parameter {
    /// Sets the parameter; returns none where the kernel has no such.
    fn set(value: &str) -> Option<Self> {
        let in_use = PARAMETER_IN_USE.lock();
        let Ok(before) = fs::read_to_string(PARAMETER) else {
            eprintln!("left out: this kernel has no FUSE over io_uring");
            return None;
        };
        fs::write(PARAMETER, value).expect("root may set it");
        Some(Self {
            before,
            _in_use: in_use,
        })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        fs::write(PARAMETER, &self.before).expect("root may set it");
    }
}

/// Mounts a new volume over `io_uring`.
fn mounted_over_uring() -> TestVolume {
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--transport", "uring"]);
    assert!(output.status.success(), "{output:?}\n{}", volume.log());
    let (status, _) = volume.status();
    assert_eq!(status["transport"].as_str(), Some("uring"), "{status}");
    volume
}

/// Runs tests of this program whose names contain one of `names`, over `io_uring`.
fn pass_over_uring(names: &[&str]) {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let program = std::env::current_exe().expect("it is this one");
    let output = Command::new(program)
        .args(names)
        .env(TRANSPORT, "uring")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
}

/// The tests that go through the kernel pass over `io_uring`, too.
#[test]
fn tests_of_mounts_pass_over_io_uring() {
    pass_over_uring(&[
        "posix::",
        "privileges::",
        "export::",
        "direct::",
        "opening::",
        "session::",
        "daemon::",
    ]);
}

#[test]
fn crashes_and_random_faults_cost_nothing_acknowledged_over_io_uring() {
    pass_over_uring(&["crash::", "chaos::", "cost_nothing_acknowledged_on_tmpfs"]);
}

#[test]
fn uring_is_refused_with_its_remedy_where_the_kernel_does_not_offer_it_and_auto_is_not() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("N") else {
        return;
    };
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let all = [0, 1, 2, 3, 4, 5];
    let output = volume.try_mount(&all, &["--transport", "uring"]);
    assert!(!output.status.success(), "{output:?}");
    let words = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = words.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains(&format!("`echo Y > {PARAMETER}` as root")),
        "{words}"
    );
    let output = volume.try_mount(&all, &["--transport", "auto"]);
    assert!(output.status.success(), "{output:?}");
    let (status, _) = volume.status();
    assert_eq!(status["transport"].as_str(), Some("classic"), "{status}");
    volume.unmount();
    let (status, _) = volume.status_of(&volume.members.iter().collect::<Vec<_>>());
    assert!(status["transport"].is_null(), "{status}");
}

/// Without this, the rings would leave no descriptor for the files of members.
#[test]
fn with_few_descriptors_requests_come_over_the_device() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let mount = |transport: &str| {
        let mut arguments = vec!["--nofile=128:128", CAUCHYFS, "mount"];
        arguments.extend(["--transport", transport]);
        arguments.extend(volume.members.iter().map(|member| text(member)));
        arguments.push(text(&volume.mountpoint));
        run("prlimit", &arguments)
    };
    let refused = mount("uring");
    assert!(!refused.status.success(), "{refused:?}");
    let words = said(&refused);
    assert!(words.contains("may open 128 files"), "{words}");
    assert!(mount("auto").status.success());
    let (status, _) = volume.status();
    assert_eq!(status["transport"].as_str(), Some("classic"), "{status}");
    volume.unmount();
}

#[test]
fn more_requests_than_a_queue_has_entries_are_all_answered() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let volume = mounted_over_uring();
    let (small, large) = (pattern(1, 5000), pattern(2, 3 << 20));
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (volume, small, large) = (&volume, &small, &large);
            scope.spawn(move || {
                let path = volume.path(&format!("file-{number}"));
                let mut file = File::create(&path).unwrap();
                file.write_all(small).unwrap();
                file.sync_all().unwrap();
                if number % 8 == 0 {
                    file.write_all(large).unwrap();
                }
                file.sync_data().unwrap();
                fs::metadata(&path).unwrap();
            });
        }
    });
    drop_caches();
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (volume, small, large) = (&volume, &small, &large);
            scope.spawn(move || {
                let file = File::open(volume.path(&format!("file-{number}"))).unwrap();
                let mut start = vec![0; small.len()];
                file.read_exact_at(&mut start, 0).unwrap();
                assert!(start == *small, "file {number}");
                if number % 8 == 0 {
                    let mut rest = vec![0; large.len()];
                    file.read_exact_at(&mut rest, small.len() as u64).unwrap();
                    assert!(rest == *large, "file {number}");
                }
            });
        }
    });
    volume.unmount();
    eventually("the daemon ends", || volume.daemon().is_none());
}

/// Ends the mount under load in `way`, and waits for the daemon.
fn end_under_load(way: impl FnOnce(&TestVolume)) {
    let volume = mounted_over_uring();
    // Once the mount is gone, its mountpoint has no such directory.
    let directory = volume.path("load");
    fs::create_dir(&directory).expect("the mount is writable");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (directory, stop) = (&directory, &stop);
            scope.spawn(move || load(directory, number, stop));
        }
        std::thread::sleep(PATIENCE / 120);
        way(&volume);
        stop.store(true, Ordering::Relaxed);
    });
    eventually("the daemon ends", || volume.daemon().is_none());
    volume.try_unmount();
    volume.mount();
    volume.unmount();
}

/// Makes, syncs and lists files until the mount is gone.
fn load(directory: &Path, number: usize, stop: &AtomicBool) {
    let bytes = pattern(3, 100_000);
    for round in 0.. {
        let path = directory.join(format!("{number}-{round}"));
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        let listed = fs::read_dir(directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let gone = written.is_err() || listed.is_err();
        if gone || stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn a_daemon_over_io_uring_ends_when_the_mount_is_taken_away_cut_off_or_it_is_killed() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    end_under_load(|volume| {
        rustix::mount::unmount(&volume.mountpoint, UnmountFlags::DETACH).unwrap();
    });
    // Aborts the connection: requests that are under way fail.
    end_under_load(|volume| {
        let flags = UnmountFlags::DETACH | UnmountFlags::FORCE;
        rustix::mount::unmount(&volume.mountpoint, flags).unwrap();
    });
    end_under_load(TestVolume::kill);
}

/// Keeps the calling thread on one CPU, so that all its requests go over one queue.
fn use_one_cpu() {
    let mut one = CpuSet::new();
    one.set(0);
    sched_setaffinity(None, &one).expect("the first CPU can be used");
}

/// Writes past the page cache until told to stop, and counts.
fn write_directly(path: &Path, written: &AtomicUsize, stop: &AtomicBool) {
    use_one_cpu();
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::DIRECT;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags, mode).expect("the mount is writable");
    // Memory that is mapped begins at a page.
    let bytes = vec![7; 3 << 20];
    let start = bytes.as_ptr().align_offset(4096);
    while !stop.load(Ordering::Relaxed) {
        rustix::io::write(&file, &bytes[start..][..2 << 20]).expect("writing goes on");
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// A member takes no writes, so that writers wait for it: on the queue of one CPU.
#[test]
fn files_stay_readable_on_the_cpu_of_a_request_that_waits_for_a_member() {
    const FILES: usize = 20;
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let shape = Shape {
        data: 1,
        parity: 1,
        members: 2,
        ..Shape::FOUR_TWO
    };
    let disks = vec![
        Disk::new(DiskKind::Tmpfs, 768),
        Disk::new(DiskKind::Ext4, 768),
    ];
    let mut volume = TestVolume::create_over(shape, disks);
    volume.mount();
    let content = pattern(1, 100_000);
    let path = |number: usize| format!("f{number}");
    for number in 0..FILES {
        fs::write(volume.path(&path(number)), &content).unwrap();
    }
    volume.unmount();
    let patient = ["--transport", "uring", "--member-timeout", "60s"];
    let output = volume.try_mount(&[0, 1], &patient);
    assert!(output.status.success(), "{output:?}");

    volume.freeze_disk(1);
    let (written, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..2 {
            let path = volume.path(&format!("w{number}"));
            let (written, stop) = (&written, &stop);
            scope.spawn(move || write_directly(&path, written, stop));
        }
        let stuck_at = until_stuck(&written);
        let paths: Vec<_> = (0..FILES)
            .map(|number| volume.path(&path(number)))
            .collect();
        scope.spawn(move || {
            use_one_cpu();
            for path in paths {
                tell.send(fs::read(path).unwrap()).unwrap();
            }
        });
        let outcome = (0..FILES).try_for_each(|_| {
            let read = told.recv_timeout(PATIENCE / 6)?;
            assert!(read == content);
            Ok::<_, mpsc::RecvTimeoutError>(())
        });
        let still_at = written.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        volume.thaw_disk(1);
        assert_eq!(outcome, Ok(()), "a file cannot be read");
        assert_eq!(still_at, stuck_at, "the writers wait");
    });
    volume.unmount();
}

/// Waits until a number of writes does not grow any more, and returns it.
fn until_stuck(written: &AtomicUsize) -> usize {
    let mut seen = (0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = written.load(Ordering::Relaxed);
        if now != seen.0 {
            seen = (now, Instant::now());
        } else if seen.1.elapsed() > Duration::from_secs(3) {
            return now;
        }
    }
}

/// Makes a file with pages that are not written yet around a hole, and finds them when all others are as far.
fn seek_around_a_hole(path: &Path, together: &Barrier) -> [rustix::io::Result<u64>; 2] {
    const DATA: usize = 256 << 10;
    const AFTER: u64 = 8 << 20;
    use_one_cpu();
    let file = File::create(path).expect("the mount is writable");
    let write = |seed, offset| {
        let written = file.write_all_at(&pattern(seed, DATA), offset);
        written.expect("there is room");
    };
    write(1, 0);
    write(2, AFTER);
    together.wait();
    let data = rustix::fs::seek(&file, SeekFrom::Data(DATA as u64));
    write(3, 0);
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(0));
    [
        data.map(|offset| offset.abs_diff(AFTER)),
        hole.map(|offset| offset.abs_diff(DATA as u64)),
    ]
}

/// Seeks wait until the kernel has written pages, and hold entries meanwhile. Those writes need entries, too.
fn many_seeks_at_once_find_every_hole(volume: &TestVolume) {
    const FILES: usize = 64;
    let connection = Connection::of(volume);
    let together = std::sync::Arc::new(Barrier::new(FILES));
    let (tell, told) = mpsc::channel();
    for number in 0..FILES {
        let (path, tell) = (volume.path(&format!("f{number}")), tell.clone());
        let together = std::sync::Arc::clone(&together);
        std::thread::spawn(move || tell.send(seek_around_a_hole(&path, &together)));
    }
    for number in 0..FILES {
        match told.recv_timeout(PATIENCE) {
            Ok(found) => assert_eq!(found, [Ok(0), Ok(0)], "{}", volume.log()),
            Err(error) => {
                connection.abort();
                panic!("{number} of {FILES} files: {error}\n{}", volume.log());
            }
        }
    }
}

#[test]
fn more_seeks_at_once_than_a_queue_has_entries_find_every_hole() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let volume = mounted_over_uring();
    many_seeks_at_once_find_every_hole(&volume);
    volume.unmount();
}

/// Returns the CPUs that a thread or a process may run on, by its file `status`.
fn cpus_of(status: &Path) -> std::io::Result<String> {
    let status = fs::read_to_string(status)?;
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"));
    Ok(line.expect("every kernel has it").to_owned())
}

/// Returns the CPUs of a daemon, and those of its threads with their names.
fn cpus_of_threads(daemon: u32) -> (String, Vec<(String, String)>) {
    let all = cpus_of(Path::new(&format!("/proc/{daemon}/status"))).expect("it runs");
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).expect("it runs");
    let threads = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        // Some threads end meanwhile.
        let name = fs::read_to_string(task.join("comm")).ok()?;
        Some((name, cpus_of(&task.join("status")).ok()?))
    });
    (all, threads.collect())
}

#[test]
fn a_single_program_frees_threads_from_their_cpu_and_many_seeks_after_it_find_every_hole() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let volume = mounted_over_uring();
    let daemon = volume.daemon().unwrap();
    let is_freed = || {
        let (all, threads) = cpus_of_threads(daemon);
        let mut threads = threads.into_iter();
        threads.any(|(name, cpus)| name.starts_with("ring-") && cpus == all)
    };
    // On a busy machine, threads are free for as few as eight requests.
    let started = Instant::now();
    while !is_freed() {
        for _ in 0..4 {
            let anew = AtFlags::STATX_FORCE_SYNC;
            rustix::fs::statx(CWD, &volume.mountpoint, anew, StatxFlags::BASIC_STATS).unwrap();
        }
        assert!(started.elapsed() < PATIENCE, "no thread was freed");
    }
    many_seeks_at_once_find_every_hole(&volume);
    volume.unmount();
    eventually("the daemon ends", || volume.daemon().is_none());
}

/// A thread begins on the CPUs of the one that starts it, and some are started while a request is served.
#[test]
fn only_the_threads_of_queues_are_pinned_to_a_cpu() {
    if skip_mounts() {
        return;
    }
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let volume = mounted_over_uring();
    fs::write(volume.path("file"), pattern(1, 8 << 20)).unwrap();
    drop_caches();
    fs::read(volume.path("file")).unwrap();
    let (all, threads) = cpus_of_threads(volume.daemon().unwrap());
    for (name, cpus) in threads {
        if !name.starts_with("ring-") && !name.starts_with("iou-") {
            assert_eq!(cpus, all, "{name}");
        }
    }
    volume.unmount();
}
