//! Seeks for data and holes in files of which the kernel may cache bytes that are not here yet.

use std::sync::Arc;

use rustix::io::Errno;

use super::callbacks::seek;
use super::page_cache::PageCache;
use super::protocol::Operation;
use super::request::{Context, Request};
use crate::fs::{Fs, ServedFs};

/// The holes of which the kernel is asked for its bytes one by one. The last of them stands for the rest of the file, so
/// that a writer cannot prolong a seek.
const ROUNDS: usize = 8;

/// Returns the first byte that decides over the outcome of a seek from `offset` and may be cached by the kernel alone;
/// `None` if there is none. Bytes that are here are data in either case.
pub(super) fn first_doubtful(offset: u64, whence: i32, found: Result<u64, Errno>) -> Option<u64> {
    let doubtful = match found {
        Ok(found) if whence == libc::SEEK_HOLE => found,
        Ok(found) if found == offset => return None,
        Ok(_) | Err(Errno::NXIO) => offset,
        Err(_) => return None,
    };
    // The kernel caches nothing behind the greatest offset that it knows.
    i64::try_from(doubtful).is_ok().then_some(doubtful)
}

/// Carries out a seek. Has the kernel write what it caches of the holes that decide over the outcome. Holds no filesystem
/// meanwhile: those writes may wait for the volume. Returns the outcome with the filesystem that had the last word, or none
/// if no volume is open.
///
/// The outcome is an error of [`crate::fs::FileReader::seek`], or `EIO` if the kernel cannot be told.
pub(super) fn seek_what_is_written(
    context: &Context,
    served: &ServedFs,
    page_cache: &PageCache,
    request: &Request,
) -> Option<(Arc<Fs>, Result<u64, Errno>)> {
    let Ok(Operation::LSeek {
        handle,
        offset,
        whence,
    }) = request.operation()
    else {
        return Some((served.present().clone()?, Err(Errno::INVAL)));
    };
    let seek_from = |offset, whence| {
        let fs = served.present().clone()?;
        let operation = Operation::LSeek {
            handle,
            offset,
            whence,
        };
        let found = context.attempt(|| seek(&fs, operation));
        Some((fs, found))
    };
    let (mut fs, mut found) = seek_from(offset, whence)?;
    for round in 1..=ROUNDS {
        let Some(start) = first_doubtful(offset, whence, found) else {
            break;
        };
        let end = match (whence, found) {
            _ if round == ROUNDS => None,
            (libc::SEEK_HOLE, _) => seek_from(start, libc::SEEK_DATA)?.1.ok(),
            (_, found) => found.ok(),
        };
        drop(fs);
        let is_told = context.tell(|| page_cache.write_back(request.ino(), start, end));
        let before = found;
        (fs, found) = seek_from(offset, whence)?;
        if !is_told {
            return Some((fs, Err(Errno::IO)));
        }
        // All of the hole before the data was written back, and a hole that is still one is one.
        if whence == libc::SEEK_DATA || found == before {
            break;
        }
    }
    Some((fs, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_is_in_doubt_from_the_first_hole_that_it_meets() {
        let [data, hole] = [libc::SEEK_DATA, libc::SEEK_HOLE];
        for (whence, found, doubtful) in [
            (data, Ok(5), None),
            (data, Ok(9), Some(5)),
            (hole, Ok(5), Some(5)),
            (hole, Ok(9), Some(9)),
            (data, Err(Errno::NXIO), Some(5)),
            (hole, Err(Errno::NXIO), Some(5)),
            (data, Err(Errno::IO), None),
        ] {
            let first = first_doubtful(5, whence, found);
            assert_eq!(first, doubtful, "{whence} {found:?}");
        }
        assert_eq!(first_doubtful(u64::MAX, data, Err(Errno::NXIO)), None);
    }
}
