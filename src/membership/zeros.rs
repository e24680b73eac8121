//! Zeros in the space of new files, where the first durable write to reserved space is slower than later ones.
//!
//! Each operation writes little. So a slow member that answers is not given up because there is much to write.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::io::MemberIo;
use crate::format::MemberIndex;
use crate::store::{Executor, Op, Pool, Space, StoreError, StoreRef};

/// The most zeros that one operation writes, in bytes.
const ZEROS_BYTES: usize = 1 << 20;

impl MemberIo {
    /// Writes zeros to a reserved range of a file on each of these members, on all of them at once. Those whose filesystem
    /// has no use for that are left alone. Returns the members that failed.
    #[must_use]
    pub fn write_zeros(
        &self,
        name: &Arc<str>,
        ranges: Vec<(MemberIndex, Range<u64>)>,
    ) -> Vec<(MemberIndex, StoreError)> {
        let mut failed = Vec::new();
        let mut rest = Vec::new();
        for (member, range) in ranges {
            match self.call(member, "measure", |store| store.space()) {
                Ok(space) if gains(&space) && !range.is_empty() => rest.push((member, range)),
                Ok(_) => {}
                Err(error) => failed.push((member, error)),
            }
        }
        let zeros = zeros();
        while !rest.is_empty() {
            let write = |(member, range): &(MemberIndex, Range<u64>)| {
                let op = Op::WriteDurably {
                    name: Arc::clone(name),
                    offset: range.start,
                    data: zeros.slice(..first_piece(range)),
                };
                (*member, op)
            };
            let answers = self.run(rest.iter().map(write).collect());
            let asked = std::mem::take(&mut rest).into_iter().zip(answers);
            for ((member, mut range), answer) in asked {
                range.start += first_piece(&range) as u64;
                match answer {
                    Ok(_) if range.is_empty() => {}
                    Ok(_) => rest.push((member, range)),
                    Err(error) => failed.push((member, error)),
                }
            }
        }
        failed
    }
}

/// Writes zeros to the first `len` bytes of a file of a store, if its filesystem has a use for that. Stops before the end
/// once `is_wanted` denies that, because the file serves without them.
///
/// # Errors
///
/// Those of the store.
pub(super) fn write_zeros(
    executor: &Executor,
    store: &StoreRef,
    name: &'static str,
    len: u64,
    is_wanted: impl Fn() -> bool,
) -> Result<(), StoreError> {
    let space = executor.call(store, "measure", |store| store.space())?;
    if !gains(&space) {
        return Ok(());
    }
    let zeros = zeros();
    let mut range = 0..len;
    while !range.is_empty() && is_wanted() {
        let (offset, piece) = (range.start, zeros.slice(..first_piece(&range)));
        range.start += piece.len() as u64;
        executor.call(store, "write", move |store| {
            store.write_durably(name, offset, &piece)
        })?;
    }
    Ok(())
}

/// Returns whether durable writes to reserved space are quicker after it was written once.
fn gains(space: &Space) -> bool {
    space.reserves && space.marks_first_writes
}

/// Returns the length of what one operation writes of a range.
fn first_piece(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).map_or(ZEROS_BYTES, |len| len.min(ZEROS_BYTES))
}

/// Returns zeros for one operation, in memory fit for any way of writing.
fn zeros() -> Bytes {
    Pool::new(0).zeroed(ZEROS_BYTES).freeze()
}
