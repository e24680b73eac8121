//! Commands to the kernel, as `io_uring` carries them.

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};

/// The place of `/dev/fuse` among the files that are registered with the ring.
const DEVICE: types::Fixed = types::Fixed(0);

/// Takes the entry into the queue.
const REGISTER: u32 = 1;

/// Takes an answer, and waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// The number of areas of memory in an entry: headers and payload.
const AREAS: u32 = 2;

/// The place of the field `len` in a submission, in units of 32 bits.
const LEN_FIELD: usize = 6;

/// Registers an entry for queue `queue`, whose areas `areas` lists: addresses and lengths.
pub(super) fn register(queue: u16, areas: *const [u64; 4]) -> Entry128 {
    let command = opcode::UringCmd80::new(DEVICE, REGISTER)
        .cmd(arguments(queue, 0))
        .addr(Some(areas as u64));
    with_len(command.build(), AREAS)
}

/// Commits the answer to request `unique`, and fetches the next request.
pub(super) fn commit_and_fetch(queue: u16, unique: u64) -> Entry128 {
    opcode::UringCmd80::new(DEVICE, COMMIT_AND_FETCH)
        .cmd(arguments(queue, unique))
        .build()
}

/// The kernel's `fuse_uring_cmd_req`: flags, the request that is answered, and the queue.
fn arguments(queue: u16, unique: u64) -> [u8; 80] {
    let mut arguments = [0; 80];
    arguments[8..16].copy_from_slice(&unique.to_ne_bytes());
    arguments[16..18].copy_from_slice(&queue.to_ne_bytes());
    arguments
}

/// Sets a field that the crate leaves out for this kind of submission.
#[expect(unsafe_code, reason = "the crate has no safe way to this field")]
fn with_len(mut submission: Entry128, len: u32) -> Entry128 {
    let words = std::ptr::from_mut(&mut submission).cast::<[u32; 32]>();
    // SAFETY: the type is `repr(C)`, 128 bytes long and more strictly aligned; it has the kernel's layout, in which any
    // bits are valid. No other reference to it exists.
    let words = unsafe { &mut *words };
    words[LEN_FIELD] = len;
    submission
}

const _: () = assert!(size_of::<Entry128>() == size_of::<[u32; 32]>());
const _: () = assert!(align_of::<Entry128>() >= align_of::<[u32; 32]>());
