//! A limit on the memory of the process, and a message where that is not enough.
//!
//! The kernel counts private writable memory (`RLIMIT_DATA`): the heap and the stacks of threads, and neither
//! programs, nor mapped files, nor the page cache. The process ends at the limit, because little code can go on
//! where an allocation fails. [`Allocator`] has it end with a message and an exit code rather than with a signal.

#![expect(
    unsafe_code,
    reason = "an allocator is unsafe to implement, and a process that has no memory left ends by _exit"
)]

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The text that the process ends with at its limit, and the exit code.
static AT_LIMIT: OnceLock<(String, i32)> = OnceLock::new();

/// Limits the memory of the process to `bytes`, or to a lower limit that it has. At the limit it prints `message`
/// of that limit on standard error and ends with `code`, if [`Allocator`] is its allocator.
///
/// # Errors
///
/// If the kernel refuses.
pub fn limit(bytes: u64, message: impl FnOnce(u64) -> String, code: i32) -> io::Result<()> {
    let set = getrlimit(Resource::Data);
    let lower = |old: Option<u64>| old.map_or(bytes, |old| old.min(bytes));
    let current = lower(set.current);
    setrlimit(
        Resource::Data,
        Rlimit {
            current: Some(current),
            maximum: Some(lower(set.maximum)),
        },
    )?;
    // A second limit keeps the first message.
    AT_LIMIT.get_or_init(|| (message(current), code));
    Ok(())
}

/// Ends the process, because `layout` cannot be allocated.
pub fn exhausted(layout: Layout) -> ! {
    end_at_limit();
    handle_alloc_error(layout)
}

/// Ends the process if it has a limit. Allocates nothing, and runs nothing at exit.
#[cold]
fn end_at_limit() {
    let Some((message, code)) = AT_LIMIT.get() else {
        return;
    };
    // SAFETY: the pointer and the length are those of a string that lives as long as the process.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(*code) }
}

/// The system's allocator; ends the process at the limit that [`limit`] has set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: every call goes to the system's allocator with the arguments that came, and its answer goes back. A null
// pointer ends the process, or goes back like any other answer.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, which are the callee's.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System`, by way of this allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc_zeroed`, which are the callee's.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the pointer came from `System`, and the caller keeps the promises of `GlobalAlloc::realloc`.
        checked(unsafe { System.realloc(pointer, layout, new_size) })
    }
}

#[inline]
fn checked(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null() {
        end_at_limit();
    }
    pointer
}
