//! Reading and writing the two slots of a superblock on a directory.

use bytes::Bytes;

use super::content::DirectoryContent;
use super::error::MembersError;
use super::reason::AbsenceReason;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::format::{BLOCK_SIZE, FormatError, files};
use crate::store::{Executor, Op, Pool, Store, StoreError, StoreErrorKind, StoreRef, StoreRequest};

/// Bytes of the superblock's file.
pub(super) const SUPERBLOCK_LEN: u64 = (SLOTS * SLOT_BYTES) as u64;

/// Returns a slot's bytes, up to a block's end: aligned writes suit every filesystem.
pub(super) fn padded(block: &Superblock) -> Bytes {
    let mut slot = block.encode();
    slot.resize(slot.len().next_multiple_of(BLOCK_SIZE), 0);
    slot.into()
}

/// The result of a look at a directory.
#[derive(Debug)]
pub(super) enum Look {
    /// A member.
    Member(Box<Superblock>),
    /// One that may have been a member, or may become one again: left out, for this reason.
    Unusable(AbsenceReason),
}

/// Looks into all directories at once.
///
/// # Errors
///
/// [`MembersError::Newer`] and [`MembersError::Foreign`]: mistakes that must not be passed over.
pub(super) fn look(stores: &[StoreRef], executor: &Executor) -> Result<Vec<Look>, MembersError> {
    let pool = Pool::new(0);
    let requests = stores.iter().flat_map(|store| {
        let read = |slot: usize| {
            let offset = (slot * SLOT_BYTES) as u64;
            StoreRequest::read(store, files::SUPERBLOCK, offset, pool.buffer(SLOT_BYTES))
        };
        (0..SLOTS).map(read).collect::<Vec<_>>()
    });
    let mut outcomes = executor.run(requests.collect()).into_iter();
    let mut looks = Vec::with_capacity(stores.len());
    for store in stores {
        let slots: Vec<_> = outcomes
            .by_ref()
            .take(SLOTS)
            .map(|outcome| outcome.map(|buffer| decode(buffer.as_deref())))
            .collect();
        looks.push(judge(store, executor, slots)?);
    }
    Ok(looks)
}

fn decode(slot: Option<&[u8]>) -> Result<Superblock, FormatError> {
    Superblock::decode(slot.unwrap_or_default())
}

type Slot = Result<Result<Superblock, FormatError>, StoreError>;

fn judge(store: &StoreRef, executor: &Executor, slots: Vec<Slot>) -> Result<Look, MembersError> {
    let mut newest: Option<Superblock> = None;
    let mut problem = None;
    let mut absent = true;
    for slot in slots {
        absent &= matches!(&slot, Err(error) if error.kind() == StoreErrorKind::NotFound);
        match slot {
            Ok(Ok(block)) => {
                if newest
                    .as_ref()
                    .is_none_or(|newest| block.generation > newest.generation)
                {
                    newest = Some(block);
                }
            }
            // Whichever slot it is in: it was written by a newer build, and after the other slot.
            Ok(Err(source @ (FormatError::Version { .. } | FormatError::Features { .. }))) => {
                let path = store.label();
                return Err(MembersError::Newer { path, source });
            }
            Ok(Err(error)) => problem = Some(damaged(error.to_string())),
            Err(error)
                if matches!(
                    error.kind(),
                    StoreErrorKind::ShortRead | StoreErrorKind::Foreign
                ) =>
            {
                problem = Some(damaged(chain(&error)));
            }
            Err(error) => problem = problem.or_else(|| Some(AbsenceReason::of_failure(&error))),
        }
    }
    match (newest, problem) {
        (Some(block), None) => Ok(Look::Member(Box::new(block))),
        (Some(block), Some(problem)) => {
            tracing::debug!(path = %store.label(), "one superblock slot: {problem}");
            Ok(Look::Member(Box::new(block)))
        }
        (None, Some(problem)) if !absent => Ok(Look::Unusable(problem)),
        (None, _) => without_superblock(store, executor),
    }
}

fn damaged(detail: String) -> AbsenceReason {
    AbsenceReason::SuperblockDamaged { detail }
}

/// Tells an empty directory, which may be one whose disk is not mounted, from one that was never meant.
fn without_superblock(store: &StoreRef, executor: &Executor) -> Result<Look, MembersError> {
    let content = match executor.call(store, "list", DirectoryContent::of) {
        Ok(content) => content,
        Err(error) => return Ok(Look::Unusable(AbsenceReason::of_failure(&error))),
    };
    match (content.ours, content.foreign) {
        (Some(_), _) => Ok(Look::Unusable(AbsenceReason::SuperblockGone)),
        (None, None) => Ok(Look::Unusable(AbsenceReason::Empty)),
        (None, Some(found)) => {
            let path = store.label();
            Err(MembersError::Foreign { path, found })
        }
    }
}

/// Returns an error and its causes, in one line.
pub(crate) fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Writes a superblock to its slot.
pub(super) fn write_op(block: &Superblock) -> Op {
    Op::Write {
        name: files::SUPERBLOCK.into(),
        offset: block.slot_offset(),
        data: padded(block),
    }
}

/// Makes a superblock that was written durable.
pub(super) fn sync_op() -> Op {
    Op::Sync {
        name: files::SUPERBLOCK.into(),
    }
}

/// Writes a superblock in both slots where no valid one is. Durable on return.
pub(super) fn write_whole(store: &dyn Store, block: &Superblock) -> Result<(), StoreError> {
    store.remove(files::SUPERBLOCK)?;
    store.create(files::SUPERBLOCK, SUPERBLOCK_LEN)?;
    for slot in 0..SLOTS {
        let offset = (slot * SLOT_BYTES) as u64;
        store.write_at(files::SUPERBLOCK, offset, &padded(block))?;
    }
    store.sync(files::SUPERBLOCK)
}
