//! Direct I/O beside buffered I/O of the same file.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use io_uring::{IoUring, opcode, types};

use crate::support::{Shape, TestVolume, must, skip_mounts, text};

/// Bytes of the file, and of each write.
const LEN: usize = 1 << 20;

/// The alignment of memory for direct I/O, in bytes.
const ALIGNMENT: usize = 4096;

/// Writes; if stale pages remain, most of them are followed by a wrong read.
const WRITES: u8 = 200;

/// Writes all of `bytes` to the front of a file and waits for that, as programs with asynchronous I/O do.
fn write_asynchronously(ring: &mut IoUring, file: &File, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("small");
    let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), len).build();
    // SAFETY: the file and the bytes outlive the request, which is complete when this returns.
    #[expect(unsafe_code, reason = "the kernel reads the bytes")]
    unsafe { ring.submission().push(&entry) }.expect("the ring is empty");
    ring.submit_and_wait(1).expect("it is submitted");
    let written = ring.completion().next().expect("it is complete").result();
    assert_eq!(
        usize::try_from(written).ok(),
        Some(bytes.len()),
        "{written}"
    );
}

/// As generic/451 of xfstests does it.
#[test]
fn a_buffered_read_sees_an_asynchronous_direct_write_before_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let path = volume.path("file");
    fs::write(&path, vec![0; LEN]).expect("it is written");
    must("sync", &["-f", text(&path)]);
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .expect("it opens");
    let buffered = File::open(&path).expect("it opens");
    let mut ring = IoUring::new(2).expect("there is io_uring");
    let mut memory = vec![0; LEN + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let mut seen = vec![0; LEN];
    let is_over = AtomicBool::new(false);
    let stale = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::read(&path).expect("it can be read");
                }
            });
        }
        let _over = scopeguard::guard((), |()| is_over.store(true, Ordering::Relaxed));
        let mut stale = 0;
        for number in 1..=WRITES {
            let bytes = &mut memory[start..start + LEN];
            bytes.fill(number);
            write_asynchronously(&mut ring, &direct, bytes);
            buffered
                .read_exact_at(&mut seen, 0)
                .expect("it can be read");
            stale += usize::from(seen.iter().any(|&byte| byte != number));
        }
        stale
    });
    drop((direct, buffered, ring));
    assert_eq!(stale, 0, "wrong reads behind {WRITES} writes");
    volume.unmount();
}
