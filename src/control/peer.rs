//! The process at the other end of a connection.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::process::Pid;

/// The process at the other end of a connection, as it was when the connection was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// None if it is in a PID namespace that ours does not see, as a container's.
    pub(crate) pid: Option<Pid>,
    /// The number of its user.
    pub(crate) user: u32,
}

/// Asks the kernel for the process at the other end. `rustix` cannot: its type has no place for a process without a number.
///
/// # Errors
///
/// If the kernel cannot say.
#[expect(
    unsafe_code,
    reason = "no crate in use takes a process without a number"
)]
pub(crate) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length =
        libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: `found` and `length` live until the call returns, and the kernel writes at most `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer {
        pid: Pid::from_raw(found.pid),
        user: found.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_at_the_other_end_is_this_one() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer_of(&one).unwrap();
        assert_eq!(peer.pid, Some(rustix::process::getpid()));
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
    }
}
