//! File handles, by which NFS servers and backup programs know files.

use std::fs;
use std::path::Path;

use crate::support::{Shape, TestVolume, drop_caches, must, skip_mounts, text};

/// Prints the handle of a path, or opens one and prints what is there. An error is printed by its name.
const HANDLES: &str = r#"
import ctypes, errno, os, stat, sys

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

libc = ctypes.CDLL(None, use_errno=True)

def fail():
    print(errno.errorcode[ctypes.get_errno()])
    sys.exit()

if sys.argv[1] == "name":
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, sys.argv[2].encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        fail()
    print(bytes(handle)[:8 + handle.bytes].hex())
else:
    handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[3]).ljust(ctypes.sizeof(Handle), b"\0"))
    mount = os.open(sys.argv[2], os.O_RDONLY)
    file = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if file < 0:
        fail()
    path = os.readlink(f"/proc/self/fd/{file}")
    if stat.S_ISDIR(os.fstat(file).st_mode):
        print(path, *sorted(os.listdir(file)))
    else:
        print(os.read(file, 100).decode())
"#;

/// Returns the handle of a path.
#[track_caller]
fn handle_of(path: &Path) -> String {
    let handle = must("python3", &["-c", HANDLES, "name", text(path)]);
    assert!(handle.trim().len() > 16, "{handle}");
    handle.trim().to_owned()
}

/// Opens a handle; returns the bytes of a file, path and names of a directory, or the error.
fn open(volume: &TestVolume, handle: &str) -> String {
    let mountpoint = text(&volume.mountpoint);
    let said = must("python3", &["-c", HANDLES, "open", mountpoint, handle]);
    said.trim().to_owned()
}

/// Mounts a volume with these options, and opens handles in all states of the kernel's caches.
fn open_handles(options: &[&str]) {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    let mount = || {
        let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], options);
        assert!(output.status.success(), "{output:?}");
    };
    mount();
    let (directory, file) = (volume.path("a/b"), volume.path("a/b/file"));
    fs::create_dir_all(&directory).expect("root may do all");
    fs::write(&file, "bytes").expect("root may do all");
    fs::write(volume.path("a/b/gone"), "gone").expect("root may do all");
    fs::create_dir(volume.path("a/empty")).expect("root may do all");
    let handles = ["", "a/b", "a/b/file", "a/b/gone", "a/empty"];
    let [root, of_directory, of_file, of_gone, of_empty] =
        handles.map(|name| handle_of(&volume.path(name)));
    let check = |when: &str, names: &str| {
        assert_eq!(open(&volume, &of_file), "bytes", "{when}");
        let found = format!("{} {names}", text(&directory));
        assert_eq!(open(&volume, &of_directory), found, "{when}");
        let found = format!("{} a", text(&volume.mountpoint));
        assert_eq!(open(&volume, &root), found, "{when}");
    };
    check("when all is in the cache", "file gone");
    drop_caches();
    check("when nothing is in the cache", "file gone");
    assert_eq!(open(&volume, &of_gone), "gone");
    volume.unmount();
    mount();
    check("after a new mount", "file gone");
    assert_eq!(handle_of(&file), of_file, "a handle stays the same");

    fs::remove_file(volume.path("a/b/gone")).expect("root may do all");
    fs::remove_dir(volume.path("a/empty")).expect("root may do all");
    fs::rename(&file, volume.path("a/b/renamed")).expect("root may do all");
    for when in [
        "at once",
        "when nothing is in the cache",
        "after a new mount",
    ] {
        check(when, "renamed");
        assert_eq!(open(&volume, &of_gone), "ESTALE", "{when}");
        assert_eq!(open(&volume, &of_empty), "ESTALE", "{when}");
        if when == "at once" {
            drop_caches();
        } else {
            volume.unmount();
            mount();
        }
    }
    volume.unmount();
}

#[test]
fn a_handle_opens_its_file_until_that_is_removed() {
    open_handles(&[]);
}

#[test]
fn a_handle_opens_its_file_where_the_kernel_requests_each_open() {
    open_handles(&["-o", "open_requests"]);
}
