//! Requests that come while the volume of a mount is closed and opened again.

use rustix::io::Errno;

use super::callbacks::forget;
use super::protocol::{Answer, FROM_PAGE_CACHE, Operation, space};
use super::request::Request;
use crate::fs::{Handle, ServedFs};

/// Answers a request while there is no volume. References that the kernel gives back are taken back, and the space is
/// what it was, with nothing free; everything else fails with `EIO`. Returns whether it failed.
pub(super) fn answer_without_volume(served: &ServedFs, request: Request) -> bool {
    let kept = served.kept();
    match request.operation() {
        Ok(Operation::StatFs) => {
            request.answer(Ok(space(&served.statfs())));
            false
        }
        Ok(operation @ (Operation::Forget { .. } | Operation::BatchForget(_))) => {
            forget(&request, operation, |ino, lookups| {
                kept.forget(ino, lookups);
            });
            request.end();
            false
        }
        Ok(
            Operation::Release {
                handle: Handle::ByCaller { .. },
            }
            | Operation::ReleaseDir {
                handle: Handle::ByCaller { .. },
            },
        ) => {
            request.answer(Ok(Answer::EMPTY));
            false
        }
        Ok(Operation::Release { handle } | Operation::ReleaseDir { handle }) => {
            let released = kept.release(handle);
            let has_failed = released.is_err();
            request.answer(released.map(|()| Answer::EMPTY).map_err(|_| Errno::BADF));
            has_failed
        }
        Ok(Operation::Write {
            offset,
            data,
            flags,
            ..
        }) if flags & FROM_PAGE_CACHE != 0 => {
            kept.note_failed_writeback(request.ino(), offset, data.len() as u64);
            request.answer(Err(Errno::IO));
            true
        }
        _ => {
            request.answer(Err(Errno::IO));
            true
        }
    }
}
