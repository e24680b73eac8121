//! The process of a daemon: its environment, its descriptors, and its end.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Keeps the driver of CUDA from writing the kernels that it compiles below the user's home. The home may lie
/// on this very volume, and the stripe buffers that such a write needs may be what waits for the kernel.
pub(crate) const KERNEL_CACHE_OFF: (&str, &str) = ("CUDA_CACHE_DISABLE", "1");

/// Returns this program, by its name, so that `ps` shows it.
pub(crate) fn program() -> Command {
    Command::new(std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")))
}

/// Keeps what our caller had open, a lock or the end of a pipe, from staying open with the daemon.
#[expect(
    unsafe_code,
    reason = "no crate in use offers close_range as safe code"
)]
pub(crate) fn keep_descriptors_to_ourselves() {
    const FIRST: libc::c_uint = 3;
    let (call, last) = (libc::SYS_close_range, libc::c_uint::MAX);
    // The call by its number, because musl has no function for it.
    // SAFETY: marks descriptors to be closed by a later exec, and closes none.
    let failed = unsafe { libc::syscall(call, FIRST, last, libc::CLOSE_RANGE_CLOEXEC) } != 0;
    if failed {
        tracing::debug!("descriptors stay open: {}", io::Error::last_os_error());
    }
}

/// Lets the program start over in its place, with the same arguments, if it was not started with the environment
/// that a daemon needs.
///
/// # Errors
///
/// If it cannot.
pub(crate) fn start_over_as_daemon() -> io::Result<()> {
    let (name, value) = KERNEL_CACHE_OFF;
    if std::env::var_os(name).is_some_and(|seen| seen == value) {
        return Ok(());
    }
    let arguments = std::env::args_os().skip(1);
    Err(program().args(arguments).env(name, value).exec())
}

/// Leaves the terminal, and the directory that it was started in.
pub(crate) fn detach() -> io::Result<()> {
    rustix::process::setsid()
        .map_err(io::Error::from)
        .and_then(|_| std::env::set_current_dir("/"))
}

/// Takes as many descriptors as this process may have: members keep files open.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::info!("the limit of open files stays as it is: {error}");
    }
}

/// Ends the process of a daemon, which has closed its volume, and runs nothing at exit.
///
/// Threads may still be inside the driver of a GPU: one that looks for GPUs, or one that a GPU keeps waiting. The
/// driver's handlers at exit take away what they use, and the process would die of a signal.
#[expect(unsafe_code, reason = "no crate in use offers _exit as safe code")]
pub(crate) fn end_process(code: u8) -> ! {
    if let Err(error) = io::stdout().flush() {
        tracing::debug!("standard output is gone: {error}");
    }
    // SAFETY: ends the process at once; no memory is used any more.
    unsafe { libc::_exit(code.into()) }
}
