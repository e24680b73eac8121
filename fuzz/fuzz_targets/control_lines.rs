//! Lines over the control socket under libFuzzer, from both ends.
//!
//! The first byte of an input chooses the end. With 0 the rest is a request, as a daemon reads it. With another number it
//! is all that a daemon sends, and a command reads it as the answer to one of its requests. `tests/fuzz/control.rs`
//! has real commands and daemons.

#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use cauchyfs::{coding, fs, maintenance, membership, metadata, store, stripes, transaction};
use libfuzzer_sys::fuzz_target;

/// The room of the kernel, as far as lines need it.
#[allow(dead_code, reason = "no line is made here")]
mod fuse {
    pub(crate) use cauchyfs::fuse::{Transport, one_line};

    pub(crate) mod mount {
        use std::io;
        use std::path::PathBuf;

        pub(crate) use cauchyfs::fuse::mount::Mount;

        /// Stands in for the error of the library, of which other crates cannot match all variants.
        pub(crate) enum MountError {
            Device(io::Error),
            Refused {
                mountpoint: PathBuf,
                source: io::Error,
            },
            NoHelper(io::Error),
            Helper(String),
            Busy(PathBuf),
            NotOurs(PathBuf),
            Stuck {
                mountpoint: PathBuf,
                source: io::Error,
            },
        }
    }
}

/// As much of the room as lines need.
#[path = "../../src/control"]
#[allow(dead_code, unused_imports, reason = "the product needs more of it")]
mod control {
    pub(crate) mod departure;
    pub(crate) mod exchange;
    mod failure;
    mod fault;
    mod mount_refusal;
    pub(crate) mod protocol;
    mod report;
    mod scrubbed;
    mod volume_failure;
}

use control::departure::Departure;
use control::exchange::{Limits, Lines, exchange};
use control::protocol::{Envelope, Request, Versioned};

/// The most bytes of an answer: a socket takes them all before any is read.
const MOST_BYTES: usize = 64 << 10;

thread_local! {
    static DEPARTURE: Departure = UnixStream::pair()
        .map(|(here, _)| Departure::of(&here))
        .expect("sockets can be had");
}

/// Reads a request as a daemon does. One that is read encodes to a line that reads the same.
fn try_request(line: &[u8]) {
    let versioned = serde_json::from_slice::<Versioned>(line);
    let Ok(envelope) = serde_json::from_slice::<Envelope>(line) else {
        return;
    };
    assert_eq!(
        versioned.expect("any envelope has one").version,
        envelope.version
    );
    let line = serde_json::to_vec(&envelope).expect("a request can be sent");
    assert_eq!(
        serde_json::from_slice::<Envelope>(&line).ok(),
        Some(envelope)
    );
}

/// Reads the answer to a request as a command does.
fn try_answer(request: Request, lines: &[u8]) {
    let (here, mut there) = UnixStream::pair().expect("sockets can be had");
    there
        .write_all(&lines[..lines.len().min(MOST_BYTES)])
        .and_then(|()| there.shutdown(Shutdown::Write))
        .expect("the socket takes them all");
    let limits = Limits::of(&request, true);
    let envelope = Envelope::new(None, request);
    let mut reports = 0;
    let answer = DEPARTURE.with(|departure| {
        exchange(&mut Lines::of(here), &envelope, &limits, departure, |_| {
            reports += 1
        })
    });
    assert!(reports <= limits.progress);
    if let Ok(answer) = answer {
        serde_json::to_vec(&answer).expect("an answer can be sent");
    }
}

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        None => {}
        Some((0, line)) => try_request(line),
        Some((1, lines)) => try_answer(Request::Identify, lines),
        Some((2, lines)) => try_answer(Request::Status, lines),
        Some((_, lines)) => {
            let bytes_per_second = None;
            try_answer(Request::Scrub { bytes_per_second }, lines);
        }
    }
});
