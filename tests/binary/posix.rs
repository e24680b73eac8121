//! The expectations of programs of a filesystem, seen through the kernel.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use crate::support::{
    CAUCHYFS, Shape, TestVolume, copy_program, drop_caches, must, pattern, run, said, skip_mounts,
    text,
};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, RenameFlags};

fn mounted() -> TestVolume {
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    volume
}

/// Mounts so that other users may come in.
fn mounted_for_all() -> TestVolume {
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    must("chmod", &["755", text(&volume.home)]);
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-o", "allow_other"]);
    assert!(output.status.success(), "{output:?}");
    volume
}

fn as_nobody(program: &str, arguments: &[&str]) -> Output {
    let mut all = vec!["--reuid=65534", "--regid=65534", "--clear-groups", program];
    all.extend(arguments);
    run("setpriv", &all)
}

/// Makes an empty file that can be read as well.
fn create_to_read(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.open(path).expect("the mount is writable")
}

#[test]
fn locks_exclude_one_another() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("locked");
    let one = File::create(&path).unwrap();
    let reader = File::open(&path).unwrap();
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    let refused = rustix::fs::flock(&reader, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&reader, FlockOperation::NonBlockingLockExclusive).unwrap();

    // A POSIX lock of this process keeps another process out.
    rustix::fs::fcntl_lock(&one, FlockOperation::LockExclusive).unwrap();
    let script =
        "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)";
    let other = run("python3", &["-c", script, text(&path)]);
    assert!(
        String::from_utf8_lossy(&other.stderr).contains("BlockingIOError"),
        "{other:?}"
    );
    rustix::fs::fcntl_lock(&one, FlockOperation::Unlock).unwrap();
    must("python3", &["-c", script, text(&path)]);
    drop((one, reader));
    volume.unmount();
}

/// Bytes of the mapped file.
const LEN: usize = 4 << 20;

#[test]
#[expect(
    unsafe_code,
    reason = "mapping a file into memory is the point of this test"
)]
fn shared_mappings_write_through_to_the_file() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("mapped");
    let file = create_to_read(&path);
    file.set_len(LEN as u64).unwrap();
    let expected = pattern(7, LEN);
    // SAFETY: the address is the kernel's choice, and the file is as long as the mapping.
    let address = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            LEN,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )
    }
    .unwrap();
    // SAFETY: the mapping is `LEN` bytes, writable, and no other code has a reference to it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), LEN) };
    mapped.copy_from_slice(&expected);
    // SAFETY: the range is the mapping from above.
    unsafe { rustix::mm::msync(address, LEN, rustix::mm::MsyncFlags::SYNC) }.unwrap();
    assert!(fs::read(&path).unwrap() == expected, "seen through read(2)");
    // SAFETY: `mapped` is not used after this line.
    unsafe { rustix::mm::munmap(address, LEN) }.unwrap();
    drop(file);
    volume.remount();
    assert!(
        fs::read(&path).unwrap() == expected,
        "seen after a new mount"
    );
    volume.unmount();
}

#[test]
fn acls_and_attributes_are_kept_inherited_and_follow_the_mode() {
    if skip_mounts() {
        return;
    }
    let volume = mounted_for_all();
    let directory = volume.path("shared");
    fs::create_dir(&directory).unwrap();
    must(
        "setfacl",
        &["-d", "-m", "u:1234:rwx,g:4321:r-x", text(&directory)],
    );
    let file = directory.join("file");
    fs::write(&file, "x").unwrap();
    must("setfacl", &["-m", "u:77:r--", text(&file)]);
    must("setfattr", &["-n", "user.colour", "-v", "red", text(&file)]);
    must(
        "setfattr",
        &["-n", "trusted.note", "-v", "kept", text(&file)],
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let seen = as_nobody("getfattr", &["-d", "-m", "-", text(&file)]);
    assert!(seen.status.success(), "{seen:?}");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(!seen.contains("trusted"), "{seen}");
    volume.remount();
    let acl = must("getfacl", &["-n", "-p", text(&file)]);
    for line in [
        "user:1234:rwx",
        "group:4321:r-x",
        "user:77:r--",
        "mask::r--",
        "other::---",
    ] {
        assert!(acl.contains(line), "no {line} in:\n{acl}");
    }
    let colour = must(
        "getfattr",
        &["--only-values", "-n", "user.colour", text(&file)],
    );
    assert_eq!(colour, "red");
    let note = must(
        "getfattr",
        &["--only-values", "-n", "trusted.note", text(&file)],
    );
    assert_eq!(note, "kept");
    must("setfattr", &["-x", "user.colour", text(&file)]);
    assert!(
        !run("getfattr", &["-n", "user.colour", text(&file)])
            .status
            .success()
    );
    volume.unmount();
}

#[test]
fn permissions_hold_against_other_users_and_their_writes_clear_setuid() {
    if skip_mounts() {
        return;
    }
    let volume = mounted_for_all();
    let secret = volume.path("secret");
    fs::write(&secret, "mine").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody("cat", &[text(&secret)]).status.success());
    let program = volume.path("program");
    fs::write(&program, "x").unwrap();
    for change in ["echo y >> \"$1\"", "truncate -s 0 \"$1\""] {
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
        let output = as_nobody("sh", &["-c", change, "sh", text(&program)]);
        assert!(output.status.success(), "{output:?}");
        let mode = fs::metadata(&program).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777, "after {change}");
    }
    let sticky = volume.path("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(sticky.join("mine"), "x").unwrap();
    assert!(
        !as_nobody("rm", &["-f", text(&sticky.join("mine"))])
            .status
            .success()
    );
    assert!(
        as_nobody("touch", &[text(&sticky.join("theirs"))])
            .status
            .success()
    );
    assert_eq!(fs::metadata(sticky.join("theirs")).unwrap().uid(), 65534);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    std::os::unix::fs::chown(&program, None, None).unwrap();
    let mode = fs::metadata(&program).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "after chown(-1, -1)");
    // Times that the kernel writes back by itself are no sign of a write.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    fs::hard_link(&program, volume.path("again")).unwrap();
    fs::rename(&program, volume.path("moved")).unwrap();
    must("sync", &["-f", text(&volume.mountpoint)]);
    volume.remount();
    let mode = fs::metadata(volume.path("moved"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o6755, "after link and rename");
    volume.unmount();
}

#[test]
fn holes_are_found_punched_and_cost_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("sparse");
    let file = create_to_read(&path);
    let data = pattern(8, 1 << 20);
    file.write_all_at(&data, 8 << 20).unwrap();
    file.set_len(1 << 40).unwrap();
    // Most of it is in the kernel's cache alone.
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)),
        Ok(8 << 20)
    );
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(8 << 20)),
        Ok(9 << 20)
    );
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8 << 20, 512 << 10).unwrap();
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)),
        Ok((8 << 20) + (512 << 10))
    );
    let mut half = vec![1; 512 << 10];
    file.read_exact_at(&mut half, 8 << 20).unwrap();
    assert!(
        half.iter().all(|&byte| byte == 0),
        "what was punched reads as zeros"
    );
    file.read_exact_at(&mut half, (8 << 20) + (512 << 10))
        .unwrap();
    assert!(half == data[512 << 10..], "what was not is as before");
    drop_caches();
    let blocks = fs::metadata(&path).unwrap().blocks();
    assert!(
        blocks <= 2 * 1024,
        "{blocks} blocks of 512 bytes for 512 KiB of data"
    );
    drop(file);
    volume.unmount();
}

#[test]
fn renames_refuse_exchange_and_replace_as_asked() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let (a, b) = (volume.path("a"), volume.path("b"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
    volume.unmount();
}

#[test]
fn every_kind_of_file_and_every_byte_of_a_name_survives_a_new_mount() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    must("mkfifo", &[text(&volume.path("fifo"))]);
    must("mknod", &[text(&volume.path("null")), "c", "1", "3"]);
    let odd: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let odd = OsString::from_vec(odd);
    fs::write(volume.mountpoint.join(&odd), "odd").unwrap();
    let stamp = ["-d", "1969-12-31T23:59:58.5Z"];
    must("touch", &[stamp[0], stamp[1], text(&volume.path("old"))]);
    volume.remount();
    assert_eq!(fs::read(volume.mountpoint.join(&odd)).unwrap(), b"odd");
    assert_eq!(
        must("stat", &["-c", "%F", text(&volume.path("fifo"))]).trim(),
        "fifo"
    );
    assert_eq!(
        must("stat", &["-c", "%t:%T", text(&volume.path("null"))]).trim(),
        "1:3"
    );
    let old = fs::metadata(volume.path("old")).unwrap();
    assert_eq!((old.mtime(), old.mtime_nsec()), (-2, 500_000_000));
    let long = volume.path(&"n".repeat(255));
    fs::write(&long, "x").unwrap();
    let too_long = fs::write(volume.path(&"n".repeat(256)), "x").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
    volume.unmount();
}

#[test]
fn direct_appending_and_exclusive_opens_work_as_specified() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("file");
    let direct = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
    let file: File = rustix::fs::open(&path, direct, 0o644.into())
        .unwrap()
        .into();
    let block = Box::new(Aligned([7; 4096]));
    file.write_all_at(&block.0, 0).unwrap();
    file.write_all_at(&block.0, 4096).unwrap();
    drop(file);
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b"end").unwrap();
    let again = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap_err();
    assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
    let mut reading = File::open(&path).unwrap();
    reading.seek(SeekFrom::Start(8190)).unwrap();
    let mut tail = Vec::new();
    reading.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, [7, 7, b'e', b'n', b'd']);
    drop(appending);
    drop(reading);
    volume.unmount();
}

/// Programs that copy or pack files skip what they are told is a hole.
#[test]
fn bytes_in_the_page_cache_alone_are_no_hole() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("draft");
    let mut file = File::create(&path).unwrap();
    let reader = File::open(&path).unwrap();
    for piece in pattern(10, 3 << 20).chunks(300_000) {
        file.write_all(piece).unwrap();
        let written = file.stream_position().unwrap();
        assert_eq!(
            rustix::fs::seek(&reader, rustix::fs::SeekFrom::Data(0)),
            Ok(0),
            "of {written}"
        );
        assert_eq!(
            rustix::fs::seek(&reader, rustix::fs::SeekFrom::Hole(0)),
            Ok(written)
        );
    }
    drop((file, reader));
    assert!(fs::read(&path).unwrap() == pattern(10, 3 << 20));
    volume.unmount();
}

#[test]
fn an_append_past_the_cache_goes_behind_the_cached_bytes() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let path = volume.path("log");
    let mut buffered = File::create(&path).unwrap();
    buffered.write_all(&pattern(11, 400 << 10)).unwrap();
    let direct = OFlags::WRONLY | OFlags::APPEND | OFlags::DIRECT | OFlags::CLOEXEC;
    let mut appending: File = rustix::fs::open(&path, direct, 0.into()).unwrap().into();
    appending
        .write_all(&Box::new(Aligned([7; 4096])).0)
        .unwrap();
    drop((buffered, appending));
    let mut expected = pattern(11, 400 << 10);
    expected.extend([7; 4096]);
    assert!(fs::read(&path).unwrap() == expected);
    volume.remount();
    assert!(fs::read(&path).unwrap() == expected);
    volume.unmount();
}

#[test]
fn a_later_file_never_has_an_older_time() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let stamp = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.mtime(), meta.mtime_nsec())
    };
    for round in 0..200 {
        let source = volume.path(&format!("source{round}"));
        let target = volume.path(&format!("target{round}"));
        // Its time comes from the volume; that of the target, from the kernel.
        fs::create_dir(&source).unwrap();
        fs::write(&target, "made from source").unwrap();
        assert!(stamp(&source) <= stamp(&target), "round {round}");
    }
    volume.unmount();
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn a_copy_within_the_volume_shares_its_data() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let (source, copy) = (volume.path("source"), volume.path("copy"));
    fs::write(&source, pattern(9, 32 << 20)).unwrap();
    File::open(&source).unwrap().sync_all().unwrap();
    let before = volume.status().0["capacity"]["bytes_used"]
        .as_u64()
        .unwrap();
    must("cp", &["--sparse=never", text(&source), text(&copy)]);
    File::open(&copy).unwrap().sync_all().unwrap();
    let after = volume.status().0["capacity"]["bytes_used"]
        .as_u64()
        .unwrap();
    assert!(
        after < before + (16 << 20),
        "from {before} to {after} bytes for a copy of 32 MiB"
    );
    fs::remove_file(&source).unwrap();
    drop_caches();
    assert!(fs::read(&copy).unwrap() == pattern(9, 32 << 20));
    volume.unmount();
}

#[test]
fn many_threads_in_one_directory_do_not_disturb_each_other() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let directory = volume.path("busy");
    fs::create_dir(&directory).unwrap();
    let workers: Vec<_> = (0..16)
        .map(|worker: u64| {
            let directory = directory.clone();
            std::thread::spawn(move || {
                for round in 0..40 {
                    let (from, to) = (
                        directory.join(format!("{worker}-{round}")),
                        directory.join(format!("{worker}-done")),
                    );
                    let bytes = pattern(worker * 100 + round, 10_000);
                    fs::write(&from, &bytes).unwrap();
                    fs::rename(&from, &to).unwrap();
                    assert!(
                        fs::read(&to).unwrap() == bytes,
                        "worker {worker} round {round}"
                    );
                    if round % 3 == 1 {
                        fs::remove_file(&to).unwrap();
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker failed");
    }
    let mut left: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let mut expected: Vec<_> = (0..16).map(|worker| format!("{worker}-done")).collect();
    expected.sort();
    assert_eq!(left, expected);
    volume.unmount();
}

#[test]
fn a_listing_is_complete_while_others_come_and_go() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    let directory = volume.path("many");
    fs::create_dir(&directory).unwrap();
    for index in 0..3000 {
        File::create(directory.join(format!("stays{index}"))).unwrap();
    }
    for index in 0..1000 {
        File::create(directory.join(format!("goes{index}"))).unwrap();
    }
    let mut seen = Vec::new();
    for (count, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        seen.push(entry.unwrap().file_name().into_string().unwrap());
        if count % 100 == 0 {
            File::create(directory.join(format!("comes{count}"))).unwrap();
        }
        // Behind what was listed, before it, and at its very place.
        if count < 1000 {
            fs::remove_file(directory.join(format!("goes{}", count * 617 % 1000))).unwrap();
        }
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "a name is listed twice");
    let stayed = seen.iter().filter(|name| name.starts_with("stays"));
    assert_eq!(stayed.count(), 3000);
    let left = fs::read_dir(&directory).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (gone, here): (Vec<_>, Vec<_>) = left.partition(|name| name.starts_with("goes"));
    assert_eq!((gone.len(), here.len()), (0, 3000 + count.div_ceil(100)));
    volume.unmount();
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    if skip_mounts() {
        return;
    }
    // As udev leaves it everywhere; bare virtual machines do not.
    must("chmod", &["666", "/dev/fuse"]);
    let home = tempfile::tempdir().unwrap();
    must("chmod", &["777", text(home.path())]);
    let binary = copy_program(home.path());
    let at = |name: &str| home.path().join(name);
    let log = at("log");
    assert!(as_nobody("mkdir", &[text(&at("mnt"))]).status.success());
    let members = ["d0", "d1", "d2"].map(at);
    let mut create = vec![
        "create",
        "--data",
        "2",
        "--parity",
        "1",
        "--segment-size",
        "8MiB",
    ];
    create.extend(members.iter().map(|path| text(path)));
    let made = as_nobody(text(&binary), &create);
    assert!(made.status.success(), "{made:?}");
    let mountpoint = at("mnt");
    let mut mount = vec!["mount", "--log-file", text(&log)];
    mount.extend(members.iter().map(|path| text(path)));
    mount.push(text(&mountpoint));
    let outcome = as_nobody(text(&binary), &mount);
    let _guard = Unmounted(&mountpoint);
    assert!(outcome.status.success(), "{outcome:?}");
    let script = "echo hello > \"$1/f\" && cat \"$1/f\" && stat -c %U \"$1/f\"";
    let used = as_nobody("sh", &["-c", script, "sh", text(&mountpoint)]);
    assert_eq!(
        String::from_utf8_lossy(&used.stdout),
        "hello\nnobody\n",
        "{used:?}"
    );
    let status = as_nobody(text(&binary), &["status", text(&mountpoint)]);
    assert!(status.status.success(), "{status:?}");
    let unmounted = as_nobody(text(&binary), &["unmount", text(&mountpoint)]);
    assert!(unmounted.status.success(), "{unmounted:?}");
}

/// Takes a mount away, whatever became of the test.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        run("umount", &["-l", text(self.0)]);
    }
}

/// The helpers that mount(8) and umount(8) call for `fuse.cauchyfs` and `cauchyfs`; `scripts/install.sh` puts them there.
const HELPERS: [&str; 4] = [
    "/sbin/mount.fuse.cauchyfs",
    "/sbin/umount.fuse.cauchyfs",
    "/sbin/mount.cauchyfs",
    "/sbin/umount.cauchyfs",
];

/// The binary under test as a helper, as long as this lives.
enum Helper {
    /// Put where nothing was.
    Linked(&'static str),
    /// Put over the installed file.
    Bound(&'static str),
}

impl Helper {
    fn install(place: &'static str) -> Self {
        if !Path::new(place).exists() {
            std::os::unix::fs::symlink(CAUCHYFS, place).expect("root may install");
            return Self::Linked(place);
        }
        must("mount", &["--bind", CAUCHYFS, place]);
        Self::Bound(place)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        match self {
            Self::Linked(place) => fs::remove_file(place).expect("it is ours"),
            Self::Bound(place) => drop(run("umount", &["-i", place])),
        }
    }
}

#[test]
fn mount_mounts_a_volume_named_in_fstab() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let members: Vec<_> = volume.members.iter().map(|path| text(path)).collect();
    let source = members.join(":");
    let mountpoint = text(&volume.mountpoint);
    let _helpers = HELPERS.map(Helper::install);
    let table = volume.home.join("fstab");
    for kind in ["fuse.cauchyfs", "cauchyfs"] {
        let log = volume.home.join(format!("log of {kind}"));
        let options = format!(
            "noatime,nodev,nofail,_netdev,uhelper=fuse.cauchyfs,cache-size=64.5MiB,member_timeout=9s,log-file={}",
            log.display()
        );
        let options = options.replace(' ', "\\040");
        let line = format!("{source} {mountpoint} {kind} {options} 0 0\n");
        fs::write(&table, line).unwrap();
        let by_table = ["-T", text(&table), mountpoint];
        must("mount", &by_table);
        fs::write(volume.path("f"), "x").unwrap();
        let shown = must(
            "findmnt",
            &["-n", "-o", "FSTYPE,SOURCE,OPTIONS", mountpoint],
        );
        for part in ["fuse.cauchyfs", &source, "nodev", "noatime"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        let daemon = volume.daemon().expect("a daemon serves the mount");
        let words = fs::read_to_string(format!("/proc/{daemon}/cmdline")).unwrap();
        for part in ["--cache-size\x0067633152\0", "--member-timeout\x009000ms\0"] {
            assert!(words.contains(part), "{part} in {words:?}");
        }
        assert!(log.exists(), "{kind}");
        must("mount", &["-o", "remount,ro", mountpoint]);
        let refused = fs::write(volume.path("f"), "y").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        must("mount", &["-o", "remount,rw", mountpoint]);
        fs::write(volume.path("f"), "x").unwrap();
        let shown = must("findmnt", &["-n", "-o", "OPTIONS", mountpoint]);
        assert!(
            shown.contains("nodev") && shown.contains("noatime"),
            "{shown}"
        );
        // The mount is known to be as the line says.
        must("mount", &["-a", "-T", text(&table)]);
        let mounts = must(
            "findmnt",
            &["-n", "-o", "TARGET", "-t", "fuse.cauchyfs", mountpoint],
        );
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        must("umount", &[mountpoint]);
        // Only what unmounts through it can wait for everything to be durable.
        assert_eq!(volume.daemon(), None, "{kind}");
    }

    // A lost member is no failure at boot.
    volume.delete_member(2);
    must("mount", &["-a", "-T", text(&table)]);
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"x");
    volume.unmount();

    for kind in ["fuse.cauchyfs", "cauchyfs"] {
        must("mount", &["-t", kind, &source, mountpoint, "-o", "ro"]);
        assert_eq!(fs::read(volume.path("f")).unwrap(), b"x");
        assert!(fs::write(volume.path("f"), "y").is_err());
        let refused = run("mount", &["-o", "remount,rw", mountpoint]);
        assert!(!refused.status.success() && said(&refused).contains("was mounted read-only"));
        must("mount", &["-o", "remount,noexec", mountpoint]);
        volume.unmount();
    }
}

#[test]
fn a_read_only_mount_shows_everything_and_changes_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = mounted();
    fs::write(volume.path("f"), pattern(1, 100_000)).unwrap();
    volume.unmount();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-o", "ro"]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(volume.path("f")).unwrap() == pattern(1, 100_000));
    let refused = fs::write(volume.path("g"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    volume.unmount();
}
