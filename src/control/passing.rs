//! Messages between a daemon and its small processes, with descriptors that come along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message, in bytes.
const LONGEST: usize = 64 << 10;

/// Makes the two ends of a connection.
///
/// # Errors
///
/// If there is no descriptor left.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(
        unix,
        packets,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a message, with a descriptor or without.
///
/// # Errors
///
/// If the other end is closed, among others.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    let text = [IoSlice::new(&text)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &text, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Waits for a message; returns none when the other end is closed.
///
/// # Errors
///
/// If the other end says something that is no such message, or the socket has a limit of time that has passed.
pub(super) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut text = [IoSliceMut::new(&mut text)];
        rustix::net::recvmsg(socket, &mut text, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let len = match received {
        Ok(received) => received.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    if len == 0 {
        return Ok(None);
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let message = serde_json::from_slice(text.get(..len).unwrap_or_default())?;
    Ok(Some((message, descriptor)))
}
