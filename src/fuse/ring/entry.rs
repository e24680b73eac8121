//! Entries of queues: memory in which the kernel delivers a request, and takes the answer.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use crate::format::BLOCK_SIZE;
use crate::fuse::device::MAX_DATA;
use crate::fuse::protocol::{ANSWER_HEADER, Header, Malformed, fixed_len};
use crate::fuse::request::{Carrier, Reply, Request};

/// Layout of the headers, the kernel's `fuse_uring_req_header`.
mod at {
    /// The header of the request, and then that of the answer.
    pub(super) const HEADER: usize = 0;
    /// The fixed fields of the operation.
    pub(super) const FIXED: usize = 128;
    /// The length of the payload, behind flags and the number to commit with.
    pub(super) const PAYLOAD_LEN: usize = 256 + 16;
    /// The end.
    pub(super) const END: usize = 288;
}

/// The headers take a block, so that the payload begins at one.
const HEADERS: usize = BLOCK_SIZE;

/// The memory of one request at a time.
pub(super) struct Entry {
    /// The request that it delivered last.
    pub(super) unique: u64,
    memory: Vec<u8>,
    /// The place of the headers.
    start: usize,
    areas: Box<[u64; 4]>,
    returns: Arc<Returns>,
}

/// An entry in the box in which a request carries it.
pub(super) type CarriedEntry = Box<Entry>;

impl Entry {
    pub(super) fn new(returns: Arc<Returns>) -> Self {
        // Zeroed memory of this size comes from the kernel page by page, as it is used.
        let mut memory = vec![0; BLOCK_SIZE + HEADERS + MAX_DATA];
        let start = memory.as_ptr().align_offset(BLOCK_SIZE);
        let headers = memory[start..].as_mut_ptr() as u64;
        let payload = headers + HEADERS as u64;
        Self {
            unique: 0,
            memory,
            start,
            areas: Box::new([headers, at::END as u64, payload, MAX_DATA as u64]),
            returns,
        }
    }

    /// Returns the addresses and lengths of the areas that the kernel uses. They stay where they are.
    pub(super) fn areas(&self) -> *const [u64; 4] {
        std::ptr::from_ref(&*self.areas)
    }

    /// Takes the request that the kernel has delivered.
    ///
    /// # Errors
    ///
    /// If the kernel has delivered something else. The entry is lost then.
    pub(super) fn into_request(mut self: Box<Self>) -> Result<Request, Malformed> {
        let (_, header) = Header::parse(self.area(at::HEADER, Header::LEN))?;
        if self.payload_len() > MAX_DATA {
            return Err(Malformed);
        }
        self.unique = header.unique;
        Ok(Request::new(header, self))
    }

    fn area(&self, offset: usize, len: usize) -> &[u8] {
        &self.memory[self.start + offset..][..len]
    }

    fn area_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.memory[self.start + offset..][..len]
    }

    fn payload_len(&self) -> usize {
        let len = self.area(at::PAYLOAD_LEN, 4).try_into();
        u32::from_ne_bytes(len.expect("four bytes")) as usize
    }

    /// Puts an answer into the headers, `payload` bytes of which are in place.
    fn put_answer(&mut self, unique: u64, error: i32, payload: usize) {
        let fits = "at most the payload's memory and a header";
        let len = u32::try_from(ANSWER_HEADER + payload).expect(fits);
        let payload = u32::try_from(payload).expect(fits);
        let header = self.area_mut(at::HEADER, ANSWER_HEADER);
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        self.area_mut(at::PAYLOAD_LEN, 4)
            .copy_from_slice(&payload.to_ne_bytes());
    }
}

impl Carrier for Entry {
    fn arguments(&self, opcode: u32) -> (&[u8], &[u8]) {
        (
            self.area(at::FIXED, fixed_len(opcode)),
            self.area(HEADERS, self.payload_len()),
        )
    }

    fn memory(&mut self) -> &mut [u8] {
        self.area_mut(HEADERS, MAX_DATA)
    }

    fn set_aside(&mut self) {
        self.returns.note_waiting();
    }

    fn take_up(&mut self) {}

    fn len(&self) -> usize {
        self.payload_len()
    }

    fn send(mut self: Box<Self>, unique: u64, reply: Reply<'_>) {
        match reply {
            Reply::Error(errno) => self.put_answer(unique, -errno.raw_os_error(), 0),
            Reply::Memory(len) => self.put_answer(unique, 0, len),
            Reply::None => self.put_answer(unique, 0, 0),
            Reply::Bytes(bytes) if bytes.len() > MAX_DATA => {
                self.put_answer(unique, -Errno::TOOBIG.raw_os_error(), 0);
            }
            Reply::Bytes(bytes) => {
                self.area_mut(HEADERS, bytes.len()).copy_from_slice(bytes);
                self.put_answer(unique, 0, bytes.len());
            }
        }
        let returns = Arc::clone(&self.returns);
        returns.take_back(self);
    }
}

/// The way back to its thread of an entry with an answer.
#[derive(Default)]
pub(super) struct Returns {
    state: Mutex<Returned>,
    changed: Condvar,
}

#[derive(Default)]
struct Returned {
    answered: Option<CarriedEntry>,
    /// Set if the request waits for the volume, and its thread does not know that yet.
    is_waiting: bool,
}

impl Returned {
    fn take(&mut self) -> Option<CarriedEntry> {
        let answered = self.answered.take()?;
        self.is_waiting = false;
        Some(answered)
    }
}

impl Returns {
    fn take_back(&self, entry: CarriedEntry) {
        self.state.lock().answered = Some(entry);
        self.changed.notify_one();
    }

    /// Notes that the request waits for the volume. Its answer may take as long as an outage.
    fn note_waiting(&self) {
        self.state.lock().is_waiting = true;
        self.changed.notify_one();
    }

    /// Returns the entry if it is back.
    pub(super) fn take(&self) -> Option<CarriedEntry> {
        self.state.lock().take()
    }

    /// Waits until the entry is back. A request that is dropped returns it, too. Calls `note_waiting` when the request
    /// begins to wait for the volume.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "a request carries the entry in this box"
    )]
    pub(super) fn wait(&self, mut note_waiting: impl FnMut()) -> CarriedEntry {
        let mut state = self.state.lock();
        loop {
            if let Some(entry) = state.take() {
                return entry;
            }
            if std::mem::take(&mut state.is_waiting) {
                MutexGuard::unlocked(&mut state, &mut note_waiting);
            } else {
                self.changed.wait(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_learns_that_its_request_waits_and_then_gets_the_answer() {
        let returns = Arc::new(Returns::default());
        let mut entry: CarriedEntry = Box::new(Entry::new(Arc::clone(&returns)));
        entry.set_aside();
        let mut told = 0;
        let mut waiting = Some(entry);
        let back = returns.wait(|| {
            told += 1;
            let entry = waiting.take().expect("it is told once");
            entry.send(7, Reply::Error(Errno::INTR));
        });
        assert_eq!(told, 1);
        let error = back.area(at::HEADER + 4, 4);
        assert_eq!(error, (-libc::EINTR).to_ne_bytes());
        assert!(returns.take().is_none());
    }
}
