//! The records of inodes.

use crate::commit::Pipeline;
use crate::format::record::Inode;
use crate::format::{Ino, Record, key};

use super::error::FsError;

/// Reads the record of an inode; `None` if there is none.
pub(super) fn read_inode(pipeline: &Pipeline, ino: Ino) -> Result<Option<Inode>, FsError> {
    match pipeline.get(&key::inode(ino))? {
        Some(value) => Ok(Some(Inode::decode(&value)?)),
        None => Ok(None),
    }
}
