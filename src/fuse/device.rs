//! The connection to the kernel over `/dev/fuse`.
//!
//! A thread reads a request, and any thread writes its answer. Each request has memory of its own. The data
//! of a write begins at a page there, and so does the data of a read.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::protocol::{
    ANSWER_HEADER, Answer, Header, INVALIDATE_INODE, INVALIDATE_NAME, RETRIEVE, STORE, fixed_len,
    invalidation, name_invalidation, retrieval, storage,
};
use super::request::{Carrier, Reply, Request};
use crate::format::{BLOCK_SIZE, Ino};

/// The most bytes of a WRITE, and of the answer to a READ.
pub(super) const MAX_DATA: usize = 1 << 20;

/// The bytes in front of the data of a WRITE.
const BEFORE_DATA: usize = Header::LEN + 40;

/// The bytes of memory that are aligned: a block for what comes before the data, the data, and a block more for
/// requests with several long names.
const ALIGNED: usize = 2 * BLOCK_SIZE + MAX_DATA;

/// The most memory that is kept, in requests.
const MOST_SPARE: usize = 32;

/// The connection of one mount.
#[derive(Debug)]
pub(super) struct Device {
    descriptor: OwnedFd,
    /// Memory of requests that were answered.
    spare: Mutex<Vec<Vec<u8>>>,
    /// The number of requests that [`Device::nudge`] made.
    nudges: AtomicU64,
    /// Set once programs are refused, because the daemon ends although they use the mount.
    refuses_programs: AtomicBool,
}

impl Device {
    /// Takes the descriptor that a mount returned.
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            spare: Mutex::default(),
            nudges: AtomicU64::new(0),
            refuses_programs: AtomicBool::new(false),
        }
    }

    /// Has the requests of programs refused from now on, apart from those that complete what the kernel has accepted.
    pub(super) fn refuse_programs(&self) {
        self.refuses_programs.store(true, Ordering::SeqCst);
    }

    /// Returns whether requests of programs are to be refused.
    pub(super) fn refuses_programs(&self) -> bool {
        self.refuses_programs.load(Ordering::Relaxed)
    }

    /// Returns the descriptor.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Waits for a request; returns none once the filesystem is mounted nowhere.
    ///
    /// # Errors
    ///
    /// If the connection broke in another way.
    pub(super) fn receive(self: &Arc<Self>) -> io::Result<Option<Request>> {
        let mut incoming = Incoming::new(self);
        loop {
            let space = &mut incoming.memory[incoming.start..incoming.start + Incoming::SPACE];
            match rustix::io::read(&self.descriptor, space) {
                Ok(len) => {
                    incoming.len = len;
                    let header = incoming.header()?;
                    return Ok(Some(Request::new(header, Box::new(incoming))));
                }
                // The process that asked is gone (ENOENT), or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes one message: a header and what follows it.
    fn write(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header = header(unique, error, body.len())?;
        rustix::io::writev(
            &self.descriptor,
            &[IoSlice::new(&header), IoSlice::new(body)],
        )?;
        Ok(())
    }

    /// Answers request `unique`.
    pub(super) fn answer(&self, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
        match outcome {
            Ok(body) => self.write(unique, 0, body),
            Err(errno) => self.write(unique, -errno.raw_os_error(), &[]),
        }
    }

    /// Makes the kernel distrust the attributes that it caches of an inode.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told, `ENOENT` if it does not know the inode.
    pub(super) fn invalidate_attributes(&self, ino: Ino) -> io::Result<()> {
        self.invalidate(&invalidation(ino, -1, 0))
    }

    /// Makes the kernel write back and drop the pages of an inode from byte `start` to before `end`, or to the last one. It
    /// then distrusts the attributes that it caches, too.
    ///
    /// # Errors
    ///
    /// As [`Self::invalidate_attributes`].
    pub(super) fn invalidate_pages(
        &self,
        ino: Ino,
        start: u64,
        end: Option<u64>,
    ) -> io::Result<()> {
        let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
        // A length of 0 stands for the rest of the file.
        let len = end.map_or(0, |end| number(end.saturating_sub(start).max(1)));
        self.invalidate(&invalidation(ino, number(start), len))
    }

    /// Makes the kernel forget a name in a directory, also that there is none.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told, `ENOENT` if it does not know the name.
    pub(super) fn invalidate_name(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        let body = name_invalidation(parent, name).map_err(io::Error::other)?;
        self.write(0, INVALIDATE_NAME, &body)
    }

    /// Makes the kernel know that a file has at least `size` bytes.
    ///
    /// Where the kernel writes pages back, it takes the size of a file that it knows from no answer. A notice with bytes for
    /// its page cache makes the file longer there, before the bytes are copied. Here they have no address, so that the copy
    /// fails and no page changes.
    ///
    /// # Errors
    ///
    /// As [`Self::invalidate_attributes`].
    pub(super) fn lengthen(&self, ino: Ino, size: u64) -> io::Result<()> {
        let Some(last) = size.checked_sub(1) else {
            return Ok(());
        };
        let body = storage(ino, last, 1);
        let body = body.bytes();
        let header = header(0, STORE, body.len() + 1)?;
        let piece = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let nowhere = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 1,
        };
        let pieces = [piece(&header), piece(body), nowhere];
        #[expect(unsafe_code, reason = "no slice has an address that is nowhere")]
        // SAFETY: the kernel only reads the pieces. The first two are alive, and it reports the last as a fault.
        let written = unsafe { libc::writev(self.descriptor.as_raw_fd(), pieces.as_ptr(), 3) };
        match io::Error::last_os_error() {
            _ if written >= 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            error => Err(error),
        }
    }

    fn invalidate(&self, notice: &Answer) -> io::Result<()> {
        self.write(0, INVALIDATE_INODE, notice.bytes())
    }

    /// Makes the kernel send a request that wants nothing, over the queue of the CPU on which this is called.
    ///
    /// A new entry of a queue is for requests to come. Those that waited already are taken up when another request is
    /// committed. So this asks the kernel for no bytes of `file`, which it sends as a request.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told, `ENOENT` if it does not know the file.
    pub(super) fn nudge(&self, file: Ino) -> io::Result<()> {
        let count = self.nudges.fetch_add(1, Ordering::Relaxed);
        // The kernel counts its own requests from 0, and odd numbers are for interrupts.
        let unique = (1 << 63) + 2 * count;
        self.write(0, RETRIEVE, retrieval(unique, file).bytes())
    }
}

/// Returns the header of a message with `len` bytes after it.
fn header(unique: u64, error: i32, len: usize) -> io::Result<[u8; ANSWER_HEADER]> {
    let len = u32::try_from(ANSWER_HEADER + len).map_err(io::Error::other)?;
    let mut header = [0; ANSWER_HEADER];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    Ok(header)
}

/// The memory of a request. It is as small as the request while that is set aside.
struct Incoming {
    device: Arc<Device>,
    memory: Vec<u8>,
    /// The place of the request.
    start: usize,
    /// The bytes of the request.
    len: usize,
}

impl Incoming {
    /// The bytes from the start of a request to the end of the memory.
    const SPACE: usize = ALIGNED - BLOCK_SIZE + BEFORE_DATA;

    fn new(device: &Arc<Device>) -> Self {
        let memory = device.spare.lock().pop();
        // Zeroed memory of this size comes from the kernel page by page, as it is used.
        let memory = memory.unwrap_or_else(|| vec![0; BLOCK_SIZE + ALIGNED]);
        let aligned = memory.as_ptr().align_offset(BLOCK_SIZE);
        Self {
            device: Arc::clone(device),
            start: aligned + BLOCK_SIZE - BEFORE_DATA,
            len: 0,
            memory,
        }
    }

    /// Gives memory back for other requests, unless it was that of a request that is set aside.
    fn give_back(&self, memory: Vec<u8>) {
        let mut spare = self.device.spare.lock();
        if memory.len() == BLOCK_SIZE + ALIGNED && spare.len() < MOST_SPARE {
            spare.push(memory);
        }
    }

    /// Moves the request into other memory, to `start`. Returns the memory that it leaves.
    fn move_to(&mut self, mut memory: Vec<u8>, start: usize) -> Vec<u8> {
        let request = &self.memory[self.start..self.start + self.len];
        memory[start..start + self.len].copy_from_slice(request);
        self.start = start;
        std::mem::replace(&mut self.memory, memory)
    }

    /// Reads the header.
    fn header(&self) -> io::Result<Header> {
        let bytes = &self.memory[self.start..self.start + self.len];
        let (len, header) = Header::parse(bytes).map_err(io::Error::other)?;
        if len != bytes.len() {
            return Err(io::Error::other("the kernel's request has a wrong length"));
        }
        Ok(header)
    }
}

impl Carrier for Incoming {
    fn arguments(&self, opcode: u32) -> (&[u8], &[u8]) {
        let arguments = &self.memory[self.start + Header::LEN..self.start + self.len];
        arguments
            .split_at_checked(fixed_len(opcode))
            .unwrap_or((arguments, &[]))
    }

    fn memory(&mut self) -> &mut [u8] {
        let data = self.start + BEFORE_DATA;
        &mut self.memory[data..data + MAX_DATA]
    }

    fn set_aside(&mut self) {
        let left = self.move_to(vec![0; self.len], 0);
        self.give_back(left);
    }

    fn take_up(&mut self) {
        let mut fresh = Self::new(&self.device);
        let memory = std::mem::take(&mut fresh.memory);
        self.move_to(memory, fresh.start);
    }

    fn len(&self) -> usize {
        self.len - Header::LEN
    }

    fn send(mut self: Box<Self>, unique: u64, reply: Reply<'_>) {
        let data = self.start + BEFORE_DATA;
        let outcome = match reply {
            Reply::None => Ok(()),
            Reply::Error(errno) => self.device.answer(unique, Err(errno)),
            Reply::Bytes(bytes) => self.device.answer(unique, Ok(bytes)),
            Reply::Memory(len) => self
                .device
                .answer(unique, Ok(&self.memory[data..data + len])),
        };
        match outcome.map_err(|error| error.raw_os_error()) {
            // The process that asked is gone (ENOENT), or the mount (ENODEV).
            Ok(()) | Err(Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(errno) => tracing::error!("the kernel does not take an answer: error {errno:?}"),
        }
        let memory = std::mem::take(&mut self.memory);
        self.give_back(memory);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::fuse::protocol::{Operation, opcode};

    /// Returns a device at whose other end the test is the kernel.
    fn pair() -> (Arc<Device>, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        (Arc::new(Device::new(ours.into())), theirs)
    }

    fn message(opcode: u32, fixed: &[u8], rest: &[u8]) -> Vec<u8> {
        let len = Header::LEN + fixed.len() + rest.len();
        let mut message = Vec::new();
        message.extend(u32::try_from(len).unwrap().to_ne_bytes());
        message.extend(opcode.to_ne_bytes());
        message.extend(77u64.to_ne_bytes());
        message.extend(5u64.to_ne_bytes());
        message.extend([0; 16]);
        message.extend(fixed);
        message.extend(rest);
        message
    }

    #[test]
    fn data_of_writes_and_answers_lies_at_the_start_of_a_page() {
        let (device, kernel) = pair();
        for len in [1, 4096, 100_000] {
            let mut fixed = [0; 40];
            fixed[16..20].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
            kernel
                .send(&message(opcode::WRITE, &fixed, &vec![7; len]))
                .unwrap();
            let mut request = device.receive().unwrap().unwrap();
            let Ok(Operation::Write { data, .. }) = request.operation() else {
                panic!("it is a write");
            };
            assert_eq!(data, vec![7; len]);
            assert_eq!(data.as_ptr().align_offset(BLOCK_SIZE), 0);
            let answer = request.memory(MAX_DATA + 1);
            assert_eq!(answer.len(), MAX_DATA);
            assert_eq!(answer.as_ptr().align_offset(BLOCK_SIZE), 0);
            answer[..3].copy_from_slice(b"abc");
            request.answer_memory(Ok(3));
            let mut answer = [0; 100];
            assert_eq!(kernel.recv(&mut answer).unwrap(), ANSWER_HEADER + 3);
            assert_eq!(answer[8..19], *b"\x4d\0\0\0\0\0\0\0abc");
        }
    }

    #[test]
    fn a_request_that_is_dropped_answers_eio_and_a_forget_answers_nothing() {
        let (device, kernel) = pair();
        kernel.send(&message(opcode::FORGET, &[0; 8], b"")).unwrap();
        device.receive().unwrap().unwrap().end();
        kernel.send(&message(opcode::LOOKUP, b"", b"x\0")).unwrap();
        drop(device.receive().unwrap());
        let mut answer = [0; 100];
        assert_eq!(kernel.recv(&mut answer).unwrap(), ANSWER_HEADER);
        assert_eq!(answer[4..8], (-libc::EIO).to_ne_bytes());
        kernel.set_nonblocking(true).unwrap();
        assert!(kernel.recv(&mut answer).is_err(), "one answer to each");
    }

    #[test]
    fn a_request_that_was_set_aside_is_as_it_was_and_its_memory_served_others() {
        let (device, kernel) = pair();
        let len = 100_000usize;
        let mut fixed = [0; 40];
        fixed[16..20].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
        let write = message(opcode::WRITE, &fixed, &vec![7; len]);
        kernel.send(&write).unwrap();
        let mut request = device.receive().unwrap().unwrap();
        request.set_aside();
        assert_eq!(request.held_bytes(), write.len());
        assert_eq!(device.spare.lock().len(), 1);
        request.take_up();
        assert!(device.spare.lock().is_empty());
        let Ok(Operation::Write { data, .. }) = request.operation() else {
            panic!("it is a write");
        };
        assert_eq!(data, vec![7; len]);
        assert_eq!(data.as_ptr().align_offset(BLOCK_SIZE), 0);
        request.set_aside();
        drop(request);
        let spare = device.spare.lock();
        assert!(
            spare
                .iter()
                .all(|memory| memory.len() == BLOCK_SIZE + ALIGNED)
        );
    }

    #[test]
    fn a_read_can_be_done_again_after_its_memory_was_used() {
        let (device, kernel) = pair();
        let mut fixed = [0; 40];
        fixed[16..20].copy_from_slice(&4096u32.to_ne_bytes());
        kernel.send(&message(opcode::READ, &fixed, b"")).unwrap();
        let mut request = device.receive().unwrap().unwrap();
        request.memory(4096).fill(0xff);
        request.set_aside();
        request.take_up();
        let operation = request.operation();
        assert!(matches!(operation, Ok(Operation::Read { size: 4096, .. })));
    }

    #[test]
    fn a_request_with_a_wrong_length_breaks_the_connection_and_not_the_program() {
        let (device, kernel) = pair();
        let message = message(opcode::LOOKUP, b"", b"x\0");
        for wrong in [&message[..message.len() - 1], &message[..39], &message[..3]] {
            kernel.send(wrong).unwrap();
            assert!(device.receive().is_err(), "{} bytes", wrong.len());
        }
    }
}
