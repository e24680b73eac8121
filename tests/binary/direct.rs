//! Direct I/O beside buffered I/O of the same file.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use io_uring::{IoUring, opcode, types};

use crate::support::{Shape, TestVolume, must, skip_mounts, text};

/// Bytes of the file, and of each round of writes.
const LEN: usize = 1 << 20;

/// Bytes of each of the writes that are under way together.
const PIECE: usize = LEN / 4;

/// The alignment of memory for direct I/O, in bytes.
const ALIGNMENT: usize = 4096;

/// Rounds of writes; if stale pages remain, most of them are followed by a wrong read.
const ROUNDS: u8 = 200;

/// A program's way to write asynchronously.
trait Asynchronous {
    /// Writes all of `bytes` to the front of a file, in pieces at once, and waits for that.
    fn write(&mut self, file: &File, bytes: &[u8]);
}

impl Asynchronous for IoUring {
    #[expect(unsafe_code, reason = "the kernel reads the bytes")]
    fn write(&mut self, file: &File, bytes: &[u8]) {
        let pieces = bytes.chunks(PIECE);
        let count = pieces.len();
        for (piece, offset) in pieces.zip((0..).step_by(PIECE)) {
            let len = u32::try_from(piece.len()).expect("small");
            let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), piece.as_ptr(), len);
            // SAFETY: the file and the bytes outlive the request, which is complete when this returns.
            unsafe { self.submission().push(&entry.offset(offset).build()) }
                .expect("there is room");
        }
        self.submit_and_wait(count).expect("they are submitted");
        let written = self.completion().map(|done| i64::from(done.result()));
        assert_eq!(
            written.sum::<i64>(),
            i64::try_from(bytes.len()).expect("small")
        );
    }
}

/// The kernel's older interface, which libaio wraps.
struct NativeAio(libc::c_ulong);

/// A completed request, as the kernel lays it out (`struct io_event`).
#[derive(Clone, Default)]
#[repr(C)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    more: i64,
}

impl NativeAio {
    fn new() -> Self {
        let mut context = 0;
        // SAFETY: the kernel writes one number.
        #[expect(unsafe_code, reason = "libc has no wrapper")]
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 16, &raw mut context) };
        assert_eq!(made, 0);
        Self(context)
    }
}

impl Asynchronous for NativeAio {
    #[expect(
        unsafe_code,
        reason = "libc has no wrapper, and the kernel reads the bytes"
    )]
    fn write(&mut self, file: &File, bytes: &[u8]) {
        let of_piece = |(piece, offset): (&[u8], i64)| {
            // SAFETY: all fields are numbers, for which zero is valid.
            let mut request: libc::iocb = unsafe { std::mem::zeroed() };
            // IOCB_CMD_PWRITE of the kernel's interface.
            request.aio_lio_opcode = 1;
            request.aio_fildes = u32::try_from(file.as_raw_fd()).expect("it is open");
            request.aio_buf = piece.as_ptr() as u64;
            request.aio_nbytes = piece.len() as u64;
            request.aio_offset = offset;
            request
        };
        let pieces = bytes.chunks(PIECE).zip((0..).step_by(PIECE));
        let mut requests: Vec<_> = pieces.map(of_piece).collect();
        let mut list: Vec<_> = requests.iter_mut().map(ptr::from_mut).collect();
        let count = i64::try_from(list.len()).expect("small");
        // SAFETY: the requests and what they point to outlive them: they are complete when this returns.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, list.as_mut_ptr()) };
        assert_eq!(submitted, count);
        let mut events = vec![Event::default(); list.len()];
        let no_limit = ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel fills as many events as there are.
        let done = unsafe {
            let events = events.as_mut_ptr();
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                count,
                count,
                events,
                no_limit,
            )
        };
        assert_eq!(done, count);
        let written: i64 = events.iter().map(|event| event.result).sum();
        assert_eq!(written, i64::try_from(bytes.len()).expect("small"));
    }
}

impl Drop for NativeAio {
    fn drop(&mut self) {
        // SAFETY: no request is under way.
        #[expect(unsafe_code, reason = "libc has no wrapper")]
        unsafe {
            libc::syscall(libc::SYS_io_destroy, self.0)
        };
    }
}

/// Returns how many of [`ROUNDS`] writes are followed by a wrong buffered read, while others read too.
fn wrong_reads(path: &Path, writer: &mut impl Asynchronous) -> usize {
    fs::write(path, vec![0; LEN]).expect("it is written");
    must("sync", &["-f", text(path)]);
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("it opens");
    let buffered = File::open(path).expect("it opens");
    let mut memory = vec![0; LEN + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let mut seen = vec![0; LEN];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::read(path).expect("it can be read");
                }
            });
        }
        let _over = scopeguard::guard((), |()| is_over.store(true, Ordering::Relaxed));
        let mut wrong = 0;
        for number in 1..=ROUNDS {
            let bytes = &mut memory[start..start + LEN];
            bytes.fill(number);
            writer.write(&direct, bytes);
            buffered
                .read_exact_at(&mut seen, 0)
                .expect("it can be read");
            wrong += usize::from(seen.iter().any(|&byte| byte != number));
        }
        wrong
    })
}

/// As generic/451 of xfstests does it.
#[test]
fn a_buffered_read_sees_asynchronous_direct_writes_before_it() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let mut ring = IoUring::new(8).expect("there is io_uring");
    assert_eq!(wrong_reads(&volume.path("ring"), &mut ring), 0, "io_uring");
    drop(ring);
    let mut aio = NativeAio::new();
    assert_eq!(wrong_reads(&volume.path("aio"), &mut aio), 0, "libaio");
    volume.unmount();
}
