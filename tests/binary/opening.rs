//! Files that the kernel opens without a request, and with one: the same behavior, and fewer requests.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;

use crate::support::{
    Shape, TestVolume, check_large, drop_caches, eventually, must, pattern, skip_mounts, text,
    write_large,
};

/// The directory of the kernel's traces.
const TRACING: &str = "/sys/kernel/tracing";

/// A time in seconds since 1970.
const LONG_AGO: i64 = 1_577_836_800;

/// Both ways of opening, by the options of `mount`.
const BOTH: [&[&str]; 2] = [&[], &["-o", "open_requests"]];

/// The length of a large file, in bytes.
const LARGE: u64 = 60 << 20;

fn mounted(options: &[&str]) -> TestVolume {
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], options);
    assert!(output.status.success(), "{output:?}\n{}", volume.log());
    volume
}

/// The kernel's record of requests to all FUSE mounts, until it is dropped.
struct Trace(PathBuf);

impl Trace {
    /// Starts to record; returns none where the kernel cannot.
    fn start() -> Option<Self> {
        let instance = Path::new(TRACING)
            .join("instances")
            .join(format!("cauchyfs-test-{}", std::process::id()));
        if fs::create_dir(&instance).is_err() {
            eprintln!("left out: this kernel records no requests");
            return None;
        }
        let trace = Self(instance);
        if fs::write(trace.0.join("events/fuse/fuse_request_send/enable"), "1").is_err() {
            eprintln!("left out: this kernel records no requests of FUSE");
            return None;
        }
        Some(trace)
    }

    /// Returns how often each operation was requested of a mount since the last call.
    fn take(&self, mountpoint: &Path) -> BTreeMap<String, usize> {
        let device = fs::metadata(mountpoint).expect("it is mounted").st_dev();
        let connection = format!("connection {} ", rustix::fs::minor(device));
        let trace = self.0.join("trace");
        let lines = fs::read_to_string(&trace).expect("root may read it");
        fs::write(&trace, "").expect("root may clear it");
        let mut counts = BTreeMap::new();
        for line in lines.lines().filter(|line| line.contains(&connection)) {
            let operation = line
                .split(['(', ')'])
                .find(|word| word.starts_with("FUSE_"));
            *counts
                .entry(operation.unwrap_or("unknown").to_owned())
                .or_default() += 1;
        }
        counts
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An instance with events enabled can be removed as well.
        drop(fs::remove_dir(&self.0));
    }
}

#[test]
fn opening_and_closing_a_file_takes_no_request_unless_it_is_asked_for() {
    if skip_mounts() {
        return;
    }
    let Some(trace) = Trace::start() else { return };
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("file");
        // The kernel learns with the first open and the first close which requests are of no use.
        fs::write(&path, pattern(1, 100_000)).unwrap();
        drop(File::open(&path).unwrap());
        trace.take(&volume.mountpoint);
        for _ in 0..8 {
            assert_eq!(fs::read(&path).unwrap(), pattern(1, 100_000));
        }
        let counts = trace.take(&volume.mountpoint);
        let count = |operation| counts.get(operation).copied().unwrap_or(0);
        let expected = if options.is_empty() { 0 } else { 8 };
        assert_eq!(count("FUSE_OPEN"), expected, "{options:?}: {counts:?}");
        assert_eq!(count("FUSE_FLUSH"), 0, "{options:?}: {counts:?}");
        volume.unmount();
    }
}

#[test]
fn a_file_opened_to_be_cut_is_empty_and_stays_so_after_a_crash() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("file");
        fs::write(&path, pattern(1, 300_000)).unwrap();
        let file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        assert_eq!(fs::metadata(&path).unwrap().st_size(), 0, "{options:?}");
        (&file).write_all(b"new").unwrap();
        file.sync_all().unwrap();
        volume.crash();
        volume.mount();
        assert_eq!(fs::read(&path).unwrap(), b"new", "{options:?}");
        volume.unmount();
    }
}

#[test]
fn a_write_to_a_file_opened_for_synchronous_writes_survives_a_crash() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("file");
        fs::write(&path, pattern(1, 300_000)).unwrap();
        // The kernel asks for the sync with a request of its own, whatever the write says.
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(&path)
            .unwrap();
        let memory = vec![2; 3 * 4096];
        let start = memory.as_ptr().align_offset(4096);
        file.write_all_at(&memory[start..start + 8192], 8192)
            .unwrap();
        volume.crash();
        volume.mount();
        let mut expected = pattern(1, 300_000);
        expected[8192..16384].fill(2);
        assert!(fs::read(&path).unwrap() == expected, "{options:?}");
        volume.unmount();
    }
}

#[test]
fn an_open_file_without_a_name_can_be_used_and_its_space_comes_back_when_it_is_closed() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("file");
        // Twice as much as there is room for.
        for round in 0..2 * (256 << 20) / LARGE {
            // The kernel may forget the last file only a moment after it was closed.
            eventually("there is room", || write_large(&path, round, LARGE).is_ok());
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            fs::remove_file(&path).unwrap();
            file.write_all_at(b"beginning", 0).unwrap();
            drop_caches();
            let mut begin = [0; 9];
            file.read_exact(&mut begin).unwrap();
            assert_eq!(&begin, b"beginning", "{options:?}");
        }
        eventually("there is room", || write_large(&path, 99, LARGE).is_ok());
        check_large(&path, 99, LARGE);
        volume.unmount();
        let (said, code) = volume.check(&[]);
        assert_eq!(code, 0, "{options:?}: {said}");
    }
}

fn free_bytes(volume: &TestVolume) -> u64 {
    let space = rustix::fs::statvfs(&volume.mountpoint).expect("it is mounted");
    space.f_bavail * space.f_frsize
}

/// Makes and opens a file without a name.
fn nameless(directory: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let opened = options
        .custom_flags(libc::O_TMPFILE | flags)
        .open(directory);
    opened.expect("the mount is writable")
}

/// Gives an open file a name.
fn link(file: &File, path: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, opened, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn a_file_made_without_a_name_gets_one_by_a_link_or_goes_when_it_is_closed() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("linked");
        let before = free_bytes(&volume);
        let file = nameless(&volume.mountpoint, 0);
        for at in 0..LARGE >> 20 {
            let data = pattern(at, 1 << 20);
            file.write_all_at(&data, at << 20).unwrap();
        }
        file.sync_all().unwrap();
        assert!(free_bytes(&volume) < before - LARGE / 2, "{options:?}");
        drop_caches();
        let mut last = vec![0; 1 << 20];
        file.read_exact_at(&mut last, LARGE - (1 << 20)).unwrap();
        assert!(last == pattern((LARGE >> 20) - 1, 1 << 20));
        assert_eq!(file.metadata().unwrap().st_nlink(), 0, "{options:?}");
        drop(file);
        eventually("its space comes back", || {
            free_bytes(&volume) > before - LARGE / 2
        });
        let exclusive = nameless(&volume.mountpoint, libc::O_EXCL);
        assert_eq!(link(&exclusive, &path), Err(rustix::io::Errno::NOENT));
        let file = nameless(&volume.mountpoint, 0);
        file.write_all_at(b"bytes", 0).unwrap();
        link(&file, &path).unwrap();
        assert_eq!(file.metadata().unwrap().st_nlink(), 1, "{options:?}");
        file.write_all_at(b"more", 5).unwrap();
        file.sync_all().unwrap();
        drop((file, exclusive));
        volume.crash();
        volume.mount();
        assert_eq!(fs::read(&path).unwrap(), b"bytesmore", "{options:?}");
        let listed = fs::read_dir(&volume.mountpoint).unwrap().count();
        assert_eq!(listed, 1, "{options:?}");
        volume.unmount();
        let (said, code) = volume.check(&[]);
        assert_eq!(code, 0, "{options:?}: {said}");
    }
}

#[test]
fn a_seek_finds_bytes_in_a_hole_that_only_the_kernel_has() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let volume = mounted(options);
        let path = volume.path("file");
        let file = File::create(&path).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[1; 4096], 8 << 20).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        file.write_all_at(&[1; 4096], 12 << 20).unwrap();
        let seek = |from| rustix::fs::seek(&file, from);
        assert_eq!(seek(SeekFrom::Data(4096)), Ok(4 << 20), "{options:?}");
        assert_eq!(seek(SeekFrom::Hole(4 << 20)), Ok((4 << 20) + 4096));
        assert_eq!(seek(SeekFrom::Data(9 << 20)), Ok(12 << 20), "{options:?}");
        assert_eq!(seek(SeekFrom::Hole(0)), Ok(4096), "{options:?}");
        let end = (12 << 20) + 4096;
        assert_eq!(seek(SeekFrom::Hole(12 << 20)), Ok(end), "{options:?}");
        assert_eq!(seek(SeekFrom::Data(end)), Err(rustix::io::Errno::NXIO));
        drop(file);
        volume.unmount();
    }
}

#[test]
fn reading_a_file_opened_without_access_times_leaves_its_access_time() {
    if skip_mounts() {
        return;
    }
    for options in BOTH {
        let options = [options, &["-o", "strictatime"]].concat();
        let volume = mounted(&options);
        let path = volume.path("file");
        fs::write(&path, pattern(1, 300_000)).unwrap();
        must("touch", &["-a", "-d", &format!("@{LONG_AGO}"), text(&path)]);
        let read = |flags| {
            drop_caches();
            let mut file = OpenOptions::new();
            let mut file = file.read(true).custom_flags(flags).open(&path).unwrap();
            file.read_exact(&mut [0; 4096]).unwrap();
            drop_caches();
            fs::metadata(&path).unwrap().st_atime()
        };
        read(libc::O_NOATIME);
        assert_eq!(read(libc::O_NOATIME), LONG_AGO, "{options:?}");
        eventually("the access time moves", || read(0) > LONG_AGO);
        volume.unmount();
    }
}
